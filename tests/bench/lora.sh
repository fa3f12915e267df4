#!/bin/bash
# Adapters beside full training under the same caps on RAM: GPT-2 124M in bf16, 4k tokens a step, in turns. Peak memory of the
# process, tokens/s, and what a step moves from and to the disk. Each row is added to results/lora.tsv.
#
#     tests/bench/lora.sh [BUILD DIR [STEPS [CAP ...]]]        needs 2 GB of disk where it is called
set -eu
tessera=$(realpath "${1:-build}/tools/tessera") steps=${2:-3}
shift $(($# < 2 ? $# : 2))
swap=$(mktemp -d ./lora-XXXXXX)
trap 'rm -rf "$swap"' EXIT
run() { "$tessera" bench bf16.enabled=true --steps "$steps" "$@" 2>&1; }
row() {
    local out rate peak moved
    out=$(run "${@:3}") || { printf '%-10s %-8s %s\n' "$1" "$2" "$(tail -1 <<<"$out")"; return; }
    rate=$(sed -n 's/^\([0-9]*\) tokens.*/\1/p' <<<"$out")
    peak=$(sed -n 's/^peak memory of the process \([^;]*\);.*/\1/p' <<<"$out")
    moved=$(sed -n 's/^disk: [0-9]* bytes a step (\([^)]*\));.*/\1/p' <<<"$out")
    printf '%-10s %-8s %8s %12s %14s\n' "$1" "$2" "$rate" "$peak" "${moved:--}"
    "$(dirname "$0")/record.sh" lora "lora.sh BUILD $steps" "$1" "$2" -- "$rate" "$peak" "$moved"
}
printf '%-10s %-8s %8s %12s %14s\n' RAM trains tokens/s peak 'disk a step'
for cap in none "${@:-700MiB}"; do
    limits=()
    [ "$cap" = none ] || limits=("memory.cpu=$cap" "memory.path=$swap")
    row "$cap" all "${limits[@]}"
    row "$cap" lora lora.r=8 lora.targets=all-linear "${limits[@]}"
done
