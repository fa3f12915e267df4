#!/bin/bash
# Do the pages hold together? Tables of docs/ are those of tests/bench/results, and what pages
# say of files, folders and commands is so (pages.py).
#
#     tests/docs/test_pages.sh [TESSERA]
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
passed=0 failed=0
holds() { # WHAT STATUS
    if [ "$2" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "failed: $1"; fi
}

tests/bench/table.sh check
holds "tables are those of tests/bench/results" $?

tests/docs/pages.py "$@"
holds "what the pages say of the repository holds" $?

echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
