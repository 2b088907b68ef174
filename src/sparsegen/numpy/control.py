"""Control made literal: the dial that gives a wished number of nonzeros, a wished peak, a wished Lipschitz constant.

With the scores of a row in falling order, let c_k = sum_{j<=k} (z_(j) - z_(k)): how much room the k largest need. The
support of sparsegen_lin has as many entries as there are c_k below the radius T = 1 - lam, so every question about its
size is a question about the c (docs/math.md, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sparsegen._table import checks, recipe
from sparsegen._table.arrays import as_array
from sparsegen.numpy import maps
from sparsegen.numpy._inputs import read_scores
from sparsegen.numpy.dial import Dial

TIES = ("raise", "below", "above")


class Rooms(NamedTuple):
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
    wide = np.moveaxis(recipe.hide(np, z.astype(np.float64), mask), axis, -1)
    return -np.sort(-wide.reshape(-1, wide.shape[-1]), axis=-1), wide.shape[:-1]


def find_rooms(scores: Any, axis: int, mask: Any) -> Rooms:
    """Return the rooms of the rows of some scores, or refuse rows that have none."""
    z, mask = read_scores(scores, mask)
    axis = checks.axis_index("axis", axis, z.shape)
    if z.shape[axis] == 0:
        checks.fail(ValueError, "scores", "of at least one class", f"shape {z.shape}")
    rows, lead = _sorted_rows(z, mask, axis)
    n = (rows > -np.inf).sum(axis=1)
    # c_k = c_{k-1} + (k - 1)(z_(k-1) - z_(k)): a sum of terms that are not negative, so no digits are lost.
    with np.errstate(invalid="ignore"):
        gaps = np.where(np.arange(1, rows.shape[1]) < n[:, None], rows[:, :-1] - rows[:, 1:], np.inf)
    steps = np.arange(1, rows.shape[1]) * gaps
    found = Rooms(rows, np.column_stack([np.zeros(len(rows)), np.cumsum(steps, axis=1)]), n, lead)
    bad = np.isnan(rows).any(axis=1) | (rows == np.inf).any(axis=1) | (n == 0)
    if bad.any():
        i = int(bad.argmax())
        what = "nothing to choose" if n[i] == 0 else "NaN or inf"
        checks.fail(ValueError, found.row(i), "finite, with an entry that may be chosen", what)
    return found


def _sizes(k: Any, rooms: Rooms, name: str = "k") -> np.ndarray:
    k = as_array(name, k)
    if k.dtype.kind not in "iu":
        checks.fail(TypeError, name, "an integer, or an array of them", repr(k.tolist()))
    checks.control_broadcasts(name, k.shape, rooms.lead)
    k = np.broadcast_to(k, rooms.lead).reshape(-1).astype(np.int64)
    bad = (k < 1) | (k > rooms.n)
    if bad.any():
        i = int(bad.argmax())
        checks.fail(ValueError, name, f"from 1 to {rooms.n[i]}, the entries of {rooms.row(i)}", int(k[i]))
    return k


def _settle(k: np.ndarray, rooms: Rooms, ties: str) -> np.ndarray:
    """Sizes that can be had: where entries tie, those asked for, or the nearest on the wished side."""
    if ties not in TIES:
        checks.fail(ValueError, "ties", checks.one_of(TIES), repr(ties))
    k = k.copy()
    for i in np.flatnonzero(~(rooms.room(k) < rooms.next_room(k))):
        sizes = rooms.attainable(int(i))
        fit = (
            [size for size in sizes if size < k[i]][-1:] if ties == "below" else [size for size in sizes if size > k[i]]
        )
        if ties == "raise" or not fit:
            near = ", ".join(map(str, sizes[:8])) + (", ..." if len(sizes) > 8 else "")
            side = " (ties='below' or 'above' takes the next)" if ties == "raise" else f" and none is {ties}"
            checks.fail(ValueError, f"k for {rooms.row(int(i))}", f"one of {near}, as entries tie{side}", int(k[i]))
        k[i] = fit[0]
    return k


def _middle(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """A radius well inside (low, high]; where there is no upper end, twice the lower."""
    open_end = np.isinf(high)
    high = np.where(open_end, low, high)
    return np.where(open_end, np.where(low > 0, 2 * low, 1.0), low + (high - low) / 2)


def _as_lam(T: np.ndarray, low: np.ndarray, high: np.ndarray, rooms: Rooms) -> np.ndarray:
    """1 - T, refused where it has no digits left to say T."""
    lam = 1 - T
    back = 1 - lam
    lost = ~((low < back) & (back <= high)) | (lam >= 1)
    if lost.any():
        i = int(lost.argmax())
        condition = (
            "of a scale that lam can express (lam = 1 - radius); multiply the scores, or use project with a radius"
        )
        checks.fail(ValueError, rooms.row(i), condition, f"a radius between {low[i]:.3g} and {high[i]:.3g}")
    return lam


def _shaped(value: np.ndarray, rooms: Rooms) -> float | np.ndarray:
    return value.reshape(rooms.lead) if rooms.lead else float(value[0])


def lam_for_support(
    scores: ArrayLike, k: ArrayLike, *, mapping: str = "sparsegen_lin", axis: int = -1, mask: ArrayLike | None = None,
    ties: Literal["raise", "below", "above"] = "raise", temperature: ArrayLike | None = None,
) -> float | np.ndarray:  # fmt: skip
    """Return the lam with which a map has exactly `k` nonzeros, one per row.

    Parameters
    ----------
    scores : array of numbers
    k : int, or array of int
        How many, from 1 to the number of entries; an array broadcasts against the scores without the class axis.
    mapping : str
        A map with the control lam.
    axis : int
        The class axis.
    mask : boolean array, optional
        True where an entry may be chosen.
    ties : {"raise", "below", "above"}
        What to do where entries tie so that `k` cannot be had: refuse, or take the next smaller or larger size.
    temperature : number or array, optional
        Of sparsegen_softmax.

    Returns
    -------
    lam : float or array
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
    >>> sg.sparsegen_softmax(z, lam=sg.lam_for_support(z, 1, mapping="sparsegen_softmax"))
    array([1., 0., 0., 0.])
    """
    dial = Dial(mapping, temperature)
    rooms = find_rooms(*dial.points(scores, axis, mask))
    sizes = _settle(_sizes(k, rooms), rooms, ties)
    low, high = rooms.room(sizes), rooms.next_room(sizes)
    lam = _as_lam(_middle(low, high), low, high, rooms)
    _confirm(dial.apply, scores, {"lam": lam.reshape(rooms.lead)}, sizes, rooms, axis, mask)
    return _shaped(lam, rooms)


def _confirm(
    f: Callable[..., Any], scores: Any, control: dict[str, Any], k: np.ndarray, rooms: Rooms, axis: int, mask: Any
) -> None:
    """Refuse rows whose entries lie closer together than the arithmetic of the scores' type can tell apart."""
    _, info = f(scores, axis=axis, mask=mask, return_info=True, **control)
    wrong = np.asarray(info.support_size).reshape(-1) != k
    if wrong.any():
        i = int(wrong.argmax())
        gap = rooms.z[i, k[i] - 1] - rooms.z[i, k[i]] if k[i] < rooms.z.shape[1] else 0.0
        condition = f"further apart at entry {k[i]} than the rounding of {np.asarray(scores).dtype}"
        checks.fail(ValueError, rooms.row(i), condition, f"a step of {gap:.3g}")


def lam_for_mean_support(
    scores: ArrayLike, m: float, *, mapping: str = "sparsegen_lin", axis: int = -1, mask: ArrayLike | None = None,
    temperature: ArrayLike | None = None,
) -> float:  # fmt: skip
    """Return the one lam with which the rows of a map have `m` nonzeros on average.

    Where ties or the number of rows do not allow exactly `m`, the nearest mean that can be had is taken.

    Parameters
    ----------
    scores : array of numbers
    m : number
        The wished mean, from 1 to the mean number of entries.
    mapping : str
        A map with the control lam.
    axis : int
        The class axis.
    mask : boolean array, optional
        True where an entry may be chosen.
    temperature : number or array, optional
        Of sparsegen_softmax.

    Returns
    -------
    lam : float

    Examples
    --------
    >>> import numpy as np, sparsegen as sg
    >>> z = np.random.default_rng(0).normal(size=(1000, 50))
    >>> lam = sg.lam_for_mean_support(z, 5)
    >>> float(np.mean(np.sum(sg.sparsegen_lin(z, lam=lam) > 0, axis=1)))
    5.0
    """
    rooms = find_rooms(*Dial(mapping, temperature).points(scores, axis, mask))
    m = _wished("m", m, 1.0, rooms.n.mean())
    pooled = np.sort(rooms.c, axis=None)
    return _cut(pooled, np.arange(1, len(pooled) + 1), m * len(rooms.n), rooms)


def _wished(name: str, value: Any, least: float, most: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        checks.fail(TypeError, name, "a number", repr(value))
    if not least <= number <= most:
        checks.fail(ValueError, name, f"from {least:g} to {most:g}", number)
    return number


def _cut(pooled: np.ndarray, below: np.ndarray, total: float, rooms: Rooms) -> float:
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


def lam_for_peak(
    scores: ArrayLike, p_max: ArrayLike, *, axis: int = -1, mask: ArrayLike | None = None
) -> float | np.ndarray:
    """Return the lam with which the largest probability of sparsegen_lin is `p_max`, one per row.

    Parameters
    ----------
    scores : array of numbers
    p_max : number, or array of numbers
        The wished largest probability; an array broadcasts against the scores without the class axis.
    axis : int
        The class axis.
    mask : boolean array, optional
        True where an entry may be chosen.

    Returns
    -------
    lam : float or array

    Examples
    --------
    >>> import sparsegen as sg
    >>> z = [1.0, 0.5, 0.0]
    >>> sg.sparsegen_lin(z, lam=sg.lam_for_peak(z, 0.6))
    array([0.6       , 0.33333333, 0.06666667])
    """
    rooms = find_rooms(scores, axis, mask)
    t = checks.numbers("p_max", as_array("p_max", p_max))
    checks.control_broadcasts("p_max", t.shape, rooms.lead)
    t = np.broadcast_to(t, rooms.lead).reshape(-1)
    ties = (rooms.z == rooms.z[:, :1]).sum(axis=1)
    bad = ~((t > 1 / rooms.n) & (t <= 1 / ties)) & ~((ties == rooms.n) & (t == 1 / rooms.n))
    if bad.any():
        i = int(bad.argmax())
        top = f"at most {1 / ties[i]:.4g}, as {ties[i]} entries share the maximum" if ties[i] > 1 else "at most 1"
        checks.fail(ValueError, f"p_max for {rooms.row(i)}", f"above {1 / rooms.n[i]:.4g} and {top}", t[i])
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


def q_for_support(
    scores: ArrayLike, k: ArrayLike, *, axis: int = -1, mask: ArrayLike | None = None
) -> float | np.ndarray:
    """Return a q with which sparsehourglass has exactly `k` nonzeros, one per row.

    The radius moves between abs(S), at q = 0, and 1, at q = inf, so not every size can be had; others are refused.

    Parameters
    ----------
    scores : array of numbers
    k : int, or array of int
        How many nonzeros; an array broadcasts against the scores without the class axis.
    axis : int
        The class axis.
    mask : boolean array, optional
        True where an entry may be chosen.

    Returns
    -------
    q : float or array
        In the middle of the radii that give this size, so that small errors do not change it.

    Examples
    --------
    >>> import sparsegen as sg
    >>> z = [1.8, 0.6, 0.2]
    >>> [int((sg.sparsehourglass(z, q=sg.q_for_support(z, k)) > 0).sum()) for k in (1, 2, 3)]
    [1, 2, 3]
    """
    rooms = find_rooms(scores, axis, mask)
    k = _sizes(k, rooms)
    total = np.abs(np.where(np.isinf(rooms.z), 0.0, rooms.z).sum(axis=1))
    least, most = np.minimum(total, 1.0), np.maximum(total, 1.0)
    room, after = rooms.room(k), rooms.next_room(k)
    bad = ~((room < most) & (after >= least) & (room < after))
    if bad.any():
        i = int(bad.argmax())
        sizes = [s for s in rooms.attainable(i) if _reached(rooms, i, s, least[i], most[i])]
        condition = f"one of {', '.join(map(str, sizes))}: the radius stays between {least[i]:.4g} and {most[i]:.4g}"
        checks.fail(ValueError, f"k for {rooms.row(i)}", condition, int(k[i]))
    low, high = np.maximum(room, least), np.minimum(after, most)
    T = low + (high - low) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(least == most, 1.0, np.abs((total - T) / (rooms.n * (T - 1))))  # abs(S) = 1: the same for every q
    _confirm(maps.sparsehourglass, scores, {"q": q.reshape(rooms.lead)}, k, rooms, axis, mask)
    return _shaped(q, rooms)


def _reached(rooms: Rooms, i: int, k: int, least: float, most: float) -> bool:
    c, after = rooms.c[i, k - 1], rooms.c[i, k] if k < rooms.c.shape[1] else np.inf
    return bool(c < most and after >= least)


def q_for_lipschitz(n_classes: int, bound: float) -> float:
    """Return the smallest q with which sparsehourglass of `n_classes` scores has this Lipschitz constant.

    Parameters
    ----------
    n_classes : int
        The number of scores, at least 2.
    bound : number
        The constant, above 1.

    Returns
    -------
    q : float

    Examples
    --------
    >>> import sparsegen as sg
    >>> q = sg.q_for_lipschitz(10, 2.0)
    >>> round(q, 4), round(sg.lipschitz("sparsehourglass", 10, q=q), 12)
    (0.2189, 2.0)
    """
    n = class_count(n_classes)
    bound = checks.number("bound", bound, {"bound": ("a number above 1", lambda v: v > 1)})
    if math.isinf(bound):
        return 0.0
    over = n * (bound - 1) * (bound + 1)
    return (1 + math.sqrt(1 + over)) / over


def class_count(n: Any) -> int:
    """Return a number of classes, or refuse what is none."""
    if not isinstance(n, (int, np.integer)) or n < 2:
        checks.fail(ValueError, "n_classes", "an integer of at least 2", repr(n))
    return int(n)
