#!/bin/bash
# The GPU's rate on paper: tessera estimate of GPT-2 124M and of Llama 8B on one H100 with 16 cores and 256 GiB, by rates
# that others measured on one (798 TFLOP/s in large products, 3.0 TB/s) and by what docs/notes/speed-gpu.md expects of
# kernels. Each row is added to results/paper.tsv, which results/speed.md has as a table.
#
#     tests/bench/paper.sh [BUILD [ROW ...]]       ROWs such as gpt-clipped
. "$(dirname "$0")/../../tools/simulate/bench/law.sh"
gpt='{"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}'
llama='{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": false, "rms_norm_eps": 1e-5, "rope_theta": 500000, "hidden_act": "silu"}'

# NAME PRODUCTS FORWARD BACKWARD: what products and attention reach of that matrix rate.
machine() {
    cat >"$1.json" <<END
{"name": "one H100", "cores": 16, "memory_gib": 256, "copy_gb_s": 200, "matrix_gflops": {"fp32": 2048, "bf16": 32768},
 "drive_gb_s": {"read": 7.0, "write": 3.8, "mixed_read": 3.5, "mixed_write": 3.5},
 "gpus": {"name": "H100", "count": 1, "memory_gib": 79, "copy_gb_s": 3000, "task_us": 3, "matrix_gflops": {"fp32": 50000, "bf16": 798000},
  "host_link": {"gb_s": 55, "latency_us": 10, "gpus": 1},
  "shares": {"products": $2, "copies": 0.85, "attention_forward bf16": $3, "attention_backward bf16": $4}}}
END
}
machine narrow 0.72 0.31 0.22 # products of depth 768, heads of 64
machine wide 0.88 0.45 0.25

row() { # NAME TEXT MACHINE MODEL LENGTH BATCH SETTING...
    local name=$1 text=$2 said
    asked_for "$name" || return 0
    echo "{\"model\": $4, \"bf16\": {\"enabled\": true}, \"data\": {\"seq_length\": $5}}" >run.json
    "$tessera" estimate run.json --machine "$3.json" train_batch_size="$6" train_micro_batch_size_per_gpu="$6" "${@:7}" >said.txt 2>error.txt ||
        { echo "$name: $(tail -n 1 error.txt)"; return 0; }
    mapfile -t said < <(awk '
        function flop(x, unit) { return x * (unit ~ /^P/ ? 1e15 : 1e12) }
        /tasks over/ { for (i = 1; i < NF; i++) if ($(i + 1) == "tasks") tasks = $i }
        /^time of a step/ { on = 1; all = flop($5, $6); for (i = 7; i < NF; i++) if ($i == "it") again = flop($(i + 1), $(i + 2)) }
        on && /the GPU at work/ { gpu = $(NF - 1) }
        on && /the cores at work/ { cores = $(NF - 1) }
        on && /^  in all/ { s = $(NF - 1) }
        END { printf "%d\n%.3f\n%.3f\n%.3f\n%.0f\n%.1f%%\n", tasks, gpu, cores, s, 1e6 * gpu / tasks, 100 * (all - again) / s / 989.4e12 }' said.txt)
    "$here/record.sh" paper "paper.sh BUILD $name" "$text" -- "${said[@]}"
    printf '%-16s %s\n' "$name" "${said[*]}"
}
row gpt "GPT-2 124M, 32 x 1024" narrow "$gpt" 1024 32
row gpt-free "GPT-2 124M, without clipping" narrow "$gpt" 1024 32 gradient_clipping=0
again=activation_checkpointing.enabled=true
row llama "Llama 8B, 8 x 4096, states in RAM" wide "$llama" 4096 8 $again
row llama-free "Llama 8B, without clipping" wide "$llama" 4096 8 $again gradient_clipping=0
row llama-24 "Llama 8B under memory.gpu=24GiB" wide "$llama" 4096 8 $again memory.gpu=24GiB
row llama-24-free "Llama 8B under 24 GiB, without clipping" wide "$llama" 4096 8 $again memory.gpu=24GiB gradient_clipping=0
