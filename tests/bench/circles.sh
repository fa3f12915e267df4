#!/bin/bash
# The circles among the files of a room: sets of files each of which reaches every other by calls, or by variables,
# read off the object files of a build. A room without circles can be read from the bottom up.
# Fails where there is one.
#
#     tests/bench/circles.sh [BUILD DIR [ROOM...]]     a line a room, and a line a circle
#     tests/bench/circles.sh -v BUILD DIR ROOM...      with what leads from file to file within circles
set -eu -o pipefail
verbose=0 passed=0 failed=0
if [ "${1:-}" = -v ]; then verbose=1; shift; fi
build=${1:-build}
shift || true
for room in "${@:-runtime codelets graph models tools}"; do rooms+=" $room"; done
# A file is named by its object and the folders of that, whichever of them has the meson.build.
for room in $rooms; do
    # Of files that there are twice, here and over SimGrid, those of this machine.
    find "$build/$room" -name '*.c.o' -not -path '*simulated*.p/*' | sort | xargs nm -gA |
        sed -e "s|^$build/||" -e 's|/[^/]*\.p/|/|' -e 's|\.c\.o:| |' | awk -v room="$room" -v verbose="$verbose" '
        !($1 in number) { number[$1] = ++files; file[files] = $1 }
        $(NF - 1) == "U" { wants[++n] = $NF; by[n] = number[$1]; next }
        $(NF - 1) ~ /^[A-TXYZ]$/ { home[$NF] = number[$1] }
        END {
            for (k = 1; k <= n; k++) {
                i = by[k]; j = home[wants[k]]
                if (!j || i == j) continue
                if (!reaches[i, j]++) arrows++
                through[i, j] = through[i, j] " " wants[k]
            }
            for (k = 1; k <= files; k++)
                for (i = 1; i <= files; i++)
                    for (j = 1; j <= files && reaches[i, k]; j++)
                        if (reaches[k, j]) reaches[i, j] = 1
            for (i = 1; i <= files; i++) {
                if (!reaches[i, i] || in_circle[i]) continue
                list[++circles] = ""
                for (j = i; j <= files; j++)
                    if (reaches[i, j] && reaches[j, i]) {
                        in_circle[j] = circles
                        knotted++
                        list[circles] = list[circles] " " file[j]
                    }
            }
            printf "%-9s %3d files, %3d arrows between them, %d circle%s of %d files\n", room, files, arrows, circles,
                circles == 1 ? "" : "s", knotted
            for (c = 1; c <= circles; c++) print "    circle:" list[c]
            for (i = 1; i <= files && verbose; i++)
                for (j = 1; j <= files; j++)
                    if (in_circle[i] && in_circle[i] == in_circle[j] && through[i, j])
                        print "        " file[i] " -> " file[j] ":" through[i, j]
            if (circles) exit 1
        }' && passed=$((passed + 1)) || failed=$((failed + 1))
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
