#!/bin/bash
# How far one gets with what one has: the largest Llama that trains on a machine, by what holds its states, and how long
# 20 tokens a parameter take there, by tessera estimate. Each row is added to results/reach.tsv; results/simulated.md has
# a table of them.
#
#     tools/simulate/bench/reach.sh [BUILD [ROW ...]]       ROWs such as box-drive; a row takes up to a quarter of an hour
#
# The largest has the most layers that fit, as tessera estimate --fits says: RAM without a margin of an eighth, drives as
# they are. It is looked for with two micro-batches, then asked of all. Of GPUs alone, nothing but tokens and scratch is in RAM.
. "$(dirname "$0")/law.sh"
echo '{"bf16": {"enabled": true}, "activation_checkpointing": {"enabled": true}, "data": {"seq_length": 4096}}' >run.json
# One GPU of a DGX H100, with its part of RAM and of the drives.
sed -e 's/"count": 8/"count": 1/' -e 's/"rails": 8/"rails": 1/' -e 's/"cores": 112/"cores": 14/' -e 's/"memory_gib": 2048/"memory_gib": 256/' \
    -e 's/28610/3576/' -e 's/"read": 56.0, "write": 30.4, "mixed_read": 28.0, "mixed_write": 28.0/"read": 7.0, "write": 3.8, "mixed_read": 3.5, "mixed_write": 3.5/' \
    dgx-h100.json >h100.json
declare -A settings=(
    [gpu]="zero_optimization.stage=3"
    [ram]="zero_optimization.stage=3"
    [drive]="zero_optimization.stage=3 zero_optimization.offload_optimizer.device=nvme zero_optimization.offload_param.device=nvme memory.path=nowhere"
)
# A tier's bytes by plan; seconds of a step.
tier() { sed -n "s/^memory .*\b$1 \([0-9]*\).*/\1/p" said.txt; }
seconds() { awk '/^time of a step/ { on = 1 } on && /^  in all/ { print $(NF - 1) }' said.txt; }

# MACHINE NODES WIDTH MICRO WAY LAYERS: whether such a model fits, said.txt says how. Whether GPUs alone hold it is asked of a
# step of one micro-batch that keeps the inputs of blocks: more of them would rather have states in RAM.
look() {
    local inner=$(($3 * 7 / 2)) ranks tiles=
    [ "$3" -lt 32768 ] || tiles=tiles.elements=1073741824
    ranks=$(awk '/"gpus": [{]/ { on = 1 } on && /"count"/ { print $2 + 0; exit }' "$1.json")
    # shellcheck disable=SC2086
    "$tessera" estimate run.json --machine "$1.json" --nodes "$2" --fits \
        "model={\"model_type\": \"llama\", \"hidden_size\": $3, \"intermediate_size\": $inner, \"num_attention_heads\": $(($3 / 128)), \"num_key_value_heads\": 8, \"num_hidden_layers\": $6, \"vocab_size\": 128256, \"max_position_embeddings\": 8192, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000, \"hidden_act\": \"silu\"}" \
        train_micro_batch_size_per_gpu="$4" train_batch_size=$(($2 * ${ranks:-1} * $4 * micros)) ${settings[$5]} $tiles ${keep:-} >said.txt 2>error.txt || return 1
}
alone() { micros=1 look "$@" && on_gpus_alone; }

# NAME TEXT MACHINE NODES WAY WIDTH MICRO GUESS: the most layers, from a guess on.
row() {
    local name=$1 text=$2 machine=$3 nodes=$4 way=$5 width=$6 micro=$7 layers said ranks began=$SECONDS
    local -A what=([gpu]="GPU memory" [ram]="and RAM" [drive]="and drives")
    asked_for "$name" || return 0
    ranks=$(awk '/"gpus": [{]/ { on = 1 } on && /"count"/ { print $2 + 0; exit }' "$machine.json")
    if [ "$way" = gpu ]; then
        layers=$(keep=activation_checkpointing.keep_more=false most "$8" alone "$machine" "$nodes" "$width" "$micro" "$way")
    else
        layers=$(micros=2 most "$8" look "$machine" "$nodes" "$width" "$micro" "$way")
    fi
    while ! look "$machine" "$nodes" "$width" "$micro" "$way" "$layers"; do
        layers=$((layers - layers / 32 - 1))
        [ $layers -gt 0 ] || { tail -n 1 error.txt; return 0; }
    done
    mapfile -t said < <(awk -v p="$(awk 'NR == 1 { print $1 }' said.txt)" -v s="$(seconds)" -v tokens=$((nodes * ${ranks:-1} * micro * micros * 4096)) 'BEGIN {
        days = 20 * p / (tokens / s) / 86400
        hours = 1e8 / (tokens / s) / 3600
        time = days < 1000 ? sprintf("%.0f days", days) : sprintf("%d years", days / 365)
        printf "%.*f\n%.0f\n%s\n%.*f\n", p < 10e9, p / 1e9, tokens / s, time, hours < 10, hours
    }')
    "$here/../../../tests/bench/record.sh" reach "reach.sh BUILD $name" "$text" "${what[$way]}" -- "${said[@]}"
    printf '%-12s %s %s, %d layers of %d: %s (took %d s)\n' "$name" "$text" "${what[$way]}" "$layers" "$width" "${said[*]}" $((SECONDS - began))
}
# The more tokens a step has, the less of it is the way of states: 262,144 of a node's GPUs, as many times over on 8 nodes.
all="one GPU of 24 GB, 64 GB, a drive of 2 TB"
micros=64 row box-gpu "$all" box-24gb 1 gpu 2048 1 13
micros=16 row box-ram "$all" box-24gb 1 ram 4096 4 9
micros=16 row box-drive "$all" box-24gb 1 drive 8192 4 155
all="GH200: one GPU of 96 GB, 480 GB"
micros=64 row gh200-gpu "$all" gh200 1 gpu 4096 1 18
micros=16 row gh200-ram "$all" gh200 1 ram 8192 4 24
all="one H100 of 80 GB, 256 GB, 3.8 TB of drives"
micros=64 row h100-gpu "$all" h100 1 gpu 4096 1 14
micros=16 row h100-ram "$all" h100 1 ram 8192 4 13
micros=16 row h100-drive "$all" h100 1 drive 12288 4 135
all="a DGX H100: 8 of 80 GB, 2 TB, 30 TB of drives"
micros=8 row dgx-gpu "$all" dgx-h100 1 gpu 8192 1 25
micros=2 row dgx-ram "$all" dgx-h100 1 ram 8192 4 112
micros=4 row dgx-drive "$all" dgx-h100 1 drive 32768 2 150
all="8 DGX H100s: 64 of 80 GB, 16 TB, 245 TB of drives"
micros=8 row dgx8-gpu "$all" dgx-h100 8 gpu 8192 1 85
micros=4 row dgx8-ram "$all" dgx-h100 8 ram 16384 2 186
micros=4 row dgx8-drive "$all" dgx-h100 8 drive 65536 2 340

# Llama-8B on one sequence of TOKENS tokens for every SHARED GPUs, which share it, with a drive for what has no room:
# NAME TEXT MACHINE TOKENS SHARED
long() {
    local name=$1 text=$2 machine=$3 tokens=$4 shared=$5 ranks
    asked_for "$name" || return 0
    ranks=$(awk '/"gpus": [{]/ { on = 1 } on && /"count"/ { print $2 + 0; exit }' "$machine.json")
    "$tessera" estimate run.json --machine "$machine.json" data.seq_length="$tokens" train_micro_batch_size_per_gpu=1 \
        train_batch_size=$((ranks / shared)) parallel.sequence="$shared" zero_optimization.stage=3 memory.path=nowhere \
        "model={\"model_type\": \"llama\", \"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"num_hidden_layers\": 32, \"vocab_size\": 128256, \"max_position_embeddings\": $tokens, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000, \"hidden_act\": \"silu\"}" \
        >said.txt 2>error.txt || { echo "$name: $(tail -n 1 error.txt)"; return 0; }
    mapfile -t said < <(awk -v gpu="$(tier GPU)" -v ram="$(tier RAM)" -v disk="$(tier disk)" -v s="$(seconds)" -v tokens=$((tokens * ranks / shared)) \
        'BEGIN { printf "%.0f\n%.0f\n%.0f\n%.0f\n%.0f\n", gpu / 2^30, ram / 2^30, disk / 2^30, s, tokens / s }')
    "$here/../../../tests/bench/record.sh" long "reach.sh BUILD $name" "$text" "$tokens" -- "${said[@]}"
    printf '%-12s %s, %d tokens: %s\n' "$name" "$text" "$tokens" "${said[*]}"
}
for tokens in 131072 524288; do
    long box-$tokens "one GPU of 24 GB, 64 GB, a drive of 2 TB" box-24gb $tokens 1
    long h100-$tokens "one H100 of 80 GB, 256 GB, 3.8 TB of drives" h100 $tokens 1
    long dgx-$tokens "a DGX H100: 8 of 80 GB, 2 TB, 30 TB of drives" dgx-h100 $tokens 1
    long shared-$tokens "the same, whose 8 GPUs share each sequence" dgx-h100 $tokens 8
done
