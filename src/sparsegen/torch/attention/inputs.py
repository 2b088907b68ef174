"""What sparse_attention takes, checked at the border."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen._table import checks
from sparsegen.torch import _inputs


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the lower precision, where torch's own attention would take them in it."""
    device = tensors[0].device.type
    if not _inputs.autocasts(device):
        return tensors
    lower = torch.get_autocast_dtype(device)
    return tuple(t if t.dtype == torch.float64 else t.to(lower) for t in tensors)


def check_tensors(query: Any, key: Any, value: Any, gqa: bool) -> tuple[Any, ...]:
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
        checks.fail(ValueError, "value", f"of {key.shape[-2]} rows, one for each key", f"shape {tuple(value.shape)}")
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


def check_mask(mask: Any, causal: bool, scores: Tensor) -> tuple[Tensor | None, Tensor | None]:
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
