"""Attention by the maps: as a function, as modules in the place of torch's, and probes that watch them."""

from sparsegen.torch.attention.additive import AdditiveAttention, DotAttention
from sparsegen.torch.attention.functional import sparse_attention
from sparsegen.torch.attention.multihead import MultiheadAttention, replace_attention
from sparsegen.torch.attention.probes import AttentionProbe, Probed
from sparsegen.torch.attention.weights import SparseWeights

__all__ = [
    "AdditiveAttention",
    "AttentionProbe",
    "DotAttention",
    "MultiheadAttention",
    "Probed",
    "SparseWeights",
    "replace_attention",
    "sparse_attention",
]
