#!/bin/bash
# What one H100 makes of the runs of docs/speed.md, on paper: model TFLOP/s by tessera estimate with the rates that a
# machine was measured to have (machines/h100-16.json), and by the same with rates assumed for the parts that were
# rewritten since: each is that part's goal, or what others publish. Nothing of that has run.
#
#     tools/simulate/bench/on_paper.sh BUILD      of one with a simulator; a row a run, as in the page
set -euo pipefail
tessera=$(realpath "$1")/tools/tessera here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
cp "$here/../machines/h100-16.json" measured.json

# Of the peak: attention's backward pass at 170 (d = 64) and 340 TFLOP/s (d = 128), the head's products as the others. Of
# the memory's rate: updates, sums of squares and norms' backward pass at four fifths of a copy. 0.5 ms between steps.
awk '
    function of(key) { return index($0, "\"" key "\":") }
    inside { if (/}/) inside = 0; next }
    of("attention_backward bf16") { now = "{\"all\": 0.25, \"32.2437 GFLOP 101.057 MB\": 0.172, \"67.1744 GFLOP 210.534 MB\": 0.172, \"257.761 GFLOP 134.611 MB\": 0.344}" }
    of("square_sum f32") || of("adamw f32") || of("layernorm_backward bf16") || of("rmsnorm_backward bf16") { now = "0.71" }
    of("cross_entropy_logits bf16") || of("cross_entropy_gradient bf16") { now = "0.65" }
    of("step_us") { now = "500" }
    now { key = $0; sub(/:.*/, "", key); inside = /{/ && !/}/; print key ": " now ","; now = ""; next }
    { print }' measured.json >assumed.json

gpt() { echo "{\"model_type\":\"gpt2\",\"vocab_size\":50304,\"n_positions\":1024,\"n_embd\":$1,\"n_layer\":$2,\"n_head\":$3,\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}"; }
llama() { # LAYERS WORDS
    echo "{\"model_type\":\"llama\",\"vocab_size\":$2,\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":$1,\"num_attention_heads\":32,\"num_key_value_heads\":8,\"max_position_embeddings\":8192,\"rms_norm_eps\":1e-5}"
}
# NAME MODEL BATCH MICRO LENGTH [SETTING...]
row() {
    local name=$1 machine
    echo "{\"model\": $2}" >run.json
    set -- data.seq_length="$5" bf16.enabled=true train_batch_size="$3" train_micro_batch_size_per_gpu="$4" "${@:6}"
    printf '| %s |' "$name"
    for machine in measured assumed; do
        "$tessera" estimate run.json --machine $machine.json "$@" | awk '
            function flops(text, n, unit) { split(text, part, " "); return part[1] * (part[2] ~ /^P/ ? 1e15 : part[2] ~ /^T/ ? 1e12 : 1e9) }
            /^time of a step: / {
                all = flops(substr($0, index($0, ": ") + 2))
                if (match($0, /\(of it /)) all -= flops(substr($0, RSTART + RLENGTH))
                on = 1
            }
            on && /^  in all/ { printf " %.0f |", all / $(NF - 1) * 1e-12; on = 0 }'
    done
    echo
}
row "GPT-2 124M, 32 x 1024, no dropout" "$(gpt 768 12 12)" 32 32 1024
row "GPT 1.5B, 8 x 1024" "$(gpt 1600 48 25)" 8 8 1024
row "GPT 1.5B, 32 x 1024" "$(gpt 1600 48 25)" 32 8 1024
row "Llama 3.6B, 4 x 1 x 4096" "$(llama 14 32768)" 4 1 4096
row "Llama 8B, 8 x 4096, states in RAM" "$(llama 32 128256)" 8 8 4096 activation_checkpointing.enabled=true
row "the same without clipping" "$(llama 32 128256)" 8 8 4096 activation_checkpointing.enabled=true gradient_clipping=0
