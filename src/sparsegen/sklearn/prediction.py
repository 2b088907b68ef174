"""What a fitted classifier answers: coefficients, scores, probabilities and label sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted, validate_data

from sparsegen.sklearn.decisions import Decision
from sparsegen.sklearn.rows import blocks, part, scores


class Prediction:
    """The half of the classifier that comes after `fit`."""

    classes_: np.ndarray
    _W: np.ndarray  # (d + 1, K), the intercept last; with a column for the empty set if that is learned
    _form: str  # of y: "indicator", "sparse", "classes" or "sets"
    _answer: Decision

    def _shown(self) -> np.ndarray:
        if not hasattr(self, "_W"):
            raise AttributeError("coef_ and intercept_ are there when the model is fitted")
        if self._is_binary():
            return self._W[:, 1:] - self._W[:, :1]
        return self._W[:, : len(self.classes_)]

    @property
    def coef_(self) -> np.ndarray:
        """Weights (K, d)."""
        return self._shown()[:-1].T

    @property
    def intercept_(self) -> np.ndarray:
        """Intercepts (K,)."""
        return self._shown()[-1]

    def _is_binary(self) -> bool:
        return self._form == "classes" and len(self.classes_) == 2

    def _blocks(self, X: Any, entries: int = 1 << 22) -> Iterator[tuple[slice, np.ndarray]]:
        """The scores of checked rows, by blocks."""
        for at in blocks(X.shape[0], self._W.shape[1], entries):
            yield at, scores(part(X, at), self._W)

    def _checked(self, X: Any) -> Any:
        check_is_fitted(self, "_W")
        return validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the scores (n, K) above what a label of their row needs: labels are predicted where it is positive.

        For class labels the scores as they are; for two of them their difference, (n,).
        """
        z = scores(self._checked(X), self._W)
        if self._form == "classes":
            return z[:, 1] - z[:, 0] if self._is_binary() else z
        return self._answer.margins(z)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the map of the scores (n, K): rows sum to 1, with exact zeros but for softmax.

        With ``empty="predict"`` what is missing to 1 is the probability of the empty set.
        """
        z = scores(self._checked(X), self._W)
        return self._answer.probabilities(z)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithm of :meth:`predict_proba`: -inf where that is 0."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def _decide(self, z: np.ndarray) -> np.ndarray:
        """The answer to each row of scores: its class, or which labels it has."""
        return np.argmax(z, axis=1) if self._form == "classes" else self._answer.labels(z)

    def predict(self, X: Any) -> Any:
        """Return the label sets, in the form `y` had."""
        X = self._checked(X)
        if self._form == "indicator":
            on = np.empty((X.shape[0], len(self.classes_)), np.int64)
            for at, z in self._blocks(X):
                on[at] = self._decide(z)
            return on
        if self._form == "classes":
            return self.classes_[np.concatenate([self._decide(z) for _, z in self._blocks(X)])]
        Y = sp.vstack([sp.csr_array(self._decide(z), dtype=np.int64) for _, z in self._blocks(X)], format="csr")
        if self._form == "sparse":
            return Y
        return [tuple(self.classes_[Y.indices[a:b]]) for a, b in zip(Y.indptr, Y.indptr[1:])]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows whose labels are predicted exactly, for `y` in any form that `fit` takes.

        Labels that were not there in `fit` count as missed.
        """
        check_is_fitted(self, "_W")
        if self._form != "sets":
            return float(accuracy_score(y, self.predict(X), sample_weight=sample_weight))
        right = [set(given) == set(found) for given, found in zip(y, self.predict(X), strict=True)]
        return float(np.average(right, weights=sample_weight))
