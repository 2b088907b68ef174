"""The maps on torch tensors, with gradients, and as modules.

>>> import torch, sparsegen.torch as sgt
>>> z = torch.tensor([0.5, 0.25, 0.0], requires_grad=True)
>>> p = sgt.sparsegen_lin(z, lam=0.5)
>>> p[0].backward()
>>> z.grad
tensor([ 1., -1.,  0.])
"""

from typing import TYPE_CHECKING, Any

from sparsegen._table.extras import front_end as _front_end

with _front_end("torch"):
    import torch as _torch  # noqa: F401

from sparsegen.torch._apply import Info
from sparsegen.torch.attention import (
    AdditiveAttention,
    AttentionProbe,
    DotAttention,
    MultiheadAttention,
    SparseWeights,
    replace_attention,
    sparse_attention,
)
from sparsegen.torch.control import (
    DensityScheduler,
    calibrate,
    explain,
    lam_for_distance,
    lam_for_mean_support,
    lam_for_peak,
    lam_for_support,
    q_for_support,
)
from sparsegen.torch.losses import (
    EntmaxLoss,
    SoftmaxLogLoss,
    SparsegenHingeLoss,
    SparsehourglassHingeLoss,
    SparsemaxHuberLoss,
    entmax_loss,
    softmax_log_loss,
    sparsegen_hinge_loss,
    sparsehourglass_hinge_loss,
    sparsemax_huber_loss,
)
from sparsegen.torch.maps import (
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
from sparsegen.torch.modules import (
    Entmax,
    Entmax15,
    Hardmax,
    Softmax,
    Sparsecone,
    Sparsegen,
    SparsegenSoftmax,
    Sparsehourglass,
    Sparsemax,
    SphericalSoftmax,
    SumNormalization,
    SumNormalizationPlus,
    make_map,
)

__all__ = [
    "AdditiveAttention",
    "AttentionProbe",
    "DensityScheduler",
    "DotAttention",
    "Entmax",
    "Entmax15",
    "EntmaxLoss",
    "Hardmax",
    "Info",
    "MultiheadAttention",
    "Softmax",
    "SoftmaxLogLoss",
    "SparseWeights",
    "Sparsecone",
    "Sparsegen",
    "SparsegenHingeLoss",
    "SparsegenSoftmax",
    "Sparsehourglass",
    "SparsehourglassHingeLoss",
    "Sparsemax",
    "SparsemaxHuberLoss",
    "SphericalSoftmax",
    "SumNormalization",
    "SumNormalizationPlus",
    "calibrate",
    "entmax",
    "entmax15",
    "entmax_loss",
    "explain",
    "hardmax",
    "lam_for_distance",
    "lam_for_mean_support",
    "lam_for_peak",
    "lam_for_support",
    "make_map",
    "project",
    "q_for_support",
    "replace_attention",
    "softmax",
    "softmax_log_loss",
    "sparse_attention",
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
        from sparsegen.torch import losses, maps

        return row_of(__name__, losses if name.endswith("_loss") else maps, name)
