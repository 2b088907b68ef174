"""The projection and its derivatives in plain operations, along the last axis.

It is the twin that every kernel is compared with, and it runs where no kernel does: other devices, transforms of
functions, forward mode, derivatives of derivatives. `xp` is NumPy, torch or jax.numpy; arrays come in the type they
are to be computed in. One radius per row, or one for all.
"""

from __future__ import annotations

import math
from typing import Any

from sparsegen._table.maps import HIDDEN

Array = Any


def _sum(xp: Any, x: Array) -> Array:
    return xp.sum(x, -1, keepdims=True)


def _count(xp: Any, chosen: Array, like: Array) -> Array:
    """How many of each row, at least 1, in the type of `like`."""
    n = _sum(xp, xp.where(chosen, xp.ones_like(like), xp.zeros_like(like)))
    return xp.where(n > 1, n, xp.ones_like(n))


def column(xp: Any, radius: Array, x: Array) -> Array:
    """One radius per row beside `x`, with an axis of size 1 for the classes."""
    return xp.broadcast_to(radius, tuple(x.shape[:-1]))[..., None]


def project(xp: Any, x: Array, radius: Array) -> Array:
    """[x - tau]_+ / r with tau such that it sums to 1, by sorting; -inf is never chosen. No derivative."""
    r = column(xp, radius, x)
    top = xp.amax(x, -1, keepdims=True)
    empty = top == HIDDEN
    broken = xp.isnan(top) | (top == math.inf) | xp.isnan(r) | (r < 0)
    u = xp.where(empty, 0.0, x - top)
    s = xp.where((r > 0) & (r < math.inf), r, 1.0)
    t = u / s
    ordered = xp.sort(-xp.clip(t, -1.0, None), -1)  # rising: the largest first
    ordered = -getattr(ordered, "values", ordered)  # torch returns places too
    sums = xp.cumsum(ordered, -1)
    n = xp.cumsum(xp.ones_like(sums), -1)
    inside = 1 + n * ordered > sums
    k = _count(xp, inside, t)
    tau = (_sum(xp, xp.where(n <= k, ordered, 0.0)) - 1) / k
    chosen = t > tau
    # What rounding left over of the sum is taken off the threshold once more.
    left = (_sum(xp, xp.where(chosen, t - tau, 0.0)) - 1) / _count(xp, chosen, t)
    p = xp.where(chosen, xp.clip(t - tau - left, 0.0, None), 0.0)
    p = xp.where(r == 0, even(xp, u == 0, u), p)
    p = xp.where(r == math.inf, even(xp, u > HIDDEN, u), p)
    return xp.where(broken, math.nan, xp.where(empty, 0.0, p))


def even(xp: Any, chosen: Array, like: Array) -> Array:
    """The same probability for all that are chosen."""
    return xp.where(chosen, 1 / _count(xp, chosen, like), 0.0)


def moving(xp: Any, radius: Array, x: Array) -> tuple[Array, Array]:
    """The radius beside the rows, 1 where the map is constant (0 or inf); and where it is not."""
    r = column(xp, radius, x)
    moves = (r != 0) & (r != math.inf)
    return xp.where(moves, r, 1.0), moves


def formula(xp: Any, x: Array, radius: Array, chosen: Array, top: Array) -> Array:
    """The projection as a function that any framework can differentiate, given its support and its largest entry.

    On the support it is (x - mean x)/r + 1/n, means over its n entries; here without the constant 1/n.
    """
    w = xp.where(chosen, x - xp.where(top > HIDDEN, top, 0.0), 0.0)  # differences keep their digits
    r, _ = moving(xp, radius, w)
    return xp.where(chosen, (w - _sum(xp, w) / _count(xp, chosen, w)) / r, 0.0)


def vjp(xp: Any, p: Array, v: Array, radius: Array) -> tuple[Array, Array]:
    """Gradients of points and radius (one per row) for an upstream `v`, differentiable again in p, v and radius."""
    chosen = p > 0
    v = xp.where(chosen, v, 0.0)
    w = xp.where(chosen, v - _sum(xp, v) / _count(xp, chosen, v), 0.0)
    r, moves = moving(xp, radius, p)
    grad = xp.where(moves, w / r, 0.0)
    along = xp.where(moves, -_sum(xp, w * p) / r, 0.0)
    broken = xp.any(xp.isnan(p), -1, keepdims=True)
    return xp.where(broken, math.nan, grad), xp.where(broken, math.nan, along)[..., 0]


def means(xp: Any, x: Array, hidden: Array) -> tuple[Array, Array]:
    """Mean and number of each row's entries that may be chosen, differentiable."""
    scale = scale_of(x.shape[-1])
    n, total = sums(xp, x, hidden, scale)
    return mean_of(xp, n, total, scale), n


def scale_of(size: Any) -> float:
    """A power of two: scaled by it a sum of `size` entries cannot overflow, and scores that add up to 0 still do."""
    # A tracer may not know the size.
    return 2.0 ** -(math.ceil(math.log2(max(size, 1))) if isinstance(size, int) else 31)


def sums(xp: Any, x: Array, hidden: Array, scale: float) -> tuple[Array, Array]:
    """Number and scaled sum of each row's entries that may be chosen."""
    n = xp.sum(xp.where(hidden, xp.zeros_like(x), xp.ones_like(x)), -1)
    return n, xp.sum(xp.where(hidden, 0.0, x) * scale, -1)


def mean_of(xp: Any, n: Array, total: Array, scale: float) -> Array:
    """The mean of rows with this number and scaled sum of entries; 0 of none."""
    return total / (xp.where(n > 1, n, xp.ones_like(n)) * scale)


def bent(xp: Any, log: Array, gap: Array) -> Array:
    """(exp(gap log) - 1)/gap, which is the logarithm itself for a gap of 0."""
    q = gap * log
    near = abs(q) < 1e-3
    series = log * (1 + q * (1 / 2 + q * (1 / 6 + q * (1 / 24 + q * (1 / 120 + q / 720)))))
    return xp.where(near, series, xp.expm1(xp.where(near, 1.0, q)) / xp.where(near, 1.0, gap))


def _bent_slope(xp: Any, log: Array, gap: Array) -> Array:
    """The derivative of :func:`bent` in the gap."""
    q = gap * log
    near = abs(q) < 1e-2
    series = log * log * (1 / 2 + q * (1 / 3 + q * (1 / 8 + q * (1 / 30 + q * (1 / 144 + q / 840)))))
    far = xp.where(near, 1.0, gap)
    return xp.where(near, series, (log * xp.exp(q) - bent(xp, log, gap)) / far)


def tsallis(xp: Any, p: Array, alpha: Array) -> tuple[Array, Array]:
    """What each probability adds to sum (p^alpha - p)/(alpha (alpha - 1)), minus Tsallis' entropy; its slope in alpha.

    For alpha = 1 it is p log p.
    """
    gap, log = alpha - 1, xp.log(xp.where(p > 0, p, 1.0))
    each = bent(xp, log, gap)
    return p * each / alpha, p * (_bent_slope(xp, log, gap) - each / alpha) / alpha


def _sparse_log(xp: Any, w: Array, gap: Array) -> Array:
    """log(1 - gap w)/gap, which is -w for a gap of 0; w is such that gap w < 1."""
    q = gap * w
    near = abs(q) < 1e-3
    series = -w * (1 + q * (1 / 2 + q * (1 / 3 + q * (1 / 4 + q * (1 / 5 + q / 6)))))
    return xp.where(near, series, xp.log1p(-xp.where(near, 0.5, q)) / xp.where(near, 1.0, gap))


def _entmax_shares(xp: Any, below: Array, shift: Array, gap: Array) -> tuple[Array, Array]:
    """Entmax, not yet normed, of scores that lie `below` the largest, and what its slope in -shift is."""
    w = shift + below
    inside = (gap * w < 1) & (below < math.inf)
    w = xp.where(inside, w, 0.0)
    p = xp.where(inside, xp.exp(_sparse_log(xp, w, gap)), 0.0)
    return p, xp.where(inside, p / (1 - gap * w), 0.0)


def _entmax_step(xp: Any, below: Array, shift: Array, gap: Array) -> tuple[Array, Array]:
    """The sum of the shares, and Newton's step on its power `gap`, which is convex for gap <= 1."""
    p, slope = _entmax_shares(xp, below, shift, gap)
    total = _sum(xp, p)
    return total, -bent(xp, -xp.log(total), gap) * total / _sum(xp, slope)


HALVINGS, TURNS = 60, 80  # more than float64 has digits; Newton's method alone needs about 8


def _entmax_turn(xp: Any, below: Array, gap: Array, turn: Any, state: tuple[Array, ...]) -> tuple[Array, ...]:
    """One turn of the search: a bracket, a shift and which rows rest, and better ones."""
    low, high, shift, rests = state
    total, step = _entmax_step(xp, below, shift, gap)
    low, high = xp.where(total >= 1, shift, low), xp.where(total >= 1, high, shift)
    found = shift + step
    halve = ~((found >= low) & (found <= high)) | ((turn < HALVINGS) & (gap > 1))
    shift = xp.where(rests, shift, xp.where(halve, (low + high) / 2, found))
    still = 16 * float(xp.finfo(below.dtype).eps)
    return low, high, shift, rests | (~halve & (abs(step) <= still * shift))


def until(done: Any) -> Any:
    """Turns of a search until `done` says so of the rows that rest: the loop of frameworks that have Python's."""

    def repeat(turn: Any, state: tuple[Array, ...]) -> tuple[Array, ...]:
        for i in range(TURNS):
            state = turn(i, state)
            if done(state[-1]):
                break
        return state

    return repeat


def _entmax_shift(xp: Any, below: Array, gap: Array, repeat: Any) -> Array:
    """How far all scores must be lowered for the shares to sum to 1.

    Newton's method, which comes from the left and never passes the answer for gap <= 1; else its bracket is halved
    first. A row rests once it has found its answer, so that no other can move it; `repeat` takes turns until all do.
    """
    n = _count(xp, below < math.inf, below)
    low = xp.zeros_like(n)
    high = -bent(xp, -xp.log(n), gap)  # all n scores equal
    return repeat(lambda turn, state: _entmax_turn(xp, below, gap, turn, state), (low, high, low, low > 0))[2]


def entmax(xp: Any, z: Array, alpha: Array, repeat: Any = until(lambda rests: False)) -> Array:  # noqa: B008
    """Entmax along the last axis by a search, whose loop is `repeat`; -inf is never chosen. No derivative."""
    gap = column(xp, alpha, z) - 1
    top = xp.amax(z, -1, keepdims=True)
    empty = top == HIDDEN
    broken = xp.isnan(top) | (top == math.inf) | xp.isnan(gap) | (gap < 0)
    gap = xp.where(broken, 1.0, gap)
    below = xp.where(empty | broken, 0.0, top - z)
    p, _ = _entmax_shares(xp, below, _entmax_shift(xp, below, gap, repeat), gap)
    total = _sum(xp, p)
    # For large alpha the last digit of the shift may be all there is between 1 and nothing: the limit is the maxima's.
    p = xp.where(total > 0, p / xp.where(total > 0, total, 1.0), even(xp, below == 0, below))
    return xp.where(broken, math.nan, xp.where(empty, 0.0, p))


def entmax_formula(xp: Any, z: Array, alpha: Array, p: Array, top: Array, still: Any) -> Array:
    """Entmax as a function that any framework can differentiate, given its values and its largest score.

    The shift that makes the sum 1 comes from two of Newton's steps at the answer: they do not move it, and their
    derivatives are those of the answer up to the third. `still` takes derivatives away.
    """
    gap = column(xp, alpha, z) - 1
    chosen = p > 0
    most = xp.amax(p, -1, keepdims=True)
    # A row without a choice is computed as one of equal scores, as its derivatives are thrown away but must be finite.
    below = xp.where(chosen, xp.where(top > HIDDEN, top, 0.0) - z, xp.where(most > 0, math.inf, 0.0))
    shift = -bent(xp, xp.log(xp.where(most > 0, most, 1.0)), still(gap))
    for _ in range(2):
        shift = shift + _entmax_step(xp, below, shift, gap)[1]
    return _entmax_shares(xp, below, shift, gap)[0]


def entmax_vjp(xp: Any, p: Array, v: Array, alpha: Array) -> tuple[Array, Array]:
    """Gradients of scores and alpha (one per row) for an upstream `v`."""
    gap = column(xp, alpha, p) - 1
    chosen = p > 0
    log = xp.log(xp.where(chosen, p, 1.0))
    slope = xp.where(chosen, xp.exp((1 - gap) * log), 0.0)  # p^(2 - alpha)
    total = _sum(xp, slope)
    total = xp.where(total > 0, total, 1.0)
    v = xp.where(chosen, v, 0.0)
    grad = slope * (v - _sum(xp, slope * v) / total)
    broken = xp.any(xp.isnan(p), -1, keepdims=True)
    along = _sum(xp, v * entmax_slope(xp, xp.where(chosen, p, 0.0), log, gap))
    return xp.where(broken, math.nan, grad), xp.where(broken, math.nan, along)[..., 0]


def entmax_slope(xp: Any, p: Array, log: Array, gap: Array) -> Array:
    """dp/dalpha, p with its logarithms (0 where p is 0), without the cancellation of the plain form near alpha = 1."""
    mean = _sum(xp, p * log)
    at_one = p * (_sum(xp, p * log * log) - log * log) / 2
    near = gap < 1e-6
    far = xp.where(near, 1.0, gap)
    y = far * log + xp.log1p(_sum(xp, p * xp.expm1(-far * log)))
    bend = xp.expm1(-y)
    return xp.where(near, at_one, p / far * (mean - log + (mean - 1 / far) * bend))
