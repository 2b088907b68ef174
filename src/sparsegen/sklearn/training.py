"""What a fit is asked for: a loss with its control, a solver, and the penalties that are worth trying."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sparsegen._table.losses import LOSSES
from sparsegen.sklearn.ascent import Ascent
from sparsegen.sklearn.rows import Rows, squares
from sparsegen.sklearn.solver import Descent, Solution

# Penalties to try, in units of the rows' mean squared length (and of what the loss is at 0, for hinges), from smooth to
# fine. The best lies between 0.01 and 0.0003 on all sets of results/classifiers.json.
PATH = (0.03, 0.01, 0.003, 0.001, 3e-4, 1e-4, 3e-5, 1e-5)
USUAL = PATH.index(0.003)  # where nothing can be tried


class Fitter(Protocol):
    """What both solvers do: fits for several penalties, each from where the last ended."""

    def fit(self, alpha: float, tol: float, max_iter: int) -> Solution:
        """Return the optimum for a penalty; its weights are valid until the next fit."""


@dataclass(frozen=True)
class Training:
    """A loss of the table, the control of its map, and how it is minimised."""

    loss: str
    control: float
    constant: float
    """The feature whose weight is the intercept; 0: there is none."""
    solver: str
    max_iter: int

    def radius(self, n_classes: int) -> float:
        """Return the radius of the map; where it is made of the row's mean, that is 0 at the optimum."""
        rule = LOSSES[self.loss].map.radius
        if rule.of == "sum":
            return 1.0
        if rule.of == "mean":
            return 1 / (1 + 1 / (n_classes * self.control))
        return float(rule.value(np, np.float64(self.control)))

    def fitter(self, rows: Rows, start: np.ndarray | None = None) -> Fitter:
        """Return a solver for these rows."""
        dual = self.solver == "dual" or (self.solver == "auto" and LOSSES[self.loss].form == "huber")
        return (Ascent if dual else Descent)(rows, self.loss, self.control, self.constant, start)

    def alphas(self, rows: Rows) -> tuple[float, ...]:
        """Return penalties to try; they mean the same for any scale of the features and any control."""
        loss, K = LOSSES[self.loss], rows.Y.shape[1]
        scale = float(np.average(squares(rows.X), weights=rows.weight)) + self.constant**2
        scale /= self.radius(K) ** (2 if loss.scaled else 1)
        if loss.form == "hinge":  # which is a sum over pairs
            scale *= max(K - rows.Y.nnz / rows.Y.shape[0], 1.0)
        return tuple(scale * step for step in PATH)
