"""Entmax of any alpha: against long double, wherever a row stands, and what becomes of entries near the threshold."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

import sparsegen as sg

SIZES = (1, 2, 9, 16, 17, 33, 64, 65, 130, 300, 1100)
ALPHAS = (1 + 1e-10, 1.001, 1.1, 1.3, 1.49, 1.75, 1.99, 2.3)
KINDS = ("normal", "narrow", "wide", "huge", "far from 0", "tied", "equal", "heavy", "hidden", "rising", "falling")
DTYPES = (np.float32, np.float64)


def by_bisection(z, alpha):
    """Probabilities in long double: the shift of the largest entry halved until it stands still."""
    return _bisected(z.tobytes(), z.shape, z.dtype, alpha)


@functools.lru_cache(128)  # one engine after the other is given the same rows
def _bisected(z, shape, dtype, alpha):
    a, u = np.longdouble(alpha) - 1, np.frombuffer(z, dtype).reshape(shape).astype(np.longdouble)
    below = u.max(axis=1, keepdims=True) - u

    def shares(shift):
        w = below + shift
        on = a * w < 1
        return np.where(on, np.exp(np.log1p(-a * np.where(on, w, 0)) / a), 0)

    low, high = np.zeros((len(u), 1), np.longdouble), np.full((len(u), 1), -np.expm1(-a * np.log(shape[1])) / a)
    for _ in range(66):
        middle = (low + high) / 2
        more = shares(middle).sum(axis=1, keepdims=True) > 1
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    p = shares(low)
    return p / p.sum(axis=1, keepdims=True)


def rows(kind, k, dtype, n=5):
    rng = np.random.default_rng([k, len(kind)])
    z = rng.standard_normal((n, k))
    changed = {
        "normal": z, "narrow": z / 1000, "wide": z * 5, "huge": z * 1e30, "far from 0": z + 1e4,
        "equal": z * 0 + 3, "heavy": np.sign(z) * np.exp(3 * np.abs(z)), "rising": np.sort(z), "falling": -np.sort(-z),
        "tied": np.round(z * 2) / 2, "hidden": np.where(rng.random(z.shape) < 0.4, -math.inf, z),
    }[kind]  # fmt: skip
    changed[:, 0] = np.where(np.isneginf(changed).all(axis=1), 0, changed[:, 0])
    return changed.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_every_alpha_is_as_bisection_has_it(engine, kind, dtype):
    eps = np.finfo(dtype).eps
    for k in SIZES:
        z = rows(kind, k, dtype)
        for alpha in ALPHAS:
            p, want = sg.entmax(z, alpha=alpha), by_bisection(z, alpha)
            assert np.abs(p - want).max() <= (1 if dtype == np.float32 else 16) * eps, (k, alpha)
            assert np.abs(p.sum(axis=1, dtype=np.longdouble) - 1).max() <= 4 * eps, (k, alpha)
            assert (p[np.isneginf(z)] == 0).all()
            felt = want > 1e-9  # a share on the threshold is rounding, in long double too
            assert (p[felt] > 0).all()
            if dtype == np.float32 and alpha < 2:
                assert (np.abs(p - want)[felt] <= 2 * eps * want[felt]).all(), (k, alpha)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
def test_a_row_does_not_feel_its_neighbours_nor_where_it_stands(engine, dtype):
    for k in (3, 16, 40, 129, 1100):
        z = np.concatenate([rows(kind, k, dtype, 9) for kind in ("normal", "huge", "hidden", "wide", "narrow")])
        z[5::13], z[3::11, -1], z[::7, 0] = -math.inf, math.inf, math.nan
        for alpha in (1.01, 1.3, 1.75, 2.3):
            together = sg.entmax(z, alpha=alpha)
            assert np.isnan(together[::7]).all()
            assert np.isnan(together[3::11]).all()
            assert (together[5] == 0).all()
            for i in range(0, len(z), 4):
                np.testing.assert_array_equal(sg.entmax(z[i], alpha=alpha), together[i])
                np.testing.assert_array_equal(sg.entmax(z[i : i + 3], alpha=alpha)[0], together[i])
            np.testing.assert_array_equal(sg.entmax(np.asfortranarray(z.T), alpha=alpha, axis=0).T, together)
            open_ = np.random.default_rng(k).random(z.shape) < 0.5
            hidden = sg.entmax(np.where(open_, z, -math.inf), alpha=alpha)
            np.testing.assert_array_equal(sg.entmax(z, alpha=alpha, mask=open_), hidden)


def test_alphas_of_each_row_take_the_way_of_their_own(engine):
    z, alpha = rows("normal", 40, np.float32, 60), np.resize([1, 1.2, 1.5, 1.7, 2, 2.4], 60)
    mixed = sg.entmax(z, alpha=alpha)
    for one in set(alpha):
        np.testing.assert_array_equal(mixed[alpha == one], sg.entmax(z[alpha == one], alpha=one))


def test_equal_scores_have_equal_probabilities_wherever_they_stand(engine):
    for k in (12, 100, 700):
        z = np.random.default_rng(k).choice(np.linspace(0, 2, 5), (7, k)).astype(np.float32)
        for alpha in (1.1, 1.3, 1.75, 1.99):
            for row, p in zip(z, sg.entmax(z, alpha=alpha)):
                assert all(len(set(p[row == score])) == 1 for score in set(row))


def test_a_positive_probability_stays_positive(engine):
    """The power 20 of what is left of 1 is smaller than any float, above the threshold still."""
    z = np.array([[0, -5, -18, -19.9, -20.1]], np.float32)
    want = by_bisection(z, 1.05)[0]
    assert 0 < want[3] < float(np.finfo(np.float32).smallest_subnormal) / 2
    p = sg.entmax(z, alpha=1.05)[0]
    assert (p > 0).tolist() == (want > 0).tolist() == [True, True, True, True, False]


@pytest.mark.parametrize("alpha", [1.1, 1.3, 1.49, 1.75])
def test_shares_of_entries_next_to_the_threshold_have_all_their_digits(engine, alpha):
    """They move most with the last step of the search: by more than a series could say."""
    for k in (9, 40, 300):
        z = rows("normal", k, np.float32, 30)
        shares = by_bisection(z, alpha)
        top, a = z.max(axis=1), np.longdouble(alpha) - 1
        threshold = top - shares.max(axis=1) ** a / a
        for above in (0.1, 0.001, 1e-5):
            z[:, 0] = np.where(z[:, 0] < top, threshold + above, z[:, 0])
            p, want = sg.entmax(z, alpha=alpha), by_bisection(z, alpha)
            felt = want > 1e-35
            assert (np.abs(p - want)[felt] <= np.finfo(np.float32).eps * want[felt]).all(), (k, above)
