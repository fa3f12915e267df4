#!/bin/bash
# Two ranks beside one, a core each, at stage 3 in bf16: a GPT of 82M parameters, 1024 tokens a sequence. Strong: 4
# sequences a step in all. Weak: 4 sequences a rank. What two ranks are compared with is one rank on one core while
# another one like it, which it knows nothing of, has the other core: both cores share the memory and the clock.
#
# The share of communication that is hidden behind compute: 1 - (weak step - step alone) / time of the messages, which is
# the bytes that a rank sends over the rate of bench_message, whose tiles go both ways with nothing else to do.
#
#     tests/bench/ranks.sh [BUILD DIR [STEPS [KEY=VALUE ...]]]        a quiet machine of two cores or more
set -eu
build=$(realpath "${1:-build}") steps=${2:-5}
shift $(($# < 2 ? $# : 2))
[ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export STARPU_NCPU=1
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
together() {
    launch=(mpirun -n 2)
    bench "$@" >"$out/c"
    seconds "$out/c"
}

echo "load $(cut -d' ' -f1 /proc/loadavg), $steps steps each"
one=$(alone 4 4 "$@")
strong=$(together 4 2 "$@")
weak=$(together 8 4 "$@")
again=$(alone 4 4 "$@")
sent=$(sed -n 's/.*this one sends \([0-9]*\) bytes.*/\1/p' "$out/c")
rate=
[ ! -x "$build/tests/bench_message" ] ||
    rate=$(mpirun -n 2 "$build/tests/bench_message" 256 2>/dev/null | awk '$2 == "MiB" && $1 > 2 { print $3; exit }')
awk -v one="$one" -v again="$again" -v strong="$strong" -v weak="$weak" -v sent="$sent" -v rate="$rate" 'BEGIN {
    a = (one + again) / 2
    printf "one rank, 4 sequences           %7.3f s (%.3f and %.3f)\n", a, one, again
    printf "strong: two ranks, 2 each       %7.3f s, %.2f times as fast\n", strong, a / strong
    printf "weak: two ranks, 4 each         %7.3f s, %.0f%% of the speed alone\n", weak, 100 * a / weak
    if (!rate) { print "bench_message is not built or did not run: what is hidden is not known"; exit }
    comm = sent / (rate * 1e9)
    hidden = 100 * (1 - (weak - a) / comm)
    printf "a rank sends %.0f MB a step, %.3f s at %.2f GB/s: %.0f%% hidden\n", sent / 1e6, comm, rate, \
        hidden < 0 ? 0 : hidden > 100 ? 100 : hidden
    if (weak < a) print "weak was faster than alone: the machine drifts by more than the messages take"
}'
