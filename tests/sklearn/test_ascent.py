"""Ascent in the dual: its certificate is one, and its answer is the optimum that L-BFGS finds."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from sparsegen import _core
from sparsegen._table.targets import read
from sparsegen.numpy.losses import evaluate
from sparsegen.sklearn.ascent import PASSES, Ascent
from sparsegen.sklearn.rows import Rows
from sparsegen.sklearn.solver import Problem, solve

HUBER = "sparsemax_huber"


def sample(n=60, d=5, K=4, seed=0, sparse=False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    Y = (X @ rng.normal(size=(d, K)) + rng.normal(size=(n, K)) > 0.5).astype(np.int64)
    Y[np.arange(n), rng.integers(K, size=n)] = 1
    if sparse:
        X = sp.csr_array(np.where(abs(X) > 0.8, X, 0.0))
    return Rows(X, sp.csr_array(Y), rng.integers(1, 4, n).astype(float))


def objective(W, rows, control, alpha, constant):
    X = rows.X.toarray() if sp.issparse(rows.X) else rows.X
    if constant:
        X = np.hstack([X, np.full((len(X), 1), constant)])
    value = evaluate(HUBER, np.ascontiguousarray(X @ W), read(rows.Y, rows.Y.shape), control).value
    return float(np.average(value, weights=rows.weight)) + alpha / 2 * float((W * W).sum())


def by_lbfgs(rows, control, alpha, constant, tol=1e-7):
    target = read(rows.Y, rows.Y.shape)
    problem = Problem(rows.X, target, rows.Y.shape[1], HUBER, control, alpha, rows.weight, constant)
    return solve(problem, None, tol, 20_000)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("constant", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("control", [0.0, 0.6, -2.0])
def test_the_optimum_is_that_of_another_method(sparse, constant, control):
    rows = sample(sparse=sparse)
    for alpha, tol in ((1.0, 1e-3), (0.05, 1e-5)):
        found = Ascent(rows, HUBER, control, constant).fit(alpha, tol, 1000)
        assert found.converged
        assert 0 <= found.gap <= tol
        assert found.primal == pytest.approx(objective(found.weights, rows, control, alpha, constant), rel=1e-10)
        best = by_lbfgs(rows, control, alpha, constant)
        assert found.dual <= best.primal * (1 + 1e-9)
        assert best.dual * (1 - 1e-9) <= found.primal <= best.primal / (1 - tol)


def test_no_model_is_below_the_bound():
    rows, rng = sample(seed=1), np.random.default_rng(2)
    found = Ascent(rows, HUBER, 0.0, 1.0).fit(0.05, 1e-2, 1000)
    for scale in (1e-3, 1e-2, 0.1, 1.0):
        for _ in range(25):
            W = found.weights + scale * rng.normal(size=found.weights.shape)
            assert objective(W, rows, 0.0, 0.05, 1.0) >= found.dual


def test_one_row_is_at_its_optimum_after_one_pass():
    rows = sample(n=1, K=6, seed=3)
    found = Ascent(rows, HUBER, 0.0, 1.0).fit(0.1, 1e-12, 1)
    assert found.converged


def test_a_path_of_penalties_ends_where_a_single_fit_does():
    rows, alphas = sample(seed=4, sparse=True), (1.0, 0.3, 0.1)
    path = Ascent(rows, HUBER, 0.0, 1.0)
    for alpha in alphas:
        found = path.fit(alpha, 1e-6, 1000)
        single = Ascent(rows, HUBER, 0.0, 1.0).fit(alpha, 1e-6, 1000)
        assert found.primal == pytest.approx(single.primal, rel=2e-6)


def test_it_goes_on_from_given_weights_and_leaves_good_ones_alone():
    rows = sample(seed=5)
    first = Ascent(rows, HUBER, 0.0, 1.0).fit(0.05, 1e-4, 1000)
    again = Ascent(rows, HUBER, 0.0, 1.0, first.weights.copy()).fit(0.05, 1e-3, 1000)
    assert again.n_iter == 0
    np.testing.assert_array_equal(again.weights, first.weights)
    worse = Ascent(rows, HUBER, 0.0, 1.0, first.weights + 0.3).fit(0.05, 1e-3, 1000)
    assert worse.converged
    assert worse.primal == pytest.approx(first.primal, rel=2e-3)
    other = Ascent(rows, HUBER, 0.0, 0.0, first.weights).fit(0.05, 1e-3, 1000)  # another shape: from nothing
    assert other.converged


def test_hard_problems_are_handed_to_lbfgs():
    rows = sample(n=40, d=3)
    fitter = Ascent(rows, HUBER, 0.0, 1.0)
    found = fitter.fit(1e-5, 1e-4, 2000)
    assert found.converged
    assert found.n_iter > PASSES
    assert found.primal == pytest.approx(by_lbfgs(rows, 0.0, 1e-5, 1.0, 1e-6).primal, rel=2e-4)
    assert fitter.fit(1e-2, 1e-4, 2000).primal == pytest.approx(by_lbfgs(rows, 0.0, 1e-2, 1.0).primal, rel=2e-4)


def test_it_stops_after_the_passes_it_is_given():
    found = Ascent(sample(), HUBER, 0.0, 1.0).fit(1e-6, 1e-9, 3)
    assert not found.converged
    assert found.n_iter == 3
    assert found.gap > 1e-9


@pytest.mark.parametrize("engine", _core.engines())
@pytest.mark.parametrize(("K", "sparse"), [(1, False), (2, True), (37, True), (3000, True), (2100, False)])
def test_every_engine_finds_the_optimum_for_any_number_of_labels(engine, K, sparse):
    rows = sample(n=12, d=9, K=K, seed=6, sparse=sparse)
    before = _core.engine()
    _core.use_engine(engine)
    try:
        found = Ascent(rows, HUBER, 0.0, 1.0).fit(0.2, 1e-4, 200)
    finally:
        _core.use_engine(before)
    assert found.converged
    assert found.primal == pytest.approx(objective(found.weights, rows, 0.0, 0.2, 1.0), rel=1e-9, abs=1e-12)
    best = by_lbfgs(rows, 0.0, 0.2, 1.0, 1e-5)
    assert best.dual - 1e-12 <= found.primal <= best.primal * (1 + 2e-4) + 1e-12
