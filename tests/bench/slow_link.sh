#!/bin/bash
# What two data-parallel ranks wait for over a link of 150 Mbit/s, made of two network namespaces (tests/mpi/slow_link.sh),
# and what comes of sending less: gradients in fp32, in bf16, gradients and weights in int8, and 8 local steps between two
# sums: as they are, in bf16, and with an outer optimizer for as few sums as 25. A row each: seconds a step behind the
# first eight, in shares of fp32's; the loss of data.valid behind the last step, and how far it is from fp32's.
#
#     tests/bench/slow_link.sh [BUILD DIR [STEPS [MBIT [SEED]]]]    as root; 200 steps take about ten minutes
set -eu
build=$(realpath "${1:-build}") steps=${2:-200} mbit=${3:-150} network=$(realpath "$(dirname "$0")/../mpi/slow_link.sh")
if ! unshare --net --uts ip link set dev lo up 2>/dev/null || [ ! -w /dev/net/tun ]; then
    echo "skipped: no network namespaces here (root is needed, ip, and /dev/net/tun)"
    exit 77
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 STARPU_NCPU=1 STARPU_SILENT=1 STARPU_WORKERS_NOBIND=1
export OMPI_MCA_btl=tcp,self OMPI_MCA_pml=ob1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cd "$out"
words=(the tile moves and rests on a disk while other ranks wait for it)
RANDOM=7
for ((k = 0; k < 40000; k++)); do echo -n "${words[RANDOM % 14 * (RANDOM % 14) / 14]} "; done >text.txt
head -c 8000 text.txt >valid.txt
cat >run.json <<END
{"model": {"model_type": "gpt2", "vocab_size": 256, "n_layer": 6, "n_embd": 256, "n_head": 8, "n_positions": 64,
           "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
 "data": {"train": "text.txt", "valid": "valid.txt", "seq_length": 64}, "train_batch_size": 4,
 "train_micro_batch_size_per_gpu": 2, "steps": $steps, "parallel": {"carrier": "mpi"}, "output": "out", "overwrite": true,
 "optimizer": {"params": {"lr": 5e-4}}, "seed": ${4:-1}}
END
printf '%-24s %10s %8s %12s %8s\n' "$mbit Mbit/s" 's a step' share 'valid loss' off
row() { # NAME SETTING...
    if ! unshare --net --uts "$network" --joined "$build/tests/link" 0 0 "$mbit" mpirun -n 2 -host 10.9.0.1:1,10.9.0.2:1 \
        "$build/tools/tessera" train run.json "${@:2}" >said.txt 2>err.txt; then
        cat err.txt
        exit 1
    fi
    local time loss
    time=$(tail -n +9 out/metrics.jsonl | sed 's/.*"seconds":\([0-9.e-]*\).*/\1/' | awk '{ s += $1 } END { print s / NR }')
    loss=$(tail -1 out/metrics.jsonl | sed 's/.*"valid_loss":\([0-9.e-]*\).*/\1/')
    first_time=${first_time:-$time} first_loss=${first_loss:-$loss}
    awk -v name="$1" -v t="$time" -v l="$loss" -v t0="$first_time" -v l0="$first_loss" \
        'BEGIN { printf "%-24s %10.3f %8.2f %12.4f %+7.2f%%\n", name, t, t / t0, l, 100 * (l / l0 - 1) }'
}
row fp32 communication_data_type=fp32
row bf16 communication_data_type=bf16
row int8 zero_optimization.{stage=3,stage3_param_persistence_threshold=0,zero_quantized_{weights,gradients}=true}
row '8 local steps' parallel.local_steps=8
row '8 local steps, bf16' parallel.local_steps=8 communication_data_type=bf16
row '8, bf16, SGD of 0.4, 0.7' parallel.local_steps=8 communication_data_type=bf16 parallel.outer_{lr=0.4,momentum=0.7}
