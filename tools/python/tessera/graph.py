"""A network as graph.json has it (docs/graph-file.md): values, nodes that make them, and the directory that holds them.

    g = Graph("by hand")
    x, w = g.leaf("input", "x", (8, 3), "float32", batch=0), g.leaf("param", "w", (3,), "float32")
    y = g.map("mul", [x, g.broadcast(w, (8, 3), [1])], (8, 3))
    g.outputs["loss"] = g.reduce("sum", y, [0, 1])
    g.write("my-net", {"w": numpy.ones(3, "float32")})

What nodes make is simplified on the way: views of views are one view, what is known is a constant once, and a constant
that repeats itself is a broadcast of its part."""
import hashlib
import json
import os

import numpy as np

from . import files

INLINE = 64  # numbers: a constant that is no larger stands in the JSON
RANK_MOST = 8
PARTS = 64  # of a concat
DTYPES = ("float32", "int32", "bool")  # of what nodes read and make
TESTS = ("lt", "le", "gt", "ge", "eq", "ne", "is_finite")
# A map with this constant as operand is its other operand: function, operand, constant.
NEUTRAL = {("add", 0, 0), ("add", 1, 0), ("sub", 1, 0), ("mul", 0, 1), ("mul", 1, 1), ("div", 1, 1),
           ("max", 0, -np.inf), ("max", 1, -np.inf), ("min", 0, np.inf), ("min", 1, np.inf)}


def whole(numbers):
    """Returns a list that JSON takes, whatever kind of whole numbers they are."""
    return [int(n) for n in numbers]


def batch_dimensions(inputs, batched):
    """Returns {name: dimension} of the inputs that count samples: the first one, unless `batched` is such a dict."""
    shapes = {name: leaf.shape for name, leaf in inputs if leaf.ndim}
    chosen = batched if isinstance(batched, dict) else dict.fromkeys(shapes if batched is None else batched, 0)
    for name, dim in chosen.items():
        if name not in shapes:
            raise ValueError(f"batched: {name!r} is none of the batch's arrays with a dimension, which are "
                             f"{list(shapes)}")
        if not 0 <= dim < len(shapes[name]):
            raise ValueError(f"batched: {name} has no dimension {dim}, its shape is {list(shapes[name])}")
    counts = {name: shapes[name][dim] for name, dim in chosen.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise ValueError(f"the first dimensions of the batch differ ({said}): "
                         "batched=[...] says which of them count samples, [] that none does")
    return chosen


class Refused(Exception):
    """What Tessera does not do, by name, with the lines of the user's program that ask for it."""


class Value:
    """What a node reads: an input, a parameter, a constant (with its array), or what a node made."""

    def __init__(self, kind, name, shape, dtype, op=None, of=(), attrs=None, at="", data=None):
        self.kind, self.name, self.op, self.of, self.attrs, self.at, self.data = kind, name, op, of, attrs, at, data
        self.shape, self.dtype = tuple(whole(shape)), str(dtype)
        self.fixed = kind in ("const", "input") or kind == "node" and all(v.fixed for v in of)

    def __str__(self):
        return self.name if self.kind == "node" else f"{self.kind}:{self.name}"


class Graph:
    def __init__(self, producer):
        self.producer, self.at, self.outputs, self.tree = producer, "", {}, None
        self.leaves = {"input": {}, "param": {}, "state": {}}
        self.batch, self.updates, self.drawn, self.draws = {}, {}, set(), 0
        self.nodes, self.consts, self.same = [], {}, {}

    # -- values

    def leaf(self, kind, name, shape, dtype, batch=None):
        """Returns a new input, parameter or state. What replaces a state after a step is updates[name]."""
        if name in self.leaves[kind]:
            raise ValueError(f"two leaves of the {kind}s are called {name!r}")
        self.leaves[kind][name] = value = Value(kind, name, shape, dtype)
        if batch is not None:
            self.batch[name] = batch
        return value

    def const(self, array):
        """Returns the value of an array; dimensions along which it repeats itself are broadcast."""
        array = np.asarray(array)
        part = array
        for dim in range(array.ndim if array.size > 1 else 0):
            first = part[(slice(None),) * dim + (slice(0, 1),)]
            if part.shape[dim] > 1 and np.array_equal(part, np.broadcast_to(first, part.shape),
                                                      equal_nan=part.dtype.kind == "f"):
                part = first
        if part.shape != array.shape:
            kept = [k for k, d in enumerate(part.shape) if d > 1]
            return self.broadcast(self.const(part.reshape([part.shape[k] for k in kept])), array.shape, kept)
        key = (str(array.dtype), array.shape, hashlib.sha256(np.ascontiguousarray(array)).digest())
        if key not in self.consts:
            self.consts[key] = Value("const", str(len(self.consts)), array.shape, array.dtype, data=array)
        return self.consts[key]

    def node(self, op, of, shape, dtype, **attrs):
        """Returns what a node makes. Of equal nodes that no parameter reaches there is one."""
        value = Value("node", None, shape, dtype, op, tuple(of), attrs, self.at)
        if not value.fixed:
            self.nodes.append(value)
            return value
        key = (op, tuple(id(v) for v in of), value.shape, value.dtype, json.dumps(attrs))
        if key not in self.same:
            self.same[key] = value
            self.nodes.append(value)
        return self.same[key]

    def refuse(self, why, shape, dtype, of=()):
        """Returns a value that must not be read: read() names all such that are, and what they are made of."""
        value = Value("node", None, shape, dtype, "refused", tuple(of), {"why": why}, self.at)
        self.nodes.append(value)
        return value

    # -- ops

    def map(self, fn, of, shape, dtype=None, **attrs):
        shape = tuple(shape)
        dtype = str(dtype or ("bool" if fn in TESTS else of[-1].dtype))
        if fn in ("cast", "copy") and of[0].dtype == dtype:
            return of[0]
        of = [self._operand(v, shape) for v in of]
        for k, v in enumerate(of):
            if v.kind == "const" and v.shape == () and (fn, k, v.data.item()) in NEUTRAL:
                other = of[1 - k]
                return other if other.shape == shape else self.broadcast(other, shape, [])
        if shape != () and all(v.shape == () for v in of):
            return self.broadcast(self.node("map", of, (), dtype, fn=fn, **attrs), shape, [])
        return self.node("map", of, shape, dtype, fn=fn, **attrs)

    def _operand(self, v, shape):
        if v.op == "broadcast" and v.of[0].shape == ():
            return v.of[0]
        if v.shape in ((), shape):
            return v
        first = len(shape) - len(v.shape)
        return self.broadcast(v, shape, range(first, len(shape)))

    def cast(self, x, dtype):
        return self.map("cast", [x], x.shape, dtype)

    def reduce(self, fn, x, dims):
        dims = sorted(whole(dims))
        if not dims:
            return x
        shape = [d for k, d in enumerate(x.shape) if k not in dims]
        return self.node("reduce", [x], shape, "int32" if fn.startswith("arg") else x.dtype, fn=fn, dims=dims)

    def dot(self, a, b, contract, batch=((), ())):
        contract, batch = ([whole(side) for side in sides] for sides in (contract, batch))
        free = [[d for k, d in enumerate(v.shape) if k not in (*c, *n)]
                for v, c, n in zip((a, b), contract, batch)]
        shape = [a.shape[d] for d in batch[0]] + free[0] + free[1]
        return self.node("dot", [a, b], shape, a.dtype, contract=contract, batch=batch)

    def reshape(self, x, shape):
        shape = tuple(whole(shape))
        if x.op == "reshape":
            x = x.of[0]
        return x if shape == x.shape else self.node("reshape", [x], shape, x.dtype)

    def broadcast(self, x, shape, dims):
        shape, dims = tuple(whole(shape)), whole(dims)
        if x.op == "reshape" and [d for d in x.shape if d != 1] == [d for d in x.of[0].shape if d != 1]:
            there = iter(d for d, n in zip(dims, x.shape) if n != 1)  # where dimensions that count come to lie
            x = x.of[0] if 1 not in x.of[0].shape else self.reshape(x.of[0], [d for d in x.of[0].shape if d != 1])
            dims = [next(there) for _ in x.shape]
        if x.op == "broadcast":
            x, dims = x.of[0], [dims[d] for d in x.attrs["dims"]]
        if shape == x.shape and dims == list(range(len(shape))):
            return x
        if np.prod(shape) == np.prod(x.shape) and dims == sorted(dims):
            return self.reshape(x, shape)
        return self.node("broadcast", [x], shape, x.dtype, dims=dims)

    def transpose(self, x, perm):
        perm = whole(perm)
        if x.op == "transpose":
            x, perm = x.of[0], [x.attrs["perm"][p] for p in perm]
        if perm == sorted(perm):
            return x
        return self.node("transpose", [x], [x.shape[p] for p in perm], x.dtype, perm=perm)

    def slice(self, x, lo, hi, step=None):
        lo, hi, step = whole(lo), whole(hi), whole(step or [1] * len(lo))
        shape = tuple(-(-(h - l) // s) for l, h, s in zip(lo, hi, step))
        return x if shape == x.shape else self.node("slice", [x], shape, x.dtype, lo=lo, hi=hi, step=step)

    def part(self, x, dim, lo, hi):
        """Returns [lo, hi) of one dimension."""
        return self.slice(x, [lo if k == dim else 0 for k in range(len(x.shape))],
                          [hi if k == dim else d for k, d in enumerate(x.shape)])

    def concat(self, parts, dim):
        parts = [v for v in parts if v.shape[dim]]
        if len(parts) == 1:
            return parts[0]
        if len(parts) > PARTS:
            return self.concat([self.concat(parts[k:k + PARTS], dim) for k in range(0, len(parts), PARTS)], dim)
        shape = list(parts[0].shape)
        shape[dim] = sum(v.shape[dim] for v in parts)
        return self.node("concat", parts, shape, parts[0].dtype, dim=int(dim))

    def pad(self, x, value, pads):
        pads = [whole(along) for along in pads]
        if not any(n for along in pads for n in along):
            return x
        shape = [d + before + after + max(d - 1, 0) * between for d, (before, after, between) in zip(x.shape, pads)]
        return self.node("pad", [x, value], shape, x.dtype, pads=pads)

    def rev(self, x, dims):
        return self.node("rev", [x], x.shape, x.dtype, dims=whole(dims)) if dims else x

    def iota(self, shape, dtype, dim):
        return self.node("iota", [], shape, dtype, dim=int(dim))

    def gather(self, x, indices, shape, offset, collapsed, start, batch, sizes, mode, **fill):
        indices, where = self._batched(x, indices, whole(collapsed), whole(start), [whole(side) for side in batch])
        return self.node("gather", [x, indices], shape, x.dtype, offset=whole(offset), **where, sizes=whole(sizes),
                         mode=mode, **fill)

    def scatter(self, fn, x, indices, updates, offset, collapsed, start, batch, mode):
        indices, where = self._batched(x, indices, whole(collapsed), whole(start), [whole(side) for side in batch])
        return self.node("scatter", [x, indices, updates], x.shape, x.dtype, fn=fn, offset=whole(offset), **where,
                         mode=mode)

    def _batched(self, x, indices, collapsed, start, batch):
        """Has an index that only counts a dimension, as in logits[arange(n), y], be a dimension of the batch: samples
        then need no others' rows."""
        last = len(indices.shape) - 1
        parts, k = list(indices.of) if indices.op == "concat" and indices.attrs["dim"] == last else [indices], 0
        for part in list(parts):
            dim = start[k] if part.shape[last] == 1 else None
            along = dim in collapsed and len(parts) > 1 and self._counts(part, x.shape[dim])
            if not along or along[0] in batch[1]:
                k += part.shape[last]
                continue
            parts.remove(part)
            start.remove(dim)
            collapsed.remove(dim)
            batch = [list(side) for side in zip(*sorted([*zip(*batch), (dim, along[0])]))]
        indices = self.concat(parts, last)
        return indices, {"collapsed": collapsed, "start": start, "batch": batch}

    def _counts(self, v, count):
        """Returns [the dimension] along which a constant is 0, 1, ... count - 1 and equal along all others, or []."""
        array = self.known(v)
        if array is None:
            return []
        for dim, n in enumerate(array.shape[:-1]):
            if n == count and np.array_equal(array, np.broadcast_to(
                    np.arange(n).reshape([n if k == dim else 1 for k in range(array.ndim)]), array.shape)):
                return [dim]
        return []

    def known(self, v):
        """Returns the array of a value that depends on no input, as far as views of constants go, or None."""
        if v.kind == "const":
            return v.data
        if v.op not in ("broadcast", "reshape"):
            return None
        array = self.known(v.of[0])
        if array is None or v.op == "reshape":
            return None if array is None else array.reshape(v.shape)
        shape = [1] * len(v.shape)
        for dim, n in zip(v.attrs["dims"], array.shape):
            shape[dim] = n
        return np.broadcast_to(array.transpose(np.argsort(v.attrs["dims"])).reshape(shape), v.shape)

    def conv(self, x, w, orders, strides, pads, between, apart, groups):
        """`orders` names the dimensions of x, w and the result: samples, channels (of w outputs, inputs), space."""
        lhs, rhs, out = map(whole, orders)
        shape = [0] * len(x.shape)
        shape[out[0]], shape[out[1]] = x.shape[lhs[0]], w.shape[rhs[0]]
        for k, (lo, hi) in enumerate(pads):
            wide = (x.shape[lhs[k + 2]] - 1) * between[k] + lo + hi - (w.shape[rhs[k + 2]] - 1) * apart[k]
            shape[out[k + 2]] = wide // strides[k] + 1
        return self.node("conv", [x, w], shape, x.dtype, lhs=lhs, rhs=rhs, out=out, strides=whole(strides),
                         pads=[whole(along) for along in pads], lhs_dilation=whole(between), rhs_dilation=whole(apart),
                         groups=int(groups))

    def window(self, fn, x, size, strides, pads, between=None, apart=None):
        """The sum, max or min of windows: lists have an entry for each dimension of x."""
        ones = [1] * len(x.shape)
        between, apart = between or ones, apart or ones
        shape = [((n - 1) * b + lo + hi - (k - 1) * a) // s + 1
                 for n, k, s, (lo, hi), b, a in zip(x.shape, size, strides, pads, between, apart)]
        return self.node("window", [x], shape, x.dtype, fn=fn, size=whole(size), strides=whole(strides),
                         pads=[whole(along) for along in pads], base_dilation=whole(between), dilation=whole(apart))

    def cum(self, fn, x, dim, reverse=False):
        return self.node("cum", [x], x.shape, x.dtype, fn=fn, dim=int(dim), **({"reverse": True} if reverse else {}))

    def sort(self, x, dim, descending=False):
        """The places of x's elements in the order of their values."""
        return self.node("sort", [x], x.shape, "int32", dim=int(dim), **({"descending": True} if descending else {}))

    def along(self, x, dim, at):
        """x's elements at these places of a dimension."""
        others = [k for k in range(len(x.shape)) if k != dim]
        return self.gather(x, self.reshape(at, (*at.shape, 1)), at.shape, [], [dim], [dim], (others, others),
                           [1] * len(x.shape), "clip")

    # -- the directory

    def read(self):
        """Returns the values that outputs and updates are made of, and raises Refused where some must not be read."""
        live, todo = set(), [*self.outputs.values(), *self.updates.values()]
        while todo:
            v = todo.pop()
            if id(v) not in live:
                live.add(id(v))
                todo.extend(v.of)
        leaves = [v for kind in self.leaves.values() for v in kind.values()]
        values = [v for v in [*leaves, *self.consts.values(), *self.nodes] if id(v) in live]
        refusals = {}
        for v in values:
            why = None
            if v.op == "refused":
                why = v.attrs["why"]
            elif v.dtype not in DTYPES and (v.kind, v.dtype) != ("input", "uint32"):
                why = f"a value of {v.dtype}, expected one of {', '.join(DTYPES)}"
            elif 0 in v.shape or len(v.shape) > RANK_MOST:
                why = f"a value of shape {list(v.shape)}, expected up to {RANK_MOST} dimensions, none of them 0"
            if why:
                where = v.at or (str(v) if v.kind in self.leaves else "unknown line")
                refusals[f"{where}: {why}"] = None
        if refusals:
            raise Refused("\n".join(refusals))
        return values

    def write(self, to, weights, check=None, batch=None):
        """Writes the directory `to`: the graph, its weights, and figures with the batch that they are of."""
        values = self.read()
        nodes, consts = ([v for v in values if v.kind == kind] for kind in ("node", "const"))
        for k, v in enumerate(nodes):
            v.name = str(k)
        for k, v in enumerate(consts):
            v.name = str(k)

        def said(v, **more):
            return {"shape": list(v.shape), "dtype": v.dtype, **more}
        large = [v for v in consts if v.data.size > INLINE or not np.isfinite(v.data).all()]

        def number(v):
            numbers = v.data.astype("int32" if v.dtype == "bool" else v.dtype).ravel().tolist()
            return {} if v in large else {"value": numbers}
        graph = {
            "tessera_graph": 1, "producer": self.producer,
            "inputs": {name: said(v, **({"batch": self.batch[name]} if name in self.batch else {}),
                                  **({"drawn": True} if name in self.drawn else {}))
                       for name, v in self.leaves["input"].items()},
            "params": {name: said(v) for name, v in self.leaves["param"].items()},
            **({"state": {name: said(v) for name, v in self.leaves["state"].items()}} if self.updates else {}),
            "consts": {v.name: said(v, **number(v)) for v in consts},
            "nodes": [{"name": v.name, "op": v.op, "in": [str(i) for i in v.of], **said(v), **v.attrs,
                       **({"at": v.at} if v.at else {})} for v in nodes],
            "outputs": {name: str(v) for name, v in self.outputs.items()},
            **({"updates": {name: str(v) for name, v in self.updates.items()}} if self.updates else {}),
            **({"tree": self.tree} if self.tree is not None else {}), **({"check": check} if check else {})}
        os.makedirs(to, exist_ok=True)
        files.save(os.path.join(to, "weights.safetensors"), {**weights, **{str(v): v.data for v in large}})
        if batch is not None:
            files.save(os.path.join(to, "check.safetensors"), batch)
        files.write_whole(os.path.join(to, "graph.json"), lambda file: file.write(text(graph).encode()))


def text(graph):
    """Returns the JSON of a graph, a line for each node."""
    lines = []
    for key, value in graph.items():
        if key == "nodes":
            value = "[\n    " + ",\n    ".join(json.dumps(node, allow_nan=False) for node in value) + "\n  ]"
        else:
            value = json.dumps(value, allow_nan=False)
        lines.append(f'"{key}": {value}')
    return "{\n  " + ",\n  ".join(lines) + "\n}\n"
