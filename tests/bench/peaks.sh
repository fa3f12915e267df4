#!/bin/bash
# The most RAM of a step of one long sequence, beside what `tessera estimate` says: a llama of 2 layers, width 64, recomputed, in
# tiles of 1024 rows, without a cap. Tiles alone; what the process has beside them is in docs/memory.md. Each row is added to
# results/peaks.tsv.
#
#     tests/bench/peaks.sh [BUILD DIR [TOKENS...]]
set -eu
tessera=$(realpath "${1:-build}/tools/tessera")
record=$(dirname "$(realpath "$0")")/record.sh
shift || true
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >run.json <<'END'
{"model": {"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2,
  "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 262144},
 "data": {"train": "text.txt"}, "train_batch_size": 1, "steps": 1, "tiles": {"rows": 1024},
 "activation_checkpointing": {"enabled": true}, "output": "out", "overwrite": true}
END
awk 'BEGIN { srand(1); for (i = 0; i < 300000; i++) printf "%c", 97 + int(26 * rand()) }' >text.txt
mib() { awk '{ print $1 * ($2 ~ /^G/ ? 1024 : $2 ~ /^K/ ? 1 / 1024 : 1) }'; }
printf '%8s %10s %10s %10s %6s\n' tokens 'in order' early peak off
for tokens in "${@:-16384 65536 262144}"; do
    for n in $tokens; do
        plan=$("$tessera" estimate run.json "data.seq_length=$n" 2>/dev/null)
        order=$(sed -n 's/^  in all  *\([0-9.]* [KMG]iB\)$/\1/p' <<<"$plan" | mib)
        early=$(sed -n 's/^  more, of tasks that start early  *//p' <<<"$plan" | mib)
        "$tessera" train run.json "data.seq_length=$n" >said 2>&1
        peak=$(sed -n 's/.*"cpu":{"resident_bytes":[0-9]*,"peak_bytes":\([0-9]*\).*/\1/p' out/metrics.jsonl)
        peak=$(awk -v b="$peak" 'BEGIN { printf "%.1f", b / 1048576 }')
        off=$(awk -v e="$order" -v m="${early:-0}" -v p="$peak" 'BEGIN { printf "%+.1f%%", 100 * ((e + m) / p - 1) }')
        printf '%8s %10s %10s %10s %6s\n' "$n" "$order" "${early:-0}" "$peak" "$off"
        "$record" peaks "peaks.sh BUILD" "$n" -- "$order" "${early:-0}" "$peak" "$off"
    done
done
