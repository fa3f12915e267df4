"""Primitives of JAX that the format lacks, said in ones that it has: REWRITES[name](params, equation) returns a
function of JAX that is traced in its place, or None where there is none."""
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

WINDOW = 1024  # places of a window that are written one after another
TOP = 16


def _patches(x, size, stride, dilation):
    """Returns x (N, spatial, C) at each place of the window, (N, windows, C) each."""
    out = [(n - (k - 1) * d - 1) // s + 1 for n, k, s, d in zip(x.shape[1:-1], size, stride, dilation)]
    for at in itertools.product(*map(range, size)):
        lo = [k * d for k, d in zip(at, dilation)]
        hi = [a + (n - 1) * s + 1 for a, n, s in zip(lo, out, stride)]
        yield lax.slice(x, [0, *lo, 0], [x.shape[0], *hi, x.shape[-1]], [1, *stride, 1])


def _whole_patches(x, w, size):
    """The product of windows that lie side by side: x is cut by a reshape."""
    n = [d // k for d, k in zip(x.shape[1:-1], size)]
    x = lax.slice(x, [0] * x.ndim, [x.shape[0], *[d * k for d, k in zip(n, size)], x.shape[-1]])
    x = x.reshape(x.shape[0], *[d for pair in zip(n, size) for d in pair], x.shape[-1])
    inner = [2 * k + 2 for k in range(len(size))] + [x.ndim - 1]
    return lax.dot_general(x, w, ((inner, list(range(len(size) + 1))), ([], [])))


def _conv(p, equation):
    d, groups = p["dimension_numbers"], int(p["feature_group_count"])
    size = [equation.invars[1].aval.shape[k] for k in d.rhs_spec[2:]]
    if p["batch_group_count"] != 1 or np.prod(size) > WINDOW:
        return None

    def conv(x, w):
        x = x.transpose(d.lhs_spec[0], *d.lhs_spec[2:], d.lhs_spec[1])  # (N, spatial, C)
        w = w.transpose(*d.rhs_spec[2:], d.rhs_spec[1], d.rhs_spec[0])  # (window, C / groups, O)
        pads = [(lo, hi, n - 1) for (lo, hi), n in zip(p["padding"], p["lhs_dilation"])]
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *pads, (0, 0, 0)])
        stride, dilation, inputs, outputs = p["window_strides"], p["rhs_dilation"], w.shape[-2], w.shape[-1]
        flat = w.reshape(-1, inputs, outputs)
        if groups == 1 and list(stride) == size and set(dilation) == {1}:
            y = _whole_patches(x, w, size)
        elif groups == 1:
            y = jnp.concatenate(list(_patches(x, size, stride, dilation)), -1) @ flat.reshape(-1, outputs)
        elif inputs == 1 and outputs == groups:
            y = sum(part * flat[k, 0] for k, part in enumerate(_patches(x, size, stride, dilation)))
        else:
            parts = jnp.stack([part.reshape(*part.shape[:-1], groups, inputs)  # (N, windows, groups, K, C / groups)
                               for part in _patches(x, size, stride, dilation)], -2)
            y = jnp.einsum("...gkc,kcgo->...go", parts, flat.reshape(-1, inputs, groups, outputs // groups))
            y = y.reshape(*y.shape[:-2], outputs)
        return y.transpose(np.argsort([d.out_spec[0], *d.out_spec[2:], d.out_spec[1]]))
    return conv


def _window(join):
    def rewrite(p, equation):
        size = p["window_dimensions"]
        if np.prod(size) > WINDOW:
            return None

        def window(x, start=None):
            if start is None:
                start = jnp.array({"max": -jnp.inf, "min": jnp.inf, "sum": 0}[join], x.dtype)
            pads = [(lo, hi, n - 1) for (lo, hi), n in zip(p["padding"], p["base_dilation"])]
            x = lax.pad(x, start, pads)[None, ..., None]
            parts = list(_patches(x, size, p["window_strides"], p["window_dilation"]))
            made = parts[0]
            for part in parts[1:]:  # of equal ones the first has the gradient
                made = made + part if join == "sum" else jnp.where(
                    made >= part if join == "max" else made <= part, made, part)
            return made[0, ..., 0]
        return window
    return rewrite


def _generic_window(p, equation):
    body = [e.primitive.name for e in p["jaxpr"].eqns] if "jaxpr" in p else []
    join = {"add": "sum", "max": "max", "min": "min"}.get(body[0]) if len(body) == 1 else None
    return None if join is None or len(equation.invars) != 2 else _window(join)(p, equation)


def _cumulative(join):
    def rewrite(p, equation):
        return lambda x: lax.associative_scan(join, x, axis=p["axis"], reverse=p["reverse"])
    return rewrite


def _top_k(p, equation):
    x, axis = equation.invars[0].aval, p.get("axis", -1)
    if p["k"] > TOP or axis not in (-1, len(x.shape) - 1) or x.dtype.kind != "f":
        return None

    def top(x):
        left, places = x, []
        for _ in range(p["k"]):
            places.append(lax.argmax(left, x.ndim - 1, np.int32))
            left = jnp.where(jnp.arange(x.shape[-1]) == places[-1][..., None], -jnp.inf, left)
        places = jnp.stack(places, -1)
        return jnp.take_along_axis(x, places, -1, mode="clip"), places
    return top


def _dynamic_slice(p, equation):
    def cut(x, *starts):
        every = tuple(range(x.ndim))
        numbers = lax.GatherDimensionNumbers(offset_dims=every, collapsed_slice_dims=(), start_index_map=every)
        return lax.gather(x, jnp.stack(starts), numbers, p["slice_sizes"], mode="clip")
    return cut if len(equation.invars) == 1 + len(equation.invars[0].aval.shape) else None


def _dynamic_update(p, equation):
    def put(x, update, *starts):
        every = tuple(range(x.ndim))
        numbers = lax.ScatterDimensionNumbers(every, (), every)
        return lax.scatter(x, jnp.stack(starts), update, numbers, mode="clip")
    return put


def _function(function):
    return lambda p, equation: function


def _sinh(x):
    e = jnp.expm1(x)
    return 0.5 * (e + e / (e + 1))


REWRITES = {
    "conv_general_dilated": _conv, "top_k": _top_k,
    "reduce_window_max": _window("max"), "reduce_window_min": _window("min"), "reduce_window_sum": _window("sum"),
    "reduce_window": _generic_window,
    "cumsum": _cumulative(lax.add), "cumprod": _cumulative(lax.mul), "cummax": _cumulative(lax.max),
    "cummin": _cumulative(lax.min), "cumlogsumexp": _cumulative(jnp.logaddexp),
    "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update,
    "exp2": _function(lambda x: jnp.exp(x * np.float32(np.log(2)))),
    "sinh": _function(_sinh), "cosh": _function(lambda x: 0.5 * (jnp.exp(x) + jnp.exp(-x))),
    "asin": _function(lambda x: lax.atan2(x, jnp.sqrt((1 - x) * (1 + x)))),
    "acos": _function(lambda x: lax.atan2(jnp.sqrt((1 - x) * (1 + x)), x)),
    "atan": _function(lambda x: lax.atan2(x, jnp.ones_like(x))),
    "asinh": _function(lambda x: jnp.sign(x) * jnp.log1p(jnp.abs(x) + x * x / (1 + jnp.sqrt(x * x + 1)))),
    "acosh": _function(lambda x: jnp.log(x + jnp.sqrt((x - 1) * (x + 1)))),
    "atanh": _function(lambda x: 0.5 * (jnp.log1p(x) - jnp.log1p(-x))),
}
