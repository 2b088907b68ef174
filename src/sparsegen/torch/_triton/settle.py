"""The search for the thresholds of attention's rows: where it begins, and one step of it.

A step is told the number, the sum and the squares of what is above a row's threshold, in lanes or in tiles. Sets
{x > t} are nested, so equal numbers are equal sets: a threshold that solves the equation of the set above it is found.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from sparsegen.torch._triton.numbers import INF, add2, comfortable, unit_scale
from sparsegen.torch._triton.tiles import ROOT, SHARES, above, advance, points

MOST: tl.constexpr = tl.constexpr(1 << 30)  # more than any set has, and a float32


@triton.jit
def start(top, r, WEIGH: tl.constexpr):
    """Base, unit, radius in units, and the threshold at the largest point less the radius (float64), a lower bound."""
    by = unit_scale(r, tl.float32)
    near = comfortable(r, by, tl.float32)
    unit = tl.where(r == INF, 0.0, by).to(tl.float32)
    if WEIGH == SHARES:
        return tl.where(top == -INF, 0.0, top), unit, near, unit, -near
    # Taken off only where the differences that matter are exact.
    base = tl.where((tl.abs(top).to(tl.float64) >= 2 * r) & (top > -INF), top, 0.0)
    high = tl.where(top == -INF, 0.0, (top - base) * unit) - near
    return base, unit, near, high, high * 0.0


@triton.jit
def projected_step(n, s, near, high, low, kept):
    """Newton's method until the number above the threshold no longer falls; a piece of the equation is linear."""
    falls = (n < kept) & (n > 0)
    there, rest = advance(high, low, (s - near) / tl.maximum(n, 1))
    return tl.where(falls, there, high), tl.where(falls, rest, low), tl.where(falls, n, kept), falls


@triton.jit
def root_step(n, s, q, high, low, kept, floor, floor_low):
    """To the threshold that the set above this one has: the root of sum (x - t)^2 = 1, a quadratic equation.

    From the left of the row's own threshold that lies at it or beyond, from the right at it or before. What is never
    passed from the left is Newton's step on the norm: the floor, below which no step may fall, rises each time, until
    a threshold gives the set that it solves (`kept` of them), or no step is left.
    """
    over = q - 1.0
    inside = s * s - n * over
    norm = tl.sqrt(q)
    left = over > 0
    newton, newton_low = advance(high, low, over / (norm + 1.0) * norm / s)
    floor = tl.where(left, newton, floor)
    floor_low = tl.where(left, newton_low, floor_low)
    there, rest = advance(high, low, over / (s + tl.sqrt(tl.maximum(inside, 0.0))))
    solves = (inside >= 0) & (left | ((there - floor) + (rest - floor_low) > 0))
    there = tl.where(solves, there, floor)
    rest = tl.where(solves, rest, floor_low)
    moves = (n != kept) & (n > 0) & (q < INF) & ~((there == high) & (rest == low))
    high = tl.where((n > 0) & ~(q < INF), float("nan"), high)
    kept = tl.where(moves, tl.where(solves, n, 0), kept)
    return tl.where(moves, there, high), tl.where(moves, rest, low), kept, floor, floor_low, moves


@triton.jit
def step(n, s, q, near, high, low, kept, floor, floor_low, WEIGH: tl.constexpr):
    """One step for every row: its threshold, the size of the set it solves, its floor, and whether it moved."""
    if WEIGH == ROOT:
        high, low, kept, floor, floor_low, moves = root_step(n, s, q, high, low, kept, floor, floor_low)
    else:
        high, low, kept, moves = projected_step(n, s, near, high, low, kept)
    return high, low, kept, floor, floor_low, moves


@triton.jit
def settle_lanes(one, two, base, unit, near, high, low, kept, heat, WEIGH: tl.constexpr):
    """The threshold of rows that have nothing but `one` and `two` in each lane, from a lower bound of it."""
    one = points(one, base, unit, heat, WEIGH)
    two = points(two, base, unit, heat, WEIGH)
    floor = tl.where(high == high, -INF, high)
    floor_low = low * 0.0
    more = 1
    while more > 0:
        d1 = above(one, high, low)
        d2 = above(two, high, low)
        on1 = ~(d1 <= 0)
        on2 = ~(d2 <= 0)
        d1 = tl.where(on1, d1, 0.0)
        d2 = tl.where(on2, d2, 0.0)
        n, s = tl.reduce((on1.to(tl.int32) + on2.to(tl.int32), d1 + d2), 1, add2)
        q = tl.sum(d1 * d1 + d2 * d2, 1) if WEIGH == ROOT else s
        high, low, kept, floor, floor_low, moves = step(n, s, q, near, high, low, kept, floor, floor_low, WEIGH)
        more = tl.max(moves.to(tl.int32), 0)
    return high, low, kept
