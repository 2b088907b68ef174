"""Attention weights of which only the support is kept."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class SparseWeights(NamedTuple):
    """Attention weights as compressed rows: one for each batch entry, head and query, in that order.

    >>> import torch, sparsegen.torch as sgt
    >>> q = torch.tensor([[2.0], [-2.0]])
    >>> _, weights = sgt.sparse_attention(q, torch.tensor([[1.0], [0.75], [-1.0]]), torch.eye(3), return_weights="csr")
    >>> weights.indptr, weights.indices
    (tensor([0, 2, 3]), tensor([0, 1, 2], dtype=torch.int32))
    >>> weights.to_dense()
    tensor([[0.7500, 0.2500, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """

    indptr: Tensor
    """Row i has the entries from indptr[i] to indptr[i + 1]."""
    indices: Tensor
    """The key of each entry (int32), ascending in each row."""
    values: Tensor
    """The weight of each entry."""
    shape: tuple[int, ...]
    """The shape of the weights: (..., heads, queries, keys)."""

    def flat_index(self) -> Tensor:
        """Where each entry stands among all weights."""
        rows = torch.arange(len(self.indptr) - 1, device=self.indptr.device)
        return torch.repeat_interleave(rows, self.indptr.diff()) * self.shape[-1] + self.indices

    def to_dense(self) -> Tensor:
        """The weights as one tensor, differentiable in `values`."""
        zeros = self.values.new_zeros(math.prod(self.shape))
        return zeros.index_put((self.flat_index(),), self.values).reshape(self.shape)


def from_dense(weights: Tensor) -> SparseWeights:
    """The support of dense weights, differentiable in them."""
    rows = weights.reshape(math.prod(weights.shape[:-1]), weights.shape[-1])
    on = rows.detach() != 0
    indptr = F.pad(on.sum(-1).cumsum(0), (1, 0))
    return SparseWeights(indptr, on.nonzero()[:, 1].int(), rows[on], tuple(weights.shape))
