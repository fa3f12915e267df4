#!/bin/bash
# What a step copies to the GPU and back under caps on its memory: by the plan of graph/plan/plan_gpu.c, and by StarPU alone.
# Each line is one run; copies by StarPU alone differ from run to run. Emulated, the GPU's memory is TESS_EMULATED_GPU MiB.
#
#     tests/bench/gpu_plan.sh [BUILD DIR [STEPS]]        a build on a machine with a GPU, or one with -Demulated_gpu=true
set -eu
build=$(realpath "${1:-build-emulated}") steps=${2:-3}
model='model={"model_type": "gpt2", "vocab_size": 512, "n_positions": 256, "n_embd": 512, "n_layer": 8, "n_head": 8, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}'
printf '%-11s %-12s %10s  %-22s %s\n' memory.gpu who tokens/s "to it, back" "the plan, and how near its bound"
for cap in "" 500MiB 400MiB 300MiB 250MiB; do
    for plan in true false; do
        text=$(timeout 600 "$build/tools/tessera" bench "$model" data.seq_length=256 train_batch_size=8 \
            train_micro_batch_size_per_gpu=4 memory.gpu_plan=$plan ${cap:+memory.gpu=$cap} --steps "$steps" 2>&1) || true
        rate=$(sed -n 's/^\([0-9]*\) tokens.s.*/\1/p' <<<"$text")
        copies=$(sed -n 's/^GPU: \(.*\) to it and \([^ ]* [^ ,]*\) back a step.*/\1, \2/p' <<<"$text")
        plans=$(sed -n 's/^GPU:.*the plan says \(.*\) of the .*, and \(.*\) of its bound/\1, \2/p' <<<"$text")
        printf '%-11s %-12s %10s  %-22s %s\n' "${cap:-none}" "$([ $plan = true ] && echo plan || echo StarPU)" "${rate:--}" \
            "${copies:-$(tail -1 <<<"$text" | cut -c1-90)}" "$plans"
    done
done
