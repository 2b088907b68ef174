"""Control made literal: the dial that gives a wished number of nonzeros, a wished peak, a wished Lipschitz constant.

With the scores of a row in falling order, let c_k = sum_{j<=k} (z_(j) - z_(k)): how much room the k largest need. The
support of sparsegen_lin has as many entries as there are c_k below the radius T = 1 - lam, so every question about its
size is a question about the c (docs/math.md, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from sparsegen import _checks, _functions
from sparsegen._arrays import as_array
from sparsegen._maps import MAPS, TRANSFORMS
from sparsegen._numpy import _scores

TIES = ("raise", "below", "above")


class _Rooms(NamedTuple):
    """The rows of some scores, each in falling order, with the room c_k that its k largest entries need."""

    z: np.ndarray  # (rows, K), falling; -inf where there is nothing to choose
    c: np.ndarray  # (rows, K), rising from 0; inf there
    n: np.ndarray  # entries that may be chosen
    lead: tuple[int, ...]

    def next_room(self, k: np.ndarray) -> np.ndarray:
        """Return c_{k+1} of each row; inf where k is all there is."""
        padded = np.column_stack([self.c, np.full(len(self.c), np.inf)])
        return np.take_along_axis(padded, k[:, None], axis=1)[:, 0]

    def room(self, k: np.ndarray) -> np.ndarray:
        """Return c_k of each row."""
        return np.take_along_axis(self.c, k[:, None] - 1, axis=1)[:, 0]

    def row(self, i: int) -> str:
        """Name a row in an error."""
        return "the scores" if not self.lead else f"scores row {tuple(int(j) for j in np.unravel_index(i, self.lead))}"

    def attainable(self, i: int) -> list[int]:
        """Return the sizes that the support of a row can have: those at which the scores fall."""
        z, n = self.z[i], int(self.n[i])
        return [k for k in range(1, n) if z[k - 1] > z[k]] + [n]


def _sorted_rows(z: np.ndarray, mask: np.ndarray | None, axis: int) -> tuple[np.ndarray, tuple[int, ...]]:
    wide = z.astype(np.float64) if mask is None else np.where(mask, z.astype(np.float64), -np.inf)
    wide = np.moveaxis(wide, axis, -1)
    return -np.sort(-wide.reshape(-1, wide.shape[-1]), axis=-1), wide.shape[:-1]


def _rooms(scores: Any, axis: int, mask: Any) -> _Rooms:
    z, mask = _scores(scores, mask)
    axis = _checks.axis_index("axis", axis, z.shape)
    if z.shape[axis] == 0:
        _checks.fail(ValueError, "scores", "of at least one class", f"shape {z.shape}")
    rows, lead = _sorted_rows(z, mask, axis)
    n = (rows > -np.inf).sum(axis=1)
    # c_k = c_{k-1} + (k - 1)(z_(k-1) - z_(k)): a sum of terms that are not negative, so no digits are lost.
    with np.errstate(invalid="ignore"):
        gaps = np.where(np.arange(1, rows.shape[1]) < n[:, None], rows[:, :-1] - rows[:, 1:], np.inf)
    steps = np.arange(1, rows.shape[1]) * gaps
    found = _Rooms(rows, np.column_stack([np.zeros(len(rows)), np.cumsum(steps, axis=1)]), n, lead)
    bad = np.isnan(rows).any(axis=1) | (rows == np.inf).any(axis=1) | (n == 0)
    if bad.any():
        i = int(bad.argmax())
        what = "nothing to choose" if n[i] == 0 else "NaN or inf"
        _checks.fail(ValueError, found.row(i), "finite, with an entry that may be chosen", what)
    return found


def _sizes(k: Any, rooms: _Rooms, name: str = "k") -> np.ndarray:
    k = as_array(name, k)
    if k.dtype.kind not in "iu":
        _checks.fail(TypeError, name, "an integer, or an array of them", repr(k.tolist()))
    _checks.control_broadcasts(name, k.shape, rooms.lead)
    k = np.broadcast_to(k, rooms.lead).reshape(-1).astype(np.int64)
    bad = (k < 1) | (k > rooms.n)
    if bad.any():
        i = int(bad.argmax())
        _checks.fail(ValueError, name, f"from 1 to {rooms.n[i]}, the entries of {rooms.row(i)}", int(k[i]))
    return k


def _settle(k: np.ndarray, rooms: _Rooms, ties: str) -> np.ndarray:
    """Sizes that can be had: where entries tie, those asked for, or the nearest on the wished side."""
    if ties not in TIES:
        _checks.fail(ValueError, "ties", "one of " + ", ".join(map(repr, TIES)), repr(ties))
    k = k.copy()
    for i in np.flatnonzero(~(rooms.room(k) < rooms.next_room(k))):
        sizes = rooms.attainable(int(i))
        fit = (
            [size for size in sizes if size < k[i]][-1:] if ties == "below" else [size for size in sizes if size > k[i]]
        )
        if ties == "raise" or not fit:
            near = ", ".join(map(str, sizes[:8])) + (", ..." if len(sizes) > 8 else "")
            side = " (ties='below' or 'above' takes the next)" if ties == "raise" else f" and none is {ties}"
            _checks.fail(ValueError, f"k for {rooms.row(int(i))}", f"one of {near}, as entries tie{side}", int(k[i]))
        k[i] = fit[0]
    return k


def _middle(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """A radius well inside (low, high]; where there is no upper end, twice the lower."""
    open_end = np.isinf(high)
    high = np.where(open_end, low, high)
    return np.where(open_end, np.where(low > 0, 2 * low, 1.0), low + (high - low) / 2)


def _as_lam(T: np.ndarray, low: np.ndarray, high: np.ndarray, rooms: _Rooms) -> np.ndarray:
    """1 - T, refused where it has no digits left to say T."""
    lam = 1 - T
    back = 1 - lam
    lost = ~((low < back) & (back <= high)) | (lam >= 1)
    if lost.any():
        i = int(lost.argmax())
        condition = (
            "of a scale that lam can express (lam = 1 - radius); multiply the scores, or use project with a radius"
        )
        _checks.fail(ValueError, rooms.row(i), condition, f"a radius between {low[i]:.3g} and {high[i]:.3g}")
    return lam


def _shaped(value: np.ndarray, rooms: _Rooms) -> Any:
    return value.reshape(rooms.lead) if rooms.lead else float(value[0])


def lam_for_support(scores: Any, k: Any, *, axis: int = -1, mask: Any = None, ties: str = "raise") -> Any:
    """Return the lam with which sparsegen_lin has exactly `k` nonzeros, one a row.

    Parameters
    ----------
    scores : array of numbers
    k : int, or array of int
        How many, from 1 to the number of entries; an array broadcasts against the scores without the class axis.
    axis : int
        The class axis.
    mask : boolean array, optional
        True where an entry may be chosen.
    ties : {"raise", "below", "above"}
        What to do where entries tie so that `k` cannot be had: refuse, or take the next smaller or larger size.

    Returns
    -------
    float or array
        In the middle of the values of lam that give this size, so that small errors do not change it.

    Examples
    --------
    >>> import sparsegen as sg
    >>> z = [2.0, 1.0, 1.0, 0.0]
    >>> sg.lam_for_support(z, 1), sg.lam_for_support(z, 3)
    (0.5, -1.5)
    >>> sg.lam_for_support(z, 2, ties="below")
    0.5
    >>> sg.sparsegen_lin(z, lam=sg.lam_for_support(z, 3))
    array([0.6, 0.2, 0.2, 0. ])
    """
    rooms = _rooms(scores, axis, mask)
    k = _settle(_sizes(k, rooms), rooms, ties)
    low, high = rooms.room(k), rooms.next_room(k)
    lam = _as_lam(_middle(low, high), low, high, rooms)
    _confirm(_functions.sparsegen_lin, scores, {"lam": lam.reshape(rooms.lead)}, k, rooms, axis, mask)
    return _shaped(lam, rooms)


def _confirm(
    f: Callable[..., Any], scores: Any, control: dict[str, Any], k: np.ndarray, rooms: _Rooms, axis: int, mask: Any
) -> None:
    """Refuse rows whose entries lie closer together than the arithmetic of the scores' type can tell apart."""
    _, info = f(scores, axis=axis, mask=mask, return_info=True, **control)
    wrong = np.asarray(info.support_size).reshape(-1) != k
    if wrong.any():
        i = int(wrong.argmax())
        gap = rooms.z[i, k[i] - 1] - rooms.z[i, k[i]] if k[i] < rooms.z.shape[1] else 0.0
        condition = f"further apart at entry {k[i]} than the rounding of {np.asarray(scores).dtype}"
        _checks.fail(ValueError, rooms.row(i), condition, f"a step of {gap:.3g}")


def lam_for_mean_support(scores: Any, m: float, *, axis: int = -1, mask: Any = None) -> float:
    """Return the one lam with which the rows of sparsegen_lin have `m` nonzeros on average.

    Where ties or the number of rows do not allow exactly `m`, the nearest mean that can be had is taken.

    Examples
    --------
    >>> import numpy as np, sparsegen as sg
    >>> z = np.random.default_rng(0).normal(size=(1000, 50))
    >>> lam = sg.lam_for_mean_support(z, 5)
    >>> float(np.mean(np.sum(sg.sparsegen_lin(z, lam=lam) > 0, axis=1)))
    5.0
    """
    rooms = _rooms(scores, axis, mask)
    m = _wished("m", m, 1.0, rooms.n.mean())
    pooled = np.sort(rooms.c, axis=None)
    return _cut(pooled, np.arange(1, len(pooled) + 1), m * len(rooms.n), rooms)


def _wished(name: str, value: Any, least: float, most: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        _checks.fail(TypeError, name, "a number", repr(value))
    if not least <= number <= most:
        _checks.fail(ValueError, name, f"from {least:g} to {most:g}", number)
    return number


def _cut(pooled: np.ndarray, below: np.ndarray, total: float, rooms: _Rooms) -> float:
    """The radius, as lam, at which the number of c below it is nearest to `total`."""
    real = np.isfinite(pooled)
    pooled, below = pooled[real], below[real]
    ends = np.flatnonzero(
        np.append(pooled[:-1] < pooled[1:], True)
    )  # a radius just above each of these has its own total
    at = ends[np.abs(below[ends] - total).argmin()]
    low = pooled[at : at + 1]
    high = pooled[at + 1 : at + 2] if at + 1 < len(pooled) else np.array([np.inf])
    return float(_as_lam(_middle(low, high), low, high, rooms)[0])


BINS_AN_OCTAVE = 512
LOWEST, HIGHEST = -200, 200  # powers of two between which radii are told apart


def calibrate(
    scores_iterable: Iterable[Any], *, mean_support: float | None = None, density: float | None = None, axis: int = -1
) -> float:
    """Return the one lam with which all batches together have the wished mean support, or density; memory is constant.

    The batches are seen once. Radii are told apart to 0.14 %, so the result is the nearest of those.

    Parameters
    ----------
    scores_iterable : iterable of arrays
        Batches of scores; they may differ in shape.
    mean_support : float, optional
        Nonzeros of a row, on average.
    density : float, optional
        Instead: the share of entries that are nonzero, averaged over rows.

    Examples
    --------
    >>> import numpy as np, sparsegen as sg
    >>> batches = np.random.default_rng(0).normal(size=(10, 100, 30))
    >>> lam = sg.calibrate(iter(batches), mean_support=3)
    >>> abs(float(np.mean(np.sum(sg.sparsegen_lin(batches, lam=lam) > 0, axis=-1))) - 3) < 0.02
    True
    """
    if (mean_support is None) == (density is None):
        _checks.fail(ValueError, "mean_support or density", "given, one of them", (mean_support, density))
    name, wished = ("mean_support", mean_support) if density is None else ("density", density)
    counts = np.zeros((HIGHEST - LOWEST) * BINS_AN_OCTAVE + 2)
    rows = 0
    least = most = 0.0
    for batch in scores_iterable:
        rooms = _rooms(batch, axis, None)
        share = np.ones(len(rooms.n)) if density is None else 1 / rooms.n
        rows += len(rooms.n)
        least += float(share.sum())
        most += float((rooms.n * share).sum())
        c, weight = rooms.c.ravel(), np.repeat(share, rooms.c.shape[1])
        real = np.isfinite(c)
        with np.errstate(divide="ignore"):
            bins = np.floor((np.log2(c[real]) - LOWEST) * BINS_AN_OCTAVE) + 1
        counts += np.bincount(np.clip(bins, 0, len(counts) - 1).astype(np.int64), weight[real], len(counts))
    if rows == 0:
        _checks.fail(ValueError, "scores_iterable", "at least one row", "none")
    target = _wished(name, wished, least / rows, most / rows)
    reached = np.cumsum(counts)[:-1] / rows  # with a radius at the upper edge of each bin
    away = np.abs(reached - target)
    at = int(np.flatnonzero(away == away.min())[-1])  # of equally good radii the largest: the smallest are too near 0
    return 1 - 2.0 ** (LOWEST + at / BINS_AN_OCTAVE)


def lam_for_peak(scores: Any, p_max: Any, *, axis: int = -1, mask: Any = None) -> Any:
    """Return the lam with which the largest probability of sparsegen_lin is `p_max`, one a row.

    Examples
    --------
    >>> import sparsegen as sg
    >>> z = [1.0, 0.5, 0.0]
    >>> sg.sparsegen_lin(z, lam=sg.lam_for_peak(z, 0.6))
    array([0.6       , 0.33333333, 0.06666667])
    """
    rooms = _rooms(scores, axis, mask)
    t = _checks.numbers("p_max", as_array("p_max", p_max))
    _checks.control_broadcasts("p_max", t.shape, rooms.lead)
    t = np.broadcast_to(t, rooms.lead).reshape(-1)
    ties = (rooms.z == rooms.z[:, :1]).sum(axis=1)
    bad = ~((t > 1 / rooms.n) & (t <= 1 / ties)) & ~((ties == rooms.n) & (t == 1 / rooms.n))
    if bad.any():
        i = int(bad.argmax())
        top = f"at most {1 / ties[i]:.4g}, as {ties[i]} entries share the maximum" if ties[i] > 1 else "at most 1"
        _checks.fail(ValueError, f"p_max for {rooms.row(i)}", f"above {1 / rooms.n[i]:.4g} and {top}", t[i])
    # On the piece with k entries p_max = 1/k + (z_(1) - mean of the k) / T, and c_k < T <= c_{k+1}.
    k = np.arange(1, rooms.c.shape[1] + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        below_top = np.cumsum(rooms.z[:, :1] - rooms.z, axis=1) / k
        T = below_top / (t[:, None] - 1 / k)
        ends = np.column_stack([rooms.c[:, 1:], np.full(len(T), np.inf)])
        fits = (rooms.c < T) & (ends * (1 + 1e-12) >= T) & (np.inf > T)
    found = np.where(fits.any(axis=1), T[np.arange(len(T)), fits.argmax(axis=1)], np.nan)
    one = t == 1 / ties  # all of it on the maxima: any radius up to the next room
    low, high = rooms.room(ties), rooms.next_room(ties)
    found = np.where(one, _middle(low, high), found)
    return _shaped(_as_lam(found, np.zeros(len(found)), np.full(len(found), np.inf), rooms), rooms)


def q_for_support(scores: Any, k: Any, *, axis: int = -1, mask: Any = None) -> Any:
    """Return a q with which sparsehourglass has exactly `k` nonzeros, one a row.

    The radius moves between abs(S), at q = 0, and 1, at q = inf, so not every size can be had; others are refused.

    Examples
    --------
    >>> import sparsegen as sg
    >>> z = [1.8, 0.6, 0.2]
    >>> [int((sg.sparsehourglass(z, q=sg.q_for_support(z, k)) > 0).sum()) for k in (1, 2, 3)]
    [1, 2, 3]
    """
    rooms = _rooms(scores, axis, mask)
    k = _sizes(k, rooms)
    total = np.abs(np.where(np.isinf(rooms.z), 0.0, rooms.z).sum(axis=1))
    least, most = np.minimum(total, 1.0), np.maximum(total, 1.0)
    room, after = rooms.room(k), rooms.next_room(k)
    bad = ~((room < most) & (after >= least) & (room < after))
    if bad.any():
        i = int(bad.argmax())
        sizes = [s for s in rooms.attainable(i) if _reached(rooms, i, s, least[i], most[i])]
        condition = f"one of {', '.join(map(str, sizes))}: the radius stays between {least[i]:.4g} and {most[i]:.4g}"
        _checks.fail(ValueError, f"k for {rooms.row(i)}", condition, int(k[i]))
    low, high = np.maximum(room, least), np.minimum(after, most)
    T = low + (high - low) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(least == most, 1.0, np.abs((total - T) / (rooms.n * (T - 1))))  # abs(S) = 1: the same for every q
    _confirm(_functions.sparsehourglass, scores, {"q": q.reshape(rooms.lead)}, k, rooms, axis, mask)
    return _shaped(q, rooms)


def _reached(rooms: _Rooms, i: int, k: int, least: float, most: float) -> bool:
    c, after = rooms.c[i, k - 1], rooms.c[i, k] if k < rooms.c.shape[1] else np.inf
    return bool(c < most and after >= least)


def q_for_lipschitz(n_classes: int, bound: float) -> float:
    """Return the smallest q with which sparsehourglass of `n_classes` scores has this Lipschitz constant.

    Examples
    --------
    >>> import sparsegen as sg
    >>> q = sg.q_for_lipschitz(10, 2.0)
    >>> round(q, 4), round(sg.lipschitz("sparsehourglass", 10, q=q), 12)
    (0.2189, 2.0)
    """
    n = _classes(n_classes)
    bound = _checks.control_number("bound", bound, {"bound": ("a number above 1", lambda v: v > 1)})
    if math.isinf(bound):
        return 0.0
    over = n * (bound - 1) * (bound + 1)
    return (1 + math.sqrt(1 + over)) / over


def _classes(n: Any) -> int:
    if not isinstance(n, (int, np.integer)) or n < 2:
        _checks.fail(ValueError, "n_classes", "an integer of at least 2", repr(n))
    return int(n)


def _hourglass_lipschitz(n: int, q: float) -> float:
    return math.inf if q == 0 else 1.0 if math.isinf(q) else math.hypot(1 + n * q, math.sqrt(n - 1)) / (n * q)


LIPSCHITZ: dict[str, Callable[..., float]] = {
    "sparsemax": lambda n: 1.0,
    "sparsegen_lin": lambda n, lam=0.0: 1 / (1 - lam),
    "sparsehourglass": _hourglass_lipschitz,
    "softmax": lambda n, temperature=1.0: 1 / (2 * temperature),
}


def lipschitz(map: str, n_classes: int, **controls: float) -> float:
    """Return the Lipschitz constant of a map of `n_classes` scores in the Euclidean norm; inf where it has none.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.lipschitz("sparsegen_lin", 10, lam=0.5), sg.lipschitz("sparsegen_exp", 10)
    (2.0, inf)
    """
    if map not in MAPS:
        _checks.fail(ValueError, "map", "one of " + ", ".join(repr(name) for name in MAPS), repr(map))
    n = _classes(n_classes)
    for name, value in controls.items():
        if name not in MAPS[map].controls:
            _checks.fail(ValueError, name, f"absent for {map!r}, which has no such control", value)
        _checks.control_number(name, value)
    if "q" in MAPS[map].controls and "q" not in controls:
        _checks.fail(ValueError, "q", f"given for {map!r}", None)
    return LIPSCHITZ[map](n, **controls) if map in LIPSCHITZ else math.inf


class Explanation(NamedTuple):
    """What a map did with some scores; one entry a row unless it says otherwise.

    >>> import sparsegen as sg
    >>> sg.explain([[0.9, 0.5, 0.1], [3.0, 0.0, 0.0]]).support_size
    array([2, 1])
    """

    support_size: np.ndarray
    """Number of nonzeros."""
    threshold: np.ndarray
    """The tau of the map's equation, on the scale of what is projected."""
    entropy: np.ndarray
    """Of the probabilities, in nats."""
    distance: np.ndarray
    """By how much one projected score must change, the others fixed, before the support changes; inf if it cannot."""
    lam_interval: np.ndarray
    """The lam, from the first (included) to the second, that keep this support size; (..., 2). For maps that make
    their radius themselves: of the sparsegen of the same transform that gives the same probabilities."""
    lipschitz: float
    """The map's Lipschitz constant for this number of classes."""
    no_gradient: float
    """Share of the rows whose support is one entry: their gradient is 0."""


def _distance(x: np.ndarray, tau: np.ndarray, on: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Smallest change of one entry that changes the support; tau follows an entry in it by 1/k of the way."""
    above = np.where(on, x - tau, np.inf).min(axis=-1)
    below = np.where(on | np.isinf(x), np.inf, tau - x).min(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        leave = np.where(k > 1, above * k / (k - 1), np.inf)
    return np.minimum(leave, below)


def explain(scores: Any, map: str = "sparsemax", *, axis: int = -1, mask: Any = None, **controls: Any) -> Explanation:
    """Return what a map of the table did with the scores: how sparse, how near to a change, how steep.

    Parameters
    ----------
    scores : array of numbers
    map : str
        A name of the table of maps that projects with a threshold: the sparsegen family, sparsecone, sparsehourglass.
    axis, mask
        As for the maps.
    **controls : number
        The map's control.

    Examples
    --------
    >>> import sparsegen as sg
    >>> found = sg.explain([0.9, 0.5, 0.1], "sparsegen_lin", lam=0.5)
    >>> int(found.support_size), round(float(found.threshold), 3), round(float(found.distance), 3)
    (2, 0.45, 0.1)
    >>> found.lam_interval.round(3)
    array([-0.2,  0.6])
    """
    known = [name for name, m in MAPS.items() if m.radius is not None and m.radius != 0.0]
    if map not in known:
        _checks.fail(ValueError, "map", "one of " + ", ".join(repr(name) for name in known), repr(map))
    z, mask = _scores(scores, mask)
    at = _checks.axis_index("axis", axis, z.shape)
    p, info = getattr(_functions, map)(z, axis=at, mask=mask, return_info=True, **controls)
    p = np.moveaxis(np.asarray(p, dtype=np.float64), at, -1)
    hidden = np.zeros(z.shape, dtype=bool) if mask is None else ~np.broadcast_to(mask, z.shape)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        x = np.where(hidden | (z == -np.inf), -np.inf, TRANSFORMS[MAPS[map].transform].g(np, z.astype(np.float64)))
    rooms = _rooms(x, at, None)
    k = np.asarray(info.support_size).reshape(-1)
    interval = np.stack([1 - rooms.next_room(k), 1 - rooms.room(k)], axis=-1)
    tau = np.asarray(info.threshold, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0), axis=-1)
    numbers = all(np.ndim(value) == 0 for value in controls.values())
    return Explanation(
        np.asarray(info.support_size), tau, entropy,
        _distance(np.moveaxis(x, at, -1), tau[..., None], p > 0, np.asarray(info.support_size)),
        interval.reshape((*rooms.lead, 2)),
        lipschitz(map, z.shape[at], **controls) if numbers and z.shape[at] > 1 else math.nan,
        float((k == 1).mean()),
    )  # fmt: skip
