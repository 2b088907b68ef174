"""The forms of the losses in plain operations, row by row, for front ends whose framework differentiates them.

`f` is the :class:`~sparsegen._table.recipe.Frame` a front end lends. Scores come in the type they are to be computed in
and with -inf where an entry is hidden; eta is dense, and NaN in a row whose target is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sparsegen._table import checks, plain
from sparsegen._table.maps import HIDDEN
from sparsegen._table.recipe import top_of

Array = Any


def shares(
    xp: Any, target: Array, shape: tuple[int, ...], whole: bool, classes: Array, cast: Callable[[Array], Array],
    ignore_index: int, ignore_empty: bool,
) -> tuple[Array, Array | None]:  # fmt: skip
    """eta, and the rows that count (None: all), of a target whose values are not looked at: NaN where it is none.

    `whole` says that it is of integers, `classes` are the numbers 0 to K - 1, `cast` gives the type of eta.
    """
    if tuple(target.shape) == tuple(shape[:-1]) and whole:
        counted = target != ignore_index
        eta = cast(target[..., None] == classes)
        known = (target >= 0) & (target < shape[-1])
        return xp.where((counted & ~known)[..., None], math.nan, eta), counted
    if tuple(target.shape) != tuple(shape):
        wanted = f"{tuple(shape)} (multi-hot) or {tuple(shape[:-1])} (class indices, integers)"
        checks.fail(ValueError, "the shape of target", wanted, f"{tuple(target.shape)} of dtype {target.dtype}")
    y = cast(target)
    total = xp.sum(y, -1, keepdims=True)
    some = total > 0
    eta = y / xp.where(some, total, 1.0)
    # Said, not divided by 0: a compiler may make 0 of 0 * (1 / 0).
    return (eta, some[..., 0]) if ignore_empty else (xp.where(some, eta, math.nan), None)


def without_hidden(xp: Any, eta: Array, x: Array) -> Array:
    """eta, NaN in rows that have a label on a hidden entry."""
    return xp.where(xp.any((eta != 0) & (x == HIDDEN), -1, keepdims=True), math.nan, eta)


def log(f: Any, x: Array, eta: Array) -> Array:
    """KL divergence of softmax(x) from eta."""
    xp, hidden = f.xp, x == HIDDEN
    x = xp.where(hidden, HIDDEN, x - top_of(f, x, -1))  # an offset would cost digits
    total = xp.sum(xp.exp(x), -1)
    chosen = eta != 0  # NaN too
    logs = xp.log(xp.where(chosen, eta, 1.0))
    each = xp.where(chosen, eta * (logs - xp.where(chosen, x, 0.0)), 0.0)
    return xp.log(xp.where(total == 0, 1.0, total)) + xp.sum(each, -1)


def _shifted(f: Any, x: Array, eta: Array) -> Array:
    """Scores above their row's largest, 0 where hidden; NaN where a label is."""
    xp, hidden = f.xp, x == HIDDEN
    safe = xp.where(hidden, 0.0, x)
    return xp.where(hidden, xp.where(eta > 0, math.nan, 0.0), safe - top_of(f, x, -1))


def huber(f: Any, x: Array, eta: Array, p: Array, radius: Any) -> Array:
    """(p - eta).(x - r (p + eta)/2), with p the projection of x onto the radius r, a number or one beside each row."""
    return f.xp.sum((p - eta) * (_shifted(f, x, eta) - radius * (p + eta) / 2), -1)


def tsallis(f: Any, x: Array, eta: Array, p: Array, alpha: Array) -> Array:
    """(p - eta).x + Omega(eta) - Omega(p), with p the entmax of x and Omega of that alpha, one beside each row."""
    omega = plain.tsallis(f.xp, eta, alpha)[0] - plain.tsallis(f.xp, p, alpha)[0]
    return f.xp.sum((p - eta) * _shifted(f, x, eta) + omega, -1)


def hinge(
    xp: Any, z: Array, radius: Array, labels: Array, search: Callable[[Array, Array, str], Array],
    take: Callable[[Array, Array], Array],
) -> tuple[Array, Array, Array]:  # fmt: skip
    """F(z, radius) of the hinge losses, its slope in the radius and its gradient in z, by sorting; no derivative.

    `search(rows, values, side)` finds values in sorted rows, `take(rows, places)` what stands there.
    """
    hidden = z == HIDDEN
    broken = xp.any(labels & hidden, -1) | xp.any(xp.isnan(z) | (z == math.inf), -1) | ~xp.isfinite(radius)
    x = xp.where(hidden, 0.0, z)
    base = xp.amin(xp.where(labels, x, math.inf), -1, keepdims=True)
    x = x - xp.where(xp.isfinite(base), base, 0.0)
    one = xp.ones_like(x)
    size = xp.sum(xp.where(labels, one, 0.0), -1, keepdims=True)
    some = xp.where(size > 1, size, xp.ones_like(size))
    margin = radius[..., None] / some
    u = _sorted(xp, xp.where(labels, x, math.inf))  # labels first
    rank = xp.cumsum(one, -1)
    total = xp.cumsum(xp.where(rank <= size, u, 0.0), -1)
    total = xp.concatenate((xp.zeros_like(total[..., :1]), total), -1)
    gap = xp.where(rank[..., 1:] <= size, u[..., 1:] - u[..., :-1], 0.0)
    pairs = 2 * xp.sum(rank[..., :-1] * (size - rank[..., :-1]) * gap, -1)
    rest = xp.where(labels | hidden, HIDDEN, x)
    n = search(u - margin, rest, "left")
    hinges = xp.sum(xp.where(n > 0, n * (rest + margin) - take(total, n), 0.0), -1)
    below, above = search(u, x, "left"), size - search(u, x, "right")
    active = x.shape[-1] - search(_sorted(xp, rest), x - margin, "right")
    grad = xp.where(labels, 2 * (below - above) - active, n * one)
    slope = xp.sum(xp.where(labels, active * one, 0.0), -1) / some[..., 0]
    value, slope = (xp.where(broken, math.nan, found) for found in (pairs + hinges, slope))
    return value, slope, xp.where(broken[..., None], math.nan, grad)


def _sorted(xp: Any, x: Array) -> Array:
    ordered = xp.sort(x, -1)
    return getattr(ordered, "values", ordered)  # torch returns places too


def reduce(xp: Any, rows: Array, w: Array | None, reduction: str) -> Array:
    """Losses of rows with weights (None: all 1), as they are, their sum, or their mean; the mean of none is 0."""
    if w is not None:
        rows = xp.where(w > 0, rows, 0.0) * w
    if reduction == "none":
        return rows
    found = xp.sum(rows)
    if reduction == "sum":
        return found
    if w is None:
        return found / max(math.prod(rows.shape), 1)
    return found / xp.where(xp.sum(w) > 0, xp.sum(w), 1.0)
