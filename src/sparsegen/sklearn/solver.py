"""Linear models at their convex optimum, with a certificate: minimise a loss of this package plus a penalty.

.. math:: P(W) = \\frac{1}{\\sum_i s_i} \\sum_i s_i L_i(W^\\top x_i) + \\frac{\\alpha}{2} \\|W\\|^2

Every evaluation of the losses gives gradients v_i and numbers d_i with L_i(z) >= v_i . z + d_i for all z. With
G = sum s_i x_i v_i' / sum s_i that makes a lower bound on the minimum,

.. math:: D = \\frac{1}{\\sum_i s_i} \\sum_i s_i d_i - \\frac{1}{2 \\alpha} \\|G\\|^2 \\le \\min P,

so P(W) - D says how far from the optimum W can be. Hinge losses are smoothed, less and less, until that gap is closed;
L-BFGS minimises each smooth problem.

The hinge loss of sparsehourglass needs no case of its own. Its radius (|S| + Kq)/(1 + Kq) is smallest where the sum S
of the scores is 0, and subtracting from W its mean over the classes makes S = 0, leaves all differences of scores as
they are, and does not increase the penalty. So the minimum is that of the same sums at the constant radius
Kq/(1 + Kq), which is the hinge loss of sparsegen at lam = 1/(1 + Kq), times that radius.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from sparsegen._table.losses import LOSSES
from sparsegen._table.targets import Target, read
from sparsegen.numpy.losses import Evaluation, evaluate
from sparsegen.sklearn.rows import Rows, blocks, part, scores

MEMORY = 30  # of L-BFGS; 10 takes about a third more evaluations on the paper's data
MEMORY_BYTES = 1 << 30  # that it may take; at least three pairs of vectors are kept
FIRST_SMOOTHING, LAST_SMOOTHING = 1.0, 1e-6  # in units of scores, whose margin is at most 1; below, sums lose digits
STEEPEST = 0.1  # by how much the smoothing falls at once
ONE_THREAD = 1 << 22  # multiplications below which waking BLAS threads costs more than it saves


@dataclass(frozen=True, eq=False)
class Solution:
    """A linear model and how good it is."""

    weights: np.ndarray  # (d, K), or (d + 1, K) with that of the constant feature last
    primal: float
    dual: float
    n_iter: int
    n_evaluations: int
    converged: bool

    @property
    def gap(self) -> float:
        """Largest possible distance to the minimum, as a share of the objective."""
        return (self.primal - self.dual) / self.primal if self.primal > 0 else 0.0


class Problem:
    """The objective on one set of rows. X is dense or sparse and never copied; a `constant` is one more feature."""

    def __init__(
        self, X: Any, target: Target, n_classes: int, loss: str, control: float, alpha: float, weight: np.ndarray,
        constant: float,
    ) -> None:  # fmt: skip
        self.X, self.target, self.alpha = X, target, alpha
        self.true = (loss, control)
        self.loss, self.control, self.scale = _at_zero_sum(loss, control, n_classes)
        self.weight, self.constant = weight / weight.sum(), float(constant)
        self.shape = (X.shape[1] + (constant != 0), n_classes)
        self.smooth = LOSSES[loss].smooth
        self.dual = -np.inf
        self.evaluations = 0

    def _evaluations(self, W: np.ndarray, loss: tuple[str, float], *how: Any) -> Iterator[tuple[slice, Evaluation]]:
        """The loss of every row, by blocks whose scores fit into memory."""
        for at in blocks(self.X.shape[0], self.shape[1]):
            z = scores(part(self.X, at), W, self.constant)
            yield at, evaluate(loss[0], z, self.target.between(at.start, at.stop), loss[1], *how)

    def penalty(self, W: np.ndarray) -> float:
        """Return the penalty; the weight of the constant feature pays like the others."""
        return self.alpha / 2 * float(np.vdot(W, W))

    def primal(self, W: np.ndarray) -> float:
        """Return the objective itself, without smoothing."""
        value = np.concatenate([found.value for _, found in self._evaluations(W, self.true, 0.0, False)])
        return float(self.weight @ value) + self.penalty(W)

    def smoothed(self, w: np.ndarray, smoothing: float) -> tuple[float, np.ndarray]:
        """Return the smoothed objective and its gradient; the best lower bound seen is kept."""
        self.evaluations += 1
        W = w.reshape(self.shape)
        share = self.scale * self.weight
        value, dual, G = 0.0, 0.0, np.zeros(self.shape)
        for at, found in self._evaluations(W, (self.loss, self.control), smoothing):
            V = found.grad
            assert V is not None  # asked for
            V *= share[at, None]
            G[: self.X.shape[1]] += part(self.X, at).T @ V
            if self.constant:
                G[-1] += self.constant * V.sum(axis=0)
            value, dual = value + float(share[at] @ found.value), dual + float(share[at] @ found.dual)
        self.dual = max(self.dual, dual - float(np.vdot(G, G)) / (2 * self.alpha))
        return value + self.penalty(W), (G + self.alpha * W).ravel()


def _at_zero_sum(loss: str, control: float, n_classes: int) -> tuple[str, float, float]:
    """The loss to minimise, its control and its factor, for models whose scores sum to 0."""
    if loss != "sparsehourglass_hinge":
        return loss, control, 1.0
    lam = 1 / (1 + n_classes * control)
    return "sparsegen_hinge", lam, 1 - lam


class _Stage:
    """One smooth problem; stops when what is left to gain is small beside the gap that is asked for."""

    def __init__(self, problem: Problem, smoothing: float, enough: float) -> None:
        self.problem, self.smoothing, self.enough = problem, smoothing, enough
        self.left = np.inf

    def __call__(self, w: np.ndarray) -> tuple[float, np.ndarray]:
        value, grad = self.problem.smoothed(w, self.smoothing)
        self.left, self.value = float(np.vdot(grad, grad)) / (2 * self.problem.alpha), value
        return value, grad

    def after(self, intermediate_result: Any) -> None:
        """End the stage (called after each iteration)."""
        if self.left <= self.enough * self.value:
            raise StopIteration


def solve(problem: Problem, start: np.ndarray | None, tol: float, max_iter: int) -> Solution:
    """Minimise until the gap is at most `tol` of the objective, or `max_iter` iterations are spent."""
    small = problem.X.shape[0] * problem.shape[0] * problem.shape[1] < ONE_THREAD
    with threadpool_limits(1 if small else None, user_api="blas"):
        return _solve(problem, start, tol, max_iter)


def _solve(problem: Problem, start: np.ndarray | None, tol: float, max_iter: int) -> Solution:
    W = np.zeros(problem.shape) if start is None else start
    if problem.loss != problem.true[0]:
        W = W - W.mean(axis=1, keepdims=True)
    best, best_W, spent, smoothing = problem.primal(W), W, 0, FIRST_SMOOTHING
    while spent < max_iter:
        stage = _Stage(problem, 0.0 if problem.smooth else smoothing, tol / 4)
        memory = max(3, min(MEMORY, MEMORY_BYTES // (16 * W.size)))
        options = {"maxiter": max_iter - spent, "maxfun": 20 * max_iter, "maxcor": memory, "ftol": 0.0, "gtol": 0.0}
        found = minimize(stage, W.ravel(), jac=True, method="L-BFGS-B", options=options, callback=stage.after)
        W, spent = found.x.reshape(problem.shape), spent + max(int(found.nit), 1)
        primal = problem.primal(W)
        if primal < best:
            best, best_W = primal, W
        gap = best - problem.dual
        if gap <= tol * best or problem.smooth or smoothing <= LAST_SMOOTHING:
            break
        # The gap that smoothing leaves is about proportional to it: aim at half of what is allowed.
        smoothing *= min(0.5, max(STEEPEST, tol * best / (2 * gap)))
    converged = best - problem.dual <= tol * best
    return Solution(best_W, best, problem.dual, spent, problem.evaluations, converged)


class Descent:
    """Fits for several penalties, each from where the last ended."""

    def __init__(self, rows: Rows, loss: str, control: float, constant: float, start: np.ndarray | None = None) -> None:
        self.rows, self.loss, self.control, self.constant = rows, loss, control, constant
        self.target, self.W = read(rows.Y, rows.Y.shape), start

    def fit(self, alpha: float, tol: float, max_iter: int) -> Solution:
        """Return the optimum for a penalty."""
        X, Y, weight = self.rows
        problem = Problem(X, self.target, Y.shape[1], self.loss, self.control, alpha, weight, self.constant)
        start = self.W if self.W is not None and self.W.shape == problem.shape else None
        found = solve(problem, start, tol, max_iter)
        self.W = found.weights
        return found
