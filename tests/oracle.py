"""Two answers to every projection and map, found without the kernel's algorithm.

`project_exact` tries every support in rational arithmetic, for rows of a few entries. `project_bisect` bisects in
float64, for rows of any length. Entmax is bisected in long double. None iterates Newton's method, and none shares code
with the library.
"""

from __future__ import annotations

import functools
import itertools
import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import NamedTuple

import numpy as np

LONGEST_EXACT = 8
_DIGITS = Context(prec=60, Emin=-(10**7), Emax=10**7)


class Answer(NamedTuple):
    """A row's probabilities, support size and threshold (NaN where there is none)."""

    p: np.ndarray
    size: int
    tau: float


def _float(value) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _uniform(x, members) -> list[Fraction]:
    return [Fraction(int(i in members), len(members)) for i in range(len(x))]


def project_exact(x, r) -> tuple[list[Fraction], float | Fraction]:
    """Probabilities and threshold of one row: the only support that satisfies the KKT conditions."""
    open_ = [i for i, v in enumerate(x) if v != -math.inf]
    if not open_:
        return [Fraction(0)] * len(x), math.nan
    u = {i: Fraction(x[i]) for i in open_}
    if r == math.inf:
        return _uniform(x, open_), -math.inf
    if r == 0:
        top = max(u.values())
        return _uniform(x, [i for i in open_ if u[i] == top]), top
    r = Fraction(r)
    for size in range(1, len(open_) + 1):
        for support in itertools.combinations(open_, size):
            tau = (sum(u[i] for i in support) - r) / size
            if all((u[i] > tau) == (i in support) for i in open_):
                return [(u[i] - tau) / r if i in support else Fraction(0) for i in range(len(x))], tau
    raise AssertionError("a projection always exists")


def project_bisect(x, r) -> np.ndarray:
    """Rows (..., K) in float64, radii (...): bisection on tau, then the exact tau of the support it found."""
    x = np.asarray(x, np.float64)
    r = np.broadcast_to(np.asarray(r, np.float64), x.shape[:-1])
    return _bisect_rows(x.tobytes(), r.tobytes(), x.shape[-1]).reshape(x.shape).copy()


@functools.lru_cache(256)  # one engine after the other is given the same rows, a hundred sizes and radii of them
def _bisect_rows(x: bytes, r: bytes, n: int) -> np.ndarray:
    radii = np.frombuffer(r)
    rows = np.frombuffer(x).reshape(len(radii), n)
    top = rows.max(axis=1, initial=-math.inf)
    # Nothing fits between the maximum and the next number, or nothing is left out.
    with np.errstate(over="ignore", invalid="ignore"):
        plain = np.isfinite(top) & (radii >= np.spacing(abs(top)) / 4) & (radii > 0) & (radii < math.inf)
        lows = np.full(len(rows), -math.inf)
        lows[plain] = _bisected(rows[plain] - top[plain, None], radii[plain])
    return np.stack([_ended(*row) for row in zip(rows, radii, top, plain, lows)])


def _bisected(u: np.ndarray, r: np.ndarray) -> np.ndarray:
    """A number just below the threshold of each row of u, whose largest entry is 0."""
    low, high = -r, np.zeros(len(r))
    for _ in range(64):
        middle = (low + high) / 2
        above = np.maximum(u - middle[:, None], 0).sum(axis=1) > r
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return low


def _ended(x: np.ndarray, r: float, top: float, plain: bool, low: float) -> np.ndarray:
    """The row's probabilities, with the tau of its support to the last digit."""
    if not top < math.inf:
        return np.full(x.shape, math.nan)
    if top == -math.inf:
        return np.zeros(x.shape)
    with np.errstate(over="ignore"):
        u = x - top
    if not plain:
        on = u > -math.inf if r == math.inf else u == 0
        return on / np.count_nonzero(on)
    support = x[u > low]  # unshifted: x - max rounds
    tau = math.fsum(support / support.size) - r / support.size
    rest = math.fsum([*(support - tau), -r]) / support.size  # what rounding tau left over
    return np.maximum((x - tau) - rest, 0) / r


def _exp(value: Fraction) -> Fraction:
    with localcontext(_DIGITS):
        return Fraction((Decimal(value.numerator) / Decimal(value.denominator)).exp())


def _log(value: Fraction) -> Fraction:
    with localcontext(_DIGITS):
        return Fraction((Decimal(value.numerator) / Decimal(value.denominator)).ln())


TRANSFORMS = {"lin": lambda v: v, "exp": _exp, "sq": lambda v: v * v, "log": _log}


def _blended(height: Fraction, n: int, q) -> Fraction:
    return Fraction(1) if q == math.inf else (height + n * Fraction(q)) / (1 + n * Fraction(q))


def points(name: str, z: list[Fraction], controls: dict) -> tuple[list[Fraction], Fraction | float]:
    """What a map projects, and onto what radius: the table of math.md, section 0, in rationals."""
    total = sum(z)
    lam = controls.get("lam", 0.0)
    radius = math.inf if lam == -math.inf else 1 - Fraction(lam)
    if name == "sparsemax":
        return z, Fraction(1)
    if name.startswith("entmax"):
        return [(Fraction(controls.get("alpha", 1.5)) - 1) * v for v in z], Fraction(1)
    if name.removeprefix("sparsegen_") in TRANSFORMS:
        return [TRANSFORMS[name.removeprefix("sparsegen_")](v) for v in z], radius
    if name == "sparsecone":
        return z, _blended(total, len(z), controls["q"])
    if name in ("sparsehourglass", "sum_normalization_plus"):
        return z, _blended(abs(total), len(z), controls.get("q", 0))
    if name == "hardmax":
        return z, 0
    if name.endswith("softmax") and name != "spherical_softmax":
        x = [_exp(v / Fraction(controls.get("temperature", 1.0))) for v in z]
    else:
        x = {"sum_normalization": z, "spherical_softmax": [v * v for v in z]}[name]
    return x, radius if radius == math.inf else radius * sum(x)


def entmax_row(z, alpha: float) -> tuple[list[float], float]:
    """Probabilities and threshold of one row: p = (1 - gap w)^(1/gap), where w is shift + what lacks of the top."""
    if alpha == 1:
        x = [_exp(Fraction(v) - Fraction(max(z))) for v in z]
        return [v / sum(x) for v in x], -1.0
    gap, below = np.longdouble(alpha) - 1, np.longdouble(max(z)) - np.asarray(z, np.longdouble)
    low, high = np.longdouble(0), -np.expm1(-gap * np.log(np.longdouble(len(z)))) / gap  # all equal: the largest shift
    for _ in range(100):
        shift = (low + high) / 2
        p = _entmax_of(shift + below, gap)
        low, high = (shift, high) if p.sum() > 1 else (low, shift)
    p = _entmax_of(high + below, gap)
    return list(p / p.sum()), float(gap * (np.longdouble(max(z)) + high) - 1)


def _entmax_of(w: np.ndarray, gap) -> np.ndarray:
    inside = gap * w < 1
    return np.where(inside, np.exp(np.log1p(-gap * np.where(inside, w, 0)) / gap), 0)


def _long_row(x, r) -> tuple[list[float], float]:
    top = max(x)
    if r in (0, math.inf):
        return list(project_bisect([float(v - top) for v in x], r)), math.nan
    p = project_bisect([_float((v - top) / r) for v in x], 1.0)
    first = int(np.argmax(p))
    return list(p), _float(x[first] - Fraction(p[first]) * r)


def map_row(name: str, z, mask=None, **controls) -> Answer:
    """One row of the map called `name`: hidden entries are deleted, the rest mapped, zeros put back."""
    z = [float(v) for v in z]
    open_ = [i for i, v in enumerate(z) if v != -math.inf and (mask is None or mask[i])]
    p = np.zeros(len(z))
    if any(math.isnan(z[i]) or z[i] == math.inf for i in open_):
        return Answer(np.full(len(z), math.nan), 0, math.nan)
    if not open_:
        return Answer(p, 0, math.nan)
    if name.startswith("entmax"):
        found, tau = entmax_row([z[i] for i in open_], controls.get("alpha", 1.5))
        p[open_] = found
        return Answer(p, sum(v > 0 for v in found), _float(tau))
    x, r = points(name, [Fraction(z[i]) for i in open_], controls)
    found, tau = (project_exact if len(x) <= LONGEST_EXACT else _long_row)(x, r)
    p[open_] = [float(v) for v in found]
    return Answer(p, sum(v > 0 for v in found), _float(tau))


def apply(name: str, scores, mask=None, axis: int = -1, **controls) -> np.ndarray:
    """The map on an array, row by row; controls are numbers or arrays without the class axis."""
    z = np.moveaxis(np.asarray(scores, np.float64), axis, -1)
    m = np.ones(z.shape, bool) if mask is None else np.moveaxis(np.broadcast_to(mask, np.shape(scores)), axis, -1)
    out = np.empty(z.shape)
    for at in np.ndindex(z.shape[:-1]):
        own = {key: float(np.broadcast_to(value, z.shape[:-1])[at]) for key, value in controls.items()}
        out[at] = map_row(name, z[at], m[at], **own).p
    return np.moveaxis(out, -1, axis)
