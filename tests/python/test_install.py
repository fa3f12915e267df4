"""pip install tools/python into venvs of its own: without a library, with one that is installed, and built from here.
The environment names what was built: TESSERA the command, LIBTESSERA the library. Arguments: cases."""
import glob
import os
import shutil
import subprocess
import sys

import numpy as np

import cases
from cases import DIR, HERE

PACKAGE = os.path.join(HERE, "..", "..", "tools", "python")
MLP = os.path.join(HERE, "..", "models", "fixtures", "imported", "mlp")
STEP = f"""
import numpy, tessera
with tessera.Trainer({{"model": {MLP!r}, "train_batch_size": 16}}) as t:
    print(t.step({{"x": numpy.ones((16, 5)), "y": numpy.zeros((16, 3))}})["step"], t.rank)
"""


def run(*words, status=0, cwd=DIR.name, **env):
    env = {key: v for key, v in {**os.environ, "STARPU_NCPU": "1", **env}.items() if v is not None}
    done = subprocess.run(words, capture_output=True, text=True, env=env, cwd=cwd)
    assert done.returncode == status, (words, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout if status == 0 else done.stderr


def installed(**env):
    """Installs the package in a venv, and returns the directory of its programs and the one that the package lies in.
    pip and setuptools come from PyPI once; numpy is that of these tests."""
    venv = os.path.join(DIR.name, "venv")
    pip = [os.path.join(venv, "bin", "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if not os.path.exists(venv):
        run(sys.executable, "-m", "venv", venv)
        run(*pip, "setuptools>=70.1")
        site, = glob.glob(os.path.join(venv, "lib", "python*", "site-packages"))
        with open(os.path.join(site, "numpy.pth"), "w", encoding="utf-8") as file:  # behind what lies there
            file.write(os.path.dirname(os.path.dirname(np.__file__)))
    run(*pip, "--force-reinstall", "--no-deps", "--no-build-isolation", PACKAGE, **env)
    package, = glob.glob(os.path.join(venv, "lib", "python*", "site-packages", "tessera"))
    return os.path.join(venv, "bin"), package


def exporters_alone():
    """Without a compiler: PATH has none."""
    bare = os.path.join(DIR.name, "bare")
    os.makedirs(bare)
    programs, package = installed(LIBTESSERA="none", PATH=bare)
    assert not os.path.exists(os.path.join(package, "built"))
    run(os.path.join(programs, "python"), "-c", "import tessera; tessera.export, tessera.load", LIBTESSERA=None)
    said = run(os.path.join(programs, "tessera"), "train", status=2, PATH=bare, LIBTESSERA=None)
    assert said.startswith("tessera: error: ") and said.count("\n") == 1, said
    for library, words in (("", "LIBTESSERA: is empty"), ("none", "LIBTESSERA: none"),
                           ("nowhere.so", "nowhere.so: cannot open")):
        said = run(os.path.join(programs, "python"), "-c", STEP, status=1, LIBTESSERA=library)
        assert said.strip().splitlines()[-1].startswith(f"OSError: {words}"), said


def with_a_library():
    """It is used, and nothing is compiled."""
    programs, package = installed()
    assert not os.path.exists(os.path.join(package, "built"))
    assert run(os.path.join(programs, "python"), "-c", STEP) == "1 0\n"
    path = os.path.dirname(os.environ["TESSERA"]) + os.pathsep + os.environ["PATH"]
    assert run(os.path.join(programs, "tessera"), "--version", PATH=programs + os.pathsep + path) == run(
        os.environ["TESSERA"], "--version")


def lacking():
    """A library that is another, or of which something is missing."""
    if not shutil.which("cc"):
        return
    error = "const char *tess_error_text(void) { return 0; }"
    for name, text, words in (
            ("other", "int other;", "lacks tess_error_text"), ("part", error, "lacks tess_headers"),
            ("torn", "int no(void); int f(void) { return no(); }", "neither it nor what it loads has no ("),
            ("old", error + 'char tess_headers[] = "int tess_ranks_join(void);";', "lacks tess_ranks_join")):
        library = os.path.join(DIR.name, f"lib{name}.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=text, text=True, check=True)
        said = run(sys.executable, "-c", STEP, status=1, LIBTESSERA=library, PYTHONPATH=PACKAGE)
        said = said.strip().splitlines()[-1]
        assert said.startswith(f"OSError: {library}: {words}") and "undefined symbol" not in said, said


def built():
    """From this checkout, and nothing else of it is read: the command, its machines, the library."""
    programs, package = installed(LIBTESSERA=None, MESON_ARGS="-Dcuda=disabled")
    assert run(os.path.join(programs, "python"), "-c", STEP, LIBTESSERA=None) == "1 0\n"
    assert run(os.path.join(programs, "tessera"), "--version", LIBTESSERA=None).startswith("tessera ")
    found = glob.glob(os.path.join(package, "built", "share", "tessera", "machines", "*.json"))
    names = os.listdir(os.path.join(PACKAGE, "..", "simulate", "machines"))
    assert sorted(map(os.path.basename, found)) == sorted(name for name in names if name.endswith(".json"))


CASES = {case.__name__: case for case in (exporters_alone, with_a_library, lacking, built)}

if __name__ == "__main__":
    cases.main(CASES)
