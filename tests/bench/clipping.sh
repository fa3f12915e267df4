#!/bin/bash
# What clipping costs where states rest on disk: GPT-2 124M in bf16, 4k tokens a step, RAM at a share of its states (14 bytes
# a parameter), gradient_clipping 1 beside 0, in turns. Updates that wait for the norm come late, in the next forward pass.
# "Of its speed" is the median of the turns, each beside its own neighbour, with the least and the most; what workers waited
# for the drive and what it moved are medians too. Each row is added to results/clipping.tsv.
#
#     tests/bench/clipping.sh [BUILD DIR [TURNS [SHARE ...]]]        needs 4 GB of disk where it is called
set -eu
tessera=$(realpath "${1:-build}/tools/tessera") turns=${2:-5}
shift $(($# < 2 ? $# : 2))
shares=${*:-4 8}
record=$(dirname "$0")/record.sh states=$((124439808 * 14 / 1048576))
swap=$(mktemp -d ./clipping-XXXXXX)
trap 'rm -rf "$swap"' EXIT
field() { sed -n "s/$2/\\1/p" <<<"$1"; }
middle() { sort -n | awk '{ x[NR] = $1 } END { printf "%.4g", (x[int((NR + 1) / 2)] + x[int(NR / 2) + 1]) / 2 }'; }

printf '%-24s %9s %9s %20s %15s %17s %17s\n' RAM 'clip 0' 'clip 1' 'of its speed' 'waited, s' 'moved, GiB' 'on paper, s'
for share in $shares; do
    cap=$((states / share))
    rm -f "$swap"/row-*
    for ((turn = 0; turn < turns; turn++)); do
        for k in 0 1; do
            clip=$(((k + turn) % 2)) # who comes first changes
            said=$("$tessera" bench bf16.enabled=true --steps 2 "memory.cpu=${cap}MiB" "memory.path=$swap" "gradient_clipping=$clip" 2>&1)
            field "$said" '^\([0-9]*\) tokens.*' >>"$swap/row-rate$clip"
            field "$said" '^disk:.*workers waited \([0-9.]*\) s.*' >>"$swap/row-waited$clip"
            field "$said" '^disk: \([0-9]*\) bytes.*' | awk '{ print $1 / 2 ^ 30 }' >>"$swap/row-moved$clip"
            field "$said" '^plan:.*on paper \([0-9.]*\) s.*' >>"$swap/row-paper$clip"
        done
    done
    for of in rate waited moved paper; do
        for clip in 0 1; do printf -v "$of$clip" %s "$(middle <"$swap/row-$of$clip")"; done
    done
    ratio=$(paste "$swap/row-rate1" "$swap/row-rate0" | awk '{ printf "%.3f\n", $1 / $2 }' | sort -n | tee "$swap/row-ratios" | middle)
    ratio="$ratio ($(head -1 "$swap/row-ratios")-$(tail -1 "$swap/row-ratios"))"
    printf '1/%d of states, %4d MiB %9s %9s %20s %15s %17s %17s\n' "$share" "$cap" "$rate0" "$rate1" "$ratio" \
        "$waited0, $waited1" "$moved0, $moved1" "$paper0, $paper1"
    "$record" clipping "clipping.sh BUILD $turns" "1/$share of states, $cap MiB" -- "$rate0" "$rate1" "$ratio" \
        "$waited0, $waited1" "$moved0, $moved1" "$paper0, $paper1"
done
