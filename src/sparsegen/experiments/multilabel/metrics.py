"""What the paper reports of a multilabel prediction: micro F1, Jensen-Shannon divergence, sparsity; bands over seeds.

Matrices have one row per example and one column per label, dense or scipy sparse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsegen._table.checks import fail
from sparsegen._table.extras import missing

try:
    from scipy import sparse, special
except ImportError as error:
    raise missing("measuring predictions", "scipy", "experiments") from error

# A row of probabilities may miss 1 by what half-precision models lose.
SUM_TOLERANCE = 1e-3
# Sparse rows are made dense a block at a time, so memory does not grow with the number of rows.
BLOCK_ENTRIES = 1 << 20


def micro_f1(Y_true: Any, Y_pred: Any) -> float:
    """F1 over all labels of all examples taken together; a label is on where its entry is not zero.

    .. math:: F_1 = 2 |T \\cap P| / (|T| + |P|)

    Parameters
    ----------
    Y_true, Y_pred : array or sparse matrix of shape (n, K)
        Indicators, or probabilities of a sparse map as they are.

    Returns
    -------
    float
        0 where neither side has a label.

    Examples
    --------
    >>> micro_f1([[1, 0, 1], [0, 1, 0]], [[1, 0, 0], [0, 1, 1]])
    0.6666666666666666
    """
    true, pred = _pair("Y_true", Y_true, "Y_pred", Y_pred)
    true, pred = sparse.csr_array(true != 0), sparse.csr_array(pred != 0)
    total = true.nnz + pred.nnz
    return 2 * true.multiply(pred).nnz / total if total else 0.0


def jensen_shannon(P: Any, Q: Any) -> float:
    """Jensen-Shannon divergence in nats between rows of probabilities, averaged over the rows.

    .. math:: \\tfrac12 KL(p \\| m) + \\tfrac12 KL(q \\| m), \\quad m = (p + q) / 2

    It lies between 0 (equal rows) and log 2 (rows without a label in common), and zeros are exact: 0 log 0 = 0. SciPy's
    `jensenshannon` is its square root.

    Parameters
    ----------
    P, Q : array or sparse matrix of shape (n, K)
        Rows of probabilities. Sums within 0.001 of 1 are accepted and divided out.

    Examples
    --------
    >>> jensen_shannon([[0.5, 0.5, 0.0]], [[0.5, 0.5, 0.0]])
    0.0
    >>> round(jensen_shannon([[1.0, 0.0]], [[0.0, 1.0]]), 6)
    0.693147
    """
    P, Q = _pair("P", P, "Q", Q)
    total = 0.0
    for p, q in zip(_probabilities("P", P), _probabilities("Q", Q)):
        # rel_entr(2p, p + q) = 2 p log(p / m): doubling, unlike halving, cannot turn the smallest number into 0.
        total += (special.rel_entr(2 * p, p + q).sum() + special.rel_entr(2 * q, p + q).sum()) / 4
    return float(total / P.shape[0])


def mean_support(P: Any) -> float:
    """Mean number of entries of a row that are not zero: the sparsity the paper plots, lower is sparser.

    Examples
    --------
    >>> mean_support([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    1.5
    """
    P = _matrix("P", P)
    return int((P != 0).sum()) / P.shape[0]


class Confidence(NamedTuple):
    """A mean and the ends of its confidence interval."""

    mean: float
    low: float
    high: float


def confidence(values: Sequence[float] | np.ndarray, level: float = 0.95) -> Confidence:
    """Mean of results over seeds and its interval by Student's t with n - 1 degrees of freedom.

    Parameters
    ----------
    values : sequence of n finite numbers
        One per seed.
    level : float, default 0.95
        Probability that the interval covers the true mean when the values are normal.

    Returns
    -------
    Confidence
        mean, low, high. The ends are NaN for a single value: one seed says nothing of the spread.

    Examples
    --------
    >>> mean, low, high = confidence([0.70, 0.72, 0.74])
    >>> f"{mean:.3f} ({low:.3f}, {high:.3f})"
    '0.720 (0.670, 0.770)'
    """
    x = np.asarray(values, dtype=float)
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        fail(ValueError, "values", "a non-empty list of finite numbers", repr(values))
    if not 0 < level < 1:
        fail(ValueError, "level", "between 0 and 1", level)
    mean = float(x.mean())
    if x.size == 1:
        return Confidence(mean, float("nan"), float("nan"))
    half = float(special.stdtrit(x.size - 1, (1 + level) / 2) * x.std(ddof=1) / np.sqrt(x.size))
    return Confidence(mean, mean - half, mean + half)


def _matrix(name: str, value: Any) -> Any:
    """The value as a dense array or its own CSR copy, with at least one row and no NaN."""
    value = sparse.csr_array(value, copy=True) if sparse.issparse(value) else np.asarray(value)
    if value.ndim != 2 or value.shape[0] == 0:
        fail(ValueError, name, "a matrix with at least one row", f"shape {value.shape}")
    if value.dtype.kind not in "biuf":
        fail(TypeError, name, "a matrix of numbers", f"dtype {value.dtype}")
    if np.isnan(value.data if sparse.issparse(value) else value).any():
        fail(ValueError, name, "free of NaN", "NaN")
    return value


def _pair(name: str, a: Any, other: str, b: Any) -> tuple[Any, Any]:
    """Both matrices, refused when their shapes differ."""
    a, b = _matrix(name, a), _matrix(other, b)
    if a.shape != b.shape:
        fail(ValueError, other, f"of the shape of {name}, {a.shape}", b.shape)
    return a, b


def _probabilities(name: str, matrix: Any) -> Iterator[np.ndarray]:
    """Dense blocks of rows that sum to 1."""
    n, k = matrix.shape
    step = max(1, BLOCK_ENTRIES // max(1, k))
    for start in range(0, n, step):
        rows = matrix[start : start + step]
        rows = (rows.toarray() if sparse.issparse(rows) else rows).astype(float)
        sums = rows.sum(axis=1, keepdims=True)
        bad = (rows < 0).any(axis=1) | ~(abs(sums[:, 0] - 1) <= SUM_TOLERANCE)
        if bad.any():
            i = int(bad.argmax())
            got = f"sum {sums[i, 0]:.6g} and smallest entry {rows[i].min(initial=0):.6g}"
            fail(ValueError, f"row {start + i} of {name}", "probabilities that sum to 1", got)
        yield rows / sums
