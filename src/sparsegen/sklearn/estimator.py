"""A scikit-learn classifier of label sets: a linear model, a sparse map, and a dial at prediction."""

from __future__ import annotations

import warnings
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, validate_data

from sparsegen._table.checks import fail, one_of
from sparsegen._table.losses import LOSSES as TABLE
from sparsegen._table.maps import MAPS
from sparsegen._table.targets import read
from sparsegen.sklearn import dials, validation
from sparsegen.sklearn.decisions import Decision
from sparsegen.sklearn.label_sets import Labels, read_labels
from sparsegen.sklearn.prediction import Prediction
from sparsegen.sklearn.rows import Rows, merged, row_bytes, squares
from sparsegen.sklearn.solver import Problem, Solution
from sparsegen.sklearn.stream import Stream
from sparsegen.sklearn.training import USUAL, Training

# Its `alpha` is the strength of the regularization, as everywhere in scikit-learn.
_TRAINED = [row for row in TABLE.values() if row.control != "alpha"]


def _losses_of(mapping: str) -> dict[str, str]:
    """The losses that train a map, by their form; a smooth one comes first."""
    found = {row.form: row.name for row in _TRAINED if row.mapping == mapping}
    return dict(sorted(found.items(), key=lambda item: item[0] == "hinge"))


# The loss of each map under each name; "auto" is the first. Sparsemax is sparsegen_lin with its dial at 0.
LOSSES = {"sparsemax": _losses_of("sparsegen_lin"), **{row.mapping: _losses_of(row.mapping) for row in _TRAINED}}
BATCH = 64  # rows of one step of partial_fit


class ConstantFitWarning(UserWarning):
    """A fitted model has one answer for all rows it was fitted to, though their labels differ."""


class SparseMultilabelClassifier(Prediction, ClassifierMixin, BaseEstimator):
    r"""Linear classifier of label sets: trained with a convex loss, it predicts what a sparse map makes of its scores.

    .. math:: \min_{W} \frac{1}{\sum_i s_i} \sum_i s_i L(W x_i, y_i) + \frac{\alpha}{2} \|W\|^2

    The penalty and the dial at prediction, a threshold on the map's probabilities, are chosen by cross-validation
    within `fit`. All weights are penalised, the intercept included: the dual of the problem is then a closed form, and
    :attr:`gap_` tells how far from the optimum the model can be. Standardise dense features.

    Parameters
    ----------
    mapping : {"sparsemax", "sparsegen_lin", "sparsehourglass", "softmax"}
        From scores to probabilities. Softmax has no zeros: its labels are those above a threshold.
    loss : {"auto", "huber", "hinge", "log"}
        "huber" for sparsemax and sparsegen_lin, "hinge" for the sparse maps, "log" for softmax. "auto" is the first of
        these that the map has.
    lam : float, below 1
        Control of sparsegen_lin. In training it only rescales the penalty: with T = 1 - lam, alpha T (huber) or
        alpha T^2 (hinge) at lam = 0 gives the same labels. "auto" penalties allow for it.
    q : float, positive
        Control of sparsehourglass. In training it only rescales the penalty too, by T = Kq/(1 + Kq).
    alpha : "auto" or float
        Penalty. "auto" chooses it among multiples of the rows' mean squared length, from smooth to fine.
    fit_intercept : bool
        Add a constant feature, whose weight is the intercept and is penalised like the others.
    intercept_scaling : "auto" or float
        That constant. "auto" is the root mean square of the rows' lengths: then the fit does not depend on the scale of
        the features.
    threshold : "auto" or float
        Predict labels with a probability above it. "auto" chooses it, or is 0 where there is a `predict_radius`. 0
        predicts the support of a sparse map, as the paper does: most often too many labels.
    predict_radius : None, "auto" or float
        Radius of the map at prediction, which need not be that of the loss: smaller is sparser, and labels are the
        support. "auto" chooses it; None leaves the map as it is. Not for softmax.
    metric : {"f1_micro", "f1_macro", "f1_samples", "cardinality"}
        What is to be best on rows that were held out. "cardinality" predicts as many labels on average as there are.
    cv : int, splitter or None
        How rows are held out to choose: folds, dealt by a hash of the rows; or any splitter of scikit-learn. None: 5
        folds, or a fifth of the rows once where there are more than 4 million scores.
    empty : {"ignore", "raise", "predict"}
        Rows without labels: leave them out of the training; refuse them; or learn them as a class of their own, so that
        the empty set can be predicted. But for the last, every row is given its most probable label at least.
    solver : {"auto", "dual", "lbfgs"}
        "dual": ascent in the dual, row by row, for the huber loss. "lbfgs": for any loss. "auto": dual where it can be.
    tol : float
        Stop when the duality gap is at most this share of the objective.
    max_iter : int
        Iterations, or passes over the rows, after which to stop with a warning.
    warm_start : bool
        Start from the last fit's coefficients, if shapes agree.
    random_state : int, RandomState or None
        For the order of rows in partial_fit.

    Attributes
    ----------
    coef_ : array (K, d)
        With two class labels (1, d): what one class has above the other, as everywhere in scikit-learn.
    intercept_ : array (K,)
        With two class labels (1,).
    classes_ : array (K,)
        Labels of the columns; for an indicator, their numbers.
    alpha_ : float
        The penalty.
    threshold_ : float
        Probability above which a label is predicted.
    predict_radius_ : float or None
        Radius at prediction; None where the map's own is not one number.
    cv_results_ : dict or None
        "alpha" and "score" of what was tried, if anything was chosen.
    gap_ : float
        Relative duality gap that was reached.
    objective_, dual_objective_ : float
        Value of the problem and the lower bound on its minimum.
    n_iter_ : int
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    `y` may be an indicator (n, K), dense or sparse; class labels (n,), one for each row (a single column counts as
    such); or a sequence of label sets of any type (tuples, sets, lists), as MultiLabelBinarizer takes them. predict
    answers in the same form; for one class label per row it gives the most probable class. A label that no training row
    has is learned from its absence alone. `score` is the share of rows whose whole label set is right; for micro F1 use
    ``scoring="f1_micro"`` with an indicator. Sparse features and sparse indicators are never made dense: scores are
    made in blocks.

    Examples
    --------
    >>> from sparsegen.sklearn import SparseMultilabelClassifier
    >>> X = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.9], [0.9, 0.1], [0.9, 0.9]]
    >>> y = [("wind",), ("rain",), ("rain", "wind"), ("wind",), ("rain",), ("rain", "wind")]
    >>> model = SparseMultilabelClassifier(alpha=1e-3).fit(X, y)
    >>> model.predict([[0.1, 1.0], [1.0, 1.0]])
    [('wind',), ('rain', 'wind')]
    >>> model.predict_proba([[1.0, 1.0]]).round(1)
    array([[0.5, 0.5]])
    """

    _parameter_constraints: dict = {  # noqa: RUF012
        "mapping": [StrOptions(set(LOSSES))],
        "loss": [StrOptions({"auto", "hinge", "huber", "log"})],
        "lam": [Interval(Real, None, 1, closed="neither")],
        "q": [Interval(Real, 0, None, closed="right")],
        "alpha": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "fit_intercept": ["boolean"],
        "intercept_scaling": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "threshold": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
        "predict_radius": [None, StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "metric": [StrOptions(set(dials.METRICS))],
        "cv": ["cv_object"],
        "empty": [StrOptions({"ignore", "raise", "predict"})],
        "solver": [StrOptions({"auto", "dual", "lbfgs"})],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
    }

    def __init__(
        self, mapping: str = "sparsemax", loss: str = "auto", *, lam: float = 0.0, q: float = 1.0, alpha: Any = "auto",
        fit_intercept: bool = True, intercept_scaling: Any = "auto", threshold: Any = "auto",
        predict_radius: Any = None, metric: str = "f1_micro", cv: Any = None, empty: str = "ignore",
        solver: str = "auto", tol: float = 1e-3, max_iter: int = 1000, warm_start: bool = False,
        random_state: Any = None,
    ) -> None:  # fmt: skip
        self.mapping = mapping
        self.loss = loss
        self.lam = lam
        self.q = q
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.threshold = threshold
        self.predict_radius = predict_radius
        self.metric = metric
        self.cv = cv
        self.empty = empty
        self.solver = solver
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
            fail(ValueError, f"the loss of {self.mapping}", one_of(losses), repr(name))
        return losses[name]

    def _training(self, rows: Rows) -> Training:
        loss = self._loss_name()
        control = {"lam": self.lam, "q": self.q, "": 0.0}[TABLE[loss].control if self.mapping != "sparsemax" else ""]
        return Training(loss, float(control), self._constant(rows), self.solver, int(self.max_iter))

    def _constant(self, rows: Rows) -> float:
        """The feature whose weight is the intercept: as long as the others together, if that is left open."""
        if not self.fit_intercept or self.intercept_scaling != "auto":
            return float(self.intercept_scaling) if self.fit_intercept else 0.0
        return float(np.sqrt(np.average(squares(rows.X), weights=rows.weight))) or 1.0

    def _check_options(self) -> None:
        """Refuse what does not go together: a search over a control of another map would change nothing."""
        huber = TABLE[self._loss_name()].form == "huber"
        if self.solver == "dual" and not huber:
            fail(ValueError, "solver", "'auto' or 'lbfgs' for a loss other than huber", repr(self.solver))
        if self.mapping == "softmax" and self.predict_radius is not None:
            fail(ValueError, "predict_radius", "left at None for mapping 'softmax'", repr(self.predict_radius))
        for name, value, unset in (("lam", self.lam, 0.0), ("q", self.q, 1.0)):
            if value != unset and name not in MAPS[self.mapping].controls:
                fail(ValueError, name, f"left at {unset:g} for mapping {self.mapping!r}, which has no {name}", value)

    def _dial(self) -> str:
        """What is chosen beside the penalty: "threshold", "radius", or "" for nothing."""
        if self._form == "classes":
            return ""
        if self.predict_radius is not None:
            return "radius" if self.predict_radius == "auto" else ""
        return "threshold" if self.threshold == "auto" else ""

    def _given(self) -> Decision:
        """The decision as far as it is not to be chosen."""
        controls = {name: getattr(self, name) for name in MAPS[self.mapping].controls if hasattr(self, name)}
        radius = None if self.predict_radius in (None, "auto") else float(self.predict_radius)
        threshold = 0.0 if self.threshold == "auto" or self._form == "classes" else float(self.threshold)
        empty = self.empty == "predict" and self._form != "classes"
        return Decision(self.mapping, controls, radius, threshold, empty)

    def _choose(self, training: Training, rows: Rows, taking: Rows) -> tuple[float, Decision, dict[str, Any] | None]:
        """The penalty, the decision, and what was tried."""
        dial, given = self._dial(), self._given()
        alphas = training.alphas(taking) if self.alpha == "auto" else (float(self.alpha),)
        if len(alphas) == 1 and not dial:
            return alphas[0], given, None
        if len(taking.weight) < 2:
            threshold = 0.5 if self.mapping == "softmax" and dial else given.threshold
            return alphas[USUAL % len(alphas)], replace(given, threshold=threshold), None
        search = validation.Search(training, given, dial, self.metric, self._form == "classes")
        found = validation.choose(search, *validation.dealt(self.cv, rows, taking), alphas)
        return found.alpha, found.decision, {"alpha": np.array(found.alphas), "score": np.array(found.scores)}

    def _check(self, X: Any, y: Any, sample_weight: Any, reset: bool, classes: Any) -> tuple[Rows, Labels]:
        """Everything about the input that can be wrong; nothing of the estimator is changed but what `reset` names."""
        self._check_options()
        labels = read_labels(y, classes)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=reset)
        if X.shape[0] != labels.Y.shape[0]:
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: [{X.shape[0]}, {labels.Y.shape[0]}]"
            )
        if labels.form == "classes" and len(labels.classes) < 2:
            fail(ValueError, "y", "of at least two classes", f"one class, {labels.classes[0]!r}")
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        none = np.diff(labels.Y.indptr) == 0
        if self.empty == "raise" and none.any():
            condition = "a set of at least one label (empty='ignore' leaves such rows out, 'predict' learns them)"
            fail(ValueError, f"row {np.argmax(none)} of y", condition, "none")
        if not ((weight > 0) & ~none).any():
            fail(ValueError, "y", "labels for at least one row of positive weight", "none")
        Y = labels.Y
        if self.empty == "predict" and labels.form != "classes":
            Y = sp.hstack([Y, sp.csr_array(none[:, None].astype(Y.dtype))], format="csr")
        return Rows(X, Y, weight), labels

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
            rows, labels = self._check(X, y, sample_weight, True, None)
            self._form = labels.form
            taking = merged(rows.taking_part())
            training = self._training(taking)
            alpha, decision, tried = self._choose(training, rows, taking)
            fitter = training.fitter(taking, self._start(training.constant))
            found = fitter.fit(alpha, float(self.tol), int(self.max_iter))
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        self.classes_, self.alpha_, self.cv_results_ = labels.classes, alpha, tried
        self._set(decision, training.radius(rows.Y.shape[1]))
        self._keep(found.weights, training.constant)
        self.gap_, self.objective_, self.dual_objective_ = found.gap, found.primal, found.dual
        self.n_iter_ = found.n_iter
        self.__dict__.pop("_stream", None)
        self._warn_if_short(found)
        self._warn_if_constant(rows)
        return self

    def _set(self, decision: Decision, radius: float) -> None:
        """Keep how scores are answered, and show it."""
        self._answer, self.threshold_ = decision, decision.threshold
        own = radius if self.mapping in ("sparsemax", "sparsegen_lin") else None
        self.predict_radius_ = own if decision.radius is None else decision.radius

    def _start(self, constant: float) -> np.ndarray | None:
        """The last fit's weights, if they are wanted; solvers ignore those of another shape."""
        if not self.warm_start or not hasattr(self, "_W"):
            return None
        return np.vstack([self._W[:-1], self._W[-1:] / constant]) if constant else self._W[:-1]

    def _warn_if_short(self, found: Solution) -> None:
        if not found.converged:
            warnings.warn(
                f"the optimum was not reached: after {found.n_iter} iterations the relative duality gap is "
                f"{found.gap:.1e}, more than tol = {self.tol:g}. Increase max_iter or alpha, or standardise the "
                "features.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _warn_if_constant(self, rows: Rows) -> None:
        """Say so if the model has one answer for all rows, whose labels differ: the optimum can be without weights."""
        seen = rows.taking_part()
        n, first = len(seen.weight), row_bytes(seen.Y, 0)
        if all(row_bytes(seen.Y, i) == first for i in range(n)) or not self._is_constant(seen.X):
            return
        what = "label" if self._form == "classes" else "labels"
        why = "" if self._W.any() else " (all weights are 0)"
        huber = self.mapping == "sparsemax" and self.loss in ("auto", "huber")
        other = "mapping='softmax'" if huber else "loss='huber' with mapping='sparsemax', mapping='softmax'"
        warnings.warn(
            f"the fit predicts the same {what} for all {n} rows, whose labels differ{why}. Try {other}, or a smaller "
            "alpha, and standardise the features.",
            ConstantFitWarning,
            stacklevel=3,
        )

    def _is_constant(self, X: Any) -> bool:
        """Have all rows one answer? If the threshold was given, it is the probabilities that must be the same."""
        first = None
        for _, z in self._blocks(X, 1 << 16):
            answers = self._decide(z) if self.threshold == "auto" else self._answer.probabilities(z).round(9)
            first = answers[:1] if first is None else first
            if not (answers == first).all():
                return False
        return True

    def _keep(self, W: np.ndarray, constant: float) -> None:
        """Keep the weights (d + 1, K) with the intercept last; those of the solver are not needed any more."""
        if not constant:
            self._W = np.vstack([W, np.zeros(W.shape[1])])
            return
        W[-1] *= constant
        self._W = np.ascontiguousarray(W)

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> SparseMultilabelClassifier:
        """Move the model by one pass over these rows: steps along subgradients, scaled by AdaGrad, averaged.

        The model after a stream is near the optimum, not at it, and has no gap. Nothing is chosen: after `fit` it goes
        on from there, with the penalty and the dial found; without, "auto" is a penalty of 0.003 of the first rows'
        mean squared length and a threshold of 0.

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
            rows, labels = self._check(X, y, sample_weight, first, known)
            if first and classes is None and labels.form in ("classes", "sets"):
                fail(ValueError, "classes", "given in the first call of partial_fit", None)
            self.classes_, self._form = labels.classes, labels.form
            self._pass(rows)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def _pass(self, rows: Rows) -> None:
        training = replace(self._training(rows.taking_part()), constant=float(bool(self.fit_intercept)))
        if not hasattr(self, "_W"):
            self.alpha_ = training.alphas(rows.taking_part())[USUAL] if self.alpha == "auto" else float(self.alpha)
            self._set(self._given(), training.radius(rows.Y.shape[1]))
        shape = (rows.X.shape[1] + bool(self.fit_intercept), rows.Y.shape[1])
        W = self._W[: shape[0]].copy() if hasattr(self, "_W") else np.zeros(shape)
        stream = self.__dict__["_stream"].copy() if "_stream" in self.__dict__ else Stream(W)
        order = check_random_state(self.random_state).permutation(np.flatnonzero(rows.kept()))
        for start in range(0, len(order), BATCH):
            X, Y, weight = rows.take(order[start : start + BATCH])
            options = (training.loss, training.control, self.alpha_, weight, training.constant)
            stream.step(Problem(X, read(Y, Y.shape), Y.shape[1], *options))
        self._stream = stream
        self._keep(stream.mean.copy(), training.constant)
        self.n_iter_ = stream.steps
        for name in ("gap_", "objective_", "dual_objective_"):
            self.__dict__.pop(name, None)
