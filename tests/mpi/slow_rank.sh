#!/bin/bash
# By hand, seven minutes: of two ranks one is slowed down, for real, as a machine that gives a core to someone else does; the
# run says so once when it begins and once when it ends, and its files have it. Ranks that are slowed down alike are not named.
# Behind that, on a machine with two free cores, how fast two ranks are of which one has half the speed, with parallel.shares
# and without, beside the faster one alone, and beside what two ranks at full speed gain there.
#
#     tests/mpi/slow_rank.sh [BUILD DIR]
set -eu
build=$(realpath "${1:-build}")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 STARPU_NCPU=1 STARPU_SILENT=1 STARPU_WORKERS_NOBIND=1
out=$(mktemp -d) mpirun='' slows=''
trap 'kill $slows $mpirun 2>/dev/null || true; wait; rm -rf "$out"' EXIT
cd "$out"
for ((k = 0; k < 8; k++)); do echo "{\"input_ids\": [$(seq -s, $k $((k + 127)))]}"; done >ids.jsonl
cat >run.json <<END
{"model": {"model_type": "gpt2", "vocab_size": 512, "n_layer": 2, "n_embd": 128, "n_head": 4, "n_positions": 128},
 "data": {"train": "ids.jsonl", "seq_length": 128}, "train_batch_size": 6, "train_micro_batch_size_per_gpu": 1,
 "steps": 10000000, "log_every": 1000000, "overwrite": true, "output": "out"}
END
begin() { # RANKS SETTING...
    rm -rf out
    mpirun --oversubscribe --bind-to none -n "$1" "$build/tools/tessera" train run.json "${@:2}" >said.txt 2>err.txt &
    mpirun=$!
    waits 5 steps
    rank=()
    for p in $(pgrep -P "$mpirun"); do
        r=$(tr '\0' '\n' <"/proc/$p/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
        [ -z "$r" ] || rank[r]=$p
    done
}
steps() { [ "$(wc -l <out/metrics.jsonl)" -ge "$1" ]; } 2>/dev/null
says() { grep -q "$1" err.txt; }
waits() { # ARGUMENT WHAT
    for ((k = 0; k < 300; k++)); do
        "$2" "$1" && return
        kill -0 $mpirun 2>/dev/null || break
        sleep 1
    done
    echo "it did not come to: $2 $1"
    cat err.txt
    exit 1
}
slow() { # PID...: half of the time they stand still
    while kill -STOP "$@" && sleep .03 && kill -CONT "$@" && sleep .03; do :; done 2>/dev/null &
    slows=$!
}
alike() {
    kill $slows
    wait $slows 2>/dev/null || true
    slows=''
    kill -CONT "${rank[@]}"
}
end() {
    kill -USR1 $mpirun
    wait $mpirun || { cat err.txt; exit 1; }
    mpirun=''
}
begin 2
sleep 12 # their rates at the beginning are known
slow "${rank[1]}"
waits 'rank 1 on .* computes at' says
alike
waits 'rank 1 on .* as fast as it should again' says
end
[ "$(grep -c 'rank [01] on' err.txt)" = 2 ] || { echo "not two lines:"; cat err.txt; exit 1; }
grep -q '"slow_rank":1,"slow_rate":0' out/metrics.jsonl || { echo "metrics.jsonl has nothing of it"; exit 1; }
grep -q '"slow_rank":\[' out/report.html || { echo "report.html has nothing of it"; exit 1; }
grep 'rank 1 on' err.txt
begin 2
sleep 12
slow "${rank[@]}"
sleep 45
alike
end
if grep 'rank [01] on' err.txt; then echo "slow alike, but named"; exit 1; fi
echo "slow alike for 45 s: none is named"
# A rank has a core to itself, and the slow one 1.2 of each two milliseconds, by a quota of its control group: half the speed,
# since whoever comes back finds caches cold.
half=/sys/fs/cgroup/cpu/tessera-half
[ -d /sys/fs/cgroup/cpu ] || half=/sys/fs/cgroup/tessera-half
if [ "$(nproc)" -lt 2 ] || ! mkdir "$half" 2>/dev/null; then
    echo "skipped: no two cores, or no control groups (as root)"
    exit
fi
trap 'rmdir "$half"; rm -rf "$out"' EXIT
echo 2000 >"$half/cpu.cfs_period_us" && echo 1200 >"$half/cpu.cfs_quota_us" || echo "1200 2000" >"$half/cpu.max"
for ((k = 0; k < 24; k++)); do echo "{\"input_ids\": [$(seq -s, $k $((k + 255)))]}"; done >ids.jsonl
# Of a step, the mean of seven behind the first two, without the last: a part of that was done in the one before it.
seconds() { # RANKS SLOW SETTING...: rank SLOW has half of a core
    rm -rf out
    # shellcheck disable=SC2016
    HALF="$half" SLOW=$2 mpirun --oversubscribe --bind-to none -n "$1" bash -c '
        [ "$OMPI_COMM_WORLD_RANK" != "$SLOW" ] || echo $$ >"$HALF/cgroup.procs"
        exec taskset -c "$OMPI_COMM_WORLD_RANK" "$0" "$@"' \
        "$build/tools/tessera" train run.json train_batch_size=24 data.seq_length=256 steps=10 log_every=1 \
        'model={"model_type": "gpt2", "vocab_size": 512, "n_layer": 4, "n_embd": 256, "n_head": 8, "n_positions": 256}' \
        "${@:3}" >said.txt 2>err.txt || { cat err.txt; exit 1; }
    sed -n 's/.*"seconds":\([0-9.e-]*\).*/\1/p' out/metrics.jsonl | awk 'NR > 3 { s += last; n++ } { last = $1 } END { printf "%.3f\n", s / n }'
}
alone=$(seconds 1 none)
times() { awk "BEGIN { printf \"%.2f\", $alone / $1 }"; }
echo "a step: the faster rank alone $alone s, the slower alone $(seconds 1 0), two at full speed $(times "$(seconds 2 none)") x"
for shares in 1,1 2,1; do
    took=$(seconds 2 1 parallel.shares=$shares)
    echo "one of two ranks at half the speed, shares $shares: $took s a step, $(times "$took") x the faster alone"
done
