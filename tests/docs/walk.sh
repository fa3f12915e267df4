#!/bin/bash
# Follows docs/step.md with the debugger: a small run with RAM capped and one worker stops once in each function that the page
# names, and prints it in the order in which they are first met, with the file it lies in and who called it. Ends with 1
# where a function of the page is not met, or lies in another file than the page says.
#
#     tests/docs/walk.sh [BUILD]        (gdb; builds one with symbols in a temporary folder unless it is given)
set -eu -o pipefail
cd "$(dirname "$0")/../.."
page=$PWD/docs/step.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build=${1:-}
if [ -z "$build" ]; then
    build=$work/build
    meson setup "$build" -Dcuda=disabled -Dbuildtype=debug -Doptimization=1 -Dwerror=false >/dev/null
    meson compile -C "$build" tools/tessera:executable >/dev/null
fi
build=$(realpath "$build")
# Words of the page that are functions of the program. tess_plan_gpu is called where there is a GPU.
nm "$build/tools/tessera" | awk '$2 ~ /[tT]/ { print $3 }' | sort -u >"$work/functions"
grep -o '`[a-z0-9]*_[a-z_0-9]*`' "$page" | tr -d '`' | sort -u | grep -vx tess_plan_gpu | while read -r word; do
    grep -xF "$word" "$work/functions" || true
done >"$work/names"

cd "$work"
head -c 20000 "$page" >text.txt
cat >run.json <<END
{"model": {"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 128, "n_layer": 3, "n_head": 4},
 "data": {"train": "text.txt", "seq_length": 64}, "train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "steps": 3,
 "gradient_clipping": 1, "memory": {"cpu": "12MiB", "path": ".", "disk": "256MiB"}, "output": "out"}
END
{
    echo "set pagination off"
    echo "set breakpoint pending on"
    echo "handle SIGUSR1 nostop noprint"
    while read -r name; do
        printf 'tbreak %s\ncommands\nsilent\npython f = gdb.selected_frame(); s = f.find_sal().symtab; print("met", f.name(), s.filename if s else "?", f.older().name() if f.older() else "-")\ncontinue\nend\n' "$name"
    done <names
    echo "run train run.json"
} >commands
STARPU_NCPU=1 STARPU_SILENT=1 gdb -batch -x commands --args "$build/tools/tessera" >log 2>&1 </dev/null || true
grep '^met' log | awk '{ printf "%3d  %-26s %-34s from %s\n", NR, $2, $3, $4 }' | sed -E 's#  [^ ]*/(graph|models|runtime|codelets)/#  \1/#' | tee met

bad=0
while read -r name; do
    grep -q " $name " met || { echo "not met: $name"; bad=1; }
done <names
# "`function` (`file`": the file must be that.
while read -r name file; do
    grep -qxF "$name" names || continue
    grep -q " $name .*$file" met || { echo "the page has $name in $file"; bad=1; }
done < <(tr '\n' ' ' <"$page" | grep -oE '`[a-z_0-9]+` \(`[a-z_/0-9]+\.c`' | sed -E 's/`([a-z_0-9]+)` \(`([a-z_\/0-9]+\.c)`/\1 \2/')
tail -3 log | grep -v "^met" || true
exit $bad
