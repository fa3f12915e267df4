#!/bin/bash
# What a cap on RAM costs: GPT-2 124M in bf16, 4k tokens a step, with RAM at a share of its states (14 bytes a
# parameter), beside the same steps without a cap, in turns.
#
#     tests/bench/tiers.sh [BUILD DIR [STEPS]]        needs 4 GB of disk where it is called
set -eu
tessera=$(realpath "${1:-build}/tools/tessera") steps=${2:-3}
states=$((124439808 * 14 / 1048576))
swap=$(mktemp -d ./tiers-XXXXXX)
trap 'rm -rf "$swap"' EXIT
run() { "$tessera" bench bf16.enabled=true --steps "$steps" "$@"; }
rate() { sed -n 's/^\([0-9]*\) tokens.*/\1/p' <<<"$1"; }

printf '%-22s %9s %9s %7s  %s\n' "RAM" "capped" "uncapped" "ratio" "disk"
for share in 2 3 4 8; do
    cap=$((states / share))
    free=$(run)
    if capped=$(run "memory.cpu=${cap}MiB" "memory.path=$swap" 2>&1); then
        awk -v share="$share" -v cap="$cap" -v a="$(rate "$capped")" -v b="$(rate "$free")" \
            -v disk="$(grep '^disk' <<<"$capped")" -v peak="$(sed -n 's/^\(peak memory [^:]*\):.*/\1/p' <<<"$capped")" \
            'BEGIN { printf "1/%d of states, %4d MiB %6d t/s %5d t/s %6.1f%%  %s; %s\n", share, cap, a, b, 100 * a / b, disk, peak }'
    else
        printf '1/%d of states, %4d MiB  %s\n' "$share" "$cap" "$capped"
    fi
done
