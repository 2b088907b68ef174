"""A scikit-learn classifier that predicts label sets without a threshold."""

from __future__ import annotations

import warnings
from hashlib import blake2b
from numbers import Integral, Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

import sparsegen
from sparsegen._table.checks import fail
from sparsegen._table.losses import LOSSES as TABLE
from sparsegen._table.maps import MAPS
from sparsegen._table.targets import Target, read
from sparsegen.sklearn import solver
from sparsegen.sklearn.label_sets import Labels, read_labels

# Its `alpha` is the strength of the regularization, as everywhere in scikit-learn.
_TRAINED = [row for row in TABLE.values() if row.control != "alpha"]


def _losses_of(mapping: str) -> dict[str, str]:
    """The losses that train a map, by their form; a hinge loss comes first."""
    found = {row.form: row.name for row in _TRAINED if row.mapping == mapping}
    return dict(sorted(found.items(), key=lambda item: item[0] != "hinge"))


# The loss of each map under each name; "auto" is the first. Sparsemax is sparsegen_lin with its dial at 0.
LOSSES = {"sparsemax": _losses_of("sparsegen_lin"), **{row.mapping: _losses_of(row.mapping) for row in _TRAINED}}
BATCH = 64  # rows of one step of partial_fit
RATE = 0.5  # of its steps


class ConstantFitWarning(UserWarning):
    """A fitted model has one answer for all rows it was fitted to, though their labels differ."""


def best_threshold(Y: Any, P: Any) -> float:
    """Return the p0 for which the labels ``P > p0`` have the best micro F1, over all thresholds there are.

    Parameters
    ----------
    Y : array or sparse matrix (n, K)
        Label sets, as an indicator.
    P : array (n, K)
        Probabilities.

    Examples
    --------
    >>> best_threshold([[1, 0, 1], [0, 1, 0]], [[0.5, 0.1, 0.4], [0.15, 0.6, 0.25]])
    0.325
    """
    true = (Y.toarray() if sp.issparse(Y) else np.asarray(Y)).astype(bool).ravel()
    p = np.asarray(P, np.float64).ravel()
    order = np.argsort(-p, kind="stable")
    p, hits = p[order], np.cumsum(true[order])
    f1 = 2 * hits / (np.arange(1, len(p) + 1) + true.sum())
    cut = np.append(p[1:] < p[:-1], True)  # a threshold lies between different numbers only
    at = int(np.argmax(np.where(cut, f1, -1.0)))
    return float((p[at] + (p[at + 1] if at + 1 < len(p) else 0.0)) / 2)


def _row_bytes(matrix: Any, row: int) -> bytes:
    if not sp.issparse(matrix):
        return matrix[row].tobytes()
    at = slice(matrix.indptr[row], matrix.indptr[row + 1])
    return matrix.indices[at].astype(np.int64).tobytes() + matrix.data[at].tobytes()


def _merged(X: Any, Y: sp.csr_array, weight: np.ndarray) -> tuple[Any, sp.csr_array, np.ndarray]:
    """Merge equal rows and bring them in an order of their own.

    The fit then has the same bits for any order of the rows, and for a weight of 2 or a row that is given twice.
    """
    if sp.issparse(X) and not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    rows = [blake2b(_row_bytes(X, i) + b"|" + _row_bytes(Y, i), digest_size=16).digest() for i in range(X.shape[0])]
    _, first, at = np.unique(np.array(rows, "S16"), return_index=True, return_inverse=True)
    return X[first], Y[first], np.bincount(at, weight, len(first))


class SparseMultilabelClassifier(ClassifierMixin, BaseEstimator):
    r"""Linear classifier for label sets: trained with a convex loss, it predicts the nonzero entries of a sparse map.

    .. math:: \min_{W} \frac{1}{\sum_i s_i} \sum_i s_i L(W x_i, y_i) + \frac{\alpha}{2} \|W\|^2

    The intercept is the weight of a constant feature and is penalised like the others: the dual of the problem is then
    a closed form, and :attr:`gap_` tells how far from the optimum the model can be. Standardise the features.

    Parameters
    ----------
    mapping : {"sparsehourglass", "sparsemax", "sparsegen_lin", "softmax"}
        From scores to probabilities. Softmax has no zeros: labels are those above a threshold.
    loss : {"auto", "hinge", "huber", "log"}
        "hinge" for the sparse maps, "huber" for sparsemax and sparsegen_lin, "log" for softmax. "auto": hinge, or log.
    lam : float, below 1
        Control of sparsegen_lin.
    q : float, positive
        Control of sparsehourglass.
    alpha : float, positive
        Penalty.
    fit_intercept : bool
        Add a constant feature.
    threshold : "auto" or float
        Predict labels with a probability above it. "auto" is 0 for the sparse maps, whose zeros say which labels are
        out; for softmax it holds a part of the rows out, takes the threshold with the best micro F1 there, and then
        fits to all rows. With one class label a row there is none: the most probable class is predicted.
    validation_fraction : float
        Size of that part.
    empty : {"ignore", "raise"}
        What to do with rows without labels: leave them out of the training, or refuse them. No map returns the empty
        set.
    tol : float
        Stop when the duality gap is at most this share of the objective.
    max_iter : int
        Iterations after which to stop with a warning.
    warm_start : bool
        Start from the last fit's coefficients, if shapes agree.
    random_state : int, RandomState or None
        For the rows that are held out, and their order in partial_fit.

    Attributes
    ----------
    coef_ : array (K, d)
        With two class labels (1, d): what one class has above the other, as everywhere in scikit-learn.
    intercept_ : array (K,)
        With two class labels (1,).
    classes_ : array (K,)
        Labels of the columns; for an indicator, their numbers.
    gap_ : float
        Relative duality gap that was reached.
    objective_, dual_objective_ : float
        Value of the problem and the lower bound on its minimum.
    threshold_ : float
        Threshold above which a label is predicted.
    n_iter_ : int
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    `y` may be an indicator (n, K), dense or sparse; class labels (n,), one for each row (a single column counts as
    such); or a sequence of label sets of any type (tuples, sets, lists), as MultiLabelBinarizer takes them. predict
    answers in the same form; for one class label a row it gives the most probable class. A label that no training row
    has is learned from its absence alone. `score` is the share of rows whose whole label set is right; for micro F1 use
    ``scoring="f1_micro"`` with an indicator.

    Examples
    --------
    >>> from sparsegen.sklearn import SparseMultilabelClassifier
    >>> X = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.9], [0.9, 0.1], [0.9, 0.9]]
    >>> y = [("wind",), ("rain",), ("rain", "wind"), ("wind",), ("rain",), ("rain", "wind")]
    >>> model = SparseMultilabelClassifier(alpha=1e-3).fit(X, y)
    >>> model.predict([[0.1, 1.0], [1.0, 1.0]])
    [('wind',), ('rain', 'wind')]
    >>> model.predict_proba([[1.0, 1.0]]).round(2)
    array([[0.5, 0.5]])
    """

    _parameter_constraints: dict = {  # noqa: RUF012
        "mapping": [StrOptions(set(LOSSES))],
        "loss": [StrOptions({"auto", "hinge", "huber", "log"})],
        "lam": [Interval(Real, None, 1, closed="neither")],
        "q": [Interval(Real, 0, None, closed="right")],
        "alpha": [Interval(Real, 0, None, closed="neither")],
        "fit_intercept": ["boolean"],
        "threshold": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "empty": [StrOptions({"ignore", "raise"})],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
    }

    def __init__(
        self, mapping: str = "sparsehourglass", loss: str = "auto", *, lam: float = 0.0, q: float = 1.0,
        alpha: float = 1e-3, fit_intercept: bool = True, threshold: Any = "auto", validation_fraction: float = 0.2,
        empty: str = "ignore", tol: float = 1e-3, max_iter: int = 10_000, warm_start: bool = False,
        random_state: Any = None,
    ) -> None:  # fmt: skip
        self.mapping = mapping
        self.loss = loss
        self.lam = lam
        self.q = q
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.threshold = threshold
        self.validation_fraction = validation_fraction
        self.empty = empty
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn's tools may give to this estimator."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.input_tags.sparse = True
        return tags

    def _loss_name(self) -> str:
        losses = LOSSES[self.mapping]
        name = next(iter(losses)) if self.loss == "auto" else self.loss
        if name not in losses:
            fail(ValueError, f"the loss of {self.mapping}", "one of " + ", ".join(map(repr, losses)), repr(name))
        return losses[name]

    def _control(self, loss: str) -> float:
        if self.mapping == "sparsemax":
            return 0.0
        return float({"lam": self.lam, "q": self.q, "": 0.0}[TABLE[loss].control])

    def _check_controls(self) -> None:
        """Refuse a control of another map: a search over it would change nothing."""
        for name, value, unset in (
            ("lam", self.lam, 0.0),
            ("q", self.q, 1.0),
        ):
            if value != unset and name not in MAPS[self.mapping].controls:
                fail(ValueError, name, f"left at {unset:g} for mapping {self.mapping!r}, which has no {name}", value)

    def _problem(self, X: Any, Y: sp.csr_array, weight: np.ndarray) -> solver.Problem:
        """The rows that take part, as a problem for the solver."""
        kept = (weight > 0) & (np.diff(Y.indptr) > 0)
        if not kept.any():
            fail(ValueError, "y", "labels for at least one row of positive weight", "none")
        if not kept.all():
            X, Y, weight = X[kept], Y[kept], weight[kept]
        loss = self._loss_name()
        target: Target = read(Y, Y.shape)
        options = (loss, self._control(loss), float(self.alpha), weight, bool(self.fit_intercept))
        return solver.Problem(X, target, Y.shape[1], *options)

    def _start(self, shape: tuple[int, int]) -> np.ndarray | None:
        """The last fit's weights, if they are wanted and fit."""
        if not self.warm_start or not hasattr(self, "_W"):
            return None
        W = self._W if self.fit_intercept else self._W[:-1]
        return W.copy() if W.shape == shape else None

    def _solve(self, X: Any, Y: sp.csr_array, weight: np.ndarray) -> solver.Solution:
        problem = self._problem(*_merged(X, Y, weight))
        return solver.solve(problem, self._start(problem.shape), float(self.tol), int(self.max_iter))

    def _tune(self, X: Any, Y: sp.csr_array, weight: np.ndarray) -> float:
        """The threshold that was given, or the softmax's with the best micro F1 on rows that are held out."""
        if self.threshold != "auto":
            return float(self.threshold)
        if self.mapping != "softmax":
            return 0.0
        seen = np.flatnonzero((np.diff(Y.indptr) > 0) & (weight > 0))
        if len(seen) < 2:
            return 0.5
        train, rest = train_test_split(
            seen, test_size=self.validation_fraction, random_state=check_random_state(self.random_state)
        )
        part = self._solve(X[train], Y[train], weight[train])
        scores = X[rest] @ part.weights[: X.shape[1]] + (part.weights[-1] if self.fit_intercept else 0.0)
        return best_threshold(Y[rest], self._map(np.asarray(scores)))

    def _check(self, X: Any, y: Any, sample_weight: Any, reset: bool, classes: Any) -> tuple[Any, Labels, np.ndarray]:
        """Everything about the input that can be wrong; nothing of the estimator is changed but what `reset` names."""
        self._loss_name()
        self._check_controls()
        labels = read_labels(y, classes)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=reset)
        if X.shape[0] != labels.Y.shape[0]:
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: [{X.shape[0]}, {labels.Y.shape[0]}]"
            )
        if labels.form == "classes" and len(labels.classes) < 2:
            fail(ValueError, "y", "of at least two classes", f"one class, {labels.classes[0]!r}")
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        empty = np.diff(labels.Y.indptr) == 0
        if self.empty == "raise" and empty.any():
            condition = "a set of at least one label (empty='ignore' leaves such rows out)"
            fail(ValueError, f"row {np.argmax(empty)} of y", condition, "none")
        return X, labels, weight

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SparseMultilabelClassifier:
        """Fit the model to the optimum. Whatever fails leaves the estimator as it was.

        Parameters
        ----------
        X : array or sparse matrix (n, d)
        y : indicator (n, K), class labels (n,) or n label sets
        sample_weight : array (n,)
            Weights of the rows.
        """
        before = dict(self.__dict__)
        try:
            X, labels, weight = self._check(X, y, sample_weight, True, None)
            threshold = self._tune(X, labels.Y, weight) if labels.form != "classes" else 0.0
            found = self._solve(X, labels.Y, weight)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        self.classes_, self._form, self.threshold_ = labels.classes, labels.form, threshold
        self._keep(found.weights)
        self.gap_, self.objective_, self.dual_objective_ = found.gap, found.primal, found.dual
        self.n_iter_ = found.n_iter
        self.__dict__.pop("_stream", None)
        if not found.converged:
            warnings.warn(
                f"the optimum was not reached: after {found.n_iter} iterations the relative duality gap is "
                f"{found.gap:.1e}, more than tol = {self.tol:g}. Increase max_iter or alpha, or standardise the "
                "features.",
                ConvergenceWarning,
                stacklevel=2,
            )
        self._warn_if_constant(X, labels.Y, weight)
        return self

    def _warn_if_constant(self, X: Any, Y: sp.csr_array, weight: np.ndarray) -> None:
        """Say so if the model has one answer for all rows, whose labels differ: the optimum can be without weights."""
        seen = np.flatnonzero((np.diff(Y.indptr) > 0) & (weight > 0))
        first = _row_bytes(Y, int(seen[0]))
        if all(_row_bytes(Y, i) == first for i in seen.tolist()):
            return
        z = self._linear(X)[seen]
        # A threshold that was given is the caller's: then the model itself, its probabilities, must be the same.
        answers = self._decide(z) if self.threshold == "auto" else self._map(z).round(9)
        if (answers == answers[:1]).all():
            what = "label" if self._form == "classes" else "labels"
            why = "" if self._W.any() else " (all weights are 0)"
            warnings.warn(
                f"the fit predicts the same {what} for all {len(seen)} rows, whose labels differ{why}. Try "
                "loss='huber' with mapping='sparsemax', mapping='softmax', or a smaller alpha, and standardise the "
                "features.",
                ConstantFitWarning,
                stacklevel=3,
            )

    def _keep(self, W: np.ndarray) -> None:
        """Keep the weights (d + 1, K), and show them as scikit-learn does."""
        self._W = W.copy() if self.fit_intercept else np.vstack([W, np.zeros(W.shape[1])])
        shown = self._W[:, 1:] - self._W[:, :1] if self._is_binary() else self._W
        self.coef_, self.intercept_ = np.ascontiguousarray(shown[:-1].T), shown[-1].copy()

    def _is_binary(self) -> bool:
        return self._form == "classes" and len(self.classes_) == 2

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> SparseMultilabelClassifier:
        """Move the model by one pass over these rows: steps along subgradients, scaled by AdaGrad, averaged.

        The model after a stream is near the optimum, not at it, and has no gap. After `fit` it goes on from there.

        Parameters
        ----------
        classes : sequence
            All labels there will be, in the first call; for an indicator they may be left out.
        """
        before = dict(self.__dict__)
        try:
            first = not hasattr(self, "_W")
            known = (None if classes is None else np.asarray(classes)) if first else self.classes_
            if not first and classes is not None and not np.array_equal(classes, self.classes_):
                fail(ValueError, "classes", f"those of the first call, {list(self.classes_)}", list(classes))
            X, labels, weight = self._check(X, y, sample_weight, first, known)
            if first and classes is None and labels.form in ("classes", "sets"):
                fail(ValueError, "classes", "given in the first call of partial_fit", None)
            self._pass(X, labels, weight)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def _pass(self, X: Any, labels: Labels, weight: np.ndarray) -> None:
        d, K = X.shape[1], labels.Y.shape[1]
        if not hasattr(self, "_stream"):
            W = np.zeros((d + bool(self.fit_intercept), K))
            if hasattr(self, "_W"):
                W = self._W[: len(W)].copy()
            self._stream = {"W": W, "mean": W.copy(), "square": np.full_like(W, 1e-8), "t": 0}
            self.threshold_ = 0.0 if self.threshold == "auto" else float(self.threshold)
        state: dict[str, Any] = {key: np.array(value) for key, value in self._stream.items()}
        rows = np.flatnonzero((np.diff(labels.Y.indptr) > 0) & (weight > 0))
        order = check_random_state(self.random_state).permutation(rows)
        for start in range(0, len(order), BATCH):
            at = order[start : start + BATCH]
            problem = self._problem(X[at], labels.Y[at], weight[at])
            _, grad = problem.smoothed(state["W"].ravel(), 0.0)
            grad = grad.reshape(state["W"].shape)
            state["square"] += grad * grad
            state["W"] = state["W"] - RATE * grad / np.sqrt(state["square"])
            state["t"] = state["t"] + 1
            # Later steps count more, so that the average forgets a bad start.
            state["mean"] = state["mean"] + 2 * (state["W"] - state["mean"]) / (state["t"] + 1)
        self._stream = state
        self.classes_, self._form = labels.classes, labels.form
        self._keep(state["mean"])
        self.n_iter_ = int(state["t"])
        for name in ("gap_", "objective_", "dual_objective_"):
            self.__dict__.pop(name, None)

    def _map(self, z: np.ndarray, return_info: bool = False) -> Any:
        controls = {name: getattr(self, name) for name in MAPS[self.mapping].controls if hasattr(self, name)}
        return getattr(sparsegen, self.mapping)(z, **controls, return_info=return_info)

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self._linear(validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False))

    def _linear(self, X: Any) -> np.ndarray:
        return np.ascontiguousarray(X @ self._W[:-1] + self._W[-1])

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the scores (n, K) above the threshold of their row: labels are predicted where it is positive.

        For class labels the scores as they are; for two of them their difference, (n,).
        """
        z = self._scores(X)
        if self._form == "classes":
            return z[:, 1] - z[:, 0] if self._is_binary() else z
        if self.mapping == "softmax":
            with np.errstate(divide="ignore"):
                return z - (logsumexp(z, axis=1, keepdims=True) + np.log(self.threshold_))
        above = z - self._map(z, return_info=True)[1].threshold[:, None]
        radius = np.maximum(above, 0.0).sum(axis=1, keepdims=True)  # p = above / radius where it is positive
        return above - self.threshold_ * radius

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the map of the scores (n, K): rows sum to 1, with exact zeros but for softmax."""
        return self._map(self._scores(X))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithm of :meth:`predict_proba`: -inf where that is 0."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def _decide(self, z: np.ndarray) -> np.ndarray:
        """The answer to each row of scores: its class, or its labels as 0 and 1."""
        if self._form == "classes":
            return np.argmax(z, axis=1)
        return (self._map(z) > self.threshold_).astype(np.int64)

    def predict(self, X: Any) -> Any:
        """Return the label sets, in the form `y` had: the nonzero entries of the map, or those above the threshold."""
        on = self._decide(self._scores(X))
        if self._form == "classes":
            return self.classes_[on]
        if self._form == "indicator":
            return on
        if self._form == "sparse":
            return sp.csr_array(on)
        return [tuple(self.classes_[row]) for row in on.astype(bool)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows whose labels are predicted exactly, for `y` in any form that `fit` takes.

        Labels that were not there in `fit` count as missed.
        """
        check_is_fitted(self)
        if self._form != "sets":
            return super().score(X, y, sample_weight)
        right = [set(given) == set(found) for given, found in zip(y, self.predict(X), strict=True)]
        return float(np.average(right, weights=sample_weight))
