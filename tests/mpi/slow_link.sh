#!/bin/bash
# By hand, as root: two ranks that reach each other by TCP alone, through a network of their own with a loopback that is
# slow. Says, for each carrier, how long a step takes and what of the messages is hidden, and compares the models.
#
#     tests/mpi/slow_link.sh [BUILD DIR [CARRIER ...]]
set -eu
build=$(realpath "${1:-build}")
shift $(($# < 1 ? $# : 1))
carriers=("$@")
[ $# -gt 0 ] || carriers=(starpu_mpi mpi)
if ! unshare -n ip link set lo up 2>/dev/null; then
    echo "skipped: no network namespaces here (root is needed, and ip and tc)"
    exit 77
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 STARPU_NCPU=1 STARPU_SILENT=1
export OMPI_MCA_btl=tcp,self OMPI_MCA_pml=ob1 OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cd "$out"
model='model={"model_type": "gpt2", "vocab_size": 1024, "n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 256, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}'
all=("$model" data.seq_length=256 train_batch_size=4 train_micro_batch_size_per_gpu=1 zero_optimization.stage=3)
echo '{}' >empty.json
for ((k = 0; k < 4000; k++)); do echo -n "$((k * k % 97)) "; done >text.txt

# over NAME [QDISC ...]: each carrier behind it.
over() {
    local name=$1 carrier
    shift
    if [ $# -gt 0 ] && ! unshare -n sh -c "ip link set lo up && tc qdisc add dev lo root $*" 2>/dev/null; then
        echo "$name: skipped, this kernel has no $1"
        return
    fi
    echo "$name"
    for carrier in "${carriers[@]}"; do
        unshare -n bash -c "ip link set lo up; ${*:+tc qdisc add dev lo root $*;} \
            mpirun --oversubscribe -n 2 \"\$0\" bench \"\$@\" --steps 3 >bench.txt 2>err.txt && \
            mpirun --oversubscribe -n 2 \"\$0\" train empty.json \"\$@\" data.train=text.txt steps=2 deterministic=true overwrite=true output=out >train.txt 2>err.txt" \
            "$build/tools/tessera" "${all[@]}" parallel.carrier="$carrier" || { cat err.txt; exit 1; }
        echo "  $carrier: $(grep -o 'a step of [0-9.]* ms' bench.txt), $(grep -o 'under way.*' bench.txt), model $(sha1sum <out/model/model.safetensors | cut -c1-8)"
    done
}
over "as it is"
over "400 Mbit/s" tbf rate 400mbit burst 256kb latency 50ms
over "150 Mbit/s" tbf rate 150mbit burst 128kb latency 100ms
over "a delay of 2 ms, 0.1% lost" netem delay 2ms loss 0.1%
