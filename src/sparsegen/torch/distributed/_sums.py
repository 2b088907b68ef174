"""Sums over classes that lie on several ranks, with their derivatives.

A tensor is either *split* (a part of its classes on each rank) or *whole* (the same on every rank, as is its gradient).
A sum over classes makes whole of split; what is whole meets what is split through :func:`enter`. Each of the two is the
derivative of the other, so derivatives of every order stay right.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sparsegen.torch.distributed._exchange import Exchange


class _Sum(torch.autograd.Function):
    """Split to whole: one round."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, ex: Exchange) -> Tensor:
        ctx.ex = ex
        return ex.total(lambda: part, part.shape).to(part.dtype)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        return _Enter.apply(v, ctx.ex), None


class _Enter(torch.autograd.Function):
    """Whole to split: nothing is sent, but the gradients of all parts are added up."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, ex: Exchange) -> Tensor:
        ctx.ex = ex
        return t.view_as(t)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        return _Sum.apply(v, ctx.ex), None


class _Known(torch.autograd.Function):
    """A sum over all ranks that is known already, as :class:`_Sum` would give it."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, total: Tensor, ex: Exchange) -> Tensor:
        ctx.ex = ex
        return total.clone()

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        return _Enter.apply(v, ctx.ex), None, None


def whole_sum(part: Tensor, ex: Exchange) -> Tensor:
    """The sum over ranks of what is split, as something whole."""
    return _Sum.apply(part, ex)


def enter(t: Tensor, ex: Exchange) -> Tensor:
    """What is whole, to be used with what is split."""
    return _Enter.apply(t, ex)


def known_sum(part: Tensor, total: Tensor, ex: Exchange) -> Tensor:
    """`total`, the sum of the parts that was found with other numbers in one round, with its derivative."""
    return _Known.apply(part, total, ex)


class Shards:
    """Torch's array functions, those that reduce the class axis over all ranks: the `xp` of recipe and plain formulas.

    Sums enter, for all that uses them there is split.
    """

    def __init__(self, ex: Exchange) -> None:
        self.ex = ex

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def sum(self, x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
        """The sum along the class axis."""
        return enter(whole_sum(torch.sum(x, axis, keepdim=keepdims), self.ex), self.ex)

    def amax(self, x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
        """The largest along the class axis, -inf of none; NaN if there is one. No derivative."""
        part = self._part(x, axis, keepdims)
        broken = torch.isnan(part)
        sent = torch.stack([torch.where(broken, -math.inf, part).double(), broken.double()])
        top, bad = self.ex.largest(lambda: sent, sent.shape)
        return torch.where(bad > 0, math.nan, top).to(x.dtype)

    def any(self, x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
        """Is any along the class axis True?"""
        part = torch.any(x, axis, keepdim=keepdims)
        return self.ex.largest(lambda: part, part.shape) > 0

    def all(self, x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
        """Are all along the class axis True?"""
        return ~self.any(~x, axis, keepdims)

    @staticmethod
    def _part(x: Tensor, axis: int, keepdims: bool) -> Tensor:
        if x.shape[axis]:
            return torch.amax(x.detach(), axis, keepdim=keepdims)
        return torch.sum(x.detach(), axis, keepdim=keepdims) - math.inf  # nothing here
