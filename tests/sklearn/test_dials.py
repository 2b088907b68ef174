"""The dial at prediction: the best cut is the best of all, and a radius is a cut."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics import f1_score
from sklearn.model_selection import GroupKFold

import sparsegen as sg
from sparsegen.sklearn import SparseMultilabelClassifier, dials, validation
from sparsegen.sklearn.rows import Rows, merged
from sparsegen.sklearn.validation import ONE_PART, dealt


def labelled(rng, n=7, K=5):
    Y = rng.integers(0, 2, (n, K))
    Y[:, 0] |= Y.sum(axis=1) == 0
    return Y


@pytest.mark.parametrize("metric", ["f1_micro", "f1_macro", "f1_samples"])
@pytest.mark.parametrize("always", [False, True])
def test_the_best_cut_is_the_best_of_all(metric, always):
    rng = np.random.default_rng(0)
    for _ in range(15):
        Y, P, weight = labelled(rng), rng.integers(0, 9, (7, 5)) / 16, rng.integers(1, 4, 7).astype(float)
        keys = sp.csr_array(P)
        if always:
            keys = dials.with_tops(sp.csr_array(np.maximum(P, 1e-3)), P)

        def score(cut, Y=Y, P=P, weight=weight):
            on = (np.maximum(P, 1e-3) if always else P) > cut
            on |= dials.tops(P) & always
            average = metric.removeprefix("f1_")
            return f1_score(Y, on, average=average, sample_weight=weight, zero_division=0)

        found = dials.best_cut(sp.csr_array(Y), keys, metric, weight)
        assert found.score == pytest.approx(score(found.at))
        cuts = np.concatenate([[1e-4, 2e-3], np.unique(P) + 1e-6, [1.0]])
        assert found.score == pytest.approx(max(map(score, cuts)))


def test_rows_without_labels_are_right_where_none_is_predicted():
    Y, P = sp.csr_array(np.array([[0, 0], [1, 0]])), sp.csr_array(np.array([[0.2, 0.1], [0.6, 0.3]]))
    found = dials.best_cut(Y, P, "f1_samples")
    assert found.score == 1
    assert 0.3 < found.at < 0.6


def test_cardinality_predicts_as_many_labels_as_there_are():
    rng = np.random.default_rng(1)
    Y, P = labelled(rng, 50, 8), rng.random((50, 8))
    found = dials.best_cut(sp.csr_array(Y), sp.csr_array(P), "cardinality")
    assert (found.at < P).sum() == Y.sum()
    assert found.score == pytest.approx(f1_score(Y, found.at < P, average="micro"))


def test_nothing_to_predict_is_no_error():
    found = dials.best_cut(sp.csr_array(np.eye(2)), sp.csr_array((2, 2)))
    assert found == (0.0, 0.0)


def test_a_label_is_in_the_support_of_every_radius_above_its_key():
    rng = np.random.default_rng(2)
    z = rng.normal(size=(30, 6)).round(1)  # with ties
    keys = dials.radius_keys(z, 1.0)
    for radius in (0.031, 0.333, 0.777, 1.234, 3.456):
        rho = np.full(z.shape, np.inf)
        at = np.repeat(np.arange(30), np.diff(keys.indptr)), keys.indices
        rho[at] = -keys.data
        np.testing.assert_array_equal(rho < radius, sg.project(z, radius) > 0)


def made(n=20, K=3, seed=0):
    rng = np.random.default_rng(seed)
    return Rows(rng.normal(size=(n, 2)), sp.csr_array(labelled(rng, n, K)), np.ones(n))


def test_every_row_is_held_out_once():
    rows = merged(made())
    for cv in (None, 2, 7, 100):
        dealt_rows, parts = dealt(cv, rows, rows)
        assert dealt_rows is rows
        np.testing.assert_array_equal(np.sort(np.concatenate([test for _, test in parts])), np.arange(20))
        assert all(len(np.intersect1d(train, test)) == 0 and len(train) + len(test) == 20 for train, test in parts)


def test_one_part_is_held_out_where_there_are_many_scores():
    rows = made(n=10)
    K = ONE_PART // 10 + 1
    wide = Rows(rows.X, sp.csr_array((np.ones(10), (np.arange(10), np.arange(10))), shape=(10, K)), rows.weight)
    assert [len(test) for _, test in dealt(None, wide, wide)[1]] == [2]
    assert len(dealt(5, wide, wide)[1]) == 5


def test_a_splitter_is_shown_all_rows_and_those_that_do_not_take_part_are_left_out():
    rows = made()
    weight = rows.weight.copy()
    weight[[0, 7]] = 0
    rows = rows._replace(weight=weight)
    splits = list(GroupKFold(4).split(rows.X, groups=np.arange(20) % 4))
    _, parts = dealt(splits, rows, rows.taking_part())
    held = np.sort(np.concatenate([test for _, test in parts]))
    np.testing.assert_array_equal(held, np.setdiff1d(np.arange(20), [0, 7]))


@pytest.mark.parametrize("metric", dials.METRICS)
@pytest.mark.parametrize("signal", [0.0, 2.0])
def test_keys_that_cannot_matter_are_not_sorted_and_nothing_changes(metric, signal, monkeypatch):
    random = np.random.default_rng(0)
    Y = sp.csr_array((random.random((40, 30)) < 0.02).astype(np.int64))
    weight = random.choice([1.0, 2.0], 40)
    keys = sp.csr_array(np.round(random.random((40, 30)) + signal * Y.toarray(), 2) / (1 + signal))
    whole = dials._best_of(Y, keys, metric, weight, 0.0, 1.0)
    sorted_keys, entries = [], dials._entries
    monkeypatch.setattr(
        dials, "_entries", lambda Y, keys, weight: sorted_keys.append(keys.nnz) or entries(Y, keys, weight)
    )
    for faint in (0.02, 0.1, 0.5, 0.95):
        monkeypatch.setattr(dials, "FAINT_F1", faint)
        assert dials.best_cut(Y, keys, metric, weight) == whole
    if metric in dials.COUNTED:
        assert min(sorted_keys) < keys.nnz / 4
    else:
        assert set(sorted_keys) == {keys.nnz}


@pytest.mark.parametrize("metric", ["f1_micro", "cardinality", "f1_macro"])
def test_keys_that_are_let_go_change_nothing(metric, monkeypatch):
    X, Y = make_multilabel_classification(300, 12, n_classes=9, n_labels=2, random_state=0)
    calls, foremost = [], dials.foremost
    monkeypatch.setattr(dials, "foremost", lambda keys, most: calls.append(most) or foremost(keys, most))
    model = SparseMultilabelClassifier(metric=metric, cv=3).fit(X, Y)
    few = len(calls)
    monkeypatch.setattr(validation, "MANY", 10)
    again = clone(model).fit(X, Y)
    assert (again.alpha_, again.threshold_) == (model.alpha_, model.threshold_)
    np.testing.assert_equal(again.cv_results_, model.cv_results_)
    assert (len(calls) - few > few) == (metric != "f1_macro")  # for which the rarest label's keys count as well
