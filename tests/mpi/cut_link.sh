#!/bin/bash
# By hand, as root, five minutes: two ranks on two machines (slow_link.sh has them) whose link loses packets, is late, and is
# cut in the middle of a run. Behind a cut of 20 s the run goes on with the bits of one rank; where the link stays cut it ends
# within the patience, with one line, and nothing of it is left on either machine.
#
#     tests/mpi/cut_link.sh [BUILD DIR]
set -eu
build=$(realpath "${1:-build}") network=$(realpath "$(dirname "$0")/slow_link.sh")
if ! unshare --net --uts ip link set dev lo up 2>/dev/null || [ ! -w /dev/net/tun ]; then
    echo "skipped: no network namespaces here (root is needed, ip, and /dev/net/tun)"
    exit 77
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 STARPU_NCPU=1 STARPU_SILENT=1 STARPU_WORKERS_NOBIND=1
export OMPI_MCA_btl=tcp,self OMPI_MCA_pml=ob1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cd "$out"
for ((k = 0; k < 8; k++)); do echo "{\"input_ids\": [$(seq -s, $k $((k + 127)))]}"; done >ids.jsonl
cat >run.json <<END
{"model": {"model_type": "gpt2", "vocab_size": 512, "n_layer": 2, "n_embd": 128, "n_head": 4, "n_positions": 128,
           "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
 "data": {"train": "ids.jsonl", "seq_length": 128}, "train_batch_size": 4, "train_micro_batch_size_per_gpu": 1,
 "zero_optimization": {"stage": 3}, "deterministic": true, "overwrite": true, "log_every": 100000, "output": "out"}
END
over() { # BEGIN SECONDS SETTING...: behind a link that is cut BEGIN seconds after it was made, for SECONDS
    local cut="$1 $2"
    shift 2
    CUT=$cut unshare --net --uts "$network" --joined "$build/tests/link" 5 0.1 400 mpirun --quiet -n 2 \
        -host 10.9.0.1:1,10.9.0.2:1 "$build/tools/tessera" train run.json "$@" >said.txt 2>err.txt
}
"$build/tools/tessera" train run.json steps=60 output=one >/dev/null 2>err.txt || { cat err.txt; exit 1; }
over 10 20 steps=60 || { cat err.txt; exit 1; }
cmp out/model/model.safetensors one/model/model.safetensors
slowest=$(sed 's/.*"seconds":\([0-9.e-]*\).*/\1/' out/metrics.jsonl | sort -g | tail -1)
[ "${slowest%.*}" -ge 15 ] || { echo "the cut met no step: the longest took $slowest s"; exit 1; }
echo "cut for 20 s: went on, the longest step took $slowest s, the bits are one rank's; $(cat link.txt)"
# A rank is patient for 30 times as long as its key says. mpirun waits for what the cut machine answers until the kernel gives
# the link up; by itself that takes it a quarter of an hour.
export RETRIES=7
for at in 10 10.3; do
    began=$SECONDS
    over $at 100000 steps=1000000 patience=1 && { echo "it ended well, without a link"; exit 1; }
    [ "$(grep -c 'tessera: error' err.txt)" = 1 ] && grep -q 'nothing moved and no task ended for 30 s' err.txt ||
        { echo "not one line:"; cat err.txt; exit 1; }
    left=$(pgrep -f "tessera train run.json steps=1000000 patience=1" || true)
    [ -z "$left" ] || { echo "still there: $left"; exit 1; }
    echo "cut for good, patience 1: all ended after $((SECONDS - began)) s: $(grep 'tessera: error' err.txt)"
done
