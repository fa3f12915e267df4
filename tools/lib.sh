# What tools/check and tools/demo share: installing what Debian has, and building. Sourced with the checkout as the
# working directory.

packages="build-essential pkg-config meson ninja-build libstarpu-dev libhwloc-dev libdnnl-dev libjansson-dev
libpcre2-dev libutf8proc-dev libyaml-dev zlib1g-dev liburing-dev libopenmpi-dev openmpi-bin"

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# What another checkout compiled is compiled, wherever that lay.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}

# install PACKAGE...: those that are missing, in one go; says nothing when nothing is.
install() {
    local missing=() p
    for p in "$@"; do
        dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
    done
    [ ${#missing[@]} = 0 ] && return
    echo "installing ${missing[*]}"
    ( # one after the other: of two scripts that install at once, apt-get would end one
        flock 8
        as_root apt-get -qq update
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=600 --no-install-recommends \
            install "${missing[@]}" >/dev/null
    ) 8>"${TMPDIR:-/tmp}/tessera-install-$(id -u).lock"
}

# The StarPU of tools/starpu, where it was built, before the system's: one for a GPU where there is one, or for whoever
# sets with_cuda.
for one in cuda cpu; do
    [ $one = cpu ] || [ "${with_cuda:-}" ] || nvidia-smi -L >/dev/null 2>&1 || continue
    [ -d "$PWD/.starpu/$one/lib/pkgconfig" ] || continue
    case ":${PKG_CONFIG_PATH:-}:" in
    *":$PWD/.starpu/$one/lib/pkgconfig:"*) ;;
    *) export PKG_CONFIG_PATH=$PWD/.starpu/$one/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH} ;;
    esac
    break
done

# Sees to a StarPU that has a worker for every core: builds one where the one at hand has fewer.
starpu_for_all_cores() {
    local name most
    name=$(pkg-config --exists starpu-1.4 && echo starpu-1.4 || echo starpu-1.3)
    # shellcheck disable=SC2046
    most=$(printf '#include <starpu_config.h>\nSTARPU_MAXCPUS\n' | cpp -P $(pkg-config --cflags $name) - | tail -1)
    [ "$(nproc)" -le "$most" ] && return
    echo "this machine has $(nproc) cores, and the StarPU at hand drives $most"
    if tools/starpu; then . tools/lib.sh; else echo "so $most of them will work"; fi
}

# configure DIR [MESON OPTION...]: sets DIR up if it is not, sets it up again when another StarPU is to be found, and
# changes its options where other ones are given.
configure() {
    local dir=$1 how= said found
    shift
    found="${PKG_CONFIG_PATH:-} "
    case " $* " in # those simulate nothing
    *" -Db_sanitize="* | *" -Demulated_gpu=true "*) ;;
    *) found+=$(cat .starpu/simgrid/made 2>/dev/null || true) ;;
    esac
    if [ -f "$dir/build.ninja" ] && [ "$(cat "$dir/pkg-config-path" 2>/dev/null)" != "$found" ]; then
        rm -rf "$dir"
    fi
    if [ ! -f "$dir/build.ninja" ]; then
        how=setup
    elif [ $# -gt 0 ] && [ "$(cat "$dir/options" 2>/dev/null)" != "$*" ]; then
        how=configure
    fi
    if [ "$how" ]; then said=$(meson $how "$dir" "$@" 2>&1) || { echo "$said"; exit 1; }; fi
    # Configures again where a meson.build changed; the build says what is wrong there.
    ninja -C "$dir" build.ninja >/dev/null 2>&1 || true
    echo "$found" >"$dir/pkg-config-path"
    [ $# = 0 ] || echo "$*" >"$dir/options"
}

# build DIR [MESON OPTION...]: configured, and brought up to date each time, all of it or $targets. With $shows a terminal
# sees how far it is.
build() {
    configure "$@"
    local dir=$1
    if [ "${shows:-}" ] && [ -t 1 ]; then
        # shellcheck disable=SC2086
        ninja -C "$dir" ${targets:-} || exit 1
        return
    fi
    # shellcheck disable=SC2086
    meson compile -C "$dir" ${targets:-} >"$dir/compile.log" 2>&1 || { cat "$dir/compile.log"; exit 1; }
}
