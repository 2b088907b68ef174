"""Rows of features and labels: merged where they are equal, dealt into folds, walked in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

BLOCK_ENTRIES = 1 << 24  # scores that are in memory at a time


class Rows(NamedTuple):
    """Training rows: features, label sets as a CSR indicator, and weights."""

    X: Any
    Y: sp.csr_array
    weight: np.ndarray

    def kept(self) -> np.ndarray:
        """Tell which rows take part: those with a label and a weight."""
        return (self.weight > 0) & (np.diff(self.Y.indptr) > 0)

    def taking_part(self) -> Rows:
        """Return those rows."""
        kept = self.kept()
        return self if kept.all() else self.take(np.flatnonzero(kept))

    def take(self, at: np.ndarray) -> Rows:
        """Return some of the rows."""
        return Rows(self.X[at], self.Y[at], self.weight[at])


def row_bytes(matrix: Any, row: int) -> bytes:
    """Return what tells a row of a dense array or a CSR matrix from others."""
    if not sp.issparse(matrix):
        return matrix[row].tobytes()
    at = slice(matrix.indptr[row], matrix.indptr[row + 1])
    return matrix.indices[at].astype(np.int64).tobytes() + matrix.data[at].tobytes()


def merged(rows: Rows) -> Rows:
    """Merge equal rows and bring them in an order of their own.

    The fit then has the same bits for any order of the rows, and for a weight of 2 or a row that is given twice.
    """
    X, Y, weight = rows
    if sp.issparse(X) and not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    names = [blake2b(row_bytes(X, i) + b"|" + row_bytes(Y, i), digest_size=16).digest() for i in range(X.shape[0])]
    _, first, at = np.unique(np.array(names, "S16"), return_index=True, return_inverse=True)
    return Rows(X[first], Y[first], np.bincount(at, weight, len(first)))


def squares(X: Any) -> np.ndarray:
    """Return the squared length of each row."""
    if sp.issparse(X):
        return np.asarray(X.multiply(X).sum(axis=1), np.float64).ravel()
    return np.einsum("ij,ij->i", X, X)


def blocks(n_rows: int, n_classes: int, entries: int = BLOCK_ENTRIES) -> Iterator[slice]:
    """Return slices of rows whose scores fit into so many entries.

    >>> [(at.start, at.stop) for at in blocks(5, 10, entries=25)]
    [(0, 2), (2, 4), (4, 5)]
    """
    step = max(1, entries // max(1, n_classes))
    return (slice(at, min(at + step, n_rows)) for at in range(0, n_rows, step))


def part(X: Any, at: slice) -> Any:
    """Return some rows; all of them are not copied."""
    return X if at == slice(0, X.shape[0]) else X[at]


def scores(X: Any, W: np.ndarray, constant: float = 1.0) -> np.ndarray:
    """Return the scores (n, K); the last weights are those of a feature that is constant, unless that is 0."""
    if not constant:
        return np.ascontiguousarray(X @ W)
    z = X @ W[:-1]
    z += W[-1] if constant == 1 else constant * W[-1]
    return np.ascontiguousarray(z)
