# What published.sh, sweeps.sh and scale.sh share: where they work, one simulation, which rows are made, and the time of
# a step whose micro-batches are too many to simulate. Sourced, with [BUILD [ROW ...]]; the working directory is then a
# temporary one, with the machines in it; "$here" is this folder.
set -eu -o pipefail
tessera=$(realpath "${1:-build}")/tools/tessera
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
machines=$(realpath "$here/../machines")
only=("${@:2}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cp "$machines"/*.json .
export STARPU_SILENT=1 MACHINE=simulated

# asked_for ROW: it is among the arguments, or there are none.
asked_for() { [ ${#only[@]} = 0 ] || [[ " ${only[*]} " == *" $1 "* ]]; }

# simulated MACHINE NODES TENSOR PIPELINE MICRO SEQUENCES ARGUMENT...: prints the seconds of a step; the rest of what is
# said stays in said.txt, why there is none in error.txt.
simulated() {
    "$tessera" simulate run.json --machine "$1.json" --nodes "$2" --steps 1 parallel.tensor="$3" parallel.pipeline="$4" \
        train_micro_batch_size_per_gpu="$5" train_batch_size="$6" "${@:7}" >said.txt 2>error.txt || return 1
    [ -z "${ESTIMATES:-}" ] || estimated_too "$@" >&2
    awk '/^step / { print $2 }' said.txt
}

# The same arguments: tessera estimate of what was just simulated, beside it, as a row of results/estimates.tsv.
estimated_too() {
    local words=() word skip=0 same=no
    for word in "${@:7}"; do
        if [ $skip = 1 ] || [ "$word" = --fold ]; then skip=$((1 - skip)); else words+=("$word"); fi
    done
    "$tessera" estimate run.json --machine "$1.json" --nodes "$2" parallel.tensor="$3" parallel.pipeline="$4" \
        train_micro_batch_size_per_gpu="$5" train_batch_size="$6" "${words[@]}" >estimate.txt 2>error.txt || { tail -n 1 error.txt; return 0; }
    ! diff -q <(grep '^memory ' said.txt) <(grep '^memory ' estimate.txt) >/dev/null || same=yes
    mapfile -t words < <(awk '/^step / { s = $2 } /^time of a step/ { on = 1 } on && /^  in all/ { e = $(NF - 1) }
        END { printf "%.3f\n%.3f\n%.2f\n", s, e, e / s }' said.txt estimate.txt)
    "$here/../../../tests/bench/record.sh" estimates "$(basename "$0") BUILD ${name:-}" "${name:-}, $6 sequences${AS:+, as $AS}" -- "${words[@]}" "$same"
    echo "    estimated ${words[1]} s, ${words[2]} of ${words[0]}; the same bytes by plan: $same"
}

# gpt MACHINE NODES RANKS-PER-NODE LAYERS WIDTH HEADS TOKENS TENSOR PIPELINE MICRO [SETTING...] SEQUENCES: seconds a step of a
# GPT of such a shape.
gpt() {
    local machine=$1 nodes=$2 ranks=$3 layers=$4 width=$5 heads=$6 tokens=$7 tensor=$8 pipeline=$9 fold=
    shift 9
    local micro=$1 sequences=${!#}
    shift
    [ $((nodes * ranks)) = 1 ] || fold="--fold auto"
    # shellcheck disable=SC2086
    simulated "$machine" "$nodes" "$tensor" "$pipeline" "$micro" "$sequences" --ranks-per-node "$ranks" $fold \
        "model={\"model_type\": \"gpt2\", \"n_layer\": $layers, \"n_embd\": $width, \"n_head\": $heads, \"vocab_size\": 51200, \"n_positions\": $tokens, \"resid_pdrop\": ${drop:-0}, \"embd_pdrop\": ${drop:-0}, \"attn_pdrop\": ${drop:-0}}" \
        data.seq_length="$tokens" "${@:1:$#-1}" || { tail -n 1 error.txt >&2; return 1; }
}

# tflops GPUS LAYERS WIDTH TOKENS SEQUENCES SECONDS: what the papers count of such a step, with the forward pass that is
# computed again: TFLOP/s a GPU.
tflops() {
    awk -v gpus="$1" -v L="$2" -v h="$3" -v T="$4" -v B="$5" -v s="$6" 'BEGIN {
        print 96 * B * T * L * h * h * (1 + T / (6 * h) + 51200 / (16 * L * h)) / s / gpus * 1e-12 }'
}

# law DATA MICRO PIPELINE SEQUENCES STEP...: prints the seconds of a step of SEQUENCES sequences, and "~" behind them where
# they lie on a line through two shorter steps: once a pipeline is full each further micro-batch takes as long as the one
# before it. STEP with a number of sequences behind it prints the seconds of a step of that many, or why there are none.
# With interleaved chunks a stage takes as many micro-batches at a time as there are stages, so the shorter steps have
# whole groups of them.
law() {
    local data=$1 micro=$2 pipeline=$3 all=$(($4 / ($1 * $2))) a b
    shift 4
    local one=$((pipeline > 4 ? pipeline : 4)) more=8
    [[ "$*" != *parallel.interleave=* ]] || more=$one
    local two=$((one + more))
    if [ "$all" -gt $((two + 8)) ]; then
        a=$("$@" $((data * micro * one))) || { echo "$a"; return 1; }
        b=$("$@" $((data * micro * two))) || { echo "$b"; return 1; }
        awk -v a="$a" -v b="$b" -v one=$one -v two=$two -v all=$all 'BEGIN { print a + (b - a) / (two - one) * (all - one), "~" }'
    else
        a=$("$@" $((data * micro * all))) || { echo "$a"; return 1; }
        echo "$a"
    fi
}

# most GUESS COMMAND...: prints the largest number of layers for which COMMAND LAYERS succeeds, to a thirty-second part. It
# is looked for from GUESS on: plans of few layers say little of those of many.
most() {
    local at=$1 low=0 high=0
    shift
    while :; do
        if "$@" "$at"; then low=$at; else high=$at; fi
        if [ $low -gt 0 ] && [ $high -gt 0 ]; then
            [ $((high - low)) -gt 1 ] && [ $((32 * (high - low))) -gt "$high" ] || break
            at=$(((low + high) / 2))
        elif [ $low -gt 0 ]; then
            at=$((low + low / 8 + 1))
        else
            at=$((high - high / 8 - 1))
            [ $at -gt 0 ] || break
        fi
    done
    echo $low
}

# A run whose estimate is in said.txt has all on its GPUs: of its tiles RAM has tokens and scratch alone.
on_gpus_alone() {
    awk '/^cpu / { on = 1; next } /^[a-z]/ { on = 0 } on && /^  (weights|fp32 masters|moments|gradients|activations)/ { more = 1 }
        END { exit more }' said.txt
}
