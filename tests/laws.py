"""What every map must do, as functions that raise AssertionError.

A law takes a callable, the map's row of the table and scores of shape (..., K) inside the map's domain. The callable
maps an ndarray to an ndarray along the last axis: ``f(scores, mask=None, **controls)``; controls left out have the
value the front end's tests chose. Nothing here knows a framework, so each front end runs the same laws.
"""

from __future__ import annotations

import math

import numpy as np

import oracle


def eps_of(p: np.ndarray) -> float:
    return float(np.finfo(p.dtype).eps)


def assert_near(p: np.ndarray, want: np.ndarray, slack: float = 4.0, blur: float = 0.0) -> None:
    """Equal up to rounding: `slack` eps of each entry and of the row's even share, and `blur` besides."""
    size = np.maximum(np.count_nonzero(want > 0, axis=-1, keepdims=True), 1)
    allowed = slack * eps_of(p) * (want + 1 / size) + blur
    wrong = ~((abs(p - want) <= allowed) | (np.isnan(p) & np.isnan(want)))
    if p.shape != want.shape or wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        raise AssertionError(f"entry {at} is {p[at]!r}, not {want[at]!r}; {np.count_nonzero(wrong)} such entries")


def assert_on_simplex(p: np.ndarray) -> None:
    """Not negative, and each row sums to 1 within 4 eps."""
    assert p.dtype.kind == "f"
    assert (p >= 0).all(), "a probability is negative or NaN"
    for at in np.ndindex(p.shape[:-1]):
        error = abs(math.fsum(p[at].tolist()) - 1) / eps_of(p)
        assert error <= 4, f"row {at} misses 1 by {error} eps"


def inside(m, z: np.ndarray) -> np.ndarray:
    """Scores moved into the domain of a map: positive, where it has one."""
    return abs(z) + z.dtype.type(0.125) if m.domain else z


def is_on_the_simplex(f, m, z):
    assert_on_simplex(f(z))


def keeps_shape_and_dtype(f, m, z):
    p = f(z)
    assert p.shape == z.shape
    assert p.dtype == z.dtype


def leaves_the_scores_alone(f, m, z):
    given = z.copy()
    f(given)
    np.testing.assert_array_equal(given, z)


def keeps_order(f, m, z):
    if m.true.monotone != "yes":
        return
    order = np.argsort(z, axis=-1, kind="stable")
    assert (np.diff(np.take_along_axis(f(z), order, -1), axis=-1) >= 0).all()


def gives_ties_equal_shares(f, m, z):
    tied = np.concatenate([z, z[..., ::-1]], axis=-1)
    p = f(tied)
    np.testing.assert_array_equal(p, p[..., ::-1])


def permutes_with_the_scores(f, m, z):
    order = np.random.default_rng(z.shape[-1]).permutation(z.shape[-1])
    assert_near(f(z[..., order]), f(z)[..., order].astype(np.float64), slack=8)


def _mask(z: np.ndarray) -> np.ndarray:
    mask = np.random.default_rng(z.size).random(z.shape) < 0.6
    mask[..., 0] = True
    return mask


def gives_masked_entries_nothing(f, m, z):
    mask = _mask(z)
    p = f(z, mask=mask)
    assert (p[~mask] == 0).all()
    assert_on_simplex(p)


def masking_is_deleting(f, m, z):
    mask = _mask(z)
    p = f(z, mask=mask)
    for at in np.ndindex(z.shape[:-1]):
        assert_near(p[at][mask[at]], f(z[at][mask[at]]).astype(np.float64), slack=8)


def minus_inf_is_masking(f, m, z):
    mask = _mask(z)
    hidden = np.where(mask, z, z.dtype.type(-math.inf))
    np.testing.assert_array_equal(f(hidden), f(z, mask=mask))


def does_not_look_under_the_mask(f, m, z):
    mask = _mask(z)
    want = f(z, mask=mask)
    for junk in (math.nan, math.inf, -math.inf, 1e4, -1e4):
        np.testing.assert_array_equal(f(np.where(mask, z, z.dtype.type(junk)), mask=mask), want)


def gives_zeros_when_nothing_may_be_chosen(f, m, z):
    mask = np.ones(z.shape, bool)
    mask[0] = False
    p = f(z, mask=mask)
    assert (p[0] == 0).all()
    np.testing.assert_array_equal(p[1:], f(z)[1:])
    assert (f(np.full_like(z, -math.inf)) == 0).all()


def keeps_nan_and_inf_in_their_row(f, m, z):
    want = f(z)
    for bad in (math.nan, math.inf):
        spoilt = z.copy()
        spoilt[0, -1] = bad
        p = f(spoilt)
        assert np.isnan(p[0]).all()
        np.testing.assert_array_equal(p[1:], want[1:])


def maps_a_row_alone_as_in_a_batch(f, m, z):
    p = f(z)
    for i in range(len(z)):
        np.testing.assert_array_equal(f(z[i]), p[i])


def ignores_a_constant_added(f, m, z):
    if m.true.translation != "yes":
        return
    dyadic = np.round(z * 8) / 8
    for c in (1.0, -3.5, 64.0):
        assert_near(f(dyadic + z.dtype.type(c)), f(dyadic).astype(np.float64))


def ignores_a_positive_factor(f, m, z):
    if m.true.scale != "yes":
        return
    blur = 8 * eps_of(z) * 4 if m.transform == "log" else 0.0  # log(cz) = log c + log z rounds at the size of log c
    for c in (2.0, 0.25, 16.0):
        assert_near(f(z * z.dtype.type(c)), f(z).astype(np.float64), slack=8, blur=blur)


def leaves_distributions_alone(f, m, z):
    if m.true.idempotent != "yes":
        return
    even = np.full(z.shape[-1], 1 / z.shape[-1])
    p = np.random.default_rng(z.size).multinomial(16, even, z.shape[:-1]).astype(z.dtype) / 16
    assert_near(f(p), p.astype(np.float64), slack=8)


def survives_extreme_scores(f, m, z):
    big, far = (1e4, 1e4) if z.dtype == np.float16 else (1e30, 1e8)
    for scores in (z * z.dtype.type(big), z / z.dtype.type(big), z + z.dtype.type(far), np.ones_like(z)):
        p = f(scores)
        assert_on_simplex(p)
        ties = scores[..., :, None] == scores[..., None, :]
        assert (p[..., :, None] == p[..., None, :])[ties].all()


def _uniform(z):
    return np.full(z.shape, 1 / z.shape[-1])


def _on_the_maxima(z, g=lambda v: v):
    top = g(z) == g(z).max(-1, keepdims=True)
    return top / np.count_nonzero(top, axis=-1, keepdims=True)


def has_the_limits_of_its_control(f, m, z):
    z = np.round(z * 8) / 8
    size = abs if m.transform == "sq" else lambda v: v
    if "lam" in m.controls:
        assert_near(f(z, lam=-1e30), _uniform(z))
        assert_near(f(z, lam=-math.inf), _uniform(z))
        assert_near(f(z, lam=1 - 2.0**-40), _on_the_maxima(z, size))
    if "temperature" in m.controls:
        softmax = {"lam": 0.0} if "lam" in m.controls else {}
        assert_near(f(z, temperature=1e30, **softmax), _uniform(z))
        assert_near(f(z, temperature=math.inf, **softmax), _uniform(z))
        assert_near(f(z, temperature=2.0**-30, **softmax), _on_the_maxima(z))
    if "q" in m.controls:
        sparsemax = oracle.project_bisect(z, 1.0)
        assert_near(f(z, q=math.inf), sparsemax)
        assert_near(f(z, q=1e30), sparsemax)
    if "alpha" in m.controls:
        assert_near(f(z, alpha=1.0), oracle.apply("softmax", z), slack=8)
        assert_near(f(z, alpha=2.0), oracle.project_bisect(z, 1.0))
        assert_near(f(z, alpha=1e6), _on_the_maxima(z))


def stays_within_lam_of_its_beginning(f, m, z):
    """For 0 <= lam < 1 the total variation distance to the map at lam = 0 is at most lam."""
    if "lam" not in m.controls:
        return
    first = f(z, lam=0.0).astype(np.float64)
    for lam in (0.0, 0.0625, 0.25, 0.9375):
        far = np.maximum(f(z, lam=lam) - first, 0).sum(-1)
        assert (far <= lam + 8 * eps_of(z)).all(), f"{far.max()} from lam = 0 at lam = {lam}"


LAWS = [
    is_on_the_simplex,
    keeps_shape_and_dtype,
    leaves_the_scores_alone,
    keeps_order,
    gives_ties_equal_shares,
    permutes_with_the_scores,
    gives_masked_entries_nothing,
    masking_is_deleting,
    minus_inf_is_masking,
    does_not_look_under_the_mask,
    gives_zeros_when_nothing_may_be_chosen,
    keeps_nan_and_inf_in_their_row,
    maps_a_row_alone_as_in_a_batch,
    ignores_a_constant_added,
    ignores_a_positive_factor,
    leaves_distributions_alone,
    survives_extreme_scores,
    has_the_limits_of_its_control,
    stays_within_lam_of_its_beginning,
]
