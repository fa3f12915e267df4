#!/bin/bash
# Which placement is the fastest, by simulation, in the sweeps of Narayanan et al. 2021 on 64 and 96 A100s: figures 12 to 16,
# whose shapes are those of examples/sc21 in the history of github.com/NVIDIA/Megatron-LM. TFLOP/s a GPU, as the papers
# count. Each line is added to results/sweep-FIGURE.tsv; results/simulated.md has tables of them and what they say.
#
#     tools/simulate/bench/sweeps.sh [BUILD [FIGURE ...]]       FIGUREs such as 13
. "$(dirname "$0")/law.sh"
echo '{"bf16": {"enabled": true}, "activation_checkpointing": {"enabled": true}}' >run.json

# NODES LAYERS WIDTH HEADS TENSOR PIPELINE MICRO SEQUENCES [SETTING...]
cell() {
    local nodes=$1 layers=$2 width=$3 heads=$4 tensor=$5 pipeline=$6 micro=$7 sequences=$8 seconds
    shift 8
    seconds=$(law $((nodes * 8 / tensor / pipeline)) "$micro" "$pipeline" "$sequences" \
        gpt dgx-a100 "$nodes" 8 "$layers" "$width" "$heads" 2048 "$tensor" "$pipeline" "$micro" "$@") || { printf ' %8s' -; cells+=(-); return; }
    cells+=("$(printf %.1f "$(tflops $((nodes * 8)) "$layers" "$width" 2048 "$sequences" "${seconds% ~}")")")
    printf ' %8s' "${cells[-1]}"
}

line() { printf '\n%-44s' "$1"; }

# FIGURE KEY: the line that has just been printed.
add_line() {
    "$here/../../../tests/bench/record.sh" "sweep-$1" "sweeps.sh BUILD $1" "$2" -- "${cells[@]}"
    cells=()
}
cells=()

if asked_for 12; then
    line "12: GPT-3, tensor 8 x pipeline 12, batch"
    printf ' %8d' 12 24 36 48 60
    for chunks in 1 4; do
        line "$chunks chunks a stage"
        for batch in 12 24 36 48 60; do cell 12 96 12288 96 8 12 1 $batch parallel.interleave=$chunks; done
        add_line 12 $chunks
    done
fi
# FIGURE TITLE BATCHES CELL: 64 GPUs shared out between two kinds of parallelism; CELL takes the first one's part and a batch.
shared() {
    asked_for "$1" || return 0
    line "$1: $2"
    printf ' %8s' 2x32 4x16 8x8 16x4 32x2
    for batch in $3; do
        line "batch $batch"
        for part in 2 4 8 16 32; do "$4" $part "$batch"; done
        add_line "$1" "$batch"
    done
}
stages_by_tensor() { cell 8 32 20480 128 $((64 / $1)) "$1" 1 "$2"; }
stages_by_data() { cell 8 32 3840 32 1 "$1" 1 "$2"; }
tensor_by_data() { cell 8 32 3840 32 "$1" 1 1 "$2"; }
shared 13 "162B, pipeline x tensor" "32 128" stages_by_tensor
shared 14 "5.9B, pipeline x data" "32 512" stages_by_data
shared 15 "5.9B, tensor x data" "32 128 512" tensor_by_data
if asked_for 16; then
    line "16: 91B, tensor 8 x pipeline 8, micro-batch"
    printf ' %8d' 1 2 4 8
    for batch in 128 512; do
        line "batch $batch"
        for micro in 1 2 4 8; do cell 8 32 15360 128 8 8 $micro $batch; done
        add_line 16 $batch
    done
fi
echo
