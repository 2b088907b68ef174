"""Probability maps with a dial: "On Controllable Sparse Alternatives to Softmax" (Laha et al., NeurIPS 2018), exact.

>>> import sparsegen as sg
>>> sg.sparsegen_lin([0.5, 0.25, 0.0], lam=0.5)
array([0.75, 0.25, 0.  ])

The same names for PyTorch, with gradients, are in :mod:`sparsegen.torch`.
"""

from typing import TYPE_CHECKING, Any

from sparsegen.numpy import losses as _losses
from sparsegen.numpy import maps as _maps
from sparsegen.numpy._apply import Info
from sparsegen.numpy.calibration import calibrate
from sparsegen.numpy.control import (
    lam_for_mean_support,
    lam_for_peak,
    lam_for_support,
    q_for_lipschitz,
    q_for_support,
)
from sparsegen.numpy.distance import lam_for_distance
from sparsegen.numpy.explain import Explanation, explain, lipschitz
from sparsegen.numpy.losses import (
    Gradients,
    entmax_loss,
    softmax_log_loss,
    sparsegen_hinge_loss,
    sparsehourglass_hinge_loss,
    sparsemax_huber_loss,
)
from sparsegen.numpy.maps import (
    entmax,
    entmax15,
    hardmax,
    project,
    softmax,
    sparsecone,
    sparsegen,
    sparsegen_exp,
    sparsegen_lin,
    sparsegen_log,
    sparsegen_softmax,
    sparsegen_sq,
    sparsehourglass,
    sparsemax,
    spherical_softmax,
    sum_normalization,
    sum_normalization_plus,
)
from sparsegen.numpy.threads import get_num_threads, set_num_threads

__version__ = "0.2.0"

__all__ = [
    "Explanation",
    "Gradients",
    "Info",
    "calibrate",
    "entmax",
    "entmax15",
    "entmax_loss",
    "explain",
    "get_num_threads",
    "hardmax",
    "lam_for_distance",
    "lam_for_mean_support",
    "lam_for_peak",
    "lam_for_support",
    "lipschitz",
    "project",
    "q_for_lipschitz",
    "q_for_support",
    "set_num_threads",
    "softmax",
    "softmax_log_loss",
    "sparsecone",
    "sparsegen",
    "sparsegen_exp",
    "sparsegen_hinge_loss",
    "sparsegen_lin",
    "sparsegen_log",
    "sparsegen_softmax",
    "sparsegen_sq",
    "sparsehourglass",
    "sparsehourglass_hinge_loss",
    "sparsemax",
    "sparsemax_huber_loss",
    "spherical_softmax",
    "sum_normalization",
    "sum_normalization_plus",
]


if not TYPE_CHECKING:  # a checker knows the names that are written

    def __getattr__(name: str) -> Any:
        """Functions of rows that the tables have beyond the names above."""
        from sparsegen._table.functions import row_of

        return row_of(__name__, _losses if name.endswith("_loss") else _maps, name)
