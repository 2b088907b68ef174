"""Probability maps with a dial: "On Controllable Sparse Alternatives to Softmax" (Laha et al., NeurIPS 2018), exact.

>>> import sparsegen as sg
>>> sg.sparsegen_lin([0.5, 0.25, 0.0], lam=0.5)
array([0.75, 0.25, 0.  ])

The same names for PyTorch, with gradients, are in :mod:`sparsegen.torch`.
"""

from sparsegen._control import (
    Explanation,
    calibrate,
    explain,
    lam_for_mean_support,
    lam_for_peak,
    lam_for_support,
    lipschitz,
    q_for_lipschitz,
    q_for_support,
)
from sparsegen._functions import (
    hardmax,
    project,
    softmax,
    softmax_log_loss,
    sparsecone,
    sparsegen,
    sparsegen_exp,
    sparsegen_hinge_loss,
    sparsegen_lin,
    sparsegen_log,
    sparsegen_sq,
    sparsehourglass,
    sparsehourglass_hinge_loss,
    sparsemax,
    sparsemax_huber_loss,
    spherical_softmax,
    sum_normalization,
    sum_normalization_plus,
)
from sparsegen._losses import Gradients
from sparsegen._numpy import Info, get_num_threads, set_num_threads

__version__ = "0.1.0"

__all__ = [
    "Explanation",
    "Gradients",
    "Info",
    "calibrate",
    "explain",
    "get_num_threads",
    "hardmax",
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
    "sparsegen_sq",
    "sparsehourglass",
    "sparsehourglass_hinge_loss",
    "sparsemax",
    "sparsemax_huber_loss",
    "spherical_softmax",
    "sum_normalization",
    "sum_normalization_plus",
]
