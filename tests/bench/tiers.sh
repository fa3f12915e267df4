#!/bin/bash
# What a cap on RAM costs: GPT-2 124M in bf16, 4k tokens a step, with RAM at a share of its states (14 bytes a
# parameter), beside the same steps without a cap, in turns; what moves, beside the bound; the time that the plan said,
# beside the one it took. With a third argument also a GPT of 3 billion parameters under 8 GiB, which takes 60 GB of disk
# and some minutes. Each row is added to results/tiers.tsv.
#
#     tests/bench/tiers.sh [BUILD DIR [STEPS [3b]]]        needs 4 GB of disk where it is called
set -eu
tessera=$(realpath "${1:-build}/tools/tessera") steps=${2:-3} large=${3:-}
record=$(dirname "$0")/record.sh told="tiers.sh BUILD $steps${large:+ $large}"
states=$((124439808 * 14 / 1048576))
swap=$(mktemp -d ./tiers-XXXXXX)
trap 'rm -rf "$swap"' EXIT
run() { "$tessera" bench bf16.enabled=true --steps "$steps" "$@"; }
field() { sed -n "s/$2/\\1/p" <<<"$1"; }
rate() { field "$1" '^\([0-9]*\) tokens.*'; }

printf '%-24s %8s %8s %7s  %9s %9s %5s  %8s %8s %8s\n' \
    RAM capped uncapped ratio moved bound ratio RSS paper took
for share in 2 3 4 8; do
    cap=$((states / share))
    free=$(run)
    capped=$(run "memory.cpu=${cap}MiB" "memory.path=$swap" 2>&1) || { echo "1/$share: $capped"; continue; }
    again=$(run)
    awk -v share="$share" -v cap="$cap" -v a="$(rate "$capped")" -v b="$(rate "$free")" -v c="$(rate "$again")" \
        -v bytes="$(field "$capped" '^disk: \([0-9]*\) bytes.*')" \
        -v moved="$(field "$capped" '^disk: [0-9]* bytes a step (\([^)]*\));.*')" \
        -v bound="$(field "$capped" '^disk:.* no plan has less than \([^;]*\);.*')" \
        -v peak="$(field "$capped" '^peak memory of the process \([^;]*\);.*')" \
        -v paper="$(field "$capped" '^plan:.*on paper \([0-9.]*\) s.*')" \
        -v row="$swap/row" -v took="$(field "$capped" '^a step of \([0-9.]*\) ms.*')" \
        'function of(text, part) { split(text, part, " "); return part[1] * 1024 ^ index("KMGT", substr(part[2], 1, 1)) }
         BEGIN { free = (b + c) / 2; ratio = bound ? sprintf("%.2f", bytes / of(bound)) : ""
                 printf "1/%d of states, %4d MiB %5d t/s %5d t/s %6.1f%%  %9s %9s %5s  %8s %6.2f s %6.2f s\n",
                     share, cap, a, free, 100 * a / free, moved, bound, ratio, peak, paper, took / 1000
                 printf "%.2f\t%.1f%%\t%s\t%s\t%s\t%s\n", took / 1000, 100 * a / free, moved, ratio, peak, paper >row }'
    IFS=$'\t' read -r took of moved ratio peak paper <"$swap/row"
    "$record" tiers "$told" "1/$share of states, $cap MiB" -- "$took" "$of" "$moved" "$ratio" "$peak" "$paper"
done
[ "$large" ] || exit 0
model='model={"model_type": "gpt2", "n_layer": 36, "n_embd": 2560, "n_head": 20, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}'
echo
run "$model" train_micro_batch_size_per_gpu=1 gradient_accumulation_steps=4 gradient_clipping=1 memory.cpu=8GiB \
    "memory.path=$swap" --steps 1 >"$swap/said"
sed -n '1,/^$/p;/^a step/p' "$swap/said"
said=$(cat "$swap/said")
took=$(field "$said" '^a step of \([0-9.]*\) ms.*')
"$record" tiers "$told" "3 billion parameters below 8 GiB" -- "$(awk "BEGIN { printf \"%.1f\", $took / 1000 }")" "" \
    "$(field "$said" '^disk: [0-9]* bytes a step (\([^)]*\));.*')" "" \
    "$(field "$said" '^peak memory of the process \([^;]*\);.*')" "$(field "$said" '^plan:.*on paper \([0-9.]*\) s.*')"
