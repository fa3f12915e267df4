"""What the tests of both frameworks share: the package, the command, a directory, and cases by name."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "..", "tools", "python")]
import tessera

DIR = tempfile.TemporaryDirectory()


def near(what, met, wanted, most):
    if not met <= most * wanted:
        raise AssertionError(f"{what}: off by {met:.3g} of {wanted:.3g}")


def command(*arguments, at=None, workers=2):
    """Runs the command that the environment variable TESSERA names; without one it does nothing, and returns False."""
    if "TESSERA" not in os.environ:
        return False
    done = subprocess.run([os.environ["TESSERA"], *arguments], capture_output=True, text=True, cwd=at or DIR.name,
                          env={**os.environ, "STARPU_NCPU": str(workers)})
    if done.returncode:
        raise AssertionError(f"tessera {' '.join(arguments)}: {done.stderr}")
    return True


def example(name, samples, *settings):
    """Makes the data and the network of docs/examples/NAME, and returns the metrics of a run of it, where there is the
    command, else none."""
    to, root = os.path.join(DIR.name, f"example-{name}"), os.path.join(HERE, "..", "..")
    shutil.copytree(os.path.join(root, "docs", "examples", name), to)
    package = {"PYTHONPATH": os.path.join(root, "tools", "python")}
    subprocess.run([sys.executable, "make.py", str(samples)], cwd=to, env={**os.environ, **package}, check=True,
                   stdout=subprocess.DEVNULL)
    if not command("check", "net", at=to) or not command("train", "run.json", *settings, at=to):
        return []
    with open(os.path.join(to, "out", "metrics.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def learns(metrics, share):
    """Fails where the loss of the last step is more than a share of the first one's."""
    losses = [m["loss"] for m in metrics]
    assert not losses or losses[-1] < share * losses[0], losses


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
