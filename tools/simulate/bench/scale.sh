#!/bin/bash
# Which placement trains what on how many H100s, by tessera simulate. Each row is added to results/scale.tsv;
# results/simulated.md has a table of them.
#
#     tools/simulate/bench/scale.sh [BUILD [ROW ...]]       ROWs such as 70b-8; all of them take an hour, and the found-ROWs more
#     tools/simulate/bench/scale.sh [BUILD [found-ROW ...]]
#
# The latter have tessera place look for a placement from nothing, and set what it finds beside the best of the ROW's in
# results/scale.tsv, both by tessera estimate: a row of results/found.tsv, some ten minutes each.
. "$(dirname "$0")/law.sh"
echo '{"bf16": {"enabled": true}, "activation_checkpointing": {"enabled": true}, "data": {"seq_length": 4096}}' >run.json
llama() { # LAYERS WIDTH INNER HEADS KV
    echo "model={\"model_type\": \"llama\", \"hidden_size\": $2, \"intermediate_size\": $3, \"num_attention_heads\": $4, \"num_key_value_heads\": $5, \"num_hidden_layers\": $1, \"vocab_size\": 128256, \"max_position_embeddings\": 8192, \"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000, \"hidden_act\": \"silu\"}"
}
declare -A model=([70b]="$(llama 80 8192 28672 64 8)" [405b]="$(llama 126 16384 53248 128 8)")

# MODEL NODES TENSOR PIPELINE MICRO [SETTING...] SEQUENCES: seconds a step; the rest of what is said stays in said.txt
step() {
    local of=$1 nodes=$2 tensor=$3 pipeline=$4 micro=$5 sequences=${!#}
    simulated dgx-h100 "$nodes" "$tensor" "$pipeline" "$micro" "$sequences" --fold auto "${model[$of]}" "${@:6:$#-6}" ||
        { tail -n 1 error.txt; return 1; }
}
printf '%-10s %5s  %-44s %6s %11s %10s %6s %9s %9s %7s\n' model GPUs placement micro "s a step" tokens/s MFU GPU RAM "took s"
# MODEL NODES TENSOR PIPELINE MICRO SEQUENCES [SETTING...]
row() {
    local of=$1 nodes=$2 tensor=$3 pipeline=$4 micro=$5 sequences=$6 began=$SECONDS seconds said
    shift 6
    local gpus=$((8 * nodes)) data=$((8 * nodes / tensor / pipeline)) name
    asked_for "$of-$gpus" || return 0
    name="data $data, tensor $tensor, pipeline $pipeline${*:+, ${*//zero_optimization./}}"
    seconds=$(law "$data" "$micro" "$pipeline" "$sequences" step "$of" "$nodes" "$tensor" "$pipeline" "$micro" "$@") ||
        { printf '%-10s %5d  %-44s %s\n' "$of" $gpus "$name" "$seconds"; return 0; }
    awk -v of="$of" -v gpus=$gpus -v name="$name" -v micro="$micro" -v said="$seconds" -v batch="$sequences" -v took=$((SECONDS - began)) '
        function held() { return match($0, /\([0-9.]+ [KMGT]iB\)/) ? substr($0, RSTART + 1, RLENGTH - 2) : "-" }
        /^step / { rate = $4; mfu = $8 + 0 }
        /^RAM / { ram = held() }
        /^GPU / { gpu = held() }
        END {
            split(said, s, " ")
            all = batch * 4096
            printf "%-10s %5d  %-44s %6d %10.2f%1s %10.0f %5.1f%% %9s %9s %7d\n", of, gpus, name, micro, s[1], s[2], all / s[1],
                mfu * (all / s[1]) / rate, gpu, ram, took
            printf "%.2f%s\t%.0f\t%.1f%%\t%s\t%s\n", s[1], s[2] ? " " s[2] : "", all / s[1], mfu * (all / s[1]) / rate, gpu, ram >"row.txt" }' said.txt
    mapfile -t said < <(tr '\t' '\n' <row.txt)
    "$here/../../../tests/bench/record.sh" scale "scale.sh BUILD $of-$gpus" "$of" "$gpus" "$sequences" "$name" "$micro" -- "${said[@]}"
}
# 262,144 tokens a step on 8, a million or four on 64, 8 million on 512.
row 70b 1 1 1 2 64 zero_optimization.stage=3
row 70b 1 8 1 16 64
row 70b 1 2 1 4 64 zero_optimization.stage=3
row 70b 8 1 1 2 256 zero_optimization.stage=3
row 70b 8 8 1 4 256 zero_optimization.stage=1
row 70b 8 8 4 1 256 zero_optimization.stage=1
row 70b 8 4 4 1 256 zero_optimization.stage=1
row 70b 8 1 1 2 1024 zero_optimization.stage=3
row 70b 8 8 1 4 1024 zero_optimization.stage=1
row 70b 64 1 1 2 2048 zero_optimization.stage=3
row 70b 64 8 1 4 2048 zero_optimization.stage=1
row 70b 64 8 4 1 2048 zero_optimization.stage=1
row 405b 8 8 1 4 256 zero_optimization.stage=3
row 405b 8 8 8 1 256
row 405b 64 8 1 4 2048 zero_optimization.stage=3
row 405b 64 8 8 1 2048 zero_optimization.stage=1
row 405b 64 8 16 1 2048 zero_optimization.stage=1

estimated() { "$tessera" estimate run.json "${there[@]}" "$@" 2>error.txt | awk '/^time of a step/ { on = 1 } on && /^  in all/ { print $(NF - 1) }'; }
# MODEL NODES SEQUENCES
found() {
    local of=$1 gpus=$((8 * $2)) sequences=$3 began=$SECONDS line least='' best='' seconds took
    asked_for "found-$of-$gpus" || return 0
    local there=(--machine dgx-h100.json --nodes "$2" "${model[$of]}" train_batch_size="$sequences")
    "$tessera" place run.json "${there[@]}" >found.txt || { echo "$of on $gpus: nothing found"; return 0; }
    took=$((SECONDS - began))
    while IFS=$'\t' read -r -a line; do
        [[ ${line[0]} = "$of" && ${line[1]} = "$gpus" && ${line[2]} = "$sequences" ]] || continue
        local keys=(train_micro_batch_size_per_gpu="${line[4]}") word
        for word in ${line[3]//,/}; do
            case $word in
            tensor | pipeline) keys+=("parallel.$word=") ;;
            stage=*) keys+=("zero_optimization.$word") ;;
            [0-9]*) [[ ${keys[-1]} != *= ]] || keys[-1]+=$word ;;
            esac
        done
        seconds=$(estimated "${keys[@]}")
        if [ "$seconds" ] && awk "BEGIN { exit !(\"$least\" == \"\" || $seconds < \"$least\" + 0) }"; then least=$seconds best=${line[3]}; fi
    done <"$here/../../../tests/bench/results/scale.tsv"
    line=$(sed -n 's/^best *//p' found.txt)
    seconds=$(sed 's/.*: \([0-9.]*\) s, .*/\1/' <<<"$line")
    local times
    times=$(awk "BEGIN { printf \"%.2f\", $least / $seconds }")
    echo "$of on $gpus, $sequences: ${line%%:*}: $seconds s, beside $least s of $best: $times times as fast, found in $took s"
    "$here/../../../tests/bench/record.sh" found "scale.sh BUILD found-$of-$gpus" "$of" "$gpus" "$sequences" -- "${line%%:*}" \
        "$(printf %.1f "$seconds")" "$best" "$(printf %.1f "$least")" "$times" "$took"
}
found 70b 1 64
found 70b 8 256
found 70b 8 1024
found 405b 8 256
found 405b 64 2048
