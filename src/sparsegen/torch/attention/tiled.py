"""Fused attention on GPUs: the engine's kernels as an operator that tracers can record, with its derivatives.

Scores are computed tile by tile, and again on the way back: no queries x keys matrix is held. Derivatives of
derivatives come from the plain composition.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen._table.maps import MAPS, Map
from sparsegen.torch import _autograd, _operators, _plain, _route
from sparsegen.torch.attention import fused, plain


def takes(m: Map, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> bool:
    """Is this call one for the kernels of the device? Not with dropout, nor with a mask that is learnt."""
    if not m.linear or dropout or not _route.knows_maps(q):
        return False
    if bias is not None and bias.requires_grad and torch.is_grad_enabled():
        return False
    return _route.engine(q).attends(q, k, v, _plain.surely)


def _four(t: Tensor) -> Tensor:
    """(batch, heads, length, size)."""
    while t.dim() < 4:
        t = t.unsqueeze(0)
    return t.reshape(-1, *t.shape[-3:])


@torch.library.custom_op("sparsegen::tiled_attention", mutates_args=())
def attention_op(
    q: Tensor, k: Tensor, v: Tensor, control: Tensor, mask: Tensor | None, name: str, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output, and what the way back needs, of tensors (batch, heads, length, size)."""
    return _route.engine(q).attention(q, k, v, control, mask, MAPS[name], causal, scale)


@attention_op.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, control: Tensor, mask: Tensor | None, name: str, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _route.engine(q).attention_like(q, k, v, MAPS[name])


@torch.library.custom_op("sparsegen::tiled_attention_vjp", mutates_args=())
def attention_vjp_op(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, found: Tensor, means: Tensor, lists: Tensor, active: Tensor,
    numbers: Tensor, out_grad: Tensor, name: str, causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key and value, and of the radius of each row."""
    kept = found, means, lists, active, numbers
    return _route.engine(q).attention_vjp(q, k, v, mask, kept, out_grad, MAPS[name], causal, scale)


@attention_vjp_op.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, found: Tensor, means: Tensor, lists: Tensor, active: Tensor,
    numbers: Tensor, out_grad: Tensor, name: str, causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    wide = torch.float32 if MAPS[name].radius.number else q.dtype
    along = q.new_empty(q.shape[:-1], dtype=torch.float64)
    return q.new_empty(q.shape, dtype=wide), k.new_empty(k.shape, dtype=wide), v.new_empty(v.shape), along


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, control, mask, ctx.name, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, control, mask, *output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, out_grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    q, k, v, control, mask, *kept = ctx.saved_tensors
    if out_grad is None:
        return (None,) * 8
    m = MAPS[ctx.name]
    if torch.is_grad_enabled() or _route.transformed():
        return *_again(ctx, m, q, k, v, control, mask, out_grad), None, None, None, None
    q_grad, k_grad, v_grad, along = attention_vjp_op(q, k, v, mask, *kept, out_grad, ctx.name, ctx.causal, ctx.scale)
    if m.radius.number:
        call = fused.Call(m, *_kinds(mask), ctx.causal, ctx.scale, 0.0, q.shape[-3] // k.shape[-3])
        means = kept[1].unbind(0)
        along = fused.through_mean(call, q.float(), k.float(), control, means, along, q_grad, k_grad)
        q_grad, k_grad = q_grad.to(q.dtype), k_grad.to(k.dtype)
    to_control = _operators.fit(along, control) if ctx.needs_input_grad[3] else None
    return q_grad, k_grad, v_grad, to_control, None, None, None, None


def _kinds(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A mask as boolean one and as bias."""
    return (mask, None) if mask is None or mask.dtype == torch.bool else (None, mask)


def _again(
    ctx: Any, m: Map, q: Tensor, k: Tensor, v: Tensor, control: Tensor, mask: Tensor | None, out_grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value and control by the plain composition, differentiable again."""
    want, (allowed, bias), group = ctx.needs_input_grad[:4], _kinds(mask), q.shape[-3] // k.shape[-3]

    def weigh(z: Tensor, mask: Tensor | None) -> Tensor:
        if m.radius.number:
            return _autograd.project_mean(z, control, m, -1, mask)
        return _autograd.project(z, control, -1, mask)

    with torch.enable_grad():
        keys, values = plain.repeat(k, group), plain.repeat(v, group)
        out, _ = plain.attend(q, keys, values, weigh, allowed, bias, ctx.causal, ctx.scale)
        asked = [t for t, wanted in zip((q, k, v, control), want) if wanted]
        grads = torch.autograd.grad(out, asked, out_grad, create_graph=torch.is_grad_enabled(), allow_unused=True)
    found = iter(grads)
    return tuple(next(found) if wanted else None for wanted in want)


attention_op.register_autograd(_backward, setup_context=_setup)


def run(
    q: Tensor, k: Tensor, v: Tensor, control: Tensor | float, m: Map, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """The output. Key and value may have a divisor of the query's heads."""
    lead = q.shape[:-1]
    if not isinstance(control, Tensor):
        control = torch.full((), control, dtype=torch.float64, device=q.device)
    elif control.numel() > 1:
        control = _four(control.expand(lead).unsqueeze(-1)).squeeze(-1)
    else:
        control = control.reshape(())
    if mask is not None and q.dim() > 4:
        mask = _four(mask.expand(*lead, k.shape[-2]))
    out = attention_op(_four(q), _four(k), _four(v), control, mask, m.name, causal, scale)[0]
    return out.reshape(*lead, v.shape[-1])
