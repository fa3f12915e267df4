"""What tessera.export writes means what the network of JAX does: numpy has its loss from graph.json, jax.numpy its
gradients, and `tessera check`, where the environment variable TESSERA names the command, both. Arguments: cases."""
import collections
import json
import os

import jax
import jax.numpy as jnp
import numpy as np

import cases
import interpret
import networks
from cases import DIR, near, tessera
from tessera import from_jax

LOSS, GRADIENT = 1e-6, 1e-4  # relative; a gradient's to its tensor's largest or a thousandth of the network's


def exported(loss_fn, params, batch, batched=None, name="net"):
    to = os.path.join(DIR.name, name)
    tessera.export(loss_fn, params, batch, to=to, batched=batched)
    return to


def network(make):
    loss_fn, params, batch, *batched = make()
    to = exported(loss_fn, params, batch, *batched, name=make.__name__)
    graph, values, stored = interpret.load(to)
    check = graph["check"]
    near("loss", abs(interpret.run(graph, values, stored)["loss"] - check["loss"]), abs(check["loss"]), LOSS)

    def loss(params):
        made = loss_fn(params, batch)
        return made[0] if isinstance(made, tuple) else made
    whole, gradient = jax.jit(jax.value_and_grad(loss))(params)
    near("stored loss", abs(check["loss"] - whole), abs(whole), LOSS)
    wanted = dict(from_jax.names(gradient, "param"))
    names, ops = {f"param:{name}": name for name in graph["params"]}, interpret.in_jax()
    got = jax.jit(jax.grad(lambda p: interpret.run(graph, {**values, **p}, stored, ops)["loss"]))(
        {at: values[at] for at in names})
    assert set(names.values()) == set(wanted) == set(check["gradients"])
    largest = max(np.abs(g).max() for g in wanted.values())
    for at, name in names.items():
        near(f"gradient of {name}", np.abs(got[at] - wanted[name]).max(),
             max(np.abs(wanted[name]).max(), largest / 1000), GRADIENT)
        near(f"its norm, of {name}", abs(np.linalg.norm(wanted[name]) - check["gradients"][name]), largest, GRADIENT)
    cases.command("check", to)


# -- refusals: what is done to x (3, 4), whole numbers i (3) and a parameter w (4, 4); words of the error

def _while(w, x, i):
    return jax.lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 1, x @ w)


def _cond(w, x, i):
    return jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x @ w)


@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1, 1),))
REFUSED = [
    ("a loop whose length depends on data", _while),
    ("a branch that depends on data", _cond),
    ("fft", lambda w, x, i: jnp.abs(jnp.fft.rfft(x @ w))),
    ("cholesky", lambda w, x, i: jnp.linalg.cholesky(w @ w.T + 9 * jnp.eye(4))),
    ("bfloat16", lambda w, x, i: (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32)),
    ("rem of uint32", lambda w, x, i: jax.random.randint(jax.random.PRNGKey(i[0]), (4,), 0, 9) * (x @ w)),
    ("random numbers that are not threefry's", lambda w, x, i: jax.random.normal(
        jax.random.key(i[0], impl="rbg"), (4,)) * (x @ w)),
    ("the derivative of clipped of its own", lambda w, x, i: clipped(x @ w)),
    ("a loop of 300 steps", lambda w, x, i: jax.lax.scan(lambda y, _: (jnp.sin(y), None), x @ w, None, 300)[0]),
    ("population_count", lambda w, x, i: (x @ w) * jax.lax.population_count(i)[:, None]),
]


def refusals():
    params, batch = {"w": networks.draw(4, 4)}, {"x": networks.draw(3, 4), "i": np.arange(3, dtype=np.int32)}
    for words, does in REFUSED:
        line = does.__code__.co_firstlineno
        try:
            exported(lambda p, b: does(p["w"], b["x"], b["i"]).sum(), params, batch, name="refused")
        except tessera.Refused as error:
            said = str(error)
            assert words in said, said
            assert any(f"test_export.py:{k} " in said for k in (line, line + 1)), f"line {line}: {said}"
        else:
            raise AssertionError(f"{words}: not refused")
    assert not os.path.exists(os.path.join(DIR.name, "refused"))
    y = exported(lambda p, b: (jnp.fft.rfft(b["x"]), (b["x"] @ p["w"]).sum())[1], params, batch)  # nobody reads it
    assert "fft" not in open(os.path.join(y, "graph.json")).read()


def wrong_arguments():
    params, batch = {"w": networks.draw(4, 4)}, {"x": networks.draw(3, 4), "z": networks.draw(5)}

    def loss_fn(params, batch):
        return (batch["x"] @ params["w"]).sum() + batch["z"].sum()
    for words, arguments in [
            ("differ (x has 3, z has 5)", (loss_fn, params, batch)),
            ("'y' is none of", (loss_fn, params, batch, ["y"])),
            ("params: n is int32", (loss_fn, {**params, "n": np.int32(3)}, batch, ["x"])),
            ("the loss is float32 of shape [3, 4]", (lambda p, b: b["x"] @ p["w"], params, batch, ["x"])),
            ("the loss is nan", (lambda p, b: jnp.log(-jnp.abs(p["w"]).sum()), params, batch, ["x"])),
            ("two leaves of the params", (lambda p, b: p["a.b"] + p["a"]["b"],
                                          {"a.b": np.float32(1), "a": {"b": np.float32(2)}}, batch, ["x"]))]:
        try:
            exported(*arguments)
        except ValueError as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"{words}: not refused")


# -- the file

def shape_of_the_file():
    def loss_fn(params, batch):
        scores = jnp.where(jnp.tril(jnp.ones((6, 6), bool)), batch["x"] @ params["w"], -jnp.inf)
        logits = jax.nn.log_softmax(scores * 0.5)
        table = jnp.where(jnp.arange(6) < 3, -jnp.inf, jnp.arange(6.0))
        n, t = jnp.arange(4)[:, None], jnp.arange(6)[None]
        return -logits[n, t, batch["y"]].mean(), {"most": logits.max(), "low": jnp.exp(table).sum() + params["w"][0, 0]}
    batch = {"x": networks.draw(4, 6, 6), "y": np.tile(np.arange(6, dtype=np.int32) // 2, (4, 1))}
    to = exported(loss_fn, {"w": networks.draw(6, 6)}, batch)
    graph, values, stored = interpret.load(to)
    assert graph["inputs"] == {"x": {"shape": [4, 6, 6], "dtype": "float32", "batch": 0},
                               "y": {"shape": [4, 6], "dtype": "int32", "batch": 0}}, graph["inputs"]
    assert list(graph["outputs"]) == ["loss", "low", "most"] and graph["producer"] == f"jax {jax.__version__}"
    assert list(values["param:w"].shape) == [6, 6] and np.array_equal(stored["y"], batch["y"])
    gather, = [n for n in graph["nodes"] if n["op"] == "gather"]  # an index that counts samples is their dimension
    assert gather["batch"] == [[0, 1], [0, 1]] and gather["start"] == [2], gather
    assert all("test_export.py:" in n["at"] and n["at"].endswith("(loss_fn)") for n in graph["nodes"])
    numbers = {f"const:{name}" for name, said in graph["consts"].items() if said["shape"] == []}
    assert not [n for n in graph["nodes"] if n["op"] == "broadcast" and n["in"][0] in numbers]  # maps read them so
    infinite = [name for name, said in graph["consts"].items() if "value" not in said]
    assert infinite and not all(np.isfinite(values[f"const:{name}"]).all() for name in infinite)
    assert sum(said["shape"] == [6, 6] for said in graph["consts"].values()) == 1  # the mask, of one sample


def states():
    """What flax has of a batch norm, and a counter: updates are those of JAX, and come back in their tree."""
    net, batch = networks.normed(), {"x": networks.draw(4, 8, 8, 3), "y": networks.whole(5, 4)}
    made = jax.jit(net.init)(jax.random.PRNGKey(0), batch["x"])
    state = {"stats": made["batch_stats"], "steps": np.int32(3)}

    def loss_fn(params, batch, state):
        out, new = net.apply({"params": params, "batch_stats": state["stats"]}, batch["x"], mutable=["batch_stats"])
        loss = ((out - jax.nn.one_hot(batch["y"], 5)) ** 2).mean() / state["steps"]
        return loss, ({"most": out.max()}, {"stats": new["batch_stats"], "steps": state["steps"] + 1})
    to = os.path.join(DIR.name, "states")
    tessera.export(loss_fn, made["params"], batch, to=to, state=state)
    graph, values, stored = interpret.load(to)
    got = interpret.run(graph, values, stored)
    loss, (_, wanted) = jax.jit(loss_fn)(made["params"], batch, state)
    near("loss", abs(got["loss"] - loss), loss, LOSS)
    for name, leaf in from_jax.names(wanted, "state"):
        np.testing.assert_allclose(got[name], leaf, rtol=1e-5, atol=1e-6)
    cases.command("check", to)
    params, same = tessera.load(to, like=made["params"], state=state)
    jax.tree_util.tree_map(np.testing.assert_array_equal, (params, same), (made["params"], state))
    assert same["steps"].dtype == np.int32
    try:
        tessera.export(lambda p, b, s: (loss_fn(p, b, s)[0], s), made["params"], batch, to=to, state=state)
    except ValueError as error:
        assert "returns (loss, ({name: value}, state))" in str(error), error
    else:
        raise AssertionError("a state without a dict before it was taken")


def keys():
    """A key that a run draws for each micro-batch: that of its seed, with the number of its first sample folded in."""
    def loss_fn(params, batch, key):
        x = batch["x"] + params["scale"] * jax.random.normal(key, batch["x"].shape)
        return ((x @ params["w"]) ** 2).mean()
    params, x = {"w": networks.draw(6, 3), "scale": networks.draw(6)}, networks.draw(4, 6)
    to = os.path.join(DIR.name, "keys")
    tessera.export(loss_fn, params, {"x": x}, to=to, key=jax.random.key(5))
    if not cases.command("check", to):
        return
    np.save(os.path.join(to, "x.npy"), np.concatenate([x] * 2))
    run = {"model": ".", "data": {"train": {"x": "x.npy"}, "shuffle": False}, "train_batch_size": 8, "steps": 3,
           "seed": 11, "optimizer": {"type": "SGD", "params": {"lr": 0.0}}, "output": "out"}
    with open(os.path.join(to, "run.json"), "w", encoding="utf-8") as file:
        json.dump(run, file)
    cases.command("train", "run.json", at=to)
    with open(os.path.join(to, "out", "metrics.jsonl"), encoding="utf-8") as file:
        losses = [json.loads(line)["loss"] for line in file]
    for step, met in enumerate(losses):
        two = [loss_fn(params, {"x": x}, jax.random.fold_in(jax.random.key(11), 8 * step + first)) for first in (0, 4)]
        near(f"loss of step {step}", abs(met - np.mean(two)), abs(np.mean(two)), 1e-6)
    assert len(set(losses)) == 3


def trees():
    Pair = collections.namedtuple("Pair", "left right")
    params = {"a": [np.float32(1), (np.ones(2, np.float32), None)], "none": {},
              "p": Pair(np.zeros(3, np.float32), {"z": np.ones((1, 1), np.float32)})}

    def loss_fn(params, batch):
        return sum(leaf.sum() for leaf in jax.tree_util.tree_leaves(params)) * batch.mean()
    to = exported(loss_fn, params, np.ones(4, np.float32))
    loaded = tessera.load(to)
    expected = {**params, "p": params["p"]._asdict()}
    assert jax.tree_util.tree_structure(loaded) == jax.tree_util.tree_structure(expected), loaded
    jax.tree_util.tree_map(np.testing.assert_array_equal, loaded, expected)
    same = tessera.load(to, like=params)
    assert jax.tree_util.tree_structure(same) == jax.tree_util.tree_structure(params)
    assert set(json.load(open(os.path.join(to, "graph.json")))["params"]) == {"a.0", "a.1.0", "p.left", "p.right.z"}
    try:
        tessera.load(to, like={**params, "a": [np.ones(2, np.float32), params["a"][1]]})
    except ValueError as error:
        assert "a.0: met [], expected shape [2]" in str(error), error
    else:
        raise AssertionError("another shape was taken")


def graph_example():
    cases.learns(cases.example("graphs", 512, "steps=60", "eval_every=60"), 0.2)


CASES = {make.__name__: (lambda make=make: network(make)) for make in networks.ALL}
CASES.update({case.__name__: case for case in (refusals, wrong_arguments, shape_of_the_file, states, keys, trees,
                                              graph_example)})

if __name__ == "__main__":
    cases.main(CASES)
