"""The paper's synthetic documents (App. "Synthetic dataset creation"): bags of words drawn from a mixture of labels.

The model is scikit-learn's `make_multilabel_classification`, with the number of labels drawn as the paper's three
settings say and documents of one length.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import SupportsIndex

import numpy as np

from sparsegen._table.checks import fail

PRIORS = ("uniform", "drawn")
RANGE_CENTRE = 5  # the paper's second setting: N on {5 - r, ..., 5 + r}


@dataclass(frozen=True, eq=False)
class Documents:
    """Documents and the distributions they were drawn from."""

    X: np.ndarray  # (n, vocabulary) how often each word occurs
    Y: np.ndarray  # (n, n_labels) int64, 1 where the document has the label
    word_distributions: np.ndarray  # (n_labels, vocabulary) p(word | label), rows sum to 1
    label_prior: np.ndarray  # (n_labels,) what labels were drawn by

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.X)

    def take(self, rows: np.ndarray) -> Documents:
        """These documents only."""
        return replace(self, X=self.X[rows], Y=self.Y[rows])


def make_documents(
    n_documents: int = 5000,
    *,
    labels: str = "mean",
    value: float,
    length: int = 2000,
    n_labels: int = 10,
    vocabulary: int = 10,
    prior: str = "uniform",
    seed: int,
) -> Documents:
    """Draw multilabel documents as the paper does.

    Of each label c, p(word | c) is uniform numbers divided by their sum, as in scikit-learn. A document draws its
    number of labels N, then N labels without replacement, then `length` words from the equal mixture of their
    distributions.

    Parameters
    ----------
    n_documents : int, default 5000
    labels : {"mean", "range", "poisson"}, default "mean"
        The law of N; see `label_count_law`.
    value : number
        The mean mu, the range r, or the mean of the Poisson law.
    length : int, default 2000
        Words of every document, exactly. (scikit-learn draws the length from a Poisson law; the paper fixes it.)
    n_labels, vocabulary : int, default 10
    prior : {"uniform", "drawn"}, default "uniform"
        Whether labels are equally likely, which is how we read "sample N labels without replacement", or drawn one
        after the other by a random p(label), as in scikit-learn.
    seed : int
        The same seed gives the same documents. The word distributions are drawn first, so they depend on the seed and
        the two sizes alone: settings of one seed differ in nothing else.

    Returns
    -------
    Documents

    Examples
    --------
    >>> documents = make_documents(400, labels="mean", value=2, length=100, seed=0)
    >>> documents.X.shape, set(documents.X.sum(axis=1).tolist())
    ((400, 10), {100})
    >>> set(documents.Y.sum(axis=1).tolist())
    {1, 2, 3}
    """
    for name, size in (("n_documents", n_documents), ("length", length), ("vocabulary", vocabulary)):
        _whole(name, size, 1)
    if prior not in PRIORS:
        fail(ValueError, "prior", "'uniform' or 'drawn'", repr(prior))
    law = label_count_law(labels, value, n_labels)
    rng = np.random.default_rng(_whole("seed", seed, 0))
    drawn = rng.uniform(size=n_labels)  # drawn in both cases, so the words do not depend on it
    words = rng.uniform(size=(n_labels, vocabulary))
    words /= words.sum(axis=1, keepdims=True)
    p_label = drawn / drawn.sum() if prior == "drawn" else np.full(n_labels, 1 / n_labels)
    counts = rng.choice(n_labels, size=n_documents, p=law) + 1
    Y = _draw_labels(rng, counts, p_label)
    mixture = Y @ words / counts[:, None]  # (n_documents, vocabulary)
    return Documents(rng.multinomial(length, mixture), Y, words, p_label)


def label_count_law(labels: str, value: float, n_labels: int = 10) -> np.ndarray:
    """Probabilities of N = 1, ..., n_labels in one of the paper's settings.

    "mean"
        uniform on {mu - 1, mu, mu + 1}, mu = `value` from 2 to n_labels - 1
    "range"
        uniform on {5 - r, ..., 5 + r}, r = `value` at least 0
    "poisson"
        Poisson with mean `value` (the paper: 5)

    Numbers outside 1, ..., n_labels are drawn again, that is, the law is the conditional one.

    Examples
    --------
    >>> label_count_law("range", 1, n_labels=6).round(3).tolist()
    [0.0, 0.0, 0.0, 0.333, 0.333, 0.333]
    """
    _whole("n_labels", n_labels, 1)
    counts = np.arange(1, n_labels + 1)
    if labels == "poisson":
        weights = _poisson_weights(counts, value)
    elif labels == "mean":
        weights = abs(counts - _whole("value", value, 2, n_labels - 1)) <= 1
    elif labels == "range":
        weights = abs(counts - RANGE_CENTRE) <= _whole("value", value, 0)
    else:
        fail(ValueError, "labels", "one of 'mean', 'range', 'poisson'", repr(labels))
    if not weights.any():
        fail(ValueError, "n_labels", f"at least {RANGE_CENTRE - int(value)}", n_labels)
    return weights / weights.sum()


def split(documents: Documents, fractions: Sequence[float] = (0.5, 0.2, 0.3), seed: int = 0) -> tuple[Documents, ...]:
    """Deal the documents at random into parts of the given fractions: the paper's train, validation and test.

    Examples
    --------
    >>> documents = make_documents(10, labels="poisson", value=5, length=20, seed=0)
    >>> [len(part) for part in split(documents, seed=1)]
    [5, 2, 3]
    """
    if not fractions or not all(f > 0 for f in fractions) or abs(sum(fractions) - 1) > 1e-9:
        fail(ValueError, "fractions", "positive numbers that sum to 1", fractions)
    # A stream of its own, so that the deal does not repeat the numbers that made documents of the same seed.
    order = np.random.default_rng([_whole("seed", seed, 0), 1]).permutation(len(documents))
    ends = np.rint(np.cumsum(fractions) * len(documents)).astype(int)
    return tuple(documents.take(rows) for rows in np.split(order, ends[:-1]))


def _poisson_weights(counts: np.ndarray, mean: float) -> np.ndarray:
    """Poisson probabilities up to a factor, through logarithms so that no mean underflows all of them."""
    if not (isinstance(mean, (int, float, np.number)) and 0 < mean < math.inf):
        fail(ValueError, "value", "a positive number for labels 'poisson'", repr(mean))
    logs = counts * math.log(mean) - np.array([math.lgamma(n + 1) for n in counts])
    return np.exp(logs - logs.max())


def _draw_labels(rng: np.random.Generator, counts: np.ndarray, p_label: np.ndarray) -> np.ndarray:
    """Indicators with `counts` labels a row, drawn one after the other by `p_label` without replacement.

    The order in which independent exponential clocks of rates `p_label` ring is the order of such draws, so the first
    N to ring are the labels, for all rows at once.
    """
    clocks = rng.exponential(size=(len(counts), len(p_label))) / p_label
    place = clocks.argsort(axis=1).argsort(axis=1)
    return (place < counts[:, None]).astype(np.int64)


def _whole(name: str, value: object, low: int, high: int | None = None) -> int:
    """The value as an integer from `low` to `high`, or refuse it."""
    condition = f"an integer at least {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        fail(TypeError, name, condition, repr(value))
    number = operator.index(value)
    if number < low or (high is not None and number > high):
        fail(ValueError, name, condition, number)
    return number
