"""SparseMultilabelClassifier as scikit-learn's users meet it."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import sparsegen as sg
from sparsegen.sklearn import ConstantFitWarning, SparseMultilabelClassifier, best_threshold
from sparsegen.sklearn import rows as row_blocks

MODELS = [
    SparseMultilabelClassifier(),
    SparseMultilabelClassifier("sparsegen_lin", lam=0.5, alpha=1e-2, predict_radius="auto", cv=3),
    SparseMultilabelClassifier("sparsehourglass", alpha=1e-2, threshold=0.0),
    SparseMultilabelClassifier("softmax", alpha=1e-2, cv=3),
]
ZEROS = "asks for probabilities above 0; a sparse map is there to give exact zeros"


@parametrize_with_checks(
    MODELS,
    expected_failed_checks=lambda model: (
        {} if model.mapping == "softmax" else {"check_classifiers_multilabel_output_format_predict_proba": ZEROS}
    ),
)
def test_scikit_learns_own_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # some checks give a problem few iterations
        warnings.simplefilter("ignore", ConstantFitWarning)  # and some give noise as labels
        check(estimator)


@pytest.fixture(scope="module")
def data():
    X, Y = make_multilabel_classification(
        300, 8, n_classes=5, n_labels=2, allow_unlabeled=False, random_state=0, length=80
    )
    return (X - X.mean(axis=0)) / X.std(axis=0), Y


def ids(model):
    return f"{model.mapping}-{model.loss}"


@pytest.mark.parametrize("model", MODELS, ids=ids)
def test_it_learns_label_sets(model, data):
    X, Y = data
    fitted = clone(model).fit(X[:200], Y[:200])
    assert f1_score(Y[200:], fitted.predict(X[200:]), average="micro") > 0.6
    assert fitted.gap_ <= fitted.tol
    assert fitted.dual_objective_ <= fitted.objective_
    assert fitted.coef_.shape == (5, 8)


@pytest.mark.parametrize("model", MODELS, ids=ids)
def test_labels_are_above_the_threshold_or_the_most_probable_and_the_positive_decisions(model, data):
    X, Y = data
    fitted = clone(model).fit(X, Y)
    P = fitted.predict_proba(X)
    np.testing.assert_allclose(P.sum(axis=1), 1)
    expected = (fitted.threshold_ < P) | (P.max(axis=1, keepdims=True) == P)
    np.testing.assert_array_equal(fitted.predict(X), expected.astype(int))
    np.testing.assert_array_equal(fitted.decision_function(X) > 0, expected)


def test_probabilities_are_the_map_of_the_scores(data):
    X, Y = data
    for model, rho in (
        (SparseMultilabelClassifier("sparsehourglass", q=0.3), lambda z: sg.sparsehourglass(z, q=0.3)),
        (SparseMultilabelClassifier("sparsegen_lin", lam=0.5), lambda z: sg.sparsegen_lin(z, lam=0.5)),
        (SparseMultilabelClassifier(), sg.sparsemax),
        (SparseMultilabelClassifier(predict_radius=0.4), lambda z: sg.project(z, 0.4)),
        (SparseMultilabelClassifier("sparsemax", "hinge", predict_radius=0.4), lambda z: sg.project(z, 0.4)),
    ):
        fitted = model.set_params(alpha=1e-2, cv=2).fit(X, Y)
        np.testing.assert_allclose(fitted.predict_proba(X), rho(X @ fitted.coef_.T + fitted.intercept_), atol=1e-12)


def test_sparse_and_dense_input_agree_and_predictions_keep_their_form(data):
    X, Y = data
    model = SparseMultilabelClassifier(alpha=1e-2, threshold=0.2)
    dense, sparse = clone(model).fit(X, Y), clone(model).fit(sp.csr_matrix(X), sp.csr_matrix(Y))
    assert sparse.objective_ == pytest.approx(dense.objective_, rel=2e-3)
    answer = sparse.predict(sp.csr_array(X))
    assert sp.issparse(answer)
    assert (answer.toarray() != dense.predict(X)).mean() < 0.02


def test_label_sets_of_any_type(data):
    X, Y = data
    names = np.array(["ash", "birch", "cedar", "elm", "fir"])
    expected = SparseMultilabelClassifier().fit(X, Y).predict(X)
    for kind in (tuple, set, frozenset, list):
        fitted = SparseMultilabelClassifier().fit(X, [kind(names[row == 1]) for row in Y])
        assert list(fitted.classes_) == list(names)
        answer = fitted.predict(X)
        assert all(isinstance(row, tuple) for row in answer)
        np.testing.assert_array_equal([[name in row for name in names] for row in answer], expected)
    assert SparseMultilabelClassifier().fit(X[:3], [(7, 1), (1,), (9,)]).classes_.tolist() == [1, 7, 9]


@pytest.mark.parametrize(
    ("y", "text"),
    [
        ([["a"], [1], ["a"], ["b"]], "y must be made of labels that can be sorted, .* got int and str"),
        ([{"a"}, {None}, {"b"}, {"a"}], "y must be made of labels that can be sorted, .* got NoneType and str"),
        ([[["a"]], ["b"], ["a"], ["b"]], "y must be made of labels that can be sorted, .* got list and str"),
        (["a", 1, "a", 1], "y must be made of labels that can be sorted, .* got int and str"),
        (["a", None, "b", "a"], "y must be made of labels that can be sorted, .* got NoneType and str"),
        ([["a"], None, ["b"], ["a"]], r"y\[1\] must be a label set, as the other rows are, got None"),
        ([("a",), "b", ("a",), ("b",)], r"y\[1\] must be a label set, as the other rows are, got 'b'"),
        ([[1, 0], [0, 1], None, [1, 1]], r"y\[2\] must be a label set, as the other rows are, got None"),
    ],
)
def test_labels_of_several_kinds_are_refused_by_name(y, text):
    with pytest.raises(TypeError, match=f"^sparsegen: {text}"):
        SparseMultilabelClassifier().fit(np.eye(4), y)


def test_one_class_label_a_row(data):
    X, _ = data
    y = np.array(["low", "mid", "high"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    fitted = SparseMultilabelClassifier(alpha=1e-4).fit(X, y)
    assert (fitted.predict(X) == y).mean() > 0.9
    assert fitted.score(X, y) == (fitted.predict(X) == y).mean()


def test_order_and_repetition_of_rows_change_nothing(data):
    X, Y = data
    order = np.random.default_rng(0).permutation(len(X))
    weight = np.random.default_rng(1).integers(0, 3, len(X))
    one = SparseMultilabelClassifier().fit(X, Y, sample_weight=weight)
    two = SparseMultilabelClassifier().fit(X[order].repeat(weight[order], 0), Y[order].repeat(weight[order], 0))
    np.testing.assert_array_equal(one.coef_, two.coef_)


def test_a_grid_over_the_dials_in_a_pipeline(data):
    X, Y = data
    pipe = make_pipeline(StandardScaler(), SparseMultilabelClassifier("sparsehourglass", tol=1e-2, threshold=0.0))
    name = "sparsemultilabelclassifier__"
    pipe.set_params(**{name + "alpha": 1e-2})
    grid = GridSearchCV(pipe, {name + "q": [0.1, 1.0], name + "alpha": [1e-2, 1e-1]}, scoring="f1_micro", cv=2)
    assert grid.fit(X, Y).best_score_ > 0.5
    lam = GridSearchCV(SparseMultilabelClassifier("sparsegen_lin", alpha=1e-2), {"lam": [0.0, 0.5]}, cv=2)
    assert lam.fit(X, Y).best_params_["lam"] in (0.0, 0.5)
    assert cross_val_predict(pipe, X, Y, cv=2).shape == Y.shape


def test_pickled_it_predicts_the_same(data):
    X, Y = data
    fitted = SparseMultilabelClassifier().fit(X, Y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(X), fitted.predict_proba(X))


def test_the_threshold_of_softmax_is_tuned_on_held_out_rows(data):
    X, Y = data
    auto = SparseMultilabelClassifier("softmax", alpha=1e-2).fit(X, Y)
    assert 0 < auto.threshold_ < 1
    fixed = SparseMultilabelClassifier("softmax", alpha=1e-2, threshold=0.9).fit(X, Y)
    assert fixed.threshold_ == 0.9
    np.testing.assert_allclose(auto.coef_, fixed.coef_)  # refitted to all rows
    f1 = [f1_score(Y, model.predict(X), average="micro") for model in (auto, fixed)]
    assert f1[0] > f1[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((np.eye(3), np.ones((2, 3)) / 3), r"Y must be of shape \(2, 3\), as P is, got shape \(3, 3\)"),
        ((np.eye(3), np.ones((3, 1))), r"Y must be of shape \(3, 1\), as P is, got shape \(3, 3\)"),
        (([[1, 0]], [0.5]), r"P must be of shape \(n, K\), got shape \(1,\)"),
        (([1, 0], [[0.5, 0.5]]), r"Y must be of shape \(1, 2\), as P is, got shape \(2,\)"),
        (([[1, 0]], [[0.5, np.nan]]), "P must be finite, got NaN or infinity"),
        (([[1, 0]], [[0.5, 0.5]], "f2"), "metric must be one of 'f1_micro', .*, got 'f2'"),
    ],
)
def test_best_threshold_refuses_what_does_not_fit(given, message):
    with pytest.raises(ValueError, match=f"^sparsegen: {message}"):
        best_threshold(*given)


def test_best_threshold_is_the_best_of_all():
    rng = np.random.default_rng(0)
    for _ in range(50):
        P = rng.integers(1, 8, (6, 4)) / 8  # with ties
        Y = rng.integers(0, 2, (6, 4))
        Y[0, 0] = 1
        cuts = np.append(np.unique(P) - 1e-9, 1.0)
        best = max(f1_score(Y, cut < P, average="micro", zero_division=0) for cut in cuts)
        assert f1_score(Y, best_threshold(sp.csr_array(Y), P) < P, average="micro") == pytest.approx(best)


def test_warm_start_goes_on_from_the_last_fit(data):
    X, Y = data
    cold = SparseMultilabelClassifier(alpha=1e-3).fit(X, Y)
    warm = SparseMultilabelClassifier(alpha=2e-3, warm_start=True).fit(X, Y).set_params(alpha=1e-3).fit(X, Y)
    assert warm.objective_ == pytest.approx(cold.objective_, rel=2e-3)
    other = SparseMultilabelClassifier(warm_start=True).fit(X, Y)
    assert other.fit(X[:, :4], Y).coef_.shape == (5, 4)  # another shape starts anew


def test_a_stream_comes_near_the_optimum(data):
    X, Y = data
    full = SparseMultilabelClassifier("sparsemax", "hinge", alpha=1e-2, intercept_scaling=1.0, threshold=0.0).fit(X, Y)
    stream = SparseMultilabelClassifier("sparsemax", "hinge", alpha=1e-2, random_state=0)
    for _ in range(40):
        for start in range(0, 300, 100):
            stream.partial_fit(X[start : start + 100], Y[start : start + 100])
    z = np.ascontiguousarray(X @ stream.coef_.T + stream.intercept_)
    size = (stream.coef_**2).sum() + (stream.intercept_**2).sum()
    assert sg.sparsegen_hinge_loss(z, Y) + 1e-2 / 2 * size < 1.1 * full.objective_
    assert not hasattr(stream, "gap_")


def test_partial_fit_needs_to_know_the_classes_and_keeps_them(data):
    X, _ = data
    with pytest.raises(ValueError, match=r"^sparsegen: classes must be given in the first call of partial_fit"):
        SparseMultilabelClassifier().partial_fit(X[:2], ["a", "b"])
    model = SparseMultilabelClassifier().partial_fit(X[:2], ["a", "b"], classes=["a", "b", "c"])
    model.partial_fit(X[2:4], ["c", "a"])
    assert model.predict_proba(X).shape == (300, 3)
    before = model.coef_.copy()
    with pytest.raises(ValueError, match="among the classes"):
        model.partial_fit(X[:2], ["a", "z"])
    with pytest.raises(ValueError, match="8 features"):
        model.partial_fit(X[:2, :5], ["a", "b"])
    np.testing.assert_array_equal(model.coef_, before)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda X, Y: (X, np.where(Y == 1, -1, 0)), r"y must be 0 or 1 in every entry of the indicator, got -1\."),
        (lambda X, Y: (X, Y * 2), r"y must be 0 or 1 in every entry of the indicator, got 2\."),
        (lambda X, Y: (np.where(X > 1, np.nan, X), Y), "Input X contains NaN"),
        (lambda X, Y: (X, Y[:-1]), "inconsistent numbers of samples"),
        (lambda X, Y: (X, np.zeros(len(X))), "y must be of at least two classes"),
        (lambda X, Y: (X, np.zeros_like(Y)), "y must be labels for at least one row"),
        (lambda X, Y: (X, Y.astype(object).astype(str)), "y must be an indicator of 0 and 1"),
    ],
)
def test_bad_input_is_refused_and_leaves_the_fitted_model_alone(change, text, data):
    X, Y = data
    model = SparseMultilabelClassifier(alpha=1e-2).fit(X, Y)
    before = pickle.dumps(vars(model))
    with pytest.raises((ValueError, TypeError), match=text):
        model.fit(*change(X, Y))
    assert pickle.dumps(vars(model)) == before
    fresh = SparseMultilabelClassifier()
    with pytest.raises((ValueError, TypeError), match=text):
        fresh.fit(*change(X, Y))
    assert not [name for name in vars(fresh) if name.endswith("_")]


def test_rows_without_labels_are_left_out_or_refused(data):
    X, Y = data
    empty = Y.copy()
    empty[3] = 0
    ignoring = SparseMultilabelClassifier().fit(X, empty)
    without = SparseMultilabelClassifier().fit(np.delete(X, 3, 0), np.delete(Y, 3, 0))
    np.testing.assert_array_equal(ignoring.coef_, without.coef_)
    with pytest.raises(ValueError, match=r"^sparsegen: row 3 of y must be a set of at least one label"):
        SparseMultilabelClassifier(empty="raise").fit(X, empty)


def test_a_label_that_no_row_has_is_never_predicted_here(data):
    X, Y = data
    fitted = SparseMultilabelClassifier().fit(X, np.hstack([Y, np.zeros((len(Y), 1), int)]))
    assert fitted.predict(X)[:, 5].sum() == 0


def test_a_loss_that_is_not_the_maps_is_refused(data):
    with pytest.raises(ValueError, match=r"^sparsegen: the loss of softmax must be one of 'log', got 'hinge'\."):
        SparseMultilabelClassifier("softmax", "hinge").fit(*data)


def test_what_was_not_reached_is_said(data):
    for solver in ("dual", "lbfgs"):
        with pytest.warns(ConvergenceWarning, match=r"after 2 iterations the relative duality gap is"):
            SparseMultilabelClassifier(alpha=1e-4, threshold=0.1, solver=solver, max_iter=2).fit(*data)


def test_it_predicts_only_when_fitted(data):
    with pytest.raises(NotFittedError):
        SparseMultilabelClassifier().predict(data[0])


def test_the_callers_arrays_are_not_written(data):
    X, Y = (array.copy() for array in data)
    X.setflags(write=False)
    Y.setflags(write=False)
    SparseMultilabelClassifier().fit(X, Y).predict(X)
    S = sp.csr_matrix(Y)
    kept = S.copy()
    SparseMultilabelClassifier().fit(X, S).partial_fit(X, S)
    assert (kept != S).nnz == 0
    assert S.dtype == kept.dtype


def test_score_and_search_take_label_sets():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    tags = [tuple(name for name, on in zip("abc", row) if on) or ("a",) for row in X > 0]
    model = SparseMultilabelClassifier().fit(X, tags)
    right = np.mean([set(a) == set(b) for a, b in zip(tags, model.predict(X))])
    assert model.score(X, tags) == right
    weight = np.arange(60.0)
    assert 0 < model.score(X, tags, weight) <= 1
    search = GridSearchCV(SparseMultilabelClassifier(), {"alpha": [1e-3, 1e-1]}, cv=KFold(3)).fit(X, tags)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lam": 0.5}, "lam must be left at 0 for mapping 'sparsemax', which has no lam, got 0.5"),
        ({"mapping": "softmax", "predict_radius": 0.5}, "predict_radius must be left at None for mapping 'softmax'"),
        ({"mapping": "softmax", "solver": "dual"}, "solver must be 'auto' or 'lbfgs' for a loss other than huber"),
        ({"mapping": "sparsemax", "q": 2.0}, "q must be left at 1 for mapping 'sparsemax', which has no q, got 2.0"),
    ],
)
def test_the_control_of_another_map_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        SparseMultilabelClassifier(**options).fit([[0.0], [1.0]], [("a",), ("b",)])


def test_a_fit_that_cannot_tell_rows_apart_says_so(data):
    X, Y = make_multilabel_classification(
        2000, 20, n_classes=8, n_labels=5, allow_unlabeled=False, random_state=0
    )  # so many labels a row that no weights at all cost least
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    text = r"predicts the same labels for all 2000 rows, .* \(all weights are 0\)\. Try .*'huber'.*'softmax'.*alpha"
    paper = SparseMultilabelClassifier("sparsehourglass", alpha=1e-3, threshold=0.0, max_iter=10_000)
    with pytest.warns(UserWarning, match=text):
        model = paper.fit(X, Y)
    assert len(np.unique(model.predict(X), axis=0)) == 1
    with pytest.warns(UserWarning, match=r"predicts the same label for all 4 rows"):
        SparseMultilabelClassifier("softmax").fit(np.zeros((4, 2)), ["a", "b", "a", "b"])
    with pytest.warns(UserWarning, match=r"predicts the same labels for all 2000 rows"):
        clone(paper).set_params(threshold=0.5).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SparseMultilabelClassifier().fit(X[:200], Y[:200])  # as it comes, it is not so
        SparseMultilabelClassifier("softmax", threshold=0.9).fit(*data)  # the most probable label, as was asked for
        SparseMultilabelClassifier().fit(X[:5], np.tile(Y[:1], (5, 1)))  # labels that do not differ


@pytest.mark.parametrize("model", MODELS, ids=ids)
def test_a_threshold_is_kept_by_every_map(model, data):
    X, Y = data
    for threshold in (0.0, 0.3, 0.6):
        fitted = clone(model).set_params(threshold=threshold).fit(X, Y)
        assert fitted.threshold_ == threshold
        P = fitted.predict_proba(X)
        clear = abs(P - threshold) > 1e-9  # the two sides may round differently next to it
        expected = (threshold < P) | (P.max(axis=1, keepdims=True) == P)
        np.testing.assert_array_equal(fitted.predict(X)[clear], expected[clear])
        np.testing.assert_array_equal((fitted.decision_function(X) > 0)[clear], expected[clear])
    streamed = clone(model).set_params(threshold=0.3).partial_fit(X, Y)
    assert streamed.threshold_ == 0.3


def test_the_dial_is_chosen_given_or_none(data):
    X, Y = data
    shared = {"alpha": 1e-2, "cv": 3}
    threshold = SparseMultilabelClassifier(**shared).fit(X, Y)
    radius = SparseMultilabelClassifier(predict_radius="auto", **shared).fit(X, Y)
    given = SparseMultilabelClassifier(predict_radius=0.5, **shared).fit(X, Y)
    paper = SparseMultilabelClassifier(threshold=0.0, **shared).fit(X, Y)
    assert (threshold.predict_radius_, paper.threshold_, given.predict_radius_) == (1.0, 0.0, 0.5)
    assert 0 < threshold.threshold_ < 0.5
    assert 0 < radius.predict_radius_ < 1
    assert radius.threshold_ == given.threshold_ == 0
    sizes = [model.predict(X).sum() for model in (threshold, radius, given, paper)]
    assert max(sizes[:3]) < sizes[3]  # the support is the largest set
    for model in (radius, given, paper):
        np.testing.assert_array_equal(model.predict(X), model.predict_proba(X) > 0)


@pytest.mark.parametrize("metric", ["f1_micro", "f1_macro", "f1_samples"])
def test_the_chosen_threshold_is_the_best_on_held_out_rows(metric, data):
    X, Y = data
    folds = list(KFold(3, shuffle=True, random_state=0).split(X))
    model = SparseMultilabelClassifier(alpha=1e-2, metric=metric, cv=folds).fit(X, Y)
    fixed = SparseMultilabelClassifier(
        alpha=1e-2, threshold=0.0, tol=1e-2, intercept_scaling=np.sqrt((X * X).sum(axis=1).mean())
    )
    P, truth = [], []
    for train, test in folds:
        P.append(clone(fixed).fit(X[train], Y[train]).predict_proba(X[test]))
        truth.append(Y[test])
    P, truth = np.vstack(P), np.vstack(truth)

    def score(cut):
        on = (cut < P) | (P.max(axis=1, keepdims=True) == P)
        return f1_score(truth, on, average=metric.removeprefix("f1_"), zero_division=0)

    # The fits of a fold start elsewhere and stop at a gap of 1 %: their probabilities agree, not their digits.
    best = max(map(score, np.linspace(0, 1, 200)))
    assert score(model.threshold_) == pytest.approx(best, abs=0.02)
    assert model.cv_results_["score"].max() == pytest.approx(best, abs=0.02)


def test_the_number_of_labels_can_be_what_is_aimed_at(data):
    X, Y = data
    model = SparseMultilabelClassifier(alpha=1e-2, metric="cardinality").fit(X[:200], Y[:200])
    assert model.predict(X[200:]).sum() == pytest.approx(Y[200:].sum(), rel=0.15)


def test_nothing_depends_on_the_scale_of_the_features(data):
    X, Y = data
    settings = {"threshold": 0.2, "tol": 1e-8, "max_iter": 10_000}
    one, two = (SparseMultilabelClassifier(alpha=0.1 * by**2, **settings).fit(by * X, Y) for by in (1.0, 1024.0))
    np.testing.assert_allclose(two.coef_ * 1024, one.coef_, atol=1e-3)
    np.testing.assert_allclose(two.intercept_, one.intercept_, atol=1e-3)
    tried = [SparseMultilabelClassifier(cv=3).fit(by * X, Y).cv_results_["alpha"] for by in (1.0, 1024.0)]
    np.testing.assert_allclose(tried[1][:3], tried[0][:3] * 1024**2)


def test_the_penalty_is_the_best_of_those_tried(data):
    model = SparseMultilabelClassifier().fit(*data)
    tried = model.cv_results_
    assert model.alpha_ == tried["alpha"][np.argmax(tried["score"])]
    assert np.all(np.diff(tried["alpha"]) < 0)
    assert SparseMultilabelClassifier(alpha=0.1, threshold=0.2).fit(*data).cv_results_ is None


def test_the_empty_set_is_predicted_if_it_is_asked_for(data):
    X, Y = data
    none = X[:, 0] > 0.3
    Y = np.where(none[:, None], 0, Y)
    model = SparseMultilabelClassifier(empty="predict").fit(X[:200], Y[:200])
    found = model.predict(X[200:]).sum(axis=1) == 0
    assert (found == none[200:]).mean() > 0.8
    assert model.predict_proba(X).shape == model.decision_function(X).shape == Y.shape
    assert model.coef_.shape == (5, 8)
    np.testing.assert_array_equal(model.predict(X) == 1, model.decision_function(X) > 0)
    assert SparseMultilabelClassifier().fit(X[:200], Y[:200]).predict(X).any(axis=1).all()
    sets = [tuple(np.flatnonzero(row)) for row in Y]
    assert () in SparseMultilabelClassifier(empty="predict").fit(X, sets).predict(X)


def test_the_control_of_the_loss_only_rescales_the_penalty(data):
    X, Y = data
    for loss, power in (("huber", 1), ("hinge", 2)):
        plain = SparseMultilabelClassifier("sparsemax", loss, alpha=1e-2, tol=1e-5, threshold=0.0).fit(X, Y)
        dialled = SparseMultilabelClassifier(
            "sparsegen_lin", loss, lam=0.5, alpha=1e-2 / 0.5**power, tol=1e-5, threshold=0.0
        ).fit(X, Y)
        np.testing.assert_allclose(dialled.predict_proba(X), plain.predict_proba(X), atol=2e-2)


def test_scores_are_made_in_blocks(data, monkeypatch):
    X, Y = data
    model = SparseMultilabelClassifier(alpha=1e-2, cv=2)
    whole = clone(model).fit(X, sp.csr_array(Y))
    monkeypatch.setattr(row_blocks.blocks, "__defaults__", (64,))
    blocked = clone(model).fit(X, sp.csr_array(Y))
    assert blocked.threshold_ == pytest.approx(whole.threshold_)
    assert (blocked.predict(X) != whole.predict(X)).nnz == 0


class Series:
    """As much of a pandas Series as label sets need."""

    ndim, dtype = 1, np.dtype(object)

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)


def _object_array(rows):
    array = np.empty(len(rows), object)
    array[:] = rows
    return array


@pytest.mark.parametrize("kind", ["stand-in", "array", "pandas"])
def test_label_sets_in_a_series_are_label_sets(kind, data):
    make = {"stand-in": Series, "array": _object_array}.get(kind) or pytest.importorskip("pandas").Series
    X, Y = data[0][:60], data[1][:60]
    for rows in ([["abcde"[i] for i in np.flatnonzero(row)] for row in Y], [set(np.flatnonzero(row)) for row in Y]):
        series = make(rows)
        model, listed = SparseMultilabelClassifier().fit(X, series), SparseMultilabelClassifier().fit(X, rows)
        assert list(model.classes_) == list(listed.classes_)
        assert model.predict(X) == listed.predict(X)
        assert model.score(X, series) == listed.score(X, rows)
    indicator = SparseMultilabelClassifier().fit(X, make([list(map(int, row)) for row in Y]))
    np.testing.assert_array_equal(indicator.predict(X), SparseMultilabelClassifier().fit(X, Y).predict(X))
    names = make(["ash" if row[0] else "elm" for row in Y]) if kind == "pandas" else ["ash", "elm"] * 30
    assert list(SparseMultilabelClassifier().fit(X, names).classes_) == ["ash", "elm"]


@pytest.mark.parametrize("model", MODELS, ids=ids)
def test_the_logarithm_of_a_zero_is_minus_infinity_without_a_warning(model, data):
    fitted = clone(model).fit(*data)
    P = fitted.predict_proba(data[0])
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(fitted.predict_log_proba(data[0]), np.log(P))


@pytest.mark.parametrize("model", MODELS, ids=ids)
def test_two_classes_have_one_row_of_coefficients(model, data):
    X, y = data[0], np.where(data[0][:, 0] > 0.1, "yes", "no")
    fitted = clone(model).set_params(warm_start=True).fit(X, y)
    assert fitted.coef_.shape == (1, 8)
    assert fitted.intercept_.shape == (1,)
    decision = X @ fitted.coef_[0] + fitted.intercept_[0]
    np.testing.assert_allclose(fitted.decision_function(X), decision, atol=1e-12)
    np.testing.assert_array_equal(fitted.predict(X), np.where(decision > 0, "yes", "no"))
    before, first = fitted.objective_, fitted.n_iter_
    assert fitted.fit(X, y).objective_ == pytest.approx(before, rel=1e-3)
    if model.mapping != "sparsehourglass":  # the hinge starts its smoothing anew
        assert fitted.n_iter_ <= max(3, first // 2)  # it went on from where it was
    assert fitted.partial_fit(X, y).coef_.shape == (1, 8)
    stream = clone(model).partial_fit(X, y, classes=["no", "yes"])
    assert stream.coef_.shape == (1, 8)
    three = np.array(["low", "mid", "high"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    assert clone(model).fit(X, three).coef_.shape == (3, 8)
    assert clone(model).fit(X, np.column_stack([y == "no", y == "yes"]).astype(int)).coef_.shape == (2, 8)
