#!/bin/bash
# By hand, since it takes long: the tests of several ranks over each carrier of messages, runs under a cap many times,
# and eight ranks. Says what failed and how often; its last line is "N failed".
#
#     tests/mpi/carriers.sh [BUILD DIR [suites|capped|eight [TIMES [CARRIER ...]]]]     all of them; 30 times; starpu_mpi mpi
set -u
build=$(realpath "${1:-build}") part=${2:-all} times=${3:-30}
shift $(($# < 3 ? $# : 3))
carriers=("$@")
[ $# -gt 0 ] || carriers=(starpu_mpi mpi)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export TESSERA=$build/tools/tessera TESS_RANKS=$build/tests/ranks STARPU_SILENT=1 STARPU_WORKERS_NOBIND=1
out=$(mktemp -d)
export STARPU_HOME=$out XDG_CACHE_HOME=$build/tests/cache
trap 'rm -rf "$out"' EXIT
cd "$out" || exit
echo "{}" >empty.json
failed=0

# say WHAT COMMAND...: runs it, and says how it ended and how long it took.
say() {
    local what=$1 start=$SECONDS
    shift
    if timeout 900 "$@" >"$out/log" 2>&1; then
        echo "  $what: $(grep -aoE '[0-9]+ passed.*' "$out/log" | tail -1 || true) ($((SECONDS - start)) s)"
    else
        echo "  $what: FAILED, status $?"
        tail -5 "$out/log"
        failed=$((failed + 1))
    fi
}

suites() {
    local n
    say test_ranks "$build/tests/test_ranks"
    for n in 2 3 4; do say "test_grid $n" mpirun --oversubscribe -n $n "$build/tests/test_grid"; done
    for n in 2 3; do say "test_stages $n" mpirun --oversubscribe -n $n "$build/tests/test_stages"; done
    for n in test_tiers_ranks test_resume test_launch test_placements; do say $n "$build/tests/$n"; done
}

# Tiles that come and leave under a cap with a disk, in the runtime alone and in a step of training.
capped() {
    local good=0 k
    for ((k = 0; k < times; k++)); do
        timeout 60 mpirun --oversubscribe -n 2 "$build/tests/ranks" capped >"$out/log" 2>&1 && grep -q done "$out/log" && good=$((good + 1))
    done
    echo "  tiles under a cap: $good of $times runs"
    failed=$((failed + times - good))
    good=0
    for ((k = 0; k < times; k++)); do
        timeout 120 mpirun --oversubscribe -n 2 "$build/tests/small_ranks" >"$out/log" 2>&1 && good=$((good + 1)) && sed 's/^[^ ]* *s\? *//' "$out/log" >>"$out/bits-$carrier"
    done
    echo "  steps under a cap: $good of $times runs, $(sort -u "$out/bits-$carrier" | wc -l) different results"
    failed=$((failed + times - good))
    cat "$out/bits-$carrier" >>"$out/bits"
}

# Eight ranks of one worker each: every stage has the bits of one rank, and tensor 2 x pipeline 2 x data 2 is near it.
eight() {
    local stage model='model={"model_type": "gpt2", "vocab_size": 256, "n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 32, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}'
    local all=("$model" data.train=text.txt data.seq_length=32 train_batch_size=8 train_micro_batch_size_per_gpu=1 steps=3 deterministic=true overwrite=true)
    mkdir -p disk
    for ((stage = 0; stage < 4000; stage++)); do echo -n "$((stage * stage % 97)) "; done >text.txt
    env -u TESSERA_PARALLEL_CARRIER STARPU_NCPU=1 "$TESSERA" train empty.json "${all[@]}" output=one >"$out/log" 2>&1 || { tail -3 "$out/log"; failed=$((failed + 1)); return; }
    export STARPU_NCPU=1
    for stage in 0 1 2 3; do
        say "8 ranks, stage $stage" mpirun --oversubscribe -n 8 "$TESSERA" train empty.json "${all[@]}" zero_optimization.stage=$stage output="eight-$carrier"
        same "stage $stage"
    done
    say "8 ranks, stage 3, a cap and a disk" mpirun --oversubscribe -n 8 "$TESSERA" train empty.json "${all[@]}" zero_optimization.stage=3 \
        zero_optimization.offload_optimizer.device=nvme memory.path=disk output="eight-$carrier"
    same "a cap and a disk"
    say "tensor 2 x pipeline 2 x data 2" mpirun --oversubscribe -n 8 "$TESSERA" train empty.json "${all[@]}" parallel.tensor=2 parallel.pipeline=2 output="grid-$carrier"
    echo "    losses $(sed -n 's/.*"loss": *\([0-9.]*\).*/\1/p' "grid-$carrier/metrics.jsonl" | tr '\n' ' '), one rank's $(sed -n 's/.*"loss": *\([0-9.]*\).*/\1/p' one/metrics.jsonl | tr '\n' ' ')"
    unset STARPU_NCPU
}
same() {
    cmp -s "eight-$carrier/model/model.safetensors" one/model/model.safetensors && return
    echo "  $1: the model differs from one rank's"
    failed=$((failed + 1))
}

for carrier in "${carriers[@]}"; do
    export TESSERA_PARALLEL_CARRIER=$carrier
    echo "over $carrier"
    for each in suites capped eight; do
        if [ "$part" = all ] || [ "$part" = $each ]; then $each; fi
    done
done
if [ -f "$out/bits" ] && [ "$(sort -u "$out/bits" | wc -l)" -gt 1 ]; then
    echo "the carriers differ:" && sort "$out/bits" | uniq -c
    failed=$((failed + 1))
fi
echo "$failed failed"
[ "$failed" = 0 ]
