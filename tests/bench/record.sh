#!/bin/bash
# Adds a row to tests/bench/results/NAME.tsv, or to a copy of it in $RESULTS: what was run, on which machine, when, by which
# command, and what came out. Benchmarks call it; tests/bench/table.sh makes the tables of docs/ of these files.
#
#     tests/bench/record.sh NAME COMMAND KEY... -- FIGURE...
#
# The first line of the file names its columns: the KEYs, machine, date, command, the FIGUREs. MACHINE is set where it is not
# this one, as in simulations.
set -eu -o pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/results
name=$1 command=$2
shift 2
file=${RESULTS:-$here}/$name.tsv
[ -e "$file" ] || head -n 1 "$here/$name.tsv" >"$file"

machine() {
    local kind word
    kind=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
    for word in EPYC Ryzen Xeon; do [[ $kind != *$word* ]] || kind=$word; done
    for word in 'amx_bf16 AMX' 'avx512_bf16 AVX-512 bf16' 'avx512f AVX-512' 'avx2 AVX2'; do
        grep -qw "${word%% *}" /proc/cpuinfo && { kind+=", ${word#* }"; break; }
    done
    kind+=${TESSERA_MAX_CPU_ISA:+ capped to $TESSERA_MAX_CPU_ISA}
    echo "$(nproc) cores $kind$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort | uniq -c | sed 's/^ */, /')"
}

row=() behind=0
for field; do
    if [ "$field" = -- ] && [ $behind = 0 ]; then
        behind=1
        row+=("${MACHINE:-$(machine)}" "$(date +%F)" "$command")
    else
        row+=("${field//$'\t'/ }")
    fi
done
columns=$(head -n 1 "$file" | awk -F '\t' '{ print NF }')
[ ${#row[@]} = "$columns" ] || { echo "record.sh: $file: ${#row[@]} fields, expected $columns" >&2; exit 1; }
(IFS=$'\t' && echo "${row[*]}") >>"$file"
