#!/bin/bash
# Sourced by what runs other programs beside ours; tests/bench/peers.sh kept COMMAND... runs one. PyTorch frees large tensors in each step and allocates them again, and
# glibc gives what is freed back to the kernel: on a machine that is slow to give fresh memory its user would tell glibc to
# keep it. So each peer runs both ways, and counts by the faster.

# kept COMMAND...: the command, with glibc told to keep what is freed.
kept() { MALLOC_MMAP_THRESHOLD_=68719476736 MALLOC_TRIM_THRESHOLD_=68719476736 MALLOC_TOP_PAD_=268435456 "$@"; }
# GB/s at which one thread of this machine gets memory that no process has touched.
first_touch() { dd if=/dev/zero of=/dev/null bs=1G count=1 2>&1 | sed -n 's/.*, \([0-9.]* [GM]B\/s\)$/\1/p'; }

peers=${peers:-}
# fastest NAME COMMAND...: what the command prints, which begins with a rate, run the faster way of the two. The first call of
# a name tries both, says so, and keeps the answer below the folder $peers.
fastest() {
    local name=$1 way said beside
    shift
    if [ -e "$peers/$name" ]; then
        way=$(cat "$peers/$name")
        ${way:+"$way"} "$@"
        return
    fi
    said=$("$@") && beside=$(kept "$@") || return 1
    printf '    %s: %s as it comes, %s with memory kept; fresh memory at %s\n' "$name" "${said%% *}" "${beside%% *}" "$(first_touch)" >&2
    way=$(awk -v a="${said%% *}" -v b="${beside%% *}" 'BEGIN { if (b > a) print "kept" }')
    printf '%s' "$way" >"$peers/$name"
    [ -z "$way" ] || said=$beside
    echo "$said"
}

[ "${BASH_SOURCE[0]}" != "$0" ] || "$@"
