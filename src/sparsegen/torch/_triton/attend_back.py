"""Attention backwards, over the tiles that hold support: queries and radii by rows, keys and values by columns.

Scores are computed again and compared with the thresholds that were kept. Each gradient is summed by one program in a
fixed order: no atomic additions, the same bits each time.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from sparsegen.torch._triton.tiles import (
    BASE,
    HIGH,
    LOW,
    NEAR,
    SLOPE,
    UNIT,
    above,
    head,
    load_rows,
    scores,
    store_rows,
)  # fmt: skip


@triton.jit
def query_grad_kernel(
    Q, K, V, MASK, FOUND, TILES, NUMBER, GRAD_OUT, GRAD_Q, DELTA, ALONG,
    lq, lk, d, dv, heads, group, q_b, q_h, q_row, k_b, k_h, k_row, v_b, v_h, v_row, o_b, o_h, o_row, g_b, g_h, g_row,
    mask_b, mask_h, mask_q, mask_k: tl.constexpr, scale, tiles,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, MASK_ROWS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Gradient of BM queries, and of each row the mean of dp over its support and the gradient of its radius."""
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
    at = bh.to(tl.int64) * lq + i
    rows = tl.num_programs(1).to(tl.int64) * lq
    base = tl.load(FOUND + BASE * rows + at, mask=here, other=0.0)
    unit = tl.load(FOUND + UNIT * rows + at, mask=here, other=1.0)
    high = tl.load(FOUND + HIGH * rows + at, mask=here, other=0.0)
    low = tl.load(FOUND + LOW * rows + at, mask=here, other=0.0)
    near = tl.load(FOUND + NEAR * rows + at, mask=here, other=1.0)
    slope = tl.load(FOUND + SLOPE * rows + at, mask=here, other=0.0)
    q = load_rows(head(Q, b, h, q_b, q_h), first_q, lq, q_row, d, BM, BD)
    do = load_rows(head(GRAD_OUT, b, h, o_b, o_h), first_q, lq, o_row, dv, BM, BV)
    number = tl.load(NUMBER + mine * 2)
    size = tl.zeros([BM], tl.float32)
    total = tl.zeros([BM], tl.float32)
    inner = tl.zeros([BM], tl.float32)
    mass = tl.zeros([BM], tl.float32)
    for n in range(0, number):
        first_k = tl.load(TILES + n) * BN
        k = load_rows(K, first_k, lk, k_row, d, BN, BD)
        x = scores(q, k, MASK, first_q, first_k, lq, lk, mask_q, mask_k, scale, CAUSAL, MASKED, MASK_ROWS, PRECISION,
                   BM, BN)  # fmt: skip
        rise = above(x, base, unit, high, low)
        on = ~(rise <= 0)
        rise = tl.where(on, rise, 0.0)
        v = load_rows(V, first_k, lk, v_row, dv, BN, BV)
        dp = tl.where(on, tl.dot(do, tl.trans(v), input_precision=PRECISION), 0.0)
        size += tl.sum(on.to(tl.float32), 1)
        total += tl.sum(dp, 1)
        inner += tl.sum(dp * rise, 1)
        mass += tl.sum(rise, 1)
    delta = total / tl.maximum(size, 1.0)
    along = -(inner - delta * mass) / near * slope
    tl.store(DELTA + at, delta, mask=here)
    tl.store(ALONG + at, along.to(tl.float64), mask=here)
    grad = tl.zeros([BM, BD], tl.float32)
    for n in range(0, number):
        first_k = tl.load(TILES + n) * BN
        k = load_rows(K, first_k, lk, k_row, d, BN, BD)
        x = scores(q, k, MASK, first_q, first_k, lq, lk, mask_q, mask_k, scale, CAUSAL, MASKED, MASK_ROWS, PRECISION,
                   BM, BN)  # fmt: skip
        on = ~(above(x, base, unit, high, low) <= 0)
        v = load_rows(V, first_k, lk, v_row, dv, BN, BV)
        dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        ds = tl.where(on, dp - delta[:, None], 0.0)
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
    Q, K, V, MASK, FOUND, LIST, NUMBER, GRAD_OUT, DELTA, GRAD_K, GRAD_V,
    lq, lk, d, dv, heads, group, q_b, q_h, q_row, k_b, k_h, k_row, v_b, v_h, v_row, o_b, o_h, o_row,
    gk_b, gk_h, gk_row, gv_b, gv_h, gv_row, mask_b, mask_h, mask_q, mask_k: tl.constexpr, scale, tiles, blocks,
    all_heads,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, MASK_ROWS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, SUB: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Gradients of BN keys and values, over the heads of queries that share them; SUB queries at a time."""
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
    for part in range(0, group):
        h = g * group + part
        bh = (b * heads + h).to(tl.int64)
        at_head = bh * tiles + tile
        for n in range(0, tl.load(NUMBER + at_head) * (BM // SUB)):
            first_q = tl.load(LIST + at_head * blocks + n // (BM // SUB)) * BM + (n % (BM // SUB)) * SUB
            i = first_q + tl.arange(0, SUB)
            here = i < lq
            at = bh * lq + i
            base = tl.load(FOUND + BASE * rows + at, mask=here, other=0.0)
            unit = tl.load(FOUND + UNIT * rows + at, mask=here, other=1.0)
            high = tl.load(FOUND + HIGH * rows + at, mask=here, other=0.0)
            low = tl.load(FOUND + LOW * rows + at, mask=here, other=0.0)
            near = tl.load(FOUND + NEAR * rows + at, mask=here, other=1.0)
            slope = tl.load(FOUND + SLOPE * rows + at, mask=here, other=0.0)
            delta = tl.load(DELTA + at, mask=here, other=0.0)
            q = load_rows(head(Q, b, h, q_b, q_h), first_q, lq, q_row, d, SUB, BD)
            do = load_rows(head(GRAD_OUT, b, h, o_b, o_h), first_q, lq, o_row, dv, SUB, BV)
            x = scores(q, k, head(MASK, b, h, mask_b, mask_h), first_q, first_k, lq, lk, mask_q, mask_k, scale, CAUSAL,
                       MASKED, MASK_ROWS, PRECISION, SUB, BN)  # fmt: skip
            rise = above(x, base, unit, high, low)
            on = ~(rise <= 0)
            p = tl.where(on, rise / near[:, None], 0.0)
            grad_v = tl.dot(tl.trans(p.to(do.dtype)), do, grad_v, input_precision=PRECISION)
            dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
            ds = tl.where(on, (dp - delta[:, None]) * slope[:, None], 0.0)
            grad_k = tl.dot(tl.trans(ds.to(q.dtype)), q, grad_k, input_precision=PRECISION)
    store_rows(head(GRAD_K, b, g, gk_b, gk_h), grad_k * scale, first_k, lk, gk_row, d, BN, BD)
    store_rows(head(GRAD_V, b, g, gv_b, gv_h), grad_v, first_k, lk, gv_row, dv, BN, BV)
