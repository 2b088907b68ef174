"""Attention backwards: queries and radii by rows, keys and values by columns, over the tiles that hold support. A share
of a sum has every key in it: there the gradients of queries and keys visit all tiles.

Scores are computed again and compared with the thresholds that were kept. Each gradient is summed by one program in a
fixed order: no atomic additions, the same bits each time.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from sparsegen.torch._triton.dropout import spared
from sparsegen.torch._triton.numbers import INF
from sparsegen.torch._triton.tiles import (
    KEEP,
    ROOT,
    SHARES,
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
def weight_slopes(do, v, left, spare, DROPS: tl.constexpr, PRECISION: tl.constexpr):
    """Gradient of the weights of a tile, 0 but for those that dropout left."""
    dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
    return tl.where(left, dp * spare, 0.0) if DROPS else dp


@triton.jit
def left_over(SEED, row, first_k, taken, DROPS: tl.constexpr, BN: tl.constexpr):
    """Which weights of a tile dropout leaves."""
    return spared(SEED, row, first_k + tl.arange(0, BN), taken) if DROPS else True


@triton.jit
def score_slopes(u, rise, dp, delta, pull, WEIGH: tl.constexpr):
    """Gradient of the scores of a tile, to be multiplied by the slope of their row."""
    ds = tl.where(rise <= 0, 0.0, dp - delta[:, None])
    if WEIGH == ROOT:
        ds = tl.where(rise <= 0, 0.0, ds * rise)
    if WEIGH == SHARES:  # every key that may be chosen has a part in the sum
        ds = tl.where(u == -INF, 0.0, u * (ds - pull[:, None]))
    return ds


@triton.jit
def row_sums(
    q, do, K, V, MASK, TILES, SEED, number, row, base, unit, high, low, first_q, lq, lk, d, dv, k_row, v_row,
    mask_q, mask_k: tl.constexpr, scale, heat, taken, spare,
    WEIGH: tl.constexpr, DROPS: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, MASK_ROWS: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Over the support of rows: the mean of dp, weighted by the points' slopes, and (dp - mean) times the rise."""
    size = tl.zeros([BM], tl.float32)
    total = tl.zeros([BM], tl.float32)
    inner = tl.zeros([BM], tl.float32)
    mass = tl.zeros([BM], tl.float32)
    for n in range(0, number):
        first_k = tl.load(TILES + n) * BN
        k = load_rows(K, first_k, lk, k_row, d, BN, BD)
        x = scores(q, k, MASK, first_q, first_k, lq, lk, mask_q, mask_k, scale, CAUSAL, MASKED, MASK_ROWS, PRECISION,
                   BM, BN)  # fmt: skip
        rise = above(points(x, base, unit, heat, WEIGH), high, low)
        on = ~(rise <= 0)
        rise = tl.where(on, rise, 0.0)
        v = load_rows(V, first_k, lk, v_row, dv, BN, BV)
        left = left_over(SEED, row, first_k, taken, DROPS, BN)
        dp = tl.where(on, weight_slopes(do, v, left, spare, DROPS, PRECISION), 0.0)
        inner += tl.sum(dp * rise, 1)
        mass += tl.sum(rise, 1)
        if WEIGH != ROOT:
            size += tl.sum(on.to(tl.float32), 1)
            total += tl.sum(dp, 1)
    delta = inner / tl.where(mass == 0, 1.0, mass) if WEIGH == ROOT else total / tl.maximum(size, 1.0)
    return delta, inner - delta * mass


@triton.jit
def query_grad_kernel(
    Q, K, V, MASK, SEED, FOUND, TILES, NUMBER, GRAD_OUT, GRAD_Q, DELTA, ALONG,
    lq, lk, d, dv, heads, group, q_b, q_h, q_row, k_b, k_h, k_row, v_b, v_h, v_row, o_b, o_h, o_row, g_b, g_h, g_row,
    mask_b, mask_h, mask_q, mask_k: tl.constexpr, scale, heat, taken, spare, tiles,
    WEIGH: tl.constexpr, DROPS: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, MASK_ROWS: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Gradient of BM queries and of the radius of each row (of shares, of its share), and DELTA: the mean of dp over
    its support and, of shares, what the sum takes from every key."""
    block = tl.program_id(0)
    bh = tl.program_id(1)
    b = bh // heads
    h = bh % heads
    first_q = block * BM
    K = head(K, b, h // group, k_b, k_h)
    V = head(V, b, h // group, v_b, v_h)
    MASK = head(MASK, b, h, mask_b, mask_h)
    mine = bh.to(tl.int64) * tl.num_programs(0) + block
    TILES += mine * tiles
    i = first_q + tl.arange(0, BM)
    here = i < lq
    row = bh.to(tl.int64) * lq + i
    rows = tl.num_programs(1).to(tl.int64) * lq
    base, unit, high, low, near, slope = row_numbers(FOUND, rows, row, here)
    q = load_rows(head(Q, b, h, q_b, q_h), first_q, lq, q_row, d, BM, BD)
    do = load_rows(head(GRAD_OUT, b, h, o_b, o_h), first_q, lq, o_row, dv, BM, BV)
    number = tl.load(NUMBER + mine * 2)
    delta, moved = row_sums(
        q, do, K, V, MASK, TILES, SEED, number, row, base, unit, high, low, first_q, lq, lk, d, dv, k_row, v_row,
        mask_q, mask_k, scale, heat, taken, spare, WEIGH, DROPS, CAUSAL, MASKED, MASK_ROWS, PRECISION, BM, BN, BD, BV,
    )  # fmt: skip
    tl.store(DELTA + row, delta, mask=here)
    pull = moved / near
    along = -pull * slope
    if WEIGH == SHARES:
        keep = tl.load(FOUND + KEEP * rows + row, mask=here, other=1.0)
        along = tl.where(slope == 0, 0.0, -pull / keep)
        pull = tl.where(slope == 0, 0.0, pull * keep)
        tl.store(DELTA + rows + row, pull, mask=here)
        number = tiles_of(first_q, lk, CAUSAL, BM, BN)
    tl.store(ALONG + row, along.to(tl.float64), mask=here)
    grad = tl.zeros([BM, BD], tl.float32)
    for n in range(0, number):
        first_k = n * BN + first_q * 0 if WEIGH == SHARES else tl.load(TILES + n) * BN
        k = load_rows(K, first_k, lk, k_row, d, BN, BD)
        x = scores(q, k, MASK, first_q, first_k, lq, lk, mask_q, mask_k, scale, CAUSAL, MASKED, MASK_ROWS, PRECISION,
                   BM, BN)  # fmt: skip
        u = points(x, base, unit, heat, WEIGH)
        v = load_rows(V, first_k, lk, v_row, dv, BN, BV)
        dp = weight_slopes(do, v, left_over(SEED, row, first_k, taken, DROPS, BN), spare, DROPS, PRECISION)
        ds = score_slopes(u, above(u, high, low), dp, delta, pull, WEIGH)
        grad = tl.dot(ds.to(k.dtype), k, grad, input_precision=PRECISION)
    grad = grad * (slope * scale)[:, None]
    store_rows(head(GRAD_Q, b, h, g_b, g_h), grad, first_q, lq, g_row, d, BM, BD)


@triton.jit
def columns_kernel(ACTIVE, LIST, NUMBER, blocks, tiles, CHUNK: tl.constexpr):
    """For each tile of keys the blocks of queries whose support it meets."""
    program = tl.program_id(0)
    tile = program % tiles
    bh = (program // tiles).to(tl.int64)
    LIST += (bh * tiles + tile) * blocks
    found = 0
    for first in range(0, blocks, CHUNK):
        i = first + tl.arange(0, CHUNK)
        on = tl.load(ACTIVE + (bh * blocks + i) * tiles + tile, mask=i < blocks, other=0).to(tl.int32)
        to = found + tl.cumsum(on, 0) - 1
        tl.store(LIST + to, i, mask=on > 0)
        found += tl.sum(on, 0)
    tl.store(NUMBER + bh * tiles + tile, found)


@triton.jit
def key_grad_kernel(
    Q, K, V, MASK, SEED, FOUND, LIST, NUMBER, GRAD_OUT, DELTA, GRAD_K, GRAD_V,
    lq, lk, d, dv, heads, group, q_b, q_h, q_row, k_b, k_h, k_row, v_b, v_h, v_row, o_b, o_h, o_row,
    gk_b, gk_h, gk_row, gv_b, gv_h, gv_row, mask_b, mask_h, mask_q, mask_k: tl.constexpr, scale, heat, taken, spare,
    tiles, blocks, all_heads,
    WEIGH: tl.constexpr, DROPS: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, MASK_ROWS: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, SUB: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Gradients of BN keys and values, over the heads of queries that share them; SUB queries at a time."""
    PARTS: tl.constexpr = BM // SUB
    tile = tl.program_id(0)
    bg = tl.program_id(1)
    shared = heads // group
    b = bg // shared
    g = bg % shared
    first_k = tile * BN
    k = load_rows(head(K, b, g, k_b, k_h), first_k, lk, k_row, d, BN, BD)
    v = load_rows(head(V, b, g, v_b, v_h), first_k, lk, v_row, dv, BN, BV)
    grad_k = tl.zeros([BN, BD], tl.float32)
    grad_v = tl.zeros([BN, BV], tl.float32)
    rows = all_heads.to(tl.int64) * lq
    passed = first_k // BM if CAUSAL else 0  # blocks of queries that come before these keys
    for part in range(0, group):
        h = g * group + part
        bh = (b * heads + h).to(tl.int64)
        at_head = bh * tiles + tile
        number = blocks - passed if WEIGH == SHARES else tl.load(NUMBER + at_head)
        for n in range(0, number * PARTS):
            block = passed + n // PARTS if WEIGH == SHARES else tl.load(LIST + at_head * blocks + n // PARTS)
            first_q = block * BM + (n % PARTS) * SUB + tile * 0
            i = first_q + tl.arange(0, SUB)
            here = i < lq
            row = bh * lq + i
            base, unit, high, low, near, slope = row_numbers(FOUND, rows, row, here)
            delta = tl.load(DELTA + row, mask=here, other=0.0)
            pull = tl.load(DELTA + rows + row, mask=here, other=0.0) if WEIGH == SHARES else delta
            q = load_rows(head(Q, b, h, q_b, q_h), first_q, lq, q_row, d, SUB, BD)
            do = load_rows(head(GRAD_OUT, b, h, o_b, o_h), first_q, lq, o_row, dv, SUB, BV)
            x = scores(q, k, head(MASK, b, h, mask_b, mask_h), first_q, first_k, lq, lk, mask_q, mask_k, scale, CAUSAL,
                       MASKED, MASK_ROWS, PRECISION, SUB, BN)  # fmt: skip
            u = points(x, base, unit, heat, WEIGH)
            rise = above(u, high, low)
            left = left_over(SEED, row, first_k, taken, DROPS, BN)
            dp = weight_slopes(do, v, left, spare, DROPS, PRECISION)
            ds = score_slopes(u, rise, dp, delta, pull, WEIGH) * slope[:, None]
            grad_k = tl.dot(tl.trans(ds.to(q.dtype)), q, grad_k, input_precision=PRECISION)
            p = tl.where(rise <= 0, 0.0, (rise * rise if WEIGH == ROOT else rise) / near[:, None])
            if DROPS:
                p = tl.where(left, p * spare, 0.0)
            grad_v = tl.dot(tl.trans(p.to(do.dtype)), do, grad_v, input_precision=PRECISION)
    store_rows(head(GRAD_K, b, g, gk_b, gk_h), grad_k * scale, first_k, lk, gk_row, d, BN, BD)
    store_rows(head(GRAD_V, b, g, gv_b, gv_h), grad_v, first_k, lk, gv_row, dv, BN, BV)
