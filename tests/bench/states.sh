#!/bin/bash
# The same training with moments in fp32, bf16 and 8 bits, side by side: a GPT-2 of 4.9M parameters on the text of docs/demo, its states on
# disk. The loss on held-out text after each quarter, the bytes of moments, what a step moves from and to the disk, tokens/s.
# Each row is added to results/states.tsv. With a third argument also `tessera bench` of GPT-2 124M in bf16 under a quarter of its states, in turns.
#
#     tests/bench/states.sh [BUILD DIR [STEPS [124m]]]        from the root of the repository
set -eu
tessera=$(realpath "${1:-build}/tools/tessera") steps=${2:-400} large=${3:-}
work=$(mktemp -d ./states-XXXXXX)
trap 'rm -rf "$work"' EXIT
model='model={"model_type": "gpt2", "vocab_size": 256, "n_positions": 128, "n_embd": 256, "n_layer": 6, "n_head": 4, "initializer_range": 0.05, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "bos_token_id": null, "eos_token_id": null}'
printf '%-6s %-38s %-20s %10s %14s %10s\n' states "loss on held-out text, by quarters" "train, last 20 steps" moments 'disk a step' tokens/s
for states in fp32 bf16 8bit; do
    run=(docs/demo/run.json "$model" "optimizer_states=$states" "output=$work/$states" "checkpoint.dir=$work/$states/checkpoint" "steps=$steps"
        "eval_every=$((steps / 4))" log_every=1000 memory.cpu=64MiB "memory.path=$work"
        zero_optimization.offload_optimizer.device=nvme)
    moments=$("$tessera" estimate "${run[@]}" | sed -n 's/^ *moments[^0-9]* \([0-9.]* [KMG]iB\).*/\1/p' | head -1)
    "$tessera" train "${run[@]}" >"$work/log" 2>&1 || { tail -1 "$work/log"; exit 1; }
    awk -v states="$states" -v moments="$moments" -v steps="$steps" '
        function of(name, from) {
            if (!match(from, "\"" name "\": *[-0-9.e+]+")) return 0
            return substr(from, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0
        }
        { n++; if ($0 ~ /valid_loss/) curve = curve sprintf(" %.4f", of("valid_loss", $0))
          if (n > steps - 20) last += of("loss", $0) / 20
          disk = $0; sub(/.*"disk"/, "", disk); moved += of("read_bytes", disk) + of("write_bytes", disk)
          rate[n] = of("tokens_per_s", $0) }
        END { for (i = 1; i <= n; i++) for (j = i; j > 1 && rate[j - 1] > rate[j]; j--) { t = rate[j]; rate[j] = rate[j - 1]; rate[j - 1] = t }
              printf "%-6s\t%-38s\t%-20.4f\t%10s\t%10.1f MiB\t%10.0f\n", states, curve, last, moments, moved / n / 1048576, rate[int((n + 1) / 2)] }' \
        "$work/$states/metrics.jsonl" | tee "$work/row"
    IFS=$'\t' read -r _ curve last moments moved rate < <(sed 's/ *\t */\t/g' "$work/row")
    "$(dirname "$0")/record.sh" states "states.sh BUILD $steps" $states "$steps" -- "${curve# }" "$last" "$moments" "$moved" "$rate"
done
[ "$large" ] || exit 0
echo
cap=$((124439808 * 14 / 4 / 1048576))
printf 'GPT-2 124M in bf16, memory.cpu %d MiB\n%-6s %9s %14s\n' "$cap" states tokens/s 'disk a step'
for _ in 1 2; do
    for states in fp32 bf16 8bit; do
        out=$("$tessera" bench bf16.enabled=true --steps 3 "optimizer_states=$states" "memory.cpu=${cap}MiB" "memory.path=$work" 2>&1)
        printf '%-6s %9s %14s\n' "$states" "$(sed -n 's/^\([0-9]*\) tokens.*/\1/p' <<<"$out")" \
            "$(sed -n 's/^disk: [0-9]* bytes a step (\([^)]*\));.*/\1/p' <<<"$out")"
    done
done
