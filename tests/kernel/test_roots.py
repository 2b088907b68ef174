"""Entmax with alpha = 1.5 of rows worked together, and of long ones: what a row alone and what sorting gives."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

import sparsegen as sg

LONGEST = 1024  # that are worked together
SHORT = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 50, 64)  # those that may be transposed
SIZES = (*SHORT, 65, 100, 128, 200, 255, 256, 257, 300, 600, 1000, 1024, 1025, 2048, 2100)
DTYPES = (np.float32, np.float64)


def by_sorting(z):
    """Probabilities in long double, by the threshold of every set of the largest entries."""
    return _sorted(z.tobytes(), z.shape, z.dtype)


@functools.lru_cache(32)  # one engine after the other is given the same rows
def _sorted(z, shape, dtype):
    u = np.frombuffer(z, dtype).reshape(shape).astype(np.longdouble)
    u -= u.max(axis=1, keepdims=True)
    ordered = np.maximum(-np.sort(-u, axis=1), -1e6)  # what lies so far below counts for nothing
    n = np.arange(1, shape[1] + 1)
    mean = np.cumsum(ordered, axis=1) / n
    room = (4 - (np.cumsum(ordered**2, axis=1) - n * mean**2)) / n
    tau = mean - np.sqrt(np.maximum(room, 0))
    size = ((room >= 0) & (tau < ordered)).sum(axis=1)
    return (np.maximum(u - tau[np.arange(len(u)), size - 1][:, None], 0) / 2) ** 2


def rows(kind, k, dtype):
    rng = np.random.default_rng([k, len(kind)])
    z = rng.standard_normal((90, k))
    changed = {
        "normal": z, "narrow": z / 10, "wide": z * 5, "far from 0": z + 1000, "very far from 0": z + 1e6,
        "tied": np.round(z * 2) / 2, "huge": z * 1e30, "hidden": np.where(rng.random(z.shape) < 0.4, -math.inf, z),
        "two heaps": z / 50 + 1.9 * (rng.random(z.shape) < 0.5),
    }[kind]  # fmt: skip
    changed[:, 0] = np.where(np.isneginf(changed).all(axis=1), 0, changed[:, 0])
    return changed.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize(
    "kind", ["normal", "narrow", "wide", "far from 0", "very far from 0", "tied", "huge", "hidden", "two heaps"]
)
def test_rows_are_as_sorting_has_them(engine, kind, dtype):
    eps = np.finfo(dtype).eps
    for k in SIZES:
        z = rows(kind, k, dtype)
        p, want = sg.entmax15(z), by_sorting(z)
        assert np.abs(p - want).max() <= 2 * eps
        assert np.abs(p.sum(axis=1, dtype=np.longdouble) - 1).max() <= 4 * eps
        assert ((p > 0) == (want > eps**2))[(want > eps**2) | (want == 0)].all()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
def test_a_row_that_is_worked_alone_gives_the_same(engine, dtype):
    for k in (1, 5, 16, 50, 130, 256, 700):
        z = rows("normal", k, dtype)
        alone = sg.entmax15(np.pad(z, ((0, 0), (0, LONGEST + 1 - k)), constant_values=-math.inf))
        assert (alone[:, k:] == 0).all()
        np.testing.assert_allclose(sg.entmax15(z), alone[:, :k], rtol=0, atol=2 * np.finfo(dtype).eps)


def test_a_row_does_not_feel_its_neighbours(engine):
    for k in (3, 16, 40, 129, 500):
        z = np.concatenate([rows(kind, k, np.float32) for kind in ("normal", "huge", "hidden", "wide")])
        z[5::13], z[3::11, -1], z[::7, 0] = -math.inf, math.inf, math.nan
        together = sg.entmax15(z)
        assert np.isnan(together[::7]).all()
        for i in range(0, len(z), 17):
            np.testing.assert_array_equal(sg.entmax15(z[i]), together[i])
            np.testing.assert_array_equal(sg.entmax15(z[i : i + 5])[0], together[i])
        np.testing.assert_array_equal(sg.entmax15(np.asfortranarray(z.T), axis=0).T, together)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
def test_alphas_of_each_row_take_the_way_of_their_own(engine, dtype):
    for k in (5, 12, 40, 100):
        z, alpha = rows("tied", k, dtype), np.where(np.arange(90) % 3, 1.5, 1.25)
        mixed = sg.entmax(z, alpha=alpha)
        np.testing.assert_array_equal(mixed[alpha == 1.5], sg.entmax15(z[alpha == 1.5]))
        np.testing.assert_array_equal(mixed[alpha == 1.25], sg.entmax(z[alpha == 1.25], alpha=1.25))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
def test_equal_squares_that_are_all_rounded_the_same_way_sum_to_one(engine, dtype):
    """Without what rounding takes from their sum, the worst of these rows misses 1 by 2.7 eps; added plainly, by 5."""
    for k in (100, 180, 248):
        z = np.repeat(-np.linspace(0.05, 1.9, 120)[:, None], k, axis=1).astype(dtype)
        z[:, 0] = 0
        missed = np.abs(sg.entmax15(z).sum(axis=1, dtype=np.longdouble) - 1).max()
        assert missed <= 2 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
def test_a_mask_is_as_good_as_minus_infinity(engine, dtype):
    for k in (10, 50, 100, 700, 2100):
        for kind in ("normal", "narrow"):
            z = rows(kind, k, dtype)
            mask = np.random.default_rng(k).random(z.shape) < 0.7
            mask[::11] = False
            np.testing.assert_array_equal(sg.entmax15(z, mask=mask), sg.entmax15(np.where(mask, z, -math.inf)))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
def test_entries_next_to_the_threshold_do_not_spoil_the_sum(engine, dtype):
    """The step that was once taken for small enough missed 1 by 33 eps in double."""
    z = np.repeat(-np.linspace(0.2335, 0.2365, 121)[:, None], 1721, axis=1)
    z[:, ::6] /= 2
    z[:, 0] = 0
    p = sg.entmax15(z.astype(dtype))
    assert np.abs(p.sum(axis=1, dtype=np.longdouble) - 1).max() <= 4 * np.finfo(dtype).eps
