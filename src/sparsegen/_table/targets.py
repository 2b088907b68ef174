"""Targets of the losses, in every form users have them, as one: the distribution eta over each row's labels, in CSR."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsegen._table import checks
from sparsegen._table.arrays import as_array


class Target(NamedTuple):
    """Row n has the labels ``indices[indptr[n] : indptr[n + 1]]`` with the shares ``eta`` there."""

    indptr: np.ndarray
    indices: np.ndarray
    eta: np.ndarray
    counted: np.ndarray | None
    """Rows that count for the loss; None: all."""

    def rows(self) -> np.ndarray:
        """Return the row of each label."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    def part(self, first: int, n_classes: int) -> Target:
        """Return what falls on `n_classes` classes from `first` on, counted from there."""
        here = (self.indices >= first) & (self.indices < first + n_classes)
        indptr = np.concatenate([[0], np.cumsum(here)])[self.indptr]
        return Target(indptr, self.indices[here] - first, self.eta[here], self.counted)

    def between(self, start: int, stop: int) -> Target:
        """Return the rows from `start` to `stop`, without copying where that is all of them."""
        if start == 0 and stop == len(self.indptr) - 1:
            return self
        at = slice(self.indptr[start], self.indptr[stop])
        indptr = self.indptr[start : stop + 1] - self.indptr[start]
        counted = None if self.counted is None else self.counted[start:stop]
        return Target(indptr, self.indices[at], self.eta[at], counted)

    def dense(self, n_classes: int, dtype: Any) -> np.ndarray:
        """Return eta as a dense matrix."""
        eta = np.zeros((len(self.indptr) - 1, n_classes), dtype)
        eta[self.rows(), self.indices] = self.eta
        return eta


def read(
    target: Any, shape: Sequence[int], *, ignore_index: Any = -100, ignore_empty: bool = False, even: str = "",
    eps: float | None = None,
) -> Target:  # fmt: skip
    """Read a target for scores of that shape; rows are numbered through all leading axes.

    Parameters
    ----------
    target : array or sparse matrix
        Multi-hot or distributions, of the scores' shape; or class indices, of that shape without the last axis.
    even : str
        Name of a loss that asks for equal shares, if one does.
    eps : float
        Precision the shares were rounded to, if it is not that of the array.

    Examples
    --------
    >>> read([[0, 1, 1]], (1, 3)).eta
    array([0.5, 0.5])
    """
    n_rows, n_classes = math.prod(shape[:-1]), shape[-1]
    ignore_index = checks.integer("ignore_index", ignore_index)
    if hasattr(target, "tocsr"):
        entries = _sparse(target, (n_rows, n_classes), len(shape))
    else:
        y = as_array("target", target)
        if y.dtype.kind not in "biuf":
            checks.fail(TypeError, "target", "numbers or booleans", f"dtype {y.dtype}")
        if y.shape == tuple(shape[:-1]) and y.dtype.kind in "iu":
            return _indices(y.reshape(-1), n_classes, ignore_index)
        if y.shape != tuple(shape):
            wanted = f"{tuple(shape)} (multi-hot) or {tuple(shape[:-1])} (class indices, integers)"
            checks.fail(ValueError, "the shape of target", wanted, f"{y.shape} of dtype {y.dtype}")
        entries = dense_entries(y.reshape(n_rows, n_classes))
    return shares(*entries, ignore_empty=ignore_empty, even=even, eps=eps)


def _indices(y: np.ndarray, n_classes: int, ignore_index: int) -> Target:
    counted = y != ignore_index
    wrong = counted & ((y < 0) | (y >= n_classes))
    if wrong.any():
        condition = f"class indices from 0 to {n_classes - 1}, or ignore_index = {ignore_index}"
        checks.fail(ValueError, "target", condition, f"{y[wrong][0]} in row {np.argmax(wrong)}")
    indptr = np.concatenate([[0], np.cumsum(counted)]).astype(np.int64)
    indices = y[counted].astype(np.int64)
    return Target(indptr, indices, np.ones(len(indices)), None if counted.all() else counted)


def dense_entries(y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what is not 0 in a matrix, as CSR."""
    n_rows, n_classes = y.shape
    at = np.flatnonzero(y)
    indptr = np.searchsorted(at, np.arange(n_rows + 1) * n_classes).astype(np.int64)
    return indptr, at % max(n_classes, 1), y.reshape(-1)[at]


def _sparse(target: Any, shape: tuple[int, int], ndim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A SciPy sparse matrix or array, known by what it offers: SciPy itself is not needed here."""
    if ndim != 2:
        checks.fail(ValueError, "scores", "a matrix beside a sparse target", f"{ndim} axes")
    if target.shape != shape:
        checks.fail(ValueError, "the shape of target", f"{shape} for a sparse matrix", target.shape)
    csr = target.tocsr()
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    data, indptr, indices = csr.data, csr.indptr, csr.indices
    if (data == 0).any():
        kept = data != 0
        indptr = np.concatenate([[0], np.cumsum(kept)])[indptr]
        data, indices = data[kept], indices[kept]
    return indptr.astype(np.int64), indices.astype(np.int64), data


def shares(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, *, ignore_empty: bool, even: str, eps: float | None
) -> Target:
    """Return the target that the nonzero entries of a matrix are, given as CSR."""
    size = np.diff(indptr)
    rows = np.repeat(np.arange(len(size)), size)
    wrong = ~(data > 0)  # NaN too
    if wrong.any():
        checks.fail(ValueError, "target", "0 or 1, or shares that are not negative", _at(data, rows, wrong))
    empty = size == 0
    if empty.any() and not ignore_empty:
        condition = "a row with at least one label (ignore_empty=True leaves rows without labels out)"
        checks.fail(ValueError, f"target row {np.argmax(empty)}", condition, "none")
    counted = ~empty if empty.any() else None
    share = 1.0 / np.maximum(size, 1)
    if (data == 1).all():
        return Target(indptr, indices, share[rows], counted)
    eta = data.astype(np.float64)
    if eps is None:
        eps = float(np.finfo(data.dtype).eps) if data.dtype.kind == "f" else 0.0
    slack = math.sqrt(eps)
    total = np.bincount(rows, eta, len(size))
    wrong = ~(abs(total - 1) <= slack) & ~empty
    if wrong.any():
        got = f"row {np.argmax(wrong)} with the sum {total[wrong][0]:g}"
        checks.fail(ValueError, "target", "0 or 1 in every entry, or rows that sum to 1", got)
    uniform = bool((abs(eta - share[rows]) <= slack * share[rows]).all())
    if even and not uniform:
        checks.uneven_target(even, _at(data, rows, abs(eta - share[rows]) > slack * share[rows]))
    return Target(indptr, indices, share[rows] if uniform else eta / total[rows], counted)


def _at(data: np.ndarray, rows: np.ndarray, wrong: np.ndarray) -> str:
    return f"{data[wrong][0]} in row {rows[wrong][0]}"
