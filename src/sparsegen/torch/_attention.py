"""Attention whose weights are one of the maps: scaled_dot_product_attention with weights that can be exactly 0.

Two ways, one answer. Plain CPU tensors and a map of linear scores go to the fused kernel, which keeps of the weights
only their support, as CSR, and never holds a queries x keys matrix. Everything else (other maps and devices, tracers,
torch.func, a mask that is learnt, gradients of gradients) is composed from torch's operations and the maps of this
package.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import sparsegen._core as _core
from sparsegen._table import checks
from sparsegen._table.controls import controls_of, mapping_name
from sparsegen._table.maps import MAPS, Map
from sparsegen._table.radius import of_mean, slopes_of_mean
from sparsegen.torch import _apply, _inputs, _plain, _route, modules
from sparsegen.torch._cpu import STORAGE, address, address_or_none, settled
from sparsegen.torch._mapping import Mapping


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


def _from_dense(weights: Tensor) -> SparseWeights:
    rows = weights.reshape(math.prod(weights.shape[:-1]), weights.shape[-1])
    on = rows.detach() != 0
    indptr = F.pad(on.sum(-1).cumsum(0), (1, 0))
    return SparseWeights(indptr, on.nonzero()[:, 1].int(), rows[on], tuple(weights.shape))


class _Choice(NamedTuple):
    """A mapping and its control, as the plain composition applies it and, if it is fused, as the kernel wants it."""

    weigh: Callable[[Tensor, Tensor | None], Tensor]
    map: Map | None = None  # None: not for the kernel
    control: Tensor | float = 1.0  # the radius, or the q of a map that makes its radius of the mean
    temperature: float | None = None  # of a softmax that torch's own attention can do


def _by_name(name: str, given: dict[str, Any], scores: Tensor) -> _Choice:
    m = MAPS[name]
    controls = controls_of(name, m.controls, given)
    checked = {c: _inputs.check_control(c, value, scores, -1) for c, value in controls.items()}

    def weigh(z: Tensor, mask: Tensor | None) -> Tensor:
        return _apply.apply(name, z, dict(checked), -1, mask, False)

    if not m.linear:
        temperature = checked.get("temperature")
        return _Choice(weigh, temperature=temperature if name == "softmax" and type(temperature) is float else None)
    if m.radius.number:
        return _Choice(weigh, m, checked.get("q", m.fixed.get("q", 0.0)))
    return _Choice(weigh, m, m.radius.value(torch, **checked))


def _by_module(module: Mapping, given: dict[str, Any], scores: Tensor) -> _Choice:
    modules.refuse_controls(given, False)
    if module.dim != -1:
        checks.fail(ValueError, "the dim of mapping", "-1, the keys", module.dim)
    m = module.row
    if m is None or not m.linear:
        return _Choice(module)
    control = "radius" if m.radius.of == "control" else "q"
    return _Choice(module, m, _inputs.check_control(control, module.kernel_control(), scores, -1))


def _choose(mapping: Any, controls: dict[str, Any], scores: Tensor) -> _Choice:
    given = {name: value for name, value in controls.items() if value is not None}
    if isinstance(mapping, Mapping):
        return _by_module(mapping, given, scores)
    return _by_name(mapping_name(mapping, MAPS, ", or a mapping module of sparsegen.torch"), given, scores)


class _Call(NamedTuple):
    """The arguments of one call that have no gradient."""

    map: Map
    mask: Tensor | None
    bias: Tensor | None
    causal: bool
    scale: float
    dropout: float
    group: int  # query heads that share a head of keys and values


def _allowed(causal: bool, mask: Tensor | None, q: Tensor, keys: int) -> Tensor | None:
    if not causal:
        return mask
    return torch.ones(q.shape[-2], keys, dtype=torch.bool, device=q.device).tril()


def _repeat(t: Tensor, group: int) -> Tensor:
    return t if group == 1 else t.repeat_interleave(group, -3)


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    scores = q @ k.transpose(-2, -1) * scale
    return scores if bias is None else scores + bias


def plain(
    q: Tensor, k: Tensor, v: Tensor, weigh: Callable[[Tensor, Tensor | None], Tensor], mask: Tensor | None,
    bias: Tensor | None, causal: bool, scale: float, dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The definition: output and dense weights from torch's operations. As many heads of keys as of queries."""
    weights = weigh(_scores(q, k, bias, scale), _allowed(causal, mask, q, k.shape[-2]))
    if dropout:
        weights = F.dropout(weights, dropout)
    return weights @ v, weights


def _rows(t: Tensor, steps: tuple[int, ...] = (1,)) -> Tensor:
    """`t` with its numbers in memory and the entries of a row one of `steps` apart, copied if they are not."""
    t = settled(t)
    return t if t.stride(-1) in steps else t.contiguous()


def _walk(t: Tensor) -> list[int]:
    """The matrices of a tensor (..., rows, entries) as the kernel walks them."""
    axes = [number for axis in zip(t.shape[:-2], t.stride()) for number in axis]
    return [address(t), t.stride(-2), *axes]


def _spread_mask(call: _Call, shape: tuple[int, ...]) -> Tensor | None:
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


def _sizes(q: Tensor, k: Tensor, v: Tensor, group: int) -> list[int]:
    return [group, q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]]


def _forward(q: Tensor, k: Tensor, v: Tensor, control: Tensor | float, call: _Call, keep: bool) -> _Found:
    """Run the kernel; the support is kept if to `keep`."""
    lead = tuple(q.shape[:-1])
    q, k, v, mask = _rows(q), _rows(k), _rows(v), _spread_mask(call, (*lead, k.shape[-2]))
    radius, radii = _per_row(control, lead)
    out = q.new_empty((*lead, v.shape[-1]))
    means = tuple(torch.empty(lead, dtype=torch.float64) for _ in range(3)) if keep and call.map.radius.number else ()
    found_radius, mean, count = (t.data_ptr() for t in means) if means else (0, 0, 0)
    sizes = torch.empty(math.prod(lead), dtype=torch.int64) if keep else None
    seed = int(torch.randint(2**63 - 1, ()).item()) if call.dropout else 0
    found = _core.attention(
        STORAGE[q.dtype], torch.get_num_threads(), call.scale, _sizes(q, k, v, call.group), _walk(q), _walk(k),
        _walk(v), radius, address_or_none(radii), call.causal, call.map.radius.number, call.bias is not None,
        [] if mask is None else _walk(mask), 0 if mask is None else mask.stride(-1), call.dropout, seed,
        out.data_ptr(), found_radius, mean, count, address_or_none(sizes),
    )  # fmt: skip
    if sizes is None:
        none = out.new_empty(0)
        return _Found(out, none, none, none, ())
    indptr, indices = torch.zeros(len(sizes) + 1, dtype=torch.int64), torch.empty(found.size(), dtype=torch.int32)
    torch.cumsum(sizes, 0, out=indptr[1:])
    values = out.new_empty(len(indices))
    found.move_to(indices.data_ptr(), values.data_ptr())
    return _Found(out, indptr, indices, values, means)


def _weights(values: Tensor, dropout: float) -> Tensor:
    """What dropout left of the kernel's values."""
    return values.clamp(min=0) * _kept_scale(dropout) if dropout else values


def _kept_scale(dropout: float) -> float:
    return 1 / (1 - dropout) if dropout < 1 else 0.0


class _Attention(torch.autograd.Function):
    """The fused way with gradients: output, and the support of the weights."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, control: Tensor | float, call: _Call) -> tuple[Tensor, ...]:
        found = _forward(q, k, v, control, call, keep=True)
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
        means = tuple(rest[:3]) if ctx.call.map.radius.number else ()
        control = rest[-1] if ctx.control is None else ctx.control
        found = _Found(values.new_empty(0), indptr, indices, values, means)
        grads = [g for g in (out_grad, value_grad) if g is not None]
        if not _route.once(*grads):
            return *_again(ctx, q, k, v, control, found, out_grad, value_grad), None
        return *_backward(ctx, q, k, v, control, found, out_grad, value_grad), None


def _backward(
    ctx: Any, q: Tensor, k: Tensor, v: Tensor, control: Tensor | float, found: _Found, out_grad: Tensor | None,
    value_grad: Tensor | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of q, k, v and the control by the kernel."""
    call, lead = ctx.call, tuple(q.shape[:-1])
    if out_grad is None:
        out_grad = q.new_zeros((*lead, v.shape[-1]))
    out_grad = settled(out_grad.contiguous())
    more = settled(value_grad.contiguous()) if value_grad is not None else None
    q, k, v = _rows(q), _rows(k), _rows(v)
    radius, radii = (0.0, found.means[0]) if call.map.radius.number else _per_row(control, lead)
    q_grad, k_grad, v_grad = q.new_empty(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
    want = ctx.needs_input_grad[3] or bool(call.map.radius.number)
    along = torch.empty(lead, dtype=torch.float64) if want else None
    slopes = torch.empty_like(found.values)
    _core.attention_vjp(
        STORAGE[q.dtype], torch.get_num_threads(), call.scale, _sizes(q, k, v, call.group), _walk(q), _walk(k),
        _walk(v), radius, address_or_none(radii), _kept_scale(call.dropout), address(found.indptr),
        address(found.indices), address(found.values), address(out_grad), address_or_none(more), slopes.data_ptr(),
        q_grad.data_ptr(), k_grad.data_ptr(), v_grad.data_ptr(), address_or_none(along),
    )  # fmt: skip
    if along is not None and call.map.radius.number:
        along = _through_mean(call, q, k, control, found.means, along, q_grad, k_grad)
    control_grad = None
    if ctx.needs_input_grad[3]:
        assert along is not None  # asked for
        assert isinstance(control, Tensor)  # a number needs no gradient
        control_grad = along.sum_to_size(control.shape).to(control.dtype)
    return q_grad, k_grad, v_grad, control_grad


def _through_mean(
    call: _Call, q: Tensor, k: Tensor, control: Tensor | float, means: tuple[Tensor, ...], along: Tensor,
    q_grad: Tensor, k_grad: Tensor,
) -> Tensor:  # fmt: skip
    """Add what reaches queries and keys through a radius made of the mean, and give the control's gradient.

    Every key that a row may choose has a share in its mean.
    """
    _, mean, n = means
    each, bend = slopes_of_mean(torch, call.map.radius, mean, n, control)
    share = (along * each * call.scale).to(q.dtype).unsqueeze(-1)
    shared, wide = share * q, _repeat(k, call.group)
    hidden = call.bias == -torch.inf if call.bias is not None else None
    allowed = ~hidden if hidden is not None else call.mask
    if call.causal:
        last = torch.arange(q.shape[-2]).clamp(max=k.shape[-2] - 1)
        to_q = wide.cumsum(-2).index_select(-2, last)
        from_here = shared.flip(-2).cumsum(-2).flip(-2)
        to_k = torch.zeros_like(wide)
        m = min(q.shape[-2], k.shape[-2])
        to_k[..., :m, :] = from_here[..., :m, :]
    elif allowed is None:
        to_q, to_k = wide.sum(-2, keepdim=True), shared.sum(-2, keepdim=True).expand(wide.shape)
    else:
        on = allowed.expand(*q.shape[:-1], k.shape[-2]).to(q.dtype)
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
        keep = torch.full_like(signed, _kept_scale(call.dropout)).masked_fill(signed < 0, 0.0)
    with torch.enable_grad():
        mask = _allowed(call.causal, call.mask, q, k.shape[-2])
        scores = _scores(q, _repeat(k, call.group), call.bias, call.scale)
        radius = torch.as_tensor(control, dtype=torch.float64)
        if call.map.radius.number:
            radius = of_mean(torch, call.map.radius, *_plain.row_means(scores, -1, mask), control)
        weights = _plain.with_derivatives(scores, radius, -1, signed.abs()) * keep
        results = [weights @ _repeat(v, call.group), weights.flatten().index_select(0, entries)]
        pairs = [(r, g) for r, g in zip(results, (out_grad, value_grad)) if g is not None]
        asked = [t for t, wanted in zip((q, k, v, control), want) if wanted and isinstance(t, Tensor)]
        grads = torch.autograd.grad(
            [r for r, _ in pairs], asked, [g for _, g in pairs], create_graph=torch.is_grad_enabled(), allow_unused=True
        )
    each = iter(grads)
    return tuple(next(each) if wanted else None for wanted in want)


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the lower precision, where torch's own attention would take them in it."""
    device = tensors[0].device.type
    if not _inputs.autocasts(device):
        return tensors
    lower = torch.get_autocast_dtype(device)
    return tuple(t if t.dtype == torch.float64 else t.to(lower) for t in tensors)


def _check_tensors(query: Any, key: Any, value: Any, gqa: bool) -> tuple[Any, ...]:
    """The three with equal leading axes (but for grouped heads), and the size of a group."""
    for name, t in (("query", query), ("key", key), ("value", value)):
        _inputs.check_scores(t, -1, name)
    query, key, value = _autocast(query, key, value)
    for name, t in (("query", query), ("key", key), ("value", value)):
        if t.dim() < 2:
            checks.fail(ValueError, name, "of at least two axes (..., length, features)", f"shape {tuple(t.shape)}")
        if t.dtype != query.dtype:
            checks.fail(TypeError, name, f"of the query's dtype {query.dtype}", f"dtype {t.dtype}")
        if t.device != query.device:
            checks.fail(ValueError, name, f"on the query's device {query.device}", t.device)
    if key.shape[-1] != query.shape[-1]:
        checks.fail(ValueError, "key", f"of {query.shape[-1]} features, as the query", f"shape {tuple(key.shape)}")
    if value.shape[-2] != key.shape[-2]:
        checks.fail(ValueError, "value", f"of {key.shape[-2]} rows, one a key", f"shape {tuple(value.shape)}")
    group = _group(query, key, value) if gqa else 1
    return *_spread(query, key, value, 3 if group > 1 else 2, gqa), group


def _spread(query: Tensor, key: Tensor, value: Tensor, tail: int, gqa: bool) -> tuple[Tensor, ...]:
    """The three with equal axes before the last `tail`."""
    if query.shape[:-tail] == key.shape[:-tail] == value.shape[:-tail]:
        return query, key, value
    try:
        lead = torch.broadcast_shapes(*(t.shape[:-tail] for t in (query, key, value)))
    except RuntimeError:
        condition = f"broadcastable to those of the query, {tuple(query.shape)}"
        condition += "" if gqa else " (enable_gqa=True shares heads)"
        shapes = f"key {tuple(key.shape)} and value {tuple(value.shape)}"
        checks.fail(ValueError, "the axes before the last two", condition, shapes)
    return tuple(t.expand(*lead, *t.shape[-tail:]) for t in (query, key, value))


def _group(query: Tensor, key: Tensor, value: Tensor) -> int:
    heads = [t.shape[-3] if t.dim() > 2 else 1 for t in (query, key, value)]
    if heads[1] != heads[2] or heads[1] == 0 or heads[0] % heads[1]:
        condition = "equal in key and value and a divisor of the query's with enable_gqa=True"
        checks.fail(ValueError, "the number of heads", condition, f"{heads[0]}, {heads[1]} and {heads[2]}")
    return heads[0] // heads[1]


def _check_mask(mask: Any, causal: bool, scores: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """A boolean mask or an additive one."""
    if mask is None:
        return None, None
    if causal:
        checks.fail(ValueError, "attn_mask", "None where is_causal=True (put the triangle into the mask)", "a mask")
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.dtype.is_floating_point):
        kind = f"dtype {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        checks.fail(TypeError, "attn_mask", "a boolean (True = may attend) or floating-point tensor", kind)
    _inputs.check_dense("attn_mask", mask)
    if mask.device != scores.device:
        checks.fail(ValueError, "attn_mask", f"on the query's device {scores.device}", mask.device)
    checks.broadcasts("attn_mask", mask.shape, scores.shape, "the shape of the weights")
    return (mask, None) if mask.dtype == torch.bool else (None, mask.to(scores.dtype))


def sparse_attention(
    query: Tensor, key: Tensor, value: Tensor, *, mapping: Any = "sparsemax", attn_mask: Tensor | None = None,
    is_causal: bool = False, scale: float | None = None, dropout_p: float = 0.0,
    return_weights: bool | Literal["csr"] = False, enable_gqa: bool = False, lam: Any = None, q: Any = None,
    temperature: Any = None,
) -> Any:  # fmt: skip
    """Attention with sparse weights: torch's scaled_dot_product_attention with one of the maps for softmax.

    On CPUs the maps of linear scores (sparsemax, sparsegen_lin, sparsecone, sparsehourglass, sum_normalization_plus,
    hardmax) are one fused kernel: it takes memory for the support of the weights only, and so does its backward pass.

    Parameters
    ----------
    query, key, value : Tensor
        (..., heads, queries, E), (..., heads, keys, E) and (..., heads, keys, Ev); the leading axes broadcast. Of one
        dtype, but under autocast, which casts them as it does for torch's attention.
    mapping : str or Module
        A name of the table of maps, or one of the mapping modules with ``dim=-1``.
    attn_mask : Tensor, optional
        Broadcasts to the weights (..., heads, queries, keys). Boolean: True may attend. Floating point: added to the
        scores. A query that may attend to nothing gets zeros.
    is_causal : bool
        Query i attends to the keys 0 to i. Not together with ``attn_mask``.
    scale : float, optional
        Of the scores; 1/sqrt(E) if left out.
    dropout_p : float
        Each weight is taken with this probability; those that stay are divided by 1 - dropout_p.
    return_weights : bool or "csr"
        Also return the weights, after dropout: dense, or as :class:`SparseWeights`.
    enable_gqa : bool
        The query may have a multiple of the heads of key and value; neighbouring heads share one.
    lam, q, temperature : float or Tensor, optional
        The control of the map; a tensor broadcasts to the weights without the axis of keys, as (heads, 1) does.

    Examples
    --------
    >>> import torch, sparsegen.torch as sgt
    >>> keys = torch.tensor([[1.0], [0.75], [-1.0]])
    >>> out, weights = sgt.sparse_attention(torch.tensor([[2.0]]), keys, torch.eye(3), return_weights=True)
    >>> weights
    tensor([[0.7500, 0.2500, 0.0000]])
    >>> sgt.sparse_attention(torch.tensor([[2.0]]), keys, torch.eye(3), mapping="sparsegen_lin", lam=0.75)
    tensor([[1., 0., 0.]])
    """
    query, key, value, group = _check_tensors(query, key, value, enable_gqa)
    dtype = query.dtype
    if return_weights not in (False, True, "csr"):
        checks.fail(ValueError, "return_weights", "False, True or 'csr'", repr(return_weights))
    if not 0 <= dropout_p <= 1:
        checks.fail(ValueError, "dropout_p", "between 0 and 1", dropout_p)
    if query.dtype.itemsize == 2:
        query, key, value = query.float(), key.float(), value.float()
    like = query.new_empty(()).expand(*query.shape[:-1], key.shape[-2])  # the scores' shape, without their memory
    choice = _choose(mapping, {"lam": lam, "q": q, "temperature": temperature}, like)
    mask, bias = _check_mask(attn_mask, is_causal, like)
    factor = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale)
    if choice.map is not None and _can_fuse(query, key, value, choice.control, mask, bias):
        call = _Call(choice.map, mask, bias, bool(is_causal), factor, float(dropout_p), group)
        return _run_fused(query, key, value, choice.control, call, return_weights, dtype)
    key, value = _repeat(key, group), _repeat(value, group)
    if choice.temperature is not None and not return_weights and _torch_can(query, key, value, attn_mask):
        by = factor / choice.temperature
        return F.scaled_dot_product_attention(query, key, value, None, dropout_p, is_causal, scale=by).to(dtype)
    out, weights = plain(query, key, value, choice.weigh, mask, bias, is_causal, factor, dropout_p)
    if not return_weights:
        return out.to(dtype)
    weights = weights.to(dtype)
    return out.to(dtype), _from_dense(weights) if return_weights == "csr" else weights


def _torch_can(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    """Torch's own softmax attention has no gradient of its gradient, and its own mind about rows without keys."""
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    return mask is None and not learns and _filled(q, k)


def _can_fuse(q: Tensor, k: Tensor, v: Tensor, control: Any, mask: Tensor | None, bias: Tensor | None) -> bool:
    if bias is not None and bias.requires_grad and torch.is_grad_enabled():
        return False
    return _route.all_plain(q, k, v, control, mask, bias) and _filled(q, k, v)


def _filled(*tensors: Tensor) -> bool:
    return all(_plain.surely(size > 0) for t in tensors for size in t.shape)


def _run_fused(
    q: Tensor, k: Tensor, v: Tensor, control: Tensor | float, call: _Call, return_weights: bool | str, dtype: Any
) -> Any:
    wants = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in (q, k, v, control))
    if wants:
        out, values, indptr, indices = _Attention.apply(q, k, v, control, call)
    else:
        found = _forward(q, k, v, control, call, keep=bool(return_weights))
        out, indptr, indices = found.out, found.indptr, found.indices
        values = _weights(found.values, call.dropout)
    if not return_weights:
        return out.to(dtype)
    weights = SparseWeights(indptr, indices, values.to(dtype), (*q.shape[:-1], k.shape[-2]))
    return out.to(dtype), weights if return_weights == "csr" else weights.to_dense()
