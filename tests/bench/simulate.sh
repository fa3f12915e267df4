#!/bin/bash
# What tessera simulate says of this machine, beside what it does: the step's time, its tasks, its bytes from and to the
# disk. tests/bench/simulate.sh [BUILD]: on a quiet machine, some 3 minutes.
#
# Codelets are calibrated on one model, in fp32 and bf16; the runs below are of others.
set -eu -o pipefail
tessera=$(realpath "${1:-build}")/tools/tessera
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" && mkdir disk
export STARPU_SILENT=1
model() { echo "model={\"model_type\": \"$1\", \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0, $2}"; }
gpt2() { model gpt2 "\"n_layer\": $1, \"n_embd\": $2, \"n_head\": $3, \"vocab_size\": ${4:-50257}"; }
batch() { echo "train_batch_size=$1 train_micro_batch_size_per_gpu=$2 data.seq_length=$3"; }

# shellcheck disable=SC2046
calibrate() { "$tessera" bench "$(gpt2 4 768 12 8192)" $(batch 2 2 512) gradient_clipping=1 --steps 4 --machine here.json "$@" >bench.txt; }
"$tessera" info --machine here.json >info.txt
for turn in 1 2; do
    calibrate
    calibrate bf16.enabled=true
done

printf '%-44s %9s %9s %7s %13s %7s %7s\n' "" "real s" "said s" "ratio" "tasks" "idle" "said"
compare() { # NAME TOKENS SETTING...
    local name=$1 tokens=$2
    shift 2
    "$tessera" bench "$@" --steps 3 >real.txt
    echo "{}" >run.json
    "$tessera" simulate run.json --machine here.json --steps 3 "$@" >said.txt 2>/dev/null
    awk -v name="$name" -v tokens="$tokens" '
        FNR == 1 { file++; table = 0 }
        file == 1 && / tokens\/s, / { real = tokens / $1 }
        file == 1 && /^disk: / { disk = $2 }
        /^codelet/ { table = 1; next }
        file == 1 && /^a step of/ { table = 0; if (match($0, /idle [0-9.]+/)) idle = substr($0, RSTART + 5, RLENGTH - 5) }
        file == 1 && table { tasks += $3 }
        file == 2 && /^step / { said = $2 }
        file == 2 && /^tasks / { count = $2 }
        file == 2 && /^cores / { if (match($0, /idle [0-9.]+/)) free = substr($0, RSTART + 5, RLENGTH - 5) }
        file == 2 && /^disk / { moved = ($3 + $6) / 3 }
        END {
            printf "%-44s %9.3f %9.3f %7.3f %6d %6d %6.1f%% %6.1f%%", name, real, said, said / real, tasks, count, idle, free
            if (disk) printf "  disk %.0f %.0f", disk, moved
            printf "\n"
        }' real.txt said.txt
}
# shellcheck disable=SC2046
{
    compare "as calibrated" 1024 "$(gpt2 4 768 12 8192)" $(batch 2 2 512) gradient_clipping=1
    compare "GPT-2, 6 layers of 512, 4 x 256" 1024 "$(gpt2 6 512 8 8192)" $(batch 4 4 256) gradient_clipping=0
    compare "GPT-2, 3 layers of 1280, 2 x 512, 2 micro" 1024 "$(gpt2 3 1280 20 8192)" $(batch 2 1 512) gradient_clipping=1
    compare "GPT-2, 8 layers of 768, bf16" 1024 "$(gpt2 8 768 12 8192)" $(batch 1 1 1024) gradient_clipping=0 bf16.enabled=true
    compare "GPT-2, 4 layers of 1024, 50257 tokens" 512 "$(gpt2 4 1024 16)" $(batch 2 1 256) gradient_clipping=1
    compare "4 layers of 1024 below 300 MiB, on disk" 1024 "$(gpt2 4 1024 16 8192)" $(batch 4 2 256) gradient_clipping=1 memory.cpu=300MiB memory.path=disk
    compare "12 layers of 512 below 250 MiB, on disk" 1024 "$(gpt2 12 512 8 8192)" $(batch 4 4 256) gradient_clipping=0 memory.cpu=250MiB memory.path=disk
}
