#!/bin/bash
# The bubble of a pipeline, timed: two stages with a core each, of a GPT whose blocks take almost all of the time. With m
# micro-batches a rank should have no work in (p-1)/m of the time that its work takes, with v chunks in (p-1)/(v m): what
# `tessera bench` calls idle is compared with that. A stage that has more to do than the other adds to it. Rows are added to
# results/bubble.tsv.
#
#     tests/bench/bubble.sh [BUILD DIR [STEPS]]        a quiet machine of two cores or more
set -eu
build=$(realpath "${1:-build}") steps=${2:-3} record=$(realpath "$(dirname "$0")/record.sh")
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export STARPU_NCPU=1
model='model={"model_type": "gpt2", "vocab_size": 256, "n_positions": 512, "n_embd": 512, "n_layer": 8, "n_head": 8, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}'
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
echo "micro-batches  chunks  step, s  idle of busy  (p-1)/(v m)"
for m in 2 4 8 16; do
    for v in 1 2; do
        mpirun -n 2 "$build/tools/tessera" bench "$model" data.seq_length=512 parallel.pipeline=2 parallel.interleave=$v \
            train_batch_size=$m train_micro_batch_size_per_gpu=1 --steps "$steps" >"$out/log"
        sed -n 's/^a step of \([0-9.]*\) ms.*busy \([0-9.]*\)%.*idle \([0-9.]*\)%.*/\1 \2 \3/p' "$out/log" |
            awk -v m=$m -v v=$v '{ printf "%13d  %6d  %7.3f  %11.1f%%  %10.1f%%\n", m, v, $1 / 1000, 100 * $3 / $2, 100 / (v * m) }' |
            tee "$out/row"
        read -r _ _ seconds idle paper <"$out/row"
        "$record" bubble "bubble.sh BUILD $steps" $m $v -- "$seconds" "$idle" "$paper"
    done
done
