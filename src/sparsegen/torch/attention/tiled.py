"""Fused attention on GPUs: the engine's kernels as an operator that tracers can record, with its derivatives.

Scores are computed tile by tile, and again on the way back: no queries x keys matrix is held. Derivatives of
derivatives come from the plain composition.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen._table.maps import MAPS, Map
from sparsegen.torch import _apply, _autograd, _operators, _plain, _route
from sparsegen.torch.attention import fused, plain


def takes(m: Map, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> bool:
    """Is this call one for the kernels of the device? Not with a mask that is learnt."""
    if m.weighing is None or not _route.knows_maps(q):
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
    q: Tensor, k: Tensor, v: Tensor, control: Tensor, mask: Tensor | None, seed: Tensor | None, name: str,
    causal: bool, scale: float, temperature: float, dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, and what the way back needs, of tensors (batch, heads, length, size)."""
    how = causal, scale, temperature, dropout
    return _route.engine(q).attention(q, k, v, control, mask, seed, MAPS[name], *how)


@attention_op.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, control: Tensor, mask: Tensor | None, seed: Tensor | None, name: str,
    causal: bool, scale: float, temperature: float, dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _route.engine(q).attention_like(q, k, v, MAPS[name])


@torch.library.custom_op("sparsegen::tiled_attention_vjp", mutates_args=())
def attention_vjp_op(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, seed: Tensor | None, found: Tensor, means: Tensor,
    lists: Tensor, active: Tensor, numbers: Tensor, out_grad: Tensor, name: str, causal: bool, scale: float,
    temperature: float, dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key and value, and of the control of each row."""
    kept, how = (found, means, lists, active, numbers), (causal, scale, temperature, dropout)
    return _route.engine(q).attention_vjp(q, k, v, mask, seed, kept, out_grad, MAPS[name], *how)


@attention_vjp_op.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, seed: Tensor | None, found: Tensor, means: Tensor,
    lists: Tensor, active: Tensor, numbers: Tensor, out_grad: Tensor, name: str, causal: bool, scale: float,
    temperature: float, dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    wide = torch.float32 if _of_mean(MAPS[name]) else q.dtype
    along = q.new_empty(q.shape[:-1], dtype=torch.float64)
    return q.new_empty(q.shape, dtype=wide), k.new_empty(k.shape, dtype=wide), v.new_empty(v.shape), along


def _of_mean(m: Map) -> bool:
    return m.radius.of == "mean"


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, control, mask, seed, ctx.name, *ctx.how = inputs
    ctx.save_for_backward(q, k, v, control, mask, seed, *output[1:])
    ctx.set_materialize_grads(False)


def _call(ctx: Any, q: Tensor, k: Tensor, mask: Tensor | None) -> fused.Call:
    """The call whose way back this is."""
    allowed, bias = (mask, None) if mask is None or mask.dtype == torch.bool else (None, mask)
    causal, scale, temperature, dropout = ctx.how
    group = q.shape[-3] // k.shape[-3]
    return fused.Call(MAPS[ctx.name], allowed, bias, causal, scale, dropout, group, temperature)


def _backward(ctx: Any, out_grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
    q, k, v, control, mask, seed, *kept = ctx.saved_tensors
    if out_grad is None:
        return (None,) * 11
    call = _call(ctx, q, k, mask)
    if torch.is_grad_enabled() or _route.transformed():
        return *_again(ctx, call, q, k, v, control, seed, out_grad), *(None,) * 7
    q_grad, k_grad, v_grad, along = attention_vjp_op(q, k, v, mask, seed, *kept, out_grad, ctx.name, *ctx.how)
    if _of_mean(call.map):
        means = kept[1].unbind(0)
        along = fused.through_mean(call, q.float(), k.float(), control, means, along, q_grad, k_grad)
        q_grad, k_grad = q_grad.to(q.dtype), k_grad.to(k.dtype)
    to_control = _operators.fit(along, control) if ctx.needs_input_grad[3] else None
    return q_grad, k_grad, v_grad, to_control, *(None,) * 7


def _weigh(call: fused.Call, control: Tensor, z: Tensor, mask: Tensor | None) -> Tensor:
    """The weights of scores by the maps of rows."""
    if call.map.power:
        return _autograd.entmax(z, 1.5, -1, mask)
    if call.map.radius.of == "sum":
        return _apply.apply_radius(z, control, call.map, -1, mask, temperature=call.temperature)
    if _of_mean(call.map):
        return _autograd.project_mean(z, control, call.map, -1, mask)
    return _autograd.project(z, control, -1, mask)


def _again(
    ctx: Any, call: fused.Call, q: Tensor, k: Tensor, v: Tensor, control: Tensor, seed: Tensor | None, out_grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value and control by the plain composition, differentiable again."""
    want = ctx.needs_input_grad[:4]
    with torch.enable_grad():
        keys, values = plain.repeat(k, call.group), plain.repeat(v, call.group)
        z = plain.scores(q, keys, call.bias, call.scale)
        weights = _weigh(call, control, z, plain.allowed(call.causal, call.mask, q, k.shape[-2]))
        if seed is not None:
            weights = weights * plain.spared(seed, weights.shape, call.dropout) * fused.kept_scale(call.dropout)
        asked = [t for t, wanted in zip((q, k, v, control), want) if wanted]
        again = torch.is_grad_enabled()
        grads = torch.autograd.grad(weights @ values, asked, out_grad, create_graph=again, allow_unused=True)
    found = iter(grads)
    return tuple(next(found) if wanted else None for wanted in want)


attention_op.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("sparsegen::split_scores", mutates_args=())
def scores_op(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Scores of few queries and many keys, in float32."""
    return _route.engine(q).split_scores(q, k, mask, causal, scale)


@scores_op.register_fake
def _(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    return q.new_empty((*q.shape[:-1], k.shape[-2]), dtype=torch.float32)


@torch.library.custom_op("sparsegen::split_values", mutates_args=())
def values_op(p: Tensor, v: Tensor) -> Tensor:
    """Weighted sums of values, of which only those with a weight are read."""
    return _route.engine(v).split_values(p, v)


@values_op.register_fake
def _(p: Tensor, v: Tensor) -> Tensor:
    return v.new_empty((*p.shape[:-1], v.shape[-1]))


def _control(control: Tensor | float, q: Tensor) -> Tensor:
    """One number, or one for each row, (batch, heads, queries)."""
    if not isinstance(control, Tensor):
        return torch.full((), control, dtype=torch.float64, device=q.device)
    if control.numel() == 1:
        return control.reshape(())
    return _four(control.expand(q.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def run(q: Tensor, k: Tensor, v: Tensor, control: Tensor | float, call: fused.Call) -> Tensor:
    """The output. Key and value may have a divisor of the query's heads."""
    lead, control = q.shape[:-1], _control(control, q)
    mask = call.mask if call.bias is None else call.bias
    if mask is not None and q.dim() > 4:
        mask = _four(mask.expand(*lead, k.shape[-2]))
    q, k, v = _four(q), _four(k), _four(v)
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, control))
    if not learns and not call.dropout and _route.engine(q).splits(call.map, q, k, _plain.surely):
        x = scores_op(q, k, mask, call.causal, call.scale)
        return values_op(_weigh(call, control, x, None), v).reshape(*lead, v.shape[-1])
    seed = fused.draw_seed(q) if call.dropout else None
    how = call.causal, call.scale, call.temperature, call.dropout
    out = attention_op(q, k, v, control, mask, seed, call.map.name, *how)[0]
    return out.reshape(*lead, v.shape[-1])
