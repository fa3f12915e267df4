#!/bin/bash
# The bubble of a pipeline, timed: two stages with a core each, of a GPT whose blocks take almost all of the time. With m
# micro-batches a rank should have no work in (p-1)/m of the time that its work takes, with v chunks in (p-1)/(v m), with
# gradients of weights apart in (p-1)/(3 m), and forth and back in a sixth of p/m: what `tessera bench` calls idle is compared
# with that. A stage that has more to do than the other adds to it. Rows are added to results/bubble.tsv.
#
#     tests/bench/bubble.sh [BUILD DIR [STEPS]]        a quiet machine of two cores or more
set -eu
build=$(realpath "${1:-build}") steps=${2:-3} record=$(realpath "$(dirname "$0")/record.sh")
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export STARPU_NCPU=1
model='model={"model_type": "gpt2", "vocab_size": 256, "n_positions": 512, "n_embd": 512, "n_layer": 8, "n_head": 8, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}'
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
echo "micro-batches  order          step, s  idle of busy  on paper"
for m in ${MICROS:-2 4 8 16}; do
    for order in "1 chunk" "2 chunks" zb-h1 zb-v; do
        case $order in
        "1 chunk") how=parallel.interleave=1 paper=$(awk "BEGIN { print 1 / $m }") ;;
        "2 chunks") how=parallel.interleave=2 paper=$(awk "BEGIN { print 1 / (2 * $m) }") ;;
        zb-h1) how=parallel.schedule=zb-h1 paper=$(awk "BEGIN { print 1 / (3 * $m) }") ;;
        zb-v) how=parallel.schedule=zb-v paper=$(awk "BEGIN { print 2 / (6 * 2 * $m) }") ;;
        esac
        mpirun -n 2 "$build/tools/tessera" bench "$model" data.seq_length=512 parallel.pipeline=2 "$how" \
            train_batch_size="$m" train_micro_batch_size_per_gpu=1 --steps "$steps" >"$out/log"
        sed -n 's/^a step of \([0-9.]*\) ms.*busy \([0-9.]*\)%.*idle \([0-9.]*\)%.*/\1 \2 \3/p' "$out/log" |
            awk -v m="$m" -v order="$order" -v paper="$paper" '{ printf "%13d  %-12s  %7.3f  %11.1f%%  %8.1f%%\n", m, order, $1 / 1000, 100 * $3 / $2, 100 * paper }' |
            tee "$out/row"
        read -r seconds idle on <<<"$(sed "s/ *[0-9]* *$order *//" "$out/row")"
        "$record" bubble "bubble.sh BUILD $steps" "$m" "$order" -- "$seconds" "$idle" "$on"
    done
done
