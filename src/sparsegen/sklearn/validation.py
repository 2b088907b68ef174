"""Penalty and dial at prediction, chosen together on scores of rows that a model was not fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.model_selection import check_cv

from sparsegen.sklearn import dials
from sparsegen.sklearn.decisions import Decision
from sparsegen.sklearn.rows import Rows, blocks, part, scores
from sparsegen.sklearn.training import Training

FOLDS = 5
ONE_PART = 1 << 22  # scores above which one part is held out instead
ROUGH = 1e-2  # gap of the fits that only choose
MANY = 1 << 22  # keys, 50 MB of them, beyond which those that could only matter to a micro F1 below FAINT_F1 are let go
WORSE = 0.98  # of the best score so far: after that finer penalties are not tried
PATIENCE = 2  # nor after so many that are not better

Split = tuple[np.ndarray, np.ndarray]


class Choice(NamedTuple):
    """What was chosen, and the scores of all that was tried."""

    alpha: float
    decision: Decision
    alphas: tuple[float, ...]
    scores: tuple[float, ...]


def dealt(cv: Any, rows: Rows, taking: Rows) -> tuple[Rows, list[Split]]:
    """Return the rows that are dealt, and for each fold those to fit to and those to score.

    A number of folds is dealt of the rows that take part with equal ones `merged`, which stand in the order of a hash
    of theirs: no shuffling is needed, and the folds are the same for any order of the rows. A splitter is shown all.
    """
    if cv is not None and not isinstance(cv, (int, np.integer)):
        kept = rows.kept()
        y = rows.Y.toarray() if rows.Y.shape[1] < 1000 else np.zeros(len(kept))  # some splitters look at it
        parts = check_cv(cv).split(rows.X, y)
        return rows, [(train[kept[train]], test[kept[test]]) for train, test in parts]
    n = len(taking.weight)
    large = cv is None and n * taking.Y.shape[1] > ONE_PART
    folds = min(FOLDS if cv is None else int(cv), n)
    tests = [np.arange(at, n, folds) for at in range(1 if large else folds)]
    return taking, [(np.setdiff1d(np.arange(n), test), test) for test in tests]


@dataclass(frozen=True)
class Search:
    """What is to be found: the penalty, and the dial of a decision if there is one to choose."""

    training: Training
    given: Decision
    dial: str  # "threshold", "radius", or "" where the decision is given
    metric: str
    one_label: bool  # is the most probable class the answer?

    @property
    def counts(self) -> bool:
        """Is the metric one that many predictions can only spoil?"""
        return self.one_label or self.metric in dials.COUNTED

    def keys(self, X: Any, W: np.ndarray, most: int) -> sp.csr_array:
        """Return what the dial cuts, by blocks of rows; where the decision is given, its labels, above any cut.

        Where keys are more than MANY, no more than the `most` largest are kept.
        """
        W, found = np.ascontiguousarray(W), []
        radius = self.training.radius(W.shape[1])
        for at in blocks(X.shape[0], W.shape[1]):
            z = scores(part(X, at), W, self.training.constant)
            if self.dial:
                found.append(self.given.keys(z, self.dial, radius))
            else:
                on = dials.tops(z) if self.one_label else self.given.labels(z)
                found.append(sp.csr_array(np.where(on, np.inf, 0.0)))
            if sum(each.nnz for each in found) > MANY and self.counts:
                found = [dials.foremost(sp.vstack(found, format="csr"), most)]
        return sp.vstack(found, format="csr") if len(found) > 1 else found[0]

    def cut(self, held: Rows, keys: sp.csr_array) -> dials.Cut:
        """Return the best cut of keys."""
        radius = self.training.radius(held.Y.shape[1])
        floor, ceiling = (-dials.WIDEST * radius, 0.0) if self.dial == "radius" else (0.0, 1.0)
        metric = "f1_micro" if self.one_label else self.metric
        return dials.best_cut(held.Y[:, : keys.shape[1]], keys, metric, held.weight, floor=floor, ceiling=ceiling)

    def decided(self, cut: float, n_classes: int) -> Decision:
        """Return the decision with its dial at a cut."""
        if self.dial == "threshold":
            return replace(self.given, threshold=cut)
        if self.dial == "radius":
            return replace(self.given, radius=max(-cut, 1e-9 * self.training.radius(n_classes)))
        return self.given


def choose(search: Search, rows: Rows, parts: Sequence[Split], alphas: Sequence[float]) -> Choice:
    """Return the penalty and the decision with the best score on rows that were held out."""
    fitters = [search.training.fitter(rows.take(train)) for train, _ in parts]
    held = [rows.take(test) for _, test in parts]
    together = Rows(None, sp.vstack([each.Y for each in held], format="csr"), np.concatenate([h.weight for h in held]))
    most = dials.enough(together.Y, together.weight)
    tried: list[dials.Cut] = []
    for alpha in alphas:
        fits = (fitter.fit(alpha, ROUGH, search.training.max_iter) for fitter in fitters)
        keys = [search.keys(each.X, fit.weights, most) for each, fit in zip(held, fits)]
        tried.append(search.cut(together, sp.vstack(keys, format="csr") if len(keys) > 1 else keys[0]))
        del keys  # they are as large as the weights
        best = int(np.argmax([cut.score for cut in tried]))
        if tried[-1].score < WORSE * tried[best].score or len(tried) - 1 - best >= PATIENCE:
            break
    decision = search.decided(tried[best].at, rows.Y.shape[1])
    return Choice(alphas[best], decision, tuple(alphas[: len(tried)]), tuple(cut.score for cut in tried))
