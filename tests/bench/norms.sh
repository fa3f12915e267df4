#!/bin/bash
# Megatron's BERT, whose norms come before attention and MLP, beside BERT's order, where they come after the sum: Shoeybi et
# al. 2019, figure 7, say that the first trains at sizes where the second does not. 24 layers of 128, masked bytes of this
# repository's pages and sources, from drawn weights, each at two learning rates; the mean loss of the last tenth of the
# steps, and the largest norm of a gradient behind the first tenth. Each row is added to results/norms.tsv.
#
#     tests/bench/norms.sh [BUILD [STEPS]]        150 steps; 250 take some 15 minutes on two cores
set -eu -o pipefail
here=$(dirname "$(realpath "$0")")
tessera=$(realpath "${1:-build}/tools/tessera") steps=${2:-150}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
(cd "$here/../.." && git ls-files '*.md' '*.c' '*.h' | LC_ALL=C sort | xargs cat) >"$place/text.txt"
cd "$place"
shape='"vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 24, "num_attention_heads": 4, "intermediate_size": 512,
    "max_position_embeddings": 64, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0'
printf '%-28s %8s %10s %10s\n' norms rate loss 'norm'
for rate in 0.0003 0.001; do
    for kind in "after bert BertForMaskedLM" "before megatron-bert MegatronBertForMaskedLM"; do
        read -r order type head <<<"$kind"
        echo "{\"model\": {\"model_type\": \"$type\", \"architectures\": [\"$head\"], $shape}, \"data\": {\"train\": \"text.txt\",
            \"seq_length\": 64, \"mlm_probability\": 0.15, \"mask_token\": 0}, \"train_batch_size\": 16, \"steps\": $steps,
            \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": $rate, \"betas\": [0.9, 0.999], \"weight_decay\": 0.01}},
            \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_max_lr\": $rate, \"warmup_num_steps\": $((steps / 10))}},
            \"gradient_clipping\": 1, \"output\": \"$order-$rate\"}" >run.json
        STARPU_SILENT=1 "$tessera" train run.json >said.txt 2>&1 || { tail -1 said.txt; continue; }
        mapfile -t said < <(sed -n 's/.*"loss": *\([0-9.e+-]*\).*"grad_norm": *\([0-9.e+-]*\).*/\1 \2/p' "$order-$rate/metrics.jsonl" |
            awk -v n="$steps" '{ l[NR] = $1; if (NR > n / 10 && $2 > most) most = $2 }
                END { for (i = NR - int(NR / 10) + 1; i <= NR; i++) { sum += l[i]; c++ } printf "%.3f\n%.2f\n", sum / c, most }')
        printf '%-28s %8s %10s %10s\n' "$order the sum" "$rate" "${said[@]}"
        "$here/record.sh" norms "norms.sh BUILD $steps" "$order" "$rate" -- "$steps" "${said[@]}"
    done
done
