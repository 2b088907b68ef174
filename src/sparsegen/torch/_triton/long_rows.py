"""Rows too long for registers: maxima of groups of neighbours, a threshold from the few groups that can reach it, and
a write that reads only those.

Nothing that a kernel writes is read in the same kernel: not every device could wait for it there. Rows lie with their
entries next to each other.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from sparsegen.torch._triton.numbers import (
    GIVEN,
    INF,
    add2,
    comfortable,
    narrow,
    radius_of_mean,
    reachable,
    slopes_of_mean,
    unit_scale,
)  # fmt: skip


@triton.jit
def line_of(MASK, row, mask_12, mask_2, m_0, m_1, m_2):
    """The line of a mask that a row has."""
    return MASK + (row // mask_12) * m_0 + ((row // mask_2) % (mask_12 // mask_2)) * m_1 + (row % mask_2) * m_2


@triton.jit
def groups_kernel(
    X, MASK, TOPS, SUMS, n, groups, parts, x_row, mask_12, mask_2, m_0, m_1, m_2, m_k,
    HAS_MASK: tl.constexpr, MEAN: tl.constexpr, WIDE: tl.constexpr, GROUPS: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Maxima of E neighbours, and for a mean sum and count; the only kernel that reads whole rows."""
    program = tl.program_id(0)
    row = (program // parts).to(tl.int64)
    part = program % parts
    g = part * GROUPS + tl.arange(0, GROUPS)
    col = g[:, None] * E + tl.arange(0, E)[None, :]
    ok = col < n
    if HAS_MASK:
        at = line_of(MASK, row, mask_12, mask_2, m_0, m_1, m_2) + col.to(tl.int64) * m_k
        ok = ok & (tl.load(at, mask=ok, other=0) != 0)
    x = tl.load(X + row * x_row + col, mask=ok, other=-INF).to(WIDE)
    # A maximum passes over NaN: as infinity it makes the row NaN all the same.
    tl.store(TOPS + row * groups + g, tl.max(tl.where(x != x, INF, x), 1), mask=g < groups)
    if MEAN:
        on = ~(x == -INF)
        share = tl.where(on, x, 0.0).to(tl.float64) * (1.0 / (GROUPS * E))
        tl.store(SUMS + (row * parts + part) * 2, tl.sum(tl.sum(share, 1), 0))
        tl.store(SUMS + (row * parts + part) * 2 + 1, tl.sum(tl.sum(on.to(tl.int32), 1), 0).to(tl.float64))


@triton.jit
def row_radius(CONTROL, SUMS, KEPT, row, rows, parts, RULE: tl.constexpr, KEEP: tl.constexpr, PART: tl.constexpr):
    """The radius of a row: given, or made of its mean."""
    control = tl.load(CONTROL).to(tl.float64)
    if RULE == GIVEN:
        return control
    total = tl.load(SUMS + row * parts * 2)
    count = tl.load(SUMS + row * parts * 2 + 1)
    for part in range(1, parts):
        total += tl.load(SUMS + (row * parts + part) * 2)
        count += tl.load(SUMS + (row * parts + part) * 2 + 1)
    mean = total / tl.maximum(count, 1.0) * PART
    r = radius_of_mean(mean, count, control, RULE)
    if KEEP:
        tl.store(KEPT + row, r)
        tl.store(KEPT + rows + row, mean)
        tl.store(KEPT + 2 * rows + row, count)
    return r


@triton.jit
def shifted(x, base, by, finite):
    """Entries in units of the radius, the largest taken off where that is exact; all equal if `finite` is 0."""
    u = (x - base) * by
    return tl.where(u > -INF, u * finite, u)


@triton.jit
def largest(TOPS, groups, WIDE: tl.constexpr, GROUPS: tl.constexpr):
    """The largest of a row's maxima."""
    lane = tl.arange(0, GROUPS)
    best = tl.full([GROUPS], -INF, WIDE)
    for g in range(0, groups, GROUPS):
        best = tl.maximum(best, tl.load(TOPS + g + lane, mask=g + lane < groups, other=-INF))
    return tl.max(best, 0)


@triton.jit
def sum_of_maxima(TOPS, groups, t, base, by, finite, WIDE: tl.constexpr, GROUPS: tl.constexpr):
    """How many maxima are above the threshold, and by how much in all."""
    lane = tl.arange(0, GROUPS)
    size = tl.zeros([GROUPS], tl.int32)
    total = tl.zeros([GROUPS], WIDE)
    for g in range(0, groups, GROUPS):
        u = tl.load(TOPS + g + lane, mask=g + lane < groups, other=-INF)
        d = shifted(u, base, by, finite) - t
        on = ~(d <= 0)
        size += on.to(tl.int32)
        total += tl.where(on, d, 0.0)
    return tl.reduce((size, total), 0, add2)


@triton.jit
def sum_of_entries(
    X, LINE, TOPS, n, groups, m_k, t, base, by, finite,
    HAS_MASK: tl.constexpr, WIDE: tl.constexpr, GROUPS: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """The same of a row's entries; those of groups below the threshold are not read."""
    lane = tl.arange(0, GROUPS)
    size = tl.zeros([GROUPS], tl.int32)
    total = tl.zeros([GROUPS], WIDE)
    for g in range(0, groups, GROUPS):
        tops = tl.load(TOPS + g + lane, mask=g + lane < groups, other=-INF)
        open_ = ~(shifted(tops, base, by, finite) <= t) & (g + lane < groups)
        if tl.max(open_.to(tl.int32), 0) > 0:
            col = (g + lane)[:, None] * E + tl.arange(0, E)[None, :]
            ok = open_[:, None] & (col < n)
            if HAS_MASK:
                ok = ok & (tl.load(LINE + col.to(tl.int64) * m_k, mask=ok, other=0) != 0)
            x = tl.load(X + col, mask=ok, other=-INF).to(WIDE)
            d = shifted(x, base, by, finite) - t
            on = ok & ~(d <= 0)
            each, both = tl.reduce((on.to(tl.int32), tl.where(on, d, 0.0)), 1, add2)
            size += each
            total += both
    return tl.reduce((size, total), 0, add2)


@triton.jit
def threshold_kernel(
    X, MASK, TOPS, SUMS, CONTROL, FOUND, KEPT, rows, n, groups, parts, x_row,
    mask_12, mask_2, m_0, m_1, m_2, m_k, control_row,
    RULE: tl.constexpr, KEEP: tl.constexpr, HAS_MASK: tl.constexpr, WIDE: tl.constexpr, GROUPS: tl.constexpr,
    E: tl.constexpr,
):  # fmt: skip
    """One program for each row. FOUND (float64): base, scale, threshold, what is left over, radius in units, finite.

    First on the maxima alone: a bound from below, as any part of the entries gives. Then on the entries of groups that
    reach above it; if they are as many as the maxima were, nothing was missed.
    """
    row = tl.program_id(0).to(tl.int64)
    r = row_radius(CONTROL + row * control_row, SUMS, KEPT, row, rows, parts, RULE, KEEP, GROUPS * E)
    r = reachable(r, WIDE)
    TOPS += row * groups
    top = largest(TOPS, groups, WIDE, GROUPS)
    far = r == INF
    base = tl.where(tl.abs(top).to(tl.float64) >= 2 * r, top, 0.0)
    base = tl.where(top == -INF, 0.0, base)
    scale = unit_scale(r, WIDE)
    near = comfortable(r, scale, WIDE)
    by = scale.to(WIDE)
    finite = tl.where(far, 0.0, 1.0).to(WIDE)
    t = tl.where(far | (top == -INF), 0.0, (top - base) * by) - near
    LINE = line_of(MASK, row, mask_12, mask_2, m_0, m_1, m_2)
    k = groups + 1
    left = t * 0.0
    for entries in tl.static_range(2):
        first = entries  # their number may rise once: above what the maxima were
        falls = 1
        while falls > 0:
            if entries:
                count, s = sum_of_entries(X + row * x_row, LINE, TOPS, n, groups, m_k, t, base, by, finite, HAS_MASK,
                                          WIDE, GROUPS, E)  # fmt: skip
            else:
                count, s = sum_of_maxima(TOPS, groups, t, base, by, finite, WIDE, GROUPS)
            left = (s - near) / tl.maximum(count, 1)
            falls = (((count < k) | ((first > 0) & (count > k))) & (count > 0)).to(tl.int32)
            t = tl.where(falls > 0, t + left, t)
            k = tl.where(falls > 0, count, k)
            first = 0
    FOUND += row * 6
    tl.store(FOUND, base.to(tl.float64))
    tl.store(FOUND + 1, scale)
    tl.store(FOUND + 2, t.to(tl.float64))
    tl.store(FOUND + 3, left.to(tl.float64))
    tl.store(FOUND + 4, near.to(tl.float64))
    tl.store(FOUND + 5, finite.to(tl.float64))


@triton.jit
def write_kernel(
    X, MASK, TOPS, FOUND, P, n, groups, parts, x_row, mask_12, mask_2, m_0, m_1, m_2, m_k,
    HAS_MASK: tl.constexpr, WIDE: tl.constexpr, GROUPS: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Probabilities of GROUPS groups; reads only those above the threshold."""
    program = tl.program_id(0)
    row = (program // parts).to(tl.int64)
    g = (program % parts) * GROUPS + tl.arange(0, GROUPS)
    FOUND += row * 6
    base = tl.load(FOUND).to(WIDE)
    by = tl.load(FOUND + 1).to(WIDE)
    t = tl.load(FOUND + 2).to(WIDE)
    left = tl.load(FOUND + 3).to(WIDE)
    near = tl.load(FOUND + 4).to(WIDE)
    finite = tl.load(FOUND + 5).to(WIDE)
    tops = tl.load(TOPS + row * groups + g, mask=g < groups, other=-INF)
    open_ = ~(shifted(tops, base, by, finite) <= t)
    col = g[:, None] * E + tl.arange(0, E)[None, :]
    ok = open_[:, None] & (col < n)
    if HAS_MASK:
        at = line_of(MASK, row, mask_12, mask_2, m_0, m_1, m_2) + col.to(tl.int64) * m_k
        ok = ok & (tl.load(at, mask=ok, other=0) != 0)
    x = tl.load(X + row * x_row + col, mask=ok, other=-INF).to(WIDE)
    d = shifted(x, base, by, finite) - t
    p = tl.where(d <= 0, 0.0, (d - left) * (1.0 / near))
    p = tl.where(p < 0, 0.0, p)
    tl.store(P + row * n + col, narrow(p, P.dtype.element_ty), mask=col < n)


@triton.jit
def sums_kernel(
    P, V, SUMS, n, parts, v_row, v_k, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a part of a row, over its support: size and the sums of v, v p and p."""
    program = tl.program_id(0)
    row = (program // parts).to(tl.int64)
    col = (program % parts) * BLOCK + tl.arange(0, BLOCK)
    p = tl.load(P + row * n + col, mask=col < n, other=0.0).to(WIDE)
    on = ~(p <= 0)
    v = tl.load(V + row * v_row + col.to(tl.int64) * v_k, mask=on, other=0.0).to(WIDE)
    size, total = tl.reduce((on.to(tl.int32), v), 0, add2)
    inner, mass = tl.reduce((v * p, p), 0, add2)
    SUMS += program.to(tl.int64) * 4
    tl.store(SUMS, size.to(tl.float64))
    tl.store(SUMS + 1, total.to(tl.float64))
    tl.store(SUMS + 2, inner.to(tl.float64))
    tl.store(SUMS + 3, mass.to(tl.float64))


@triton.jit
def grad_kernel(
    P, V, Z, MASK, SUMS, CONTROL, KEPT, GRAD, ALONG, rows, n, parts, v_row, v_k, z_row, z_k,
    mask_12, mask_2, m_0, m_1, m_2, m_k, control_row,
    RULE: tl.constexpr, HAS_MASK: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradient of a part of a row, and, once for each row, of its control."""
    program = tl.program_id(0)
    row = (program // parts).to(tl.int64)
    part = program % parts
    col = part * BLOCK + tl.arange(0, BLOCK)
    ok = col < n
    control = tl.load(CONTROL + row * control_row).to(tl.float64)
    at = SUMS + row * parts * 4
    size = tl.load(at)
    total = tl.load(at + 1)
    inner = tl.load(at + 2)
    mass = tl.load(at + 3)
    for i in range(1, parts):
        at = SUMS + (row * parts + i) * 4
        size += tl.load(at)
        total += tl.load(at + 1)
        inner += tl.load(at + 2)
        mass += tl.load(at + 3)
    mean = total / tl.maximum(size, 1.0)
    r = control
    if RULE != GIVEN:
        r = tl.load(KEPT + row)
    moves = (r != 0) & (r != INF)
    by = tl.where(moves, 1.0 / tl.where(moves, r, 1.0), 0.0)
    along = -(inner - mean * mass) * by
    p = tl.load(P + row * n + col, mask=ok, other=0.0).to(WIDE)
    on = ~(p <= 0)
    v = tl.load(V + row * v_row + col.to(tl.int64) * v_k, mask=on, other=0.0).to(WIDE)
    w = tl.where(on, v - mean.to(WIDE), 0.0)
    grad = tl.where(w == 0, 0.0, w * by.to(WIDE))
    if RULE != GIVEN:
        count = tl.load(KEPT + 2 * rows + row)
        each, bend = slopes_of_mean(tl.load(KEPT + rows + row), count, control, RULE)
        if count < n:  # something is hidden
            if HAS_MASK:
                at = line_of(MASK, row, mask_12, mask_2, m_0, m_1, m_2) + col.to(tl.int64) * m_k
                ok = ok & (tl.load(at, mask=ok, other=0) != 0)
            z = tl.load(Z + row * z_row + col.to(tl.int64) * z_k, mask=ok, other=-INF).to(WIDE)
            ok = ~(z == -INF)
        grad += tl.where(ok, (along * each).to(WIDE), 0.0)
        along = along * bend
    grad = tl.where(p != p, p, grad)
    tl.store(GRAD + row * n + col, grad.to(GRAD.dtype.element_ty), mask=col < n)
    if part == 0:
        tl.store(ALONG + row, along)
