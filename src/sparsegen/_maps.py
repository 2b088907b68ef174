r"""The table of maps. A map is a transform and a radius; one primitive does the rest.

.. math:: \mathrm{project}(x, r) = [x - \tau]_+ / r, \qquad \tau \text{ such that the result sums to 1}

Each row of ``MAPS`` says what ``x`` and ``r`` are for a map of the paper. The functions below are written with plain
operators and the few functions NumPy and torch share (argument ``xp``), so each equation stands once. Tests and
front ends read this table: a new map is a new row.

Projection does not change when a constant is added to ``x``, nor when ``x`` and ``r`` are scaled by the same number.
Transforms use that freedom to stay finite: they return points and the ``unit`` they measured them in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Array = Any

# Masked entries and -inf scores reach the kernel as -inf points.
HIDDEN = -math.inf


@dataclass(frozen=True)
class Points:
    """Transformed scores `x`, in units such that the radius to use is `radius * unit`."""

    x: Array
    unit: Array = 1.0  # (..., 1) or a number


@dataclass(frozen=True)
class Transform:
    """One choice of g(z) and how to evaluate it safely."""

    name: str
    g: Callable[[Any, Array], Array]  # (xp, scores): as written, for reporting thresholds
    points: Callable[[Any, Array, Array, Array], Points]  # (xp, scores, row maximum, the same in float64) -> Points
    top_of: Callable[[Array], Array] | None = None  # what the row maximum is taken of; None: no maximum is needed


def _lin(xp: Any, z: Array, top: Array, wide: Array) -> Points:
    return Points(z)


def _exp(xp: Any, z: Array, top: Array, wide: Array) -> Points:
    # e^z = e^top + e^top expm1(z - top): no overflow, and ties stay ties.
    return Points(xp.expm1(z - top), xp.exp(-wide))


def _sq(xp: Any, z: Array, top: Array, wide: Array) -> Points:
    # z^2 = b^2 + (a - b)(a + b) with a = |z|, b = max |z|, measured in units of b^2.
    a, b = abs(z), xp.where(top > 0, top, xp.ones_like(top))
    wide = xp.where(wide > 0, wide, xp.ones_like(wide))
    return Points(((a - b) / b) * (a / b + 1), 1 / wide / wide)


def _log(xp: Any, z: Array, top: Array, wide: Array) -> Points:
    return Points(xp.log(z))


TRANSFORMS: dict[str, Transform] = {
    t.name: t
    for t in (
        Transform("lin", lambda xp, z: z, _lin),
        Transform("exp", lambda xp, z: xp.exp(z), _exp, top_of=lambda z: z),
        Transform("sq", lambda xp, z: z * z, _sq, top_of=abs),
        Transform("log", lambda xp, z: xp.log(z), _log),
    )
}


def sparsegen_radius(xp: Any, lam: Array) -> Array:
    """1 - lam: below 1 for lam > 0, which makes the result sparser."""
    return 1 - lam


def _blend(xp: Any, height: Array, n: Array, q: Array) -> Array:
    # (height + q) / (1/n + q), and its limit 1 for infinite q. The plain sum is exact near the cone's apex; by parts it
    # does not overflow.
    far = q == math.inf
    q = xp.where(far, xp.ones_like(q), q)
    width = 1 / n + q
    r = xp.where(abs(height + q) < math.inf, (height + q) / width, height / width + q / width)
    return xp.where(far, xp.ones_like(height), r)


def cone_radius(xp: Any, mean: Array, n: Array, q: Array) -> Array:
    """(S + Kq)/(1 + Kq), written with the mean so that nothing overflows. Positive on the map's domain only."""
    return _blend(xp, mean, n, q)


def hourglass_radius(xp: Any, mean: Array, n: Array, q: Array) -> Array:
    """(|S| + Kq)/(1 + Kq): trades scale invariance (q -> 0) for translation invariance (q -> inf)."""
    return _blend(xp, abs(mean), n, q)


@dataclass(frozen=True)
class Properties:
    """Rows of the paper's Table 1: "yes", "no", or "some" (for some value of the control); Lipschitz as text."""

    idempotent: str
    monotone: str
    translation: str
    scale: str
    full_domain: str
    lipschitz: str


@dataclass(frozen=True)
class Map:
    """One probability map: what is projected (transform), onto what (radius), and what the paper says of it."""

    name: str
    equation: str
    transform: str
    radius: Callable[..., Array] | float | None  # None: the sum of the points, which makes the threshold 0
    controls: tuple[str, ...] = ()
    rule: int = 0  # not 0: the radius is a function of the row's mean and size, and the kernel's name for it
    fixed: dict[str, float] = field(default_factory=dict)  # controls this map sets itself
    domain: str = ""
    each: str = ""  # condition on every single score, for error messages
    outside: Callable[[Array], Array] | None = None  # marks the scores that break it
    claimed: Properties | None = None  # the paper's Table 1
    true: Properties | None = None  # what holds: docs/math.md, errata E3, E4, E6


def _row(*values: str) -> Properties:
    return Properties(*values)


_LIN = _row("some", "yes", "yes", "no", "yes", "1/(1-lam)")

# fmt: off
MAPS: dict[str, Map] = {
    m.name: m
    for m in (
        Map("sparsemax", "project(z, 1)", "lin", 1.0,
            claimed=_row("yes", "yes", "yes", "no", "yes", "1"),
            true=_row("yes", "yes", "yes", "no", "yes", "1")),
        Map("sparsegen_lin", "project(z, 1 - lam)", "lin", sparsegen_radius, ("lam",),
            claimed=_LIN, true=_LIN),
        Map("sparsegen_exp", "project(exp(z), 1 - lam)", "exp", sparsegen_radius, ("lam",),
            claimed=_row("no", "yes", "no", "no", "yes", "inf"),
            true=_row("no", "yes", "no", "no", "yes", "inf")),
        Map("sparsegen_sq", "project(z^2, 1 - lam)", "sq", sparsegen_radius, ("lam",),
            claimed=_row("no", "no", "no", "no", "yes", "inf"),
            true=_row("no", "no", "no", "no", "yes", "inf")),
        Map("sparsegen_log", "project(log(z), 1 - lam)", "log", sparsegen_radius, ("lam",),
            domain="z > 0", each="positive", outside=lambda z: z <= 0,
            true=_row("no", "yes", "no", "yes", "no", "inf")),
        Map("sparsecone", "project(z, (S + Kq)/(1 + Kq))", "lin", cone_radius, ("q",), rule=1, domain="S > -Kq",
            claimed=_row("yes", "no", "some", "some", "no", "inf"),
            true=_row("yes", "yes", "some", "some", "no", "inf")),
        Map("sparsehourglass", "project(z, (|S| + Kq)/(1 + Kq))", "lin", hourglass_radius, ("q",), rule=2,
            claimed=_row("yes", "yes", "some", "some", "yes", "1 + 1/(Kq)"),
            true=_row("yes", "yes", "some", "some", "yes", "sqrt((1 + Kq)^2 + K - 1)/(Kq)")),
        Map("sum_normalization_plus", "project(z, |S|)", "lin", hourglass_radius, rule=2, fixed={"q": 0.0},
            claimed=_row("yes", "yes", "no", "yes", "yes", "inf"),
            true=_row("yes", "yes", "no", "yes", "no", "inf")),
        Map("sum_normalization", "project(z, S)", "lin", None,
            domain="z >= 0, S > 0", each="at least 0", outside=lambda z: z < 0,
            claimed=_row("yes", "no", "no", "yes", "no", "inf"),
            true=_row("yes", "yes", "no", "yes", "no", "inf")),
        Map("spherical_softmax", "project(z^2, sum z^2)", "sq", None, domain="z != 0",
            claimed=_row("no", "no", "no", "yes", "no", "inf"),
            true=_row("no", "no", "no", "yes", "no", "inf")),
        Map("softmax", "project(exp(z / t), sum exp(z / t))", "exp", None, ("temperature",),
            claimed=_row("no", "yes", "yes", "no", "yes", "1"),
            true=_row("no", "yes", "yes", "no", "yes", "1/(2 t)")),
        Map("hardmax", "project(z, 0)", "lin", 0.0,
            true=_row("no", "yes", "yes", "yes", "yes", "inf")),
    )
}
# fmt: on
