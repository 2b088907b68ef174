"""Metrics of multilabel predictions beside scikit-learn's and SciPy's, dense and sparse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse
from scipy.spatial.distance import jensenshannon
from sklearn.metrics import f1_score

from sparsegen.experiments.multilabel import metrics
from sparsegen.experiments.multilabel.metrics import confidence, jensen_shannon, mean_support, micro_f1

FORMS = {
    "dense": np.asarray,
    "list": lambda a: np.asarray(a).tolist(),
    "csr_array": sparse.csr_array,
    "csr_matrix": sparse.csr_matrix,
    "coo": sparse.coo_array,
}
forms = pytest.mark.parametrize("form", FORMS)
others = pytest.mark.parametrize("other", ["dense", "csr_array"])


def sparse_rows(n, k, seed, density=0.4):
    """Rows of probabilities with zeros."""
    rng = np.random.default_rng(seed)
    p = rng.exponential(size=(n, k)) * (rng.random((n, k)) < density)
    p[:, 0] += p.sum(axis=1) == 0
    return p / p.sum(axis=1, keepdims=True)


indicators = hnp.arrays(np.int8, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.integers(0, 1))


@given(st.data(), indicators)
def test_micro_f1_is_scikit_learns(data, true):
    pred = data.draw(hnp.arrays(np.int8, true.shape, elements=st.integers(0, 1)))
    # One column would be read as a binary problem there; a column without labels changes no count.
    pad = np.zeros((len(true), 1), np.int8)
    expected = f1_score(np.hstack([true, pad]), np.hstack([pred, pad]), average="micro", zero_division=0)
    assert micro_f1(true, pred) == pytest.approx(expected, abs=1e-15)
    assert micro_f1(sparse.csr_array(true), pred) == micro_f1(true, pred)


@forms
@others
def test_micro_f1_takes_every_form(form, other):
    rng = np.random.default_rng(0)
    true, pred = rng.integers(0, 2, (2, 40, 7))
    expected = f1_score(true, pred, average="micro")
    assert micro_f1(FORMS[form](true), FORMS[other](pred)) == pytest.approx(expected)


@forms
def test_a_label_is_on_where_the_probability_is_not_zero(form):
    P = sparse_rows(30, 8, 1)
    true = (sparse_rows(30, 8, 2) > 0).astype(int)
    assert micro_f1(true, FORMS[form](P)) == pytest.approx(f1_score(true, P > 0, average="micro"))


def test_micro_f1_of_nothing_is_zero_and_of_the_truth_is_one():
    zero = np.zeros((3, 4), int)
    assert micro_f1(zero, zero) == 0
    assert micro_f1(zero, np.eye(3, 4)) == 0
    assert micro_f1(np.eye(3, 4), np.eye(3, 4)) == 1


@forms
@others
def test_jensen_shannon_is_the_square_of_scipys_distance(form, other):
    P, Q = sparse_rows(50, 6, 3), sparse_rows(50, 6, 4)
    expected = np.mean([jensenshannon(p, q) ** 2 for p, q in zip(P, Q)])
    assert jensen_shannon(FORMS[form](P), FORMS[other](Q)) == pytest.approx(expected, abs=1e-14)


def test_jensen_shannon_by_hand():
    p, q, m = (0.5, 0.5, 0.0), (0.25, 0.0, 0.75), (0.375, 0.25, 0.375)
    kl = [sum(a * math.log(a / b) for a, b in zip(x, m) if a) for x in (p, q)]
    assert jensen_shannon([p], [q]) == pytest.approx(sum(kl) / 2, abs=1e-15)


def test_jensen_shannon_is_zero_between_equals_log_2_between_strangers_and_symmetric():
    P, Q = sparse_rows(20, 5, 5), sparse_rows(20, 5, 6)
    assert jensen_shannon(P, P) == 0
    assert jensen_shannon(np.eye(4), np.roll(np.eye(4), 1, axis=0)) == pytest.approx(math.log(2), abs=1e-15)
    assert jensen_shannon(P, Q) == pytest.approx(jensen_shannon(Q, P), abs=1e-15)


def test_the_smallest_probability_does_not_overflow():
    tiny = np.nextafter(0, 1)
    assert jensen_shannon([[1.0, tiny]], [[1.0, 0.0]]) == 0


def test_rows_that_miss_one_by_rounding_are_scaled():
    P, Q = sparse_rows(20, 5, 7), sparse_rows(20, 5, 8)
    assert jensen_shannon(P.astype(np.float16), Q) == pytest.approx(jensen_shannon(P, Q), abs=1e-3)
    assert jensen_shannon(P * 1.0005, P) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("form", ["dense", "csr_array"])
def test_blocks_of_rows_do_not_change_the_mean(monkeypatch, form):
    P, Q = FORMS[form](sparse_rows(23, 5, 9)), FORMS[form](sparse_rows(23, 5, 10))
    whole = jensen_shannon(P, Q)
    monkeypatch.setattr(metrics, "BLOCK_ENTRIES", 20)
    assert jensen_shannon(P, Q) == pytest.approx(whole, abs=1e-15)
    with pytest.raises(ValueError, match="row 22 of Q must be"):
        jensen_shannon(P, FORMS[form](np.vstack([sparse_rows(22, 5, 9), np.zeros((1, 5))])))


@forms
def test_mean_support_counts_what_is_not_zero(form):
    P = sparse_rows(50, 6, 11)
    assert mean_support(FORMS[form](P)) == np.mean([sum(v != 0 for v in row) for row in P])


def test_stored_zeros_and_repeated_entries_of_sparse_matrices_count_as_what_they_are():
    stored = sparse.csr_array((np.array([1.0, 0.0, 0.25, 0.75]), np.array([0, 1, 2, 2]), np.array([0, 2, 4])), (2, 3))
    plain = np.array([[1.0, 0, 0], [0, 0, 1]])
    assert mean_support(stored) == 1
    assert micro_f1(plain, stored) == 1
    assert jensen_shannon(plain, stored) == 0
    assert stored.nnz == 4  # the caller's matrix is as it was


def test_the_callers_arrays_are_not_changed():
    P, Q = sparse_rows(5, 4, 12) * 1.0003, sparse_rows(5, 4, 13)
    before = P.copy(), Q.copy()
    jensen_shannon(P, Q)
    micro_f1(P, Q)
    mean_support(P)
    np.testing.assert_array_equal((P, Q), before)


@pytest.mark.parametrize(("values", "level"), [([0.7, 0.72, 0.74], 0.95), ([1.0, 5.0], 0.5), (np.arange(9.0), 0.99)])
def test_confidence_is_students_interval(values, level):
    mean, low, high = confidence(values, level)
    expected = scipy.stats.t.interval(level, len(values) - 1, np.mean(values), scipy.stats.sem(values))
    assert mean == pytest.approx(np.mean(values))
    assert (low, high) == pytest.approx(expected)


def test_the_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = [c.low <= 3 <= c.high for c in (confidence(rng.normal(3, 2, 5), 0.9) for _ in range(4000))]
    assert 0.88 < np.mean(covered) < 0.92


def test_one_seed_has_no_interval_and_equal_seeds_a_point():
    mean, low, high = confidence([0.5])
    assert mean == 0.5
    assert math.isnan(low)
    assert math.isnan(high)
    assert confidence([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)


BAD = [
    (
        lambda: micro_f1(np.ones((2, 3)), np.ones((3, 2))),
        ValueError,
        r"Y_pred must be of the shape of Y_true, \(2, 3\)",
    ),
    (lambda: micro_f1([1, 0], [1, 0]), ValueError, "Y_true must be a matrix with at least one row"),
    (lambda: micro_f1(np.ones((0, 3)), np.ones((0, 3))), ValueError, "Y_true must be a matrix with at least one row"),
    (lambda: micro_f1([["a"]], [["a"]]), TypeError, "Y_true must be a matrix of numbers"),
    (lambda: micro_f1([[1.0]], [[math.nan]]), ValueError, "Y_pred must be free of NaN"),
    (lambda: micro_f1([[1.0]], sparse.csr_array([[math.nan]])), ValueError, "Y_pred must be free of NaN"),
    (lambda: mean_support([[math.nan]]), ValueError, "P must be free of NaN"),
    (lambda: jensen_shannon([[0.5, 0.5]], [[0.5, 0.4]]), ValueError, "row 0 of Q must be probabilities that sum to 1"),
    (lambda: jensen_shannon([[1.5, -0.5]], [[0.5, 0.5]]), ValueError, "row 0 of P .* smallest entry -0.5"),
    (lambda: jensen_shannon([[1.0, 0.0], [0.0, 0.0]], np.eye(2)), ValueError, "row 1 of P must be .* got sum 0"),
    (lambda: jensen_shannon([[math.inf, 0.0]], [[1.0, 0.0]]), ValueError, "row 0 of P must be"),
    (lambda: confidence([]), ValueError, "values must be a non-empty list of finite numbers"),
    (lambda: confidence([0.5, math.nan]), ValueError, "values must be a non-empty list of finite numbers"),
    (lambda: confidence([[0.5]]), ValueError, "values must be a non-empty list of finite numbers"),
    (lambda: confidence([0.5], 95), ValueError, "level must be between 0 and 1, got 95"),
    (lambda: confidence([0.5], math.nan), ValueError, "level must be between 0 and 1"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_arguments_are_refused_by_name(call, error, message):
    with pytest.raises(error, match=f"sparsegen: {message}"):
        call()
