"""What pip does beside copying the package: where no library is installed, the library and the command are built from
this checkout into tessera/built, with options of meson that stand in MESON_ARGS. LIBTESSERA=none leaves that out, and
what exports networks is all there is."""
import glob
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
BUILD = os.path.join(ROOT, "build-pip")
LIBRARY = runpy.run_path(os.path.join(HERE, "tessera", "installed.py"))["library"]()
COMPILES = not LIBRARY and os.environ.get("LIBTESSERA") != "none"
KEPT = ("bin/*", "libexec/tessera/*", "share/tessera/machines/*")


def meson(*words):
    done = subprocess.run(["meson", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        said = re.findall(r"ERROR: .*|.*\berror: .*", done.stdout)
        sys.exit(f"{done.stdout[-4000:]}\ntessera: error: meson {words[0]}: {said[0] if said else 'failed'} "
                 "(docs/install.md has what is needed; LIBTESSERA=none pip install ... installs what exports alone)")


def build(to):
    """Has meson build the library and the command, and copies what a run reads to the directory `to`."""
    if not os.path.exists(os.path.join(ROOT, "meson.build")):
        sys.exit(f"tessera: error: {HERE}: lies in no checkout, and no library is installed (LIBTESSERA=none pip "
                 "install ... installs what exports networks alone)")
    again = ["--reconfigure"] if os.path.exists(os.path.join(BUILD, "build.ninja")) else []
    meson("setup", BUILD, ROOT, *again, "--prefix=/usr/local", "--libdir=lib", "-Dtests=false",
          *shlex.split(os.environ.get("MESON_ARGS", "")))
    meson("compile", "-C", BUILD, "tessera:executable", "tessera:shared_library")
    staged = os.path.join(BUILD, "staged")
    shutil.rmtree(staged, ignore_errors=True)
    meson("install", "-C", BUILD, "--strip", "--destdir", staged)
    prefix = os.path.join(staged, "usr", "local")
    shutil.rmtree(to, ignore_errors=True)
    for path in [path for pattern in KEPT for path in glob.glob(os.path.join(prefix, pattern))]:
        os.makedirs(os.path.dirname(os.path.join(to, os.path.relpath(path, prefix))), exist_ok=True)
        shutil.copy2(path, os.path.join(to, os.path.relpath(path, prefix)))
    os.makedirs(os.path.join(to, "lib"))
    shutil.copy2(os.path.join(prefix, "lib", "libtessera.so"), os.path.join(to, "lib"))  # a wheel has no links


class Package(build_py):
    def run(self):
        super().run()
        if COMPILES and not self.editable_mode:
            build(os.path.join(self.build_lib, "tessera", "built"))
        else:
            shutil.rmtree(os.path.join(self.build_lib, "tessera", "built"), ignore_errors=True)


class Binary(Distribution):
    def has_ext_modules(self):
        return COMPILES


class Wheel(bdist_wheel):
    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])  # no Python is compiled against


setup(distclass=Binary, cmdclass={"build_py": Package, "bdist_wheel": Wheel},
      setup_requires=[tool for tool in ("meson", "ninja") if COMPILES and not shutil.which(tool)])
