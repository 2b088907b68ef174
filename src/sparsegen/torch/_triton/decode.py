"""Few queries against many keys: a row of scores is small beside its keys, so it is written, and several programs share
its keys. Scores, then the map of rows by its own kernels, then values: each step is exact and none waits for the host.

The query heads that share a head of keys go over it together: R = queries x heads of a group, at most BM.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from sparsegen.torch._triton.numbers import INF
from sparsegen.torch._triton.tiles import BOOL, head, load_rows


@triton.jit
def scores_kernel(
    Q, K, MASK, X,
    lq, lk, d, shared, group, q_b, q_h, q_row, k_b, k_h, k_row, mask_b, mask_h, mask_q, mask_k: tl.constexpr, scale,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """Scores (float32) of BN keys and the rows of their group; -inf where a key may not be chosen."""
    first_k = tl.program_id(0) * BN
    bg = tl.program_id(1)
    b = bg // shared
    g = bg % shared
    r = tl.arange(0, BM)
    h = (g * group + r // lq).to(tl.int64)
    i = (r % lq).to(tl.int64)
    c = tl.arange(0, BD)
    here = r < group * lq
    at = Q + b.to(tl.int64) * q_b + (h * q_h + i * q_row)[:, None] + c[None, :]
    q = tl.load(at, mask=here[:, None] & (c < d)[None, :], other=0.0)
    k = load_rows(head(K, b, g, k_b, k_h), first_k, lk, k_row, d, BN, BD)
    x = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    j = (first_k + tl.arange(0, BN)).to(tl.int64)
    inside = here[:, None] & (j < lk)[None, :]
    if CAUSAL:
        x = tl.where(j[None, :] <= i[:, None], x, -INF)
    if MASKED:
        at = MASK + b.to(tl.int64) * mask_b + (h * mask_h + i * mask_q)[:, None] + j[None, :] * mask_k
        if MASKED == BOOL:
            x = tl.where(tl.load(at, mask=inside, other=0) != 0, x, -INF)
        else:
            bias = tl.load(at, mask=inside, other=0.0).to(tl.float32)
            x = tl.where(bias == -INF, -INF, x + bias)
    tl.store(X + (bg.to(tl.int64) * (group * lq) + r)[:, None] * lk + j[None, :], x, mask=inside)


@triton.jit
def values_kernel(
    P, V, PARTS, rows, lk, dv, shared, v_b, v_h, v_row,
    PRECISION: tl.constexpr, SPLIT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The part of the output that SPLIT keys have; values are read where a tile holds support."""
    split = tl.program_id(0)
    bg = tl.program_id(1)
    V = head(V, bg // shared, bg % shared, v_b, v_h)
    r = tl.arange(0, BM)
    here = r < rows
    at = (bg.to(tl.int64) * rows + r)[:, None]
    out = tl.zeros([BM, BV], tl.float32)
    for first in range(split * SPLIT, tl.minimum(split * SPLIT + SPLIT, lk), BN):
        j = first + tl.arange(0, BN)
        p = tl.load(P + at * lk + j[None, :], mask=here[:, None] & (j < lk)[None, :], other=0.0)
        if tl.max((p != 0).to(tl.int32)) > 0:
            v = load_rows(V, first, lk, v_row, dv, BN, BV)
            out = tl.dot(p.to(v.dtype), v, out, input_precision=PRECISION)
    c = tl.arange(0, BV)
    all_rows = tl.num_programs(1).to(tl.int64) * rows
    to = PARTS + (split.to(tl.int64) * all_rows + at) * dv + c[None, :]
    tl.store(to, out, mask=here[:, None] & (c < dv)[None, :])
