#!/bin/bash
# StarPU's policies on a node of 8 GPUs that is simulated, a DGX H100 with 16 of its cores: milliseconds of a step of GPT-2
# 1.5B under each, how busy the GPUs are, and what goes over their links. One process has all 8, and StarPU moves what
# they share.
#
#     tools/simulate/bench/policies.sh [BUILD [POLICY ...]]       some minutes; a policy that runs none of these tasks has its error
set -eu -o pipefail
tessera=$(realpath "${1:-build}")/tools/tessera
machine=$(realpath "$(dirname "$0")/../machines/dgx-h100.json")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
sed -e 's/"cores": [0-9]*/"cores": 16/' "$machine" >node.json
machine=node.json
cat >run.json <<'END'
{"model": {"model_type": "gpt2", "n_embd": 1600, "n_head": 25, "n_layer": 48, "vocab_size": 50257,
           "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
 "data": {"seq_length": 1024}, "train_batch_size": 32, "train_micro_batch_size_per_gpu": 32,
 "bf16": {"enabled": true}, "memory": {"gpu_plan": false}}
END
shift || true
if [ $# = 0 ]; then # those that a wrong name is answered with
    names=$(STARPU_SCHED=none "$tessera" simulate run.json --machine "$machine" --ranks-per-node 1 2>&1 | sed -n 's/.*(there are \(.*\))/\1/p' | tr -d ,) || true
    # shellcheck disable=SC2086
    set -- $names
fi
printf '%-34s %9s %6s %13s %13s\n' policy ms busy "from RAM, GiB" "between, GiB"
for policy; do
    if ! STARPU_SCHED=$policy timeout 300 "$tessera" simulate run.json --machine "$machine" --ranks-per-node 1 --steps 1 >said.txt 2>error.txt; then
        printf '%-34s %s\n' "$policy" "$(tail -n 1 error.txt | cut -c1-90)"
        continue
    fi
    awk -v policy="$policy" '
        /^step / { ms = 1e3 * $2 }
        /^GPUs / { busy = $3 }
        /^links / { to = $2; for (i = 1; i < NF; i++) if ($(i + 1) == "between") between = $i }
        END { printf "%-34s %9.1f %6s %13.1f %13.1f\n", policy, ms, busy, to / 2^30, between / 2^30 }' said.txt
done
