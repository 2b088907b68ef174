"""Attention in tiles: what its kernels share.

Rows of scores are never held. Each kernel computes the tiles it needs again, by `scores`, in the same order of
operations, so that all agree on the support. A row's threshold is two numbers, t and lo, in units of its radius.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from sparsegen.torch._triton.numbers import INF

BOOL: tl.constexpr = tl.constexpr(1)
BIAS: tl.constexpr = tl.constexpr(2)
# What becomes of the scores of a row (WEIGH): their projection, that of shares of their exponentials' sum, or the
# squares of entmax with alpha = 1.5.
PROJECTED: tl.constexpr = tl.constexpr(0)
SHARES: tl.constexpr = tl.constexpr(1)
ROOT: tl.constexpr = tl.constexpr(2)
# What is kept of each row, one after the other in FOUND.
BASE: tl.constexpr = tl.constexpr(0)  # taken off the scores
UNIT: tl.constexpr = tl.constexpr(1)  # then multiplied by: a power of two, or 0 if the radius is infinite
HIGH: tl.constexpr = tl.constexpr(2)
LOW: tl.constexpr = tl.constexpr(3)
NEAR: tl.constexpr = tl.constexpr(4)  # what weights sum to in these units: the radius; of roots 1, as it was rounded
SIZE: tl.constexpr = tl.constexpr(5)  # of the set whose equation the threshold solves; -1 where none was searched for
SLOPE: tl.constexpr = tl.constexpr(6)  # what gradients of scores are multiplied by, 0 where the map is constant
FLOOR: tl.constexpr = tl.constexpr(7)  # of roots: a lower bound of the threshold, in two numbers
FLOOR_LOW: tl.constexpr = tl.constexpr(8)
KEEP: tl.constexpr = tl.constexpr(7)  # of shares: the radius as a share of the sum


@triton.jit
def head(X, b, h, batch_step, head_step):
    """Where a head begins."""
    return X + b.to(tl.int64) * batch_step + h.to(tl.int64) * head_step


@triton.jit
def load_rows(X, first, rows, step, d, BM: tl.constexpr, BD: tl.constexpr):
    """BM rows of d entries; 0 beyond."""
    i = first + tl.arange(0, BM)
    c = tl.arange(0, BD)
    return tl.load(
        X + i.to(tl.int64)[:, None] * step + c[None, :], mask=(i < rows)[:, None] & (c < d)[None, :], other=0.0
    )


@triton.jit
def store_rows(X, x, first, rows, step, d, BM: tl.constexpr, BD: tl.constexpr):
    """The same, written."""
    i = first + tl.arange(0, BM)
    c = tl.arange(0, BD)
    at = X + i.to(tl.int64)[:, None] * step + c[None, :]
    tl.store(at, x.to(X.dtype.element_ty), mask=(i < rows)[:, None] & (c < d)[None, :])


@triton.jit
def scores(
    q, k, MASK, first_q, first_k, lq, lk, mask_q, mask_k: tl.constexpr, scale,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, MASK_ROWS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Scores of a tile; -inf where a key may not be chosen."""
    i = first_q + tl.arange(0, BM)
    j = first_k + tl.arange(0, BN)
    x = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    ok = (j < lk)[None, :] & (i < lq)[:, None]
    if CAUSAL:
        ok = ok & (j[None, :] <= i[:, None])
    if MASKED:
        # From one address by 32-bit steps: a tile of 64-bit addresses would take twice the registers.
        at = MASK + first_q.to(tl.int64) * mask_q + first_k.to(tl.int64) * mask_k
        if MASK_ROWS:
            step = tl.arange(0, BM)[:, None] * mask_q + tl.arange(0, BN)[None, :] * mask_k
            inside = ok
        else:  # of keys alone: one line for all queries of the tile
            step = tl.arange(0, BN)[None, :] * mask_k
            inside = (j < lk)[None, :]
        if MASKED == BOOL:
            ok = ok & (tl.load(at + step, mask=inside, other=0) != 0)
        else:
            bias = tl.load(at + step, mask=inside, other=0.0).to(tl.float32)
            x = tl.where(bias == -INF, -INF, x + bias)  # what is hidden may hold anything
    return tl.where(ok, x, -INF)


@triton.jit
def points(x, base, unit, heat, WEIGH: tl.constexpr):
    """Scores, or of shares their exponentials, in units of their row; -inf where they may not be chosen."""
    u = x - base[:, None]
    if WEIGH == SHARES:
        u = tl.exp(u * heat)
    return tl.where(x == -INF, -INF, u * unit[:, None])


@triton.jit
def above(u, high, low):
    """How far points are above the threshold of their row; -inf where they may not be chosen."""
    return (u - high[:, None]) - low[:, None]


@triton.jit
def row_numbers(FOUND, rows, at, here):
    """What was found of rows: base, unit, high, low, near and slope."""
    base = tl.load(FOUND + BASE * rows + at, mask=here, other=0.0)
    unit = tl.load(FOUND + UNIT * rows + at, mask=here, other=1.0)
    high = tl.load(FOUND + HIGH * rows + at, mask=here, other=0.0)
    low = tl.load(FOUND + LOW * rows + at, mask=here, other=0.0)
    near = tl.load(FOUND + NEAR * rows + at, mask=here, other=1.0)
    slope = tl.load(FOUND + SLOPE * rows + at, mask=here, other=0.0)
    return base, unit, high, low, near, slope


@triton.jit
def advance(high, low, step):
    """The threshold moved by `step`, without losing what is too small for one number."""
    both = low + step
    there = high + both
    return there, both - (there - high)


@triton.jit
def tiles_of(first_q, lk, CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """How many tiles of keys a block of queries may look at."""
    number = tl.cdiv(lk, BN)
    if CAUSAL:
        number = tl.minimum(number, tl.cdiv(first_q + BM, BN))
    return number
