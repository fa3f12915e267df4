#!/bin/bash
# Each carrier of messages beside the others, in turns, which share what the machine does meanwhile: two ranks at stage 3
# on a GPT of 3 layers of width 1024 in bf16 (tiles of 2 to 16 MiB) and on one of 8 layers of width 512 (small tiles).
# Says the median of a carrier's turns, each of which is the median step of a run, the share of messages hidden behind
# compute, the most memory of a rank, and the processor's seconds of all ranks.
#
#     tests/bench/carriers.sh [BUILD DIR [TURNS [STEPS [CARRIER ...]]]]     5, 6, starpu_mpi mpi
#
# LENGTH is that of the sequences, 512: where cores are slow 64 makes as much of messages beside the compute.
set -eu
build=$(realpath "${1:-build}") turns=${2:-5} steps=${3:-6}
shift $(($# < 3 ? $# : 3))
carriers=("$@")
[ $# -gt 0 ] || carriers=(starpu_mpi mpi)
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export STARPU_NCPU=${STARPU_NCPU:-1}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# A GPT of so many layers and such a width: all carriers in turns.
compare() {
    local layers=$1 width=$2 carrier
    local model="model={\"model_type\": \"gpt2\", \"n_layer\": $layers, \"n_embd\": $width, \"n_head\": 8, \"vocab_size\": 8192, \"n_positions\": 512, \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0}"
    for ((turn = 0; turn < turns; turn++)); do
        for carrier in "${carriers[@]}"; do
            TIMEFORMAT='cpu %U %S'
            { time mpirun -n 2 "$build/tools/tessera" bench "$model" bf16.enabled=true zero_optimization.stage=3 data.seq_length="${LENGTH:-512}" \
                train_batch_size=4 train_micro_batch_size_per_gpu=1 parallel.carrier="$carrier" --steps "$steps" >"$out/one" 2>"$out/err"; } 2>"$out/time" ||
                { cat "$out/err"; exit 1; }
            awk -v c="$carrier" '/^a step of/ { s = $4 } /hidden/ { sub(/.* step, /, ""); h = $1 + 0 } /^peak memory of the process/ { m = $6 " " $7 } /^cpu/ { u = $2 + $3 }
                END { print c, s, h, u, m }' "$out/one" "$out/time" >>"$out/$layers"
        done
    done
    printf '%d layers of width %d, %d turns of %d steps, load %s\n' "$layers" "$width" "$turns" "$steps" "$(cut -d' ' -f1 /proc/loadavg)"
    for carrier in "${carriers[@]}"; do
        awk -v c="$carrier" '$1 == c' "$out/$layers" | sort -k2g |
            awk '{ t[NR] = $2; h += $3; u += $4; m = $5 " " $6 } END { printf "  %-10s  step %7.1f ms (%.1f - %.1f)  hidden %3.0f%%  processor %.1f s  peak %s\n", $1, t[int((NR + 1) / 2)], t[1], t[NR], h / NR, u / NR, m }'
    done
}

compare 3 1024
compare 8 512
