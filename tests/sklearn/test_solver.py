"""The convex solver: its bound is a bound, and its answer is the optimum found by other methods."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog, minimize

from sparsegen._table.targets import read
from sparsegen.numpy import losses as _losses
from sparsegen.sklearn import solver

CASES = [
    ("softmax_log", 0.0),
    ("sparsemax_huber", 0.0),
    ("sparsegen_hinge", 0.0),
    ("sparsegen_hinge", 0.5),
    ("sparsehourglass_hinge", 0.2),
    ("sparsehourglass_hinge", np.inf),
]


def sample(n=40, d=3, K=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    Y = (X @ rng.normal(size=(d, K)) + rng.normal(size=(n, K)) > 0.3).astype(np.int64)
    Y[Y.sum(axis=1) == 0, 0] = 1
    return X, Y


def problem(X, Y, loss, control, alpha=0.05, weight=None, intercept=True):
    weight = np.ones(len(Y)) if weight is None else weight
    return solver.Problem(X, read(Y, Y.shape), Y.shape[1], loss, control, alpha, weight, intercept)


def objective(W, X, Y, loss, control, alpha):
    z = np.ascontiguousarray(np.hstack([X, np.ones((len(X), 1))]) @ W)
    return _losses.evaluate(loss, z, read(Y, Y.shape), control).value.mean() + alpha / 2 * (W * W).sum()


@pytest.mark.parametrize(("loss", "control"), CASES)
def test_the_gap_that_is_asked_for_is_reached(loss, control):
    X, Y = sample()
    for tol in (1e-2, 1e-4):
        found = solver.solve(problem(X, Y, loss, control), None, tol, 20_000)
        assert found.converged
        assert 0 <= found.gap <= tol
        assert found.primal == pytest.approx(objective(found.weights, X, Y, loss, control, 0.05), rel=1e-12)


@pytest.mark.parametrize(("loss", "control"), CASES)
def test_no_model_is_below_the_bound(loss, control):
    X, Y = sample(seed=1)
    found = solver.solve(problem(X, Y, loss, control), None, 1e-3, 20_000)
    rng = np.random.default_rng(2)
    for scale in (1e-3, 1e-2, 0.1, 1.0):
        for _ in range(25):
            W = found.weights + scale * rng.normal(size=found.weights.shape)
            assert objective(W, X, Y, loss, control, 0.05) >= found.dual


@pytest.mark.parametrize(("loss", "control"), CASES)
def test_another_method_finds_nothing_better(loss, control):
    X, Y = sample(n=15, d=2, K=3, seed=3)
    found = solver.solve(problem(X, Y, loss, control), None, 1e-5, 50_000)

    def f(w):
        return objective(w.reshape(3, 3), X, Y, loss, control, 0.05)

    best = min(
        minimize(f, start, method="Powell", options={"maxiter": 5, "xtol": 1e-6, "ftol": 1e-10}).fun
        for start in (found.weights.ravel(), np.zeros(9))
    )
    assert found.primal <= best * (1 + 1e-5)


def linear_program(X, Y, lam):
    """The least hinge loss of a linear model without penalty, as an LP over weights and one slack a pair."""
    n, d, K = *X.shape, Y.shape[1]
    A, b, cost = [], [], []
    for x, y in zip(np.hstack([X, np.ones((n, 1))]), Y):
        on, off = np.flatnonzero(y), np.flatnonzero(y == 0)
        for i in on:
            for j in on:
                if i < j:
                    A += [(x, i, j, -1), (x, j, i, -1)]
                    b += [0.0, 0.0]
                    cost.append((2 / (1 - lam), 2))
            for j in off:
                A.append((x, i, j, -1))
                b.append(-1 / len(on) * (1 - lam))
                cost.append((1 / (1 - lam), 1))
    slacks = len(cost)
    rows, c = np.zeros((len(A), (d + 1) * K + slacks)), np.zeros((d + 1) * K + slacks)
    at = 0
    for k, (price, uses) in enumerate(cost):
        c[(d + 1) * K + k] = price / n
        for _ in range(uses):
            x, i, j, _ = A[at]
            # pairs: +-(z_i - z_j) <= s;  hinges: m - (z_i - z_j) <= s
            sign = 1.0 if uses == 2 else -1.0
            block = rows[at, : (d + 1) * K].reshape(d + 1, K)
            block[:, i] += sign * x
            block[:, j] -= sign * x
            rows[at, (d + 1) * K + k] = -1
            at += 1
    bounds = [(None, None)] * ((d + 1) * K) + [(0, None)] * slacks
    found = linprog(c, rows, np.array(b), bounds=bounds, method="highs")
    assert found.status == 0
    return found.fun, float((found.x[: (d + 1) * K] ** 2).sum())


@pytest.mark.parametrize("lam", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_without_penalty_it_is_the_optimum_of_the_linear_program(lam, seed):
    X, Y = sample(n=25, d=2, K=3, seed=seed)
    least, size = linear_program(X, Y, lam)
    alpha = 1e-4
    found = solver.solve(problem(X, Y, "sparsegen_hinge", lam, alpha), None, 1e-4, 50_000)
    assert least * (1 - 1e-9) <= found.primal <= (least + alpha / 2 * size) * (1 + 1e-4)


@pytest.mark.parametrize("q", [0.05, 1.0])
def test_the_hourglass_optimum_is_that_of_its_own_loss(q):
    X, Y = sample(n=30, seed=5)
    found = solver.solve(problem(X, Y, "sparsehourglass_hinge", q), None, 1e-4, 20_000)
    # From there, steps along the loss's own subgradients gain nothing.
    target, W = read(Y, Y.shape), found.weights.copy()
    A = np.hstack([X, np.ones((len(X), 1))])
    for t in range(300):
        V = _losses.evaluate("sparsehourglass_hinge", np.ascontiguousarray(A @ W), target, q).grad
        W = W - 0.05 / (1 + t) * (A.T @ V / len(X) + 0.05 * W)
        assert objective(W, X, Y, "sparsehourglass_hinge", q, 0.05) >= found.primal * (1 - 1e-4)
    assert abs((A @ found.weights).sum(axis=1)).max() < 1e-8


@pytest.mark.parametrize(("loss", "control"), CASES)
def test_sparse_features_give_the_dense_answer(loss, control):
    X, Y = sample()
    X[abs(X) < 0.7] = 0
    dense, sparse = (solver.solve(problem(A, Y, loss, control), None, 1e-4, 20_000) for A in (X, sp.csr_array(X)))
    assert sparse.primal == pytest.approx(dense.primal, rel=2e-4)


def test_weights_count_as_repeated_rows():
    X, Y = sample(n=12)
    weight = np.array([1.0, 2.0, 3.0] * 4)
    repeat = weight.astype(int)
    for loss, control in CASES:
        one = solver.solve(problem(X, Y, loss, control, weight=weight), None, 1e-5, 50_000)
        two = solver.solve(problem(X.repeat(repeat, 0), Y.repeat(repeat, 0), loss, control), None, 1e-5, 50_000)
        assert one.primal == pytest.approx(two.primal, rel=2e-5)


def test_a_good_start_saves_iterations_and_changes_no_optimum():
    X, Y = sample(n=200, d=6)
    first = solver.solve(problem(X, Y, "sparsegen_hinge", 0.0), None, 1e-3, 20_000)
    again = solver.solve(problem(X, Y, "sparsegen_hinge", 0.0), first.weights, 1e-3, 20_000)
    assert again.primal <= first.primal * (1 + 1e-3)
    assert again.primal >= first.dual


def test_it_stops_after_the_iterations_it_is_given():
    X, Y = sample(n=100, d=8)
    found = solver.solve(problem(X, Y, "sparsegen_hinge", 0.0, alpha=1e-6), None, 1e-9, 5)
    assert not found.converged
    assert found.n_iter <= 5
    assert found.gap > 1e-9


def test_the_hourglass_is_sparsemax_with_another_penalty():
    X, Y = sample(n=60)
    q, alpha = 0.1, 0.05
    T = 4 * q / (1 + 4 * q)
    hourglass = solver.solve(problem(X, Y, "sparsehourglass_hinge", q, alpha), None, 1e-4, 20_000)
    plain = solver.solve(problem(X, Y, "sparsegen_hinge", 0.0, alpha * T), None, 1e-4, 20_000)
    assert hourglass.primal == pytest.approx(T * plain.primal, rel=2e-4)
