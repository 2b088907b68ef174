"""The table of losses. A loss trains a map: its form, the row of the map, and that map's radius say all there is.

Four forms. With p the map of z and eta the target:

* ``log``: the Kullback-Leibler divergence of p from eta;
* ``huber``: the Fenchel-Young loss (p - eta).(z - r (p + eta)/2), whose gradient is p - eta;
* ``tsallis``: the Fenchel-Young loss of minus Tsallis' entropy, whose gradient is p - eta too;
* ``hinge``: the piecewise linear function F(z, r) of docs/math.md at the map's radius r, over r where it is `scaled`.

The functions, modules and the classifier's choice are made from the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparsegen._table.maps import MAPS, Map


@dataclass(frozen=True)
class Loss:
    """One loss: the map it trains, its form, and what it takes."""

    name: str
    mapping: str
    form: Literal["log", "huber", "tsallis", "hinge"]
    summary: str  # one sentence
    display: str  # the loss as TeX
    example: float  # the loss of EXAMPLE with the default control, to four digits
    control: str = ""
    default: float = 0.0  # of the control
    scaled: bool = False
    notes: str = ""

    @property
    def map(self) -> Map:
        """The row of the map it trains."""
        return MAPS[self.mapping]

    @property
    def even(self) -> bool:
        """Does it ask for equal shares of a row's labels? A loss of 0 would not mean that the map returns others."""
        return self.form == "hinge"

    @property
    def smooth(self) -> bool:
        """Has it a gradient everywhere?"""
        return self.form != "hinge"


# The call that documentation shows: scores, and a multi-hot target.
EXAMPLE = ((0.5, 1.0, -0.25, 0.75), (1, 0, 0, 1))

_PAIRS = (
    "Pairs are ordered, as the paper writes them: the first sum counts each twice. Time O(K log P) and memory O(K) per "
    "row, P the number of its labels. Where a term is at its kink it counts as inactive. Distributions that are not "
    "uniform on their labels are refused: a loss of 0 would not mean that the map returns them."
)

# fmt: off
LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss("softmax_log", "softmax", "log",
             "Kullback-Leibler divergence of softmax from the target: the loss of softmax.",
             r"\mathrm{KL}(\eta \,\|\, \mathrm{softmax}(z)) = \log\sum_j e^{z_j} - \eta\cdot z"
             r" + \sum_i \eta_i \log \eta_i", 0.6646),
        Loss("sparsemax_huber", "sparsegen_lin", "huber",
             "Loss whose gradient is sparsegen_lin(z, lam) - eta: smooth, Huber's function for two classes.",
             r"(p - \eta)\cdot\bigl(z - (1 - \lambda)(p + \eta)/2\bigr), \quad p = \mathrm{sparsegen\_lin}(z, \lambda)",
             0.2708, "lam", notes="With lam = 0 it is the sparsemax loss."),
        Loss("entmax", "entmax", "tsallis",
             "Convex loss whose gradient is entmax(z, alpha) - eta.",
             r"(p - \eta)\cdot z + \Omega(\eta) - \Omega(p), \quad p = \mathrm{entmax}(z, \alpha), \quad"
             r" \Omega(p) = \sum_i \frac{p_i^\alpha - p_i}{\alpha (\alpha - 1)}",
             0.334, "alpha", 1.5,
             notes="With alpha = 1 it is the loss of softmax, with alpha = 2 the sparsemax loss. It is 0 exactly where "
                   "the map returns the target."),
        Loss("sparsegen_hinge", "sparsegen_lin", "hinge",
             "Convex loss, the paper's, that is 0 exactly where sparsegen_lin(z, lam) is uniform on the labels.",
             r"\frac{1}{1-\lambda} \sum_{i, j \in Y} |z_i - z_j|"
             r" + \sum_{i \in Y, j \notin Y} \Bigl[\eta_i - \frac{z_i - z_j}{1-\lambda}\Bigr]_+",
             2.25, "lam", scaled=True, notes=_PAIRS),
        Loss("sparsehourglass_hinge", "sparsehourglass", "hinge",
             "Convex loss that is 0 exactly where sparsehourglass(z, q) is uniform on the labels.",
             r"\sum_{i, j \in Y} |z_i - z_j| + \sum_{i \in Y, j \notin Y}"
             r" \bigl[\eta_i / \hat\alpha(z) - (z_i - z_j)\bigr]_+, \qquad"
             r" \hat\alpha(z) = \frac{1 + Kq}{|\sum_k z_k| + Kq}",
             2.45, "q", 1.0,
             notes=_PAIRS + " With q = 0 the loss would be 0 at z = 0 for every label set."),
    )
}
# fmt: on
