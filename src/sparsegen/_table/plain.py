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
    n = xp.sum(xp.where(hidden, xp.zeros_like(x), xp.ones_like(x)), -1)
    # Scaled by a power of two the sum cannot overflow, and scores that add up to 0 still do.
    size = x.shape[-1]  # which a tracer may not know
    scale = 2.0 ** -(math.ceil(math.log2(max(size, 1))) if isinstance(size, int) else 31)
    some = xp.where(n > 1, n, xp.ones_like(n))
    return xp.sum(xp.where(hidden, 0.0, x) * scale, -1) / (some * scale), n
