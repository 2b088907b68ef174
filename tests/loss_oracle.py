"""The losses as the paper writes them: double sums over ordered pairs, in rational arithmetic, row by row.

Hidden entries are deleted before anything is added up and nothing is ever sorted, so no step is shared with the
library. Where a term has a kink it counts as inactive: sgn(0) = 0 and [0]_+ has the slope 0.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import NamedTuple

import numpy as np

import oracle

LOSSES = {"softmax_log": "", "sparsemax_huber": "lam", "sparsegen_hinge": "lam", "sparsehourglass_hinge": "q"}
HINGES = ("sparsegen_hinge", "sparsehourglass_hinge")
MAPS = {"softmax_log": "softmax", "sparsemax_huber": "sparsegen_lin", "sparsegen_hinge": "sparsegen_lin"}
MAPS["sparsehourglass_hinge"] = "sparsehourglass"


class Answer(NamedTuple):
    """Loss of one row, its derivatives in scores and control, and how close the nearest kink is."""

    value: float
    grad: np.ndarray
    along: float
    nearest: float = math.inf


class Sums(NamedTuple):
    """The double sums with their derivatives in the scores, in the margins' common factor and in gamma."""

    value: Fraction
    grad: list[Fraction]
    margin: Fraction
    gamma: Fraction
    nearest: Fraction | float


def size(d: Fraction, s: Fraction) -> tuple[Fraction, Fraction]:
    """|d|, or Huber's function of it, and its slope."""
    sign = Fraction((d > 0) - (d < 0))
    if abs(d) < s:
        return d * d / (2 * s), d / s
    return abs(d) - s / 2, sign


def ramp(d: Fraction, s: Fraction) -> tuple[Fraction, Fraction]:
    """[d]_+, or its smoothed form, and its slope."""
    return size(d, s) if d > 0 else (Fraction(0), Fraction(0))


def double_sums(z, labels, margin, gamma=Fraction(1), s=Fraction(0)) -> Sums:
    """sum |gamma(z_i - z_j)| over labels i, j + sum [margin/P - gamma(z_i - z_j)]_+ over labels i and others j."""
    eta, grad = Fraction(1, len(labels)), [Fraction(0)] * len(z)
    value = along = turn = Fraction(0)
    nearest: Fraction | float = math.inf
    for i in labels:
        for j in range(len(z)):
            d = z[i] - z[j]
            if j in labels:
                term, slope = size(gamma * d, s)
            else:
                term, down = ramp(eta * margin - gamma * d, s)
                nearest = min(nearest, abs(eta * margin - gamma * d))
                slope, along = -down, along + eta * down
            value, turn = value + term, turn + slope * d
            grad[i] += gamma * slope
            grad[j] -= gamma * slope
    return Sums(value, grad, along, turn, nearest)


def hourglass(z, q, s=Fraction(0)) -> tuple[Fraction, Fraction, Fraction]:
    """Radius of sparsehourglass, its slope in each score and its slope in q."""
    if q == math.inf:
        return Fraction(1), Fraction(0), Fraction(0)
    n, width = len(z), 1 + len(z) * q
    height, sign = size(sum(z), s)
    return (height + n * q) / width, sign / width, n * (1 - height) / (width * width)


def _sparsegen_hinge(z, eta, lam, s):
    labels = [i for i, share in enumerate(eta) if share]
    if s:  # smoothed in the scores' own units
        t = 1 - lam
        found = double_sums(z, labels, t, s=s)
        along = (found.value / t - found.margin) / t
        return found.value / t, [g / t for g in found.grad], along, found.nearest
    gamma = 1 / (1 - lam)
    found = double_sums(z, labels, Fraction(1), gamma)
    return found.value, found.grad, found.gamma * gamma * gamma, found.nearest


def _sparsehourglass_hinge(z, eta, q, s):
    radius, push, bend = hourglass(z, q, s)
    found = double_sums(z, [i for i, share in enumerate(eta) if share], radius, s=s)
    grad = [g + found.margin * push for g in found.grad]
    return found.value, grad, found.margin * bend, found.nearest


def _sparsemax_huber(z, eta, lam, s):
    """The Fenchel-Young loss of T/2 |p|^2: the conjugate at z, plus the function at eta, minus eta.z."""
    t = 1 - lam
    p, _ = oracle.project_exact(z, t)
    squares = [sum(v * v for v in w) for w in (p, eta)]
    conjugate = sum(a * b for a, b in zip(z, p)) - t * squares[0] / 2
    value = conjugate + t * squares[1] / 2 - sum(a * b for a, b in zip(z, eta))
    return value, [a - b for a, b in zip(p, eta)], (squares[0] - squares[1]) / 2, math.inf


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def _softmax_log(z, eta, control, s):
    """KL divergence in 60 digits, scores counted from the largest so that no weight overflows."""
    with localcontext(oracle._DIGITS):
        below = [_decimal(v - max(z)) for v in z]
        total = sum(v.exp() for v in below)
        value = total.ln() + sum(_decimal(h) * (_decimal(h).ln() - v) for h, v in zip(eta, below) if h)
        return value, [v.exp() / total - _decimal(h) for v, h in zip(below, eta)], 0, math.inf


_ROWS = {
    "softmax_log": _softmax_log,
    "sparsemax_huber": _sparsemax_huber,
    "sparsegen_hinge": _sparsegen_hinge,
    "sparsehourglass_hinge": _sparsehourglass_hinge,
}


def shares(labels) -> list[Fraction]:
    """Equal shares of the labels marked in a row."""
    count = sum(map(bool, labels))
    return [Fraction(int(bool(v)), count) for v in labels]


def row(name: str, z, eta, control=0.0, mask=None, smoothing: float = 0.0) -> Answer:
    """The loss called `name` of one row with the shares `eta`: hidden entries are deleted, zeros put back."""
    open_ = [i for i, v in enumerate(z) if v != -math.inf and (mask is None or mask[i])]
    control = control if control == math.inf else Fraction(control)
    exact = [Fraction(float(z[i])) for i in open_], [Fraction(eta[i]) for i in open_]
    value, grad, along, nearest = _ROWS[name](*exact, control, Fraction(smoothing))
    whole = np.zeros(len(z))
    whole[open_] = [float(g) for g in grad]
    return Answer(float(value), whole, float(along), float(nearest))


def _clipped(d: np.ndarray, s: float) -> np.ndarray:
    """Slope of |d|, or of Huber's function of it."""
    return np.clip(d / s, -1, 1) if s > 0 else np.sign(d)


def broadcast(z: np.ndarray, labels: np.ndarray, radius: float, s: float = 0.0) -> tuple[float, float, np.ndarray]:
    """F(z, radius) of one long row, its slope and gradient, by P x K tables; exact for dyadic numbers and s = 0."""
    d = z[labels][:, None] - z[None, :]
    short = np.where(labels, 0.0, np.maximum(radius / labels.sum() - d, 0))
    active, sign = _clipped(short, s), np.where(labels, _clipped(d, s), 0.0)
    grad = active.sum(0) - sign.sum(0)
    grad[labels] += sign.sum(1) - active.sum(1)
    value = (active * (short - active * s / 2)).sum() + (sign * (d - sign * s / 2)).sum()
    return value, active.sum() / labels.sum(), grad
