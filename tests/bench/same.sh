#!/bin/bash
# Do two builds train the same? Each configuration below runs with both; losses, norms, what ranks sent and the model's
# bytes must be equal, and what went to and from the disk is printed. For work that must not change a bit.
#
#     tests/bench/same.sh BEFORE AFTER          two build directories
set -eu -o pipefail
[ $# = 2 ] || { echo "usage: tests/bench/same.sh BEFORE AFTER" >&2; exit 2; }
text=$(realpath "$(dirname "$0")/../../docs/demo/text.txt")
before=$(realpath "$1")/tools/tessera after=$(realpath "$2")/tools/tessera
export STARPU_SILENT=1 STARPU_WORKERS_NOBIND=1
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
mkdir swap
head -c 200000 "$text" >text.txt
cat >run.json <<'J'
{"model": {"model_type": "gpt2", "vocab_size": 256, "n_positions": 128, "n_embd": 128, "n_layer": 4, "n_head": 4},
 "data": {"train": "text.txt", "seq_length": 64}, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "steps": 5,
 "gradient_clipping": 0.5, "overwrite": true}
J

train() { # name, program, ranks, settings: what must be equal to NAME.same, bytes of the disk to NAME.disk
    local name=$1 program=$2 ranks=$3
    shift 3
    local start=()
    [ "$ranks" = 1 ] || start=(mpirun --oversubscribe -n "$ranks")
    "${start[@]}" "$program" train run.json output="$name" "$@" </dev/null >"$name.out" 2>&1 || { cat "$name.out"; exit 1; }
    grep -oE '"(step|loss|grad_norm|lr|tokens|sent_bytes)":[^,]*' "$name/metrics.jsonl" >"$name.same"
    grep -oE '"disk":\{[^}]*' "$name/metrics.jsonl" | grep -oE '"(read|write)_bytes":[0-9]+' |
        awk -F: '{ sum[$1] += $2 } END { printf "%.1f MiB read, %.1f written", sum["\"read_bytes\""] / 2^20, sum["\"write_bytes\""] / 2^20 }' >"$name.disk"
}

differ=0
while read -r ranks settings; do
    # shellcheck disable=SC2086
    train before "$before" "$ranks" $settings
    # shellcheck disable=SC2086
    train after "$after" "$ranks" $settings
    verdict=same
    if ! cmp -s before.same after.same || ! cmp -s before/model/model.safetensors after/model/model.safetensors; then
        verdict=DIFFERENT differ=1
    fi
    echo "$verdict: $ranks rank$([ "$ranks" = 1 ] || echo s) $settings: disk $(cat before.disk); after: $(cat after.disk)"
done <<'L'
1 seed=1
1 bf16.enabled=true
1 memory.cpu=24MiB memory.path=swap
1 memory.cpu=24MiB memory.path=swap bf16.enabled=true activation_checkpointing.enabled=true
1 memory.cpu=20MiB memory.path=swap zero_optimization.offload_optimizer.device=nvme activation_checkpointing.enabled=true activation_checkpointing.offload=disk
1 model.resid_pdrop=0.3 optimizer.type=Adam
2 zero_optimization.stage=3 deterministic=true
2 zero_optimization.stage=2 memory.cpu=24MiB memory.path=swap bf16.enabled=true
2 parallel.tensor=2
2 parallel.pipeline=2
4 parallel.pipeline=2 parallel.tensor=2 bf16.enabled=true
3 zero_optimization.stage=1 deterministic=true train_batch_size=12
L
exit $differ
