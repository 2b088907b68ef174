"""The definition of attention by a map, in torch's operations: what runs where the fused kernel does not."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def allowed(causal: bool, mask: Tensor | None, q: Tensor, keys: int) -> Tensor | None:
    """The boolean mask of a call: the one given, or the triangle."""
    if not causal:
        return mask
    return torch.ones(q.shape[-2], keys, dtype=torch.bool, device=q.device).tril()


def repeat(t: Tensor, group: int) -> Tensor:
    """Heads of keys or values, each as often as query heads share it."""
    return t if group == 1 else t.repeat_interleave(group, -3)


def scores(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """The scores of every query and key."""
    # A scale below 1 meets the queries, a larger one the scores: none overflows on its way.
    z = (q * scale) @ k.transpose(-2, -1) if abs(scale) <= 1 else q @ k.transpose(-2, -1) * scale
    if bias is None:
        return z
    return torch.where(bias == -torch.inf, -torch.inf, z + bias)  # what is hidden may hold anything


def attend(
    q: Tensor, k: Tensor, v: Tensor, weigh: Callable[[Tensor, Tensor | None], Tensor], mask: Tensor | None,
    bias: Tensor | None, causal: bool, scale: float, dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The definition: output and dense weights from torch's operations. As many heads of keys as of queries."""
    weights = weigh(scores(q, k, bias, scale), allowed(causal, mask, q, k.shape[-2]))
    if dropout:
        weights = F.dropout(weights, dropout)
    return weights @ v, weights


def _mixed(h: Tensor, x: Tensor) -> Tensor:
    """One round of splitmix64; int64 wraps around as its unsigned numbers do."""
    h = h + x * -0x61C8864680B583EB - 0x61C8864680B583EB
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
        h = (h ^ (h >> shift & (1 << 64 - shift) - 1)) * factor
    return h


def spared(seed: Tensor, shape: torch.Size, dropout: float) -> Tensor:
    """Which weights (..., queries, keys) the kernels' dropout leaves: a hash of seed, row and key decides."""
    rows = torch.arange(shape[:-1].numel(), device=seed.device).reshape(*shape[:-1], 1)
    h = _mixed(_mixed(seed, rows), torch.arange(shape[-1], device=seed.device))
    return (h >> 11 & (1 << 53) - 1) >= math.ceil(dropout * 2**53)
