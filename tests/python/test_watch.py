"""python -m tessera watch beside what a run does to its files, and beside stand-ins for wandb and mlflow that write
down how they are called. Arguments: cases."""
import json
import os
import signal
import subprocess
import sys
import time

import cases
from cases import DIR, HERE

PACKAGE = os.path.join(HERE, "..", "..", "tools", "python")
WANDB = '''import json, os, sys
def said(*what):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps(what) + "\\n")
class Run:
    def define_metric(self, *names, **more): said("define_metric", names, more)
    def log(self, found):
        if found.get("loss") == 99: raise RuntimeError("the server is away\\nand more")
        said("log", found)
    def finish(self): said("finish")
def init(**settings):
    said("init", settings)
    return Run()
'''
MLFLOW = WANDB.split("class")[0] + '''
def set_experiment(name): said("set_experiment", name)
def start_run(run_name): said("start_run", run_name)
def log_artifact(path): said("log_artifact", os.path.basename(path))
def log_metrics(found, step): said("log_metrics", found, step)
def end_run(): said("end_run")
'''


class Run:
    """A directory as a run has it, and one that watches it."""

    def __init__(self, name, *flags, begun=True, modules=()):
        self.dir, self.calls = os.path.join(DIR.name, name), os.path.join(DIR.name, f"{name}-calls")
        self.said, path = os.path.join(DIR.name, f"{name}-said"), os.path.join(DIR.name, f"{name}-modules")
        self.metrics, self.lock = (os.path.join(self.dir, file) for file in ("metrics.jsonl", "run.lock"))
        if begun:
            self.begin()
        os.makedirs(path)
        for module, text in modules:
            with open(os.path.join(path, f"{module}.py"), "w", encoding="utf-8") as file:
                file.write(text)
        with open(self.said, "w", encoding="utf-8") as out:
            self.watch = subprocess.Popen(
                [sys.executable, "-m", "tessera", "watch", self.dir, *flags], stdout=out, stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([path, PACKAGE]), "CALLS": self.calls})

    def begin(self):
        os.makedirs(self.dir)
        for path, text in ((self.lock, "process 1 on there"), (os.path.join(self.dir, "config.json"), '{"steps": 9}')):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

    def writes(self, *steps, loss=1.0, mode="a"):
        with open(self.metrics, mode, encoding="utf-8") as file:
            for step in steps:
                file.write(json.dumps({"step": step, "loss": loss + step, "grad_norm": None,
                                       "cpu": {"peak_bytes": 8 * step}}) + "\n")

    def shows(self, text, times=1):
        """Waits until it is there."""
        for _ in range(600):
            with open(self.said, encoding="utf-8") as file:
                said = file.read()
            if said.count(text) >= times:
                return
            assert self.watch.poll() is None or said.count(text) >= times, said
            time.sleep(0.1)
        raise AssertionError(f"{text!r} did not come: {said}")

    def ends(self):
        os.remove(self.lock)
        return self.left(0)

    def left(self, status):
        """Returns what was printed, once it has ended."""
        met = self.watch.wait(60)
        with open(self.said, encoding="utf-8") as file:
            said = file.read()
        assert met == status, (met, said)
        return said

    def called(self):
        with open(self.calls, encoding="utf-8") as file:
            return [json.loads(line) for line in file]


def prints():
    """From before its beginning to its end, a line that is half written among them."""
    run = Run("prints", begun=False)
    run.shows("waiting for a run to begin")
    run.begin()
    run.writes(1, 2)
    with open(run.metrics, "a", encoding="utf-8") as file:
        file.write('{"step": 3, "lo')
        file.flush()
        run.shows("step      2  loss 3")
        file.write('ss": 7}\n')
    run.shows("step      3  loss 7")
    run.writes(4)
    said = run.ends()
    assert said.count("step") == 4 and "step      4  loss 5" in said, said


def resumes():
    """What is cut and written again comes again; what stayed does not, in the same file and in another."""
    run = Run("resumes")
    run.writes(1, 2, 3, 4)
    run.shows("step      4")
    with open(run.metrics, "r+", encoding="utf-8") as file:
        file.truncate(len(file.readline() + file.readline()))
    run.writes(3, 4, 5, 6, loss=2.0)  # longer than it was
    run.shows("step      6")
    run.writes(1, 2, mode="w")
    run.writes(3, 7, loss=3.0)
    run.shows("step      7")
    os.rename(run.metrics, run.metrics + ".old")
    run.writes(1, 2)
    run.writes(3, loss=4.0)
    run.shows("step      3  loss 7")
    said = run.ends()
    counts = {step: said.count(f"step {step:>6}") for step in range(1, 8)}
    assert counts == {1: 1, 2: 1, 3: 4, 4: 2, 5: 1, 6: 1, 7: 1}, said


def interrupted():
    run = Run("interrupted", "--wandb", "them", modules=[("wandb", WANDB)])
    run.writes(1)
    for _ in range(600):
        if os.path.exists(run.calls) and len(run.called()) == 3:
            break
        time.sleep(0.1)
    run.watch.send_signal(signal.SIGINT)
    assert run.left(0) == "" and run.called()[-1] == ["finish"]


def wandb():
    run = Run("wandb", "--wandb", "project", modules=[("wandb", WANDB)])
    run.writes(1, 2)
    run.ends()
    assert run.called() == [
        ["init", {"project": "project", "name": "wandb", "config": {"steps": 9}}],
        ["define_metric", ["*"], {"step_metric": "step"}],
        ["log", {"loss": 2.0, "cpu/peak_bytes": 8, "step": 1}], ["log", {"loss": 3.0, "cpu/peak_bytes": 16, "step": 2}],
        ["finish"]], run.called()
    run = Run("wandb-away", "--wandb", "project", modules=[("wandb", WANDB)])
    run.writes(1, loss=98)
    assert run.left(1) == "tessera: error: --wandb: the server is away\n"


def mlflow():
    run = Run("mlflow", "--mlflow", "trials", modules=[("mlflow", MLFLOW)])
    run.writes(1)
    run.ends()
    assert run.called() == [
        ["set_experiment", "trials"], ["start_run", "mlflow"], ["log_artifact", "config.json"],
        ["log_metrics", {"loss": 2.0, "cpu/peak_bytes": 8}, 1], ["end_run"]], run.called()


def mistakes():
    absent = [("wandb", "raise ModuleNotFoundError(\"No module named 'wandb'\")")]
    assert Run("absent", "--wandb", "project", modules=absent).left(2) == (
        "tessera: error: --wandb: No module named 'wandb' (pip install wandb)\n")
    said = Run("both", "--wandb", "a", "--mlflow", "b").left(2)
    assert said.startswith("tessera: error: watch: ") and said.count("\n") == 1, said
    run = Run("other")
    with open(run.metrics, "w", encoding="utf-8") as file:
        file.write('{"loss": 3}\n')
    said = run.left(2)
    assert said.startswith(f"tessera: error: {run.metrics}: byte 0: met '{{\"loss\": 3}}'"), said
    run = Run("file", begun=False)
    run.watch.terminate()
    with open(run.dir, "w", encoding="utf-8"):
        pass
    done = subprocess.run([sys.executable, "-m", "tessera", "watch", run.dir], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": PACKAGE})
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "is a file" in done.stderr, done.stderr


def command():
    """That of a real run, from its beginning to its end."""
    network = os.path.join(HERE, "..", "models", "fixtures", "imported", "mlp")
    if "TESSERA" not in os.environ:
        return
    import numpy as np
    for key, width in (("x", 5), ("y", 3)):
        np.save(os.path.join(DIR.name, f"{key}.npy"), np.random.RandomState(1).randn(64, width).astype(np.float32))
    run = Run("command", begun=False)
    run.shows("waiting")
    config = {"model": network, "data": {"train": {"x": "x.npy", "y": "y.npy"}}, "steps": 4, "train_batch_size": 16,
              "output": run.dir, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}
    with open(os.path.join(DIR.name, "run.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    cases.command("train", "run.json")
    assert [line.split()[1] for line in run.left(0).splitlines()[1:]] == ["1", "2", "3", "4"]


CASES = {case.__name__: case for case in (prints, resumes, interrupted, wandb, mlflow, mistakes, command)}

if __name__ == "__main__":
    cases.main(CASES)
