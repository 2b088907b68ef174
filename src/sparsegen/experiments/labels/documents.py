"""Documents with label sets as sparse matrices: read from a file, or drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from sparsegen._table.checks import fail

WORDS_PER_LABEL, NOISE = 4, 6


class Documents(NamedTuple):
    """Rows of features, and the labels of each."""

    X: sp.csr_array
    Y: sp.csr_array


def _csr(rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int]) -> sp.csr_array:
    made = sp.csr_array((np.ones(len(rows), np.float32), (rows, cols)), shape=shape)
    made.sum_duplicates()
    made.data[:] = 1.0
    return made


def _unit_rows(X: sp.csr_array) -> sp.csr_array:
    norms = np.sqrt(np.add.reduceat(np.append(X.data**2, 0.0), X.indptr[:-1]) if X.nnz else np.zeros(X.shape[0]))
    size = np.repeat(np.where(norms > 0, norms, 1.0), np.diff(X.indptr))
    return sp.csr_array((X.data / size.astype(np.float32), X.indices, X.indptr), shape=X.shape)


def drawn(n: int, features: int, labels: int, seed: int = 0) -> Documents:
    """Draw documents: labels by Zipf's law, each with words of its own among words of no meaning.

    Parameters
    ----------
    n, features, labels : int
        Documents, words and labels there are.
    seed : int
        The same documents for the same seed. Words of a label do not depend on it.

    Examples
    --------
    >>> docs = drawn(100, 50, 1000)
    >>> docs.X.shape, docs.Y.shape, bool((docs.Y.sum(1) > 0).all())
    ((100, 50), (100, 1000), True)
    """
    draw = np.random.default_rng(seed)
    sizes = 1 + draw.poisson(2.0, n)
    rows = np.repeat(np.arange(n), sizes)
    # Zipf's law without a table: the logarithm of the rank is uniform.
    chosen = np.minimum(np.exp(draw.random(len(rows)) * np.log(labels + 1)).astype(np.int64) - 1, labels - 1)
    words = (chosen[:, None] * 2654435761 + np.arange(1, WORDS_PER_LABEL + 1) * 40503) % 4294967291 % features
    noise = draw.integers(features, size=(n, NOISE))
    at = np.concatenate([np.repeat(rows, WORDS_PER_LABEL), np.repeat(np.arange(n), NOISE)])
    X = _csr(at, np.concatenate([words.ravel(), noise.ravel()]), (n, features))
    return Documents(_unit_rows(X), _csr(rows, chosen, (n, labels)))


def read(path: Path) -> Documents:
    """Read documents in the format of the extreme classification repository.

    The first line has the numbers of documents, features and labels; each other line labels with commas between them, a
    space, and features as ``index:value``. Documents without a label are left out.

    Parameters
    ----------
    path : Path
        The file.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "train.txt")
    ...     _ = path.write_text("2 3 5\\n1,4 0:1 2:1\\n 1:2\\n")
    ...     docs = read(path)
    >>> docs.Y.toarray().tolist(), docs.X.shape
    ([[0.0, 1.0, 0.0, 0.0, 1.0]], (1, 3))
    """
    with path.open("rb") as file:
        lines = _texts(file, path.name)
        sizes = next(lines, "").split()
        if len(sizes) != 3 or not all(number.isdigit() for number in sizes):
            fail(ValueError, f"the first line of {path.name}", "the numbers of documents, features and labels", sizes)
        _, features, labels = (int(number) for number in sizes)
        columns: tuple[list[int], list[float], list[int]] = ([], [], [])
        ends: list[tuple[int, int]] = [(0, 0)]
        for number, line in enumerate(lines, 2):
            _read_line(line, f"line {number} of {path.name}", columns, ends)
    words, values, marks = columns
    if (most := max((features, labels, *words, *marks))) > np.iinfo(np.int64).max:
        fail(ValueError, f"the numbers in {path.name}", "below 2^63", f"one of {len(str(most))} digits")
    largest = float(np.finfo(np.float32).max)
    if not all(abs(value) <= largest for value in values):  # NaN is not either
        fail(ValueError, f"the values in {path.name}", "finite in float32", max(map(abs, values)))
    xptr, yptr = np.array(ends).T
    X = sp.csr_array((np.array(values, np.float32), np.array(words), xptr), shape=(len(ends) - 1, features))
    Y = sp.csr_array((np.ones(len(marks), np.float32), np.array(marks), yptr), shape=(len(ends) - 1, labels))
    for matrix, name in ((X, "features"), (Y, "labels")):
        if matrix.nnz and (matrix.indices.max() >= matrix.shape[1] or matrix.indices.min() < 0):
            fail(ValueError, f"the {name} in {path.name}", f"from 0 to {matrix.shape[1] - 1}", matrix.indices.max())
        matrix.sum_duplicates()
    Y.data[:] = 1.0
    return Documents(_unit_rows(X), Y)


def _texts(file: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines of a file, of which each must be text."""
    for number, line in enumerate(file, 1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            fail(ValueError, f"line {number} of {name}", "text in UTF-8", error.reason)


def _read_line(
    line: str, where: str, columns: tuple[list[int], list[float], list[int]], ends: list[tuple[int, int]]
) -> None:
    words, values, marks = columns
    labels, _, rest = line.rstrip("\n").partition(" ")
    if not labels:
        return
    try:
        marks.extend(int(label) for label in labels.split(","))
        for pair in rest.split():
            word, value = pair.split(":")
            words.append(int(word))
            values.append(float(value))
    except ValueError:
        fail(ValueError, where, "labels with commas, then features as index:value", repr(line[:40]))
    ends.append((len(words), len(marks)))
