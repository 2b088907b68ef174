"""The projection of rows whose classes lie on several ranks, with derivatives in points and radius."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sparsegen._table import plain
from sparsegen.torch._cpu import lead_shape
from sparsegen.torch._route import once
from sparsegen.torch.distributed._exchange import Exchange
from sparsegen.torch.distributed._search import find
from sparsegen.torch.distributed._sums import Shards


class _Project(torch.autograd.Function):
    """Parts of rows (rows, classes here) onto one radius per row: split to split."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, mask: Tensor | None, ex: Exchange) -> Tensor:
        found = find(ex, x, r, mask)
        p = found.empty
        p[found.rows, found.cols] = found.p.to(p.dtype)
        p[found.broken] = math.nan
        ctx.ex = ex
        ctx.save_for_backward(p, r)
        return p

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        p, r = ctx.saved_tensors
        if once(v):
            grad, along = _vjp(ctx.ex, p, v, r)
        else:
            grad, along = plain.vjp(Shards(ctx.ex), p, v, r.to(p.dtype))
        # Known in full on every rank, and the radius has entered: its gradients are added up.
        return grad, along.to(r.dtype) * (ctx.ex.rank == 0), None, None


def _vjp(ex: Exchange, p: Tensor, v: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`plain.vjp` on the support alone, in one round of three numbers per row."""
    n = len(p)
    here: list[tuple[Tensor, ...]] = []

    def sums() -> Tensor:
        rows, cols = (p > 0).nonzero(as_tuple=True)
        w, q = v[rows, cols].double(), p[rows, cols].double()
        here.append((rows, cols, w))
        found = torch.zeros(n, 3, dtype=torch.float64, device=p.device)
        return found.index_add_(0, rows, torch.stack([torch.ones_like(w), w, w * q], -1))

    count, total, along = ex.total(sums, (n, 3)).unbind(-1)
    rows, cols, w = here[0]
    mean = total / count.clamp(min=1)
    moves = (r != 0) & (r != math.inf)
    by = torch.where(moves, r, 1.0)
    grad = torch.zeros_like(p)
    grad[rows, cols] = torch.where(moves[rows], (w - mean[rows]) / by[rows], 0.0).to(p.dtype)
    broken = torch.isnan(p)
    grad[broken] = math.nan
    along = torch.where(moves, (mean - along) / by, 0.0)  # the probabilities of a row sum to 1
    return grad, torch.where(broken.any(-1), math.nan, along) if p.shape[1] else along


def as_rows(x: Tensor, dim: int) -> Tensor:
    """Classes last, all other axes as one."""
    return x.movedim(dim, -1).reshape(math.prod(lead_shape(x, dim % x.dim() - x.dim())), x.shape[dim])


def _rounded(p: Tensor, dtype: torch.dtype) -> Tensor:
    """In half precision, where a positive probability stays positive: gradients read the support off it."""
    rounded = p.to(dtype)
    lost = (rounded == 0) & (p > 0)
    least = 2.0**-24 if dtype == torch.float16 else torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    return rounded + torch.where(lost, least, 0.0).to(dtype)  # added: such an entry has its gradient


def project(
    ex: Exchange, x: Tensor, radius: Tensor | float, dim: int, mask: Tensor | None, dtype: torch.dtype | None = None
) -> Tensor:
    """Project rows along `dim`, classes split over the ranks; differentiable, in a radius that has entered too."""
    lead, dtype = lead_shape(x, dim), dtype or x.dtype
    rows = as_rows(x.float() if x.dtype.itemsize == 2 else x, dim)
    r = torch.as_tensor(radius, dtype=torch.float64, device=x.device).expand(lead).reshape(-1)
    hidden = None if mask is None else as_rows(mask.expand(x.shape), dim).contiguous()
    p = _Project.apply(rows, r, hidden, ex)
    if p.dtype != dtype:
        p = _rounded(p, dtype)
    return p.reshape(*lead, x.shape[dim]).movedim(-1, dim)
