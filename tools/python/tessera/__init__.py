"""Networks of JAX and PyTorch as directories that Tessera trains.

    import tessera
    tessera.export(loss_fn, params, batch, to="my-net")   # JAX: loss_fn(params, batch) -> the loss
    tessera.export(module, batch=batch, to="my-net")      # PyTorch: module(**batch) -> the loss
    ...                                                   # tessera train run.json, with "model": "my-net"
    params = tessera.load("my-net")                       # the weights as the same tree

With the library installed, tessera.Trainer makes the steps from Python, and tessera.engine is its C interface."""
import json
import os
import sys

from . import files
from .graph import Refused

__all__ = ["export", "load", "Refused", "Trainer"]


def _torch(x):
    """Whether x is a module of PyTorch, which is not imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.nn.Module)


def export(program, params=None, batch=None, to=None, batched=None, state=None, key=None):
    """Writes a network into the directory `to`: graph.json and its weights, with loss and gradients of this batch for
    "tessera check". The program is a function of JAX, whose loss is program(params, batch), or a module of PyTorch,
    whose loss is module(**batch) and which has its own parameters. The loss is a float32 of shape (), alone or in a
    tuple (loss, {name: value}) with what "tessera eval" is to print beside it.

    The first dimension of the batch's arrays counts samples where they agree in it; else `batched` lists the names of
    those that have such a dimension, or says in a dict which of theirs it is. Raises Refused with the lines of the
    program that ask for what is not done.

    With a `state`, a tree of JAX, the loss is program(params, batch, state) = (loss, ({name: value}, state)): each step
    replaces the state, as running averages are.

    With a `key`, one of jax.random, the program has one more argument behind these: a run gives it another key with
    each micro-batch."""
    if batch is None or to is None or _torch(program) != (params is None) or _torch(program) and (
            state is not None or key is not None):
        raise TypeError("expected export(loss_fn, params, batch, to=DIR) for JAX or "
                        "export(module, batch={...}, to=DIR) for PyTorch")
    if _torch(program):
        from . import from_torch
        from_torch.export(program, batch, to, batched)
    else:
        from . import from_jax
        from_jax.export(program, params, batch, to, batched, state, key)


def load(directory, like=None, state=None):
    """Returns the weights in a directory, as numpy arrays in the dicts, lists and tuples that were exported. Nodes of
    other types come as dicts, unless `like` is a tree of JAX whose structure and names of leaves are taken instead.
    With a module of PyTorch as `like` they come as its state_dict, what the directory lacks as the module has it.
    With a tree of JAX as `state` the states come with them, in its structure: (weights, state)."""
    for name in ("weights.safetensors", "model.safetensors"):
        path = os.path.join(directory, name)
        if os.path.exists(path):
            break
    found = {name: array for name, array in files.read(path).items() if not name.startswith("const:")}
    if _torch(like):
        from . import from_torch
        return from_torch.like(like, found)
    if state is not None:
        from . import from_jax
        kept = {name.removeprefix("state:"): array for name, array in found.items() if name.startswith("state:")}
        return load(directory, like), from_jax.like(state, kept, "state")
    weights = {name: array for name, array in found.items() if not name.startswith("state:")}
    if like is not None:
        from . import from_jax
        return from_jax.like(like, weights)
    with open(os.path.join(directory, "graph.json"), encoding="utf-8") as file:
        tree = json.load(file).get("tree")
    return weights if tree is None else files.fill(tree, weights)


def __getattr__(name):
    if name != "Trainer":
        raise AttributeError(f"module tessera has no {name}")
    from .trainer import Trainer  # which loads the library
    return Trainer
