"""Networks of JAX as directories that Tessera trains.

    import tessera
    tessera.export(loss_fn, params, batch, to="my-net")   # loss_fn(params, batch) -> the loss
    ...                                                   # tessera train run.json, with "model": "my-net"
    params = tessera.load("my-net")                       # the weights as the same tree"""
import json
import os

from . import files
from .graph import Refused

__all__ = ["export", "load", "Refused"]


def export(loss_fn, params, batch, to, batched=None):
    """Writes the network whose loss is loss_fn(params, batch) into the directory `to`: graph.json and its weights, with
    loss and gradients of this batch for "tessera check". The loss is a float32 of shape (), alone or in a tuple
    (loss, {name: value}) with what "tessera eval" is to print beside it.

    The first dimension of the batch's arrays counts samples where they agree in it; else `batched` lists the names of
    those that have such a dimension. Raises Refused with the lines of the program that ask for what is not done."""
    from . import from_jax
    from_jax.export(loss_fn, params, batch, to, batched)


def load(directory, like=None):
    """Returns the weights in a directory, as numpy arrays in the dicts, lists and tuples that were exported. Nodes of
    other types come as dicts, unless `like` is a tree of JAX whose structure and names of leaves are taken instead."""
    for name in ("weights.safetensors", "model.safetensors"):
        path = os.path.join(directory, name)
        if os.path.exists(path):
            break
    weights = {name: array for name, array in files.read(path).items() if not name.startswith(("const:", "state:"))}
    if like is not None:
        from . import from_jax
        return from_jax.like(like, weights)
    with open(os.path.join(directory, "graph.json"), encoding="utf-8") as file:
        tree = json.load(file).get("tree")
    return weights if tree is None else files.fill(tree, weights)
