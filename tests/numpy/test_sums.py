"""Shares of a sum, where scores are summed as they are and where powers of two must come first; means of rows."""

import math
from fractions import Fraction

import numpy as np
import pytest

import sparsegen as sg
from oracle import project_bisect
from sparsegen import _core
from sparsegen._table.maps import MAPS

SIZES = [1, 3, 8, 10, 16, 17, 50, 128, 300, 1024, 1025, 2100]
# Every power on both sides of where sums may be taken of scores as they are, and the ends of the types.
SCALES = {
    np.float32: [-140, -70, -62, -59, -20, -9, -7, 0, 28, 31, 58, 61, 100],
    np.float64: [-1060, -520, -499, -51, -49, 0, 248, 252, 499, 520, 1000],
}


def rows(k, seed, dtype, scale, spread=3.0):
    """Positive scores over some orders of magnitude, with zeros; the largest is near 2^scale."""
    rng = np.random.default_rng([k, seed])
    z = np.exp2(-spread * np.abs(rng.standard_normal((5, k))))
    z[:, 1::7] = 0
    return np.ldexp(z.astype(dtype), scale)


def shares(z, power):
    """z^power over its sum, in rational arithmetic, as the nearest float64."""
    found = np.zeros(z.shape)
    for i, row in enumerate(z):
        weights = [Fraction(float(v)) ** power for v in row]
        total = sum(weights)
        found[i] = [float(w / total) for w in weights]
    return found


@pytest.mark.parametrize("dtype", SCALES)
@pytest.mark.parametrize(("name", "power"), [("sum_normalization", 1), ("spherical_softmax", 2)])
def test_shares_have_all_their_digits_at_any_scale(name, power, dtype, engine):
    eps, least = np.finfo(dtype).eps, np.finfo(dtype).smallest_subnormal
    for k in SIZES[:9]:
        for scale in SCALES[dtype]:
            z = rows(k, 0, dtype, scale)
            z[1:, 0] = np.ldexp(dtype(1), scale)  # the first row may be small throughout
            if not (z > 0).any(-1).all():
                continue
            p = getattr(sg, name)(z).astype(np.float64)
            want = shares(z, power)
            assert (abs(p - want) <= 6 * eps * want + least).all(), (k, scale)
            assert (abs(p.sum(-1) - 1) <= 4 * eps).all(), (k, scale)
            assert ((p > 0) == (want > least)).all(), (k, scale)


@pytest.mark.parametrize("dtype", SCALES)
def test_a_square_that_underflows_keeps_the_digits_of_its_share(dtype, engine):
    low = -64 if dtype == np.float32 else -513  # z^2 is subnormal; its share of a sum below 1 is not
    for k in (3, 20, 1100):
        z = np.zeros((2, k), dtype)
        z[:, 0], z[:, 1], z[:, 2] = 2.0**-7, np.ldexp(dtype(1.3), low), np.ldexp(dtype(1.7), low - 4)
        want = shares(z, 2)
        p = sg.spherical_softmax(z)
        np.testing.assert_allclose(p, want, rtol=6 * np.finfo(dtype).eps)


@pytest.mark.parametrize("name", ["sum_normalization", "spherical_softmax"])
@pytest.mark.parametrize("lam", [0.0, 0.1, -0.5, 0.999])
def test_scaling_by_powers_of_two_changes_nothing_but_rounding(name, lam, engine):
    for k in SIZES:
        z = rows(k, 1, np.float32, 0, 1.0)
        want = getattr(sg, name)(z, lam=lam)
        for scale in (-70, -9, 31, 61):
            got = getattr(sg, name)(np.ldexp(z, scale), lam=lam)
            np.testing.assert_allclose(got, want, rtol=0, atol=8 * np.finfo(np.float32).eps)
            np.testing.assert_array_equal(got > 0, want > 0)


@pytest.mark.parametrize("name", ["sum_normalization", "spherical_softmax"])
@pytest.mark.parametrize("lam", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_hidden_entries_and_other_rows_leave_a_row_as_it_is(name, lam, dtype, engine):
    f = getattr(sg, name)
    for k in SIZES[1:]:
        z = rows(k, 2, dtype, 0)
        z[:, :2], mask = 0.5, np.ones(z.shape, bool)
        mask[1, 1:] = False
        mask[2, ::2] = False
        z[3] = dtype(0.125)
        hidden = np.where(mask, z, -np.inf).astype(dtype)
        p = f(z, lam=lam, mask=mask)
        np.testing.assert_array_equal(p, f(hidden, lam=lam))
        for i in range(len(z)):
            np.testing.assert_array_equal(p[i], f(z[i], lam=lam, mask=mask[i]))
        shown = f(np.where(mask, z, 0), lam=lam)  # a score of 0 has no share
        want = np.where(mask, shown, 0).astype(float)
        np.testing.assert_allclose(p.astype(float), want, rtol=0, atol=4 * np.finfo(dtype).eps)


def weights(k, dtype):
    """Scores of at least 0. The first entries of some rows, where a search may start, are not like the others."""
    rng = np.random.default_rng(k)
    z = abs(rng.standard_normal((10, k)))
    z[0] += 0.1
    z[2], z[3] = np.sort(z[2]), np.sort(z[3])[::-1]
    z[4, : 3 * k // 4] = 0
    z[5, -1], z[6] = 1e4, (2 * z[6]).round() / 2
    z[7], z[8, : k // 8] = 1.0, 1e-3
    z[9, : k // 8] = 30.0
    return z.astype(dtype)


@pytest.mark.parametrize("dtype", SCALES)
@pytest.mark.parametrize(("name", "power"), [("sum_normalization", 1), ("spherical_softmax", 2)])
def test_parts_of_a_sum_equal_the_bisection_and_a_call_a_row(name, power, dtype, engine):
    f, eps = getattr(sg, name), np.finfo(dtype).eps
    for k in (65, 200, 257, 1030, 8201):
        z = weights(k, dtype)
        x = z.astype(np.float64) ** power
        for lam in (-0.5, 1e-9, 0.1, 0.5):
            p = f(z, lam=lam)
            want = project_bisect(x, (1 - lam) * x.sum(-1))
            np.testing.assert_allclose(p, want, rtol=0, atol=8 * eps, err_msg=f"{k} {lam}")
            assert (abs(p.astype(float).sum(-1) - 1) <= 4 * eps).all(), (k, lam)
            np.testing.assert_array_equal(f(z.T.copy(), lam=lam, axis=0).T, p)
        parts = np.array([0.0, 0.1, 0.6, 0.1, 0.5, 0.0, 0.1, 0.9, 0.1, 0.3])
        mixed = f(z, lam=parts)
        for i, lam in enumerate(parts):
            np.testing.assert_array_equal(mixed[i], f(z[i], lam=lam))


@pytest.mark.parametrize("dtype", SCALES)
@pytest.mark.parametrize("k", [2048, 2100, 8200, 8256])
def test_most_of_a_sum_as_a_radius_of_the_mean_of_long_rows(k, dtype, engine):
    """Rows without negative entries are projected by their sums; others stand among them and are as they are alone."""
    rng, eps = np.random.default_rng(k), np.finfo(dtype).eps
    z = (np.abs(rng.normal(size=(8, k))) + 0.1).astype(dtype)
    z[1, ::3], z[2, k - 1], z[3, k // 2], z[4, 7], z[5, 0], z[7, 1] = 0, 0, -0.25, -np.inf, np.nan, -0.25
    p = sg.sum_normalization_plus(z)
    for i in (0, 1, 2, 6):  # where every entry has a share, by the sum alone; with zeros, by a threshold that rounds
        want = z[i].astype(np.float64) / math.fsum(z[i].tolist())
        assert (abs(p[i] - want) <= 3 * eps * (want if z[i].all() else want + 1 / k)).all(), i
        assert ((p[i] > 0) == (z[i] > 0)).all(), i
    assert np.isnan(p[5]).all()
    for q in (0.0, 0.1 / k, 1 / k, 1.5 / k):
        p = sg.sparsehourglass(z, q=q)
        assert (abs(p[[0, 1, 2, 3, 4, 6, 7]].astype(np.float64).sum(-1) - 1) <= 4 * eps).all()
        for i in (0, 1, 2, 3, 6, 7):
            radius = (abs(math.fsum(z[i].tolist()) / k) + q) / (1 / k + q)
            want = project_bisect(z[i : i + 1], radius)[0]
            np.testing.assert_allclose(p[i], want, rtol=0, atol=4 * eps * want.max(), err_msg=f"{q} {i}")
            np.testing.assert_array_equal(sg.sparsehourglass(z[i], q=q), p[i])
        np.testing.assert_array_equal(sg.sparsehourglass(z.T.copy(), q=q, axis=0).T, p)
        np.testing.assert_array_equal(sg.sparsehourglass(z, q=q, mask=np.ones(z.shape, bool)), p)


@pytest.mark.parametrize("dtype", SCALES)
@pytest.mark.parametrize("k", [8193, 8256, 9236, 9260, 20_011])  # and what is left over of parts of 1024
def test_long_rows_read_once_for_mean_and_threshold_equal_the_bisection(k, dtype, engine):
    """Whatever stands in them, and as they are alone; q from where few entries matter to where all do."""
    rng, eps, most = np.random.default_rng(k), np.finfo(dtype).eps, np.finfo(dtype).max
    z = rng.standard_normal((12, k)).astype(dtype)
    z[1, 9], z[2, k - 1], z[3, 1::2], z[4] = -np.inf, -np.inf, -np.inf, -0.5
    z[5, -1], z[6, 5], z[7, k - 1], z[8], z[9] = 1e4, np.nan, np.inf, -np.inf, z[9] + 300
    z[10, : k // 2] = most / 4  # its sum is beyond the type, in float64 too
    for q in (0.0, 0.01, 0.5, 40.0):
        p = sg.sparsehourglass(z, q=q)
        assert np.isnan(p[6:8]).all()
        assert not p[8].any()
        for i in (0, 1, 2, 3, 4, 5, 9, 11):
            radius, _, _ = hourglass_radius(z[i], Fraction(q))
            want = project_bisect(z[i : i + 1].astype(np.float64), radius)[0]
            near = 8 * eps * max(1, abs(z[i][z[i] > -np.inf]).max() / radius)
            np.testing.assert_allclose(p[i], want, rtol=0, atol=near, err_msg=f"{q} {i}")
        for i in range(12):
            np.testing.assert_array_equal(sg.sparsehourglass(z[i], q=q), p[i])
        np.testing.assert_array_equal(sg.sparsehourglass(z.T.copy(), q=q, axis=0).T, p)
        ones = np.delete(p, [6, 7, 8], 0).astype(np.float64).sum(-1)
        assert (abs(ones - 1) <= 4 * eps).all(), q


@pytest.mark.parametrize("dtype", SCALES)
def test_squares_equal_the_bisection_and_a_call_a_row(dtype, engine):
    for k in (65, 257, 1000, 1030):
        z = np.random.default_rng(k).standard_normal((37, k)).astype(dtype)
        z[1], z[2, 0] = abs(z[1]), -9  # the largest is a negative score
        z[3, 1::2], z[3, 0], z[4] = -np.inf, -5, -np.inf
        for lam in (0.1, -40.0):
            with np.errstate(over="ignore"):
                want = project_bisect(np.where(z == -np.inf, z, z.astype(np.float64) ** 2), 1 - lam)
            p = sg.sparsegen_sq(z, lam=lam)
            np.testing.assert_allclose(p, want, rtol=0, atol=32 * np.finfo(dtype).eps)
            for rows in ([*range(5, 37)], [*range(5, 9)], [*range(0, 37, 5)]):
                np.testing.assert_array_equal(sg.sparsegen_sq(z[rows], lam=lam), p[rows])
        z[20, 3] = np.inf
        assert np.isnan(sg.sparsegen_sq(z, lam=lam)[20]).all()
        np.testing.assert_array_equal(np.delete(sg.sparsegen_sq(z, lam=lam), 20, 0), np.delete(p, 20, 0))


def test_negative_scores_are_outside_wherever_they_stand(engine):
    for k in SIZES[1:]:
        for at in {0, k // 2, k - 1}:
            z = np.ones((18, k), np.float32)
            z[7, at] = -1e-3
            with pytest.raises(ValueError, match="at least 0"):
                sg.sum_normalization(z)
            with pytest.raises(ValueError, match="at least 0"):
                sg.sum_normalization(z, lam=0.1)


def found_by_hourglass(z, q):
    """Radius, mean and count of each row, as the kernel keeps them for the way back."""
    z, found = np.ascontiguousarray(z), np.zeros((3, len(z)))
    p, at = np.empty_like(z), [row.ctypes.data for row in found]
    rows, k = z.shape
    storage = {"float32": 0, "float64": 1, "float16": 2}[z.dtype.name]
    code = MAPS["sparsehourglass"].code
    _core.map(z.ctypes.data, p.ctypes.data, storage, rows, k, 1, k, 1, 1, *code, q, 0, 1.0, 0, 0, 0, *at, 0, 1)
    return found


def hourglass_radius(row, q):
    """Radius, mean and count in rational arithmetic."""
    shown = [Fraction(float(v)) for v in row if v > -np.inf]
    n = len(shown)
    mean = sum(shown) / n
    return float((abs(mean) + Fraction(q)) / (Fraction(1, n) + Fraction(q))), float(mean), n


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_means_are_those_of_rational_arithmetic(dtype, engine):
    for k in SIZES:
        z = np.random.default_rng(k).standard_normal((37, k)).astype(dtype) * dtype(100)
        z[1, k // 2 + 1 :] = -np.inf
        z[2, 1:2] = -np.inf
        z[3] = 0
        found = found_by_hourglass(z, 1.0)
        for i, row in enumerate(z):
            r, mean, n = hourglass_radius(row, 1)
            assert abs(found[0, i] - r) <= 5e-16 * r
            assert abs(found[1, i] - mean) <= 1e-13 * abs(row[row > -np.inf].astype(float)).max()
            assert found[2, i] == n
        for i in (0, 1, 5, 36):
            np.testing.assert_array_equal(found_by_hourglass(z[i : i + 1], 1.0)[:, 0], found[:, i])


def test_engines_agree_on_means():
    z = np.random.default_rng(5).standard_normal((40, 333)).astype(np.float32) * np.float32(1e3)
    z[::3, 100:107] = -np.inf
    kept, found = _core.engine(), []
    try:
        for name in _core.engines():
            _core.use_engine(name)
            found.append(found_by_hourglass(z, 1.0))
    finally:
        _core.use_engine(kept)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
