"""Attention whose weights are one of the maps: scaled_dot_product_attention with weights that can be exactly 0.

Three ways, one answer. CPU tensors and a map of linear scores go to the fused kernel, which keeps of the weights only
their support, as CSR; those of GPUs to kernels that compute scores tile by tile, and give no weights. Neither holds a
queries x keys matrix, and tracers see registered operators. Everything else (other maps and devices, torch.func, a mask
that is learnt, gradients of gradients, weights asked of a tracer) is composed from torch's operations and the maps of
this package.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsegen._table import checks
from sparsegen._table.controls import controls_of, mapping_name
from sparsegen._table.maps import MAPS, Map
from sparsegen.torch import _apply, _inputs, _plain, _route, modules
from sparsegen.torch._cpu import STORAGE
from sparsegen.torch._mapping import Mapping
from sparsegen.torch.attention import fused, inputs, plain, registered, tiled
from sparsegen.torch.attention.weights import SparseWeights, from_dense


class _Choice(NamedTuple):
    """A mapping and its control, as the plain composition applies it and, if it is fused, as the kernel wants it."""

    weigh: Callable[[Tensor, Tensor | None], Tensor]
    map: Map | None = None  # None: not for the kernel
    control: Tensor | float = 1.0  # the radius, a share of a sum, or the q of a map that makes its radius of the mean
    temperature: float = 1.0  # of exponentials


def _by_name(name: str, given: dict[str, Any], scores: Tensor) -> _Choice:
    m = MAPS[name]
    controls = controls_of(name, m.controls, given)
    checked = {c: _inputs.check_control(c, value, scores, -1) for c, value in controls.items()}

    def weigh(z: Tensor, mask: Tensor | None) -> Tensor:
        return _apply.apply(name, z, dict(checked), -1, mask, False)

    temperature = checked.get("temperature", 1.0)
    if m.power:
        alpha = checked.get("alpha", m.fixed.get("alpha"))
        return _Choice(weigh, m if type(alpha) is float and alpha == 1.5 else None)
    if m.radius.of == "mean":
        return _Choice(weigh, m, checked.get("q", m.fixed.get("q", 0.0)))
    if m.radius.of == "sum":
        share = m.radius.value(torch, checked.get("lam", m.fixed.get("lam", 0.0)))
        fused_m = m if m.weighing is not None and type(temperature) is float else None
        return _Choice(weigh, fused_m, share, temperature if type(temperature) is float else 1.0)
    return _Choice(weigh, m if m.linear else None, m.radius.value(torch, **checked))


def _by_module(module: Mapping, given: dict[str, Any], scores: Tensor) -> _Choice:
    modules.refuse_controls(given, False)
    if module.dim != -1:
        checks.fail(ValueError, "the dim of mapping", "-1, the keys", module.dim)
    m = module.row
    shares = m is not None and module.control_name == "lam" and type(module.temperature) is float
    if m is None or m.power or m.weighing != (1 if shares and m.radius.of == "sum" else 0):
        return _Choice(module)
    control = "q" if m.radius.of == "mean" else "radius"
    temperature = module.temperature if shares else 1.0
    return _Choice(module, m, _inputs.check_control(control, module.kernel_control(), scores, -1), temperature)


def _choose(mapping: Any, controls: dict[str, Any], scores: Tensor) -> _Choice:
    given = {name: value for name, value in controls.items() if value is not None}
    if isinstance(mapping, Mapping):
        return _by_module(mapping, given, scores)
    return _by_name(mapping_name(mapping, MAPS, ", or a mapping module of sparsegen.torch"), given, scores)


@overload
def sparse_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = ..., dropout_p: float = ...,
    is_causal: bool = ..., *, mapping: str | Mapping = ..., scale: float | None = ..., enable_gqa: bool = ...,
    return_weights: Literal[False] = ..., lam: Any = ..., q: Any = ..., temperature: Any = ..., alpha: Any = ...,
) -> Tensor: ...  # fmt: skip
@overload
def sparse_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = ..., dropout_p: float = ...,
    is_causal: bool = ..., *, mapping: str | Mapping = ..., scale: float | None = ..., enable_gqa: bool = ...,
    return_weights: Literal["csr"], lam: Any = ..., q: Any = ..., temperature: Any = ..., alpha: Any = ...,
) -> tuple[Tensor, SparseWeights]: ...  # fmt: skip
@overload
def sparse_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = ..., dropout_p: float = ...,
    is_causal: bool = ..., *, mapping: str | Mapping = ..., scale: float | None = ..., enable_gqa: bool = ...,
    return_weights: Literal[True], lam: Any = ..., q: Any = ..., temperature: Any = ..., alpha: Any = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def sparse_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = ..., dropout_p: float = ...,
    is_causal: bool = ..., *, mapping: str | Mapping = ..., scale: float | None = ..., enable_gqa: bool = ...,
    return_weights: bool, lam: Any = ..., q: Any = ..., temperature: Any = ..., alpha: Any = ...,
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
def sparse_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, mapping: str | Mapping = "sparsemax", scale: float | None = None,
    enable_gqa: bool = False, return_weights: bool | Literal["csr"] = False, lam: Any = None, q: Any = None,
    temperature: Any = None, alpha: Any = None,
) -> Any:  # fmt: skip
    """Attention with sparse weights: torch's scaled_dot_product_attention with one of the maps for softmax.

    On CPUs the maps of linear scores (sparsemax, sparsegen_lin, sparsecone, sparsehourglass, sum_normalization_plus,
    hardmax) and entmax with alpha = 1.5 are one fused kernel: it takes memory for the support of the weights only, and
    so does its backward pass. So is sparsegen_softmax where no gradient is wanted.

    Parameters
    ----------
    query, key, value : Tensor
        (..., heads, queries, E), (..., heads, keys, E) and (..., heads, keys, Ev); the leading axes broadcast. Of one
        dtype, but under autocast, which casts them as it does for torch's attention.
    attn_mask : Tensor, optional
        Broadcasts to the weights (..., heads, queries, keys). Boolean: True may attend. Floating point: added to the
        scores. A query that may attend to nothing gets zeros.
    dropout_p : float
        Each weight is set to 0 with this probability; those that stay are divided by 1 - dropout_p.
    is_causal : bool
        Query i attends to the keys 0 to i. Not together with ``attn_mask``.
    mapping : str or Module
        A name of the table of maps, or one of the mapping modules with ``dim=-1``.
    scale : float, optional
        Of the scores; 1/sqrt(E) if left out.
    enable_gqa : bool
        The query may have a multiple of the heads of key and value; neighbouring heads share one.
    return_weights : bool or "csr"
        Also return the weights, after dropout: dense, or as :class:`SparseWeights`.
    lam, q, temperature, alpha : float or Tensor, optional
        The controls of the map; a tensor broadcasts to the weights without the axis of keys, as (heads, 1) does.

    Returns
    -------
    Tensor
        The output, (..., heads, queries, Ev).
    Tensor or SparseWeights
        The weights, if asked for.

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
    if (
        attn_mask is None
        and dropout_p == 0
        and not return_weights
        and q is None
        and temperature is None
        and alpha is None
    ):
        found = _quick(query, key, value, is_causal, mapping, scale, enable_gqa, lam)
        if found is not None:
            return found
    query, key, value, group = inputs.check_tensors(query, key, value, enable_gqa)
    if return_weights not in (False, True, "csr"):
        checks.fail(ValueError, "return_weights", "False, True or 'csr'", repr(return_weights))
    if not 0 <= dropout_p <= 1:
        checks.fail(ValueError, "dropout_p", "between 0 and 1", dropout_p)
    # The scores' shape, without their memory.
    like = fused.wide(query.new_empty(())).expand(*query.shape[:-1], key.shape[-2])
    choice = _choose(mapping, {"lam": lam, "q": q, "temperature": temperature, "alpha": alpha}, like)
    mask, bias = inputs.check_mask(attn_mask, is_causal, like)
    factor = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale)
    if _torch_can(choice, query, key, value, attn_mask, return_weights):
        by = factor / choice.temperature
        given = (fused.wide(query), plain.repeat(fused.wide(key), group), plain.repeat(fused.wide(value), group))
        return F.scaled_dot_product_attention(*given, None, dropout_p, is_causal, scale=by).to(query.dtype)
    how = (bool(is_causal), factor, float(dropout_p), group, choice.temperature)
    if choice.map is not None and not return_weights and tiled.takes(choice.map, query, key, value, bias):
        return tiled.run(query, key, value, choice.control, fused.Call(choice.map, mask, bias, *how))
    if choice.map is not None and _has_way_back(choice, query, key, value, bias):
        call = fused.Call(choice.map, mask, bias, *how)
        if _route.all_plain(query, key, value, choice.control, mask, bias) and _filled(query, key, value):
            return fused.run(query, key, value, choice.control, call, return_weights)
        if not return_weights and _route.recorded(query):
            return registered.run(query, key, value, choice.control, call)
    dtype = query.dtype
    query, key, value = fused.wide(query), plain.repeat(fused.wide(key), group), plain.repeat(fused.wide(value), group)
    out, weights = plain.attend(query, key, value, choice.weigh, mask, bias, is_causal, factor, dropout_p)
    if not return_weights:
        return out.to(dtype)
    weights = weights.to(dtype)
    return out.to(dtype), from_dense(weights) if return_weights == "csr" else weights


def _quick(
    q: Any, k: Any, v: Any, causal: bool, mapping: Any, scale: float | None, gqa: bool, lam: Any
) -> Tensor | None:
    """The answer to a usual call, in which nothing needs a second look; None for all others, also for wrong ones.

    To decode is to call with one query at a time: most of such a call would be checks.
    """
    m = MAPS.get(mapping) if type(mapping) is str else None
    if m is None or not _has_quick_way(m) or type(q) is not Tensor or not _route.eager(q, 1.0, None):
        return None
    if lam is not None and not (type(lam) is float and lam < 1 and "lam" in m.controls):
        return None
    if type(k) is not Tensor or type(v) is not Tensor or _learns(q, k, v) or not (k.is_cpu and v.is_cpu):
        return None
    if not q.layout == k.layout == v.layout == torch.strided or q.is_nested or k.is_nested or v.is_nested:
        return None
    a, b, c = q.shape, k.shape, v.shape
    group = a[-3] // b[-3] if gqa and len(a) > 2 and len(b) == len(a) and b[-3] and a[-3] % b[-3] == 0 else 1
    fits = b[:-1] == c[:-1] and a[-1] == b[-1] and (a[:-2] == b[:-2] if group == 1 else a[:-3] == b[:-3])
    if not fits or len(a) < 2 or 0 in a or 0 in b or 0 in c:
        return None
    if not q.dtype == k.dtype == v.dtype or q.dtype not in STORAGE or torch.is_autocast_enabled("cpu"):
        return None
    radius = m.radius.fixed if m.radius.fixed is not None else 1 - (lam or 0.0)
    factor = 1 / math.sqrt(a[-1]) if scale is None else float(scale)
    return fused.forward(q, k, v, radius, fused.Call(m, None, None, bool(causal), factor, 0.0, group), keep=False).out


def _has_quick_way(m: Map) -> bool:
    """A radius, or the share of a sum that it is, that is a number or made of lam alone."""
    if m.radius.of == "control":
        return m.linear
    return m.radius.of == "sum" and m.transform == "exp" and "lam" in m.controls


def _learns(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors)


def _torch_can(choice: _Choice, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, return_weights: Any) -> bool:
    """Torch's own softmax attention has no gradient of its gradient, and its own mind about rows without keys."""
    soft = choice.map is not None and choice.map.name == "softmax" and mask is None and not return_weights
    return soft and not _learns(q, k, v) and _filled(q, k)


def _has_way_back(choice: _Choice, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> bool:
    """Does the kernel have every gradient that is wanted? Not of masks, and not of shares, which is dense."""
    dense = choice.map is not None and choice.map.radius.of == "sum"
    return not _learns(bias) and not (dense and _learns(q, k, v, choice.control))


def _filled(*tensors: Tensor) -> bool:
    return all(_plain.surely(size > 0) for t in tensors for size in t.shape)
