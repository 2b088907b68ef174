"""What a map did with some scores: how sparse, how near to a change, how steep."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sparsegen._table import checks, recipe
from sparsegen._table.controls import control_number, controls_of, mapping_name, renamed
from sparsegen._table.maps import HIDDEN, MAPS, TRANSFORMS, Map
from sparsegen.numpy import maps
from sparsegen.numpy._inputs import read_scores
from sparsegen.numpy.control import class_count, find_rooms


def lipschitz(mapping: str = "", n_classes: int = 0, *, map: str | None = None, **controls: float) -> float:
    """Return the Lipschitz constant of a map of `n_classes` scores in the Euclidean norm; inf where it has none.

    Parameters
    ----------
    mapping : str
        A name of the table of maps.
    n_classes : int
        The number of scores, at least 2.
    map : str
        The old name of `mapping`.
    **controls : number
        The map's control.

    Returns
    -------
    constant : float

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.lipschitz("sparsegen_lin", 10, lam=0.5), sg.lipschitz("sparsegen_exp", 10)
    (2.0, inf)
    """
    m = MAPS[mapping_name(renamed(mapping, map), MAPS)]
    n = class_count(n_classes)
    given = controls_of(m.name, m.controls, controls)
    return m.lipschitz(n, **{name: control_number(name, value) for name, value in given.items()})


def _span(values: np.ndarray) -> str:
    """Some numbers in a few words."""
    values = np.asarray(values, dtype=np.float64).reshape(-1)
    if not len(values):
        return "none"
    least, most = values.min(), values.max()
    return f"{least:.4g}" if least == most else f"{values.mean():.4g} on average, from {least:.4g} to {most:.4g}"


class Explanation(NamedTuple):
    """What a map did with some scores; one entry per row unless it says otherwise.

    >>> import sparsegen as sg
    >>> found = sg.explain([[0.9, 0.5, 0.1], [3.0, 0.0, 0.0]])
    >>> found.support_size
    array([2, 1])
    >>> print(found)
    sparsemax of 2 rows
      nonzeros              1.5 on average, from 1 to 2
      threshold             1.1 on average, from 0.2 to 2
      entropy               0.3054 on average, from 0 to 0.6109
      distance to a change  1.05 on average, from 0.1 to 2
      Lipschitz constant    1
      rows without gradient 50 %
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
    """The lam, from the first (included) to the second, that keep this support size; (..., 2). For softmax: of
    sparsegen_softmax. For other maps that make their radius themselves: of the sparsegen of the same transform that
    gives the same probabilities. NaN for entmax, which has no such dial."""
    lipschitz: float
    """The map's Lipschitz constant for this number of classes; NaN for controls that differ by row."""
    no_gradient: float
    """Share of the rows whose support is one entry: their gradient is 0, but for softmax and the like."""
    mapping: str
    """The map's name."""

    def __str__(self) -> str:
        lines = {
            "nonzeros": _span(self.support_size), "threshold": _span(self.threshold), "entropy": _span(self.entropy),
            "distance to a change": _span(self.distance), "Lipschitz constant": f"{self.lipschitz:.4g}",
            "rows without gradient": f"{100 * self.no_gradient:.3g} %",
        }  # fmt: skip
        rows = np.size(self.support_size)
        title = f"{self.mapping} of {rows} row{'' if rows == 1 else 's'}"
        return "\n".join([title, *(f"  {name:<21} {text}" for name, text in lines.items())])


def _distance(
    m: Map, x: np.ndarray, tau: np.ndarray, on: np.ndarray, k: np.ndarray, given: dict[str, Any]
) -> np.ndarray:
    """Smallest change of one entry that changes the support, as tau follows an entry (docs/math.md, section 4)."""
    tau = tau[..., None]
    above = np.where(on, x - tau, np.inf).min(axis=-1)
    below = np.where(on | np.isinf(x), np.inf, tau - x).min(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        if m.power:
            leave = _power_distance(x, on, k, given)
        elif m.radius.of == "sum":
            lam = np.asarray(given.get("lam", 0.0), np.float64)
            leave = above / np.where(lam == -np.inf, np.inf, 1 - lam / k)
            least = np.where(on, x, np.inf).min(axis=-1)
            leave = np.where((leave <= least) & ((k > 1) | (lam == 0)), leave, np.inf)  # points are at least 0
            below = below / np.where(lam == -np.inf, np.inf, 1 + (1 - lam) / k)
        else:
            leave = np.where(k > 1, above * k / (k - 1), np.inf)
    return np.maximum(np.minimum(leave, below), 0.0)  # on the edge of a change, rounding may say less than nothing


def _power_distance(x: np.ndarray, on: np.ndarray, k: np.ndarray, given: dict[str, Any]) -> np.ndarray:
    """By how much the smallest entry of the support must fall to leave it: to the threshold of the row without it."""
    at = np.where(on, x, np.inf).argmin(axis=-1)[..., None]
    least = np.take_along_axis(x, at, -1)[..., 0]
    rest = np.where(np.arange(x.shape[-1]) == at, HIDDEN, x)
    alpha = np.asarray(given["alpha"], np.float64)
    gap = np.where(alpha > 1, alpha - 1, 1.0)
    _, info = maps.entmax(rest / gap[..., None], alpha=alpha, return_info=True)
    return np.where((k > 1) & (alpha > 1), least - info.threshold, np.inf)


def _transformed(m: Map, z: np.ndarray, given: dict[str, Any], axis: int) -> np.ndarray:
    """What a map projects, as its equation writes it; -inf where nothing may be chosen."""
    z = np.moveaxis(z.astype(np.float64), axis, -1)
    by = np.asarray(given.get("temperature", 1.0), np.float64)
    times = np.asarray(given.get("alpha", 2.0), np.float64) - 1
    with np.errstate(all="ignore"):
        x = TRANSFORMS[m.transform].g(np, z * times[..., None] / by[..., None])
    return np.where(z == HIDDEN, HIDDEN, x)


def _lam_interval(m: Map, z: np.ndarray, x: np.ndarray, k: np.ndarray, given: dict[str, Any], axis: int) -> np.ndarray:
    """From the first lam (included) to the second the support keeps its size."""
    if m.power:
        return np.full((*k.shape, 2), np.nan)
    if m.radius.of == "sum":  # the dial is of the shares
        own = {key: value for key, value in given.items() if key == "temperature"}
        shares = np.asarray(getattr(maps, m.name)(z.astype(np.float64), axis=axis, **own))
        x = np.where(x == HIDDEN, HIDDEN, np.moveaxis(shares, axis, -1))
    rooms = find_rooms(x, -1, None)
    flat = np.maximum(k.reshape(-1), 1)
    interval = np.stack([1 - rooms.next_room(flat), 1 - rooms.room(flat)], axis=-1)
    return interval.reshape((*rooms.lead, 2))


def explain(
    scores: ArrayLike, mapping: str = "sparsemax", *, axis: int = -1, mask: ArrayLike | None = None,
    map: str | None = None, **controls: Any,
) -> Explanation:  # fmt: skip
    """Return what a map of the table did with the scores: how sparse, how near to a change, how steep.

    Parameters
    ----------
    scores : array
        Finite, but for entries that may not be chosen.
    mapping : str
        A name of the table of maps.
    axis : int
        The axis of the classes.
    mask : boolean array, optional
        Broadcasts to the scores; True where an entry may be chosen.
    map : str
        The old name of `mapping`.
    **controls : number or array
        The map's control.

    Returns
    -------
    found : Explanation
        Reads well when printed.

    Examples
    --------
    >>> import sparsegen as sg
    >>> found = sg.explain([0.9, 0.5, 0.1], "sparsegen_lin", lam=0.5)
    >>> int(found.support_size), round(float(found.threshold), 3), round(float(found.distance), 3)
    (2, 0.45, 0.1)
    >>> found.lam_interval.round(3)
    array([-0.2,  0.6])
    """
    m = MAPS[mapping_name(renamed(mapping, map), MAPS)]
    z, hidden = read_scores(scores, mask)
    at = checks.axis_index("axis", axis, z.shape)
    z = recipe.hide(np, z, hidden)
    given = controls_of(m.name, m.controls, controls)
    p, info = getattr(maps, m.name)(z, axis=at, return_info=True, **given)
    p = np.moveaxis(np.asarray(p, dtype=np.float64), at, -1)
    known = {**m.fixed, **given}
    x = _transformed(m, z, known, at)
    k = np.asarray(info.support_size)
    interval = _lam_interval(m, z, x, k, known, at)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = np.abs(np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0), axis=-1))
    numbers = all(np.ndim(value) == 0 for value in given.values())
    return Explanation(
        k, info.threshold, entropy, _distance(m, x, info.threshold, p > 0, k, known), interval,
        lipschitz(m.name, z.shape[at], **given) if numbers and z.shape[at] > 1 else math.nan,
        float((k == 1).mean()), m.name,
    )  # fmt: skip
