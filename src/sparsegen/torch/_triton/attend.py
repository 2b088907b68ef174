"""Attention forwards, one program for BM queries of a head: bound, output, refine.

bound    streams all tiles of keys and keeps for every lane (key modulo BN) its two largest scores. The search on those
         2 BN numbers of each row gives a lower bound of its threshold, exact if no lane has three of the support. What
         a radius is made of (a mean, a sum of exponentials) is summed on the way.
output   streams the tiles once more at that threshold: count, sum, output, and a list of the tiles above it.
refine   only where a row's count differs from the bound's: the search, each step over the listed tiles, until every
         row's threshold is the one of the set above it. A kernel of its own, because what a kernel wrote it may not
         read again.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from sparsegen.torch._triton.dropout import spared
from sparsegen.torch._triton.numbers import GIVEN, INF, add2, radius_of_mean, reachable
from sparsegen.torch._triton.settle import MOST, settle_lanes, start, step
from sparsegen.torch._triton.tiles import (
    BASE,
    FLOOR,
    FLOOR_LOW,
    HIGH,
    KEEP,
    LOW,
    NEAR,
    ROOT,
    SHARES,
    SIZE,
    SLOPE,
    UNIT,
    above,
    head,
    load_rows,
    points,
    row_numbers,
    scores,
    store_rows,
    tiles_of,
)  # fmt: skip


@triton.jit
def add_shares(x, top, total, heat):
    """The largest score so far, and the sum of exponentials (float64) measured from it."""
    here = tl.maximum(top, tl.max(x, 1))
    base = tl.where(here == -INF, 0.0, here)
    y = tl.where(x == -INF, 0.0, tl.exp((x - base[:, None]) * heat))
    fade = tl.where(top == -INF, 0.0, tl.exp((top - base) * heat))
    return here, total * fade.to(tl.float64) + tl.sum(y, 1).to(tl.float64)


@triton.jit
def row_radius(control, total, count, MEANS, rows, at, here, RULE: tl.constexpr, WEIGH: tl.constexpr):
    """The radius of rows: given, made of their mean, a share of their sum, or entmax's (all float64)."""
    r = control
    if WEIGH == ROOT:
        r = control * 0.0 + 2.0
    elif WEIGH == SHARES:
        r = tl.where(count > 0, control * total, 1.0)
    elif RULE != GIVEN:
        mean = total / tl.maximum(count, 1.0)
        r = radius_of_mean(mean, count, control, RULE)
        tl.store(MEANS + at, r, mask=here)
        tl.store(MEANS + rows + at, mean, mask=here)
        tl.store(MEANS + 2 * rows + at, count, mask=here)
    return reachable(r, tl.float32)


@triton.jit
def whole_shares(control, r, total, count, unit, high, low, kept):
    """With all of the sum or more to give, every key has a part and the threshold is known: 0 for all of it, softmax.

    There the smallest number takes it below 0, so that keys whose share is too small for a number belong to the
    support, as the derivative in the share has it.
    """
    n = tl.maximum(count, 1.0)
    known = tl.where(r == INF, -1.0, total * (1.0 - control) * unit.to(tl.float64)) / n
    whole = ~(control < 1.0)
    high = tl.where(whole, known.to(tl.float32), high)
    low = tl.where(whole, tl.where(control == 1.0, -1e-37, 0.0), low)
    return high, low, tl.where(whole, -1, kept)


@triton.jit
def row_slope(control, r, near, heat, WEIGH: tl.constexpr):
    """What gradients of scores are multiplied by; 0 where the map is constant."""
    moves = (control != 0) & (r != 0) & (r != INF)
    if WEIGH == ROOT:
        slope = r * 0.0 + 1.0
    elif WEIGH == SHARES:
        slope = tl.where(moves, heat / near, 0.0)
    else:
        slope = tl.minimum(tl.where(moves, 1.0 / tl.where(moves, r, 1.0), 0.0), 3e38)
    return slope.to(tl.float32)


@triton.jit
def bound_kernel(
    Q, K, MASK, RADIUS, FOUND, MEANS,
    lq, lk, d, heads, group, q_b, q_h, q_row, k_b, k_h, k_row, mask_b, mask_h, mask_q, mask_k: tl.constexpr,
    r_b, r_h, r_q, scale, heat,
    RULE: tl.constexpr, WEIGH: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, MASK_ROWS: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
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
    one = tl.full([BM, BN], -INF, tl.float32)
    two = tl.full([BM, BN], -INF, tl.float32)
    top = tl.full([BM], -INF, tl.float32)
    total = tl.zeros([BM], tl.float64)
    count = tl.zeros([BM], tl.float64)
    for tile in range(0, tiles_of(first_q, lk, CAUSAL, BM, BN)):
        first_k = tile * BN + block * 0  # a tensor in the interpreter too
        k = load_rows(K, first_k, lk, k_row, d, BN, BD)
        x = scores(q, k, MASK, first_q, first_k, lq, lk, mask_q, mask_k, scale, CAUSAL, MASKED, MASK_ROWS, PRECISION,
                   BM, BN)  # fmt: skip
        two = tl.maximum(two, tl.minimum(one, x))
        one = tl.maximum(one, x, propagate_nan=tl.PropagateNan.ALL)
        if WEIGH == SHARES:
            count += tl.sum((x > -INF).to(tl.int32), 1).to(tl.float64)
            top, total = add_shares(x, top, total, heat)
        elif RULE != GIVEN:
            n, s = tl.reduce(((x > -INF).to(tl.int32), tl.where(x > -INF, x, 0.0)), 1, add2)
            count += n.to(tl.float64)
            total += s.to(tl.float64)
    at = bh.to(tl.int64) * lq + i
    rows = tl.num_programs(1).to(tl.int64) * lq
    control = tl.load(head(RADIUS, b, h, r_b, r_h) + i.to(tl.int64) * r_q, mask=here, other=1.0).to(tl.float64)
    r = row_radius(control, total, count, MEANS, rows, at, here, RULE, WEIGH)
    base, unit, near, high, low = start(tl.max(one, 1), r, WEIGH)
    kept = tl.full([BM], MOST, tl.int32)
    if WEIGH == SHARES:
        high, low, kept = whole_shares(control, r, total, count, unit, high, low, kept)
        tl.store(FOUND + KEEP * rows + at, control.to(tl.float32), mask=here)
    high, low, kept = settle_lanes(one, two, base, unit, near, high, low, kept, heat, WEIGH)
    tl.store(FOUND + BASE * rows + at, base, mask=here)
    tl.store(FOUND + UNIT * rows + at, unit, mask=here)
    tl.store(FOUND + HIGH * rows + at, high, mask=here)
    tl.store(FOUND + LOW * rows + at, low, mask=here)
    tl.store(FOUND + NEAR * rows + at, near, mask=here)
    tl.store(FOUND + SIZE * rows + at, kept.to(tl.float32), mask=here)
    tl.store(FOUND + SLOPE * rows + at, row_slope(control, r, near, heat, WEIGH), mask=here)


@triton.jit
def pass_over(
    q, K, V, MASK, TILES, ACTIVE, SEED, number, row, base, unit, high, low, first_q, lq, lk, d, dv, k_row, v_row,
    mask_q, mask_k: tl.constexpr, scale, heat, taken,
    LISTED: tl.constexpr, WEIGH: tl.constexpr, DROPS: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    MASK_ROWS: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    BV: tl.constexpr,
):  # fmt: skip
    """Count, sum and squares of what is above the threshold, and the output; over all tiles (and list those above), or
    over the listed ones."""
    size = tl.zeros([BM], tl.int32)
    total = tl.zeros([BM], tl.float32)
    squares = tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, BV], tl.float32)
    found = 0
    for i in range(0, number):
        first_k = tl.load(TILES + i) * BN if LISTED else i * BN + first_q * 0
        k = load_rows(K, first_k, lk, k_row, d, BN, BD)
        x = scores(q, k, MASK, first_q, first_k, lq, lk, mask_q, mask_k, scale, CAUSAL, MASKED, MASK_ROWS, PRECISION,
                   BM, BN)  # fmt: skip
        rise = above(points(x, base, unit, heat, WEIGH), high, low)
        on = ~(rise <= 0)
        rise = tl.where(on, rise, 0.0)
        n, s = tl.reduce((on.to(tl.int32), rise), 1, add2)
        some = (tl.max(n, 0) > 0).to(tl.int32)
        if some > 0:
            size += n
            total += s
            if WEIGH == ROOT:
                rise = rise * rise
                squares += tl.sum(rise, 1)
            if DROPS:
                rise = tl.where(spared(SEED, row, first_k + tl.arange(0, BN), taken), rise, 0.0)
            v = load_rows(V, first_k, lk, v_row, dv, BN, BV)
            out = tl.dot(rise.to(v.dtype), v, out, input_precision=PRECISION)
        if not LISTED:
            tl.store(TILES + found, i, mask=some > 0)
            tl.store(ACTIVE + i, some.to(tl.int8))
            found += some
    return size, total, squares, out, found


@triton.jit
def output_kernel(
    Q, K, V, MASK, SEED, OUT, FOUND, TILES, ACTIVE, NUMBER,
    lq, lk, d, dv, heads, group, q_b, q_h, q_row, k_b, k_h, k_row, v_b, v_h, v_row, o_b, o_h, o_row,
    mask_b, mask_h, mask_q, mask_k: tl.constexpr, scale, heat, taken, spare, tiles,
    REFINE: tl.constexpr, WEIGH: tl.constexpr, DROPS: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    MASK_ROWS: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    BV: tl.constexpr,
):  # fmt: skip
    """Output of BM queries. At the bound, with the list of the tiles above it and how many rows need another step; or,
    to REFINE, by further steps over that list, in blocks that have such rows."""
    block = tl.program_id(0)
    bh = tl.program_id(1)
    mine = bh.to(tl.int64) * tl.num_programs(0) + block
    NUMBER += mine * 2
    more = 1
    if REFINE:
        more = tl.load(NUMBER + 1)
    if more > 0:
        b = bh // heads
        h = bh % heads
        first_q = block * BM
        i = first_q + tl.arange(0, BM)
        here = i < lq
        row = bh.to(tl.int64) * lq + i
        rows = tl.num_programs(1).to(tl.int64) * lq
        q = load_rows(head(Q, b, h, q_b, q_h), first_q, lq, q_row, d, BM, BD)
        base, unit, high, low, near, _ = row_numbers(FOUND, rows, row, here)
        kept = tl.load(FOUND + SIZE * rows + row, mask=here, other=0.0).to(tl.int32)
        floor = high
        floor_low = low
        number = tiles_of(first_q, lk, CAUSAL, BM, BN)
        if REFINE:
            number = tl.load(NUMBER)
            if WEIGH == ROOT:
                floor = tl.load(FOUND + FLOOR * rows + row, mask=here, other=0.0)
                floor_low = tl.load(FOUND + FLOOR_LOW * rows + row, mask=here, other=0.0)
        squares = near
        out = tl.zeros([BM, BV], tl.float32)
        while more > 0:  # once, but to refine
            size, total, squares, out, found = pass_over(
                q, head(K, b, h // group, k_b, k_h), head(V, b, h // group, v_b, v_h), head(MASK, b, h, mask_b, mask_h),
                TILES + mine * tiles, ACTIVE + mine * tiles, SEED, number, row, base, unit, high, low, first_q, lq, lk,
                d, dv, k_row, v_row, mask_q, mask_k, scale, heat, taken, REFINE, WEIGH, DROPS, CAUSAL, MASKED,
                MASK_ROWS, PRECISION, BM, BN, BD, BV,
            )  # fmt: skip
            if not REFINE:  # what the bound's set had, or it missed some of them
                kept = tl.where((kept < 0) | (kept == size), kept, MOST)
            high, low, kept, floor, floor_low, moves = step(
                size, total, squares, near, high, low, kept, floor, floor_low, WEIGH
            )
            more = tl.max(moves.to(tl.int32), 0)
            if not REFINE:
                tl.store(NUMBER, found)
                tl.store(NUMBER + 1, more)
                more = 0
        if WEIGH == ROOT:
            near = tl.where(squares == 0, 1.0, squares)
            tl.store(FOUND + NEAR * rows + row, near, mask=here)
            tl.store(FOUND + FLOOR * rows + row, floor, mask=here)
            tl.store(FOUND + FLOOR_LOW * rows + row, floor_low, mask=here)
        store_rows(head(OUT, b, h, o_b, o_h), out * (spare / near)[:, None], first_q, lq, o_row, dv, BM, BV)
        tl.store(FOUND + HIGH * rows + row, high, mask=here)
        tl.store(FOUND + LOW * rows + row, low, mask=here)
        tl.store(FOUND + SIZE * rows + row, kept.to(tl.float32), mask=here)
