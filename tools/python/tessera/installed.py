"""Where the library and the command are: the library is what the environment variable LIBTESSERA names, else what pip
built beside this file, else what pkg-config or the loader finds. LIBTESSERA=none says that there is none. The
installation asks here, too: nothing but Python's own library is imported."""
import ctypes.util
import os
import subprocess

BUILT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "built")
HINT = "install Tessera, or name the file of libtessera.so in LIBTESSERA"


def _pkg_config(variable):
    try:
        asked = subprocess.run(["pkg-config", f"--variable={variable}", "tessera"], capture_output=True, text=True)
    except OSError:
        return ""
    return asked.stdout.strip()


def library():
    """Returns the library's path, or its name for the loader; "" where there is none."""
    named = os.environ.get("LIBTESSERA")
    if named is not None:
        return "" if named in ("", "none") else named
    for path in os.path.join(BUILT, "lib", "libtessera.so"), os.path.join(_pkg_config("libdir"), "libtessera.so"):
        if os.path.exists(path):
            return path
    return ctypes.util.find_library("tessera") or ""


def missing():
    """Returns a line that says why there is no library."""
    named = os.environ.get("LIBTESSERA")
    why = "libtessera.so is not found" if named is None else f"LIBTESSERA: {named or 'is empty'}, expected a file"
    return f"{why} ({HINT if named is None else HINT.replace('name', 'unset it, or name')})"


def command():
    """Returns the program's path, "" where there is none. What pip wrote as `tessera` asks this: it is no answer."""
    inside = [os.path.join(BUILT, "bin"), os.path.join(_pkg_config("prefix"), "bin")]
    for directory in inside + os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(directory, "tessera")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    return path
    return ""
