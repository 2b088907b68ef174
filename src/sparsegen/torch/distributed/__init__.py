"""Maps and losses on rows too long for one process: each rank has some of the classes of every row.

The functions have the names and arguments of :mod:`sparsegen.torch`, and ``group``. Every rank gives its own classes
and gets its own part of the probabilities; losses are the same on every rank. Values and gradients are those of one
process. A few numbers per row travel, never the scores. Every rank must make the same calls in the same order; what is
wrong on one is raised on all.

>>> import torch, sparsegen.torch.distributed as sgd
>>> with sgd.single_process():  # under torchrun: torch.distributed.init_process_group()
...     p = sgd.sparsemax(torch.tensor([0.25, 1.0, 0.5]))
>>> p
tensor([0.0000, 0.7500, 0.2500])
"""

from typing import Any

from sparsegen.torch.distributed._exchange import Traffic, single_process, traffic
from sparsegen.torch.distributed.checkpoints import load, save
from sparsegen.torch.distributed.functional import (
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
    sparsegen_softmax,
    sparsegen_sq,
    sparsehourglass,
    sparsehourglass_hinge_loss,
    sparsemax,
    sparsemax_huber_loss,
    spherical_softmax,
    sum_normalization,
    sum_normalization_plus,
)
from sparsegen.torch.distributed.linear import ShardedLinear, label_sets

__all__ = [
    "ShardedLinear",
    "Traffic",
    "hardmax",
    "label_sets",
    "load",
    "project",
    "save",
    "single_process",
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
    "traffic",
]


def __getattr__(name: str) -> Any:
    """Functions of rows that the tables have beyond the names above."""
    from sparsegen.torch.distributed import functional

    return getattr(functional, name)
