#!/bin/bash
# What tracing costs: steps that are traced beside steps of the same run that are not, in turns, since machines drift. Half
# of each run is traced, the first half and the second in turn; the figure is the ratio of the two halves' lower quartiles,
# since what disturbs a step makes it longer.
#
#     tests/bench/trace.sh [BUILD DIR [STEPS [TURNS [KEY=VALUE ...]]]]     a model of tasks of a millisecond
set -eu -o pipefail
tessera=$(realpath "${1:-build}/tools/tessera") steps=${2:-20} turns=${3:-4}
shift $(($# < 3 ? $# : 3))
dir=$(mktemp -d ./trace-XXXXXX)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
head -c 400000 /dev/urandom | od -An -v -tx1 >text.txt
cat >run.json <<END
{"model": {"model_type": "gpt2", "vocab_size": 256, "n_positions": 128, "n_embd": 256, "n_layer": 4, "n_head": 4,
           "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
 "data": {"train": "text.txt", "seq_length": 128}, "train_batch_size": 4, "overwrite": true, "output": "out"}
END
# The lower quartile of seconds of the lines from $1 to $2 of the metrics, in ms.
quartile() {
    sed -n "$1,$2p" out/metrics.jsonl | sed 's/.*"seconds":\([^,]*\),.*/\1/' | sort -g |
        awk '{ x[NR] = $1 } END { printf "%.3f", 1e3 * x[int((NR + 3) / 4)] }'
}
first="3:$((steps + 2))" second="$((steps + 3)):$((2 * steps + 2))"
printf '%-6s %12s %12s %8s %10s %8s\n' turn 'traced ms' 'plain ms' ratio 'trace KiB' events
for ((turn = 1; turn <= turns; turn++)); do
    range=$first
    ((turn % 2)) || range=$second
    "$tessera" train run.json steps=$((2 * steps + 2)) log_every=1000000 "$@" --trace "$range" >/dev/null
    a=$(quartile 3 $((steps + 2))) b=$(quartile $((steps + 3)) $((2 * steps + 2)))
    ((turn % 2)) || { t=$a; a=$b; b=$t; }
    printf '%-6s %12s %12s %8s %10s %8s\n' "$turn" "$a" "$b" "$(awk "BEGIN { printf \"%.4f\", $a / $b }")" \
        $(($(stat -c %s out/trace.json) / 1024)) "$(grep -c '"ph"' out/trace.json)"
    awk "BEGIN { print log($a / $b) }" >>ratios
done
awk '{ s += $1 } END { printf "traced / plain, the geometric mean of %d turns: %.4f\n", NR, exp(s / NR) }' ratios
