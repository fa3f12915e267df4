#!/bin/bash
# What tessera simulate says with --fold, beside what it says of all ranks one by one: time of a step, tasks, bytes between
# ranks, what tiles hold at most. tools/simulate/bench/simulate_fold.sh [BUILD]: some 2 minutes; the figures are the same wherever
# it runs. Each row is added to results/fold.tsv.
#
#     tools/simulate/bench/simulate_fold.sh BUILD real    layers as wide as those of models of 7 billion parameters, on 8, 16 and 32
#                                                A100s: a quarter of an hour
#     tools/simulate/bench/simulate_fold.sh BUILD law     two runs of a pipeline with fewer micro-batches, and by the line through
#                                                them the step with all: a step is a + b * micro-batches
set -eu -o pipefail
tessera=$(realpath "${1:-build}")/tools/tessera
record=$(realpath "$(dirname "$0")/../../../tests/bench/record.sh")
machines=$(realpath "$(dirname "$0")/../machines")
export MACHINE=simulated
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export STARPU_SILENT=1
echo "{}" >run.json
network='"network": {"gb_s": 1, "latency_us": 2}'
cores='"copy_gb_s": 20, "task_us": 5, "matrix_gflops": {"fp32": 200, "bf16": 400}'
echo "{\"name\": \"cores\", \"cores\": 2, \"memory_gib\": 64, $cores, $network}" >cores.json
echo "{\"name\": \"GPUs\", \"cores\": 8, \"memory_gib\": 64, $cores, \"network\": {\"gb_s\": 4, \"latency_us\": 2},
 \"gpus\": {\"name\": \"made up\", \"count\": 4, \"memory_gib\": 8, \"copy_gb_s\": 400, \"task_us\": 5,
 \"matrix_gflops\": {\"fp32\": 2000, \"bf16\": 8000}, \"host_link\": {\"gb_s\": 10, \"latency_us\": 10, \"gpus\": 2},
 \"peer_link\": {\"gb_s\": 50, \"latency_us\": 5}}}" >gpus.json

simulate() { # LAYERS MACHINE NODES DATA TENSOR PIPELINE STAGE MICRO FOLD [SETTING...]
    local tokens=${tokens:-128}
    local model="{\"model_type\": \"gpt2\", \"n_layer\": $1, \"n_embd\": ${width:-256}, \"n_head\": ${heads:-8}, \"vocab_size\": ${words:-2048},
        \"n_positions\": $((2 * tokens)), \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0}"
    "$tessera" simulate run.json --machine "$2.json" --nodes "$3" --steps 1 --fold "$9" "model=$model" data.seq_length="$tokens" \
        gradient_clipping=1 parallel.tensor="$5" parallel.pipeline="$6" zero_optimization.stage="$7" \
        train_micro_batch_size_per_gpu="${batch:-1}" train_batch_size=$((${batch:-1} * $8 * $4)) "${@:10}"
}
figures='/^step /{s = $2} /^tasks /{t = $2} /^messages /{m = $2} /tiles.* hold /{match($0, /hold [0-9]+/); h = substr($0, RSTART + 5, RLENGTH - 5)}
    /^GPU /{h = $2} /^ranks /{sub(/.*pipeline;? ?/, ""); sub(/ of them.*/, ""); r = $0 + 0} END {print s, t, m, h, r}'

if [ "${2:-}" = law ]; then
    for micro in 16 32 128; do
        simulate 16 gpus 8 1 4 8 1 $micro auto 2>/dev/null | awk -v m=$micro "$figures" | awk -v m=$micro '{print m, $1}'
    done | awk '{m[NR] = $1; s[NR] = $2} END {
        b = (s[2] - s[1]) / (m[2] - m[1])
        printf "a step with %d micro-batches takes %.6f s, with %d %.6f; so with %d, by the line, %.6f; simulated %.6f, ratio %.4f\n",
            m[1], s[1], m[2], s[2], m[3], s[1] + b * (m[3] - m[1]), s[3], (s[1] + b * (m[3] - m[1])) / s[3]}'
    exit
fi

printf '| ranks | data x tensor x pipeline | stage | simulated | all, s | folded, s | ratio | tasks | bytes | held |\n|---|---|---|---|---|---|---|---|---|---|\n'
compare() { # MACHINE NODES DATA TENSOR PIPELINE STAGE MICRO
    simulate "${layers:-4}" "${@:1:7}" none "${settings[@]}" 2>/dev/null | awk "$figures" >all.txt
    simulate "${layers:-4}" "${@:1:7}" auto "${settings[@]}" 2>/dev/null | awk "$figures" >folded.txt
    paste -d ' ' all.txt folded.txt | awk -v n=$(($3 * $4 * $5)) -v of="$1" -v grid="$3 x $4 x $5" -v stage="$6" '
        {printf "| %d, %s | %s | %d | %d | %.6f | %.6f | %.3f | %.3f | %.4f | %.3f |\n", n, of, grid, stage, $10, $1, $6, $6 / $1, $7 / $2, $8 / $3, $9 / $4
         printf "%d\t%.6f\t%.6f\t%.3f\t%.3f\t%.4f\t%.3f\n", $10, $1, $6, $6 / $1, $7 / $2, $8 / $3, $9 / $4 >"row.txt"}'
    mapfile -t row < <(tr '\t' '\n' <row.txt)
    "$record" fold "simulate_fold.sh BUILD${layers:+ real}" "$1" "$3 x $4 x $5" "$6" -- "${row[@]}"
}
settings=()
if [ "${2:-}" = real ]; then
    cp "$machines"/dgx-a100.json .
    layers=2 batch=4 width=4096 heads=32 words=51200 tokens=1024 settings=(bf16.enabled=true activation_checkpointing.enabled=true)
    for data in 8 16 32; do
        for stage in 0 3; do compare dgx-a100 $((data / 8)) $data 1 1 $stage 1; done
    done
    compare dgx-a100 1 1 8 1 0 2
    compare dgx-a100 2 2 8 1 0 1
    compare dgx-a100 4 4 8 1 3 1
    exit
fi
for data in 4 8 16; do
    for stage in 0 1 2 3; do compare cores $data $data 1 1 $stage 1; done
done
for tensor in 2 4 8; do compare cores $tensor 1 $tensor 1 0 2; done
compare cores 8 2 2 2 1 4
compare cores 16 2 2 4 3 8
compare cores 24 24 1 1 1 1
for stage in 0 1 2 3; do compare gpus 1 4 1 1 $stage 1; done
for stage in 0 1 2 3; do compare gpus 2 8 1 1 $stage 1; done
compare gpus 1 1 4 1 0 2
compare gpus 2 2 2 2 1 4
compare gpus 4 2 2 4 3 8
