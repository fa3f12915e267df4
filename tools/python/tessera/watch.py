"""python -m tessera watch: follows the metrics.jsonl of a run and passes each step's numbers on.

A run holds OUTPUT/run.lock while it lives and removes it when it ends; of a run that was killed it stays, and so the
wait for the run to go on."""
import argparse
import importlib
import json
import math
import os
import sys
import time

PRINTED = ("loss", "valid_loss", "lr", "grad_norm", "tokens_per_s", "seconds")


class Wrong(Exception):
    """A line for the user, and the status to exit with."""

    def __init__(self, text, status=2):
        super().__init__(text)
        self.status = status


# -- the file

class Lines:
    """The lines of a file that is written to, cut, or replaced: each new one once. After a cut the lines in front of
    it are those that were there."""

    def __init__(self, path):
        self.path, self.file, self.met, self.before, self.odd = path, None, {}, b"", None

    def _stays(self):
        """Whether what was read last still stands in front of where reading goes on."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return False
        at, held = self.file.tell(), os.fstat(self.file.fileno())
        if (now.st_dev, now.st_ino) != (held.st_dev, held.st_ino) or now.st_size < at:
            return False
        self.file.seek(at - len(self.before))
        return self.file.read(len(self.before)) == self.before

    def new(self):
        if self.file and not self._stays():
            self.file.close()
            self.file, self.before = None, b""
        if not self.file:
            try:
                self.file = open(self.path, "rb")
            except FileNotFoundError:
                return
        while True:
            at, line = self.file.tell(), self.file.readline()
            if not line.endswith(b"\n"):  # the rest of it is to come
                self.file.seek(at)
                return
            self.before = line
            try:
                metrics = json.loads(line)
                step = metrics["step"]
            except (ValueError, TypeError, KeyError):
                if self.odd != (at, line):  # it may have been cut just now: once more, from the start
                    self.odd, self.before = (at, line), b"?"
                    return
                raise Wrong(f"{self.path}: byte {at}: met {line[:40].decode(errors='replace').strip()!r}, expected "
                            "the metrics of a step as a run writes them") from None
            if self.met.get(step) != line:
                self.met[step] = line
                yield metrics


def numbers(metrics, prefix=""):
    """Returns {name: value} of what is a number; those of a memory tier have its name and a / in front."""
    found = {}
    for name, v in metrics.items():
        if isinstance(v, dict):
            found |= numbers(v, f"{prefix}{name}/")
        elif isinstance(v, (int, float)) and math.isfinite(v):
            found[prefix + name] = v
    return found


# -- where they go

class Print:
    def __init__(self, *_):
        pass

    def each(self, step, found):
        said = "  ".join(f"{name} {found[name]:.6g}" for name in PRINTED if name in found)
        print(f"step {step:>6}  {said}", flush=True)

    def end(self):
        pass


def _settings(output):
    path = os.path.join(output, "config.json")
    if not os.path.exists(path):
        return path, {}
    with open(path, encoding="utf-8") as file:
        return path, json.load(file)


def _name(output):
    return os.path.basename(os.path.abspath(output))


class Wandb:
    def __init__(self, wandb, output, project):
        self.run = wandb.init(project=project, name=_name(output), config=_settings(output)[1])
        self.run.define_metric("*", step_metric="step")  # a run that resumes has some steps again

    def each(self, step, found):
        self.run.log({**found, "step": step})

    def end(self):
        self.run.finish()


class Mlflow:
    def __init__(self, mlflow, output, experiment):
        self.mlflow = mlflow
        mlflow.set_experiment(experiment)
        mlflow.start_run(run_name=_name(output))
        path, settings = _settings(output)
        if settings:
            mlflow.log_artifact(path)

    def each(self, step, found):
        self.mlflow.log_metrics(found, step=step)

    def end(self):
        self.mlflow.end_run()


class Tensorboard:
    def __init__(self, tensorboard, output, _):
        self.writer = tensorboard.SummaryWriter(os.path.join(output, "tensorboard"))

    def each(self, step, found):
        for name, v in found.items():
            self.writer.add_scalar(name, v, step)
        self.writer.flush()

    def end(self):
        self.writer.close()


SINKS = {"wandb": (Wandb, ["wandb"]), "mlflow": (Mlflow, ["mlflow"]),
         "tensorboard": (Tensorboard, ["torch.utils.tensorboard", "tensorboardX"])}


def _module(flag):
    for name in SINKS[flag][1]:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            why = error
    raise Wrong(f"--{flag}: {why} (pip install {name})")


def _tried(flag, function, *arguments):
    """What another's library raises becomes a line."""
    try:
        return function(*arguments)
    except Exception as error:
        if not flag:
            raise
        raise Wrong(f"--{flag}: {(str(error).strip() or repr(error)).splitlines()[0]}", 1) from None


# -- the command

def follow(output, flag, project, every):
    path, lock = os.path.join(output, "metrics.jsonl"), os.path.join(output, "run.lock")
    if os.path.exists(output) and not os.path.isdir(output):
        raise Wrong(f"{output}: is a file, expected the directory that a run writes to (its \"output\")")
    sink, lines = None, Lines(path)
    make, module = (SINKS[flag][0], _module(flag)) if flag else (Print, None)
    if not os.path.exists(path):
        print(f"{path}: waiting for a run to begin", file=sys.stderr)
    try:
        while True:
            over = os.path.exists(path) and not os.path.exists(lock)  # before reading: what it wrote last is there
            for metrics in lines.new():
                sink = sink or _tried(flag, make, module, output, project)
                found = numbers(metrics)
                _tried(flag, sink.each, found.pop("step"), found)
            if over:
                return
            time.sleep(every)
    finally:
        if sink:
            _tried(flag, sink.end)


def main(words):
    parser = argparse.ArgumentParser("tessera watch", description="Follows OUTPUT/metrics.jsonl to the run's end, or "
                                     "until Ctrl-C, and prints a line a step or passes its numbers on.")
    parser.add_argument("output", metavar="OUTPUT", help="what the run has as \"output\"; it may be still to come")
    to = parser.add_mutually_exclusive_group()
    to.add_argument("--wandb", metavar="PROJECT", help="to Weights & Biases")
    to.add_argument("--mlflow", metavar="EXPERIMENT", help="to MLflow")
    to.add_argument("--tensorboard", action="store_true", help="to files in OUTPUT/tensorboard")
    parser.error = lambda text: parser.exit(2, f"tessera: error: watch: {text} (tessera watch --help)\n")
    said = parser.parse_args(words)
    flag = next((name for name in SINKS if getattr(said, name)), None)
    try:
        follow(said.output, flag, getattr(said, flag) if flag else None, 0.5)
    except Wrong as error:
        print(f"tessera: error: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        pass
    return 0
