#!/bin/bash
# Draws docs/pictures/speed.svg, the chart of the README, from rows of tests/bench/results/beside.tsv.
#
#     tests/bench/chart.sh [check]        check: writes nothing, and fails where the picture is not what the rows say
set -eu -o pipefail
cd "$(dirname "$0")/../.."
picture=docs/pictures/speed.svg
new=$(mktemp)
trap 'rm -f "$new"' EXIT

awk -F '\t' '
    # Keeps the last row that a command left on the machine of the chart.
    FNR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    $at["machine"] == "2 cores EPYC, AVX-512 bf16" && $at["command"] ~ / bf16$/ { ram = $0 }
    $at["machine"] == "2 cores EPYC, AVX-512 bf16" && $at["command"] ~ / deepspeed-quarter$/ { drive = $0 }

    function bar(kind, name, value, unit, scale) {
        printf "  <text x=\"236\" y=\"%d\" text-anchor=\"end\">%s</text>\n", y + 16, name
        printf "  <rect class=\"%s\" x=\"248\" y=\"%d\" width=\"%.0f\" height=\"22\" rx=\"3\"/>\n", kind, y, value * scale
        printf "  <text x=\"%.0f\" y=\"%d\">%d %s</text>\n", 256 + value * scale, y + 16, value, unit
        y += 28
    }
    function group(text) {
        y += 14
        printf "  <text class=\"head\" x=\"24\" y=\"%d\">%s</text>\n", y + 14, text
        y += 24
    }
    END {
        if (ram == "" || drive == "") { print "beside.tsv: a row of the chart is missing" >"/dev/stderr"; exit 1 }
        split(ram, a, "\t")
        split(drive, b, "\t")
        print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 780 350\" width=\"780\" height=\"350\" role=\"img\">"
        print "  <title>GPT-2 124M: Tessera beside PyTorch and DeepSpeed</title>"
        printf "  <desc>In RAM: Tessera %d, PyTorch %d tokens a second. States on a drive: Tessera %d, DeepSpeed %d tokens a second, in %d and %d MiB.</desc>\n",
            a[at["tokens/s"]], a[at["their tokens/s"]], b[at["tokens/s"]], b[at["their tokens/s"]], b[at["peak MiB"]], b[at["their MiB"]]
        print "  <style>"
        print "    text { font: 14px sans-serif; fill: #1f2933 }"
        print "    .head { font-weight: bold }"
        print "    .soft { fill: #56636f; font-size: 12px }"
        print "    .bg { fill: #fff }"
        print "    .ours { fill: #2f74c0 }"
        print "    .theirs { fill: #9aa5b1 }"
        print "    @media (prefers-color-scheme: dark) {"
        print "      text { fill: #e4e9ee }"
        print "      .soft { fill: #a6b2be }"
        print "      .bg { fill: #14191f }"
        print "      .theirs { fill: #66727e }"
        print "    }"
        print "  </style>"
        print "  <rect class=\"bg\" width=\"780\" height=\"350\" rx=\"8\"/>"
        y = 4
        group("Everything in RAM: tokens a second")
        bar("ours", "Tessera", a[at["tokens/s"]], "", 0.5)
        bar("theirs", "PyTorch 2.15", a[at["their tokens/s"]], "", 0.5)
        group("States on a drive, RAM for a quarter of them: tokens a second")
        bar("ours", "Tessera", b[at["tokens/s"]], "", 0.5)
        bar("theirs", "DeepSpeed 0.19.8, ZeRO-3", b[at["their tokens/s"]], "", 0.5)
        group("Memory of the same two runs")
        bar("ours", "Tessera", b[at["peak MiB"]], "MiB", 0.09)
        bar("theirs", "DeepSpeed 0.19.8, ZeRO-3", b[at["their MiB"]], "MiB", 0.09)
        printf "  <text class=\"soft\" x=\"24\" y=\"%d\">GPT-2 124M, bf16, 4 x 1024 tokens a step. %s, %s.</text>\n", y + 22, a[at["machine"]], a[at["date"]]
        if (a[at["beside"]] !~ /kept/) printf "  <text class=\"soft\" x=\"24\" y=\"%d\">PyTorch as it comes; with glibc told to keep its memory, 1.6 times are left (docs/speed.md).</text>\n", y + 42
        print "</svg>"
    }' tests/bench/results/beside.tsv >"$new"
if [ "${1:-}" = check ]; then
    cmp -s "$picture" "$new" || { echo "$picture is not what beside.tsv says: tests/bench/chart.sh draws it" >&2; exit 1; }
else
    cat "$new" >"$picture"
fi
