#!/bin/bash
# Writes the tables of docs/ and of tests/bench/results/*.md from tests/bench/results/*.tsv. A line of a page such as
#
#     <!-- results tiers RAM~MiB: RAM | s a step | machine | date -->
#
# stands before the table: its file, which rows are meant (a column and what it matches; all if it is not said), and which
# columns. Of rows that are alike in all columns up to "machine" the last one counts, in the place of the first.
#
#     tests/bench/table.sh [check]        check: writes nothing, prints what differs, and fails if anything does
set -eu -o pipefail
cd "$(dirname "$0")/../.."
results=tests/bench/results
page() {
    awk -v results="$results" '
        function fail(why) { print FILENAME ":" FNR ": " why >"/dev/stderr"; failed = 1; exit 1 }
        function number_of(column, name) {
            if (!(column in at)) fail(name ".tsv has no column " column)
            return at[column]
        }
        function table(spec,   name, shown, n, k, file, line, field, count, keys, key, rows, place, cell, of, like, text) {
            sub(/^<!-- results /, "", spec)
            sub(/ -->$/, "", spec)
            n = split(substr(spec, index(spec, ": ") + 2), shown, / [|] /)
            spec = substr(spec, 1, index(spec, ": ") - 1)
            name = spec
            sub(/ .*/, "", name)
            file = results "/" name ".tsv"
            if ((getline line <file) <= 0) fail(file ": missing or empty")
            split("", at)
            count = split(line, field, "\t")
            for (k = 1; k <= count; k++) at[field[k]] = k
            keys = number_of("machine", name)
            if (spec ~ / /) {
                like = substr(spec, index(spec, " ") + 1)
                of = number_of(substr(like, 1, index(like, "~") - 1), name)
                like = substr(like, index(like, "~") + 1)
            }
            while ((getline line <file) > 0) {
                if (split(line, field, "\t") != count) fail(file ": a row of another length: " line)
                if (of && field[of] !~ like) continue
                key = ""
                for (k = 1; k <= keys; k++) key = key field[k] "\t"
                if (!(key in place)) place[key] = ++rows
                text = "|"
                for (k = 1; k <= n; k++) text = text " " field[number_of(shown[k], name)] " |"
                cell[place[key]] = text
            }
            close(file)
            text = line = "|"
            for (k = 1; k <= n; k++) { text = text " " shown[k] " |"; line = line "---|" }
            print text
            print line
            for (k = 1; k <= rows; k++) print cell[k]
        }
        /^<!-- results / { print; table($0); skip = 1; next }
        skip && /^[|]/ { next }
        { skip = 0; print }' "$1"
}
new=$(mktemp)
trap 'rm -f "$new"' EXIT
differ=0
for file in docs/*.md docs/notes/*.md "$results"/*.md; do
    grep -q "^<!-- results " "$file" || continue
    page "$file" >"$new" || exit 1
    if [ "${1:-}" = check ]; then
        diff -u "$file" "$new" || differ=1
    elif ! cmp -s "$file" "$new"; then
        cat "$new" >"$file"
        echo "$file: written"
    fi
done
[ $differ = 0 ] || { echo "tables differ from $results: tests/bench/table.sh writes them" >&2; exit 1; }
