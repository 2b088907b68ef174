"""Registered operators of rows, for tracers, torch.func and other devices: each an engine's function and its gradient.

An operator takes (x, control, dim, mask), with a control that broadcasts to the rows. Its gradient is an operator too,
of (p, v, control, dim): the gradients of x, and of the control of each row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsegen.torch import _cpu, _plain
from sparsegen.torch._route import engine


def fit(along: Tensor, control: Tensor) -> Tensor:
    """Gradients of each row as one of the control that was spread over them."""
    return along.sum_to_size(control.shape).to(control.dtype)


def batched(size: int, ndim: int, t: Tensor | None, at: int | None) -> Tensor | None:
    """`t` with the batch axis first, and ones between it and the rest so that it broadcasts to 1 + ndim axes."""
    if t is None or at is None:
        return t
    t = t.movedim(at, 0)
    return t.reshape(size, *(1,) * (ndim - t.dim() + 1), *t.shape[1:])


def whole(size: int, t: Tensor, at: int | None) -> Tensor:
    """`t` with the batch axis first, and there in any case."""
    return t.movedim(at, 0) if at is not None else t.expand(size, *t.shape)


def _gradient_operator(name: str, backward: Callable[..., tuple[Any, ...]]) -> Any:
    @torch.library.custom_op(f"sparsegen::{name}_vjp", mutates_args=())
    def op(p: Tensor, v: Tensor, control: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        return getattr(engine(p), f"{name}_vjp")(p, v, control, dim, True)

    @op.register_fake
    def _(p: Tensor, v: Tensor, control: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        grad = torch.empty_like(p, memory_format=torch.contiguous_format)
        return grad, p.new_empty(_cpu.lead_shape(p, dim), dtype=_plain.wide(p))

    @op.register_vmap
    def _(info: Any, in_dims: Any, p: Tensor, v: Tensor, control: Tensor, dim: int) -> tuple[Any, Any]:
        n = info.batch_size
        p, v = whole(n, p, in_dims[0]), whole(n, v, in_dims[1])
        return op(p, v, batched(n, p.dim() - 2, control, in_dims[2]), dim), (0, 0)

    def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.dim = inputs
        ctx.save_for_backward(*tensors)

    op.register_autograd(backward, setup_context=setup)
    return op


def _operator(name: str, gradient: Any) -> Any:
    @torch.library.custom_op(f"sparsegen::{name}", mutates_args=())
    def op(x: Tensor, control: Tensor, dim: int, mask: Tensor | None) -> Tensor:
        return getattr(engine(x), name)(x, control, dim, mask)

    @op.register_fake
    def _(x: Tensor, control: Tensor, dim: int, mask: Tensor | None) -> Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    @op.register_vmap
    def _(info: Any, in_dims: Any, x: Tensor, control: Tensor, dim: int, mask: Tensor | None) -> tuple[Tensor, int]:
        n = info.batch_size
        x = whole(n, x, in_dims[0])
        ndim = x.dim() - 1
        each = batched(n, ndim - 1, control, in_dims[1])
        return op(x, each, dim, batched(n, ndim, mask, in_dims[3])), 0

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, control, ctx.dim, _ = inputs
        ctx.save_for_backward(output, control)

    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        p, control = ctx.saved_tensors
        grad, along = gradient(p, v, control, ctx.dim)
        return grad, fit(along, control) if ctx.needs_input_grad[1] else None, None, None

    op.register_autograd(backward, setup_context=setup)
    return op


def _project_twice(ctx: Any, grad_grad: Tensor, grad_along: Tensor) -> tuple[Any, ...]:
    # With w = P v:  grad = w/r, along = -(w.p)/r;  P is symmetric, and constant where p > 0 stays as it is.
    p, v, radius = ctx.saved_tensors
    dim = ctx.dim
    grad, along = _plain.vjp(p, v, radius, dim)
    r, moves = _plain.moving(radius, p, dim)
    c = torch.where(moves, grad_along.to(p.dtype).unsqueeze(dim) / r, 0.0)
    to_v, _ = _plain.vjp(p, grad_grad - c * r * p, radius, dim)
    to_r = -((grad_grad * grad).sum(dim) + (c * r).squeeze(dim) * along) / r.squeeze(dim)
    to_r = torch.where(moves.squeeze(dim), to_r, 0.0)
    return -c * r * grad, to_v, fit(to_r, radius), None


def _entmax_twice(ctx: Any, grad_grad: Tensor, grad_along: Tensor) -> tuple[Any, ...]:
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Each a tensor of its own: p was made with alpha, but here it is as free as the others.
        given = [t.view_as(t) if t.requires_grad else t.detach().requires_grad_() for t in ctx.saved_tensors]
        p, v, alpha = given
        found = _plain.entmax_slopes(p, v, alpha, ctx.dim)
        slopes = torch.autograd.grad(found, given, (grad_grad, grad_along), create_graph=again)
    return *slopes, None


project_vjp_op = _gradient_operator("project", _project_twice)
project_op = _operator("project", project_vjp_op)
entmax_vjp_op = _gradient_operator("entmax", _entmax_twice)
entmax_op = _operator("entmax", entmax_vjp_op)
