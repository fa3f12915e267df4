# A recipe for Spack: this folder goes into a repository of yours as packages/tessera, and `git` says where the sources lie.
#
#     spack repo create mine && mkdir -p mine/packages/tessera && cp tools/install/spack/package.py mine/packages/tessera
#     spack repo add mine && spack dev-build tessera@main       # in a checkout
#
# It has not been run under Spack yet: its configuration is that of tools/debian/rules, which is tried.
from spack.package import *


class Tessera(MesonPackage, CudaPackage):
    """Trains neural networks larger than the GPU, and larger than RAM, from a graph of tasks on StarPU."""

    license("BSD-3-Clause")
    git = "https://example.org/tessera.git"

    version("main", branch="main")

    variant("starpu_mpi", default=True, description="Messages between ranks by StarPU-MPI where it is the fastest")

    depends_on("c", type="build")
    depends_on("meson@1.0:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("starpu@1.3:1.4")
    depends_on("starpu+mpi", when="+starpu_mpi")
    depends_on("starpu+cuda", when="+cuda")
    depends_on("hwloc@2:")
    depends_on("onednn")
    depends_on("jansson")
    depends_on("pcre2")
    depends_on("utf8proc")
    depends_on("libyaml")
    depends_on("zlib-api")
    depends_on("liburing")
    depends_on("mpi")
    depends_on("cuda@12:", when="+cuda")

    def meson_args(self):
        def feature(name):
            return "enabled" if self.spec.satisfies("+" + name) else "disabled"

        return [
            "-Dtests=false",
            "-Dcuda=" + feature("cuda"),
            "-Dstarpu_mpi=" + feature("starpu_mpi"),
            "-Dsimulate=disabled",
            "-Dwerror=false",
        ]
