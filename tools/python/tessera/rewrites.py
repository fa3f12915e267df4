"""Primitives of JAX that the format lacks, said in ones that it has: REWRITES[name](params, equation) returns a
function of JAX that is traced in its place, or None where there is none."""
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax



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


def _erf_inv(x):
    """XLA's: two polynomials, of the middle and of the ends."""
    w = -jnp.log1p(-x * x)
    middle = w < 5
    w, p = jnp.where(middle, w - 2.5, jnp.sqrt(jnp.maximum(w, 5)) - 3), 0
    for a, b in zip((2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                     -0.00417768164, 0.246640727, 1.50140941),
                    (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                     0.00943887047, 1.00167406, 2.83297682)):
        p = jnp.where(middle, np.float32(a), np.float32(b)) + p * w
    return jnp.where(jnp.abs(x) == 1, x * np.float32(np.inf), p * x)


REWRITES = {
    "erf_inv": _function(_erf_inv),
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
