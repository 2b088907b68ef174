"""Maps and losses on many rows at once, by sorting and in long double: another algorithm in another precision.

tests/oracle.py has the exact answers, in fractions and a row at a time; the drivers hold these to those on short rows.
With 64 digits, p is right to 2^-62 (p + 1/n), a thousandth of what the kernel is allowed in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Real = np.longdouble
LEAST = np.finfo(Real).tiny
ENOUGH = np.finfo(Real).nmant > 60  # elsewhere long double is double, and float64 cannot be judged by it


class Answer(NamedTuple):
    """Rows of probabilities; the size of the support without what is as good as on the threshold; the radius."""

    p: np.ndarray
    firm: np.ndarray
    radius: np.ndarray
    blur: np.ndarray  # how far rounding of what is projected, and of the radius, may move a probability
    skip: np.ndarray  # rows on which nothing is promised: the radius itself is lost in rounding


def project(x: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Rows (N, K) with -inf where hidden, radii (N,): NaN and +inf give NaN rows, nothing to choose gives zeros."""
    bad = np.isnan(x).any(1) | (x == np.inf).any(1) | ~(r >= 0)
    x = np.where(bad[:, None], Real(0), x)
    top = x.max(1, keepdims=True)
    none = np.isneginf(top[:, 0])
    u = np.where(none[:, None], Real(0), x) - np.where(none[:, None], Real(0), top)
    limit = (r == 0) | (r == np.inf) | bad
    radius = np.where(limit, Real(1), r)[:, None].astype(Real)
    near = -np.sort(-np.where(u > -radius, u, -radius), axis=1)  # what is further away cannot be in
    k = np.arange(1, x.shape[1] + 1)
    n = np.maximum(np.count_nonzero(k * near - np.cumsum(near, 1) + radius > 0, axis=1), 1)[:, None]
    start = (np.take_along_axis(np.cumsum(near, 1), n - 1, 1) - radius) / n
    left = (np.where(k <= n, near - start, Real(0)).sum(1, keepdims=True) - radius) / n
    p = np.maximum(np.where(np.isneginf(u), -radius, u) - start - left, Real(0)) / radius
    even = np.where((r == 0)[:, None], u == 0, ~np.isneginf(u))
    p = np.where(limit[:, None], even / np.maximum(even.sum(1, keepdims=True), 1), np.where(np.isneginf(u), Real(0), p))
    return np.where(bad[:, None], Real(np.nan), np.where(none[:, None], Real(0), p))


def firm_size(p: np.ndarray, eps: float) -> np.ndarray:
    """The largest n whose n-th probability is above 2 eps / n: docs/decisions/0002."""
    order = -np.sort(-p, axis=1)
    k = np.arange(1, p.shape[1] + 1)
    return np.maximum(np.where(order * k > 2 * eps, k, 1).max(1), 1)


def _rule(name: str, z: np.ndarray, shown: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The radius of the maps that take it from the row's mean, and how far doubles may be from it."""
    n = np.maximum(shown.sum(1), 1)
    mean = np.where(shown, z, Real(0)).sum(1) / n
    size = np.where(shown, abs(z), Real(0)).sum(1) / n
    height = mean if name == "sparsecone" else abs(mean)
    far = q == np.inf
    q = np.where(far, Real(1), q)
    width = 1 / n.astype(Real) + q
    off = Real(2.0**-53) * ((n + 8) * size + 4 * (abs(height) + q)) / width
    return np.where(far, Real(1), (height + q) / width), np.where(far, Real(0), off)


def _hidden(x: np.ndarray, shown: np.ndarray) -> np.ndarray:
    return np.where(shown, x, Real(-np.inf))


def _projected(name: str, z: np.ndarray, shown: np.ndarray, control: np.ndarray, eps: float) -> Answer:
    """Maps that project. Points are off by a few roundings of their size; those that matter are within r of the top."""
    off = zero = np.zeros(len(z), Real)
    top = np.where(shown, z, Real(-np.inf)).max(1, keepdims=True)
    safe = np.where(shown, z, np.where(np.isfinite(top), top, Real(1)))
    if name in ("sparsegen_exp", "sparsegen_sq"):
        if name == "sparsegen_exp":
            unit = np.exp(-safe.max(1))
            x = np.expm1(safe - safe.max(1, keepdims=True))
        else:
            b = abs(safe).max(1, keepdims=True)
            b = np.where(b > 0, b, Real(1))
            unit, x = 1 / b[:, 0] ** 2, ((abs(safe) - b) / b) * (abs(safe) / b + 1)
        r = np.where(control == -np.inf, Real(np.inf), (1 - control) * unit)
        off = 12 * eps * np.minimum(Real(1), 1 / np.maximum(r, LEAST))
    elif name == "sparsegen_log":
        x, r = np.log(safe), 1 - control
        off = 6 * eps * abs(np.where(shown, x, Real(0))).max(1) / r
    elif name in ("sparsecone", "sparsehourglass", "sum_normalization_plus"):
        x = safe
        r, lost = _rule(name, z, shown, control)
        relative = lost / np.maximum(abs(r), LEAST)
        p = project(_hidden(x, shown), np.where(shown.any(1), r, Real(1)))
        return Answer(p, firm_size(p, eps), r, 4 * relative, (relative > 1e-3) | ~(r >= 0))
    else:
        x, r = safe, {"sparsemax": zero + 1, "hardmax": zero}.get(name, 1 - control)
    p = project(_hidden(x, shown), r)
    return Answer(p, firm_size(p, eps), r, np.where(np.isfinite(off), off, Real(0)), zero > 0)


def _shares(name: str, z: np.ndarray, shown: np.ndarray, control: np.ndarray, eps: float) -> Answer:
    """Maps that divide: each probability has a few roundings of its own, more where an exponent was rounded."""
    safe = np.where(shown, z, Real(0))
    steps = np.full(z.shape, Real(12 + z.shape[1] / 4))
    if name == "softmax":
        top = np.where(shown, z, Real(-np.inf)).max(1, keepdims=True)
        low = (z - np.where(np.isfinite(top), top, Real(0))) / np.maximum(control, LEAST)[:, None]
        w = np.where(shown, np.exp(np.where(shown, low, Real(0))), Real(0))
        steps = steps + 4 * abs(np.where(shown, low, Real(0)))
    else:
        w = safe * safe if name == "spherical_softmax" else safe
    total = w.sum(1, keepdims=True)
    p = w / np.where(total == 0, Real(1), total)
    broken = (np.isnan(safe) | (abs(safe) == np.inf)).any(1)
    p = np.where(broken[:, None], Real(np.nan), p)
    wrong = (total[:, 0] == 0) & shown.any(1)
    steps = steps + (steps * p).sum(1, keepdims=True)  # its own, and those of the sum
    return Answer(p, np.full(len(z), np.inf), total[:, 0], steps * eps * p, wrong)


def map_rows(name: str, z: np.ndarray, shown: np.ndarray, control: np.ndarray, eps: float) -> Answer:
    """The map called `name` on rows (N, K) of which only the `shown` entries exist, with one control a row."""
    z, control = z.astype(Real), control.astype(Real)
    with np.errstate(all="ignore"):
        by = _shares if name in ("softmax", "sum_normalization", "spherical_softmax") else _projected
        found = by(name, z, shown & ~np.isneginf(z), control, eps)
    p = np.where(shown.any(1)[:, None], found.p, Real(0))
    return found._replace(p=np.where(shown, p, np.where(np.isnan(p), p, Real(0))))


def hinge_sums(z: np.ndarray, labels: np.ndarray, shown: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """sum |z_i - z_j| over labels + sum [r/P - (z_i - z_j)]_+ over labels and others, pair by pair."""
    z = np.where(shown, z, 0).astype(Real)
    d = z[:, :, None] - z[:, None, :]
    pairs = labels[:, :, None] & shown[:, None, :]
    margin = (radius / labels.sum(1))[:, None, None]
    both = np.where(labels[:, None, :], abs(d), np.maximum(margin - d, Real(0)))
    return np.where(pairs, both, Real(0)).sum((1, 2))
