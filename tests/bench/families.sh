#!/bin/bash
# Tokens a second of a llama of 110M and of bert-base in bf16, on lines of 512 places of which half are padding, beside
# PyTorch on the same lines, in turns. The share of the matrix rate is Tessera's MFU. The median turn is added to
# results/beside.tsv.
#
#     tests/bench/families.sh BUILD PYTHON [TURNS]        (PYTHON has torch and transformers)
set -eu -o pipefail
build=$(realpath "$1") python=$2 turns=${3:-3}
here=$(realpath "$(dirname "$0")")
declare -A titles=([llama]="llama 110M, bf16, half padding" [bert]="bert-base, bf16, half padding")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
peers=$work/peers
mkdir "$peers"
. "$here/peers.sh"
theirs() { "$python" "$here/torch_families.py" "$1.json" "$1.jsonl" $length $batch $steps 2>/dev/null; }
batch=8 length=512 steps=3

cat >llama.json <<END
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 768,
 "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 512,
 "tie_word_embeddings": true}
END
cat >bert.json <<END
{"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
END
# Lengths between 64 and 448, 256 on average; of bert's places one in seven is a target.
awk -v n=$((batch * (steps + 1))) -v bert=0 'BEGIN {
    for (kind = 0; kind < 2; kind++) {
        srand(7)
        file = kind ? "bert.jsonl" : "llama.jsonl"
        for (i = 0; i < n; i += 2) {
            long = 256 + int(192 * rand())
            for (half = 0; half < 2; half++) {
                ids = labels = ""
                for (t = 0; t < (half ? 512 - long : long); t++) {
                    id = 10 + int(20000 * rand())
                    target = !kind || t % 7 == 1 ? id : -100
                    ids = ids (t ? "," : "") (kind && t % 7 == 1 ? 3 : id)
                    labels = labels (t ? "," : "") target
                }
                print "{\"input_ids\": [" ids "], \"labels\": [" labels "]}" >file
            }
        }
    }
}'

ours() { # MODEL: tokens a second, MFU
    rm -rf out
    STARPU_SILENT=1 "$build/tools/tessera" train <(echo "{\"model\": $(cat "$1.json"), \"data\": {\"train\": \"$1.jsonl\",
        \"seq_length\": $length, \"shuffle\": false}, \"train_batch_size\": $batch, \"steps\": $((steps + 1)),
        \"bf16\": {\"enabled\": true}, \"gradient_clipping\": 1, \"output\": \"out\"}") >/dev/null
    "$python" - <<END
import json, statistics
rows = [json.loads(x) for x in open("out/metrics.jsonl")][1:]
print("%.1f %.3f" % (statistics.median(r["tokens_per_s"] for r in rows), statistics.median(r["mfu"] for r in rows)))
END
}

for model in llama bert; do
    for turn in $(seq "$turns"); do
        read -r mine share < <(ours $model)
        read -r theirs _ < <(fastest $model theirs $model)
        awk "BEGIN { print $mine / $theirs, $mine, 100 * $share \"%\", $theirs }" >>$model.turns
        echo "$model turn $turn: $mine tokens/s (MFU $share), PyTorch $theirs," \
            "$(awk "BEGIN { printf \"%.2f\", $mine / $theirs }") times"
    done
    read -r times mine share theirs < <(sort -n $model.turns | sed -n "$(((turns + 1) / 2))p")
    "$here/record.sh" beside "families.sh BUILD PYTHON $turns" "${titles[$model]}" -- "$mine" "$share" \
        "PyTorch$([ ! -s "$peers/$model" ] || echo ", memory kept")" "$theirs" \
        "$(printf %.2f "$times")" "$turns" "" ""
done
