"""The paper's four pairs of a map and a loss for multilabel learning, and how their controls are tuned.

A linear model is trained with the loss; at test time the map is applied to its scores, and the labels are the nonzero
entries. Softmax has none, so its labels are those above a threshold p0. q of sparsehourglass and p0 of softmax are
tuned on validation data, as in the paper.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from sparsegen.sklearn import SparseMultilabelClassifier


@dataclass(frozen=True)
class Pair:
    """A map, the loss it is trained with, and the control that is tuned."""

    name: str
    mapping: str
    loss: str
    tunes: str = ""


PAIRS: dict[str, Pair] = {
    pair.name: pair
    for pair in (
        Pair("softmax+log", "softmax", "log", "p0"),
        Pair("sparsemax+huber", "sparsemax", "huber"),
        Pair("sparsemax+hinge", "sparsemax", "hinge"),
        Pair("sparsehg+hinge", "sparsehourglass", "hinge", "q"),
    )
}


class Scores(NamedTuple):
    """What the paper reports of a prediction."""

    f1: float
    jsd: float
    support: float
    """Mean number of nonzero probabilities; for softmax, all of them."""
    labels: float
    """Mean number of labels that are predicted."""


def model(pair: str, **parameters: Any) -> SparseMultilabelClassifier:
    """Make the classifier of a pair; the threshold of softmax is set from outside.

    >>> made = model("sparsemax+huber", alpha=0.1)
    >>> made.mapping, made.loss, made.threshold
    ('sparsemax', 'huber', 0.0)
    """
    from sparsegen.sklearn import SparseMultilabelClassifier

    chosen = PAIRS[pair]
    # The paper's way, so that nothing is chosen in `fit`: labels are the support, whose dial is that of the loss. For
    # softmax any number saves the search for one.
    threshold = 0.5 if chosen.tunes == "p0" else 0.0
    fixed: dict[str, Any] = {"threshold": threshold, "intercept_scaling": 1.0, "solver": "lbfgs", "max_iter": 10_000}
    return SparseMultilabelClassifier(mapping=chosen.mapping, loss=chosen.loss, **fixed, **parameters)


def trained(model: SparseMultilabelClassifier, X: Any, Y: Any) -> SparseMultilabelClassifier:
    """Fit a model. That one answer for all rows can be its optimum is a result here, not a reason to warn."""
    from sparsegen.sklearn import ConstantFitWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantFitWarning)
        return model.fit(X, Y)


def threshold_for(pair: str, Y: Any, P: Any) -> float:
    """Return the p0 of softmax with the best micro F1 on these rows; 0 for maps that need none."""
    from sparsegen.sklearn import best_threshold

    return best_threshold(Y, P) if PAIRS[pair].tunes == "p0" else 0.0


def score(Y: Any, P: np.ndarray, p0: float = 0.0) -> Scores:
    """Score probabilities `P` beside the label sets `Y`.

    >>> score(np.array([[1, 1, 0]]), np.array([[0.5, 0.5, 0.0]]))
    Scores(f1=1.0, jsd=0.0, support=2.0, labels=2.0)
    """
    from scipy import sparse

    from sparsegen.experiments.multilabel.metrics import jensen_shannon, mean_support, micro_f1

    eta = sparse.csr_array(Y, dtype=np.float64)
    eta = eta.multiply(1 / eta.sum(axis=1)[:, None]).tocsr()
    on = np.greater(P, p0)
    return Scores(micro_f1(Y, on), jensen_shannon(eta, P), mean_support(P), float(on.sum(axis=1).mean()))
