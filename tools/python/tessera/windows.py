"""Convolutions and pools, said in slices, products and maps: x is (N, C, spatial)."""
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


def _joined(g, x, keep, merge):
    """Returns x with the dimensions `keep` first and the others, in that order, as one."""
    x = g.transpose(x, [*keep, *merge])
    return g.reshape(x, [*x.shape[:len(keep)], int(np.prod(x.shape[len(keep):]))])


def conv(g, x, w, stride, pads, between, dilation, groups):
    """Returns the convolution of x with w (O, C / groups, window): pads are (before, after), between the zeros that
    are put between the elements of x. None where the window is too large."""
    size, n = w.shape[2:], len(w.shape) - 2
    if np.prod(size) > WINDOW:
        return None
    x = _padded(g, x, 0, [(lo, hi, b) for (lo, hi), b in zip(pads, between)])
    out = [(d - (k - 1) * e - 1) // s + 1 for d, k, e, s in zip(x.shape[2:], size, dilation, stride)]
    space, last = list(range(2, 2 + n)), n + 2
    if groups == 1 and list(stride) == list(size) and set(dilation) == {1}:  # windows lie side by side
        x = g.slice(x, [0] * last, [*x.shape[:2], *[d * k for d, k in zip(out, size)]])
        x = g.reshape(x, [*x.shape[:2], *[d for pair in zip(out, size) for d in pair]])
        inner = [2 * k + 3 for k in range(n)]
        y = g.dot(x, w, [[1, *inner], list(range(1, last))])  # (N, out, O)
        return g.transpose(y, [0, n + 1, *range(1, n + 1)])
    if w.shape[1] == 1 and w.shape[0] == groups:  # each channel by itself
        flat, y = g.reshape(w, [groups, int(np.prod(size))]), None
        for k, part in enumerate(_places(g, x, size, stride, dilation, out)):
            weight = g.broadcast(g.reshape(g.part(flat, 1, k, k + 1), [groups]), part.shape, [1])
            part = g.map("mul", [part, weight], part.shape)
            y = part if y is None else g.map("add", [y, part], y.shape)
        return y
    w = _joined(g, w, [], [0, *space, 1])  # (groups, O / groups, window, C / groups)
    inputs, outputs, places = x.shape[1] // groups, w.shape[0], int(np.prod(size))
    outputs //= groups * inputs * places
    parts = []
    for part in _places(g, x, size, stride, dilation, out):
        part = g.transpose(part, [0, *space, 1])
        parts.append(g.reshape(part, [*part.shape[:-1], groups, inputs]) if groups > 1 else part)
    x = g.concat(parts, last if groups > 1 else last - 1)  # (N, out, [groups,] window * C / groups)
    if groups == 1:
        y = g.dot(x, g.reshape(w, [outputs, places * inputs]), [[n + 1], [1]])
    else:
        y = g.dot(x, g.reshape(w, [groups, outputs, places * inputs]), [[n + 2], [2]], [[n + 1], [0]])
        y = g.transpose(y, [*range(1, n + 2), 0, n + 2])
        y = g.reshape(y, [*y.shape[:-2], groups * outputs])
    return g.transpose(y, [0, n + 1, *range(1, n + 1)])


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
