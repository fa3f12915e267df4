"""graph.json executed: what the format means, for tests. Each op follows docs/graph-file.md alone, and keys that are
not in it are refused as a reader must. In numpy it is the oracle of values; in jax.numpy it has gradients as well."""
import json
import math
import os

import numpy as np

from tessera import files

erf = np.vectorize(math.erf, otypes=[np.float64])


def threefry(*operands):
    """Threefry 2x32 as Salmon et al. have it, of 20 rounds, of the counter (0, c)."""
    k0, k1, c = (x.view(np.uint32) for x in operands)
    keys, x, y = [k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA)], k0 + c * np.uint32(0), c + k1
    for turn in range(20):
        by = np.uint32([[13, 15, 26, 6], [17, 29, 16, 24]][turn // 4 % 2][turn % 4])
        x = x + y
        y = x ^ (y << by | y >> np.uint32(32 - by))
        if turn % 4 == 3:
            part = turn // 4 + 1
            x, y = x + keys[part % 3], y + keys[(part + 1) % 3] + np.uint32(part)
    return x.view(np.int32), y.view(np.int32)


FUNCTIONS = {
    "copy": lambda x: x, "stop": lambda x: x, "neg": np.negative, "abs": np.abs, "sign": np.sign, "floor": np.floor,
    "ceil": np.ceil, "round": np.rint, "exp": np.exp, "log": np.log, "log1p": np.log1p, "expm1": np.expm1,
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "tanh": np.tanh, "logistic": lambda x: 1 / (1 + np.exp(-x)), "erf": erf, "erfc": lambda x: 1 - erf(x),
    "square": np.square, "is_finite": np.isfinite, "not": np.invert, "add": np.add, "sub": np.subtract,
    "mul": np.multiply, "rem": np.fmod, "pow": np.power, "max": np.maximum, "min": np.minimum, "atan2": np.arctan2,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal, "select": np.where,
    "clamp": lambda lo, x, hi: np.minimum(np.maximum(x, lo), hi),
    "shl": np.left_shift, "shr": lambda a, b: (a.view(np.uint32) >> b.view(np.uint32)).view(np.int32),
    "bits": lambda x: x.view(np.int32 if x.dtype.kind == "f" else np.float32),
    "threefry": lambda *x: threefry(*x)[0] ^ threefry(*x)[1], "threefry_0": lambda *x: threefry(*x)[0],
    "threefry_1": lambda *x: threefry(*x)[1],
    "div": lambda a, b: np.trunc(a / b) if a.dtype.kind == "i" else a / b}
REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "and": np.all, "or": np.any}
KEYS = {"map": {"fn", "y"}, "reduce": {"fn", "dims"}, "dot": {"contract", "batch"}, "reshape": set(),
        "broadcast": {"dims"}, "transpose": {"perm"}, "slice": {"lo", "hi", "step"}, "concat": {"dim"}, "pad": {"pads"},
        "rev": {"dims"}, "iota": {"dim"},
        "gather": {"offset", "collapsed", "start", "batch", "sizes", "mode", "fill"},
        "scatter": {"offset", "collapsed", "start", "batch", "mode", "fn"},
        "window": {"fn", "size", "strides", "pads", "base_dilation", "dilation"},
        "cum": {"fn", "dim", "reverse"}, "sort": {"dim", "descending"},
        "conv": {"lhs", "rhs", "out", "strides", "pads", "lhs_dilation", "rhs_dilation", "groups"}}


def load(directory):
    """Returns the graph, its values without the batch, and the stored batch."""
    with open(os.path.join(directory, "graph.json"), encoding="utf-8") as file:
        graph = json.load(file, parse_constant=lambda c: 1 / 0)
    stored = files.read(os.path.join(directory, "weights.safetensors"))
    values = {f"param:{name}": stored[name] for name in graph["params"]}
    values |= {f"state:{name}": stored[f"state:{name}"] for name in graph.get("state", {})}
    for name, said in graph["consts"].items():
        value = np.array(said["value"], said["dtype"]).reshape(said["shape"]) if "value" in said else None
        values[f"const:{name}"] = stored[f"const:{name}"] if value is None else value
    for kind, prefix in (("params", "param"), ("consts", "const"), ("state", "state")):
        for name, said in graph.get(kind, {}).items():
            value = values[f"{prefix}:{name}"]
            assert list(value.shape) == said["shape"] and str(value.dtype) == said["dtype"], name
    return graph, values, files.read(os.path.join(directory, "check.safetensors"))


def run(graph, values, batch, ops=None):
    """Returns the named outputs, and what replaces the states by their names."""
    ops = ops or OPS
    values = {**values, **{f"input:{name}": batch[name] for name in graph["inputs"]}}
    with np.errstate(all="ignore"):
        for node in graph["nodes"]:
            op, shape, dtype = node["op"], tuple(node["shape"]), node["dtype"]
            assert dtype in ("float32", "int32", "bool"), node
            assert set(node) - {"name", "op", "in", "shape", "dtype", "at"} <= KEYS[op], node
            assert len(node["in"]) <= 64 and node.get("dims", []) == sorted(node.get("dims", [])), node
            assert 0 not in shape and len(shape) <= 8 and node["name"] not in values, node
            x = [values[name] for name in node["in"]]
            if op == "map":
                assert all(v.shape in ((), shape) for v in x), node
                if node["fn"] not in ("cast", "select"):
                    assert len({v.dtype for v in x}) == 1, node
            made = ops[op](node, *x)
            assert made.shape == shape, (node, made.shape)
            values[node["name"]] = made.astype(dtype)
    return {name: values[at] for name, at in {**graph["outputs"], **graph.get("updates", {})}.items()}


def _map(n, *x):
    if n["fn"] == "cast" and x[0].dtype == np.uint32:
        return x[0].view(np.int32)
    if n["fn"] == "cast":
        return x[0] != 0 if n["dtype"] == "bool" else np.trunc(x[0]) if n["dtype"] == "int32" else x[0]
    if n["fn"] == "ipow":
        return x[0] ** n["y"] if n["y"] >= 0 else 1 / x[0] ** -n["y"]
    return np.broadcast_to(FUNCTIONS[n["fn"]](*x), n["shape"])


def _reduce(n, x):
    if n["fn"].startswith("arg"):
        return getattr(np, n["fn"])(x, n["dims"][0])
    return REDUCTIONS[n["fn"]](x, tuple(n["dims"]))


def _dot(n, a, b):
    (ca, cb), (ba, bb) = n["contract"], n["batch"]
    names_a, names_b = list(range(a.ndim)), [None] * b.ndim
    for i, j in zip([*ca, *ba], [*cb, *bb]):
        names_b[j] = i
    names_b = [k + a.ndim if v is None else v for k, v in enumerate(names_b)]
    out = [*ba, *[k for k in names_a if k not in (*ca, *ba)], *[k for k in names_b if k >= a.ndim]]
    return np.einsum(a, names_a, b, names_b, out, optimize=True)


def _broadcast(n, x):
    shape = [1] * len(n["shape"])
    for dim, d in zip(n["dims"], x.shape):
        shape[dim] = d
    return np.broadcast_to(x.transpose(np.argsort(n["dims"])).reshape(shape), n["shape"])


def _pad(n, x, value):
    for dim, (before, after, between) in enumerate(n["pads"]):
        d = x.shape[dim]
        wide = np.full([(d - 1) * (between + 1) + 1 if k == dim else s for k, s in enumerate(x.shape)], value, x.dtype)
        wide[(slice(None),) * dim + (slice(None, None, between + 1),)] = x
        wide = np.pad(wide, [(max(before, 0), max(after, 0)) if k == dim else (0, 0) for k in range(x.ndim)],
                      constant_values=value)
        end = wide.shape[dim] - max(-after, 0)
        x = wide[(slice(None),) * dim + (slice(max(-before, 0), end),)]
    return x


def _places(n, full, indices, shape, sizes):
    """Returns, for each element of the windows (`shape`), its place in x, and whether the window is inside."""
    grid = np.indices(shape).reshape(len(shape), -1)
    rows = [grid[d] for d in range(len(shape)) if d not in n["offset"]]
    kept = [d for d in range(len(full)) if d not in n["collapsed"] and d not in n["batch"][0]]
    at, inside = np.zeros((len(full), grid.shape[1]), np.int64), np.ones(grid.shape[1], bool)
    for j, d in enumerate(n["start"]):
        begin = indices[(*rows, np.full(grid.shape[1], j))].astype(np.int64)
        if n["mode"] == "clip":
            begin = np.clip(begin, 0, full[d] - sizes[d])
        inside &= (begin >= 0) & (begin + sizes[d] <= full[d])
        at[d] = begin
    for d, s in zip(*n["batch"]):
        at[d] = rows[s]
    for o, d in zip(n["offset"], kept):
        at[d] += grid[o]
    return at, inside


def _gather(n, x, indices):
    at, inside = _places(n, x.shape, indices, n["shape"], n["sizes"])
    assert n["mode"] in ("clip", "fill") and (n["mode"] == "fill") == ("fill" in n), n
    fill = np.nan if n.get("fill") == "nan" else n.get("fill", 0)
    return np.where(inside, x[tuple(np.where(inside, at, 0))], fill).reshape(n["shape"])


def _scatter(n, x, indices, updates):
    kept = [d for d in range(x.ndim) if d not in n["collapsed"] and d not in n["batch"][0]]
    sizes = [updates.shape[n["offset"][kept.index(d)]] if d in kept else 1 for d in range(x.ndim)]
    at, inside = _places(n, x.shape, indices, updates.shape, sizes)
    at, y, v = tuple(at[:, inside]), x.copy(), updates.ravel()[inside]
    if n["fn"] == "set":
        y[at] = v
    else:
        {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[n["fn"]].at(y, at, v)
    return y


def _places_of(x, size, strides, dilation):
    """Returns [(place, x there)] of a window over the last dimensions."""
    lead = x.ndim - len(size)
    out = [(n - (k - 1) * d - 1) // s + 1 for n, k, s, d in zip(x.shape[lead:], size, strides, dilation)]
    for at in np.ndindex(*size):
        yield at, x[(slice(None),) * lead + tuple(slice(a * d, a * d + (o - 1) * s + 1, s)
                                                  for a, d, o, s in zip(at, dilation, out, strides))]


def _conv(n, x, w):
    x, w = x.transpose(n["lhs"]).astype(np.float64), w.transpose(n["rhs"])
    pads = [[0, 0, 0]] * 2 + [[*p, d - 1] for p, d in zip(n["pads"], n["lhs_dilation"])]
    x, g = _pad({"pads": pads}, x, 0), n["groups"]
    y = 0
    for at, part in _places_of(x, w.shape[2:], n["strides"], n["rhs_dilation"]):
        part = part.reshape(len(x), g, -1, *part.shape[2:])
        y = y + np.einsum("ngi...,goi->ngo...", part, w[(..., *at)].reshape(g, -1, w.shape[1]))
    return y.reshape(len(x), -1, *y.shape[3:]).transpose(np.argsort(n["out"]))


def _window(n, x):
    start = {"sum": 0, "max": -np.inf, "min": np.inf}[n["fn"]]
    pads = [[*p, d - 1] for p, d in zip(n["pads"], n["base_dilation"])]
    x = _pad({"pads": pads}, x.astype(np.float64), start)
    return REDUCTIONS[n["fn"]]([part for _, part in _places_of(x, n["size"], n["strides"], n["dilation"])], 0)


CUMULATIVE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "logsumexp": np.logaddexp}


def _cum(n, x):
    turn = (lambda v: np.flip(v, n["dim"])) if n.get("reverse") else lambda v: v
    return turn(CUMULATIVE[n["fn"]].accumulate(turn(x), n["dim"]))


def _sort(n, x):
    if not n.get("descending"):
        return np.argsort(x, n["dim"], kind="stable")
    turned = np.argsort(np.flip(x, n["dim"]), n["dim"], kind="stable")  # so that equal ones stay in order
    return x.shape[n["dim"]] - 1 - np.flip(turned, n["dim"])


def _iota(n):
    d = n["dim"]
    return np.broadcast_to(np.arange(n["shape"][d]).reshape([-1 if k == d else 1 for k in range(len(n["shape"]))]),
                           n["shape"])


OPS = {"map": _map, "reduce": _reduce, "dot": _dot, "broadcast": _broadcast, "pad": _pad, "gather": _gather,
       "scatter": _scatter, "conv": _conv, "window": _window, "cum": _cum, "sort": _sort, "iota": _iota,
       "reshape": lambda n, x: x.reshape(n["shape"]),
       "transpose": lambda n, x: x.transpose(n["perm"]), "concat": lambda n, *x: np.concatenate(x, n["dim"]),
       "rev": lambda n, x: np.flip(x, n["dims"]),
       "slice": lambda n, x: x[tuple(slice(*along) for along in zip(n["lo"], n["hi"], n["step"]))]}


def in_jax():
    """Returns ops of jax.numpy, for gradients."""
    import jax
    import jax.numpy as jnp
    functions = {name: getattr(jnp, getattr(f, "__name__", ""), f) for name, f in FUNCTIONS.items()}
    functions |= {"stop": jax.lax.stop_gradient, "erf": jax.lax.erf, "erfc": jax.lax.erfc, "cbrt": jnp.cbrt,
                  "rsqrt": jax.lax.rsqrt, "logistic": jax.lax.logistic, "clamp": jax.lax.clamp, "copy": lambda x: x,
                  "div": jax.lax.div, "select": jnp.where}
    functions = {name: jax.lax.div if name == "div" else f for name, f in functions.items()}

    def map_(n, *x):
        if n["fn"] in ("cast", "ipow"):
            return _map(n, *x) if n["fn"] == "cast" and n["dtype"] == "bool" else \
                x[0].astype(n["dtype"]) if n["fn"] == "cast" else jax.lax.integer_pow(x[0], n["y"])
        x = [jnp.broadcast_to(v, n["shape"]) for v in x]
        return functions[n["fn"]](*x)

    def reduce(n, x):
        if n["fn"].startswith("arg"):
            return getattr(jnp, n["fn"])(x, n["dims"][0])
        return {**REDUCTIONS, "sum": jnp.sum, "max": jnp.max, "min": jnp.min, "prod": jnp.prod, "and": jnp.all,
                "or": jnp.any}[n["fn"]](x, tuple(n["dims"]))

    def gather(n, x, indices):
        mode, fill = ("clip", None) if n["mode"] == "clip" else ("fill", n["fill"])
        numbers = jax.lax.GatherDimensionNumbers(tuple(n["offset"]), tuple(n["collapsed"]), tuple(n["start"]),
                                                 *map(tuple, n["batch"]))
        return jax.lax.gather(x, indices, numbers, n["sizes"], mode=mode,
                              fill_value=np.nan if fill == "nan" else fill)

    def scatter(n, x, indices, updates):
        numbers = jax.lax.ScatterDimensionNumbers(tuple(n["offset"]), tuple(n["collapsed"]), tuple(n["start"]),
                                                  *map(tuple, n["batch"]))
        put = {"set": "scatter"}.get(n["fn"], f"scatter_{n['fn']}")
        return getattr(jax.lax, put)(x, indices, updates, numbers, mode={"fill": "drop"}.get(n["mode"], n["mode"]))

    def conv(n, x, w):
        order = jax.lax.ConvDimensionNumbers(*map(tuple, (n["lhs"], n["rhs"], n["out"])))
        return jax.lax.conv_general_dilated(x, w, n["strides"], n["pads"], n["lhs_dilation"], n["rhs_dilation"], order,
                                            n["groups"])
    def window(n, x):
        lax, start, fn = jax.lax, {"sum": 0, "max": -np.inf, "min": np.inf}[n["fn"]], n["fn"]
        return lax.reduce_window(x, np.asarray(start, x.dtype), {"sum": lax.add, "max": lax.max, "min": lax.min}[fn],
                                 n["size"], n["strides"], n["pads"], n["base_dilation"], n["dilation"])
    return {**OPS, "map": map_, "window": window,
            "sort": lambda n, x: jnp.argsort(x, n["dim"], stable=True, descending=n.get("descending", False)),
            "cum": lambda n, x: getattr(jax.lax, f"cum{n['fn']}")(x, n["dim"], n.get("reverse", False)),
            "reduce": reduce, "gather": gather, "scatter": scatter, "conv": conv,
            "dot": lambda n, a, b: jax.lax.dot_general(a, b, (n["contract"], n["batch"])),
            "broadcast": lambda n, x: jax.lax.broadcast_in_dim(x, n["shape"], n["dims"]),
            "pad": lambda n, x, v: jax.lax.pad(x, v, [tuple(p) for p in n["pads"]]),
            "concat": lambda n, *x: jnp.concatenate(x, n["dim"]), "rev": lambda n, x: jnp.flip(x, n["dims"])}
