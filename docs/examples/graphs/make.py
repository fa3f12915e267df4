"""Data and network for graphs: balls in space, joined by springs, and the energy that the springs hold.

A sample is a graph of 12 nodes and 30 edges: places.npy (samples, 12, 3), stiffness.npy (samples, 30), edges.npy
(samples, 2, 30) and energy.npy (samples). Writes these and the directory net, a network of messages in plain JAX.
Argument: samples (4096)."""
import sys

import jax
import jax.numpy as jnp
import numpy as np

import tessera

NODES, EDGES, BATCH, WIDTH, ROUNDS = 12, 30, 32, 32, 2


def springs(count, random):
    places = random.randn(count, NODES, 3)
    edges = np.stack([[random.choice(NODES, 2, replace=False) for _ in range(EDGES)] for _ in range(count)])
    edges = edges.transpose(0, 2, 1)
    stiffness = random.uniform(0.5, 2, (count, EDGES))
    ends = np.take_along_axis(places, edges.reshape(count, -1, 1), 1).reshape(count, 2, EDGES, 3)
    energy = (stiffness * (np.linalg.norm(ends[:, 0] - ends[:, 1], axis=-1) - 1) ** 2).sum(1) / EDGES
    made = {"places": places, "stiffness": stiffness, "edges": edges, "energy": energy}
    return {name: a.astype(np.int32 if name == "edges" else np.float32) for name, a in made.items()}


def layers(random, *sizes):
    return [{"w": (random.randn(a, b) / np.sqrt(a)).astype(np.float32), "b": np.zeros(b, np.float32)}
            for a, b in zip(sizes, sizes[1:])]


def perceptron(params, x):
    for k, layer in enumerate(params):
        x = x @ layer["w"] + layer["b"]
        x = jax.nn.silu(x) if k + 1 < len(params) else x
    return x


def parameters(random):
    rounds = [{"message": layers(random, 2 * WIDTH + 2, WIDTH, WIDTH),
               "update": layers(random, 2 * WIDTH, WIDTH, WIDTH)} for _ in range(ROUNDS)]
    return {"begin": layers(random, 3, WIDTH), "rounds": rounds, "end": layers(random, WIDTH, WIDTH, 1)}


def energy(params, places, stiffness, edges):
    """Of one graph: nodes hear of their neighbours by messages along the edges, which are added up."""
    a, b = edges
    length = jnp.sqrt(((places[a] - places[b]) ** 2).sum(-1) + 1e-6)
    h = perceptron(params["begin"], places)
    for r in params["rounds"]:
        along = jnp.concatenate([h[a], h[b], length[:, None], stiffness[:, None]], -1)
        heard = jax.ops.segment_sum(perceptron(r["message"], along), b, NODES)
        h = h + perceptron(r["update"], jnp.concatenate([h, heard], -1))
    return perceptron(params["end"], h).mean()


def loss_fn(params, batch):
    met = jax.vmap(energy, (None, 0, 0, 0))(params, batch["places"], batch["stiffness"], batch["edges"])
    return ((met - batch["energy"]) ** 2).mean()


if __name__ == "__main__":
    data = springs(int(sys.argv[1]) if len(sys.argv) > 1 else 4096, np.random.RandomState(0))
    for name, array in data.items():
        np.save(f"{name}.npy", array)
    first = {name: array[:BATCH] for name, array in data.items()}
    tessera.export(loss_fn, parameters(np.random.RandomState(1)), first, to="net")
    print(f"{len(data['energy'])} graphs")
