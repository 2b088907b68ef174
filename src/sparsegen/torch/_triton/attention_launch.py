"""From tensors to launches of the attention kernels. Nothing here waits for the device."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsegen.torch._triton import attend, attend_back, decode
from sparsegen.torch._triton.launch import OPTIONS
from sparsegen.torch._triton.layout import power_of_two

KINDS = 7  # numbers kept of each row; of shares one more, of roots two: tiles.BASE and so on
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


SHARES = 1  # Map.weighing, tiles.SHARES


def key_options(tiles: Tiles, size: int, more: bool) -> dict[str, int]:
    """How the gradients of keys go over queries. With `more` live at once (exponentials, dropout) by fewer of them, or
    without loading ahead, so that nothing spills."""
    if not more:
        return {"SUB": tiles.sub, "num_stages": 2}
    return {"SUB": min(tiles.sub, 16), "num_stages": 2} if size <= 64 else {"SUB": tiles.sub, "num_stages": 1}


class Given(NamedTuple):
    """What a call has besides query, key, value and control."""

    mask: Tensor | None  # boolean, or added to the scores
    causal: bool
    scale: float
    rule: int = 0  # of the mean, that the radius is made of
    weigh: int = 0  # Map.weighing
    temperature: float = 1.0  # of shares
    dropout: float = 0.0
    seed: Tensor | None = None  # of dropout, on the device

    @property
    def numbers(self) -> tuple[float, ...]:
        """Scale and heat of the scores."""
        return self.scale, min(1 / self.temperature, 3e38)

    @property
    def chances(self) -> tuple[int, float]:
        """How many of 2^53 weights dropout takes, and what those it leaves are multiplied by."""
        return math.ceil(self.dropout * 2**53), 1 / (1 - self.dropout) if self.dropout < 1 else 0.0


class Kept(NamedTuple):
    """What the way back needs: of rows, and of blocks the tiles that hold support."""

    found: Tensor  # (KINDS and more, batch, heads, queries)
    means: Tensor  # (3, batch, heads, queries) in float64, with a rule
    lists: Tensor  # (batch * heads, blocks, tiles)
    active: Tensor  # the same as flags
    numbers: Tensor  # (batch * heads, blocks, 2): tiles listed; whether rows needed another step


def block_counts(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int]:
    """Blocks of queries and tiles of keys."""
    size = tiles_for(q.dtype, max(q.shape[-1], v.shape[-1]))
    return -(-q.shape[-2] // size.queries), -(-k.shape[-2] // size.keys)


def empty_kept(q: Tensor, k: Tensor, v: Tensor, weigh: int, of_mean: bool) -> Kept:
    """Room for it. Lists and flags begin as 0: not every entry is written, and an operator's results are compared."""
    batch, heads, lq = q.shape[:3]
    shape = (batch * heads, *block_counts(q, k, v))
    return Kept(
        q.new_empty((KINDS + weigh, batch, heads, lq), dtype=torch.float32),
        q.new_empty((3, batch, heads, lq) if of_mean else (0,), dtype=torch.float64),
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
        "WEIGH": given.weigh, "CAUSAL": given.causal, "MASKED": kind, "MASK_ROWS": steps[2] != 0,
        "BM": size.queries, "BN": size.keys, "PRECISION": "ieee", "BD": max(power_of_two(q.shape[-1]), 16),
        "num_warps": size.warps, "num_stages": 2, **OPTIONS,
    }  # fmt: skip
    return mask, steps, constants, size


def _steps(*tensors: Tensor) -> list[int]:
    return [step for t in tensors for step in t.stride()[:3]]


def _seed(given: Given, q: Tensor) -> Tensor:
    """The seed of dropout; without one, any tensor in its place."""
    return q if given.seed is None else given.seed


def forward(q: Tensor, k: Tensor, v: Tensor, control: Tensor, given: Given) -> tuple[Tensor, Kept]:
    """Output of (batch, heads, length, size) tensors; key and value may have a divisor of the query's heads.

    `control` (float64: the radius, the q of a mean, a share of the sum) broadcasts to (batch, heads, queries).
    """
    q, k, v = _unit_last(q), _unit_last(k), _unit_last(v)
    (batch, heads, lq, d), (lk, dv) = q.shape, v.shape[-2:]
    mask, mask_steps, how, _ = _common(q, k, v, given)
    blocks, tiles = block_counts(q, k, v)
    r = control.expand(batch, heads, lq)
    out = q.new_empty((batch, heads, lq, dv))
    kept = empty_kept(q, k, v, given.weigh, given.rule > 0)
    grid, group = (blocks, batch * heads), heads // k.shape[1]
    attend.bound_kernel[grid](
        q, k, mask, r, kept.found, kept.means, lq, lk, d, heads, group, *_steps(q, k), *mask_steps, *r.stride(),
        *given.numbers, RULE=given.rule, **how,
    )  # fmt: skip
    for refine in (False, True):
        attend.output_kernel[grid](
            q, k, v, mask, _seed(given, q), out, kept.found, kept.lists, kept.active, kept.numbers, lq, lk, d, dv,
            heads, group, *_steps(q, k, v, out), *mask_steps, *given.numbers, *given.chances, tiles, REFINE=refine,
            DROPS=given.dropout > 0, BV=max(power_of_two(dv), 16), **how,
        )  # fmt: skip
    return out, kept


class Grads(NamedTuple):
    """Gradients of query, key and value, and of the radius, or the share, of each row (float64)."""

    query: Tensor
    key: Tensor
    value: Tensor
    control: Tensor


def backward(q: Tensor, k: Tensor, v: Tensor, given: Given, kept: Kept, out_grad: Tensor) -> Grads:
    """Gradients for an upstream `out_grad`; in float32 for a rule, whose mean has a part in them."""
    q, k, v, out_grad = (_unit_last(t) for t in (q, k, v, out_grad.to(q.dtype)))
    (batch, heads, lq, d), (lk, dv) = q.shape, v.shape[-2:]
    mask, mask_steps, how, size = _common(q, k, v, given)
    how.update(BV=max(power_of_two(dv), 16), DROPS=given.dropout > 0)
    blocks, tiles = block_counts(q, k, v)
    wide = torch.float32 if given.rule else q.dtype
    found = Grads(
        q.new_empty(q.shape, dtype=wide), k.new_empty(k.shape, dtype=wide), v.new_empty(v.shape),
        q.new_empty((batch, heads, lq), dtype=torch.float64),
    )  # fmt: skip
    delta = q.new_empty((2 if given.weigh == SHARES else 1, batch, heads, lq), dtype=torch.float32)
    group, seed, numbers = heads // k.shape[1], _seed(given, q), (*given.numbers, *given.chances)
    sizes = (lq, lk, d, dv, heads, group, *_steps(q, k, v, out_grad))
    attend_back.query_grad_kernel[(blocks, batch * heads)](
        q, k, v, mask, seed, kept.found, kept.lists, kept.numbers, out_grad, found.query, delta, found.control, *sizes,
        *_steps(found.query), *mask_steps, *numbers, tiles, **how,
    )  # fmt: skip
    columns = torch.empty_like(kept.lists)
    filled = q.new_empty((batch * heads, tiles), dtype=torch.int32)
    attend_back.columns_kernel[(batch * heads * tiles,)](
        kept.active, columns, filled, blocks, tiles, CHUNK=min(power_of_two(blocks), 1024), num_warps=1
    )
    how |= key_options(size, max(d, dv), given.weigh == SHARES or given.dropout > 0)
    attend_back.key_grad_kernel[(tiles, batch * k.shape[1])](
        q, k, v, mask, seed, kept.found, columns, filled, out_grad, delta, found.key, found.value, *sizes,
        *_steps(found.key, found.value), *mask_steps, *numbers, tiles, blocks, batch * heads, **how,
    )  # fmt: skip
    return found


FEW, LONG = 16, 1024  # rows of a group of heads, and keys, for which the keys are split
SCORED, SUMMED, SPLIT = 64, 32, 512  # keys of a program's scores; of a tile of values, and of a program's


def few_rows(q: Tensor, k: Tensor) -> tuple[int, int]:
    """Rows that go over a head of keys together, and how many heads that are."""
    return q.shape[1] // k.shape[1] * q.shape[2], k.shape[0] * k.shape[1]


def split_scores(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Scores (batch, heads, queries, keys) of few queries in float32, -inf where a key may not be chosen."""
    q, k = _unit_last(q), _unit_last(k)
    lq, (shared, lk, d) = q.shape[2], k.shape[1:]
    given, mask_steps, kind = _mask(mask, q, k)
    x = q.new_empty((*q.shape[:3], lk), dtype=torch.float32)
    decode.scores_kernel[(-(-lk // SCORED), few_rows(q, k)[1])](
        q, k, given, x, lq, lk, d, shared, q.shape[1] // shared, *_steps(q, k), *mask_steps, scale,
        CAUSAL=causal, MASKED=kind, PRECISION="ieee", BM=FEW, BN=SCORED, BD=max(power_of_two(d), 16), num_warps=4,
        **OPTIONS,
    )  # fmt: skip
    return x


def split_values(p: Tensor, v: Tensor) -> Tensor:
    """Output of weights (batch, heads, queries, keys) in float32, by parts that are added in their order."""
    p, v = p.contiguous(), _unit_last(v)
    (shared, lk, dv), (rows, heads) = v.shape[1:], few_rows(p, v)
    splits = -(-lk // SPLIT)
    parts = p.new_empty((splits, *p.shape[:3], dv))
    decode.values_kernel[(splits, heads)](
        p, v, parts, rows, lk, dv, shared, *_steps(v), PRECISION="ieee", SPLIT=SPLIT, BM=FEW, BN=SUMMED,
        BV=max(power_of_two(dv), 16), num_warps=4, **OPTIONS,
    )  # fmt: skip
    return parts.sum(0).to(v.dtype)
