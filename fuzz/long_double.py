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


SHARES = ("softmax", "sparsegen_softmax", "sum_normalization", "spherical_softmax")
POWERS = ("entmax", "entmax15")


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
        r = np.where(r < LEAST, Real(0), r)  # it has lost its digits, and no two scores are as close
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


def kept(name: str, control: np.ndarray) -> np.ndarray:
    """The share of the sum that is a map's radius."""
    return np.ones(len(control), Real) if name == "softmax" else np.where(control == -np.inf, Real(np.inf), 1 - control)


def _shares(name: str, z: np.ndarray, shown: np.ndarray, control: np.ndarray, eps: float) -> Answer:
    """Maps that divide: each probability has a few roundings of its own, more where an exponent was rounded."""
    safe = np.where(shown, z, Real(0))
    steps = np.full(z.shape, Real(12 + z.shape[1] / 4))
    if name in ("softmax", "sparsegen_softmax"):
        t = np.maximum(control, LEAST) if name == "softmax" else np.ones_like(control)
        top = np.where(shown, z, Real(-np.inf)).max(1, keepdims=True)
        low = (z - np.where(np.isfinite(top), top, Real(0))) / t[:, None]
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
    whole = Answer(p, np.full(len(z), np.inf), total[:, 0], steps * eps * p, wrong)
    return whole if name == "softmax" else _part(whole, shown, kept(name, control), eps)


def _part(whole: Answer, shown: np.ndarray, keep: np.ndarray, eps: float) -> Answer:
    """The same where only a share `keep` of the sum is the radius: the shares are projected onto it."""
    p = project(np.where(np.isnan(whole.p), whole.p, _hidden(whole.p, shown)), keep)
    p = np.where((keep == 1)[:, None], whole.p, p)
    far = np.nanmax(whole.blur, axis=1, keepdims=True, initial=0) * 2 / np.maximum(keep, LEAST)[:, None]
    return Answer(p, firm_size(p, eps), whole.radius * keep, far, whole.skip)


def _of(w: np.ndarray, gap: np.ndarray) -> np.ndarray:
    """(1 - gap w)^(1/gap), exp(-w) for a gap of 0."""
    inside = gap * w < 1
    w, none = np.where(inside, w, Real(0)), gap == 0
    return np.where(inside, np.exp(np.where(none, -w, np.log1p(-gap * w) / np.where(none, Real(1), gap))), Real(0))


def _powers(name: str, z: np.ndarray, shown: np.ndarray, control: np.ndarray, eps: float) -> Answer:
    """Entmax, by bisection."""
    gap = (np.full(len(z), Real(0.5)) if name == "entmax15" else control - 1)[:, None]
    broken = (np.isnan(z) | (z == np.inf)).any(1, where=shown)
    top = np.where(shown, z, Real(-np.inf)).max(1, keepdims=True)
    dead = (broken | ~shown.any(1))[:, None]
    below = np.where(dead, Real(0), np.where(shown, top - z, Real(np.inf)))
    n = np.log(np.maximum(shown.sum(1, keepdims=True), 1).astype(Real))
    low = np.zeros_like(n)
    high = np.where(gap == 0, n, -np.expm1(-gap * n) / np.where(gap == 0, Real(1), gap))
    for _ in range(100):
        middle = (low + high) / 2
        more = _of(middle + below, gap).sum(1, keepdims=True) > 1
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    w, steps = high + below, (12 + z.shape[1] / 4) * eps
    p = _of(w, gap)
    p = p / p.sum(1, keepdims=True)
    blur = np.where(p > 0, _of(np.maximum(w * (1 - steps), 0), gap) - _of(w * (1 + steps), gap), Real(0))
    blur = np.where(w * (1 - steps) * gap < 1, np.maximum(blur, _of(w * (1 - steps), gap) - p), blur)
    blur = blur + p * blur.sum(1, keepdims=True)
    p = np.where(broken[:, None], Real(np.nan), np.where(dead, Real(0), p))
    return Answer(p, firm_size(p, eps), np.ones(len(z), Real), np.where(dead, Real(0), blur), np.zeros(len(z), bool))


def map_rows(name: str, z: np.ndarray, shown: np.ndarray, control: np.ndarray, eps: float) -> Answer:
    """The map called `name` on rows (N, K) of which only the `shown` entries exist, with one control a row."""
    z, control = z.astype(Real), control.astype(Real)
    with np.errstate(all="ignore"):
        by = _powers if name in POWERS else _shares if name in SHARES else _projected
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
