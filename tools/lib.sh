# What tools/check and tools/demo share: installing what Debian has, and building. Sourced with the checkout as the
# working directory.

packages="build-essential pkg-config meson ninja-build libstarpu-dev libhwloc-dev libdnnl-dev libjansson-dev
libpcre2-dev libutf8proc-dev liburing-dev libopenmpi-dev openmpi-bin"

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

# The StarPU of tools/starpu-cuda, where it was built, before the system's: for a GPU, or for whoever sets with_cuda.
starpu=$PWD/.starpu/cuda/lib/pkgconfig
if [ -d "$starpu" ] && { [ "${with_cuda:-}" ] || nvidia-smi -L >/dev/null 2>&1; }; then export PKG_CONFIG_PATH=$starpu${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}; fi

# configure DIR [MESON OPTION...]: once, and anew when another StarPU is to be found.
configure() {
    local dir=$1
    shift
    if [ -f "$dir/build.ninja" ] && [ "$(cat "$dir/pkg-config-path" 2>/dev/null)" != "${PKG_CONFIG_PATH:-}" ]; then
        rm -rf "$dir"
    fi
    [ -f "$dir/build.ninja" ] || meson setup "$dir" "$@" >"/dev/null"
    echo "${PKG_CONFIG_PATH:-}" >"$dir/pkg-config-path"
}

# build DIR [MESON OPTION...]: configured, and brought up to date each time, all of it or $targets.
build() {
    configure "$@"
    local dir=$1
    # shellcheck disable=SC2086
    meson compile -C "$dir" ${targets:-} >"$dir/compile.log" 2>&1 || { cat "$dir/compile.log"; exit 1; }
}
