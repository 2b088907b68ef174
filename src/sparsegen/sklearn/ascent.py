"""The huber loss by ascent in its dual, one row at a time: the optimum in a few passes over the rows.

With the other rows fixed, the best dual variable of a row is a projection, mu = project(z + c mu, r + c): see dual.hpp
of the kernel. Memory is that of the weights and of the nonzero entries of mu, of which a row has about as many as its
map. Every pass has a certificate: the sum of the rows' gaps is the distance of primal and dual.

Few rows beside a weak penalty need many passes. Such problems go on by L-BFGS, which is at home there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from sparsegen import _core
from sparsegen._table.losses import LOSSES
from sparsegen._table.targets import read
from sparsegen.numpy._kernel import address
from sparsegen.numpy.threads import get_num_threads
from sparsegen.sklearn.rows import Rows, squares
from sparsegen.sklearn.solver import Problem, Solution, solve

# A pass that gains this much more than the gap asked for has left a larger one, so far always: it is not measured.
FAR = 8.0
PASSES = 300  # that are made before L-BFGS takes over; 2 to 20 are most often enough


class Ascent:
    """Fits for several penalties, each from where the last ended; weights are valid until the next fit."""

    def __init__(self, rows: Rows, loss: str, control: float, constant: float, start: np.ndarray | None = None) -> None:
        self.rows, self.loss, self.control = rows, loss, control
        X, Y, weight = rows
        self.sparse, (n, d), K = sp.issparse(X), X.shape, Y.shape[1]
        self.share, self.target = weight / weight.sum(), read(Y, Y.shape)
        self.square = squares(X) + constant**2
        self.indptr = X.indptr.astype(np.int64, copy=False) if self.sparse else None
        self.index = X.indices.astype(np.int32, copy=False) if self.sparse else None
        self.X = np.ascontiguousarray(X.data if self.sparse else X, np.float64)
        self.W = np.zeros((d + (constant != 0), K) if self.sparse else (K, d + (constant != 0)))
        radius = float(LOSSES[loss].map.radius.value(np, np.float64(control)))
        self.dual = _core.Dual(
            [n, K, d], address(self.indptr), address(self.index), address(self.X), address(self.share),
            address(self.square), address(self.target.indptr), address(self.target.indices), address(self.target.eta),
            constant, radius, address(self.W),
        )  # fmt: skip
        self.constant, self.alpha = constant, 0.0  # 0: not yet fitted
        self.start = start if start is not None and start.shape == self.weights.shape else None
        self.order = np.random.default_rng(0)

    @property
    def weights(self) -> np.ndarray:
        """The weights (d, K), and last those of the constant feature."""
        return self.W if self.sparse else self.W.T

    def _turn_to(self, alpha: float) -> float:
        """Bring the weights to another penalty, the dual variables staying as they are; or begin at given weights.

        Returns the primal value of those: the weights of their dual variables, the map of the scores, are others.
        """
        primal = np.inf
        if self.start is not None:
            self.weights[:] = self.start
            primal, _ = self._values(alpha, restart=True)
            self.dual.weights(alpha)
        elif self.alpha:
            self.W *= self.alpha / alpha
        self.alpha = alpha
        return primal

    def _values(self, alpha: float, restart: bool = False) -> tuple[float, float]:
        """The primal value and the gap; with `restart`, for dual variables that are the map of the scores."""
        value, gap = np.empty((2, len(self.share)))
        self.dual.values(address(value), address(gap), alpha, restart, get_num_threads())
        penalty = alpha / 2 * float(np.vdot(self.W, self.W))
        return float(self.share @ value) + penalty, float(self.share @ gap)

    def fit(self, alpha: float, tol: float, max_iter: int) -> Solution:
        """Return the optimum for a penalty, after at most `max_iter` passes over the rows or steps of L-BFGS."""
        given = self._turn_to(alpha)
        primal, gap = self._values(alpha)
        start, self.start, passes = self.start, None, 0
        if start is not None and given - (primal - gap) <= tol * given:  # it is good enough as it is
            self.start = start
            return Solution(start, given, primal - gap, 0, 0, True)
        most = min(PASSES, max_iter)
        while gap > tol * primal and passes < most:
            order = self.order.permutation(len(self.share))
            rise = self.dual.pass_over(address(order), alpha)
            passes += 1
            if rise <= FAR * tol * primal or passes % 10 == 0 or passes == most:
                primal, gap = self._values(alpha)
        if gap > tol * primal and passes < max_iter:
            return self._descend(alpha, tol, max_iter - passes, passes)
        return Solution(self.weights, primal, primal - gap, passes, passes, gap <= tol * primal)

    def _descend(self, alpha: float, tol: float, max_iter: int, passes: int) -> Solution:
        """Go on by L-BFGS; the next fit begins at what it finds."""
        X, Y, weight = self.rows
        problem = Problem(X, self.target, Y.shape[1], self.loss, self.control, alpha, weight, self.constant)
        found = solve(problem, np.array(self.weights), tol, max_iter)
        self.start = found.weights.copy()
        return replace(found, n_iter=found.n_iter + passes, n_evaluations=found.n_evaluations + passes)
