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
    "top_k": _top_k,
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
