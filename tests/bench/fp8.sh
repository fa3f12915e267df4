#!/bin/bash
# The same training in bf16, with fp8.enabled and in fp32, at the same time: a GPT-2 of 31.6M parameters on the text of docs/demo, 2 x 128
# tokens a step. How far the losses of fp8, and those of fp32, are from those of bf16: of the last 20 steps, of any 20 in a row at most,
# on average over the single steps. A row for each of the two is added to results/fp8.tsv. On two cores it takes 20 minutes.
#
#     tests/bench/fp8.sh [BUILD DIR [STEPS]]        from the root of the repository
set -eu
tessera=$(realpath "${1:-build}/tools/tessera") steps=${2:-200}
work=$(mktemp -d ./fp8-XXXXXX)
trap 'rm -rf "$work"' EXIT
model='model={"model_type": "gpt2", "vocab_size": 256, "n_positions": 128, "n_embd": 512, "n_layer": 10, "n_head": 8, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "bos_token_id": null, "eos_token_id": null}'
train() { # NAME SETTING...
    STARPU_NCPU=$((($(nproc) + 1) / 2)) "$tessera" train docs/demo/run.json "$model" train_batch_size=2 steps="$steps" \
        optimizer.params.lr=6e-4 scheduler.params.warmup_num_steps=20 log_every=1000 eval_every=0 data.valid=null checkpoint.dir=null \
        checkpoint.every=0 memory.cpu=auto memory.path=null output="$work/$1" "${@:2}" >"$work/$1.log" 2>&1
}
train bf16 &
train fp8 fp8.enabled=true &
train fp32 bf16.enabled=false &
wait
for as in fp8 fp32; do
    row=$(awk -v steps="$steps" '
        FNR == 1 { run++ }
        match($0, /"loss": *[-0-9.e+]+/) {
            loss[run, FNR] = substr($0, RSTART + 7, RLENGTH - 7) + 0
            sum[run, FNR] = sum[run, FNR - 1] + loss[run, FNR]
            n[run] = FNR
        }
        function off(k, from) { return 100 * ((sum[2, k] - sum[2, from]) / (sum[1, k] - sum[1, from]) - 1) }
        function size(x) { return x < 0 ? -x : x }
        END {
            if (n[1] != steps || n[2] != steps) exit 1
            for (k = 1; k <= steps; k++) {
                each += size(off(k, k - 1)) / steps
                if (k >= 20 && size(off(k, k - 20)) > size(most)) most = off(k, k - 20)
            }
            printf "%.4f\t%.4f\t%+.2f\t%+.2f\t%+.2f\t%.2f\n", (sum[1, steps] - sum[1, steps - 20]) / 20,
                (sum[2, steps] - sum[2, steps - 20]) / 20, off(steps, steps - 20), off(steps, 0), most, each
        }' "$work/bf16/metrics.jsonl" "$work/$as/metrics.jsonl") || { tail -n 1 "$work"/*.log; exit 1; }
    IFS=$'\t' read -ra figure <<<"$row"
    echo "$as beside bf16: last 20 steps ${figure[1]} and ${figure[0]} (${figure[2]}%), all ${figure[3]}%, 20 in a row at most ${figure[4]}%, a step ${figure[5]}%"
    "$(dirname "$0")/record.sh" fp8 "fp8.sh BUILD $steps" $as "$steps" -- "${figure[@]}"
done
