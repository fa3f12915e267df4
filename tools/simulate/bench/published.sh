#!/bin/bash
# What tessera simulate and tessera estimate say of runs that others have published, beside what they said. Nothing here is
# fitted to their figures: machines are those of machines/, and batches and placements those of the papers where they say
# them. results/simulated.md explains what is apart. Each row is added to results/papers.tsv, one line for each figure, with the
# numbers that no source says and why it differs; runs are also in results/published.tsv, and what tessera estimate says of
# what is simulated in results/estimates.tsv.
#
#     tools/simulate/bench/published.sh [BUILD [ROW ...]]       ROWs such as megatron-145b; most take a minute, the largest some ten
#
# Flops are reckoned as the papers do, with those of the forward pass that is computed again. A pipeline's step is a line
# in its micro-batches once it is full: where there are many, two steps with fewer say which (marked ~).
# "In turns" is what would be if nothing overlapped, as in Megatron's program of 2021 (all-reduces on the stream that computes,
# gradients after the backward pass): a rank's time on its GPU, on its links to others and on the network one after the
# other, and of a pipeline longer by its bubble on paper.
#
# LONG=1 simulates what takes longer than minutes, and is estimated else.
#
# AS=theirs: as those programs computed. Attention wrote its scores to the GPU's memory and read them again; of a block all
# was computed again but its input (activation_checkpointing.keep_more); and there was dropout of a tenth.
. "$(dirname "$0")/law.sh"
ESTIMATES=${ESTIMATES-1}
more=true
[ "${AS:-}" != theirs ] || more=false drop=0.1
echo "{\"bf16\": {\"enabled\": true}, \"activation_checkpointing\": {\"enabled\": true, \"keep_more\": $more}}" >run.json

# One V100 of a DGX-2 with all of its RAM, and four of them.
sed -e 's/"count": 16/"count": 1/' -e 's/"rails": 8/"rails": 1/' -e 's/, "gpus": 4}/}/' dgx2-v100.json >v100.json
sed -e 's/"count": 16/"count": 4/' -e 's/"rails": 8/"rails": 2/' dgx2-v100.json >v100x4.json

# MACHINE HEAD TOKENS: a copy of the machine in which attention takes longer by what its scores would take on their way to
# the memory and back: tokens x tokens numbers of two bytes a head and sequence, 6 times forward and 9 times backward, at four
# fifths of the memory's rate.
scores_in_memory() {
    awk -v d="$2" -v T="$3" '
        function value(line, key) { return substr(line, index(line, key) + length(key)) + 0 }
        function share(flops, times) { return flops / rate / (flops / rate / 0.8 + times * 2 * T * T / (0.8 * memory)) }
        /"gpus": [{]/ { inside = 1 }
        inside && /"copy_gb_s"/ { memory = value($0, "\"copy_gb_s\": ") * 1e9 }
        { line[NR] = $0 }
        inside && /"matrix_gflops"/ { rate = value($0, "\"bf16\": ") * 1e9; at = NR; inside = 0 }
        END {
            forward = 2 * T * (T + 1) * d # of the pairs that see each other
            for (i = 1; i <= NR; i++) {
                print line[i]
                if (i == at) printf "        \"shares\": {\"attention_forward bf16\": %.4f, \"attention_backward bf16\": %.4f},\n",
                    share(forward, 6), share(2.5 * forward, 9)
            }
        }' "$1.json" >"$1-scores.json"
}

# gpt, and with AS=theirs on such a machine.
step() {
    local machine=$1
    [ "${AS:-}" != theirs ] || { scores_in_memory "$1" $(($5 / $6)) "$7" && machine+=-scores; }
    gpt "$machine" "${@:2}"
}

# estimated MACHINE NODES RANKS-PER-NODE LAYERS WIDTH HEADS TOKENS MICRO SETTING...: what is said is in said.txt.
estimated() {
    local data=$(($2 * $3)) divisor=1 word
    for word in "${@:9}"; do [[ $word != parallel.tensor=* && $word != parallel.pipeline=* ]] || divisor=$((divisor * ${word#*=})); done
    "$tessera" estimate run.json --machine "$1.json" --nodes "$2" --ranks-per-node "$3" ${must_fit:+--fits} \
        "model={\"model_type\": \"gpt2\", \"n_layer\": $4, \"n_embd\": $5, \"n_head\": $6, \"vocab_size\": 51200, \"n_positions\": $7, \"resid_pdrop\": ${drop:-0}, \"embd_pdrop\": ${drop:-0}, \"attn_pdrop\": ${drop:-0}}" \
        data.seq_length="$7" train_micro_batch_size_per_gpu="$8" train_batch_size=$(($8 * data / divisor * ${micros:-1})) "${@:9}" >said.txt 2>error.txt
}
# As step, by tessera estimate: for pipelines that take longer to simulate than anybody waits.
step_estimated() {
    local machine=$1
    [ "${AS:-}" != theirs ] || { scores_in_memory "$1" $(($5 / $6)) "$7" && machine+=-scores; }
    micros=$((${!#} / ${10} / ($2 * $3 / $8 / $9))) estimated "$machine" "$2" "$3" "$4" "$5" "$6" "$7" "${10}" \
        parallel.tensor="$8" parallel.pipeline="$9" "${@:11:$#-11}" || { tail -n 1 error.txt >&2; return 1; }
    awk -v p="$9" -v m=$((${!#} / ${10} / ($2 * $3 / $8 / $9))) -v v="$(sed -n 's/.*parallel.interleave=\([0-9]*\).*/\1/p' <<<"$*")" \
        'BEGIN { printf "bubble on paper %.2f%%\n", 100 * (p - 1) / m / (v ? v : 1) }' >>said.txt
    awk '/^time of a step/ { on = 1 } on && /^  in all/ { print $(NF - 1) }' said.txt
}

# PIPELINE: how many times as long as the last step simulated, or estimated, it would take in turns; nothing of what comes
# from a drive, nor of one GPU.
in_turns() {
    awk -v pipeline="$1" '
        /^disk / || /reading from the drive/ { drive = 1 }
        /^step / { step = $2 }
        /^time of a step/ { on = 1 }
        on && /^  in all/ { step = $(NF - 1) }
        on && /the GPU at work|messages to other ranks/ { all += $(NF - 1) }
        on && /messages to other ranks/ { others = 1 }
        /^bubble / { match($0, /on paper [0-9.]+/); bubble = substr($0, RSTART + 9, RLENGTH - 9) / 100 }
        /^bound / {
            n = split($0, part, ",")
            for (i = 1; i <= n; i++) if (part[i] ~ /on the (GPUs|links between GPUs|network) alone/) {
                sub(/^bound/, "", part[i])
                others += part[i] ~ /network|between/
                all += part[i]
            }
        }
        END { if (all && others && !drive) print all * (1 + bubble) / step }' said.txt
}

# NAME WHAT PUBLISHED OURS TIMES: a line of papers.tsv; "$free" is what no source says, "$why" why it differs.
paper() {
    "$here/../../../tests/bench/record.sh" papers "${AS:+AS=$AS }published.sh BUILD $1" "$2" -- "$3" "$4" "$5" "$free" "$why"
    printf '%-60s published %-22s ours %-22s %s\n' "$2" "$3" "$4" "$5"
}

printf '%-22s %6s %10s %12s %12s %7s %12s %7s %9s\n' run GPUs "s a step" "simulated" "published" ratio "in turns" ratio "took s"
# NAME PUBLISHED (TFLOP/s a GPU) MACHINE NODES RANKS-PER-NODE LAYERS WIDTH HEADS TOKENS TENSOR PIPELINE SEQUENCES MICRO ...
row() {
    local name=$1 published=$2 machine=$3 nodes=$4 ranks=$5 layers=$6 width=$7 heads=$8 tokens=$9 began=$SECONDS seconds chunks said
    shift 9
    local tensor=$1 pipeline=$2 sequences=$3 micro=$4 gpus=$((nodes * ranks))
    shift 4
    asked_for "$name" || return 0
    if [ "${by:-}" = estimate ] && [ -z "${LONG:-}" ]; then
        seconds="$(step_estimated "$machine" "$nodes" "$ranks" "$layers" "$width" "$heads" "$tokens" "$tensor" "$pipeline" "$micro" "$@" "$sequences") ~" || return 0
    else
        seconds=$(law $((gpus / tensor / pipeline)) "$micro" "$pipeline" "$sequences" \
            step "$machine" "$nodes" "$ranks" "$layers" "$width" "$heads" "$tokens" "$tensor" "$pipeline" "$micro" "$@") || return 0
    fi
    chunks=1
    [[ "$*" != *parallel.interleave=* ]] || chunks=${*##*parallel.interleave=}
    awk -v name="$name" -v gpus=$gpus -v said="$seconds" -v p="$published" -v took=$((SECONDS - began)) -v longer="$(in_turns "$pipeline")" \
        -v f="$(tflops $gpus "$layers" "$width" "$tokens" "$sequences" "${seconds% ~}")" 'BEGIN {
        split(said, s, " ")
        turns = longer ? sprintf("%4.0f TFLOP/s %7.2f", f / longer, f / p / longer) : ""
        printf "%-22s %6d %9.3f%1s %4.0f TFLOP/s %4.0f TFLOP/s %7.2f %20s %9d\n", name, gpus, s[1], s[2], f, p, f / p, turns, took
        printf "%.3f\t%.0f%s\t%.2f\t%s\t%s\n", s[1], f, s[2] ? " " s[2] : "", f / p, longer ? sprintf("%.0f", f / longer) : "",
            longer ? sprintf("%.2f", f / p / longer) : "" >"row.txt" }'
    mapfile -t said < <(tr '\t' '\n' <row.txt)
    [ -n "${AS:-}" ] ||
        paper "$name" "$name, $gpus GPU$([ $gpus = 1 ] || echo s)" "$published TFLOP/s a GPU" "${said[1]} TFLOP/s a GPU" "${said[2]}"
    "$here/../../../tests/bench/record.sh" published "${AS:+AS=$AS }published.sh BUILD $name" "$name" "${AS:-ours}" -- \
        "$gpus" "$tensor" "$pipeline" "$micro" "$chunks" "$published" "${said[@]}"
}
free=none why="attention on the chip, activations that are kept, and messages during the computation: see below"
# Narayanan et al. 2021, table 1 (images/cases_april2021.png of github.com/NVIDIA/Megatron-LM): TFLOP/s a GPU of A100s, 8 a
# node, HDR InfiniBand. Micro-batches and chunks of a stage are those of its examples/sc21/run_table_1.sh.
row megatron-1.7b 137 dgx-a100 4 8 24 2304 24 2048 1 1 512 16
row megatron-3.6b 138 dgx-a100 8 8 30 3072 32 2048 2 1 512 16
row megatron-7.5b 142 dgx-a100 16 8 36 4096 32 2048 4 1 512 16
row megatron-18b 135 dgx-a100 32 8 40 6144 48 2048 8 1 1024 8
row megatron-39b 138 dgx-a100 64 8 48 8192 64 2048 8 2 1536 4
row megatron-76b 140 dgx-a100 128 8 60 10240 80 2048 8 4 1792 2 parallel.interleave=3
row megatron-145b 148 dgx-a100 192 8 80 12288 96 2048 8 8 2304 2 parallel.interleave=2
row megatron-310b 155 dgx-a100 240 8 96 16384 128 2048 8 16 2160 1 parallel.interleave=2
by=estimate row megatron-530b 163 dgx-a100 315 8 105 20480 128 2048 8 35 2520 1 parallel.interleave=3
by=estimate row megatron-1t 163 dgx-a100 384 8 128 25600 160 2048 8 64 3072 1
free="layers, width, heads: quoted from memory"
# Megatron's on one V100 and on four of a DGX-2H, 8 sequences, 1.288 and 1.357 s a step (nv-adlr.github.io/MegatronLMV1);
# layers, width and heads are those of Shoeybi et al. 2019, quoted from memory. As TFLOP/s they count the forward pass twice.
row megatron-v100-1.2b 67.0 v100 1 1 40 1536 16 1024 1 1 8 8
row megatron-v100-4.2b 53.9 v100x4 1 4 64 2304 24 1024 4 1 8 8
# Shoeybi et al. 2019: 8.3B with 8 x 64 V100s of DGX-2Hs, 15.1 PFLOP/s, 76% of 39 TFLOP/s, that of 1.2B on one, each.
why="one step of one micro-batch: sums of gradients in fp32, 8 bytes a parameter over the network where it sent 4"
row megatron-v100-8.3b 29.5 dgx2-v100 32 16 72 3072 32 1024 8 1 512 8
# What a run of this name had at last, in TFLOP/s a GPU.
rate() { awk -F '\t' -v name="$1" -v as="${AS:-ours}" '$1 == name && $2 == as { r = $13 } END { print r + 0 }' "${RESULTS:-$here/results}/published.tsv"; }
# NAME WHAT PUBLISHED RUN OTHER: the rate of one by that of the other.
beside() {
    asked_for "$1" && [ -z "${AS:-}" ] || return 0
    paper "$1" "$2" "$3" "$(awk -v a="$(rate "$4")" -v b="$(rate "$5")" 'BEGIN { printf "%.2f", a / b }')" \
        "$(awk -v a="$(rate "$4")" -v b="$(rate "$5")" -v p="$3" 'BEGIN { printf "%.2f", a / b / p }')"
}
beside megatron-v100-scaling "8.3B on 512, a GPU's rate by that of 1.2B on one" 0.76 megatron-v100-8.3b megatron-v100-1.2b
# DeepSpeed's ZeRO-3 Offload on one V100 with 1.5 TB of RAM, read off figure 3 of docs/_posts/2021-03-08-zero3-offload.md
# (github.com/microsoft/DeepSpeed; 48.3, 47.1, 45.9, 43.4). Neither shapes nor batches are said: sequences of 1024 are assumed,
# and as many of them as the last number of a row's name says.
free="sequences (4), shapes" why="the number of sequences decides: 2 to 32 of them give half to twice the rate"
for batch in 4 2 8 32; do
    row zero3-offload-10b-$batch 48 v100 1 1 50 4096 32 1024 1 1 $batch $batch
    row zero3-offload-13b-$batch 47 v100 1 1 65 4096 32 1024 1 1 $batch $batch
    row zero3-offload-20b-$batch 46 v100 1 1 25 8192 64 1024 1 1 $batch $batch
    row zero3-offload-40b-$batch 43 v100 1 1 50 8192 64 1024 1 1 $batch $batch
done
# The same post: 13B by ZeRO-2 Offload is 2.3 times as slow. Plain data parallelism has 30 at its largest model.
free="sequences (4), shapes" why="stages are the same on one GPU, and where weights lie is the plan's to say"
row zero2-offload-13b-4 20.4 v100 1 1 65 4096 32 1024 1 1 4 4 zero_optimization.stage=2 zero_optimization.offload_optimizer.device=cpu
beside zero2-beside-zero3 "13B by ZeRO-3 Offload, of the rate by ZeRO-2 Offload" 2.3 zero3-offload-13b-4 zero2-offload-13b-4
free="layers, width, heads, sequences" why="attention on the chip, and sums of gradients during the backward pass"
row data-parallel-1.2b 30 dgx2-v100 1 16 40 1536 16 1024 1 1 64 4
# ZeRO-Infinity, 1T on DGX-2s, measured on the slides of SC21 (docs/assets/files/SC21-ZeRO-Infinity.pdf there, 15 and 16): 2.81
# PFLOP/s with 64 GPUs, 25.03 with 512. Layers, width, tensor parallelism of 4 and 5 sequences a GPU are quoted from memory of the
# paper, and not on the slides. Stage 3, all states on the nodes' drives.
free="layers, width, tensor, sequences: quoted from memory" why="gradients and updates go on while the GPU computes; one rank stands for 32"
infinity() { row "$@" zero_optimization.stage=3 zero_optimization.offload_optimizer.device=nvme zero_optimization.offload_param.device=nvme memory.path=nowhere; }
infinity infinity-1t-64 44 dgx2-v100 4 16 128 25600 160 1024 4 1 320 20
by=estimate infinity infinity-1t-512 49 dgx2-v100 32 16 128 25600 160 1024 4 1 2560 20
beside infinity-super-linear "1T by drives, a GPU's rate on 512 by that on 64" 1.11 infinity-1t-512 infinity-1t-64
# The same by RAM alone: the post on ZeRO-3 Offload above has 48.9 TFLOP/s a GPU for a trillion on 512.
by=estimate row offload-1t-512 49 dgx2-v100 32 16 128 25600 160 1024 4 1 2560 20 zero_optimization.stage=3 zero_optimization.offload_optimizer.device=cpu zero_optimization.offload_param.device=cpu
# ZeRO (Rajbhandari et al. 2020, figure 2, quoted from memory): 100B on 400 V100s with tensor 16, 38 TFLOP/s a GPU; here on
# 384, since 25 data ranks cannot be folded.
free="layers, width, sequences: quoted from memory; micro-batch" why="attention on the chip, activations that are kept, and messages during the computation; block inputs are shared out, as there"
row zero-100b-384 38 dgx2-v100 24 16 125 8192 64 1024 16 1 768 32 zero_optimization.stage=2 activation_checkpointing.partition_activations=true
# The same figure: 13B by 128 GPUs without tensor parallelism.
free="layers, width, sequences, published: quoted from memory" why="attention on the chip, and sums of gradients during the backward pass"
row zero-13b-128 40 dgx2-v100 8 16 62 4096 32 1024 1 1 256 2 zero_optimization.stage=2
# ZeRO-3 Offload's post has 200B faster than linear from 64 on.
free="shapes, sequences (8 a GPU)" why="a rank of 64 has states for fewer others to hide, by the same RAM a GPU"
for nodes in 4 32; do
    by=estimate row offload-200b-$((16 * nodes)) 50 dgx2-v100 $nodes 16 110 12288 96 1024 1 1 $((128 * nodes)) 8 zero_optimization.stage=3 zero_optimization.offload_optimizer.device=cpu zero_optimization.offload_param.device=cpu
done
beside offload-super-linear "200B by RAM, a GPU's rate on 512 by that on 64: more than" 1.00 offload-200b-512 offload-200b-64

# ---- what fits, by tessera estimate ----
[ -z "${AS:-}" ] || exit 0

parameters() { awk 'NR == 1 { print $1 }' said.txt; }
# The states of a rank in GB: all but activations of what tiles hold, wherever they are.
states() {
    awk '/^tiles, wherever/ { on = 1; next } /^[a-z]/ { on = 0 }
        on && /weights|masters|moments|gradients/ {
            unit = $NF == "TiB" ? 2^40 : $NF == "GiB" ? 2^30 : $NF == "MiB" ? 2^20 : 2^10
            sum += $(NF - 1) * unit
        }
        END { printf "%.1f", sum / 1e9 }' said.txt
}

# MACHINE NODES RANKS WIDTH HEADS TOKENS MICRO SETTING... LAYERS: whether such a model fits; with alone=1, on its GPUs alone; with
# pipelined=1, in a step of as many micro-batches as there are nodes, which are stages. Of blocks nothing is kept but what
# they read: more is kept where there is room alone, and to find how much takes several plans.
fits_with() {
    must_fit=1 micros=${pipelined:+$2} estimated "$1" "$2" "$3" "${!#}" "${@:4:$#-4}" activation_checkpointing.keep_more=false || return 1
    [ -z "${alone:-}" ] || on_gpus_alone
}
# NAME WHAT PUBLISHED (parameters; 0: none is) GUESS (layers) MACHINE...: the largest model, from a guess on.
fits() {
    local name=$1 what=$2 published=$3 layers
    asked_for "$name" || return 0
    layers=$(most "$4" fits_with "${@:5}")
    fits_with "${@:5}" "$layers" || { tail -n 1 error.txt; return 0; }
    paper "$name" "$what" "$([ "$published" = 0 ] || awk -v p="$published" 'BEGIN { printf "%.3g parameters", p }')" \
        "$(awk -v m="$(parameters)" 'BEGIN { printf "%.3g", m }') parameters" \
        "$([ "$published" = 0 ] || awk -v m="$(parameters)" -v p="$published" 'BEGIN { printf "%.2f", m / p }')"
}
# NAME WHAT PUBLISHED (GPUs; 0: none is) FROM TO (nodes) MACHINE RANKS LAYERS WIDTH HEADS TOKENS MICRO SETTING...: the fewest
# nodes; "NODES" among the settings stands for their number.
fewest() {
    local name=$1 what=$2 published=$3 low=$(($4 - 1)) high=$5 machine=$6 ranks=$7 layers=$8 at
    asked_for "$name" || return 0
    while [ $((high - low)) -gt 1 ]; do
        at=$(((low + high) / 2))
        if fits_with "$machine" $at "$ranks" "${@:9:4}" "${@:13}" ${pipelined:+parallel.pipeline=$at} "$layers"; then high=$at; else low=$at; fi
    done
    fits_with "$machine" "$high" "$ranks" "${@:9:4}" "${@:13}" ${pipelined:+parallel.pipeline=$high} "$layers" || { tail -n 1 error.txt; return 0; }
    paper "$name" "$what" "$([ "$published" = 0 ] || echo "$published GPUs")" "$((high * ranks)) GPUs" \
        "$([ "$published" = 0 ] || awk -v a=$((high * ranks)) -v b="$published" 'BEGIN { printf "%.2f", a / b }')"
}
nvme="zero_optimization.stage=3 zero_optimization.offload_optimizer.device=nvme zero_optimization.offload_param.device=nvme memory.path=nowhere"
ram="zero_optimization.stage=3 parallel.tensor=4"
rows=activation_checkpointing.partition_activations=true
# ZeRO-Infinity: the largest models, with all states on the nodes' drives, one sequence of 1024 a GPU. Of the largest a block is
# shared out within a machine, since no rank has room for a whole one's weights and gradients, and tiles are few.
free="width, sequences, tensor (16)" why="14 bytes a parameter at rest, where it has 16 and more; published is what was run"
# shellcheck disable=SC2086
{
    fits infinity-30t "largest on 512 V100s with drives" 30e12 480 dgx2-v100 32 16 102400 256 1024 1 $nvme parallel.tensor=16 tiles.elements=2147483648
    free="width, sequences"
    fits infinity-dgx2 "largest on a DGX-2 with drives" 1e12 256 dgx2-v100 1 16 25600 160 1024 1 $nvme
    fits infinity-v100 "largest on one V100 with drives" 175e9 256 v100 1 1 25600 160 1024 1 $nvme
    fits infinity-box "the same in a box with an RTX 4090, 64 GB and a drive of 2 TB" 175e9 66 box-24gb 1 1 12288 96 1024 1 $nvme
    # What 3D has room for there, which ZeRO-Infinity has 50 times of: 30T / 50.
    free="width, sequences, tensor (16)" why="18 bytes a parameter, gradients in fp32 among them; rows of norms and block inputs are shared out"
    alone=1 pipelined=1 fits 3d-512 "largest on 512 V100s by tensor x pipeline" 6e11 64 dgx2-v100 32 16 25600 160 1024 1 parallel.tensor=16 parallel.pipeline=32 $rows
    # ZeRO-3 Offload, by RAM alone: 40B on one V100, a trillion on 256, two on 512.
    free="width, sequences" why="18 bytes a parameter in RAM, gradients in fp32 among them"
    fits offload-40b "largest on one V100 with 1.5 TB of RAM" 40e9 92 v100 1 1 8192 64 1024 1
    fits offload-dgx2 "largest on a DGX-2 by RAM, with stage 3" 0 110 dgx2-v100 1 16 8192 64 1024 1 zero_optimization.stage=3
    fits offload-1t-256 "largest on 256 V100s by RAM" 1e12 140 dgx2-v100 16 16 25600 160 1024 1 $ram
    fits offload-2t-512 "largest on 512 V100s by RAM" 2e12 280 dgx2-v100 32 16 25600 160 1024 1 $ram
    # The fewest GPUs: for 3D as both announcements have them; for stage 3 alone no number was published.
    free="layers, width, sequences, tensor" why="stages of whole layers: 3 of V100s, 4 of A100s; published are round numbers"
    alone=1 pipelined=1 fewest 1t-3d-a100 "fewest A100s for 1T by tensor x pipeline" 320 24 48 dgx-a100 8 128 25600 160 1024 1 parallel.tensor=8 $rows
    alone=1 pipelined=1 fewest 1t-3d-v100 "fewest V100s for 1T by tensor x pipeline" 800 36 66 dgx2-v100 16 128 25600 160 1024 1 parallel.tensor=16 $rows
    alone=1 pipelined=1 fewest 2t-3d-v100 "fewest V100s for 2T by tensor x pipeline" 1600 72 130 dgx2-v100 16 254 25600 160 1024 1 parallel.tensor=16 $rows
    free="layers, width, sequences, tensor (16)" why="18 bytes a parameter, shared out"
    alone=1 fewest 1t-stage3-v100 "fewest V100s for 1T by stage 3 x tensor" 0 32 64 dgx2-v100 16 128 25600 160 1024 1 parallel.tensor=16 zero_optimization.stage=3 $rows
    alone=1 fewest 2t-stage3-v100 "fewest V100s for 2T by stage 3 x tensor" 0 70 128 dgx2-v100 16 254 25600 160 1024 1 parallel.tensor=16 zero_optimization.stage=3 $rows
    why="as the largest on so many; whole machines"
    fewest 1t-ram "fewest V100s for 1T by stage 3 with RAM" 256 8 18 dgx2-v100 16 128 25600 160 1024 1 $ram
    fewest 2t-ram "fewest V100s for 2T by stage 3 with RAM" 512 20 36 dgx2-v100 16 254 25600 160 1024 1 $ram
    fewest 1t-drives "fewest V100s for 1T by stage 3 with drives" 16 1 2 dgx2-v100 16 128 25600 160 1024 1 $nvme
    fewest 2t-drives "fewest V100s for 2T by stage 3 with drives" 32 1 3 dgx2-v100 16 254 25600 160 1024 1 $nvme
    # Models that go on training on one GPU: what an epoch of 10M tokens takes, 64 sequences of 1024 a step.
    tuned() { # NAME WHAT MACHINE LAYERS WIDTH HEADS SETTING...
        asked_for "$1" || return 0
        micros=8 estimated "$3" 1 1 "$4" "$5" "$6" 1024 8 "${@:7}" || { tail -n 1 error.txt; return 0; }
        paper "$1" "$2: a step of 65,536 tokens, an epoch of 10M" "" "$(awk '/^time of a step/ { on = 1 }
            on && /^  in all/ { printf "%.0f s, %.1f hours", $(NF - 1), 1e7 / 65536 * $(NF - 1) / 3600 }' said.txt)" ""
    }
    free="sequences (64, 8 at a time)" why="no time was published for one GPU"
    tuned tuned-13b "13B on one V100 with 1.5 TB of RAM" v100 40 5120 40
    tuned tuned-40b "40B on one V100 with 1.5 TB of RAM" v100 50 8192 64
    tuned tuned-175b "175B on one V100 with RAM and drives" v100 96 12288 96 $nvme
    tuned tuned-box "100B in a box with an RTX 4090 and a drive of 2 TB" box-24gb 55 12288 96 $nvme
    # Turing-NLG, quoted from memory: tensor parallelism of 4 with ZeRO, where it would have taken 16.
    if asked_for zero-17b; then
        free="layers, width, heads, sequences: quoted from memory" why="gradients and states are shared out, so that weights in bf16 alone are whole"
        for tensor in 1 2 4; do
            alone=1 fits_with dgx2-v100 16 16 4256 28 1024 8 zero_optimization.stage=1 parallel.tensor=$tensor 78 || continue
            paper zero-17b "17B on 256 V100s, least tensor parallelism" 4 $tensor "$(awk -v t=$tensor 'BEGIN { printf "%.2f", t / 4 }')"
            break
        done
    fi
}

# ZeRO, figure 1: states of 7.5B on 64 GPUs, in GB of a GPU, by stage; a machine with one GPU and much RAM for each rank.
free=none
zero_states() { # STAGE PUBLISHED
    asked_for "zero-states-$1" || return 0
    estimated v100 64 1 36 4096 32 1024 1 zero_optimization.stage="$1" || { tail -n 1 error.txt; return 0; }
    paper "zero-states-$1" "states of 7.5B on 64 GPUs, stage $1" "$2 GB" "$(states) GB" "$(awk -v a="$(states)" -v b="$2" 'BEGIN { printf "%.2f", a / b }')"
}
why="gradients are sums in fp32, 4 bytes where it has 2" zero_states 0 120
why="masters and moments are shared out, and gradients, too, as each is whole" zero_states 1 31.4
why="as stage 1" zero_states 2 16.6
why="gradients of a block, in fp32, wait for the other ranks" zero_states 3 1.9
sent() {
    estimated v100 64 1 36 4096 32 1024 1 zero_optimization.stage="$1" || return 1
    awk '/sent to other ranks/ { print $(NF - 1) * ($NF == "GiB" ? 1024 : 1) }' said.txt
}
if asked_for zero-sent && plain=$(sent 0) && shared=$(sent 3); then
    why="plain sums go there and back in fp32, 8 bytes a parameter; stage 3 gathers weights twice in bf16 and sends gradients once in fp32"
    paper zero-sent "what a GPU sends at stage 3, of plain data parallelism" 1.5 \
        "$(awk -v a="$shared" -v b="$plain" 'BEGIN { printf "%.2f", a / b }')" "$(awk -v a="$shared" -v b="$plain" 'BEGIN { printf "%.2f", a / b / 1.5 }')"
fi
