#!/bin/bash
# Do the pages hold together? Tables of docs/ are those of tests/bench/results, and what pages link to is there.
#
#     tests/docs/test_pages.sh
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
passed=0 failed=0
holds() { # WHAT STATUS
    if [ "$2" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "failed: $1"; fi
}

tests/bench/table.sh check
holds "tables are those of tests/bench/results" $?

bad=0
while IFS=: read -r page link; do
    [ -e "$(dirname "$page")/$link" ] || { echo "$page: $link is not there"; bad=1; }
done < <(grep -oHE '\]\([^)#: ]+[)#]' ./*.md docs/*.md docs/*/*.md | sed 's/\](\(.*\)[)#]$/\1/')
holds "links lead to files" $bad

echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
