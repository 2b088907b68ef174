"""One lam for a stream of batches that is seen once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from sparsegen._table import checks
from sparsegen.numpy.control import _wished, find_rooms

BINS_AN_OCTAVE = 512
LOWEST, HIGHEST = -200, 200  # powers of two between which radii are told apart


def calibrate(
    scores_iterable: Iterable[ArrayLike],
    *,
    mean_support: float | None = None,
    density: float | None = None,
    axis: int = -1,
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
    axis : int
        The class axis.

    Returns
    -------
    lam : float

    Examples
    --------
    >>> import numpy as np, sparsegen as sg
    >>> batches = np.random.default_rng(0).normal(size=(10, 100, 30))
    >>> lam = sg.calibrate(iter(batches), mean_support=3)
    >>> abs(float(np.mean(np.sum(sg.sparsegen_lin(batches, lam=lam) > 0, axis=-1))) - 3) < 0.02
    True
    """
    if (mean_support is None) == (density is None):
        checks.fail(ValueError, "mean_support or density", "given, one of them", (mean_support, density))
    name, wished = ("mean_support", mean_support) if density is None else ("density", density)
    counts = np.zeros((HIGHEST - LOWEST) * BINS_AN_OCTAVE + 2)
    rows = 0
    least = most = 0.0
    for batch in scores_iterable:
        rooms = find_rooms(batch, axis, None)
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
        checks.fail(ValueError, "scores_iterable", "at least one row", "none")
    target = _wished(name, wished, least / rows, most / rows)
    reached = np.cumsum(counts)[:-1] / rows  # with a radius at the upper edge of each bin
    away = np.abs(reached - target)
    at = int(np.flatnonzero(away == away.min())[-1])  # of equally good radii the largest: the smallest are too near 0
    return 1 - 2.0 ** (LOWEST + at / BINS_AN_OCTAVE)
