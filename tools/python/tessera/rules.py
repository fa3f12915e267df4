"""What each primitive of JAX is in the format: rule(graph, operands, params, shape, dtype) returns what it makes."""
import numpy as np

SAME = ("add sub mul div neg abs sign floor ceil exp log log1p expm1 sqrt rsqrt cbrt sin cos tan tanh logistic erf "
        "erfc square is_finite not rem pow max min atan2 and or xor lt le gt ge eq ne clamp").split()
OTHER_NAMES = {"add_any": "add", "stop_gradient": "stop"}
REDUCTIONS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod",
              "reduce_and": "and", "reduce_or": "or", "argmax": "argmax", "argmin": "argmin"}
SCATTERS = {"scatter": "set", "scatter-add": "add", "scatter-sub": "add", "scatter-mul": "mul", "scatter-min": "min",
            "scatter-max": "max"}
RULES = {}
# What makes the same bits of numbers without a sign as of those with one.
UNSIGNED = {"add", "sub", "mul", "and", "or", "xor", "not", "eq", "ne", "shift_left", "shift_right_logical", "select_n",
            "bitcast_convert_type", "convert_element_type", "random_bits", "random_wrap", "random_unwrap",
            "random_seed", "random_fold_in", "random_split", "broadcast_in_dim", "reshape", "squeeze", "expand_dims",
            "transpose", "slice", "concatenate", "rev", "stop_gradient"}


def rule(*names):
    def add(function):
        for name in names:
            RULES[name] = function
        return function
    return add


def _map(name, fn):
    def make(g, x, p, shape, dtype):
        if fn == "pow":
            x = [g.cast(v, dtype) for v in x]
        return g.map(fn, x, shape)
    RULES[name] = make


def _reduce(name, fn):
    def make(g, x, p, shape, dtype):
        if fn in ("and", "or") and x[0].dtype != "bool":
            return g.refuse(f"{name} of {x[0].dtype}", shape, dtype)
        return g.reduce(fn, x[0], p["axes"])
    RULES[name] = make


for _name in SAME:
    _map(_name, _name)
for _name, _fn in OTHER_NAMES.items():
    _map(_name, _fn)
for _name, _fn in REDUCTIONS.items():
    _reduce(_name, _fn)


@rule("integer_pow")
def _integer_pow(g, x, p, shape, dtype):
    return g.map("ipow", x, shape, y=int(p["y"]))


@rule("round")
def _round(g, x, p, shape, dtype):
    if int(p["rounding_method"]) == 1:  # halves to even
        return g.map("round", x, shape)
    half = g.map("add", [g.map("abs", x, shape), g.const(np.float32(0.5))], shape)
    return g.map("mul", [g.map("sign", x, shape), g.map("floor", [half], shape)], shape)


@rule("convert_element_type")
def _convert(g, x, p, shape, dtype):
    return g.cast(x[0], dtype)


@rule("reduce_precision")
def _precision(g, x, p, shape, dtype):
    kept = p["exponent_bits"] == 8 and p["mantissa_bits"] >= 23
    return x[0] if kept else g.refuse("reduce_precision to less than float32", shape, dtype)


@rule("select_n")
def _select(g, x, p, shape, dtype):
    if x[0].dtype == "bool":
        return g.map("select", [x[0], x[2], x[1]], shape)
    made = x[-1]
    for k in range(len(x) - 2, 0, -1):
        made = g.map("select", [g.map("lt", [x[0], g.const(np.int32(k))], x[0].shape), x[k], made], shape)
    return made


@rule("broadcast_in_dim")
def _broadcast(g, x, p, shape, dtype):
    return g.broadcast(x[0], shape, p["broadcast_dimensions"])


@rule("reshape", "squeeze", "expand_dims")
def _reshape(g, x, p, shape, dtype):
    if p.get("dimensions") is not None and len(p["dimensions"]) == len(x[0].shape) and "new_sizes" in p:
        return g.reshape(g.transpose(x[0], p["dimensions"]), shape)
    return g.reshape(x[0], shape)


@rule("transpose")
def _transpose(g, x, p, shape, dtype):
    return g.transpose(x[0], p["permutation"])


@rule("slice")
def _slice(g, x, p, shape, dtype):
    return g.slice(x[0], p["start_indices"], p["limit_indices"], p["strides"])


@rule("split")
def _split(g, x, p, shape, dtype):
    ends = np.cumsum([0, *p["sizes"]])
    return [g.part(x[0], p["axis"], lo, hi) for lo, hi in zip(ends, ends[1:])]


@rule("concatenate")
def _concat(g, x, p, shape, dtype):
    return g.concat(x, p["dimension"])


@rule("stack")
def _stack(g, x, p, shape, dtype):
    one = [*x[0].shape[:p["axis"]], 1, *x[0].shape[p["axis"]:]]
    return g.concat([g.reshape(v, one) for v in x], p["axis"])


@rule("unstack")
def _unstack(g, x, p, shape, dtype):
    return [g.reshape(g.part(x[0], p["axis"], k, k + 1), shape) for k in range(x[0].shape[p["axis"]])]


@rule("tile")
def _tile(g, x, p, shape, dtype):
    reps = p["reps"]
    inner = (1,) * (len(reps) - len(x[0].shape)) + x[0].shape
    wide = [d for pair in zip(reps, inner) for d in pair]
    dims = [2 * k + 1 for k in range(len(reps))][len(reps) - len(x[0].shape):]
    return g.reshape(g.broadcast(x[0], wide, dims), shape)


@rule("pad")
def _pad(g, x, p, shape, dtype):
    return g.pad(x[0], x[1], p["padding_config"])


@rule("rev")
def _rev(g, x, p, shape, dtype):
    return g.rev(x[0], p["dimensions"])


@rule("iota")
def _iota(g, x, p, shape, dtype):
    return g.iota(shape, dtype, p["dimension"])


@rule("dot_general")
def _dot(g, x, p, shape, dtype):
    contract, batch = p["dimension_numbers"]
    return g.dot(g.cast(x[0], dtype), g.cast(x[1], dtype), contract, batch)


@rule("conv_general_dilated")
def _conv(g, x, p, shape, dtype):
    if p["batch_group_count"] != 1:
        return g.refuse("a convolution with batch_group_count", shape, dtype, x)
    d = p["dimension_numbers"]
    return g.conv(*x, (d.lhs_spec, d.rhs_spec, d.out_spec), p["window_strides"], p["padding"], p["lhs_dilation"],
                  p["rhs_dilation"], p["feature_group_count"])


WINDOWS = {"add": "sum", "max": "max", "min": "min"}


def _window(fn):
    def make(g, x, p, shape, dtype):
        return g.window(fn, x[0], p["window_dimensions"], p["window_strides"], p["padding"], p["base_dilation"],
                        p["window_dilation"])
    return make


for _name in WINDOWS.values():
    RULES[f"reduce_window_{_name}"] = _window(_name)


@rule("reduce_window")
def _generic_window(g, x, p, shape, dtype):
    """By a function: what it begins with counts in each window, once at least."""
    body = [e.primitive.name for e in p["jaxpr"].eqns]
    fn = WINDOWS.get(body[0]) if len(body) == 1 and len(x) == 2 else None
    if fn is None or fn == "sum" and (x[1].kind != "const" or x[1].data.item() != 0):
        return g.refuse("reduce_window by a function that is no sum, max or min", shape, dtype, x)
    made = _window(fn)(g, x, p, shape, dtype)
    return made if fn == "sum" else g.map(fn, [made, x[1]], shape)


def _cumulative(fn):
    return lambda g, x, p, shape, dtype: g.cum(fn, x[0], p["axis"], p["reverse"])


for _name in ("sum", "prod", "max", "min", "logsumexp"):
    RULES[f"cum{_name}"] = _cumulative(_name)


@rule("sort")
def _sort(g, x, p, shape, dtype):
    dim, order = p["dimension"], None
    for key in x[p["num_keys"] - 1::-1]:  # by the last key first
        made = g.sort(key if order is None else g.along(key, dim, order), dim)
        order = made if order is None else g.along(order, dim, made)
    return [g.along(v, dim, order) for v in x]


@rule("top_k")
def _top_k(g, x, p, shape, dtype):
    dim = p.get("axis", -1) % len(shape)
    at = g.part(g.sort(x[0], dim, True), dim, 0, p["k"])
    return [g.along(x[0], dim, at), at]


def _mode(p):
    return str(p["mode"]).rsplit(".", 1)[-1].upper()


@rule("gather")
def _gather(g, x, p, shape, dtype):
    d = p["dimension_numbers"]
    fill = {}
    if _mode(p) == "FILL_OR_DROP":
        value = p["fill_value"]
        if value is None:
            value = np.nan if dtype == "float32" else True if dtype == "bool" else np.iinfo(dtype).min
        fill = {"fill": "nan" if np.isnan(value) else int(value) if dtype != "float32" else float(value)}
    return g.gather(x[0], x[1], shape, d.offset_dims, d.collapsed_slice_dims, d.start_index_map,
                    (d.operand_batching_dims, d.start_indices_batching_dims), p["slice_sizes"],
                    "fill" if fill else "clip", **fill)


def _scatter(name, fn):
    def make(g, x, p, shape, dtype):
        d = p["dimension_numbers"]
        updates = g.map("neg", [x[2]], x[2].shape) if name == "scatter-sub" else x[2]
        return g.scatter(fn, x[0], x[1], updates, d.update_window_dims, d.inserted_window_dims,
                         d.scatter_dims_to_operand_dims, (d.operand_batching_dims, d.scatter_indices_batching_dims),
                         "clip" if _mode(p) == "CLIP" else "fill")
    RULES[name] = make


for _name, _fn in SCATTERS.items():
    _scatter(_name, _fn)


# -- random numbers: threefry, as JAX has it

_map("shift_left", "shl")
_map("shift_right_logical", "shr")


@rule("bitcast_convert_type")
def _bitcast(g, x, p, shape, dtype):
    if {x[0].dtype, dtype} == {"int32", "float32"}:
        return g.map("bits", x, shape, dtype)
    return x[0] if x[0].dtype == dtype else g.refuse(f"a bitcast of {x[0].dtype}", shape, dtype, x)


@rule("random_wrap", "random_unwrap")
def _same_key(g, x, p, shape, dtype):
    return x[0]


def spread_words(g, key, shape):
    """Both words of keys (..., 2), repeated over more dimensions behind theirs."""
    own = key.shape[:-1]
    for word in range(2):
        lo, hi = [0] * len(own) + [word], [*own, word + 1]
        one = g.reshape(g.slice(key, lo, hi, [1] * len(hi)), own)
        yield g.broadcast(one, (*own, *shape), range(len(own)))


def counter(g, own, shape):
    """The place of each element in row-major order; the same for all keys."""
    at = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    if at.size <= 64:
        return g.broadcast(g.const(at), (*own, *shape), range(len(own), len(own) + len(shape)))
    sum_of, step = None, 1
    for d in reversed(range(len(shape))):
        part = g.map("mul", [g.iota((*own, *shape), "int32", len(own) + d), g.const(np.int32(step))], (*own, *shape))
        sum_of, step = part if sum_of is None else g.map("add", [sum_of, part], part.shape), step * shape[d]
    return sum_of


def words(g, key, counter, shape):
    """Keys (..., shape, 2) of what the counter says."""
    whole = (*key.shape[:-1], *shape)
    k = list(spread_words(g, key, shape))
    both = [g.map(f"threefry_{word}", [*k, counter], whole) for word in range(2)]
    return g.concat([g.reshape(b, (*whole, 1)) for b in both], len(whole))


def _threefry_refused(g, shape, dtype, x):
    import jax
    if not getattr(jax.config, "jax_threefry_partitionable", False):
        return g.refuse("random numbers without jax_threefry_partitionable", shape, dtype, x)
    return g.refuse("more random numbers than 2^31", shape, dtype, x) if np.prod(shape, dtype=float) >= 2**31 else None


@rule("random_bits")
def _random_bits(g, x, p, shape, dtype):
    refused = _threefry_refused(g, shape, dtype, x)
    if refused is not None or int(p["bit_width"]) != 32:
        return refused if refused is not None else g.refuse(f"random numbers of {p['bit_width']} bits", shape, dtype, x)
    key, more = x[0], tuple(p["shape"])
    return g.map("threefry", [*spread_words(g, key, more), counter(g, key.shape[:-1], more)], shape)


@rule("random_split")
def _random_split(g, x, p, shape, dtype):
    refused, more = _threefry_refused(g, shape, dtype, x), tuple(p["shape"])
    return refused if refused is not None else words(g, x[0], counter(g, x[0].shape[:-1], more), more)


@rule("random_fold_in")
def _random_fold_in(g, x, p, shape, dtype):
    return words(g, x[0], g.broadcast(x[1], shape[:-1], range(len(x[1].shape))), ())


@rule("random_seed")
def _random_seed(g, x, p, shape, dtype):
    seed = g.reshape(x[0], (*x[0].shape, 1))
    return g.concat([g.broadcast(g.const(np.int32(0)), seed.shape, []), seed], len(x[0].shape))
