"""Arithmetic that the kernels share: exact scales, functions that are accurate near 0, the radius of a mean."""
# mypy: ignore-errors

import triton
import triton.language as tl

# The kernels' names for transforms and radius rules; the table's own where it has one.
LIN: tl.constexpr = tl.constexpr(0)
EXP: tl.constexpr = tl.constexpr(1)
SQ: tl.constexpr = tl.constexpr(2)
LOG: tl.constexpr = tl.constexpr(3)
GIVEN: tl.constexpr = tl.constexpr(0)
CONE: tl.constexpr = tl.constexpr(1)
HOURGLASS: tl.constexpr = tl.constexpr(2)
TOTAL: tl.constexpr = tl.constexpr(3)

INF: tl.constexpr = tl.constexpr(float("inf"))
# NaN is written out where it is used: Triton compares the globals of its kernels, and it equals nothing.


@triton.jit
def add2(a, b, c, d):
    """Sum two numbers at once."""
    return a + c, b + d


@triton.jit
def unit_scale(r, WIDE: tl.constexpr):
    """The power of two that brings a radius (float64) between 1 and 2, as far as WIDE has such numbers; float64."""
    exponent = (r.to(tl.int64, bitcast=True) >> 52) & 0x7FF
    low: tl.constexpr = 1 if tl.float64 == WIDE else 1023 - 126
    high: tl.constexpr = 2045 if tl.float64 == WIDE else 1023 + 126
    exponent = tl.minimum(tl.maximum(exponent, low), high)
    return ((2046 - exponent) << 52).to(tl.float64, bitcast=True)


@triton.jit
def reachable(r, WIDE: tl.constexpr):
    """The radius (float64), infinite where it is so large that no points of WIDE can differ beside it."""
    if tl.float64 == WIDE:
        return r
    return tl.where(r > 1e48, INF, r)


@triton.jit
def comfortable(r, scale, WIDE: tl.constexpr):
    """The radius in units of `scale`. Below the step of the points around their maximum all radii give the ties: one
    that is positive is used for 0. An infinite one becomes 1, for points that `flattened` makes equal."""
    least: tl.constexpr = 1.1102230246251565e-16 if tl.float64 == WIDE else 5.9604644775390625e-08
    r = tl.where((r < 0) | (r != r), float("nan"), tl.where(r == INF, 1.0, r * scale))
    return tl.where(r < least, least, r).to(WIDE)


@triton.jit
def expm1(y, WIDE: tl.constexpr):
    """e^y - 1 for y <= 0 with all its digits: Taylor's series near 0."""
    terms: tl.constexpr = 18 if tl.float64 == WIDE else 10
    near = y * 0.0 + 1.0
    for i in tl.static_range(terms, 1, -1):
        near = 1.0 + y * (1.0 / i) * near
    return tl.where(y > -0.5, y * near, tl.exp(y) - 1.0)


@triton.jit
def log1p(y):
    """log(1 + y) with all its digits for small y: what rounding 1 + y took is given back."""
    u = 1.0 + y
    same = u == 1.0
    return tl.where(same, y, tl.log(u) * (y / tl.where(same, 1.0, u - 1.0)))


@triton.jit
def blended(height, n, q):
    """(height + q)/(1/n + q) in float64, and its limit 1 for infinite q; by parts where the sum overflows."""
    far = q == INF
    q = tl.where(far, 1.0, q)
    width = 1.0 / n + q
    whole = height + q
    r = tl.where(tl.abs(whole) < INF, whole / width, height / width + q / width)
    return tl.where(far, 1.0, r)


@triton.jit
def radius_of_mean(mean, count, q, RULE: tl.constexpr):
    """The radius of rows with this mean: NaN outside its domain, 1 where nothing may be chosen (all float64)."""
    height = tl.abs(mean) if RULE == HOURGLASS else mean
    r = blended(height, tl.maximum(count, 1.0), q)
    if RULE == CONE:
        r = tl.where(r > 0, r, float("nan"))
    return tl.where(count > 0, r, 1.0)


@triton.jit
def slopes_of_mean(mean, count, q, RULE: tl.constexpr):
    """Its derivatives in each entry that may be chosen, and in q."""
    n = tl.maximum(count, 1.0)
    far = q == INF
    width = 1.0 / n + tl.where(far, 1.0, q)
    if RULE == HOURGLASS:
        height = tl.abs(mean)
        turn = tl.where(mean > 0, 1.0, tl.where(mean < 0, -1.0, 0.0))
    else:
        height = mean
        turn = mean * 0.0 + 1.0
    each = tl.where(far, 0.0, turn / width / n)
    return each, tl.where(far, 0.0, (1.0 / n - height) / (width * width))


@triton.jit
def narrow(p, T: tl.constexpr):
    """`p` in the type it is stored in; a positive probability stays positive, for the support is read off it."""
    q = p.to(T)
    if tl.float16 == T:
        q = tl.where((p > 0) & (q == 0.0), 5.9604644775390625e-08, q).to(T)
    return q
