#!/bin/bash
# The circles among the files of a room: sets of files each of which reaches every other by calls, or by variables,
# read off the object files of a build. A room without circles can be read from the bottom up. And calls that run against
# the order of folders in rooms.txt, but for those of functions that a header of the caller's folder declares, or of one
# before it: whoever calls these sees no folder above. Fails where there is one of either.
#
#     tests/bench/circles.sh [BUILD DIR [ROOM...]]     a line a room, and a line a circle
#     tests/bench/circles.sh -v BUILD DIR ROOM...      with what leads from file to file within circles
set -eu -o pipefail
verbose=0 passed=0 failed=0
if [ "${1:-}" = -v ]; then verbose=1; shift; fi
build=$(realpath "${1:-build}")
shift || true
for room in "${@:-runtime codelets graph models tools}"; do rooms+=" $room"; done
cd "$(dirname "$0")/../.."
# A file is named by its object and the folders of that, whichever of them has the meson.build.
for room in $rooms; do
    # Of files that there are twice, here and over SimGrid, those of this machine.
    find "$build/$room" -name '*.c.o' -not -path '*simulated*.p/*' | sort | xargs nm -gA |
        sed -e "s|^$build/||" -e 's|/[^/]*\.p/|/|' -e 's|\.c\.o:| |' | awk -v room="$room" -v verbose="$verbose" '
        # The place of a file in the order: of its folders some are part of its name, with _ for /.
        function place(f,   k, at, path) {
            gsub("/", "_", f)
            for (k = 1; k <= folders; k++) {
                at = folder[k] "_"
                gsub("/", "_", at)
                path = folder[k] "/" substr(f, length(at) + 1) ".c"
                if (index(f, at) == 1 && (getline line < path) >= 0) { close(path); return k }
            }
            return f ~ /meson-generated/ ? 0 : folders + 1
        }
        # Whether a header of that folder, or of one before it, declares a name.
        function declared(name, k) {
            for (; k > 0; k--)
                if (!system("grep -qsw " name " " folder[k] "/*.h")) return 1
            return 0
        }
        BEGIN {
            while ((getline line < "rooms.txt") > 0) {
                if (sub(/^also /, "", line) && sub(/: /, " ", line)) { also = also "\n" line " "; continue }
                n = split(line, part, /:? +|:/)
                if (line !~ /:/ || index(part[1] "/", room "/") != 1) continue
                for (k = 2; k <= n; k++)
                    if (part[k] != "") folder[++folders] = part[1] "/" part[k]
                folder[++folders] = part[1]
            }
            for (k = 1; k <= folders; k++) sub(/\+$/, "", folder[k])
            n = 0
        }
        !($1 in number) { number[$1] = ++files; file[files] = $1 }
        $(NF - 1) == "U" { wants[++n] = $NF; by[n] = number[$1]; next }
        $(NF - 1) ~ /^[A-TXYZ]$/ { home[$NF] = number[$1] }
        END {
            for (k = 1; k <= n; k++) {
                i = by[k]; j = home[wants[k]]
                if (!j || i == j) continue
                if (!reaches[i, j]++) arrows++
                through[i, j] = through[i, j] " " wants[k]
                if (!(i in stands)) stands[i] = place(file[i])
                if (!(j in stands)) stands[j] = place(file[j])
                if (stands[j] > stands[i] && !declared(wants[k], stands[i]) &&
                    !match(also, "\n" folder[stands[i]] " [^\n]*" folder[stands[j]] " ")) {
                    print "    up: " file[i] " -> " file[j] ": " wants[k]
                    upward++
                }
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
            printf "%-9s %3d files, %3d arrows between them, %d up, %d circle%s of %d files\n", room, files, arrows, upward,
                circles, circles == 1 ? "" : "s", knotted
            for (c = 1; c <= circles; c++) print "    circle:" list[c]
            for (i = 1; i <= files && verbose; i++)
                for (j = 1; j <= files; j++)
                    if (in_circle[i] && in_circle[i] == in_circle[j] && through[i, j])
                        print "        " file[i] " -> " file[j] ":" through[i, j]
            if (circles || upward) exit 1
        }' && passed=$((passed + 1)) || failed=$((failed + 1))
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
