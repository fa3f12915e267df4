#!/bin/bash
# Llama-8B, trained whole in bf16 on one sequence of 131,072 or 524,288 tokens: what it needs of each memory and how long
# a step takes, by tessera estimate. Each row is added to results/long.tsv, of which docs/memory.md has a table.
#
#     tests/bench/long.sh [BUILD [ROW ...]]       ROWs such as box-131072; all of them take two minutes
. "$(dirname "$0")/law.sh"
echo '{"bf16": {"enabled": true}, "activation_checkpointing": {"enabled": true}, "train_batch_size": 1,
 "model": {"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
 "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 524288,
 "tie_word_embeddings": false, "rms_norm_eps": 1e-5, "rope_theta": 500000, "hidden_act": "silu"}}' >run.json
tier() { awk -v name="$1" '/^memory / { for (i = 1; i < NF; i++) if ($i == name) printf "%.0f", $(i + 1) / 2^30 }' said.txt; }

# NAME TEXT MACHINE RANKS TOKENS KEY=VALUE...
row() {
    local name=$1 text=$2 machine=$3 ranks=$4 tokens=$5
    shift 5
    asked_for "$name" || return 0
    "$tessera" estimate run.json --machine "$machine.json" --ranks-per-node "$ranks" data.seq_length="$tokens" "$@" >said.txt 2>error.txt ||
        { tail -n 1 error.txt; return 0; }
    mapfile -t said < <(
        for of in GPU RAM disk; do tier "$of" && echo; done
        awk '/^time of a step/ { on = 1 } on && /^  in all/ { printf "%.0f\n", $(NF - 1) }' said.txt
        awk '/tokens.s, bound/ { print $1 }' said.txt
    )
    "$here/record.sh" long "long.sh BUILD $name" "$text" "$tokens" -- "${said[@]}"
    printf '%-16s %s, %s tokens: %s\n' "$name" "$text" "$tokens" "${said[*]}"
}
for tokens in 131072 524288; do
    row box-$tokens "one GPU of 24 GB, 64 GB, a drive" box-24gb 1 $tokens memory.path=nowhere
    row h100-$tokens "one H100 of 80 GB, 2 TB" dgx-h100 1 $tokens
    row dgx-$tokens "8 H100s that share the sequence" dgx-h100 8 $tokens parallel.sequence=8 zero_optimization.stage=3
done
