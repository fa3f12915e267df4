#!/bin/bash
# What tessera simulate says of this machine, beside what it does: the step's time, its tasks, its bytes from and to the
# disk. tools/simulate/bench/simulate.sh [BUILD] [TURNS] [ROW ...]: on a quiet machine, half a minute a row in three turns.
#
# A turn of a row calibrates on short runs of other models of its family, alone on all cores, makes the run, by mpirun where
# it is of several ranks, and simulates it by that calibration. Other
# programs of a machine only ever make a run slower: so of all turns the shortest counts, of what is said as of the real
# run; beside it the ratio of both medians, and all turns. Each row is added to results/simulate.tsv.
set -eu -o pipefail
tessera=$(realpath "${1:-build}")/tools/tessera
turns=${2:-3}
rows=" ${*:3} " record=$(realpath "$(dirname "$0")/../../../tests/bench/record.sh")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" && mkdir disk
export STARPU_SILENT=1
model() { echo "model={\"model_type\": \"$1\", \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0, $2}"; }
gpt2() { model gpt2 "\"n_layer\": $1, \"n_embd\": $2, \"n_head\": $3, \"vocab_size\": ${4:-50257}"; }
hf() { echo "model={\"model_type\": \"$1\", \"num_hidden_layers\": $2, \"hidden_size\": $3, \"num_attention_heads\": $4, \"num_key_value_heads\": $(($4 / 2)), \"intermediate_size\": $(($3 * $6)), \"vocab_size\": $5$7}"; }
llama() { hf llama "$1" "$2" "$3" "$4" 3 ""; }
mixtral() { hf mixtral "$1" "$2" "$3" "$4" 2 ", \"num_local_experts\": 4, \"num_experts_per_tok\": 2"; }
family=gpt2 ranks=1 # of the rows that follow
batch() { echo "train_batch_size=$1 train_micro_batch_size_per_gpu=$2 data.seq_length=$3"; }

# FILE and what the run has beside its shape: a machine's file with what codelets reach now, by the shapes of other models.
# shellcheck disable=SC2046
calibrate() {
    local file=$1
    shift
    if [[ " $* " == *" memory.path="* ]]; then # beside a drive that is as busy: no weight stays in RAM
        "$tessera" bench "$($family 6 768 12 8192)" $(batch 2 2 512) --steps 2 --machine "$file" memory.cpu=320MiB "$@"
        "$tessera" bench "$($family 6 640 10 8192)" $(batch 4 2 256) --steps 2 --machine "$file" memory.cpu=240MiB "$@"
    else
        "$tessera" bench "$($family 2 768 12 8192)" $(batch 2 2 512) --steps 2 --machine "$file" "$@"
        "$tessera" bench "$($family 2 640 10 4096)" $(batch 4 4 256) --steps 2 --machine "$file" "$@"
        "$tessera" bench "$($family 2 1152 18 16384)" $(batch 1 1 512) --steps 2 --machine "$file" "$@"
        "$tessera" bench "$($family 2 896 14 32768)" $(batch 2 1 256) --steps 2 --machine "$file" "$@"
        "$tessera" bench "$($family 2 640 10 4096)" $(batch 1 1 1024) --steps 2 --machine "$file" "$@"
    fi >bench.txt
    "$tessera" info --machine "$file" >info.txt # a plan goes by what runs reached, which the last one may have changed
}
"$tessera" info --machine plain.json >info.txt
echo "{}" >run.json

number=0
compare() { # NAME TOKENS SHAPE, and what the calibration has as well: SETTING... / CAP
    local name=$1 tokens=$2 shape=$3 cap=$4
    shift 4
    number=$((number + 1))
    [[ $rows == "  " || $rows == *" $number "* ]] || return 0
    rm -f turns.txt said.txt
    for ((turn = 1; turn <= turns; turn++)); do
        # A drive that others use too gives a third or three times as much an hour later.
        [[ " $* " != *" memory.path="* ]] || "$tessera" info --again --machine plain.json >info.txt
        cp plain.json here.json
        calibrate here.json "$@"
        # shellcheck disable=SC2046
        [ $ranks = 1 ] || mpirun --oversubscribe -n $ranks "$tessera" bench "$($family 4 640 10 4096)" $(batch 4 1 256) --steps 3 --machine here.json "$@" >bench.txt
        # shellcheck disable=SC2086
        $([ $ranks = 1 ] || echo mpirun --oversubscribe -n $ranks) "$tessera" bench "${models[$number]}" $shape $cap "$@" --steps 3 >real.txt
        awk -v tokens="$tokens" '
            / tokens\/s, / { real = tokens / $1 }
            /^disk: / { disk = $2 }
            /^codelet/ { table = 1; next }
            /^a step of/ { table = 0; if (match($0, /idle [0-9.]+/)) idle = substr($0, RSTART + 5, RLENGTH - 5) }
            table { tasks += $3 }
            END { printf "%s %d %s %.0f\n", real, tasks, idle, disk }' real.txt >>turns.txt
        # shellcheck disable=SC2086
        "$tessera" simulate run.json --machine here.json --ranks-per-node $ranks --steps 3 "${models[$number]}" $shape $cap "$@" 2>/dev/null | awk '
            /^step / { said = $2 }
            /^tasks / { count = $2 }
            /^cores / { if (match($0, /idle [0-9.]+/)) idle = substr($0, RSTART + 5, RLENGTH - 5) }
            /^disk / { moved = ($3 + $6) / 3 }
            END { printf "%s %d %s %.0f\n", said, count, idle, moved }' >>said.txt
    done
    awk -v name="$name" '
        FNR == 1 { file++ }
        { each[file] = each[file] sprintf(" %.3f", $1); turn[file, FNR] = $1; turns = FNR }
        function median(file) { return (turn[file, int((turns + 1) / 2)] + turn[file, int((turns + 2) / 2)]) / 2 }
        FNR == 1 { seconds[file] = $1; tasks[file] = $2; idle[file] = $3; disk[file] = $4 }
        END {
            ratio = seconds[2] / seconds[1]
            middle = median(2) / median(1)
            printf "%-44s %9.3f %9.3f %7.3f %7.3f %6d %6d %6.1f%% %6.1f%%", name, seconds[1], seconds[2], ratio, middle, tasks[1],
                tasks[2], idle[1], idle[2]
            if (disk[1]) printf "  disk %.0f %.0f", disk[1], disk[2]
            printf "  turns%s, said%s\n", each[1], each[2]
            print ratio, middle >>"all.txt"
            printf "%.3f\n%.3f\n%.3f\n%.3f\n%d\n%d\n%.1f%%\n%.1f%%\n", seconds[1], seconds[2], ratio, middle, tasks[1], tasks[2],
                idle[1], idle[2] >"row.txt"
            print (disk[1] ? sprintf("%.0f\n%.0f", disk[1], disk[2]) : "\n") >"row.txt"
        }' <(sort -g turns.txt) <(sort -g said.txt)
    mapfile -t row <row.txt
    "$record" simulate "simulate.sh BUILD $turns" "$name" -- "${row[@]}"
}
printf '%-44s %9s %9s %7s %7s %13s %7s %7s\n' "" "real s" "said s" "ratio" "medians" "tasks" "idle" "said"
models=("" "$(gpt2 4 768 12 8192)" "$(gpt2 6 512 8 8192)" "$(gpt2 3 1280 20 8192)" "$(gpt2 8 768 12 8192)" "$(gpt2 4 1024 16)"
    "$(gpt2 4 1024 16 8192)" "$(gpt2 12 512 8 8192)" "$(llama 6 768 12 8192)" "$(mixtral 4 512 8 8192)" "$(gpt2 4 1024 16 8192)"
    "$(gpt2 6 768 12 8192)" "$(gpt2 8 512 8 8192)")
compare "GPT-2, 4 layers of 768, 2 x 512" 1024 "$(batch 2 2 512)" "" gradient_clipping=1
compare "GPT-2, 6 layers of 512, 4 x 256" 1024 "$(batch 4 4 256)" "" gradient_clipping=0
compare "GPT-2, 3 layers of 1280, 2 x 512, 2 micro" 1024 "$(batch 2 1 512)" "" gradient_clipping=1
compare "GPT-2, 8 layers of 768, bf16" 1024 "$(batch 1 1 1024)" "" gradient_clipping=0 bf16.enabled=true
compare "GPT-2, 4 layers of 1024, 50257 tokens" 512 "$(batch 2 1 256)" "" gradient_clipping=1
compare "4 layers of 1024 below 300 MiB, on disk" 1024 "$(batch 4 2 256)" memory.cpu=300MiB gradient_clipping=1 memory.path=disk
compare "12 layers of 512 below 250 MiB, on disk" 1024 "$(batch 4 4 256)" memory.cpu=250MiB gradient_clipping=0 memory.path=disk
family=llama
compare "Llama, 6 layers of 768, 2 x 512" 1024 "$(batch 2 2 512)" "" gradient_clipping=1
family=mixtral
compare "Mixtral, 4 layers of 512, 4 x 256" 1024 "$(batch 4 4 256)" "" gradient_clipping=1
family=gpt2 ranks=2
compare "4 layers of 1024 on 2 ranks, stage 1" 1024 "$(batch 4 2 256)" zero_optimization.stage=1 gradient_clipping=1
compare "6 layers of 768, tensor 2" 1024 "$(batch 4 4 256)" parallel.tensor=2 gradient_clipping=1
compare "8 layers of 512, pipeline 2, 4 micro" 1024 "$(batch 4 1 256)" parallel.pipeline=2 gradient_clipping=1
awk 'function apart(ratio) { return ratio < 1 ? 1 - ratio : ratio - 1 }
     { for (i = 1; i <= 2; i++) { d = apart($i); sum[i] += d; if (d > most[i]) most[i] = d } }
     END { printf "apart: %.1f%% in the mean, %.1f%% at most; medians %.1f%% and %.1f%%\n", 100 * sum[1] / NR, 100 * most[1],
               100 * sum[2] / NR, 100 * most[2] }' all.txt
