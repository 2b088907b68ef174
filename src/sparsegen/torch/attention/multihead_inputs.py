"""What MultiheadAttention takes, checked at the border and brought into one form."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from sparsegen._table import checks
from sparsegen.torch import modules
from sparsegen.torch._mapping import Mapping, control_values


def column(name: str, given: Any, heads: int) -> Tensor:
    """A control as one number, or as one for each head that broadcasts along the queries."""
    if isinstance(given, Tensor) and given.requires_grad:
        condition = "without gradients; with learnable=True the module trains a control of its own from this value"
        checks.fail(ValueError, name, condition, "a tensor that requires them")
    value = control_values(name, given)
    if tuple(value.shape) not in ((), (heads,), (heads, 1)):
        checks.fail(
            ValueError, name, f"one number, or one for each of the {heads} heads", f"shape {tuple(value.shape)}"
        )
    return value if value.dim() == 0 else value.reshape(heads, 1)


def merge(attn_mask: Tensor | None, padding: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Both masks, of four axes, as one: boolean (True = may attend) if all are boolean, numbers to add if not."""
    masks = [mask for mask in (attn_mask, padding) if mask is not None]
    if not masks:
        return None
    if all(mask.dtype == torch.bool for mask in masks):
        hidden = masks[0] if len(masks) == 1 else masks[0] | masks[1]
        return ~hidden
    numbers = [_as_numbers(mask, dtype) for mask in masks]
    return numbers[0] if len(numbers) == 1 else numbers[0] + numbers[1]


def _as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)


def check_sizes(embed_dim: int, num_heads: int) -> None:
    """Heads of equal size, as torch asks for."""
    for name, size in (("embed_dim", embed_dim), ("num_heads", num_heads)):
        if size <= 0:
            checks.fail(ValueError, name, "positive", size)
    if embed_dim % num_heads:
        checks.fail(ValueError, "embed_dim", f"divisible by num_heads {num_heads}", embed_dim)


def check_module(mapping: nn.Module, given: dict[str, Any], learnable: bool) -> None:
    """A mapping module has its own controls and must map along the keys."""
    if not isinstance(mapping, Mapping):
        checks.fail(TypeError, "mapping", "a name of a map or a mapping module of sparsegen", type(mapping).__name__)
    modules.refuse_controls(given, learnable)
    if mapping.dim != -1:
        checks.fail(ValueError, "the dim of mapping", "-1, the keys", mapping.dim)


def check_nested(query: Tensor, key: Tensor, value: Tensor, *masks: Tensor | None) -> None:
    """Nested tensors come as torch's encoder packs them: self-attention without masks."""
    if not (query is key and key is value):
        checks.fail(ValueError, "a nested query", "the key and the value as well", "another key or value")
    if query.layout != torch.strided:
        checks.fail(ValueError, "a nested query", "of layout torch.strided", query.layout)
    if any(mask is not None for mask in masks):
        checks.fail(ValueError, "masks", "None with a nested query, which has no padding", "a mask")


def check_axes(query: Tensor, key: Tensor, value: Tensor) -> None:
    """All three have a batch, or none."""
    axes = query.dim()
    if axes not in (2, 3):
        checks.fail(ValueError, "query", "of two axes, or three with a batch", f"shape {tuple(query.shape)}")
    for name, x in (("key", key), ("value", value)):
        if x.dim() != axes:
            checks.fail(ValueError, name, f"of {axes} axes, as query", f"shape {tuple(x.shape)}")


def check_shapes(q: Tensor, k: Tensor, v: Tensor, sizes: tuple[int, int, int]) -> None:
    """Inputs (batch, length, features) that fit each other and the module."""
    for name, x, size in zip(("query", "key", "value"), (q, k, v), sizes):
        if x.shape[2] != size:
            checks.fail(ValueError, f"the last axis of {name}", f"of size {size}", x.shape[2])
        if x.shape[0] != q.shape[0]:
            checks.fail(ValueError, f"the batch of {name}", f"of size {q.shape[0]}, as query's", x.shape[0])
    if k.shape[1] != v.shape[1]:
        checks.fail(ValueError, "value", f"as long as key, {k.shape[1]}", v.shape[1])


def check_masks(
    attn_mask: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor, heads: int, batched: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The masks as they broadcast against (batch, heads, queries, keys)."""
    batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    if padding is not None:
        _check_kind("key_padding_mask", padding)
        expected = (batch, keys) if batched else (keys,)
        if tuple(padding.shape) != expected:
            checks.fail(ValueError, "key_padding_mask", f"of shape {expected}", f"shape {tuple(padding.shape)}")
        padding = padding.reshape(batch, 1, 1, keys)
    if attn_mask is not None:
        _check_kind("attn_mask", attn_mask)
        shape, each = tuple(attn_mask.shape), (batch * heads, queries, keys)
        if shape == each:
            attn_mask = attn_mask.reshape(batch, heads, queries, keys)
        elif shape not in ((queries, keys), (1, queries, keys)):
            checks.fail(ValueError, "attn_mask", f"of shape {(queries, keys)} or {each}", f"shape {shape}")
        else:
            attn_mask = attn_mask.reshape(1, 1, queries, keys)
    return attn_mask, padding


def _check_kind(name: str, mask: Tensor) -> None:
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        checks.fail(TypeError, name, "boolean (True = hidden) or floating point", f"dtype {mask.dtype}")
