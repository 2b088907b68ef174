"""The fused kernel as registered operators: what compilers, exporters and AOT autograd see of it.

Every output has a shape that is known beforehand. The support has none, so it is not handed from the forward pass to
the backward pass: that one scores queries and keys again, and the kernel finds the same support to the bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen._table.maps import MAPS
from sparsegen.torch.attention import fused, plain
from sparsegen.torch.attention.weights import SparseWeights


def _call(
    mapping: str, mask: Tensor | None, causal: bool, scale: float, temperature: float, dropout: float,
    seed: Tensor | None, group: int,
) -> fused.Call:  # fmt: skip
    boolean = mask is not None and mask.dtype == torch.bool
    number = int(seed.item()) if seed is not None else 0
    allowed, bias = (mask, None) if boolean else (None, mask)
    return fused.Call(MAPS[mapping], allowed, bias, causal, scale, dropout, group, temperature, number)


def _control(given: Tensor) -> Tensor | float:
    return given.item() if given.dim() == 0 else given


def _empty(*tensors: Tensor) -> bool:
    return any(t.numel() == 0 for t in tensors)


@torch.library.custom_op("sparsegen::attention", mutates_args=())
def attention_op(
    q: Tensor, k: Tensor, v: Tensor, control: Tensor, mask: Tensor | None, seed: Tensor | None, mapping: str,
    causal: bool, scale: float, temperature: float, dropout: float, group: int,
) -> Tensor:  # fmt: skip
    """The output."""
    if _empty(q, k, v):
        return q.new_zeros((*q.shape[:-1], v.shape[-1]))
    call = _call(mapping, mask, causal, scale, temperature, dropout, seed, group)
    return fused.forward(q, k, v, _control(control), call, keep=False).out


@attention_op.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, control: Tensor, mask: Tensor | None, seed: Tensor | None, mapping: str,
    causal: bool, scale: float, temperature: float, dropout: float, group: int,
) -> Tensor:  # fmt: skip
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


@torch.library.custom_op("sparsegen::attention_vjp", mutates_args=())
def attention_vjp_op(
    q: Tensor, k: Tensor, v: Tensor, control: Tensor, mask: Tensor | None, seed: Tensor | None, grad: Tensor,
    mapping: str, causal: bool, scale: float, temperature: float, dropout: float, group: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k, v and the control."""
    if _empty(q, k, v):
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v), torch.zeros_like(control)
    call, number = _call(mapping, mask, causal, scale, temperature, dropout, seed, group), _control(control)
    found = fused.forward(q, k, v, number, call, keep=True, sum_values=False)
    given = control if isinstance(number, float) else number
    *grads, along = fused.backward(q, k, v, given, call, found, grad, None, True)
    assert along is not None  # asked for
    return grads[0], grads[1], grads[2], along.contiguous()  # type: ignore[return-value]


@attention_vjp_op.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, control: Tensor, mask: Tensor | None, seed: Tensor | None, grad: Tensor,
    mapping: str, causal: bool, scale: float, temperature: float, dropout: float, group: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), control.new_empty(control.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, control, mask, seed, *ctx.given = inputs
    ctx.save_for_backward(q, k, v, control, mask, seed)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    grads = attention_vjp_op(*ctx.saved_tensors, grad, *ctx.given)
    return *(g if wanted else None for g, wanted in zip(grads, ctx.needs_input_grad)), *(None,) * 8


attention_op.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("sparsegen::attention_weights", mutates_args=())
def attention_weights_op(
    q: Tensor, k: Tensor, control: Tensor, mask: Tensor | None, seed: Tensor | None, mapping: str, causal: bool,
    scale: float, temperature: float, dropout: float, group: int,
) -> Tensor:  # fmt: skip
    """All weights, dense; negative where dropout took them."""
    shape = (*q.shape[:-1], k.shape[-2])
    if _empty(q, k):
        return fused.wide(q.new_zeros(shape))
    call = _call(mapping, mask, causal, scale, temperature, dropout, seed, group)
    found = fused.forward(q, k, k, _control(control), call, keep=True, sum_values=False)
    return SparseWeights(found.indptr, found.indices, found.values, shape).to_dense()


@attention_weights_op.register_fake
def _(
    q: Tensor, k: Tensor, control: Tensor, mask: Tensor | None, seed: Tensor | None, mapping: str, causal: bool,
    scale: float, temperature: float, dropout: float, group: int,
) -> Tensor:  # fmt: skip
    return fused.wide(q.new_empty(0)).new_empty((*q.shape[:-1], k.shape[-2]))


def _vjp_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.mapping, ctx.causal, ctx.scale, ctx.temperature, ctx.dropout, ctx.group = inputs
    ctx.save_for_backward(*tensors)


def _vjp_backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
    """Derivatives of the derivatives, by torch's operations on the whole matrix of scores."""
    q, k, v, control, mask, seed, grad = ctx.saved_tensors
    how = (ctx.mapping, ctx.causal, ctx.scale, ctx.temperature, ctx.dropout, ctx.group)
    signed = attention_weights_op(q.detach(), k.detach(), control.detach(), mask, seed, *how)
    call = _call(ctx.mapping, mask, ctx.causal, ctx.scale, ctx.temperature, ctx.dropout, None, ctx.group)
    with torch.enable_grad():
        given = [t.detach().requires_grad_() for t in (q, k, v, control, grad)]
        out = fused.composed(given[0], given[1], given[3], call, signed) @ plain.repeat(
            fused.wide(given[2]), call.group
        )
        first = torch.autograd.grad(out, given[:4], given[4].to(out.dtype), create_graph=True, allow_unused=True)
        used = [(g, u.to(g.dtype)) for g, u in zip(first, upstream) if g is not None and g.requires_grad]
        second = torch.autograd.grad([g for g, _ in used], given, [u for _, u in used], allow_unused=True)
    return *second[:4], None, None, second[4], *(None,) * 6


attention_vjp_op.register_autograd(_vjp_backward, setup_context=_vjp_setup)


def run(q: Tensor, k: Tensor, v: Tensor, control: Tensor | float, call: fused.Call) -> Tensor:
    """The output as one node of a graph."""
    if not isinstance(control, Tensor):
        control = torch.full((), control, dtype=torch.float64, device=q.device)
    seed = fused.draw_seed(q) if call.dropout else None
    mask = call.mask if call.mask is not None else call.bias
    how = (call.map.name, call.causal, call.scale, call.temperature, call.dropout, call.group)
    return attention_op(q, k, v, control, mask, seed, *how)
