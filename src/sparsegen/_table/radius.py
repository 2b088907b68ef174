"""Radius rules: what a map projects onto, with its derivatives. Written once, for maps, losses and attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Array = Any


@dataclass(frozen=True)
class Radius:
    """A radius: one number, made of a control, made of each row's mean and a control, or of the sum of the points.

    One that is `of` a control is `value(xp, control)` with the `slope` in it; one that is `of` the sum is that times
    the sum. One that is `of` the mean is
    (h + q)/(1/n + q) for rows of n entries, where `height(xp, mean)` gives h and its derivative.
    """

    name: str
    of: Literal["control", "mean", "sum"]
    value: Callable[..., Array] = lambda xp: math.nan
    slope: float = 0.0
    height: Callable[[Any, Array], tuple[Array, Array]] | None = None
    number: int = 0  # the kernel's name for it; 0: the kernel is given the radius
    fixed: float | None = None  # a radius that no control moves
    domain: bool = False  # is it positive on a part of the rows only?


def constant(radius: float) -> Radius:
    """The same radius for every row."""
    return Radius("constant", "control", lambda xp: radius, fixed=radius)


# Below 1 for lam > 0, which makes the result sparser.
DIAL = Radius("dial", "control", lambda xp, lam: 1 - lam, slope=-1.0)
# (S + Kq)/(1 + Kq), written with the mean so that nothing overflows.
CONE = Radius("cone", "mean", height=lambda xp, mean: (mean, xp.ones_like(mean)), number=1, domain=True)
# (|S| + Kq)/(1 + Kq): trades scale invariance (q -> 0) for translation invariance (q -> inf).
HOURGLASS = Radius("hourglass", "mean", height=lambda xp, mean: (abs(mean), xp.sign(mean)), number=2)
# A share of the sum of the points: all of it (lam = 0) makes the threshold 0.
TOTAL = Radius("total", "sum", lambda xp, lam: 1 - lam, slope=-1.0, number=3)


def _pick(xp: Any, condition: Any, yes: Array, no: Array) -> Array:
    """xp.where, which needs no array where the control is one number."""
    if isinstance(condition, bool):
        return yes if condition else no
    return xp.where(condition, yes, no)


def blend(xp: Any, height: Array, n: Array, q: Array) -> Array:
    """(height + q) / (1/n + q), and its limit 1 for infinite q.

    The plain sum is exact near the cone's apex; by parts it does not overflow.
    """
    far = q == math.inf
    q = _pick(xp, far, 1.0, q)
    width = 1 / n + q
    r = xp.where(abs(height + q) < math.inf, (height + q) / width, height / width + q / width)
    return _pick(xp, far, xp.ones_like(height), r)


def blend_slopes(xp: Any, height: Array, n: Array, q: Array) -> tuple[Array, Array]:
    """Derivatives of :func:`blend` in height and q; 0 for infinite q."""
    far = q == math.inf
    width = 1 / n + _pick(xp, far, 1.0, q)
    bend = (1 / n - height) / (width * width)
    return _pick(xp, far, xp.zeros_like(height), 1 / width), _pick(xp, far, xp.zeros_like(height), bend)


def of_mean(xp: Any, rule: Radius, mean: Array, n: Array, q: Array) -> Array:
    """The radius of rows with this mean over n entries: NaN outside its domain, 1 where nothing may be chosen."""
    assert rule.height is not None  # rules of the mean have one
    some = n > 0
    r = blend(xp, rule.height(xp, mean)[0], xp.where(some, n, 1.0), q)
    if rule.domain:
        r = xp.where(r > 0, r, math.nan)
    return xp.where(some, r, 1.0)


def slopes_of_mean(xp: Any, rule: Radius, mean: Array, n: Array, q: Array) -> tuple[Array, Array]:
    """Derivatives of :func:`of_mean` in each entry that may be chosen (the same for all of a row) and in q."""
    assert rule.height is not None  # rules of the mean have one
    n = xp.where(n > 0, n, 1.0)
    height, turn = rule.height(xp, mean)
    lift, bend = blend_slopes(xp, height, n, q)
    return turn * lift / n, bend
