"""The fused kernel for CPUs: of the weights it keeps only their support, and so does its backward pass."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

import sparsegen._core as _core
from sparsegen._table.maps import Map
from sparsegen._table.radius import of_mean, slopes_of_mean
from sparsegen.torch import _autograd, _plain, _route
from sparsegen.torch._cpu import STORAGE, address, address_or_none, settled
from sparsegen.torch.attention.plain import allowed, repeat, scores
from sparsegen.torch.attention.weights import SparseWeights

NOTHING = torch.empty(0)


class Call(NamedTuple):
    """The arguments of one call that have no gradient."""

    map: Map
    mask: Tensor | None
    bias: Tensor | None
    causal: bool
    scale: float
    dropout: float
    group: int  # query heads that share a head of keys and values
    temperature: float = 1.0  # of shares of exponentials
    seed: int = 0  # of dropout: the same seed takes the same weights, whatever else is asked


def _weigh(call: Call) -> int:
    found = call.map.weighing
    assert found is not None  # asked of maps that the kernel has
    return found


def _of_mean(call: Call) -> bool:
    return call.map.radius.of == "mean"


def _rows(t: Tensor, steps: tuple[int, ...] = (1,)) -> Tensor:
    """`t` with its numbers in memory and the entries of a row one of `steps` apart, copied if they are not."""
    t = settled(t)
    return t if t.stride(-1) in steps else t.contiguous()


def wide(t: Tensor) -> Tensor:
    """Halves in float32, in which they are computed."""
    return t.float() if t.dtype.itemsize == 2 else t


def _walk(t: Tensor) -> list[int]:
    """The matrices of a tensor (..., rows, entries) as the kernel walks them."""
    steps = t.stride()
    walk = [address(t), steps[-2]]
    for axis in zip(t.shape, steps[:-2]):
        walk += axis
    return walk


def _spread_mask(call: Call, shape: tuple[int, ...]) -> Tensor | None:
    given = call.mask if call.mask is not None else call.bias
    if given is None:
        return None
    # Copied, if need be, before it is spread: a single key is the one case that needs it after.
    return _rows(_rows(given, (0, 1)).expand(shape) if given.dim() else given.expand(shape), (0, 1))


def _per_row(control: Tensor | float, lead: tuple[int, ...]) -> tuple[float, Tensor | None]:
    """One number for all rows, or a tensor with one for each."""
    if not isinstance(control, Tensor):
        return control, None
    return 0.0, settled(control.detach().double()).expand(lead).contiguous()


class _Found(NamedTuple):
    out: Tensor
    indptr: Tensor
    indices: Tensor
    values: Tensor  # negative where dropout took the weight
    means: tuple[Tensor, ...]  # radius, mean and count of each row, for maps that use the mean


def _sizes(q: Tensor, v: Tensor, group: int) -> list[int]:
    *_, queries, width = q.shape
    *_, keys, value_width = v.shape  # as many as there are rows of k
    return [group, queries, keys, width, value_width]


def forward(
    q: Tensor, k: Tensor, v: Tensor, control: Tensor | float, call: Call, keep: bool, sum_values: bool = True
) -> _Found:
    """Run the kernel; the support is kept if to `keep`, and the output left empty where no values are to be summed."""
    lead = tuple(q.shape[:-1])
    q, k, v, mask = _rows(q), _rows(k), _rows(v), _spread_mask(call, (*lead, k.shape[-2]))
    radius, radii = _per_row(control, lead)
    out = q.new_empty((*lead, v.shape[-1]) if sum_values else 0)
    means = tuple(torch.empty(lead, dtype=torch.float64) for _ in range(3)) if keep and _of_mean(call) else ()
    found_radius, mean, count = (t.data_ptr() for t in means) if means else (0, 0, 0)
    sizes = torch.empty(math.prod(lead), dtype=torch.int64) if keep else None
    found = _core.attention(
        STORAGE[q.dtype], torch.get_num_threads(), _weigh(call), call.temperature, call.scale,
        _sizes(q, v, call.group), _walk(q), _walk(k), _walk(v), radius, address_or_none(radii), call.causal,
        call.map.radius.number if _of_mean(call) else 0, call.bias is not None,
        [] if mask is None else _walk(mask), 0 if mask is None else mask.stride(-1), call.dropout, call.seed,
        out.data_ptr() if sum_values else 0, found_radius, mean, count, address_or_none(sizes),
    )  # fmt: skip
    if sizes is None:
        return _Found(out, NOTHING, NOTHING, NOTHING, ())
    indptr, indices = torch.zeros(len(sizes) + 1, dtype=torch.int64), torch.empty(found.size(), dtype=torch.int32)
    torch.cumsum(sizes, 0, out=indptr[1:])
    values = torch.empty(len(indices), dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
    found.move_to(indices.data_ptr(), values.data_ptr())
    return _Found(out, indptr, indices, values, means)


def _weights(values: Tensor, dropout: float) -> Tensor:
    """What dropout left of the kernel's values."""
    return values.clamp(min=0) * kept_scale(dropout) if dropout else values


def kept_scale(dropout: float) -> float:
    """What dropout multiplies the weights it leaves by."""
    return 1 / (1 - dropout) if dropout < 1 else 0.0


class _Attention(torch.autograd.Function):
    """The fused way with gradients: output, and the support of the weights."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, control: Tensor | float, call: Call) -> tuple[Tensor, ...]:
        found = forward(q, k, v, control, call, keep=True)
        ctx.set_materialize_grads(False)
        ctx.call, ctx.control = call, None if isinstance(control, Tensor) else control
        given = [control] if isinstance(control, Tensor) else []
        ctx.save_for_backward(q, k, v, found.indptr, found.indices, found.values, *found.means, *given)
        ctx.mark_non_differentiable(found.indptr, found.indices)
        return found.out, _weights(found.values, call.dropout), found.indptr, found.indices

    @staticmethod
    def backward(ctx: Any, out_grad: Tensor | None, value_grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
        if out_grad is None and value_grad is None:
            return None, None, None, None, None
        q, k, v, indptr, indices, values, *rest = ctx.saved_tensors
        means = tuple(rest[:3]) if _of_mean(ctx.call) else ()
        control = rest[-1] if ctx.control is None else ctx.control
        found = _Found(NOTHING, indptr, indices, values, means)
        grads = [g for g in (out_grad, value_grad) if g is not None]
        if not _route.once(*grads):
            return *_again(ctx, q, k, v, control, found, out_grad, value_grad), None
        want = ctx.needs_input_grad[3]
        return *backward(q, k, v, control, ctx.call, found, out_grad, value_grad, want), None


def backward(
    q: Tensor, k: Tensor, v: Tensor, control: Tensor | float, call: Call, found: _Found, out_grad: Tensor | None,
    value_grad: Tensor | None, want_control: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of q, k, v and, if wanted, of the control by the kernel."""
    lead = tuple(q.shape[:-1])
    dtype, like = q.dtype, found.values
    if out_grad is None:
        out_grad = like.new_zeros((*lead, v.shape[-1]))
    out_grad = settled(wide(out_grad).contiguous())
    more = settled(value_grad.contiguous()) if value_grad is not None else None
    q, k, v = _rows(q), _rows(k), _rows(v)
    radius, radii = (0.0, found.means[0]) if _of_mean(call) else _per_row(control, lead)
    # Halves are summed in float32 and rounded once.
    q_grad, k_grad, v_grad = like.new_empty(q.shape), like.new_zeros(k.shape), like.new_zeros(v.shape)
    along = torch.empty(lead, dtype=torch.float64) if want_control or _of_mean(call) else None
    slopes = torch.empty_like(found.values)
    _core.attention_vjp(
        STORAGE[q.dtype], torch.get_num_threads(), _weigh(call), call.scale, _sizes(q, v, call.group),
        _walk(q), _walk(k), _walk(v), radius, address_or_none(radii), kept_scale(call.dropout), address(found.indptr),
        address(found.indices), address(found.values), address(out_grad), address_or_none(more), slopes.data_ptr(),
        q_grad.data_ptr(), k_grad.data_ptr(), v_grad.data_ptr(), address_or_none(along),
    )  # fmt: skip
    if along is not None and _of_mean(call):
        along = through_mean(call, wide(q), wide(k), control, found.means, along, q_grad, k_grad)
    control_grad = None
    if want_control:
        assert along is not None  # asked for
        assert isinstance(control, Tensor)  # a number needs no gradient
        control_grad = along.sum_to_size(control.shape).to(control.dtype)
    return q_grad.to(dtype), k_grad.to(dtype), v_grad.to(dtype), control_grad


def through_mean(
    call: Call, q: Tensor, k: Tensor, control: Tensor | float, means: tuple[Tensor, ...], along: Tensor,
    q_grad: Tensor, k_grad: Tensor,
) -> Tensor:  # fmt: skip
    """Add what reaches queries and keys through a radius made of the mean, and give the control's gradient.

    Every key that a row may choose has a share in its mean.
    """
    _, mean, n = means
    each, bend = slopes_of_mean(torch, call.map.radius, mean, n, control)
    share = (along * each * call.scale).to(q.dtype).unsqueeze(-1)
    shared, wide = share * q, repeat(k, call.group)
    hidden = call.bias == -torch.inf if call.bias is not None else None
    may = ~hidden if hidden is not None else call.mask
    if call.causal:
        last = torch.arange(q.shape[-2], device=q.device).clamp(max=k.shape[-2] - 1)
        to_q = wide.cumsum(-2).index_select(-2, last)
        from_here = shared.flip(-2).cumsum(-2).flip(-2)
        to_k = torch.zeros_like(wide)
        m = min(q.shape[-2], k.shape[-2])
        to_k[..., :m, :] = from_here[..., :m, :]
    elif may is None:
        to_q, to_k = wide.sum(-2, keepdim=True), shared.sum(-2, keepdim=True).expand(wide.shape)
    else:
        on = may.expand(*q.shape[:-1], k.shape[-2]).to(q.dtype)
        to_q, to_k = on @ wide, on.transpose(-2, -1) @ shared
    q_grad += share * to_q
    k_grad += to_k if call.group == 1 else to_k.unflatten(-3, (-1, call.group)).sum(-3)
    return along * bend


def _again(
    ctx: Any, q: Tensor, k: Tensor, v: Tensor, control: Tensor | float, found: _Found, out_grad: Tensor | None,
    value_grad: Tensor | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients by plain torch, differentiable again, with the support and the dropout of the forward pass."""
    call, want = ctx.call, ctx.needs_input_grad[:4]
    shape = (*q.shape[:-1], k.shape[-2])
    with torch.no_grad():
        found_p = SparseWeights(found.indptr, found.indices, found.values, shape)
        signed, entries = found_p.to_dense(), found_p.flat_index()
    with torch.enable_grad():
        weights = composed(q, k, control, call, signed)
        results = [weights @ repeat(wide(v), call.group), weights.flatten().index_select(0, entries)]
        pairs = [(r, g.to(r.dtype)) for r, g in zip(results, (out_grad, value_grad)) if g is not None]
        asked = [t for t, wanted in zip((q, k, v, control), want) if wanted and isinstance(t, Tensor)]
        grads = torch.autograd.grad(
            [r for r, _ in pairs], asked, [g for _, g in pairs], create_graph=torch.is_grad_enabled(), allow_unused=True
        )
    each = iter(grads)
    return tuple(next(each) if wanted else None for wanted in want)


def composed(q: Tensor, k: Tensor, control: Tensor | float, call: Call, signed: Tensor) -> Tensor:
    """The dense weights, with derivatives of every order, of values the kernel found: negative where dropout took."""
    keep = torch.full_like(signed, kept_scale(call.dropout)).masked_fill(signed < 0, 0.0)
    mask = allowed(call.causal, call.mask, q, k.shape[-2])
    z = scores(wide(q), repeat(wide(k), call.group), call.bias, call.scale)
    if call.map.power:
        return _autograd.entmax(z, 1.5, -1, mask) * keep
    radius = torch.as_tensor(control, dtype=torch.float64)
    if _of_mean(call):
        radius = of_mean(torch, call.map.radius, *_autograd.row_means(z, -1, mask), control)
    return _plain.with_derivatives(z, radius, -1, signed.abs()) * keep


def draw_seed(like: Tensor) -> Tensor:
    """A seed of dropout by torch's generator."""
    return torch.randint(2**63 - 1, (), device=like.device)


def run(q: Tensor, k: Tensor, v: Tensor, control: Tensor | float, call: Call, return_weights: bool | str) -> Any:
    """Output, and the weights in the form asked for, of tensors that the kernel can read."""
    if call.dropout:
        call = call._replace(seed=int(draw_seed(q).item()))
    wants = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in (q, k, v, control))
    if wants:
        out, values, indptr, indices = _Attention.apply(q, k, v, control, call)
    else:
        found = forward(q, k, v, control, call, keep=bool(return_weights))
        out, indptr, indices = found.out, found.indptr, found.indices
        values = _weights(found.values, call.dropout)
    if not return_weights:
        return out
    weights = SparseWeights(indptr, indices, values.to(q.dtype), (*q.shape[:-1], k.shape[-2]))
    return out, weights if return_weights == "csr" else weights.to_dense()
