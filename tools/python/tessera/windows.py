"""Pools and what is cumulative, said in slices and maps."""
import itertools

import numpy as np

WINDOW = 1024  # places of a window that are written one after another


def _padded(g, x, value, pads):
    return g.pad(x, g.const(np.asarray(value, x.dtype)), [(0, 0, 0)] * (len(x.shape) - len(pads)) + list(pads))


def _places(g, x, size, stride, dilation, out):
    """Returns x at each place of a window, each (..., out)."""
    lead = len(x.shape) - len(size)
    for at in itertools.product(*map(range, size)):
        lo = [k * d for k, d in zip(at, dilation)]
        hi = [a + (n - 1) * s + 1 for a, n, s in zip(lo, out, stride)]
        yield g.slice(x, [0] * lead + lo, [*x.shape[:lead], *hi], [1] * lead + list(stride))


def pool(g, fn, x, size, stride, pads, dilation):
    """Returns the max, min or sum of each window; None where it is too large. Of equal ones the first has the
    gradient."""
    if np.prod(size) > WINDOW:
        return None
    start = {"max": -np.inf, "min": np.inf, "sum": 0}[fn]
    x = _padded(g, x, start, [(lo, hi, 0) for lo, hi in pads])
    lead = len(x.shape) - len(size)
    out = [(d - (k - 1) * e - 1) // s + 1 for d, k, e, s in zip(x.shape[lead:], size, dilation, stride)]
    made = None
    for part in _places(g, x, size, stride, dilation, out):
        if made is None:
            made = part
        elif fn == "sum":
            made = g.map("add", [made, part], part.shape)
        else:
            first = g.map("ge" if fn == "max" else "le", [made, part], part.shape)
            made = g.map("select", [first, made, part], part.shape)
    return made


def cumulative(g, fn, x, dim):
    """Returns the sums, products, maxima or minima of what lies before, in doubling steps."""
    start, step = {"add": 0, "mul": 1, "max": -np.inf, "min": np.inf}[fn], 1
    while step < x.shape[dim]:
        before = _padded(g, x, start, [(step, -step, 0) if k == dim else (0, 0, 0) for k in range(len(x.shape))])
        x = g.map(fn, [x, before], x.shape)
        step *= 2
    return x
