# What tools/check and tools/demo share: installing what Debian has, and building. Sourced with the checkout as the
# working directory.

packages="build-essential pkg-config meson ninja-build libstarpu-dev libhwloc-dev libdnnl-dev libjansson-dev
libpcre2-dev liburing-dev libopenmpi-dev openmpi-bin"

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# install PACKAGE...: those that are missing, in one go; says nothing when nothing is.
install() {
    local missing=() p
    for p in "$@"; do
        dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
    done
    [ ${#missing[@]} = 0 ] && return
    echo "installing ${missing[*]}"
    as_root apt-get -qq update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${missing[@]}" >/dev/null
}

# build DIR [MESON OPTION...]: configured once, brought up to date each time.
build() {
    local dir=$1
    shift
    [ -f "$dir/build.ninja" ] || meson setup "$dir" "$@" >"/dev/null"
    meson compile -C "$dir" >"$dir/compile.log" 2>&1 || { cat "$dir/compile.log"; exit 1; }
}
