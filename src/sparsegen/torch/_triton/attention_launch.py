"""From tensors to launches of the attention kernels. Nothing here waits for the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsegen.torch._triton import attend, attend_back
from sparsegen.torch._triton.launch import OPTIONS
from sparsegen.torch._triton.layout import power_of_two

KINDS = 7  # numbers kept of each row: tiles.KINDS
LARGEST = 256  # head size
HEADS = 65535  # of all batches: a grid's second axis
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Tiles(NamedTuple):
    """Queries and keys of a tile, queries at a time for gradients of keys, and the warps of a program."""

    queries: int
    keys: int
    sub: int
    warps: int


def tiles_for(dtype: torch.dtype, size: int) -> Tiles:
    """Tiles that fit the registers and the shared memory of the devices of results/gpu-compile.json."""
    if dtype == torch.float32:
        return Tiles(32, 32, 32, 4) if size <= 64 else Tiles(32, 32, 32, 8) if size <= 128 else Tiles(16, 16, 16, 4)
    return Tiles(128, 32, 32, 8) if size <= 64 else Tiles(64, 32, 32, 8) if size <= 128 else Tiles(32, 32, 16, 4)


class Given(NamedTuple):
    """What a call has besides query, key, value and radius."""

    mask: Tensor | None  # boolean, or added to the scores
    causal: bool
    scale: float
    rule: int


class Kept(NamedTuple):
    """What the way back needs: of rows, and of blocks the tiles that hold support."""

    found: Tensor  # (KINDS, batch, heads, queries)
    means: Tensor  # (3, batch, heads, queries) in float64, with a rule
    lists: Tensor  # (batch * heads, blocks, tiles)
    active: Tensor  # the same as flags
    numbers: Tensor  # (batch * heads, blocks, 2): tiles listed; whether rows needed another step


def block_counts(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int]:
    """Blocks of queries and tiles of keys."""
    size = tiles_for(q.dtype, max(q.shape[-1], v.shape[-1]))
    return -(-q.shape[-2] // size.queries), -(-k.shape[-2] // size.keys)


def empty_kept(q: Tensor, k: Tensor, v: Tensor, rule: int) -> Kept:
    """Room for it. Lists and flags begin as 0: not every entry is written, and an operator's results are compared."""
    batch, heads, lq = q.shape[:3]
    shape = (batch * heads, *block_counts(q, k, v))
    return Kept(
        q.new_empty((KINDS, batch, heads, lq), dtype=torch.float32),
        q.new_empty((3, batch, heads, lq) if rule else (0,), dtype=torch.float64),
        q.new_zeros(shape, dtype=torch.int32),
        q.new_zeros(shape, dtype=torch.int8),
        q.new_empty((*shape[:2], 2), dtype=torch.int32),
    )


def _unit_last(t: Tensor) -> Tensor:
    return t if t.stride(-1) == 1 else t.contiguous()


def _mask(mask: Tensor | None, q: Tensor, k: Tensor) -> tuple[Tensor, tuple[int, ...], int]:
    """A mask as the kernels read it, its four steps, and its kind."""
    if mask is None:
        return q, (0, 0, 0, 0), 0
    kind = 1 if mask.dtype == torch.bool else 2
    mask = mask.view(torch.uint8) if kind == 1 else mask
    full = mask.expand(*q.shape[:-1], k.shape[-2])
    if full.stride(-1) not in (0, 1):
        full = full.contiguous()
    return full, full.stride(), kind


def _common(q: Tensor, k: Tensor, v: Tensor, given: Given) -> tuple[Tensor, tuple[int, ...], dict[str, Any], Tiles]:
    """The mask, its steps, the constants of every kernel, and the tiles."""
    size = tiles_for(q.dtype, max(q.shape[-1], v.shape[-1]))
    mask, steps, kind = _mask(given.mask, q, k)
    constants = {
        "CAUSAL": given.causal, "MASKED": kind, "MASK_ROWS": steps[2] != 0, "BM": size.queries, "BN": size.keys,
        "PRECISION": "ieee", "BD": max(power_of_two(q.shape[-1]), 16), "num_warps": size.warps, "num_stages": 2,
        **OPTIONS,
    }  # fmt: skip
    return mask, steps, constants, size


def _steps(*tensors: Tensor) -> list[int]:
    return [step for t in tensors for step in t.stride()[:3]]


def forward(q: Tensor, k: Tensor, v: Tensor, radius: Tensor, given: Given) -> tuple[Tensor, Kept]:
    """Output of (batch, heads, length, size) tensors; key and value may have a divisor of the query's heads.

    `radius` (float64; q of a mean, with a rule) broadcasts to (batch, heads, queries).
    """
    q, k, v = _unit_last(q), _unit_last(k), _unit_last(v)
    (batch, heads, lq, d), (lk, dv) = q.shape, v.shape[-2:]
    mask, mask_steps, how, _ = _common(q, k, v, given)
    blocks, tiles = block_counts(q, k, v)
    r = radius.expand(batch, heads, lq)
    out = q.new_empty((batch, heads, lq, dv))
    kept = empty_kept(q, k, v, given.rule)
    grid, group = (blocks, batch * heads), heads // k.shape[1]
    attend.bound_kernel[grid](
        q, k, mask, r, kept.found, kept.means, lq, lk, d, heads, group, *_steps(q, k), *mask_steps, *r.stride(),
        given.scale, RULE=given.rule, **how,
    )  # fmt: skip
    for refine in (False, True):
        attend.output_kernel[grid](
            q, k, v, mask, out, kept.found, kept.lists, kept.active, kept.numbers, lq, lk, d, dv, heads, group,
            *_steps(q, k, v, out), *mask_steps, given.scale, tiles, REFINE=refine, BV=max(power_of_two(dv), 16), **how,
        )  # fmt: skip
    return out, kept


class Grads(NamedTuple):
    """Gradients of query, key and value, and of the radius of each row (float64)."""

    query: Tensor
    key: Tensor
    value: Tensor
    radius: Tensor


def backward(q: Tensor, k: Tensor, v: Tensor, given: Given, kept: Kept, out_grad: Tensor) -> Grads:
    """Gradients for an upstream `out_grad`; in float32 for a rule, whose mean has a part in them."""
    q, k, v, out_grad = (_unit_last(t) for t in (q, k, v, out_grad.to(q.dtype)))
    (batch, heads, lq, d), (lk, dv) = q.shape, v.shape[-2:]
    mask, mask_steps, how, size = _common(q, k, v, given)
    how["BV"] = max(power_of_two(dv), 16)
    blocks, tiles = block_counts(q, k, v)
    wide = torch.float32 if given.rule else q.dtype
    found = Grads(
        q.new_empty(q.shape, dtype=wide), k.new_empty(k.shape, dtype=wide), v.new_empty(v.shape),
        q.new_empty((batch, heads, lq), dtype=torch.float64),
    )  # fmt: skip
    delta = q.new_empty((batch, heads, lq), dtype=torch.float32)
    group = heads // k.shape[1]
    sizes = (lq, lk, d, dv, heads, group, *_steps(q, k, v, out_grad))
    attend_back.query_grad_kernel[(blocks, batch * heads)](
        q, k, v, mask, kept.found, kept.lists, kept.numbers, out_grad, found.query, delta, found.radius, *sizes,
        *_steps(found.query), *mask_steps, given.scale, tiles, **how,
    )  # fmt: skip
    columns = torch.empty_like(kept.lists)
    filled = q.new_empty((batch * heads, tiles), dtype=torch.int32)
    attend_back.columns_kernel[(batch * heads * tiles,)](
        kept.active, columns, filled, blocks, tiles, CHUNK=min(power_of_two(blocks), 1024), num_warps=1
    )
    attend_back.key_grad_kernel[(tiles, batch * k.shape[1])](
        q, k, v, mask, kept.found, columns, filled, out_grad, delta, found.key, found.value, *sizes,
        *_steps(found.key, found.value), *mask_steps, given.scale, tiles, blocks, batch * heads, SUB=size.sub, **how,
    )  # fmt: skip
    return found
