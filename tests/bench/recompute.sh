#!/bin/bash
# What activation checkpointing costs with room for half of the activations: GPT-2 124M in bf16, 4k tokens a step, in RAM. Beside
# it the two pure plans: none of what blocks compute again is kept, and all of it (without checkpointing), in turns. Tokens/s are
# the most of the turns, since what else a machine does only takes from them; "recomputed" is beside the step's 3.31 TFLOP, "on
# paper" what the plan says of the time. Each row is added to results/recompute.tsv.
#
#     tests/bench/recompute.sh [BUILD DIR [TURNS [CAP]]]        CAP: of RAM, for half of the activations
set -eu
tessera=$(realpath "${1:-build}/tools/tessera") turns=${2:-5} cap=${3:-2600MiB}
record=$(dirname "$0")/record.sh
rows=$(mktemp -d)
trap 'rm -rf "$rows"' EXIT
field() { sed -n "s/$2/\\1/p" <<<"$1" | head -1; }
most() { sort -n "$rows/rate-$1" | tail -1; }
declare -A keys=([all]=activation_checkpointing.enabled=false [none]=activation_checkpointing.enabled=true
    [half]="activation_checkpointing.enabled=true memory.cpu=$cap")
for ((turn = 0; turn < turns; turn++)); do
    for k in 0 1 2; do
        of=(all half none)
        name=${of[(k + turn) % 3]} # who comes first changes
        read -ra set <<<"${keys[$name]}"
        said=$("$tessera" bench bf16.enabled=true --steps 2 "${set[@]}" 2>&1)
        field "$said" '^\([0-9]*\) tokens.*' >>"$rows/rate-$name"
        field "$said" '.* activations \([0-9.]* [KMG]iB\)$' >"$rows/bytes-$name"
    done
done
echo '{"model": {"model_type": "gpt2", "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}, "train_batch_size": 4,
 "train_micro_batch_size_per_gpu": 4, "data": {"train": "README.md", "seq_length": 1024}}' >"$rows/run.json"
printf '%-6s %12s %12s %10s %9s %22s\n' kept activations recomputed 'on paper' tokens/s 'of all kept'
for name in none half all; do
    read -ra set <<<"${keys[$name]}"
    plan=$("$tessera" estimate "$rows/run.json" bf16.enabled=true "${set[@]}" 2>&1)
    again=$(field "$plan" '.*(of it \([^ ]* [TG]FLOP\) beside the model).*') paper=$(field "$plan" '^  in all  *\([0-9.]*\) s')
    rate=$(most "$name") bytes=$(<"$rows/bytes-$name")
    ratio=$(awk -v a="$rate" -v b="$(most all)" 'BEGIN { printf "%.3f", a / b }')
    printf '%-6s %12s %12s %10s %9s %22s\n' "$name" "$bytes" "${again:-0}" "$paper" "$rate" "$ratio"
    "$record" recompute "recompute.sh BUILD $turns" "$name" -- "$bytes" "${again:-0}" "$paper" "$rate" "$ratio"
done
