"""The library from Python: a run stepped by tessera.Trainer has the bits of `tessera train`, on one rank and two, and
first_model.py those of first-model.c. The environment names what was built: TESSERA the command, LIBTESSERA the
library, FIRST_MODEL the C program. Arguments: cases; or `ranks DIR`, what one rank of mpirun does."""
import hashlib
import json
import os
import subprocess
import sys

import numpy as np

import cases
from cases import DIR, tessera
from tessera import engine

HERE = os.path.dirname(os.path.abspath(__file__))
MLP = os.path.join(HERE, "..", "models", "fixtures", "imported", "mlp")
STEPS, BATCH = 6, 32
CONFIG = {"model": MLP, "train_batch_size": BATCH, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 3}}, "steps": STEPS}


def batches():
    random = np.random.RandomState(1)
    return [{"x": random.randn(BATCH, 5).astype(np.float32), "y": random.randn(BATCH, 3)} for _ in range(STEPS)]


def sha(directory):
    found = [name for name in sorted(os.listdir(directory)) if name.endswith(".safetensors")]
    return hashlib.sha256(b"".join(open(os.path.join(directory, name), "rb").read() for name in found)).hexdigest()


def inside(name):
    return os.path.join(DIR.name, name)


def command_run():
    """Returns the metrics of the command on these batches, and its model's sha."""
    for key in ("x", "y"):
        np.save(inside(f"{key}.npy"), np.concatenate([batch[key] for batch in batches()]))
    data = {"train": {"x": "x.npy", "y": "y.npy"}, "shuffle": False}
    with open(inside("run.json"), "w", encoding="utf-8") as file:
        json.dump({**CONFIG, "data": data, "output": "out", "overwrite": True}, file)
    cases.command("train", "run.json")
    with open(inside("out/metrics.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file], sha(inside("out/model"))


def steps():
    wanted, weights = command_run()
    met = []
    with tessera.Trainer(CONFIG) as t:
        assert t.inputs == {"x": ((BATCH, 5), np.float32), "y": ((BATCH, 3), np.float32)}, t.inputs
        first = t.eval(batches()[0])
        last = t.train(batches(), [lambda trainer, metrics: met.append(metrics)])
        assert last == met[-1] and t.steps == STEPS
        assert met[0]["loss"] == first != t.eval(batches()[0])
        for a, b in zip(met, wanted, strict=True):
            assert all(a[key] == b[key] for key in ("step", "loss", "lr", "grad_norm")), (a, b)
        t.save(inside("saved"))
        assert sha(inside("saved")) == weights
        saved = tessera.load(inside("saved"))
        for name, array in t.weights().items():
            np.testing.assert_array_equal(array.reshape(saved[name].shape), saved[name])


def inputs():
    """Those that are the same for all samples, and samples that the network has elsewhere but first."""
    network = os.path.join(os.path.dirname(MLP), "inputs")
    check = tessera.files.read(os.path.join(network, "check.safetensors"))
    with open(os.path.join(network, "graph.json"), encoding="utf-8") as file:
        graph = json.load(file)
    dims = {name: said.get("batch") for name, said in graph["inputs"].items()}
    batch = {name: check[name] if dim is None else np.concatenate([np.moveaxis(check[name], dim, 0)] * 2)
             for name, dim in dims.items()}
    with tessera.Trainer({**CONFIG, "model": network, "train_batch_size": len(batch["y"])}) as t:
        assert {name: shape for name, (shape, _) in t.inputs.items()} == {name: v.shape for name, v in batch.items()}
        cases.near("loss", abs(t.eval(batch) - graph["check"]["loss"]), graph["check"]["loss"], 1e-6)
        assert t.step(batch)["loss"] >= t.step(batch)["loss"] > t.step(batch)["loss"]
        try:
            t.step({**batch, "by": np.zeros(2)})
        except ValueError as error:
            assert "by: met [2], expected []" in str(error), error
        else:
            raise AssertionError("another shape was taken")


def resumes():
    with tessera.Trainer(CONFIG) as t:
        assert not t.resume(inside("none"))
        t.train(batches()[:3])
        t.checkpoint(inside("checkpoints"))
        t.train(batches()[3:])
        wanted = t.weights()
    with tessera.Trainer(CONFIG) as t:
        assert t.resume(inside("checkpoints")) and t.steps == 3
        ended = t.train(batches()[3:], [lambda trainer, metrics: metrics["step"] < 5])
        assert ended["step"] == 5  # a callback ended it
        t.train(batches()[5:])
        assert all(np.array_equal(array, wanted[name]) for name, array in t.weights().items())


def one_rank(directory):
    with tessera.Trainer(CONFIG, **{"zero_optimization.stage": 3, "deterministic": True}) as t:
        t.train(batches())
        weights = t.weights()
        t.save(directory)
        saved = tessera.load(directory)
        assert all(np.array_equal(array.reshape(saved[n].shape), saved[n]) for n, array in weights.items())


def ranks():
    program = ["mpirun", "--oversubscribe", "-n", "2", sys.executable, __file__, "ranks", inside("two")]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, env={**os.environ, **root})
    assert not done.returncode, done.stderr
    one_rank(inside("one"))
    assert sha(inside("two")) == sha(inside("one"))


def tokens():
    """A network of a family, and a rate of the program's own."""
    model = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 8, "vocab_size": 11}
    config = {"model": model, "train_batch_size": 2, "data": {"seq_length": 8},
              "optimizer": {"type": "AdamW", "params": {"lr": 0.5}}}
    batch = {"ids": np.arange(16).reshape(2, 8) % 11, "targets": np.arange(1, 17).reshape(2, 8) % 11}
    with tessera.Trainer(config, seed=3) as t:
        losses = [t.step(batch, lr=0.01)["loss"] for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0], losses


def errors():
    batch = batches()[0]
    with tessera.Trainer(CONFIG) as t:
        for words, wrong in [("the batch has ['x'], expected ['x', 'y']", {"x": batch["x"]}),
                             ("x: met [4, 5], expected [32, 5]", {**batch, "x": batch["x"][:4]})]:
            try:
                t.step(wrong)
            except ValueError as error:
                assert words in str(error), error
            else:
                raise AssertionError(words)
        try:
            t.step({**batch, "x": batch["x"] * np.inf})
        except engine.Error as error:
            assert error.status == 1 and "not finite" in str(error), error
        else:
            raise AssertionError("an infinite loss was taken")
    for words, config in [("nowhere", {**CONFIG, "model": "nowhere"}), ("unknown", {**CONFIG, "optimiser": {}}),
                          ("train_batch_size", {"model": MLP})]:
        try:
            tessera.Trainer(config)
        except engine.Error as error:
            assert error.status == 2 and words in str(error), error
        else:
            raise AssertionError(f"{words}: taken")
    for words, call in [("takes 3 arguments", lambda: engine.linear()), ("are not taken", lambda: engine.add(1, 2, 3)),
                        ("expected a contiguous one of int32", lambda: engine.step_feed_values(
                            None, None, np.zeros(3), 3))]:
        try:
            call()
        except TypeError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"{words}: taken")


def first_model():
    if "FIRST_MODEL" not in os.environ:
        return
    program = os.path.join(HERE, "..", "..", "docs", "examples", "first_model.py")
    path = {"PYTHONPATH": os.path.join(HERE, "..", "..", "tools", "python")}
    subprocess.run([os.environ["FIRST_MODEL"], inside("c")], check=True, stdout=subprocess.DEVNULL)
    for arguments in ([inside("python")], []):
        done = subprocess.run([sys.executable, program, *arguments], check=True, capture_output=True, text=True,
                              env={**os.environ, **path})
        assert "loss" in done.stdout.splitlines()[-1] and not done.stderr, done
    assert sha(inside("c")) == sha(inside("python"))


CASES = {case.__name__: case for case in (steps, inputs, resumes, ranks, tokens, errors, first_model)}

if __name__ == "__main__":
    if sys.argv[1:2] == ["ranks"] and len(sys.argv) == 3:
        one_rank(sys.argv[2])
    else:
        cases.main(CASES)
