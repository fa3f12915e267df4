#!/bin/bash
# How even the runs of small_ranks are: N on the machine as it is, then M beside a process for each core that never
# sleeps. Of each: the least, the median and the most seconds of a run, and how many runs had which bits.
#
#     tests/bench/small_ranks.sh [BUILD DIR [N [M [loose]]]]          200, 50; a run that takes two minutes is ended
set -eu
build=$(realpath "${1:-build}") quiet=${2:-200} loaded=${3:-50}
shift $(($# < 3 ? $# : 3))
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
out=$(mktemp -d)
spinning=()
end() {
    [ ${#spinning[@]} = 0 ] || kill "${spinning[@]}"
    rm -rf "$out"
}
trap end EXIT

runs() { # how many, name of the setting
    : >"$out/all"
    for ((i = 0; i < $1; i++)); do
        timeout 120 mpirun -n 2 "$build/tests/small_ranks" "${@:3}" >"$out/one" 2>&1 || echo "- failed: $(head -n 1 "$out/one")" >"$out/one"
        cat "$out/one" >>"$out/all"
    done
    sort -g "$out/all" | awk -v what="$2" -v n="$1" '$2 == "s" { t[++k] = $1 } END {
        if (k) printf "%s: %d of %d runs, %.2f s the fastest, %.2f the median, %.2f the slowest\n", what, k, n, t[1], t[int((k + 1) / 2)], t[k] }'
    sed 's/^[^ ]* *s\? *//' "$out/all" | sort | uniq -c | sort -rn | sed 's/^/    /'
}

echo "load $(cut -d' ' -f1 /proc/loadavg)"
[ "$quiet" = 0 ] || runs "$quiet" "as it is" "$@"
[ "$loaded" = 0 ] && exit
for ((i = 0; i < $(nproc); i++)); do
    while :; do :; done &
    spinning+=($!)
done
runs "$loaded" "beside $(nproc) that spin" "$@"
