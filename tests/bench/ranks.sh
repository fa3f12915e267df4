#!/bin/bash
# Two ranks beside one, a core each, at stage 3 in bf16: a GPT of 82M parameters, 1024 tokens a sequence. Strong: 4
# sequences a step in all. Weak: 4 sequences a rank. What two ranks are compared with is one rank on one core while
# another one like it, which it knows nothing of, has the other core: both cores share the memory and the clock. Two ranks
# run over each carrier of messages, and the peak is the memory of a rank's process.
#
# The share of communication that is hidden behind compute is what `tessera bench` says: of the time in which messages were
# under way, the part in which the worker had a task.
#
#     tests/bench/ranks.sh [BUILD DIR [STEPS [TURNS [KEY=VALUE ...]]]]        2, 3; a quiet machine of two cores or more
#
# CARRIERS="mpi starpu_mpi" names those to compare, one for the shortest run.
set -eu
build=$(realpath "${1:-build}") steps=${2:-2} turns=${3:-3} record=$(realpath "$(dirname "$0")/record.sh")
shift $(($# < 3 ? $# : 3))
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export STARPU_NCPU=1
read -ra carriers <<<"${CARRIERS:-mpi starpu_mpi}"
model='model={"model_type": "gpt2", "n_layer": 6, "n_embd": 768, "n_head": 12, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}'
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# Sequences of all ranks together; of one at a time.
bench() {
    local all=$1 one=$2
    shift 2
    "${launch[@]}" "$build/tools/tessera" bench "$model" bf16.enabled=true zero_optimization.stage=3 \
        train_batch_size="$all" train_micro_batch_size_per_gpu="$one" --steps "$steps" "$@"
}
seconds() { sed -n 's/^a step of \([0-9.]*\) ms.*/\1/p' "$1" | awk '{ printf "%.3f", $1 / 1000 }'; }
alone() { # the mean of two at a time
    launch=(taskset -c 0)
    bench "$@" >"$out/a" &
    local other=$!
    launch=(taskset -c 1)
    bench "$@" >"$out/b"
    wait "$other"
    awk -v a="$(seconds "$out/a")" -v b="$(seconds "$out/b")" 'BEGIN { printf "%.3f", (a + b) / 2 }'
}
together() { # FILE CARRIER ...
    local file=$1 carrier=$2
    shift 2
    launch=(mpirun -n 2)
    bench "$@" parallel.carrier="$carrier" >"$file"
}

echo "load $(cut -d' ' -f1 /proc/loadavg), $turns turns of $steps steps each"
for ((turn = 0; turn < turns; turn++)); do
    one=$(alone 4 4 "$@")
    for carrier in "${carriers[@]}"; do
        together "$out/strong" "$carrier" 4 2 "$@"
        together "$out/weak" "$carrier" 8 4 "$@"
        awk -v c="$carrier" -v one="$one" -v strong="$(seconds "$out/strong")" -v weak="$(seconds "$out/weak")" '
            /under way/ { sub(/.* step, /, ""); hidden = $1 }
            /^peak memory of the process/ { sub(/;.*/, ""); peak = $6 " " $7 }
            END { print c, one, strong, one / strong, weak, 100 * one / weak, hidden, peak }' "$out/weak" >>"$out/turns"
    done
    one=$(alone 4 4 "$@") # once more, so that a machine that slows down does so for both
    awk -v one="$one" -v n="${#carriers[@]}" -v all="$(wc -l <"$out/turns")" '
        NR > all - n { old = $2; $2 = (old + one) / 2; $4 = $2 / $3; $6 = 100 * $2 / $5 } { print }' "$out/turns" >"$out/next"
    mv "$out/next" "$out/turns"
done
# Of each figure the median of the turns, and the least and the most; a row of results/ranks.tsv is the same.
printf '%-12s %22s %24s %24s %8s %8s\n' "two ranks" "one rank, 4" "strong: 2 each" "weak: 4 each" "hidden" "peak"
column() { awk -v c="$1" -v k="$2" '$1 == c { print $k }' "$out/turns" | sort -g | awk -v f="$3" '{ v[NR] = $1 } END { printf f " (" f "-" f ")", v[int((NR + 1) / 2)], v[1], v[NR] }'; }
for carrier in "${carriers[@]}"; do
    one=$(column "$carrier" 2 %.2f) strong=$(column "$carrier" 4 %.2f) weak=$(column "$carrier" 6 %.0f)
    hidden=$(column "$carrier" 7 %.0f | cut -d' ' -f1)% peak=$(awk -v c="$carrier" '$1 == c { p = $8 " " $9 } END { print p }' "$out/turns")
    printf '%-12s %22s %24s %24s %8s %8s\n' "$carrier" "$one s" "$strong x" "$weak%" "$hidden" "$peak"
    "$record" ranks "ranks.sh BUILD $steps $turns${*:+ $*}" "$carrier" -- "$one" "$strong" "$weak" "$hidden" "$peak"
done
