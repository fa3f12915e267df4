#!/bin/bash
# What tessera simulate says of this machine, beside what it does: the step's time, its tasks, its bytes from and to the
# disk. tests/bench/simulate.sh [BUILD]: on a quiet machine, a minute or two.
#
# Codelets are calibrated on one model, and the runs below are of others. A machine is not the same for minutes: so it is
# calibrated before each run and after it, and what is said is the mean of both.
set -eu -o pipefail
tessera=$(realpath "${1:-build}")/tools/tessera
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" && mkdir disk
export STARPU_SILENT=1
model() { echo "model={\"model_type\": \"$1\", \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0, $2}"; }
gpt2() { model gpt2 "\"n_layer\": $1, \"n_embd\": $2, \"n_head\": $3, \"vocab_size\": ${4:-50257}"; }
batch() { echo "train_batch_size=$1 train_micro_batch_size_per_gpu=$2 data.seq_length=$3"; }

# FILE and settings: a machine's file with what codelets reach now.
# shellcheck disable=SC2046
calibrate() {
    local file=$1
    shift
    cp plain.json "$file"
    "$tessera" bench "$(gpt2 4 768 12 8192)" $(batch 2 2 512) gradient_clipping=1 --steps 3 --machine "$file" "$@" >bench.txt
}
"$tessera" info --machine plain.json >info.txt

printf '%-44s %9s %9s %7s %13s %7s %7s\n' "" "real s" "said s" "ratio" "tasks" "idle" "said"
compare() { # NAME TOKENS SETTING...
    local name=$1 tokens=$2
    shift 2
    local dtype=
    case " $* " in *" bf16.enabled=true "*) dtype=bf16.enabled=true ;; esac
    calibrate before.json $dtype
    "$tessera" bench "$@" --steps 3 >real.txt
    calibrate after.json $dtype
    echo "{}" >run.json
    "$tessera" simulate run.json --machine before.json --steps 3 "$@" >said.txt 2>/dev/null
    "$tessera" simulate run.json --machine after.json --steps 3 "$@" >>said.txt 2>/dev/null
    awk -v name="$name" -v tokens="$tokens" '
        FNR == 1 { file++; table = 0 }
        file == 1 && / tokens\/s, / { real = tokens / $1 }
        file == 1 && /^disk: / { disk = $2 }
        /^codelet/ { table = 1; next }
        file == 1 && /^a step of/ { table = 0; if (match($0, /idle [0-9.]+/)) idle = substr($0, RSTART + 5, RLENGTH - 5) }
        file == 1 && table { tasks += $3 }
        file == 2 && /^step / { said += $2 / 2 }
        file == 2 && /^tasks / { count = $2 }
        file == 2 && /^cores / { if (match($0, /idle [0-9.]+/)) free += substr($0, RSTART + 5, RLENGTH - 5) / 2 }
        file == 2 && /^disk / { moved = ($3 + $6) / 3 }
        END {
            printf "%-44s %9.3f %9.3f %7.3f %6d %6d %6.1f%% %6.1f%%", name, real, said, said / real, tasks, count, idle, free
            if (disk) printf "  disk %.0f %.0f", disk, moved
            printf "\n"
        }' real.txt said.txt | tee -a all.txt
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
awk '{ e = match($0, /[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9]+ +[0-9]+ +[0-9.]+%/); split(substr($0, e), f, " "); d = f[3] - 1; d = d < 0 ? -d : d
       if (NR > 1) { sum += d; n++; if (d > most) most = d } }
     END { printf "apart, but for the calibrated: %.1f%% in the mean, %.1f%% at most\n", 100 * sum / n, 100 * most }' all.txt
