"""Attention forwards, one program for BM queries of a head: bound, output, refine.

bound    streams all tiles of keys and keeps for every lane (key modulo BN) its two largest scores. Newton's method on
         those 2 BN numbers of each row gives a lower bound of its threshold, exact if no lane has three of the support.
output   streams the tiles once more at that threshold: count, sum, output, and a list of the tiles above it.
refine   only where a row's count differs from the bound's: Newton's method, each step over the listed tiles, until no
         count falls. A kernel of its own, because what a kernel wrote it may not read again.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from sparsegen.torch._triton.numbers import GIVEN, INF, add2, comfortable, radius_of_mean, unit_scale
from sparsegen.torch._triton.tiles import (
    BASE,
    HIGH,
    LOW,
    NEAR,
    SIZE,
    SLOPE,
    UNIT,
    above,
    advance,
    head,
    load_rows,
    scores,
    store_rows,
    tiles_of,
)  # fmt: skip


@triton.jit
def bound_kernel(
    Q, K, MASK, RADIUS, FOUND, MEANS,
    lq, lk, d, heads, group, q_b, q_h, q_row, k_b, k_h, k_row, mask_b, mask_h, mask_q, mask_k: tl.constexpr,
    r_b, r_h, r_q, scale,
    RULE: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, MASK_ROWS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """FOUND of each row, its threshold a lower bound. MEANS, with a rule: radius, mean and count (float64)."""
    block = tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // heads
    h = bh % heads
    first_q = block * BM
    K = head(K, b, h // group, k_b, k_h)
    MASK = head(MASK, b, h, mask_b, mask_h)
    i = first_q + tl.arange(0, BM)
    here = i < lq
    q = load_rows(head(Q, b, h, q_b, q_h), first_q, lq, q_row, d, BM, BD)
    r = tl.load(head(RADIUS, b, h, r_b, r_h) + i.to(tl.int64) * r_q, mask=here, other=1.0).to(tl.float64)
    one = tl.full([BM, BN], -INF, tl.float32)
    two = tl.full([BM, BN], -INF, tl.float32)
    total = tl.zeros([BM], tl.float64)
    count = tl.zeros([BM], tl.float64)
    for tile in range(0, tiles_of(first_q, lk, CAUSAL, BM, BN)):
        first_k = tile * BN + block * 0  # a tensor in the interpreter too
        k = load_rows(K, first_k, lk, k_row, d, BN, BD)
        x = scores(q, k, MASK, first_q, first_k, lq, lk, mask_q, mask_k, scale, CAUSAL, MASKED, MASK_ROWS, PRECISION,
                   BM, BN)  # fmt: skip
        two = tl.maximum(two, tl.minimum(one, x))
        one = tl.maximum(one, x, propagate_nan=tl.PropagateNan.ALL)
        if RULE != GIVEN:
            n, s = tl.reduce(((x > -INF).to(tl.int32), tl.where(x > -INF, x, 0.0)), 1, add2)
            count += n.to(tl.float64)
            total += s.to(tl.float64)
    at = bh.to(tl.int64) * lq + i
    rows = tl.num_programs(1).to(tl.int64) * lq
    if RULE != GIVEN:
        mean = total / tl.maximum(count, 1.0)
        r = radius_of_mean(mean, count, r, RULE)
        tl.store(MEANS + at, r, mask=here)
        tl.store(MEANS + rows + at, mean, mask=here)
        tl.store(MEANS + 2 * rows + at, count, mask=here)
    top = tl.max(one, 1)
    far = r == INF
    base = tl.where(tl.abs(top).to(tl.float64) >= 2 * r, top, 0.0)
    base = tl.where(top == -INF, 0.0, base)
    by = unit_scale(r, tl.float32)
    near = comfortable(r, by, tl.float32)
    unit = tl.where(far, 0.0, by).to(tl.float32)
    high = tl.where(top == -INF, 0.0, (top - base) * unit) - near
    low = high * 0.0
    kept = tl.full([BM], 2 * BN + 1, tl.int32)
    more = 1
    while more > 0:
        d1 = above(one, base, unit, high, low)
        d2 = above(two, base, unit, high, low)
        on1 = ~(d1 <= 0)
        on2 = ~(d2 <= 0)
        size = on1.to(tl.int32) + on2.to(tl.int32)
        sums = tl.where(on1, d1, 0.0) + tl.where(on2, d2, 0.0)
        n, s = tl.reduce((size, sums), 1, add2)
        falls = (n < kept) & (n > 0)
        there, rest = advance(high, low, (s - near) / tl.maximum(n, 1))
        high = tl.where(falls, there, high)
        low = tl.where(falls, rest, low)
        kept = tl.where(falls, n, kept)
        more = tl.max(falls.to(tl.int32), 0)
    moves = (r != 0) & (r != INF)
    slope = tl.minimum(tl.where(moves, 1.0 / tl.where(moves, r, 1.0), 0.0), 3e38).to(tl.float32)
    tl.store(FOUND + BASE * rows + at, base, mask=here)
    tl.store(FOUND + UNIT * rows + at, unit, mask=here)
    tl.store(FOUND + HIGH * rows + at, high, mask=here)
    tl.store(FOUND + LOW * rows + at, low, mask=here)
    tl.store(FOUND + NEAR * rows + at, near, mask=here)
    tl.store(FOUND + SIZE * rows + at, kept.to(tl.float32), mask=here)
    tl.store(FOUND + SLOPE * rows + at, slope, mask=here)


@triton.jit
def pass_over(
    q, K, V, MASK, TILES, ACTIVE, number, base, unit, high, low, first_q, lq, lk, d, dv, k_row, v_row,
    mask_q, mask_k: tl.constexpr, scale,
    LISTED: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, MASK_ROWS: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Count and sum of what is above the threshold, and the output; over all tiles (and list those above), or over
    the listed ones."""
    size = tl.zeros([BM], tl.int32)
    total = tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, BV], tl.float32)
    found = 0
    for i in range(0, number):
        first_k = tl.load(TILES + i) * BN if LISTED else i * BN + first_q * 0
        k = load_rows(K, first_k, lk, k_row, d, BN, BD)
        x = scores(q, k, MASK, first_q, first_k, lq, lk, mask_q, mask_k, scale, CAUSAL, MASKED, MASK_ROWS, PRECISION,
                   BM, BN)  # fmt: skip
        rise = above(x, base, unit, high, low)
        on = ~(rise <= 0)
        rise = tl.where(on, rise, 0.0)
        n, s = tl.reduce((on.to(tl.int32), rise), 1, add2)
        some = (tl.max(n, 0) > 0).to(tl.int32)
        if some > 0:
            size += n
            total += s
            v = load_rows(V, first_k, lk, v_row, dv, BN, BV)
            out = tl.dot(rise.to(v.dtype), v, out, input_precision=PRECISION)
        if not LISTED:
            tl.store(TILES + found, i, mask=some > 0)
            tl.store(ACTIVE + i, some.to(tl.int8))
            found += some
    return size, total, out, found


@triton.jit
def output_kernel(
    Q, K, V, MASK, OUT, FOUND, TILES, ACTIVE, NUMBER,
    lq, lk, d, dv, heads, group, q_b, q_h, q_row, k_b, k_h, k_row, v_b, v_h, v_row, o_b, o_h, o_row,
    mask_b, mask_h, mask_q, mask_k: tl.constexpr, scale, tiles,
    REFINE: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, MASK_ROWS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Output of BM queries. At the bound, with the list of the tiles above it and how many rows need another step; or,
    to REFINE, by Newton's method over that list, in blocks that have such rows."""
    block = tl.program_id(0)
    bh = tl.program_id(1)
    blocks = tl.num_programs(0)
    mine = bh.to(tl.int64) * blocks + block
    NUMBER += mine * 2
    more = 1
    if REFINE:
        more = tl.load(NUMBER + 1)
    if more > 0:
        b = bh // heads
        h = bh % heads
        first_q = block * BM
        K = head(K, b, h // group, k_b, k_h)
        V = head(V, b, h // group, v_b, v_h)
        MASK = head(MASK, b, h, mask_b, mask_h)
        TILES += mine * tiles
        ACTIVE += mine * tiles
        i = first_q + tl.arange(0, BM)
        here = i < lq
        q = load_rows(head(Q, b, h, q_b, q_h), first_q, lq, q_row, d, BM, BD)
        at = FOUND + bh.to(tl.int64) * lq + i
        rows = tl.num_programs(1).to(tl.int64) * lq
        base = tl.load(at + BASE * rows, mask=here, other=0.0)
        unit = tl.load(at + UNIT * rows, mask=here, other=1.0)
        high = tl.load(at + HIGH * rows, mask=here, other=0.0)
        low = tl.load(at + LOW * rows, mask=here, other=0.0)
        near = tl.load(at + NEAR * rows, mask=here, other=1.0)
        kept = tl.load(at + SIZE * rows, mask=here, other=0.0).to(tl.int32)
        if REFINE:
            number = tl.load(NUMBER)
            out = tl.zeros([BM, BV], tl.float32)
            while more > 0:
                size, total, out, _ = pass_over(
                    q, K, V, MASK, TILES, ACTIVE, number, base, unit, high, low, first_q, lq, lk, d, dv, k_row, v_row,
                    mask_q, mask_k, scale, True, CAUSAL, MASKED, MASK_ROWS, PRECISION, BM, BN, BD, BV,
                )  # fmt: skip
                falls = (size < kept) & (size > 0)
                there, rest = advance(high, low, (total - near) / tl.maximum(size, 1))
                high = tl.where(falls, there, high)
                low = tl.where(falls, rest, low)
                kept = tl.where(falls, size, kept)
                more = tl.max(falls.to(tl.int32), 0)
        else:
            number = tiles_of(first_q, lk, CAUSAL, BM, BN)
            size, total, out, found = pass_over(
                q, K, V, MASK, TILES, ACTIVE, number, base, unit, high, low, first_q, lq, lk, d, dv, k_row, v_row,
                mask_q, mask_k, scale, False, CAUSAL, MASKED, MASK_ROWS, PRECISION, BM, BN, BD, BV,
            )  # fmt: skip
            falls = (size != kept) & (size > 0)
            there, rest = advance(high, low, (total - near) / tl.maximum(size, 1))
            high = tl.where(falls, there, high)
            low = tl.where(falls, rest, low)
            kept = size
            tl.store(NUMBER, found)
            tl.store(NUMBER + 1, tl.max(falls.to(tl.int32), 0))
        out = out * (1.0 / near)[:, None]
        store_rows(head(OUT, b, h, o_b, o_h), out, first_q, lq, o_row, dv, BM, BV)
        tl.store(at + HIGH * rows, high, mask=here)
        tl.store(at + LOW * rows, low, mask=here)
        tl.store(at + SIZE * rows, kept.to(tl.float32), mask=here)
