"""What the tests of both frameworks share: the package, the command, a directory, and cases by name."""
import os
import subprocess
import sys
import tempfile
import traceback

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "python")]
import tessera

DIR = tempfile.TemporaryDirectory()


def near(what, met, wanted, most):
    if not met <= most * wanted:
        raise AssertionError(f"{what}: off by {met:.3g} of {wanted:.3g}")


def command(*arguments):
    """Runs the command that the environment variable TESSERA names; without one it does nothing, and returns False."""
    if "TESSERA" not in os.environ:
        return False
    done = subprocess.run([os.environ["TESSERA"], *arguments], capture_output=True, text=True, cwd=DIR.name)
    if done.returncode:
        raise AssertionError(f"tessera {' '.join(arguments)}: {done.stderr}")
    return True


def main(cases):
    """Runs the cases that the arguments name, or all."""
    failed, chosen = 0, sys.argv[1:] or list(cases)
    for name in chosen:
        try:
            cases[name]()
            print(f"ok {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc(limit=-5)}", flush=True)
    print(f"{len(chosen) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(failed > 0)
