"""Rows that stay in registers: one read, a search for the threshold, one write.

A program has ROWS rows of BLOCK >= n entries. Rows are counted (a, b), b the one whose neighbours a program has: the
rows before the class axis where that is the last one, those behind it where it is not, so that memory is read in the
order it lies in.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from sparsegen.torch._triton.numbers import (
    CONE,
    EXP,
    GIVEN,
    HOURGLASS,
    INF,
    LIN,
    LOG,
    SQ,
    TOTAL,
    add2,
    comfortable,
    expm1,
    narrow,
    radius_of_mean,
    reachable,
    slopes_of_mean,
    unit_scale,
)  # fmt: skip


@triton.jit
def place(rows_b, blocks, ROWS: tl.constexpr):
    """Which rows a program has: a, b, their number among all rows, and whether they exist."""
    program = tl.program_id(0)
    a = (program // blocks).to(tl.int64)
    b = ((program % blocks) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    return a, b, a * rows_b + b, b < rows_b


@triton.jit
def columns(BLOCK: tl.constexpr, STRIDED: tl.constexpr):
    """The entries of a row; as 64-bit numbers where they are multiplied by a stride."""
    col = tl.arange(0, BLOCK)
    if STRIDED:
        col = col.to(tl.int64)
    return col


@triton.jit
def allowed(MASK, row, col, ok, mask_12, mask_2, m_0, m_1, m_2, m_k):
    """Entries that the mask lets through. Its lines are found by up to three axes of the rows."""
    line = (row // mask_12) * m_0 + ((row // mask_2) % (mask_12 // mask_2)) * m_1 + (row % mask_2) * m_2
    return ok & (tl.load(MASK + line[:, None] + col[None, :] * m_k, mask=ok, other=0) != 0)


@triton.jit
def read_scores(
    X, MASK, at, row, col, ok, mask_12, mask_2, m_0, m_1, m_2, m_k, HAS_MASK: tl.constexpr, WIDE: tl.constexpr
):
    """Scores, -inf where an entry may not be chosen; and which may."""
    if HAS_MASK:
        ok = allowed(MASK, row, col, ok, mask_12, mask_2, m_0, m_1, m_2, m_k)
    z = tl.load(X + at, mask=ok, other=-INF).to(WIDE)
    return z, ~(z == -INF)


@triton.jit
def points(z, open_, top, t, TRANSFORM: tl.constexpr, RULE: tl.constexpr, WIDE: tl.constexpr):
    """g(z), in units of its largest value where that keeps it finite; -inf where it may not be chosen."""
    if TRANSFORM == LIN and RULE == TOTAL:
        x = tl.where(z < 0, float("nan"), z / top[:, None])
    elif TRANSFORM == LIN:
        x = z
    elif TRANSFORM == EXP and RULE == TOTAL:
        x = tl.exp((z - top[:, None]) / t[:, None])
    elif TRANSFORM == EXP:
        x = expm1(z - top[:, None], WIDE)
    elif TRANSFORM == SQ:
        a = tl.abs(z) / top[:, None]
        x = a * a if RULE == TOTAL else ((tl.abs(z) - top[:, None]) / top[:, None]) * (a + 1.0)
    else:
        x = tl.where(z <= 0, float("nan"), tl.log(tl.where(z <= 0, 1.0, z)))
    return tl.where(open_, x, -INF)


@triton.jit
def temperature(HEAT, at, here, WIDE: tl.constexpr):
    """The temperature of rows; below the smallest number it is that number, whose limit is the same."""
    tiny: tl.constexpr = 2.2250738585072014e-308 if tl.float64 == WIDE else 1.1754943508222875e-38
    t = tl.load(HEAT + at, mask=here, other=1.0)
    return tl.where(t < tiny, tiny, t).to(WIDE)


@triton.jit
def largest(z, open_, TRANSFORM: tl.constexpr, RULE: tl.constexpr):
    """What the points of a row are measured from: its largest score, or its size; never 0 where it divides."""
    size = tl.abs(z) if TRANSFORM == SQ else z
    top = tl.max(tl.where(open_, size, -INF), 1)
    if TRANSFORM == SQ or (RULE == TOTAL and TRANSFORM == LIN):
        return tl.where(top > 0, top, 1.0)
    return tl.where(top == -INF, 0.0, top)


@triton.jit
def in_units(r, top, TRANSFORM: tl.constexpr):
    """The radius (float64) in the units of `points`; an infinite one stays infinite."""
    wide = top.to(tl.float64)
    if TRANSFORM == EXP:
        return tl.where(r == INF, r, r * tl.exp(-wide))
    if TRANSFORM == SQ:
        return tl.where(r == INF, r, r / wide / wide)
    return r


@triton.jit
def search(u, t, r, MOST: tl.constexpr):
    """Threshold of rows `u` from a lower bound `t`: Newton's method until the number above it no longer falls.

    Sets {u > t} are nested: equal numbers are equal sets, and then `t` solves the equation of that set. What rounding
    left over of it is the second number. "Not below", so that a NaN anywhere in a row makes its threshold NaN.
    """
    k = tl.full(t.shape, MOST + 1, tl.int32)
    left = t * 0.0
    more = 1
    while more > 0:
        d = u - t[:, None]
        on = ~(d <= 0)
        n, s = tl.reduce((on.to(tl.int32), tl.where(on, d, 0.0)), 1, add2)
        left = (s - r) / tl.maximum(n, 1)
        falls = (n < k) & (n > 0)
        t = tl.where(falls, t + left, t)
        k = tl.where(falls, n, k)
        more = tl.max(falls.to(tl.int32), 0)
    return t, left


@triton.jit
def project_points(x, r, WIDE: tl.constexpr, MOST: tl.constexpr):
    """[x - tau]_+ / r of rows `x` with -inf where nothing may be chosen, for radii in float64 from 0 to infinity.

    The largest entry is taken off only where it is at least twice the radius: the differences that matter are exact
    there, and elsewhere it would round them. A power of two brings the radius near 1.
    """
    top = tl.max(x, 1)
    r = reachable(r, WIDE)
    far = r == INF
    base = tl.where(tl.abs(top).to(tl.float64) >= 2 * r, top, 0.0)
    base = tl.where(top == -INF, 0.0, base)
    scale = unit_scale(r, WIDE)
    near = comfortable(r, scale, WIDE)
    by = scale.to(WIDE)
    u = (x - base[:, None]) * by[:, None]
    u = tl.where(far[:, None] & (u > -INF), 0.0, u)
    start = tl.where(far | (top == -INF), 0.0, (top - base) * by) - near
    t, left = search(u, start, near, MOST)
    d = u - t[:, None]
    p = tl.where(d <= 0, 0.0, (d - left[:, None]) * (1.0 / near)[:, None])
    return tl.where(p < 0, 0.0, p)


@triton.jit
def project_kernel(
    X, MASK, CONTROL, HEAT, P, KEPT, rows, rows_b, blocks, n, x_a, x_b, x_k, p_a, p_b, p_k,
    mask_12, mask_2, m_0, m_1, m_2, m_k, control_row, heat_row,
    TRANSFORM: tl.constexpr, RULE: tl.constexpr, HAS_MASK: tl.constexpr, KEEP: tl.constexpr, STRIDED: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Probabilities of ROWS rows. CONTROL: the radius, the q of a mean, or the factor of a total. HEAT: temperature.

    KEPT, for the way back: the radius in units, and mean and count of a row (or what its points are measured from).
    """
    a, b, row, here = place(rows_b, blocks, ROWS)
    col = columns(BLOCK, STRIDED)
    ok = here[:, None] & (col < n)[None, :]
    z, open_ = read_scores(X, MASK, a * x_a + (b * x_b)[:, None] + col[None, :] * x_k, row, col, ok,
                           mask_12, mask_2, m_0, m_1, m_2, m_k, HAS_MASK, WIDE)  # fmt: skip
    control = tl.load(CONTROL + row * control_row, mask=here, other=1.0).to(tl.float64)
    r = control
    count = tl.sum(open_.to(tl.int32), 1).to(tl.float64) if RULE != GIVEN else control
    kept = control
    if TRANSFORM == LIN and RULE != TOTAL:
        x = z
        if RULE != GIVEN:
            share = tl.where(open_, z, 0.0).to(tl.float64) * (1.0 / BLOCK)  # cannot overflow when summed
            kept = tl.sum(share, 1) * (BLOCK / tl.maximum(count, 1.0))
            r = radius_of_mean(kept, count, control, RULE)
    else:
        top = largest(z, open_, TRANSFORM, RULE)
        t = temperature(HEAT, row * heat_row, here, WIDE)
        x = points(z, open_, top, t, TRANSFORM, RULE, WIDE)
        kept = top.to(tl.float64)
        r = in_units(control, top, TRANSFORM)
        if RULE == TOTAL:
            total = tl.sum(tl.where(open_, x, 0.0).to(tl.float64), 1)
            r = tl.where(total == 0, tl.where(count > 0, float("nan"), 1.0), control * total)
    p = project_points(x, r, WIDE, BLOCK)
    if RULE == TOTAL:  # a factor of 1 makes the threshold 0, exactly
        plain = tl.where(open_, x * (1.0 / r).to(WIDE)[:, None], tl.where(r != r, float("nan"), 0.0)[:, None].to(WIDE))
        p = tl.where((control == 1)[:, None], plain, p)
    if KEEP:
        tl.store(KEPT + row, r, mask=here)
        tl.store(KEPT + rows + row, kept, mask=here)
        tl.store(KEPT + 2 * rows + row, count, mask=here)
    T: tl.constexpr = P.dtype.element_ty
    stored = narrow(p, T)
    if RULE == TOTAL:
        stored = tl.where((control == 1)[:, None], p.to(T), stored)
    tl.store(P + a * p_a + (b * p_b)[:, None] + col[None, :] * p_k, stored, mask=ok)


@triton.jit
def slopes(z, top, t, TRANSFORM: tl.constexpr, RULE: tl.constexpr):
    """Derivative of the points in their scores."""
    if TRANSFORM == EXP and RULE == TOTAL:
        return tl.exp((z - top[:, None]) / t[:, None]) / t[:, None]
    if TRANSFORM == EXP:
        return tl.exp(z - top[:, None])
    if TRANSFORM == SQ:
        return 2.0 * (z / top[:, None]) / top[:, None]
    if TRANSFORM == LOG:
        return 1.0 / z
    return (z * 0.0 + 1.0) / top[:, None]


@triton.jit
def vjp_kernel(
    P, V, Z, MASK, CONTROL, HEAT, KEPT, GRAD, ALONG, WARM, rows, rows_b, blocks, n,
    p_a, p_b, p_k, v_a, v_b, v_k, z_a, z_b, z_k, mask_12, mask_2, m_0, m_1, m_2, m_k, control_row, heat_row,
    TRANSFORM: tl.constexpr, RULE: tl.constexpr, HAS_MASK: tl.constexpr, STRIDED: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of scores (GRAD), of the control of each row (ALONG) and of its temperature (WARM, of a total)."""
    a, b, row, here = place(rows_b, blocks, ROWS)
    col = columns(BLOCK, STRIDED)
    ok = here[:, None] & (col < n)[None, :]
    at = a * p_a + (b * p_b)[:, None] + col[None, :] * p_k
    p = tl.load(P + at, mask=ok, other=0.0).to(WIDE)
    control = tl.load(CONTROL + row * control_row, mask=here, other=1.0).to(tl.float64)
    r = control
    count = control * 0.0 + n
    kept = control
    if TRANSFORM != LIN or RULE != GIVEN:
        r = tl.load(KEPT + row, mask=here, other=1.0)
        kept = tl.load(KEPT + rows + row, mask=here, other=1.0)
        count = tl.load(KEPT + 2 * rows + row, mask=here, other=n)
    open_ = ok
    z = p
    SLOPED: tl.constexpr = (TRANSFORM != LIN) or (RULE == TOTAL)
    if SLOPED:
        z, open_ = read_scores(Z, MASK, a * z_a + (b * z_b)[:, None] + col[None, :] * z_k, row, col, ok,
                               mask_12, mask_2, m_0, m_1, m_2, m_k, HAS_MASK, WIDE)  # fmt: skip
    elif RULE != GIVEN:
        if tl.min(count, 0) < n:  # something is hidden
            _, open_ = read_scores(Z, MASK, a * z_a + (b * z_b)[:, None] + col[None, :] * z_k, row, col, ok,
                                   mask_12, mask_2, m_0, m_1, m_2, m_k, HAS_MASK, WIDE)  # fmt: skip
    on = ~(p <= 0)  # all of a NaN row
    if RULE == TOTAL:
        on = on | open_ & (control == 1)[:, None]
    v = tl.load(V + a * v_a + (b * v_b)[:, None] + col[None, :] * v_k, mask=on & ok, other=0.0).to(WIDE)
    size, sum_v = tl.reduce((on.to(tl.int32), v), 1, add2)
    w = tl.where(on, v - (sum_v / tl.maximum(size, 1))[:, None], 0.0)
    wp = tl.sum(tl.where(on, w * p, 0.0), 1).to(tl.float64)
    moves = (r != 0) & (r != INF)
    by = tl.where(moves, 1.0 / tl.where(moves, r, 1.0), 0.0)
    along = -wp * by
    scale = by.to(WIDE)[:, None]
    if RULE == CONE or RULE == HOURGLASS:
        each, bend = slopes_of_mean(kept, count, control, RULE)
        share = (along * each).to(WIDE)[:, None]
        grad = tl.where(w == 0, 0.0, w * scale) + tl.where(open_, share, 0.0)
        along = along * bend
    elif RULE == TOTAL:
        grad = (w - (control * wp).to(WIDE)[:, None]) * scale
        along = tl.where(moves, -wp / control, 0.0)
    else:
        grad = tl.where(w == 0, 0.0, w * scale)
        if TRANSFORM != LIN:
            along = tl.where(moves & (control != INF), -wp / control, 0.0)
    if SLOPED:
        top = kept.to(WIDE)
        t = temperature(HEAT, row * heat_row, here, WIDE)
        grad = tl.where(open_ & ((grad != 0) | (z != z)), grad * slopes(z, top, t, TRANSFORM, RULE), 0.0)
        if TRANSFORM == EXP and RULE == TOTAL:
            felt = tl.sum(tl.where(grad != 0, grad * (z - top[:, None]), 0.0), 1)
            tl.store(WARM + row, -(felt / t).to(tl.float64), mask=here)
    grad = tl.where(p != p, p, grad)
    tl.store(ALONG + row, along, mask=here)
    tl.store(GRAD + at, grad.to(GRAD.dtype.element_ty), mask=ok)
