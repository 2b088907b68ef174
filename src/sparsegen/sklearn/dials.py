"""The dial at prediction: from scores to keys that are cut, and the cut that is best for a metric.

Both dials cut one number for each label. The probability p_k of the map is above a threshold, or the label is in the
support of the map at a radius r, which begins where r is above

.. math:: \\rho_k = \\sum_{j: z_j > z_k} (z_j - z_k),

so that the labels of radius r are those with -rho above -r. The best cut is then found among all there are, by sorting.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from sparsegen._table.checks import fail, one_of

METRICS = ("f1_micro", "f1_macro", "f1_samples", "cardinality")
COUNTED = ("f1_micro", "cardinality")  # which many predictions can only spoil: see enough
WIDEST = 4.0  # radius up to which labels are looked at, in radii of the map
FAINT_F1 = 0.02  # micro F1 below which a cut is no use: keys that could only matter there are not sorted
FAINTEST = 0.01  # probability up to which they are, in shares of 1/K: softmax has no zeros


def probability_keys(P: np.ndarray) -> sp.csr_array:
    """Return the probabilities that a threshold could be put below."""
    kept = FAINTEST / P.shape[1] < P
    at = np.flatnonzero(kept)
    indptr = np.concatenate([[0], np.cumsum(np.count_nonzero(kept, axis=1))])
    return sp.csr_array((P.ravel()[at], (at % P.shape[1]).astype(np.int32), indptr.astype(np.int32)), shape=P.shape)


def radius_keys(z: np.ndarray, radius: float) -> sp.csr_array:
    """Return minus the radius at which each label joins the support.

    >>> radius_keys(np.array([[1.0, 0.5, 0.25, -9.0]]), 1.0).toarray()
    array([[ 0. , -0.5, -1. ,  0. ]])
    """
    order = np.argsort(-z, axis=1, kind="stable")
    falling = np.take_along_axis(z, order, axis=1)
    below = np.arange(z.shape[1]) * (falling[:, :1] - falling) - np.cumsum(falling[:, :1] - falling, axis=1)
    rho = np.maximum(below + (falling[:, :1] - falling), 0.0)
    near = rho < WIDEST * radius
    indptr = np.concatenate([[0], np.cumsum(near.sum(axis=1))])
    return sp.csr_array((-rho[near], order[near], indptr), shape=z.shape)


def tops(z: np.ndarray) -> np.ndarray:
    """Return where the scores are the largest of their row."""
    return z == z.max(axis=1, keepdims=True)


def with_tops(keys: sp.csr_array, z: np.ndarray) -> sp.csr_array:
    """Return keys that no cut is above for the largest scores of each row, which are then always predicted."""
    top = sp.csr_array(tops(z))
    rows = np.repeat(np.arange(len(z)), np.diff(keys.indptr))
    data = np.where(np.asarray(top[rows, keys.indices]).ravel(), np.inf, keys.data)
    return sp.csr_array((data, keys.indices, keys.indptr), shape=keys.shape)


class Cut(NamedTuple):
    """Where to cut keys, and the score of what lies above."""

    at: float
    score: float


class _Entries(NamedTuple):
    """The keys of all rows, from the largest on, and what each is worth."""

    key: np.ndarray
    true: np.ndarray
    row: np.ndarray
    column: np.ndarray
    weight: np.ndarray


def _entries(Y: sp.csr_array, keys: sp.csr_array, weight: np.ndarray) -> _Entries:
    row = np.repeat(np.arange(keys.shape[0]), np.diff(keys.indptr))
    true = np.asarray(Y[row, keys.indices]).ravel().astype(bool)
    order = np.argsort(-keys.data, kind="stable")
    return _Entries(keys.data[order], true[order], row[order], keys.indices[order], weight[row[order]])


def foremost(keys: sp.csr_array, most: int) -> sp.csr_array:
    """Return the largest keys, at least so many where there are, with all that are equal to the last of them."""
    if keys.nnz <= most:
        return keys
    least = np.partition(keys.data, keys.nnz - most)[keys.nnz - most]
    kept = keys.data >= least
    indptr = np.concatenate([[0], np.cumsum(kept)])[keys.indptr]
    return sp.csr_array((keys.data[kept], keys.indices[kept], indptr), shape=keys.shape)


def enough(Y: sp.csr_array, weight: np.ndarray) -> int:
    """How many keys can matter to micro F1, if some cut has at least a score of FAINT_F1.

    Of N predictions at most all T true labels are right: F1 is at most 2T/(N + T), and rows count by their weight.
    """
    truth = weight @ np.diff(Y.indptr)
    return int(np.ceil((2 / FAINT_F1 - 1) * truth / weight[weight > 0].min()))


def _gains(found: _Entries, group: np.ndarray, truth: np.ndarray, worth: np.ndarray, nothing: np.ndarray) -> np.ndarray:
    """By how much each entry, joining those before it, raises the sum of `worth` times the F1 of its group.

    `truth` is the number of true labels of each group, `nothing` its F1 where none is predicted.
    """
    order = np.argsort(group, kind="stable")
    at = group[order]
    first = np.concatenate([[True], at[1:] != at[:-1]])
    start = np.maximum.accumulate(np.where(first, np.arange(len(at)), 0))

    def within(values: np.ndarray) -> np.ndarray:
        total = np.concatenate([[0.0], np.cumsum(values)])
        return total[1:] - total[start]

    weight = found.weight[order]
    f1 = 2 * within(weight * found.true[order]) / (within(weight) + truth[at])
    before = np.where(first, nothing[at], np.concatenate([[0.0], f1[:-1]]))
    gains = np.empty(len(at))
    gains[order] = worth[at] * (f1 - before)
    return gains


def _curve(metric: str, found: _Entries, Y: sp.csr_array, weight: np.ndarray) -> tuple[float, np.ndarray]:
    """The metric where nothing is predicted, and what each entry adds to it."""
    sizes = np.diff(Y.indptr)
    if metric == "f1_samples":
        worth = weight / weight.sum()
        nothing = (sizes == 0).astype(float)  # an empty set that is predicted empty is right
        return float(worth @ nothing), _gains(found, found.row, weight * sizes, worth, nothing)
    true_weight = np.repeat(weight, sizes)
    if metric == "f1_macro":
        truth = np.bincount(Y.indices, true_weight, Y.shape[1])
        flat = np.zeros(Y.shape[1])
        return 0.0, _gains(found, found.column, truth, flat + 1 / Y.shape[1], flat)
    everything = np.zeros(len(found.key), np.int64)
    return 0.0, _gains(found, everything, np.array([true_weight.sum()]), np.ones(1), np.zeros(1))


def best_cut(
    Y: Any, keys: sp.csr_array, metric: str = "f1_micro", weight: np.ndarray | None = None, *,
    floor: float = 0.0, ceiling: float = 1.0,
) -> Cut:  # fmt: skip
    """Return the cut with the best metric, of all there are.

    Parameters
    ----------
    Y : sparse matrix (n, K)
        Label sets, as an indicator.
    keys : sparse matrix (n, K)
        A number for each label that can be predicted; infinite where it always is.
    metric : str
        One of METRICS. "cardinality" predicts as many labels as there are; its score is the micro F1 there.
    floor, ceiling : float
        What cuts lie between.

    Examples
    --------
    >>> keys = sp.csr_array(np.array([[0.5, 0.1, 0.4], [0.2, 0.6, 0.2]]))
    >>> best_cut(sp.csr_array(np.array([[1, 0, 1], [0, 1, 0]])), keys).score
    1.0
    """
    if not keys.nnz:
        return Cut(floor, 0.0)
    Y = sp.csr_array(Y)
    weight = np.ones(Y.shape[0]) if weight is None else weight
    few = foremost(keys, enough(Y, weight)) if metric in COUNTED else keys
    found = _best_of(Y, few, metric, weight, floor, ceiling)
    if few is keys or metric == "cardinality" or found.score > FAINT_F1:
        return found
    return _best_of(Y, keys, metric, weight, floor, ceiling)


def _best_of(Y: sp.csr_array, keys: sp.csr_array, metric: str, weight: np.ndarray, floor: float, ceiling: float) -> Cut:
    """The best cut of keys, all of which are sorted."""
    found = _entries(Y, keys, weight)
    nothing, gains = _curve(metric, found, Y, weight)
    score = np.concatenate([[nothing], nothing + np.cumsum(gains)])
    edges = np.concatenate([[np.inf], found.key, [-np.inf]])
    wanted = score
    if metric == "cardinality":
        wanted = -abs(np.concatenate([[0.0], np.cumsum(found.weight)]) - weight @ np.diff(Y.indptr))
    possible = np.where(edges[1:] < edges[:-1], wanted, -np.inf)  # a cut lies between different keys only
    at = int(np.argmax(possible))
    middle = (np.clip(edges[at], floor, ceiling) + np.clip(edges[at + 1], floor, ceiling)) / 2
    return Cut(float(middle), float(score[at]))


def best_threshold(Y: Any, P: Any, metric: str = "f1_micro") -> float:
    """Return the p0 for which the labels ``P > p0`` have the best F1, over all thresholds there are.

    Parameters
    ----------
    Y : array or sparse matrix (n, K)
        Label sets, as an indicator.
    P : array or sparse matrix (n, K)
        Probabilities.
    metric : {"f1_micro", "f1_macro", "f1_samples", "cardinality"}
        What is best; "cardinality" predicts as many labels as there are.

    Examples
    --------
    >>> best_threshold([[1, 0, 1], [0, 1, 0]], [[0.5, 0.1, 0.4], [0.15, 0.6, 0.25]])
    0.325
    """
    Y, P = (a if sp.issparse(a) else np.asarray(a) for a in (Y, P))
    if P.ndim != 2:
        fail(ValueError, "P", "of shape (n, K)", f"shape {P.shape}")
    if Y.shape != P.shape:
        fail(ValueError, "Y", f"of shape {P.shape}, as P is", f"shape {Y.shape}")
    if metric not in METRICS:
        fail(ValueError, "metric", one_of(METRICS), repr(metric))
    keys = sp.csr_array(P, dtype=np.float64)
    if not np.isfinite(keys.data).all():
        fail(ValueError, "P", "finite", "NaN or infinity")
    return best_cut(sp.csr_array(Y), keys, metric).at
