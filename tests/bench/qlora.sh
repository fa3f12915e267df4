#!/bin/bash
# Adapters beside a base in NF4 beside PEFT on bitsandbytes: a Llama of 1.1B with drawn weights, r = 16 on all linears, bf16,
# steps of 1 x 512 tokens, in turns. Seconds a step and the most that the process held in RAM, in GiB; also below a cap, with
# the rest on the drive. Each row is added to results/qlora.tsv.
#
#     tests/bench/qlora.sh [BUILD DIR [STEPS [PYTHON [CAP [DIR]]]]]     needs 5 GB of disk where it is called; DIR keeps the base
set -eu -o pipefail
here=$(dirname "$(realpath "$0")")
tessera=$(realpath "${1:-build}/tools/tessera") steps=${2:-4} python=${3:-python3} cap=${4:-1200MiB} base=${5:-}
place=$(mktemp -d ./qlora-XXXXXX)
trap 'rm -rf "$place"' EXIT
peers=$place/peers
mkdir "$peers"
. "$here/peers.sh"
base=$(realpath -m "${base:-$place/base}")
length=${TESS_QLORA_LENGTH:-512}
shape=${TESS_QLORA_SHAPE:-'{"model_type":"llama","vocab_size":32000,"hidden_size":2048,"intermediate_size":5632,"num_hidden_layers":22,
    "num_attention_heads":32,"num_key_value_heads":4,"max_position_embeddings":2048,"rms_norm_eps":1e-5}'}
echo "$shape" >"$place/shape.json"
row() { # WHO SECONDS GIB
    printf '%-22s %10s %10s\n' "$@"
    "$here/record.sh" qlora "qlora.sh BUILD $steps" "$1" -- "$2" "$3"
}
ours() { # NAME SETTING...
    local out
    out=$("$tessera" bench model="$base" data.seq_length="$length" bf16.enabled=true train_batch_size=1 \
        train_micro_batch_size_per_gpu=1 lora.r=16 lora.targets=all-linear lora.base=nf4 --steps "$steps" "${@:2}" 2>&1) ||
        { tail -1 <<<"$out"; return; }
    row "$1" "$(sed -n 's/^\([0-9.]*\) tokens\/s.*/\1/p' <<<"$out" | awk -v n="$length" '{ printf "%.2f", n / $1 }')" \
        "$(sed -n 's/^peak memory of the process \([^;]*\);.*/\1/p' <<<"$out")"
}
peft() { # tokens a second, seconds, GiB
    "$python" "$here/torch_qlora.py" "$base" "$length" "$steps" "$place/shape.json" 2>"$place/errors" |
        awk -v n="$length" 'END { if (!NF) exit 1; print n / $1, $1, $2 }'
}
theirs() {
    local out
    out=$(fastest PEFT peft) || { tail -3 "$place/errors"; return 1; }
    read -r _ seconds gib <<<"$out"
    row "PEFT, bitsandbytes$([ ! -s "$peers/PEFT" ] || echo ", memory kept")" "$seconds" "$gib GiB"
}
printf '%-22s %10s %10s\n' 'base in NF4' 's a step' 'peak'
for _ in 1 2; do
    theirs
    ours tessera
    ours "tessera, $cap" memory.cpu="$cap" memory.path="$place"
    ours "the same, recomputing" memory.cpu="$cap" memory.path="$place" activation_checkpointing.enabled=true
done
