#!/bin/bash
# How far one gets with what one has: the largest Llama that trains on a machine, by what holds its states, and how long
# 20 tokens a parameter take there, by tessera estimate. Each row is added to results/reach.tsv, of which docs/reach.md has
# a table.
#
#     tests/bench/reach.sh [BUILD [ROW ...]]       ROWs such as box-drive; all of them take a quarter of an hour
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
# What tiles hold of all kinds, wherever they are; a tier's bytes by plan; seconds of a step.
tiles() {
    awk '/^tiles, wherever/ { on = 1; next } /^[a-z]/ { on = 0 }
        on { sum += $(NF - 1) * ($NF == "TiB" ? 2^40 : $NF == "GiB" ? 2^30 : $NF == "MiB" ? 2^20 : 2^10) }
        END { printf "%.0f", sum }' said.txt
}
tier() { sed -n "s/^memory .*\b$1 \([0-9]*\).*/\1/p" said.txt; }
seconds() { awk '/^time of a step/ { on = 1 } on && /^  in all/ { print $(NF - 1) }' said.txt; }

# MACHINE NODES LAYERS WIDTH MICRO WAY: parameters, bytes of what is full first, its room, seconds a step.
look() {
    local inner=$(($4 * 7 / 2)) ranks ram
    ranks=$(awk '/"gpus": [{]/ { on = 1 } on && /"count"/ { print $2 + 0; exit }' "$1.json")
    ram=$(awk '/"memory_gib"/ { printf "%.0f", $2 * 2^30; exit }' "$1.json")
    # shellcheck disable=SC2086
    "$tessera" estimate run.json --machine "$1.json" --nodes "$2" \
        "model={\"model_type\": \"llama\", \"hidden_size\": $4, \"intermediate_size\": $inner, \"num_attention_heads\": $(($4 / 128)), \"num_key_value_heads\": 8, \"num_hidden_layers\": $3, \"vocab_size\": 128256, \"max_position_embeddings\": 8192, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000, \"hidden_act\": \"silu\"}" \
        train_micro_batch_size_per_gpu="$5" train_batch_size=$(($2 * ${ranks:-1} * $5 * micros)) ${settings[$6]} >said.txt 2>error.txt || return 1
    case $6 in
    gpu) echo "$(awk 'NR == 1 { print $1 }' said.txt) $(tiles) $(tier GPU) $(seconds)" ;;
    ram) echo "$(awk 'NR == 1 { print $1 }' said.txt) $(tier RAM) $((ram / ${ranks:-1} / 16 * 15)) $(seconds)" ;;
    drive) echo "$(awk 'NR == 1 { print $1 }' said.txt) $(tier disk) $(awk -v r="${ranks:-1}" '/"drive_gib"/ { printf "%.0f", $2 * 2^30 / r }' "$1.json") $(seconds)" ;;
    esac
}

# NAME TEXT MACHINE NODES WAY WIDTH MICRO FEW MORE: by the line through two numbers of layers.
row() {
    local name=$1 text=$2 machine=$3 nodes=$4 way=$5 width=$6 micro=$7 few more said ranks
    local -A what=([gpu]="GPU memory" [ram]="and RAM" [drive]="and drives")
    asked_for "$name" || return 0
    ranks=$(awk '/"gpus": [{]/ { on = 1 } on && /"count"/ { print $2 + 0; exit }' "$machine.json")
    few=$(look "$machine" "$nodes" "$8" "$width" "$micro" "$way") && more=$(look "$machine" "$nodes" "$9" "$width" "$micro" "$way") ||
        { tail -n 1 error.txt; return 0; }
    mapfile -t said < <(awk -v a="$few" -v b="$more" -v tokens=$((nodes * ${ranks:-1} * micro * micros * 4096)) 'BEGIN {
        split(a, x, " ")
        split(b, y, " ")
        share = (x[3] - x[2]) / (y[2] - x[2])
        p = x[1] + share * (y[1] - x[1])
        s = x[4] + share * (y[4] - x[4])
        days = 20 * p / (tokens / s) / 86400
        hours = 1e8 / (tokens / s) / 3600
        time = days < 1000 ? sprintf("%.0f days", days) : sprintf("%d years", days / 365)
        printf "%.*f\n%.0f\n%s\n%.*f\n", p < 10e9, p / 1e9, tokens / s, time, hours < 10, hours
    }')
    "$here/record.sh" reach "reach.sh BUILD $name" "$text" "${what[$way]}" -- "${said[@]}"
    printf '%-12s %s %s: %s\n' "$name" "$text" "${what[$way]}" "${said[*]}"
}
# The more tokens a step has, the less of it is the way of states: 262,144 of a node's GPUs, as many times over on 8 nodes.
all="one GPU of 24 GB, 64 GB, a drive of 2 TB"
micros=64 row box-gpu "$all" box-24gb 1 gpu 2048 1 12 24
micros=16 row box-ram "$all" box-24gb 1 ram 4096 4 4 8
micros=16 row box-drive "$all" box-24gb 1 drive 8192 4 4 8
all="GH200: one GPU of 96 GB, 480 GB"
micros=64 row gh200-gpu "$all" gh200 1 gpu 4096 1 12 24
micros=16 row gh200-ram "$all" gh200 1 ram 8192 4 4 8
all="one H100 of 80 GB, 256 GB, 3.8 TB of drives"
micros=64 row h100-gpu "$all" h100 1 gpu 4096 1 12 24
micros=16 row h100-ram "$all" h100 1 ram 8192 4 4 8
micros=16 row h100-drive "$all" h100 1 drive 8192 4 4 8
all="a DGX H100: 8 of 80 GB, 2 TB, 30 TB of drives"
micros=8 row dgx-gpu "$all" dgx-h100 1 gpu 8192 1 12 24
micros=2 row dgx-ram "$all" dgx-h100 1 ram 8192 4 48 64
micros=4 row dgx-drive "$all" dgx-h100 1 drive 16384 2 2 4
all="8 DGX H100s: 64 of 80 GB, 16 TB, 245 TB of drives"
micros=8 row dgx8-gpu "$all" dgx-h100 8 gpu 8192 1 24 48
micros=4 row dgx8-ram "$all" dgx-h100 8 ram 16384 2 84 96
micros=4 row dgx8-drive "$all" dgx-h100 8 drive 16384 2 2 4

# Llama-8B on one sequence of so many tokens for each GPU, or, SHARED, for as many together, with a drive for what has no
# room: NAME TEXT MACHINE TOKENS SHARED
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
    "$here/record.sh" long "reach.sh BUILD $name" "$text" "$tokens" -- "${said[@]}"
    printf '%-12s %s, %d tokens: %s\n' "$name" "$text" "$tokens" "${said[*]}"
}
for tokens in 131072 524288; do
    long box-$tokens "one GPU of 24 GB, 64 GB, a drive of 2 TB" box-24gb $tokens 1
    long h100-$tokens "one H100 of 80 GB, 256 GB, 3.8 TB of drives" h100 $tokens 1
    long dgx-$tokens "a DGX H100: 8 of 80 GB, 2 TB, 30 TB of drives" dgx-h100 $tokens 1
    long shared-$tokens "the same, whose 8 GPUs share each sequence" dgx-h100 $tokens 8
done
