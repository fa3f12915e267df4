#!/bin/bash
# By hand, as root: two ranks on two machines, which are network namespaces of this one with names of their own, joined by a
# link that is slow, late, and loses packets (link.c). Says, for each carrier, how long a step takes, what of the messages is
# hidden, and what the link did; the models must be the same over all of them.
#
#     tests/mpi/slow_link.sh [BUILD DIR [CARRIER ...]]
set -eu
if [ "${1:-}" = --joined ]; then # in the near namespace: PROGRAM MILLISECONDS PERCENT MBIT COMMAND...
    link=("$2" "$3" "$4" "$5")
    shift 5
    hostname near
    ip link set dev lo up
    retries='[ -z "${RETRIES:-}" ] || echo $RETRIES >/proc/sys/net/ipv4/tcp_retries2' # of a packet that is not answered
    eval "$retries"
    rm -f ready agent
    unshare --net --uts sh -c "$retries"'; hostname far && ip link set dev lo up && echo >ready && exec sleep 1000000' &
    far=$!
    trap 'kill $far; wait 2>/dev/null' EXIT
    until [ -e ready ]; do sleep .05; done
    "${link[0]}" $far "${link[@]:1}" >link.txt &
    wire=$!
    trap 'kill $wire; wait $wire || true; kill $far; wait 2>/dev/null' EXIT
    until ip link show dev wan && nsenter -t $far -n ip link show dev wan; do sleep .05; done >/dev/null 2>&1
    for end in "" "nsenter -t $far -n"; do
        $end ip addr add "10.9.0.$((${#end} ? 2 : 1))/24" dev wan
        $end ip link set dev wan mtu 9000 up
    done
    printf '#!/bin/sh\nshift\nexec nsenter -t %s -n -u sh -c "$*"\n' $far >agent # mpirun's ssh
    chmod +x agent
    export OMPI_MCA_plm_rsh_agent=$PWD/agent OMPI_MCA_btl_tcp_if_include=wan OMPI_MCA_oob_tcp_if_include=wan
    "$@"
    exit
fi
build=$(realpath "${1:-build}") self=$(realpath "$0")
shift $(($# < 1 ? $# : 1))
carriers=("$@")
[ $# -gt 0 ] || carriers=(starpu_mpi mpi)
if ! unshare --net --uts ip link set dev lo up 2>/dev/null || [ ! -w /dev/net/tun ]; then
    echo "skipped: no network namespaces here (root is needed, ip, and /dev/net/tun)"
    exit 77
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 STARPU_NCPU=1 STARPU_SILENT=1 STARPU_WORKERS_NOBIND=1
export OMPI_MCA_btl=tcp,self OMPI_MCA_pml=ob1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cd "$out"
model='model={"model_type": "gpt2", "vocab_size": 1024, "n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 256, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}'
all=("$model" data.seq_length=256 train_batch_size=4 train_micro_batch_size_per_gpu=1 zero_optimization.stage=3)
mpirun=(mpirun -n 2 -host 10.9.0.1:1,10.9.0.2:1 "$build/tools/tessera")
echo '{}' >empty.json
for ((k = 0; k < 16; k++)); do echo "{\"input_ids\": [$(seq -s, $k $((k + 255)))]}"; done >ids.jsonl

# over NAME MILLISECONDS PERCENT MBIT: each carrier behind such a link.
over() {
    local carrier
    echo "$1"
    shift
    for carrier in "${carriers[@]}"; do
        { unshare --net --uts "$self" --joined "$build/tests/link" "$@" "${mpirun[@]}" bench "${all[@]}" parallel.carrier="$carrier" --steps 3 >bench.txt 2>err.txt &&
            mv link.txt bench-link.txt && unshare --net --uts "$self" --joined "$build/tests/link" "$@" "${mpirun[@]}" train empty.json "${all[@]}" \
            parallel.carrier="$carrier" data.train=ids.jsonl steps=2 deterministic=true overwrite=true output=out >train.txt 2>err.txt; } || { cat err.txt; exit 1; }
        sha1sum <out/model/model.safetensors >>models
        echo "  $carrier: $(grep -o 'a step of [0-9.]* ms' bench.txt), $(grep -o 'under way.*' bench.txt); $(cat bench-link.txt); model $(tail -1 models | cut -c1-8)"
    done
}
over "10 Gbit/s" 0 0 10000
over "400 Mbit/s" 0 0 400
over "150 Mbit/s" 0 0 150
over "400 Mbit/s, 2 ms each way, 0.1% lost" 2 0.1 400
over "400 Mbit/s, 20 ms each way, 1% lost" 20 1 400
[ "$(sort -u models | wc -l)" = 1 ] || { echo "the models differ"; exit 1; }
