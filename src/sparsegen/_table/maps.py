r"""The table of maps. A map is a transform, a radius and a power; one primitive does the rest.

.. math:: \mathrm{project}(x, r, m) = ([x - \tau]_+ / r)^m, \qquad \tau \text{ such that the result sums to 1}

Each row of ``MAPS`` says what ``x``, ``r`` and ``m`` are for a map, which controls it has and what is true of it. The
paper's maps have the power 1, those of entmax 1/(alpha - 1).
The functions, modules, checks, pages and tests of every front end are made from the rows: a new map is a new row.

Transforms are written with plain operators and the few functions NumPy, torch and JAX share (argument ``xp``).
Projection does not change when a constant is added to ``x``, nor when ``x`` and ``r`` are scaled by the same number.
Transforms use that freedom to stay finite: they return points and the ``unit`` they measured them in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sparsegen._table.radius import CONE, DIAL, HOURGLASS, TOTAL, Radius, constant

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
    number: int  # the kernels' name for it
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
        Transform("lin", 0, lambda xp, z: z, _lin),
        Transform("exp", 1, lambda xp, z: xp.exp(z), _exp, top_of=lambda z: z),
        Transform("sq", 2, lambda xp, z: z * z, _sq, top_of=abs),
        Transform("log", 3, lambda xp, z: xp.log(z), _log),
    )
}


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
class Example:
    """A call that documentation shows and runs: scores, controls, and the probabilities they give."""

    scores: tuple[float, ...]
    result: tuple[float, ...]
    controls: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Map:
    """One probability map: what is projected (transform), onto what (radius), and what the paper says of it."""

    name: str
    equation: str
    summary: str  # one sentence
    transform: str
    radius: Radius
    example: Example
    controls: tuple[str, ...] = ()
    fixed: Mapping[str, float] = field(default_factory=dict)  # controls this map sets itself
    power: bool = False  # is alpha among its controls? It projects (alpha - 1) z, with the power 1/(alpha - 1)
    display: str = ""  # the equation as TeX
    notes: str = ""
    domain: str = ""
    each: str = ""  # condition on every single score, for error messages
    outside: Callable[[Array], Array] | None = None  # marks the scores that break it
    lipschitz: Callable[..., float] = lambda n, **controls: math.inf  # of n scores, in the Euclidean norm
    claimed: Properties | None = None  # the paper's Table 1
    true: Properties | None = None  # what holds: docs/math.md, errata E3, E4, E6

    @cached_property
    def code(self) -> tuple[int, int, bool]:
        """The map as kernels know it: transform, radius rule, power."""
        return TRANSFORMS[self.transform].number, self.radius.number, self.power

    @cached_property
    def kind(self) -> int:
        """The same in one number, with two bits left for a storage type."""
        transform, rule, power = self.code
        return transform << 2 | rule << 4 | power << 6

    @property
    def linear(self) -> bool:
        """Are the scores projected as they are, onto a radius? The kernels then need nothing else."""
        return self.transform == "lin" and self.radius.of != "sum" and not self.power

    @property
    def weighing(self) -> int | None:
        """The attention kernels' name for it: 0 a projection, 1 shares of exponentials, 2 entmax with alpha = 1.5."""
        if self.power:
            return 2
        if self.radius.of == "sum":
            return 1 if self.transform == "exp" else None
        return 0 if self.linear else None


def _row(*values: str) -> Properties:
    return Properties(*values)


def _hourglass_lipschitz(n: int, q: float) -> float:
    return math.inf if q == 0 else 1.0 if math.isinf(q) else math.hypot(1 + n * q, math.sqrt(n - 1)) / (n * q)


def _entmax_lipschitz(n: int, alpha: float = 1.5) -> float:
    # The Jacobian's norm is the largest harmonic mean of two entries of p^(2 - alpha): at two equal shares.
    return math.inf if alpha > 2 else 2 ** (alpha - 2)


_LIN = _row("some", "yes", "yes", "no", "yes", "1/(1-lam)")
_THIRD = (0.5, 0.25, 0.0)
_FROM_SHARES = (
    "lam = 0 gives shares of the sum; lam > 0 leaves out the smallest of them, within a total variation of lam."
)

# fmt: off
MAPS: dict[str, Map] = {
    m.name: m
    for m in (
        Map("sparsemax", "project(z, 1)", "Nearest distribution to the scores.", "lin", constant(1.0),
            Example((0.25, 1.0, 0.5), (0.0, 0.75, 0.25)),
            notes="Ties share equally. An entry exactly at the threshold is not in the support.",
            lipschitz=lambda n: 1.0,
            display=r"\operatorname{argmin}_{p \in \Delta} \|p - z\|^2",
            claimed=_row("yes", "yes", "yes", "no", "yes", "1"),
            true=_row("yes", "yes", "yes", "no", "yes", "1")),
        Map("sparsegen_lin", "project(z, 1 - lam)", "Sparsemax with a dial: sparsemax(z / (1 - lam)).", "lin", DIAL,
            Example(_THIRD, (0.75, 0.25, 0.0), {"lam": 0.5}), ("lam",),
            lipschitz=lambda n, lam: 1 / (1 - lam),
            display=r"\mathrm{sparsemax}(z / (1 - \lambda))",
            claimed=_LIN, true=_LIN),
        Map("sparsegen_exp", "project(exp(z), 1 - lam)", "Sparsegen with g(z) = exp(z), free of overflow.", "exp", DIAL,
            Example((1000.0, 1000.0, 999.0), (0.5, 0.5, 0.0)), ("lam",),
            display=r"\mathrm{sparsemax}(e^z / (1 - \lambda))",
            claimed=_row("no", "yes", "no", "no", "yes", "inf"),
            true=_row("no", "yes", "no", "no", "yes", "inf")),
        Map("sparsegen_sq", "project(z^2, 1 - lam)",
            "Sparsegen with g(z) = z^2: large negative scores count like large positive ones.", "sq", DIAL,
            Example((1.0, -2.0, 0.5), (0.0, 1.0, 0.0)), ("lam",),
            display=r"\mathrm{sparsemax}(z^2 / (1 - \lambda))",
            claimed=_row("no", "no", "no", "no", "yes", "inf"),
            true=_row("no", "no", "no", "no", "yes", "inf")),
        Map("sparsegen_log", "project(log(z), 1 - lam)", "Sparsegen with g(z) = log(z), for positive scores.", "log",
            DIAL, Example((2.0, 2.0, 0.25), (0.5, 0.5, 0.0)), ("lam",),
            domain="z > 0", each="positive", outside=lambda z: z <= 0,
            display=r"\mathrm{sparsemax}(\log z / (1 - \lambda))",
            true=_row("no", "yes", "no", "yes", "no", "inf")),
        Map("sparsecone", "project(z, (S + Kq)/(1 + Kq))",
            "Between sum normalization (q = 0) and sparsemax (q = infinity), for scores whose sum is above -K q.",
            "lin", CONE, Example((1.0, 3.0, 4.0), (0.125, 0.375, 0.5), {"q": 0.0}), ("q",), domain="S > -Kq",
            notes="S is the sum of the K scores that may be chosen. A row whose sum is not above -K q is outside the "
                  "domain.",
            display=r"\mathrm{sparsemax}(\alpha z), \quad \alpha = (1 + Kq) / (S + Kq)",
            claimed=_row("yes", "no", "some", "some", "no", "inf"),
            true=_row("yes", "yes", "some", "some", "no", "inf")),
        Map("sparsehourglass", "project(z, (|S| + Kq)/(1 + Kq))",
            "Trades scale invariance (q towards 0) for translation invariance (q towards infinity), for all scores.",
            "lin", HOURGLASS, Example((-1.0, -3.0), (0.75, 0.25), {"q": 0.0}), ("q",),
            notes="S is the sum of the K scores that may be chosen. Larger q makes rows with abs(S) > 1 sparser and "
                  "rows with abs(S) < 1 denser. Entries with probability 0 still have a derivative, through the sum in "
                  "the radius.",
            lipschitz=_hourglass_lipschitz,
            display=r"\mathrm{sparsemax}(\hat\alpha z), \quad \hat\alpha = (1 + Kq) / (|S| + Kq)",
            claimed=_row("yes", "yes", "some", "some", "yes", "1 + 1/(Kq)"),
            true=_row("yes", "yes", "some", "some", "yes", "sqrt((1 + Kq)^2 + K - 1)/(Kq)")),
        Map("sum_normalization_plus", "project(z, |S|)",
            "Sum normalization for all scores: sparsehourglass with q = 0.", "lin", HOURGLASS,
            Example((1.0, 1.0, -2.0), (0.5, 0.5, 0.0)), fixed={"q": 0.0},
            notes="Where the scores add up to 0 it is the limit: uniform on the maximal entries.",
            claimed=_row("yes", "yes", "no", "yes", "yes", "inf"),
            true=_row("yes", "yes", "no", "yes", "no", "inf")),
        Map("sum_normalization", "project(z, (1 - lam) S)", "Scores over their sum, for scores of at least 0.", "lin",
            TOTAL, Example((1.0, 3.0, 4.0), (0.125, 0.375, 0.5)), ("lam",), notes=_FROM_SHARES,
            domain="z >= 0, S > 0", each="at least 0", outside=lambda z: z < 0,
            claimed=_row("yes", "no", "no", "yes", "no", "inf"),
            true=_row("some", "yes", "no", "yes", "no", "inf")),
        Map("spherical_softmax", "project(z^2, (1 - lam) sum z^2)", "Squared scores over their sum.", "sq", TOTAL,
            Example((1.0, -1.0, 0.0), (0.5, 0.5, 0.0)), ("lam",), notes=_FROM_SHARES, domain="z != 0",
            claimed=_row("no", "no", "no", "yes", "no", "inf"),
            true=_row("no", "no", "no", "yes", "no", "inf")),
        Map("softmax", "project(exp(z / t), sum exp(z / t))", "Softmax of the scores over a temperature.", "exp", TOTAL,
            Example((0.0, 0.0), (0.5, 0.5), {"temperature": 2.0}), ("temperature",), {"lam": 0.0},
            lipschitz=lambda n, temperature: 1 / (2 * temperature),
            claimed=_row("no", "yes", "yes", "no", "yes", "1"),
            true=_row("no", "yes", "yes", "no", "yes", "1/(2 t)")),
        Map("sparsegen_softmax", "project(exp(z / t), (1 - lam) sum exp(z / t))",
            "A dial that begins at softmax: lam = 0 is softmax, and lam > 0 leaves out what softmax gives least.",
            "exp", TOTAL, Example((0.0, 0.0, -1000.0), (0.5, 0.5, 0.0), {"lam": 0.5}), ("lam", "temperature"),
            notes="It is project(softmax(z / t), 1 - lam). For 0 <= lam < 1 the total variation distance to softmax is "
                  "at most lam, so an attention's output moves by at most 2 lam times the largest value.",
            lipschitz=lambda n, lam, temperature=1.0: 1 / (2 * temperature * (1 - lam)),
            display=r"\mathrm{sparsemax}(\mathrm{softmax}(z / t) / (1 - \lambda))",
            true=_row("no", "yes", "yes", "no", "yes", "1/(2 t (1-lam))")),
        Map("entmax", "project((alpha - 1) z, 1)^(1/(alpha - 1))",
            "Between softmax (alpha = 1) and sparsemax (alpha = 2), and beyond: the most of p.z and Tsallis' entropy.",
            "lin", constant(1.0), Example((0.0, 0.0, 0.0, 0.0, -4.0), (0.25, 0.25, 0.25, 0.25, 0.0)), ("alpha",),
            power=True,
            notes="Entries exactly at the threshold are not in the support.",
            lipschitz=_entmax_lipschitz,
            display=r"[(\alpha - 1) z - \tau]_+^{1 / (\alpha - 1)}",
            true=_row("some", "yes", "yes", "no", "yes", "2^(alpha-2)")),
        Map("entmax15", "project(z / 2, 1)^2", "Entmax with alpha = 1.5.", "lin", constant(1.0),
            Example((0.0, 0.0, 0.0, 0.0, -4.0), (0.25, 0.25, 0.25, 0.25, 0.0)), fixed={"alpha": 1.5}, power=True,
            lipschitz=_entmax_lipschitz,
            display=r"[z / 2 - \tau]_+^2",
            true=_row("no", "yes", "yes", "no", "yes", "0.7071")),
        Map("hardmax", "project(z, 0)", "Uniform on the maximal entries; its derivative is 0.", "lin", constant(0.0),
            Example((2.0, 0.5, 2.0), (0.5, 0.0, 0.5)),
            true=_row("no", "yes", "yes", "yes", "yes", "inf")),
    )
}
# fmt: on
