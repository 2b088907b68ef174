"""The dial that stays within a wished distance of where it begins."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sparsegen._table import checks
from sparsegen._table.arrays import as_array
from sparsegen.numpy.control import Rooms, find_rooms
from sparsegen.numpy.dial import Dial

ALMOST_ONE = float(np.nextafter(1.0, 0.0))


def lam_for_distance(
    scores: ArrayLike, distance: ArrayLike, *, mapping: str = "sparsegen_softmax", axis: int = -1,
    mask: ArrayLike | None = None, temperature: ArrayLike | None = None,
) -> float | np.ndarray:  # fmt: skip
    """Return the largest lam whose probabilities are within a total variation distance of those at lam = 0.

    With ``mapping="sparsegen_softmax"`` that is the distance to softmax: an attention's output then moves by at most
    twice the distance times the largest value. lam itself is such a distance, but seldom the smallest.

    Parameters
    ----------
    scores : array of numbers
    distance : number or array
        At least 0; half the sum of absolute differences. An array broadcasts against the scores without the class axis.
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
    lam : float or array
        One per row, at least 0; the largest number below 1 where every lam is near enough.

    Examples
    --------
    >>> import numpy as np, sparsegen as sg
    >>> z = [2.0, 1.0, 0.0, -1.0]
    >>> lam = sg.lam_for_distance(z, 0.05)
    >>> p = sg.sparsegen_softmax(z, lam=lam)
    >>> round(lam, 4), int((p > 0).sum()), round(float(abs(p - sg.softmax(z)).sum() / 2), 6)
    (0.1126, 4, 0.05)
    """
    dial = Dial(mapping, temperature)
    rooms = find_rooms(*dial.points(scores, axis, mask))
    wished = checks.numbers("distance", as_array("distance", distance))
    checks.control_broadcasts("distance", wished.shape, rooms.lead)
    d = np.broadcast_to(wished, rooms.lead).reshape(-1)
    if not (d >= 0).all():
        checks.fail(ValueError, "distance", "at least 0", d[~(d >= 0)][0])
    lam = 1 - _radius(rooms, d)
    lam = np.clip(lam, 0.0, ALMOST_ONE)
    return lam.reshape(rooms.lead) if rooms.lead else float(lam[0])


def _radius(rooms: Rooms, d: np.ndarray) -> np.ndarray:
    """The smallest radius T at which the first j of each row have at most d more than at radius 1, for all j.

    On the piece of T where the support has k entries the first j have (X_j - j X_k/k)/T + j/k, X the points' sums. That
    rises as T falls, so the right piece is found by halving, and there the j that asks for the largest T.
    """
    low, high = np.ones(len(d), np.int64), np.maximum((rooms.c < 1).sum(axis=1), 1)  # the size at T = 1
    begin = _first(rooms, high, np.ones(len(d)))
    while (low < high).any():
        k = (low + high) // 2
        most = rooms.next_room(k)  # the largest T of the piece; 0 where the largest entries tie
        more = (_first(rooms, k, np.where(most > 0, most, 1.0)) - begin).max(axis=1, initial=0.0)
        near = (more <= d) & (most > 0)
        low, high = np.where(near | (low == high), low, k + 1), np.where(near, k, high)
    room, step = rooms.room(low), _above_mean(rooms, low)
    j = np.arange(1, rooms.z.shape[1] + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = step / (begin + d[:, None] - np.minimum(j / low[:, None], 1.0))
        each = np.where((j < low[:, None]) & (step > 0), each, 0.0)
    return np.clip(each.max(axis=1), room, 1.0)


def _above_mean(rooms: Rooms, k: np.ndarray) -> np.ndarray:
    """X_j - j X_k/k for j up to k, from the differences to the largest entry; 0 beyond."""
    n = np.arange(1, rooms.z.shape[1] + 1)
    inside = n <= k[:, None]
    below = np.where(inside, rooms.z[:, :1] - np.where(inside, rooms.z, 0.0), 0.0).cumsum(axis=1)
    return np.where(inside, below[:, -1:] * n / k[:, None] - below, 0.0)


def _first(rooms: Rooms, k: np.ndarray, T: np.ndarray) -> np.ndarray:
    """What the first j entries have together at a radius T with a support of k entries."""
    n = np.arange(1, rooms.z.shape[1] + 1)
    return np.where(n <= k[:, None], _above_mean(rooms, k) / T[:, None] + n / k[:, None], 1.0)
