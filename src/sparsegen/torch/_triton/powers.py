"""Entmax of rows that stay in registers: one read, a search for the shift, one write.

The parameters are those of the kernels of :mod:`rows`, so that they are launched alike; CONTROL is alpha.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from sparsegen.torch._triton.numbers import INF, add2, log1p, narrow
from sparsegen.torch._triton.rows import columns, place, read_scores

HALVINGS: tl.constexpr = tl.constexpr(60)  # more than float64 has digits


@triton.jit
def growth(y):
    """(e^y - 1)/y, which is 1 at 0."""
    near = tl.abs(y) < 0.1
    series = y * 0.0 + 1.0
    for i in tl.static_range(12, 1, -1):
        series = 1.0 + y * (1.0 / i) * series
    return tl.where(near, series, (tl.exp(y) - 1.0) / tl.where(near, 1.0, y))


@triton.jit
def bent(log, gap):
    """(e^(gap log) - 1)/gap, which is log for a gap of 0."""
    return log * growth(gap * log)


@triton.jit
def sparse_log(w, gap):
    """log(1 - gap w)/gap, which is -w for a gap of 0; w is such that gap w < 1."""
    q = gap * w
    near = tl.abs(q) < 0.001
    series = -w * (1.0 + q * (0.5 + q * (1.0 / 3 + q * (0.25 + q * (0.2 + q / 6)))))
    return tl.where(near, series, log1p(-tl.where(near, 0.5, q)) / tl.where(near, 1.0, gap))


@triton.jit
def shares(below, shift, gap):
    """Entmax, not yet normed, of scores `below` the largest, and its slope in -shift; 3/2 and 2 have their own form."""
    w, by = shift[:, None] + below, gap[:, None]
    inside = (by * w < 1.0) & (below < INF)
    w = tl.where(inside, w, 0.0)
    d = 1.0 - by * w
    p = tl.where(by == 0.5, d * d, tl.where(by == 1.0, d, tl.exp(sparse_log(w, by))))
    return tl.where(inside, p, 0.0), tl.where(inside, p / d, 0.0)


@triton.jit
def search_shift(below, gap, rows_rest, EPS: tl.constexpr):
    """How far all scores must be lowered for the shares to sum to 1: Newton's method on the norm, from the left.

    For gaps above 1, where the norm is not convex, its bracket is halved first. A row rests once a step is within
    rounding of its shift, so that no other row can move it; the loop ends when all rest.
    """
    n = tl.sum((below < INF).to(tl.int32), 1).to(gap.dtype)
    low = gap * 0.0
    high = -bent(-tl.log(n), gap)
    shift = low
    rests = rows_rest
    turn = 0
    more = 1
    while more > 0:
        p, slope = shares(below, shift, gap)
        total, steep = tl.reduce((p, slope), 1, add2)
        step = -bent(-tl.log(total), gap) * total / steep
        high = tl.where(total >= 1.0, high, shift)
        low = tl.where(total >= 1.0, shift, low)
        found = shift + step
        halve = ~((found >= low) & (found <= high)) | ((gap > 1.0) & (turn < HALVINGS))
        better = tl.where(halve, 0.5 * (low + high), found)
        done = (~halve & (tl.abs(step) <= EPS * shift)) | (better == shift)
        shift = tl.where(rests > 0, shift, better)
        rests = tl.maximum(rests, done.to(tl.int32))
        turn += 1
        more = tl.max(1 - rests, 0)
    return shift


@triton.jit
def power_kernel(
    X, MASK, CONTROL, HEAT, P, KEPT, rows, rows_b, blocks, n, x_a, x_b, x_k, p_a, p_b, p_k,
    mask_12, mask_2, m_0, m_1, m_2, m_k, control_row, heat_row,
    TRANSFORM: tl.constexpr, RULE: tl.constexpr, HAS_MASK: tl.constexpr, KEEP: tl.constexpr, STRIDED: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Entmax of ROWS rows."""
    a, b, row, here = place(rows_b, blocks, ROWS)
    col = columns(BLOCK, STRIDED)
    ok = here[:, None] & (col < n)[None, :]
    z, open_ = read_scores(X, MASK, a * x_a + (b * x_b)[:, None] + col[None, :] * x_k, row, col, ok,
                           mask_12, mask_2, m_0, m_1, m_2, m_k, HAS_MASK, WIDE)  # fmt: skip
    gap = (tl.load(CONTROL + row * control_row, mask=here, other=2.0).to(tl.float64) - 1.0).to(WIDE)
    top = tl.max(z, 1)
    broken = (tl.max((z != z).to(tl.int32), 1) > 0) | (top == INF) | ~(gap >= 0.0)
    none = top == -INF
    rest = broken | none
    gap = tl.where(broken, 1.0, gap)
    below = tl.where(rest[:, None], tl.where((col == 0)[None, :], 0.0, INF), tl.where(open_, top[:, None] - z, INF))
    EPS: tl.constexpr = 3.552713678800501e-15 if tl.float64 == WIDE else 1.9073486328125e-06
    p, _ = shares(below, search_shift(below, gap, rest.to(tl.int32), EPS), gap)
    total = tl.sum(p, 1)
    # For large alpha the last digit of the shift may be all there is between 1 and nothing: the limit is the maxima's.
    p = tl.where((total > 0)[:, None], p, (below == 0.0).to(WIDE))
    p = p / tl.sum(p, 1)[:, None]
    p = tl.where(broken[:, None], float("nan"), tl.where(none[:, None], 0.0, p))
    tl.store(P + a * p_a + (b * p_b)[:, None] + col[None, :] * p_k, narrow(p, P.dtype.element_ty), mask=ok)


@triton.jit
def bending(p, log, gap):
    """dp/dalpha, p with its logarithms (0 where p is 0), without the cancellation of the plain form near alpha = 1."""
    mean = tl.sum(p * log, 1)[:, None]
    at_one = p * (tl.sum(p * log * log, 1)[:, None] - log * log) * 0.5
    near = gap < 1e-6
    far = tl.where(near, 1.0, gap)[:, None]
    y = far * log + log1p(tl.sum(p * (-far * log) * growth(-far * log), 1))[:, None]
    return tl.where(near[:, None], at_one, p / far * (mean - log + (mean - 1.0 / far) * (-y) * growth(-y)))


@triton.jit
def power_vjp_kernel(
    P, V, Z, MASK, CONTROL, HEAT, KEPT, GRAD, ALONG, WARM, rows, rows_b, blocks, n,
    p_a, p_b, p_k, v_a, v_b, v_k, z_a, z_b, z_k, mask_12, mask_2, m_0, m_1, m_2, m_k, control_row, heat_row,
    TRANSFORM: tl.constexpr, RULE: tl.constexpr, HAS_MASK: tl.constexpr, STRIDED: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of scores (GRAD) and of the alpha of each row (ALONG), from p alone: docs/math.md, 9."""
    a, b, row, here = place(rows_b, blocks, ROWS)
    col = columns(BLOCK, STRIDED)
    ok = here[:, None] & (col < n)[None, :]
    at = a * p_a + (b * p_b)[:, None] + col[None, :] * p_k
    p = tl.load(P + at, mask=ok, other=0.0).to(WIDE)
    gap = (tl.load(CONTROL + row * control_row, mask=here, other=2.0).to(tl.float64) - 1.0).to(WIDE)
    on = p > 0
    v = tl.load(V + a * v_a + (b * v_b)[:, None] + col[None, :] * v_k, mask=on & ok, other=0.0).to(WIDE)
    log = tl.log(tl.where(on, p, 1.0))
    s = tl.where(on, tl.exp((1.0 - gap)[:, None] * log), 0.0)  # p^(2 - alpha)
    all_s, sum_v = tl.reduce((s, s * v), 1, add2)
    grad = s * (v - (sum_v / tl.where(all_s > 0, all_s, 1.0))[:, None])
    along = tl.sum(v * bending(tl.where(on, p, 0.0), log, gap), 1)
    broken = tl.max((p != p).to(tl.int32), 1) > 0
    grad = tl.where(broken[:, None], float("nan"), grad)
    tl.store(ALONG + row, tl.where(broken, float("nan"), along).to(tl.float64), mask=here)
    tl.store(GRAD + at, grad.to(GRAD.dtype.element_ty), mask=ok)
