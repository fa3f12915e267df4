#!/bin/bash
# Seconds a step that tessera estimate forecasts for runs on this machine, beside the runs: GPT-2 of 124M without a cap and below
# a quarter and an eighth of its states, of 1 and of 3 billion parameters below 8 GiB. Each row is added to results/forecast.tsv.
#
#     tests/bench/forecast.sh [BUILD DIR [ROW ...]]       ROWs such as 124m-quarter; on a quiet machine, with a drive of 60 GB free
#
# 124M takes a minute a row on two cores with AMX, 1 billion 10 minutes, 3 billion half an hour.
set -eu -o pipefail
tessera=$(realpath "${1:-build}/tools/tessera")
record=$(realpath "$(dirname "$0")/record.sh") only=("${@:2}")
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
gpt() { echo "model={\"model_type\": \"gpt2\", \"n_layer\": $1, \"n_embd\": $2, \"n_head\": $3, \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0}"; }
four="train_batch_size=4 train_micro_batch_size_per_gpu=4 data.seq_length=1024"
# shellcheck disable=SC2086
{
    row 124m "GPT-2 124M, no cap" 4096 "$(gpt 12 768 12)" $four
    row 124m-quarter "GPT-2 124M, a quarter of its states" 4096 "$(gpt 12 768 12)" $four memory.cpu=415MiB memory.path=swap
    row 124m-eighth "GPT-2 124M, an eighth" 4096 "$(gpt 12 768 12)" $four memory.cpu=208MiB memory.path=swap
    row 1b "1 billion below 8 GiB" 4096 "$(gpt 18 2048 16)" $four memory.cpu=8GiB memory.path=swap
    row 3b "3 billion below 8 GiB" 4096 "$(gpt 36 2560 20)" $four memory.cpu=8GiB memory.path=swap
}
