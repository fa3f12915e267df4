"""What each op of aten is in the format: RULES[name](g, out, *operands) returns what it makes, where operands are
Values or what Python has, and `out` says shape and dtype of the result (a list of such where there are several)."""
import numpy as np

from . import rules
from .graph import Value

RANDOM = " (feed what is random in the batch)"
RULES = {}


def rule(*names):
    def add(function):
        for name in names:
            RULES[name] = function
        return function
    return add


def is_value(x):
    return isinstance(x, Value)


def value(g, x, dtype):
    return g.cast(x, dtype) if is_value(x) else g.const(np.asarray(x, dtype))


def common(*xs):
    """Returns the dtype in which torch computes on these."""
    kinds = [x.dtype if is_value(x) else {bool: "bool", int: "int32", float: "float32"}[type(x)] for x in xs]
    tensors = [k for x, k in zip(xs, kinds) if is_value(x)]
    for dtype in ("float32", "int32", "bool"):
        if dtype in kinds:
            return dtype
    return tensors[0]


def do(g, fn, *xs, dtype=None):
    """Returns a map of operands that are broadcast as numpy has it."""
    dtype = dtype or common(*xs)
    xs = [value(g, x, dtype) for x in xs]
    return g.map(fn, xs, np.broadcast_shapes(*[x.shape for x in xs]))


def select(g, condition, a, b):
    dtype = common(a, b)
    a, b, condition = value(g, a, dtype), value(g, b, dtype), value(g, condition, "bool")
    return g.map("select", [condition, a, b], np.broadcast_shapes(condition.shape, a.shape, b.shape))


def shaped(g, x, out):
    """Returns x with the result's dtype, repeated to its shape."""
    x = value(g, x, out.dtype)
    first = len(out.shape) - len(x.shape)
    return g.broadcast(x, out.shape, range(first, len(out.shape)))


def sides(x, dims, keep=True):
    """Returns dimensions counted from the front; all of them where none are named."""
    dims = [dims] if isinstance(dims, int) else dims
    return [d % max(len(x.shape), 1) for d in dims] if dims else list(range(len(x.shape)))


def one(x, dim):
    return dim % max(len(x.shape), 1)


# -- maps

FLOAT = {"exp": "exp", "log": "log", "log1p": "log1p", "expm1": "expm1", "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin",
         "cos": "cos", "tan": "tan", "tanh": "tanh", "sigmoid": "logistic", "erf": "erf", "erfc": "erfc",
         "atan2": "atan2"}  # of whole numbers too they make floats
SAME = {"neg": "neg", "abs": "abs", "sign": "sign", "sgn": "sign", "floor": "floor", "ceil": "ceil", "mul": "mul",
        "maximum": "max", "minimum": "min", "fmod": "rem", "bitwise_and": "and", "bitwise_or": "or",
        "bitwise_xor": "xor", "bitwise_not": "not", "isfinite": "is_finite", "lt": "lt", "le": "le", "gt": "gt",
        "ge": "ge", "eq": "eq", "ne": "ne", "clone": "copy", "detach": "stop"}
LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor", "logical_not": "not"}
# Functions that are said in others.
SAID = {
    "hypot": lambda g, x, y: do(g, "sqrt", do(g, "add", do(g, "mul", x, x), do(g, "mul", y, y))),
    "reciprocal": lambda g, x: do(g, "div", 1.0, x),
    "exp2": lambda g, x: do(g, "exp", do(g, "mul", x, np.log(2.0).item())),
    "log2": lambda g, x: do(g, "mul", do(g, "log", x), (1 / np.log(2.0)).item()),
    "log10": lambda g, x: do(g, "mul", do(g, "log", x), (1 / np.log(10.0)).item()),
    "relu": lambda g, x: select(g, do(g, "le", x, 0), 0, x),
    "isnan": lambda g, x: do(g, "ne", x, x), "trunc": lambda g, x: do(g, "sub", x, do(g, "rem", x, 1)),
    "isinf": lambda g, x: do(g, "eq", do(g, "abs", x), float("inf")),
    "atan": lambda g, x: do(g, "atan2", x, 1.0),
    "asin": lambda g, x: do(g, "atan2", x, do(g, "sqrt", do(g, "mul", do(g, "sub", 1.0, x), do(g, "add", 1.0, x)))),
    "acos": lambda g, x: do(g, "atan2", do(g, "sqrt", do(g, "mul", do(g, "sub", 1.0, x), do(g, "add", 1.0, x))), x),
    "sinh": lambda g, x: _sinh(g, do(g, "expm1", x)),
    "cosh": lambda g, x: do(g, "mul", do(g, "add", do(g, "exp", x), do(g, "exp", do(g, "neg", x))), 0.5),
    "asinh": lambda g, x: do(g, "mul", do(g, "sign", x), do(g, "log1p", _asinh(g, do(g, "abs", x)))),
    "acosh": lambda g, x: do(g, "log", do(g, "add", x, do(g, "sqrt", do(g, "sub", do(g, "mul", x, x), 1.0)))),
    "atanh": lambda g, x: do(g, "mul", do(g, "sub", do(g, "log1p", x), do(g, "log1p", do(g, "neg", x))), 0.5)}


def _sinh(g, e):
    return do(g, "mul", do(g, "add", e, do(g, "div", e, do(g, "add", e, 1.0))), 0.5)


def _asinh(g, x):
    square = do(g, "mul", x, x)
    return do(g, "add", x, do(g, "div", square, do(g, "add", 1.0, do(g, "sqrt", do(g, "add", square, 1.0)))))


def _map(name, make):
    RULES[name] = lambda g, out, *x, **more: shaped(g, make(g, *x), out)


for _name, _fn in FLOAT.items():
    _map(_name, lambda g, *x, fn=_fn: do(g, fn, *x, dtype="float32"))
for _name, _fn in SAME.items():
    _map(_name, lambda g, *x, fn=_fn: do(g, fn, *x))
for _name, _fn in LOGICAL.items():
    _map(_name, lambda g, *x, fn=_fn: do(g, fn, *x, dtype="bool"))
for _name, _make in SAID.items():
    _map(_name, _make)


@rule("add", "sub")
def _add(g, out, x, y, alpha=1, sign="add"):
    y = y if alpha == 1 else do(g, "mul", y, alpha)
    return shaped(g, do(g, sign, x, y), out)


RULES["sub"] = lambda g, out, x, y, alpha=1: _add(g, out, x, y, alpha, "sub")
RULES["rsub"] = lambda g, out, x, y, alpha=1: _add(g, out, y, x, alpha, "sub")


@rule("div")
def _div(g, out, x, y, rounding_mode=None):
    if out.dtype == "int32":
        rest = _remainder(g, out, x, y) if rounding_mode == "floor" else do(g, "rem", x, y)
        return do(g, "div", do(g, "sub", x, rest), y)
    made = do(g, "div", x, y, dtype="float32")
    return made if rounding_mode is None else SAID["trunc"](g, made) if rounding_mode == "trunc" else do(
        g, "floor", made)


@rule("remainder")
def _remainder(g, out, x, y):
    rest = do(g, "rem", x, y)
    other = do(g, "and", do(g, "ne", rest, 0), do(g, "ne", do(g, "lt", rest, 0), do(g, "lt", y, 0)))
    return select(g, other, do(g, "add", rest, y), rest)


@rule("pow")
def _pow(g, out, x, y):
    if not is_value(y) and float(y).is_integer() and abs(y) < 64:
        return g.map("ipow", [value(g, x, out.dtype)], out.shape, y=int(y)) if y != 1 else shaped(g, x, out)
    return do(g, "sqrt", x) if y == 0.5 else do(g, "pow", x, y, dtype="float32")


@rule("round")
def _round(g, out, x, decimals=0):
    by = 10.0 ** decimals
    return do(g, "div", do(g, "round", do(g, "mul", x, by)), by) if decimals else do(g, "round", x)


@rule("where")
def _where(g, out, condition, a, b):
    return shaped(g, select(g, condition, a, b), out)


@rule("clamp")
def _clamp(g, out, x, low=None, high=None):
    if low is not None:
        x = select(g, do(g, "lt", x, low), low, x)
    return shaped(g, x if high is None else select(g, do(g, "gt", x, high), high, x), out)


@rule("_to_copy", "convert_element_type", "copy", "alias", "lift_fresh_copy", "expand", "view_of")
def _same(g, out, *x, **more):
    """The first operand, but of copy the second: what is copied."""
    source = x[1] if len(x) > 1 and is_value(x[1]) else x[0]
    return shaped(g, source, out)


@rule("full_like")
def _full(g, out, x, fill=0, **more):
    return shaped(g, fill, out)


@rule("gelu")
def _gelu(g, out, x, approximate="none"):
    if approximate == "tanh":
        inner = do(g, "add", x, do(g, "mul", g.map("ipow", [x], x.shape, y=3), 0.044715))
        inner = do(g, "tanh", do(g, "mul", inner, np.sqrt(2 / np.pi).item()))
    else:
        inner = do(g, "erf", do(g, "mul", x, np.sqrt(0.5).item()))
    return do(g, "mul", do(g, "mul", x, 0.5), do(g, "add", inner, 1.0))


@rule("silu")
def _silu(g, out, x):
    return do(g, "mul", x, do(g, "logistic", x))


def _draw(g, shape):
    """Returns the operands of threefry for the numbers of an array: others with each draw of a step."""
    if "dropout_key" not in g.leaves["input"]:
        g.leaf("input", "dropout_key", (2,), "uint32")
        g.drawn = {"dropout_key"}
    key = g.cast(g.leaves["input"]["dropout_key"], "int32")
    g.draws += 1
    key = rules.words(g, key, g.const(np.int32(g.draws)), ())
    return [*rules.spread_words(g, key, shape), rules.counter(g, (), shape)]


def _bits(g, draw, shape, word="threefry"):
    """Returns whole numbers of 24 random bits."""
    return do(g, "shr", g.map(word, draw, shape), 8)


def stays(g, shape, p):
    """Returns what is true but for a chance of p."""
    return do(g, "lt", _bits(g, _draw(g, shape), shape), least_dropped(p))


def least_dropped(p):
    """Of numbers of 24 random bits, the first for which an element is dropped."""
    return round((1 - p) * 2**24)


def dropped(g, x, p):
    return select(g, stays(g, x.shape, p), do(g, "mul", x, 1 / (1 - p) if p < 1 else 0.0), 0.0)


@rule("dropout", "native_dropout")
def _dropout(g, out, x, p, training=True):
    x = dropped(g, x, p) if p and training else x
    return [x, None] if isinstance(out, list) else x


def _uniform(g, shape, word="threefry", draw=None, least=0):
    """Returns numbers from 0 to 1 that are multiples of 2^-24; without 0, and with 1, where the least is 1."""
    bits = _bits(g, draw or _draw(g, shape), shape, word)
    return do(g, "mul", value(g, do(g, "add", bits, least), "float32"), 2.0**-24)


def _normal(g, shape):
    """Box and Muller's, of both words."""
    draw = _draw(g, shape)
    far = do(g, "sqrt", do(g, "mul", do(g, "log", _uniform(g, shape, "threefry_0", draw, 1)), -2.0))
    return do(g, "mul", far, do(g, "cos", do(g, "mul", _uniform(g, shape, "threefry_1", draw), 2 * np.pi)))


@rule("bernoulli")
def _bernoulli(g, out, x, p=None):
    if isinstance(p, (int, float)):
        return value(g, stays(g, x.shape, 1 - p), out.dtype)
    return value(g, do(g, "lt", _uniform(g, out.shape), x if p is None else p), out.dtype)


@rule("rand", "rand_like")
def _rand(g, out, *x, **more):
    return _uniform(g, out.shape)


@rule("randn", "randn_like")
def _randn(g, out, *x, **more):
    return _normal(g, out.shape)


@rule("uniform")
def _uniform_between(g, out, x, low=0.0, high=1.0, **more):
    return do(g, "add", do(g, "mul", _uniform(g, out.shape), high - low), low)


@rule("normal")
def _normal_of(g, out, middle, deviation=1.0, *more, **named):
    return do(g, "add", do(g, "mul", _normal(g, out.shape), deviation), middle)


@rule("normal_functional")
def _normal_functional(g, out, x, middle=0.0, deviation=1.0, **more):
    return _normal_of(g, out, middle, deviation)


@rule("exponential")
def _exponential(g, out, x, rate=1.0, **more):
    return do(g, "mul", do(g, "max", do(g, "neg", do(g, "log", _uniform(g, out.shape, least=1))), 2.0**-25), 1 / rate)


# -- shapes

@rule("view", "reshape", "_unsafe_view", "squeeze", "unsqueeze")
def _reshape(g, out, x, *more):
    return g.reshape(x, out.shape)


@rule("permute", "prims_transpose")
def _permute(g, out, x, dims):
    return g.transpose(x, sides(x, dims))


@rule("t")
def _t(g, out, x):
    return g.transpose(x, range(len(x.shape))[::-1])


@rule("transpose")
def _transpose(g, out, x, a, b=None):
    if b is None:  # of prims
        return g.transpose(x, a)
    perm = list(range(len(x.shape)))
    a, b = one(x, a), one(x, b)
    perm[a], perm[b] = perm[b], perm[a]
    return g.transpose(x, perm)


@rule("broadcast_in_dim")
def _broadcast(g, out, x, shape, dims):
    return g.broadcast(x, shape, dims)


def _bounds(x, dim, start, end):
    n = x.shape[dim]
    at = [0 if start is None else start, n if end is None else end]
    return [min(max(k + n if k < 0 else k, 0), n) for k in at]


@rule("slice")
def _slice(g, out, x, dim=0, start=None, end=None, step=1):
    dim = one(x, dim)
    low, high = _bounds(x, dim, start, end)
    where = range(len(x.shape))
    return g.slice(x, [low if k == dim else 0 for k in where], [high if k == dim else x.shape[k] for k in where],
                   [step if k == dim else 1 for k in where])


@rule("select")
def _select(g, out, x, dim, at):
    at, dim = at % x.shape[one(x, dim)], one(x, dim)
    return g.reshape(g.part(x, dim, at, at + 1), out.shape)


@rule("slice_scatter")
def _slice_scatter(g, out, x, part, dim=0, start=None, end=None, step=1):
    dim = one(x, dim)
    low, high = _bounds(x, dim, start, end)
    n = x.shape[dim]
    if step == 1:
        return g.concat([g.part(x, dim, 0, low), part, g.part(x, dim, low + part.shape[dim], n)], dim)
    after = n - low - (part.shape[dim] - 1) * step - 1
    wide = g.pad(part, value(g, 0, part.dtype),
                 [(low, after, step - 1) if k == dim else (0, 0, 0) for k in range(len(x.shape))])
    inside = np.isin(np.arange(n), np.arange(low, high, step))
    return select(g, g.broadcast(g.const(inside), x.shape, [dim]), wide, x)


@rule("unfold")
def _unfold(g, out, x, dim, size, step):
    dim, count = one(x, dim), out.shape[one(x, dim)]
    if step >= size and count * step <= x.shape[dim]:  # pieces side by side
        pieces = g.part(x, dim, 0, count * step)
        pieces = g.reshape(pieces, [*x.shape[:dim], count, step, *x.shape[dim + 1:]])
        pieces = g.part(pieces, dim + 1, 0, size)
    else:
        ends = [k + (count - 1) * step + 1 for k in range(size)]
        pieces = [_slice(g, None, x, dim, k, end, step) for k, end in enumerate(ends)]
        pieces = g.concat([g.reshape(v, [*v.shape[:dim + 1], 1, *v.shape[dim + 1:]]) for v in pieces], dim + 1)
    order = [k for k in range(len(pieces.shape)) if k != dim + 1]
    return g.transpose(pieces, [*order, dim + 1])


@rule("select_scatter")
def _select_scatter(g, out, x, part, dim, at):
    dim = one(x, dim)
    at %= x.shape[dim]
    part = g.reshape(part, [1 if k == dim else d for k, d in enumerate(x.shape)])
    return _slice_scatter(g, out, x, part, dim, at, at + 1)


@rule("split_with_sizes")
def _split(g, out, x, sizes, dim=0):
    ends = np.cumsum([0, *sizes])
    return [g.part(x, one(x, dim), lo, hi) for lo, hi in zip(ends, ends[1:])]


@rule("cat")
def _cat(g, out, parts, dim=0):
    parts = [value(g, v, out.dtype) for v in parts if v.shape != (0,)]
    return g.concat(parts, one(parts[0], dim))


@rule("flip", "rev")
def _flip(g, out, x, dims):
    return g.rev(x, sorted(sides(x, dims))) if dims else x


@rule("repeat")
def _repeat(g, out, x, times):
    inner = (1,) * (len(times) - len(x.shape)) + x.shape
    wide = [d for pair in zip(times, inner) for d in pair]
    dims = [2 * k + 1 for k in range(len(times))][len(times) - len(x.shape):]
    return g.reshape(g.broadcast(x, wide, dims), out.shape)


@rule("constant_pad_nd")
def _pad(g, out, x, pads, fill=0.0):
    along = [(pads[k], pads[k + 1], 0) for k in range(0, len(pads), 2)][::-1]
    return g.pad(x, value(g, fill, x.dtype), [(0, 0, 0)] * (len(x.shape) - len(along)) + along)


@rule("pad")
def _pad_by(g, out, x, pads, mode="constant", fill=None):
    """By the mode: what is beyond an edge is a number, the edge, what lies inside mirrored, or the other end."""
    if mode == "constant":
        return _pad(g, out, x, pads, fill or 0.0)
    for k, (before, after) in enumerate(zip(pads[::2], pads[1::2])):
        dim = len(x.shape) - 1 - k
        n = x.shape[dim]
        if mode == "replicate":
            parts = [g.broadcast(g.part(x, dim, at, at + 1), [*x.shape[:dim], count, *x.shape[dim + 1:]],
                                 range(len(x.shape))) if count else None for at, count in ((0, before), (n - 1, after))]
        else:
            low, high = (n - before, 0) if mode == "circular" else (1, n - 1 - after)
            parts = [g.part(x, dim, low, low + before), g.part(x, dim, high, high + after)]
            parts = [g.rev(v, [dim]) for v in parts] if mode == "reflect" else parts
        x = g.concat([v for v in (parts[0], x, parts[1]) if v is not None], dim)
    return x


@rule("diagonal")
def _diagonal(g, out, x, offset=0, dim1=0, dim2=1):
    a, b = one(x, dim1), one(x, dim2)
    others = [k for k in range(len(x.shape)) if k not in (a, b)]
    x = g.transpose(x, [*others, a, b])
    low = [max(-offset, 0), max(offset, 0)]
    at = [g.const((np.arange(out.shape[-1]) + k).astype(np.int32)) for k in low]
    return _take(g, x, [len(others), len(others) + 1], at)


# -- reductions

def _kept(g, x, dims, made, keep):
    return g.reshape(made, [1 if k in dims else d for k, d in enumerate(x.shape)]) if keep else made


def _reduction(fn, dtype=None):
    def make(g, out, x, dims=None, keep=False, **more):
        x = value(g, x, dtype or out.dtype)
        dims = sides(x, dims)
        return _kept(g, x, dims, g.reduce(fn, x, dims), keep)
    return make


for _name, _fn in {"sum": "sum", "amax": "max", "amin": "min", "prod": "prod", "max": "max", "min": "min"}.items():
    RULES[_name] = _reduction(_fn)
RULES["any"], RULES["all"] = _reduction("or", "bool"), _reduction("and", "bool")


def _along(fn):
    """Values and places along one dimension."""
    def make(g, out, x, dim=None, keep=False):
        if dim is None or isinstance(dim, list):
            return RULES[f"a{fn}"](g, out, x, dim, keep)
        dim = one(x, dim)
        at = g.reduce(f"arg{fn}", x, [dim])
        best = _gather(g, None, x, dim, _kept(g, x, [dim], at, True))
        return [g.reshape(v, o.shape) for v, o in zip((best, at), out)]
    return make


RULES["max"], RULES["min"] = _along("max"), _along("min")


def _arg(fn):
    def make(g, out, x, dim=None, keep=False):
        if dim is None:
            x, dim = g.reshape(x, [int(np.prod(x.shape))]), 0
        return g.reshape(g.reduce(fn, x, [one(x, dim)]), out.shape)
    return make


RULES["argmax"], RULES["argmin"] = _arg("argmax"), _arg("argmin")


def mean(g, x, dims, keep=True):
    made = g.reduce("sum", x, dims)
    return _kept(g, x, dims, do(g, "mul", made, 1.0 / int(np.prod([x.shape[d] for d in dims]))), keep)


@rule("mean")
def _mean(g, out, x, dims=None, keep=False, dtype=None):
    return mean(g, value(g, x, out.dtype), sides(x, dims), keep)


@rule("linalg_vector_norm")
def _vector_norm(g, out, x, order=2, dims=None, keep=False, dtype=None):
    """The derivative of a root is 0 here where nothing is under it."""
    x, dims = value(g, x, out.dtype), sides(x, dims)
    if order in (0, 1) or abs(order) == float("inf"):
        each = do(g, "abs", x) if order else value(g, do(g, "ne", x, 0.0), out.dtype)
        made = g.reduce("sum" if order in (0, 1) else "max" if order > 0 else "min", each, dims)
    else:
        under = g.reduce("sum", do(g, "mul", x, x) if order == 2 else do(g, "pow", do(g, "abs", x), float(order)), dims)
        none = do(g, "eq", under, 0.0)
        some = select(g, none, 1.0, under)
        root = do(g, "sqrt", some) if order == 2 else do(g, "pow", some, 1 / order)
        made = select(g, none, 0.0, root)
    return _kept(g, x, dims, made, keep)


@rule("_cdist_forward")
def _cdist(g, out, a, b, order=2.0, mode=None):
    a, b = (g.reshape(v, [*v.shape[:-2], *at, v.shape[-1]])
            for v, at in ((a, (a.shape[-2], 1)), (b, (1, b.shape[-2]))))
    return _vector_norm(g, out, do(g, "sub", a, b), order, [-1])


def moments(g, x, dims):
    """Returns x less its mean, the mean, and the mean of squares about it."""
    middle = mean(g, x, dims)
    x = do(g, "sub", x, middle)
    return x, middle, mean(g, do(g, "mul", x, x), dims)


@rule("var")
def _var(g, out, x, dims=None, correction=1, keepdim=False):
    dims = sides(x, dims)
    count = int(np.prod([x.shape[d] for d in dims]))
    made = do(g, "mul", moments(g, x, dims)[2], count / max(count - (1 if correction is None else correction), 0))
    return made if keepdim else g.reshape(made, out.shape)


@rule("var_mean")
def _var_mean(g, out, x, dims=None, correction=1, keepdim=False):
    return [_var(g, out[0], x, dims, correction, keepdim), mean(g, x, sides(x, dims), keepdim)]


def _softmax_of(log):
    def make(g, out, x, dim, half_to_float=False):
        dims = [one(x, dim)]
        most = g.map("stop", [_kept(g, x, dims, g.reduce("max", x, dims), True)],
                     [1 if k in dims else d for k, d in enumerate(x.shape)])
        x = do(g, "sub", x, most)
        e = do(g, "exp", x)
        total = _kept(g, x, dims, g.reduce("sum", e, dims), True)
        return do(g, "sub", x, do(g, "log", total)) if log else do(g, "div", e, total)
    return make


RULES["_softmax"], RULES["_log_softmax"] = _softmax_of(False), _softmax_of(True)
_softmax = RULES["_softmax"]


def _cumulative(fn):
    def make(g, out, x, dim, **more):
        first = out[0] if isinstance(out, list) else out
        x = value(g, x, first.dtype)
        made = x if x.shape == () else g.cum(fn, x, one(x, dim))
        if not isinstance(out, list):
            return made
        return [made, g.refuse(f"the places of cum{fn}", out[1].shape, out[1].dtype, [x])]
    return make


for _name, _fn in {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min",
                   "logcumsumexp": "logsumexp"}.items():
    RULES[_name] = _cumulative(_fn)


@rule("topk")
def _topk(g, out, x, k, dim=-1, largest=True, ordered=True):
    dim = one(x, dim)
    at = g.part(g.sort(x, dim, largest), dim, 0, k)
    return [g.along(x, dim, at), at]


@rule("sort")
def _sort(g, out, x, dim=-1, descending=False, stable=None):
    if x.shape == ():
        return [x, value(g, 0, "int32")]
    at = g.sort(x, one(x, dim), descending)
    return [g.along(x, one(x, dim), at), at]


@rule("kthvalue")
def _kth(g, out, x, k, dim=-1, keep=False):
    dim = one(x, dim)
    at = g.part(g.sort(x, dim, False), dim, k - 1, k)
    return [g.reshape(v, o.shape) for v, o in zip((g.along(x, dim, at), at), out)]


@rule("median")
def _median(g, out, x, dim=None, keep=False):
    """The lower one of two in the middle."""
    if isinstance(out, list):
        return _kth(g, out, x, (x.shape[one(x, dim)] + 1) // 2, dim)
    x = g.reshape(x, [int(np.prod(x.shape))])
    return _kth(g, [out, out], x, (x.shape[0] + 1) // 2, 0)[0]


RULES["argsort"] = lambda g, out, *more, **how: _sort(g, out, *more, **how)[1]


# -- products

@rule("matmul", "mm", "bmm", "mv", "dot")
def matmul(g, out, a, b):
    if len(a.shape) == 1 or len(b.shape) <= 2:
        return g.dot(a, b, [[len(a.shape) - 1], [max(len(b.shape) - 2, 0)]]) if len(b.shape) <= 2 else g.transpose(
            *_moved(g.dot(a, b, [[0], [len(b.shape) - 2]])))
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    n = len(shape)
    if a.shape[:-2] == () or not n:
        a = g.broadcast(a, (*shape, *a.shape), [n, n + 1]) if n else a
    a, b = (g.broadcast(v, (*shape, *v.shape[-2:]), range(n + 2 - len(v.shape), n + 2)) for v in (a, b))
    return g.dot(a, b, [[n + 1], [n]], [list(range(n))] * 2)


def _moved(x):
    return x, range(len(x.shape))


@rule("addmm", "baddbmm", "addmv")
def _addmm(g, out, start, a, b, beta=1, alpha=1):
    made = do(g, "mul", matmul(g, out, a, b), alpha) if alpha != 1 else matmul(g, out, a, b)
    return do(g, "add", do(g, "mul", start, beta) if beta != 1 else start, made)


@rule("linear")
def _linear(g, out, x, w, b=None):
    y = g.dot(x, w, [[len(x.shape) - 1], [len(w.shape) - 1]])
    return y if b is None else do(g, "add", y, b)


@rule("scaled_dot_product_attention")
def _attention(g, out, q, k, v, mask=None, dropout=0.0, causal=False, scale=None, enable_gqa=False):
    if enable_gqa and k.shape[-3] != q.shape[-3]:
        n, times = len(k.shape), q.shape[-3] // k.shape[-3]
        dims = [d for d in range(n + 1) if d != n - 2]
        k, v = (g.reshape(g.broadcast(x, [*x.shape[:-2], times, *x.shape[-2:]], dims), [*q.shape[:-2], *x.shape[-2:]])
                for x in (k, v))
    last = list(range(len(k.shape) - 2)) + [len(k.shape) - 1, len(k.shape) - 2]
    scores = do(g, "mul", matmul(g, None, q, g.transpose(k, last)), scale or q.shape[-1] ** -0.5)
    if causal:
        mask = g.const(np.tril(np.ones(scores.shape[-2:], bool)))
    if mask is not None:
        scores = select(g, mask, scores, -np.inf) if mask.dtype == "bool" else do(g, "add", scores, mask)
    scores = _softmax(g, None, scores, -1)
    return matmul(g, out, dropped(g, scores, dropout) if dropout else scores, v)


# -- norms

def _normed(g, x, dims, eps, weight, bias, at):
    """Returns x normed over dims, then times weight and plus bias, which lie along the dimensions `at`."""
    x, middle, square = moments(g, x, dims)
    root = do(g, "rsqrt", do(g, "add", square, eps))
    return _affine(g, do(g, "mul", x, root), weight, bias, at), middle, square, root


def _affine(g, y, weight, bias, at):
    for fn, v in (("mul", weight), ("add", bias)):
        y = y if v is None else do(g, fn, y, g.broadcast(v, y.shape, at))
    return y


@rule("layer_norm", "native_layer_norm")
def _layer_norm(g, out, x, shape, weight=None, bias=None, eps=1e-5, cudnn=True):
    dims = range(len(x.shape) - len(shape), len(x.shape))
    y, middle, _, root = _normed(g, x, dims, eps, weight, bias, dims)
    return [y, middle, root] if isinstance(out, list) else y


@rule("rms_norm", "_fused_rms_norm")
def _rms_norm(g, out, x, shape, weight=None, eps=None):
    dims = range(len(x.shape) - len(shape), len(x.shape))
    square = mean(g, do(g, "mul", x, x), dims)
    root = do(g, "rsqrt", do(g, "add", square, float(np.finfo(np.float32).eps) if eps is None else eps))
    y = _affine(g, do(g, "mul", x, root), weight, None, dims)
    return [y, root] if isinstance(out, list) else y


@rule("group_norm")
def _group_norm(g, out, x, groups, weight=None, bias=None, eps=1e-5, cudnn=True):
    parts = g.reshape(x, [x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]])
    weight, bias = (v if v is None else g.reshape(v, parts.shape[1:3]) for v in (weight, bias))
    return g.reshape(_normed(g, parts, range(2, len(parts.shape)), eps, weight, bias, [1, 2])[0], x.shape)


@rule("_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit")
def _batch_norm(g, out, x, weight, bias, mean_, var, *more):
    """With (training, momentum, eps) or, for what does not train, (momentum, eps)."""
    dims = [k for k in range(len(x.shape)) if k != 1]
    if isinstance(mean_, bool):  # no running averages: training, momentum and eps come in their place
        training, momentum, eps, mean_, var = mean_, var, more[0], None, None
    else:
        training, momentum, eps = more if len(more) == 3 else (False, *more)
    if not training:
        wide = [g.broadcast(v, x.shape, [1]) for v in (mean_, do(g, "rsqrt", do(g, "add", var, eps)))]
        y = _affine(g, do(g, "mul", do(g, "sub", x, wide[0]), wide[1]), weight, bias, [1])
        return [y, None, None, mean_, var]
    y, middle, square, root = _normed(g, x, dims, eps, weight, bias, [1])
    middle, square = (g.reshape(v, [x.shape[1]]) for v in (middle, square))
    count = int(np.prod([x.shape[d] for d in dims]))
    moved = [old if old is None else do(g, "add", do(g, "mul", old, 1 - momentum), do(g, "mul", new, momentum * by))
             for old, new, by in ((mean_, middle, 1.0), (var, square, count / max(count - 1, 1)))]
    return [y, middle, g.reshape(root, [x.shape[1]]), *moved]


# -- windows

def _each(numbers, n):
    numbers = list(numbers) if isinstance(numbers, (list, tuple)) else [numbers]
    return numbers * n if len(numbers) == 1 else numbers


@rule("convolution")
def _convolution(g, out, x, w, bias, stride, padding, dilation, transposed, more, groups):
    n = len(w.shape) - 2
    stride, padding, dilation, more = (_each(v, n) for v in (stride, padding, dilation, more))
    between, pads, order = [1] * n, [(p, p) for p in padding], list(range(n + 2))
    if transposed:  # of a weight (C, O / groups, window): the convolution of x, dilated, with it turned around
        pads = [(d * (k - 1) - p, d * (k - 1) - p + m) for d, k, p, m in zip(dilation, w.shape[2:], padding, more)]
        between, stride = stride, between
        if groups > 1:
            w = g.reshape(w, [groups, w.shape[0] // groups, *w.shape[1:]])
            w = g.transpose(w, [1, 0, *range(2, n + 3)])
            w = g.reshape(w, [w.shape[0], groups * w.shape[2], *w.shape[3:]])
        w = g.rev(w, range(2, n + 2))
    y = g.conv(x, w, (order, [1, 0, *order[2:]] if transposed else order, order), stride, pads, between, dilation,
               groups)
    return _affine(g, y, None, bias, [1])


def _pool(g, fn, out, x, size, stride, padding, dilation=1):
    """Returns the pool over x's last dimensions."""
    n = len(size)
    stride, padding, dilation = _each(stride or size, n), _each(padding, n), _each(dilation, n)
    pads = [(p, (o - 1) * s + (k - 1) * d + 1 - m - p)
            for p, o, s, k, d, m in zip(padding, out.shape[-n:], stride, size, dilation, x.shape[-n:])]
    ones = [1] * (len(x.shape) - n)
    return g.window(fn, x, ones + list(size), ones + stride, [(0, 0)] * len(ones) + pads, None, ones + dilation)


@rule("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(g, out, x, size, stride=(), padding=0, dilation=1, ceil_mode=False):
    return [_pool(g, "max", out[0], x, size, stride, padding, dilation),
            g.refuse("the indices of a pool", out[1].shape, out[1].dtype, [x])]


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(g, out, x, size, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor=None):
    y, count, n = _pool(g, "sum", out, x, size, stride, padding), np.ones((), np.float32), len(size)
    for k, s, p, m, o in zip(size, _each(stride or size, n), _each(padding, n), x.shape[-n:], out.shape[-n:]):
        low = np.arange(o) * s - p
        high = np.minimum(low + k, m + p)
        count = count[..., None] * (high - low if count_include_pad else np.minimum(high, m) - np.maximum(low, 0))
    count = np.asarray(1 / count if divisor is None else np.full(count.shape, 1 / divisor), np.float32)
    return do(g, "mul", y, g.const(count))


def _adaptive(fn):
    def make(g, out, x, size):
        shape = (out[0] if isinstance(out, list) else out).shape
        for dim in range(len(x.shape) - len(size), len(x.shape)):
            n, o = x.shape[dim], shape[dim]
            if n % o == 0:
                split = g.reshape(x, [*x.shape[:dim], o, n // o, *x.shape[dim + 1:]])
                x = mean(g, split, [dim + 1], False) if fn == "mean" else g.reduce("max", split, [dim + 1])
                continue
            parts = [g.part(x, dim, k * n // o, -(-(k + 1) * n // o)) for k in range(o)]
            x = g.concat([mean(g, v, [dim]) if fn == "mean" else _kept(g, v, [dim], g.reduce("max", v, [dim]), True)
                          for v in parts], dim)
        if not isinstance(out, list):
            return x
        return [x, g.refuse("the indices of a pool", out[1].shape, out[1].dtype, [x])]
    return make


for _k in "123":
    RULES[f"adaptive_avg_pool{_k}d"] = RULES[f"_adaptive_avg_pool{_k}d"] = _adaptive("mean")
    RULES[f"adaptive_max_pool{_k}d"] = _adaptive("max")


# -- indices

def _wrapped(g, at, count):
    """Returns an index that counts from the front."""
    array = g.known(at)
    if array is not None:
        return g.const(np.where(array < 0, array + count, array).astype(np.int32))
    return select(g, do(g, "lt", at, 0), do(g, "add", at, count), at)


def _vectors(g, x, dims, at):
    """Returns the indices of several dimensions as vectors, and the shape that they have in common."""
    shape = np.broadcast_shapes(*[v.shape for v in at])
    at = [_wrapped(g, v, x.shape[d]) for d, v in zip(dims, at)]
    at = [g.broadcast(v, shape, range(len(shape) - len(v.shape), len(shape))) for v in at]
    return g.concat([g.reshape(v, (*shape, 1)) for v in at], len(shape)), shape


def _offset(x, dims, shape):
    """Returns where the other dimensions lie in the result, beside those of the index."""
    together = list(dims) == list(range(dims[0], dims[0] + len(dims)))
    first = dims[0] if together else 0
    return [k for k in range(len(x.shape) - len(dims) + len(shape)) if not first <= k < first + len(shape)]


def _take(g, x, dims, at):
    vectors, shape = _vectors(g, x, dims, at)
    offset, sizes = _offset(x, dims, shape), [1 if k in dims else d for k, d in enumerate(x.shape)]
    rest = iter([d for k, d in enumerate(x.shape) if k not in dims])
    inner = iter(shape)
    full = [next(rest if k in offset else inner) for k in range(len(offset) + len(shape))]
    return g.gather(x, vectors, full, offset, dims, dims, ([], []), sizes, "clip")


@rule("embedding")
def _embedding(g, out, w, at, padding_idx=-1, *more):
    if padding_idx is not None and padding_idx >= 0:  # its row has no gradient
        row = np.arange(w.shape[0]) == padding_idx
        w = select(g, g.broadcast(g.const(row), w.shape, [0]), g.map("stop", [w], w.shape), w)
    return _take(g, w, [0], [at])


@rule("_embedding_bag")
def _embedding_bag(g, out, w, at, offsets, scale=False, mode=0, sparse=False, weights=None, last=False, padding=-1):
    """Sums, means or maxima of the rows between one offset and the next."""
    count, bags = at.shape[0], out[0].shape[0]
    if mode == 2 and (count % bags or padding >= 0):
        return [g.refuse("the maxima of bags that differ in length", o.shape, o.dtype, [w, at, offsets]) for o in out]
    rows = _embedding(g, None, w, at, padding)
    if mode == 2:
        return [g.reduce("max", g.reshape(rows, [bags, count // bags, w.shape[1]]), [1])] + [
            g.refuse("what is beside the maxima of bags", o.shape, o.dtype, [rows]) for o in out[1:]]
    begins = g.part(offsets, 0, 0, bags)
    bag = g.map("le", [g.broadcast(begins, [count, bags], [1]),
                       g.broadcast(g.const(np.arange(count, dtype=np.int32)), [count, bags], [0])], [count, bags])
    bag = do(g, "sub", g.reduce("sum", value(g, bag, "int32"), [1]), 1)
    counts = value(g, do(g, "ne", at, padding), w.dtype)
    factors = counts if weights is None else do(g, "mul", counts, weights)
    rows = do(g, "mul", rows, g.reshape(factors, [count, 1]))
    zero = g.broadcast(value(g, 0, w.dtype), [bags, w.shape[1]], [])
    made = _index_put(g, None, zero, [bag], rows, True)
    size = _index_put(g, None, g.broadcast(value(g, 0, w.dtype), [bags], []), [bag], counts, True)
    if mode == 1:
        made = do(g, "div", made, g.reshape(do(g, "max", size, 1.0), [bags, 1]))
    return [made, bag, value(g, size, "int32"), value(g, size, "int32")]


@rule("index_select")
def _index_select(g, out, x, dim, at):
    return _take(g, x, [one(x, dim)], [at])


def _named(g, out, x, indices):
    dims = [k for k, v in enumerate(indices) if v is not None]
    return dims, [indices[d] for d in dims]


@rule("index", "_unsafe_index")
def _index(g, out, x, indices):
    dims, at = _named(g, out, x, indices)
    if any(v.dtype == "bool" for v in at):
        return g.refuse("a mask as index", out.shape, out.dtype, [x, *at])
    return _take(g, x, dims, at)


@rule("index_put", "_unsafe_index_put")
def _index_put(g, out, x, indices, values, accumulate=False):
    dims, at = _named(g, out, x, indices)
    if len(at) == 1 and at[0].dtype == "bool" and values.shape == () and not accumulate:
        mask = g.broadcast(at[0], x.shape, range(dims[0], dims[0] + len(at[0].shape)))
        return select(g, mask, values, x)
    if any(v.dtype == "bool" for v in at):
        return g.refuse("a mask as index", out.shape, out.dtype, [x, *at])
    vectors, shape = _vectors(g, x, dims, at)
    offset = _offset(x, dims, shape)
    rest, inner = iter([d for k, d in enumerate(x.shape) if k not in dims]), iter(shape)
    full = [next(rest if k in offset else inner) for k in range(len(offset) + len(shape))]
    values = g.broadcast(value(g, values, x.dtype), full, range(len(full) - len(values.shape), len(full)))
    return g.scatter("add" if accumulate else "set", x, vectors, values, offset, dims, dims, ([], []), "fill")


def _others(x, dim):
    return [k for k in range(len(x.shape)) if k != dim]


@rule("gather")
def _gather(g, out, x, dim, at, sparse_grad=False):
    if x.shape == ():
        return x
    dim = one(x, dim)
    others = _others(x, dim)
    x = g.slice(x, [0] * len(x.shape), [x.shape[k] if k == dim else at.shape[k] for k in range(len(x.shape))])
    vectors = g.reshape(_wrapped(g, at, x.shape[dim]), (*at.shape, 1))
    return g.gather(x, vectors, at.shape, [], [dim], [dim], (others, others), [1] * len(x.shape), "clip")


def _scatter(fn):
    def make(g, out, x, dim, at, source, reduce=None, include_self=True, fn=fn):
        if reduce is not None:
            fn = {"sum": "add", "add": "add", "amax": "max", "amin": "min"}.get(reduce)
        if fn is None or not include_self:
            return g.refuse(f"scatter_reduce of {reduce}, expected sum, amax or amin with include_self", out.shape,
                            out.dtype, [x, at])
        dim = one(x, dim)
        others = _others(x, dim)
        source = value(g, source, x.dtype)
        if source.shape == ():
            source = g.broadcast(source, at.shape, [])
        else:
            source = g.slice(source, [0] * len(x.shape), at.shape)
        at = _wrapped(g, at, x.shape[dim])
        wide = [(0, x.shape[k] - at.shape[k] if k != dim else 0, 0) for k in range(len(x.shape))]
        at, source = g.pad(at, value(g, x.shape[dim], "int32"), wide), g.pad(source, value(g, 0, x.dtype), wide)
        vectors = g.reshape(at, (*at.shape, 1))
        return g.scatter(fn, x, vectors, source, [], [dim], [dim], (others, others), "fill")
    return make


RULES["scatter"], RULES["scatter_add"], RULES["scatter_reduce"] = _scatter("set"), _scatter("add"), _scatter(None)
