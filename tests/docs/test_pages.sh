#!/bin/bash
# Do the pages hold together? Tables and the README's chart are those of tests/bench/results; links lead to files and headings that are
# there; paths in backticks exist; no line is longer than 120 columns, tables aside; each page of docs/ is in the index, and
# each command of the program in docs/commands.md.
#
#     tests/docs/test_pages.sh [TESSERA]
set -u -o pipefail
export LC_ALL=C.UTF-8
[ $# = 0 ] || set -- "$(realpath "$1")"
cd "$(dirname "$0")/../.." || exit 1
passed=0 failed=0
pages=$(ls ./*.md && find docs tests/bench tests/soak tools -name '*.md' | sort)

# Prints what is wrong, and nothing where nothing is.
check_widths() {
    # shellcheck disable=SC2086
    grep -nE '^.{121,}' $pages | grep -vE '^[^:]*:[0-9]+:(\||<!--)' | cut -d: -f1,2 | sed 's/$/ is longer than 120 columns/'
}

# As GitHub makes them of a page's headings.
anchors() {
    sed -nE 's/^#+ //p' "$1" | sed -E 's/\[([^]]*)\]\([^)]*\)/\1/g' | tr '[:upper:]' '[:lower:]' | sed -E 's/[^[:alnum:]_ -]//g; s/ /-/g'
}

check_links() {
    # shellcheck disable=SC2086
    grep -noE '\]\([^)[:space:]]+\)' $pages | grep -vE ':\]\(https?:' | sed -E 's/^([^:]*):([^:]*):\]\((.*)\)$/\1 \2 \3/' |
        while read -r page line target; do
            to=$page anchor=
            [ "${target%%#*}" = "" ] || to=$(dirname "$page")/${target%%#*}
            [ "${target#*#}" = "$target" ] || anchor=${target#*#}
            if [ ! -e "$to" ]; then
                echo "$page:$line: $target leads nowhere"
            elif [ -n "$anchor" ] && [ "${to%.md}" != "$to" ] && ! anchors "$to" | grep -qxF -- "$anchor"; then
                echo "$page:$line: $target is no heading"
            fi
        done
}

check_paths() {
    # shellcheck disable=SC2086
    grep -noE '`(codelets|docs|graph|models|runtime|tests|tools)/[A-Za-z0-9_./-]+`' $pages | tr -d '`' | grep -vE 'NAME|\.\.\.' |
        while IFS=: read -r page line path; do [ -e "$path" ] || echo "$page:$line: there is no $path"; done
}

check_index() {
    for page in docs/*.* docs/examples/*.*; do
        [ "$page" = docs/README.md ] || grep -qF "(${page#docs/}" docs/README.md || echo "docs/README.md: ${page#docs/} is not in it"
    done
}

check_commands() { # TESSERA
    "$1" --version >/dev/null || echo "$1 does not start"
    "$1" --help | sed -nE 's/^  tessera ([a-z]+).*/\1/p' | while read -r name; do
        grep -qE "\`tessera $name[ \`]" docs/commands.md || echo "docs/commands.md: $name is not in it"
    done
}

holds() { # WHAT, CHECK...
    local what=$1 said
    shift
    said=$("$@")
    if [ -z "$said" ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && printf '%s\nfailed: %s\n' "$said" "$what"; fi
}

if tests/bench/table.sh check; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
if tests/bench/chart.sh check; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
holds "lines have at most 120 columns" check_widths
holds "links lead somewhere" check_links
holds "paths exist" check_paths
holds "each page is in the index" check_index
[ $# = 0 ] || holds "each command has its line" check_commands "$1"
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
