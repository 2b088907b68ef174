"""Steps along subgradients for rows that come in parts: AdaGrad's, and the average of where they led."""

from __future__ import annotations

import numpy as np

from sparsegen.sklearn.solver import Problem

RATE = 0.5


class Stream:
    """Weights on their way, and their mean."""

    def __init__(self, W: np.ndarray) -> None:
        self.W, self.mean, self.square, self.steps = W, W.copy(), np.full_like(W, 1e-8), 0

    def copy(self) -> Stream:
        """Return one that can be moved without moving this."""
        other = Stream(self.W.copy())
        other.mean, other.square, other.steps = self.mean.copy(), self.square.copy(), self.steps
        return other

    def step(self, problem: Problem) -> None:
        """Move by one step for the rows of a problem."""
        _, grad = problem.smoothed(self.W.ravel(), 0.0)
        grad = grad.reshape(self.W.shape)
        self.square += grad * grad
        self.W -= RATE * grad / np.sqrt(self.square)
        self.steps += 1
        # Later steps count more, so that the average forgets a bad start.
        self.mean += 2 * (self.W - self.mean) / (self.steps + 1)
