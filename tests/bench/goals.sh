#!/bin/bash
# The figures that are held against other programs and against ourselves, each row in turns: GPT-2 124M, 4096 tokens a
# step where nothing else is said. Each row is added to results/beside.tsv or results/itself.tsv;
# results/speed.md and docs/speed.md have tables of them.
#
#     tests/bench/goals.sh BUILD PYTHON [TURNS [ROW ...]]     (PYTHON has torch, transformers, deepspeed; 4 GB of disk here)
#
# TESSERA_MAX_CPU_ISA caps all of them to a kind of CPU (docs/install.md).
#
# ROWs: bf16 fp32 long long-fp32 spans micro short short-fp32 bf16-fp32 deterministic across-machines deterministic-ranks deepspeed-quarter deepspeed-eighth
set -eu -o pipefail
[ $# -ge 2 ] || { echo "usage: tests/bench/goals.sh BUILD PYTHON [TURNS [ROW ...]]" >&2; exit 2; }
tessera=$(realpath "$1")/tools/tessera python=$(realpath -s "$2") turns=${3:-3}
here=$(realpath "$(dirname "$0")")
shift $(($# < 3 ? $# : 3))
only=" $* "
swap=$(mktemp -d ./goals-XXXXXX)
swap=$(realpath "$swap") peers=$swap-peers
mkdir "$peers"
trap 'rm -rf "$swap" "$peers"' EXIT
. "$here/peers.sh"
case ${TESSERA_MAX_CPU_ISA:-} in
'') ;;
AVX512*) export ATEN_CPU_CAPABILITY=avx512 MKL_ENABLE_INSTRUCTIONS=AVX512 ONEDNN_MAX_CPU_ISA=$TESSERA_MAX_CPU_ISA ;;
AVX2) export ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 ;;
*) export ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=$TESSERA_MAX_CPU_ISA ;;
esac
export STARPU_SILENT=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PATH=$(dirname "$python"):$PATH
states=$((124439808 * 14 / 1048576))

# Each prints tokens a second, MiB of memory at its peak, and which share of the matrix rate it has.
ours() { "$tessera" bench --steps 2 "$@" 2>"$swap/error" | said || { tail -n 1 "$swap/error" >&2; return 1; }; }
two() { mpirun -n 2 --bind-to core "$tessera" bench --steps 2 train_micro_batch_size_per_gpu=2 data.seq_length=512 "$@" 2>"$swap/error" | said; }
said() {
    awk '/^[0-9]+ tokens\/s/ { rate = $1 }
         /^peak memory of the process/ { peak = $6 * ($7 ~ /^GiB/ ? 1024 : 1) }
         /^[0-9]+ tokens/ && match($0, /: [0-9.]+% of/) { share = substr($0, RSTART + 2, RLENGTH - 5) }
         END { if (!rate) exit 1; print rate, peak, share ? share : "-" }'
}
torch() { "$python" "$here/torch_gpt2.py" --steps 2 "$@" 2>/dev/null | sed -n 's/.*: \([0-9]*\) tokens.*/\1 0/p'; }
# The faster of PyTorch as it comes and compiled, which is asked in the first turn.
best() {
    local kind args=(--dtype "$1" --length "$2")
    if [ ! -e "$peers/best" ]; then
        local eager compiled
        eager=$(fastest PyTorch torch "${args[@]}") compiled=$(fastest "PyTorch compiled" torch "${args[@]}" --compile)
        kind=PyTorch
        [ "${compiled% 0}" -le "${eager% 0}" ] || kind="PyTorch compiled"
        echo "$kind" >"$peers/best"
    fi
    kind=$(cat "$peers/best")
    [ "$kind" = PyTorch ] || args+=(--compile)
    fastest "$kind" torch "${args[@]}"
}
torch_long() { fastest PyTorch torch --dtype "$1" --batch 1 --length 8192 --checkpoint; }
deepspeed() {
    "$python" "$here/deepspeed_gpt2.py" "$swap" --steps 2 2>/dev/null |
        sed -n 's/.*: \([0-9]*\) tokens.*peak \([0-9]*\) MiB.*/\1 \2/p'
    find "$swap" -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
}

# NAME TITLE WHOSE GOAL OURS... -- BESIDE...; "itself" is another way to cut the same step.
row() {
    local name=$1 title=$2 whose=$3 goal=$4 turn a=() b=() told="goals.sh BUILD PYTHON $turns $1" theirs mine times least most
    local rate beside share peak other
    shift 4
    [[ "$only" == "  " || "$only" == *" $name "* ]] || return 0
    while [ "$1" != -- ]; do a+=("$1"); shift; done
    shift
    b=("$@")
    : >"$swap/turns"
    for ((turn = 0; turn < turns; turn++)); do
        theirs=$("${b[@]}") && mine=$("${a[@]}") && [ "$theirs" ] || { echo "$name: no figures"; return 0; }
        read -r rate peak share <<<"$mine"
        read -r beside other _ <<<"$theirs"
        awk "BEGIN { print $rate / $beside, \"$beside $other $rate $peak $share\" }" >>"$swap/turns"
    done
    sort -n -o "$swap/turns" "$swap/turns"
    # Of the turns that with the median of the ratios.
    read -r times beside other rate peak share < <(sed -n "$(((turns + 1) / 2))p" "$swap/turns")
    least=$(head -n 1 "$swap/turns" | cut -d' ' -f1) most=$(tail -n 1 "$swap/turns" | cut -d' ' -f1)
    printf '%-20s %5.2f (%.2f-%.2f) goal %s; %s beside %s tokens/s; %s MiB beside %s\n' "$name" "$times" "$least" "$most" "$goal" \
        "$rate" "$beside" "$peak" "$other"
    if [ "$whose" = itself ]; then
        "$here/record.sh" itself "$told" "$title" -- "$(printf %.2f "$times")" "$(printf %.2f "$least")" "$(printf %.2f "$most")" "$turns"
    else
        [ ! -e "$peers/best" ] || whose=$(cat "$peers/best")
        [ ! -s "$peers/$whose" ] || whose+=", memory kept"
        "$here/record.sh" beside "$told" "$title" -- "$rate" "${share#-}" "$whose" "$beside" "$(printf %.2f "$times")" "$turns" "$peak" "${other#0}"
    fi
    rm -f "$peers"/*
}

row bf16 "GPT-2 124M, bf16, 4 x 1024" PyTorch 2 ours bf16.enabled=true -- best bf16 1024
row fp32 "GPT-2 124M, fp32, 4 x 1024" PyTorch 2 ours -- best fp32 1024
long=(train_batch_size=1 train_micro_batch_size_per_gpu=1 data.seq_length=8192 model.n_positions=8192)
row long "GPT-2 124M, bf16, 1 x 8192, recomputed" PyTorch 2 ours bf16.enabled=true "${long[@]}" activation_checkpointing.enabled=true -- torch_long bf16
row long-fp32 "GPT-2 124M, fp32, 1 x 8192, recomputed" PyTorch 2 ours "${long[@]}" activation_checkpointing.enabled=true -- torch_long fp32
row spans "8192 tokens in spans of 1024 beside whole" itself 1 ours "${long[@]}" -- ours "${long[@]}" tiles.rows=8192
row micro "four micro-batches of 1 in place of one of 4" itself 0.97 ours bf16.enabled=true train_micro_batch_size_per_gpu=1 gradient_accumulation_steps=4 -- ours bf16.enabled=true
row short "GPT-2 124M, bf16, 4 x 64" PyTorch 3 ours bf16.enabled=true data.seq_length=64 -- best bf16 64
row short-fp32 "GPT-2 124M, fp32, 4 x 64" PyTorch 2.5 ours data.seq_length=64 -- best fp32 64
row bf16-fp32 "bf16 beside fp32" itself 0.95 ours bf16.enabled=true -- ours
row deterministic deterministic itself 0.98 ours bf16.enabled=true deterministic=true -- ours bf16.enabled=true deterministic=false
row across-machines "deterministic across machines" itself 0.95 ours "deterministic=across machines" -- ours
row deterministic-ranks "deterministic, two ranks" itself 0.98 two bf16.enabled=true deterministic=true -- two bf16.enabled=true deterministic=false
row deepspeed-quarter "GPT-2 124M, bf16, RAM for 1/4 of the states" "DeepSpeed ZeRO-3 on the drive" 2.3 ours bf16.enabled=true "memory.cpu=$((states / 4))MiB" "memory.path=$swap" -- fastest "DeepSpeed ZeRO-3 on the drive" deepspeed
row deepspeed-eighth "GPT-2 124M, bf16, RAM for 1/8 of the states" "DeepSpeed ZeRO-3 on the drive" 2.3 ours bf16.enabled=true "memory.cpu=$((states / 8))MiB" "memory.path=$swap" -- fastest "DeepSpeed ZeRO-3 on the drive" deepspeed
