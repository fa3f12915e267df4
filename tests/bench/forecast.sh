#!/bin/bash
# Seconds a step that tessera estimate forecasts for runs on this machine, beside the runs: GPT-2 of 124M without a cap and below
# a quarter and an eighth of its states, of 1 and of 3 billion parameters below 8 GiB. Each row is added to results/forecast.tsv.
#
#     tests/bench/forecast.sh [BUILD DIR [ROW ...]]       ROWs such as 124m-quarter; on a quiet machine, with a drive of 60 GB free
#     tests/bench/forecast.sh BUILD h100                  what was measured on an H100, beside tessera estimate and simulate
#
# 124M takes a minute a row on two cores with AMX, 1 billion 10 minutes, 3 billion half an hour; h100 takes no GPU and a
# minute, and ends with 1 where either is off by more than 5% in a run that the rates of its machine's file are of.
set -eu -o pipefail
tessera=$(realpath "${1:-build}/tools/tessera")
record=$(realpath "$(dirname "$0")/record.sh") only=("${@:2}") off=0
machines=$(realpath "$(dirname "$0")/../../tools/simulate/machines")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
yes "what a run reads is nothing to its time" | head -c 100000 >"$work/text.txt" || true
cd "$work" && mkdir swap
# NAME TEXT TOKENS SETTING...
row() {
    local name=$1 text=$2 tokens=$3 said
    shift 3
    [ ${#only[@]} = 0 ] || [[ " ${only[*]} " == *" $name "* ]] || return 0
    "$tessera" bench bf16.enabled=true --steps 2 "$@" >real.txt
    echo '{"data": {"train": "text.txt"}}' >run.json
    "$tessera" estimate run.json bf16.enabled=true weights=drawn "$@" >said.txt
    mapfile -t said < <(awk -v tokens="$tokens" '/ tokens\/s, / && !real { real = tokens / $1 }
        /^time of a step/ { on = 1 } on && /^  in all/ { forecast = $(NF - 1) }
        END { printf "%.2f\n%.2f\n%.2f\n", real, forecast, forecast / real }' real.txt said.txt)
    "$record" forecast "forecast.sh BUILD $name" "$text" -- "${said[@]}"
    printf '%-14s %s: %s s here, %s s forecast, %s\n' "$name" "$text" "${said[@]}"
}
# elsewhere HOW SECONDS GIB TEXT SETTING...: a run that was measured on a machine that is not here; "held": the rates of its
# file are of other runs.
elsewhere() {
    local by said
    sed "s/\"memory_gib\": 79.6/\"memory_gib\": $3/" "$machines/h100-16.json" >there.json
    for by in estimate simulate; do
        "$tessera" $by run.json --machine there.json bf16.enabled=true weights=drawn "${@:5}" >said.txt 2>error.txt || { cat error.txt; off=1; continue; }
        mapfile -t said < <(awk -v real="$2" '/^step / { s = $2 } /^time of a step/ { on = 1 } on && /^  in all/ { s = $(NF - 1) }
            END { printf "%.4f\n%.3f\n%.2f\n", real, s, s / real }' said.txt)
        MACHINE="1 H100 80GB HBM3" "$record" forecast "forecast.sh BUILD h100" "$4, by $by" -- "${said[@]}"
        printf '%-54s %s s there, %s s forecast, %s\n' "$4, by $by" "${said[@]}"
        [ "$1" = held ] || awk -v t="${said[2]}" 'BEGIN { exit !(t >= 0.95 && t <= 1.05) }' || off=1
    done
}
gpt() { echo "model={\"model_type\": \"gpt2\", \"n_layer\": $1, \"n_embd\": $2, \"n_head\": $3, \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0}"; }
if [[ " ${only[*]} " == *" h100 "* ]]; then
    echo '{"steps": 1}' >run.json
    dropout() { sed 's/pdrop": 0/pdrop": 0.1/g'; }
    llama='{"model_type": "llama", "vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}'
    of() { echo "data.seq_length=$1 train_batch_size=$2 train_micro_batch_size_per_gpu=$3"; }
    # shellcheck disable=SC2046
    {
        elsewhere taken 0.0941 79.6 "GPT-2 124M, 32 x 1024, no dropout" "$(gpt 12 768 12)" $(of 1024 32 32)
        elsewhere taken 0.1419 79.6 "GPT-2 124M, 32 x 1024, dropout" "$(gpt 12 768 12 | dropout)" $(of 1024 32 32)
        elsewhere taken 0.2194 79.6 "GPT 1.5B, 8 x 1024, no dropout" "$(gpt 48 1600 25)" $(of 1024 8 8)
        # The program that was measured kept all states there; a plan that leaves room for holes wants 0.9 GiB more for that.
        elsewhere taken 0.9560 80.5 "Llama 3.6B, 4 x 1 x 4096" "model=$llama" $(of 4096 4 1)
        elsewhere held 0.0994 79.6 "GPT-2 124M, 32 x 1024, blocks made again" "$(gpt 12 768 12)" $(of 1024 32 32) activation_checkpointing.enabled=true
        elsewhere held 1.1681 79.6 "GPT 1.5B, 2 x 16 x 1024, dropout" "$(gpt 48 1600 25 | dropout)" $(of 1024 32 16)
    }
    exit $off
fi
four="train_batch_size=4 train_micro_batch_size_per_gpu=4 data.seq_length=1024"
# shellcheck disable=SC2086
{
    row 124m "GPT-2 124M, no cap" 4096 "$(gpt 12 768 12)" $four
    row 124m-quarter "GPT-2 124M, a quarter of its states" 4096 "$(gpt 12 768 12)" $four memory.cpu=415MiB memory.path=swap
    row 124m-eighth "GPT-2 124M, an eighth" 4096 "$(gpt 12 768 12)" $four memory.cpu=208MiB memory.path=swap
    row 1b "1 billion below 8 GiB" 4096 "$(gpt 18 2048 16)" $four memory.cpu=8GiB memory.path=swap
    row 3b "3 billion below 8 GiB" 4096 "$(gpt 36 2560 20)" $four memory.cpu=8GiB memory.path=swap
}
