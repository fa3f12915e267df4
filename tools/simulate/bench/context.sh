#!/bin/bash
# Llamas of 70 and 405 billion parameters on sequences of 131,072 tokens, shared by more and more H100s, by tessera
# estimate. Each row is added to results/context.tsv; results/simulated.md has a table of them.
#
#     tools/simulate/bench/context.sh [BUILD [ROW ...]]       ROWs such as 70b-8; all of them take minutes
#
# TFLOP/s are those of the model, without what is computed again, and with the half of attention that causal rows see.
. "$(dirname "$0")/law.sh"
tokens=131072
echo '{"bf16": {"enabled": true}, "activation_checkpointing": {"enabled": true}, "tiles": {"rows": 4096}}' >run.json

# NAME TEXT PUBLISHED NODES LAYERS WIDTH INNER HEADS SEQUENCES SETTING...
row() {
    local name=$1 text=$2 published=$3 nodes=$4 layers=$5 width=$6 inner=$7 heads=$8 sequences=$9 said
    asked_for "$name" || return 0
    "$tessera" estimate run.json --machine dgx-h100.json --nodes "$nodes" data.seq_length=$tokens train_micro_batch_size_per_gpu=1 \
        train_batch_size="$sequences" parallel.tensor=8 "${@:10}" \
        "model={\"model_type\": \"llama\", \"hidden_size\": $width, \"intermediate_size\": $inner, \"num_attention_heads\": $heads, \"num_key_value_heads\": 8, \"num_hidden_layers\": $layers, \"vocab_size\": 128256, \"max_position_embeddings\": $tokens, \"tie_word_embeddings\": false}" \
        >said.txt 2>error.txt || { echo "$name: $(tail -n 1 error.txt)"; return 0; }
    mapfile -t said < <(awk -v n=$((sequences * tokens)) -v gpus=$((8 * nodes)) -v per=$((6 * layers * width * tokens)) '
        NR == 1 { parameters = $1 }
        /^  activations/ { held = $(NF - 1) / ($NF == "MiB" ? 1024 : 1) }
        /^  sent to other ranks/ { sent = $(NF - 1) * ($NF == "TiB" ? 1024 : 1) }
        /^  the GPU at work/ { busy = $(NF - 1) }
        /^time of a step/ { on = 1 }
        on && /^  in all/ { s = $(NF - 1) }
        END { printf "%.1f\n%.0f\n%.1f\n%.1f\n%.0f\n%.0f\n", held, sent, busy, s, n / s, n / s / gpus * (6 * parameters + per) / 1e12 }' said.txt)
    "$here/../../../tests/bench/record.sh" context "context.sh BUILD $name" "$text" -- "${said[@]}" "$published"
    printf '%-10s %s: %s\n' "$name" "$text" "${said[*]}"
}

# 70B on 8 DGX H100s, each group of ranks a sequence: alone by tensor 8; rows of what lies between shared; and more ranks.
llama70() { row "$1" "$2" "" 8 80 8192 28672 64 "${@:3}" zero_optimization.stage=3; }
rows=activation_checkpointing.partition_activations=true
llama70 70b-tensor "70B on 64, tensor 8 alone: 8 sequences" 8
llama70 70b-rows "the same, rows shared" 8 $rows
llama70 70b-2 "and each sequence by 2: 4 sequences" 4 $rows parallel.sequence=2
llama70 70b-4 "by 4: 2 sequences" 2 $rows parallel.sequence=4
llama70 70b-8 "by 8: 1 sequence" 1 $rows parallel.sequence=8
# Llama 3's last stage: 16,384 GPUs, tensor 8, context 16, pipeline 16, data 8; here one of the 8.
row 405b "405B on 2048, tensor 8, sequence 16, pipeline 16: 16 sequences" "380 TFLOP/s, on 16,384" 256 126 16384 53248 128 16 $rows \
    parallel.sequence=16 parallel.pipeline=16 parallel.interleave=4 zero_optimization.stage=1
