"""Rows of every length that is known by its vectors, and those next to them: project, masks, squares, entmax."""

import numpy as np
import pytest

import buffers
import oracle
import sparsegen as sg

LENGTHS = range(64, 131)
EPS = 2.0**-23


def rows_of(n: int) -> np.ndarray:
    """Normal rows, more than are worked together, some with the largest entry at an end; ties, -inf, NaN, others."""
    x = np.random.default_rng(n).standard_normal((37, n)).astype(np.float32)
    x[3, n - 1], x[4, 0], x[5, n // 2 :], x[6], x[7, ::3], x[8, n - 1] = 9, 9, 1.5, 0.25, -np.inf, np.nan
    x[9] += 3e4
    return x


@pytest.mark.parametrize("n", LENGTHS)
def test_rows_of_every_length_are_projected(n, engine):
    x = rows_of(n)
    good = np.arange(len(x)) != 8
    for r in (0.3, 4.0, 0.4 * n):
        p = buffers.project(x, r, "float32")
        assert np.isnan(p[8]).all()
        want = oracle.project_bisect(x[good].astype(np.float64), np.full(good.sum(), r))
        np.testing.assert_allclose(p[good], want, rtol=0, atol=8 * EPS)
        assert (np.abs(p[good].sum(1, dtype=np.float64) - 1) <= 4 * EPS).all()


@pytest.mark.parametrize("n", LENGTHS)
def test_masks_of_every_length_hide(n, engine):
    x = rows_of(n)
    mask = np.random.default_rng(n).random(x.shape) < 0.8
    mask[5], mask[6], mask[10] = False, True, np.arange(n) == n - 1
    for lam in (0.5, -5.0):
        p = sg.sparsegen_lin(x, lam=lam, mask=mask)
        np.testing.assert_array_equal(p, sg.sparsegen_lin(np.where(mask, x, -np.inf), lam=lam))
        assert not p[~mask & (np.arange(len(x)) != 8)[:, None]].any()


@pytest.mark.parametrize("n", LENGTHS)
def test_squares_and_roots_of_every_length_are_those_in_double(n, engine):
    x = rows_of(n)
    x[9] -= 3e4
    for name, controls in (("sparsegen_sq", {"lam": -3.0}), ("sparsegen_sq", {"lam": 0.5}), ("entmax15", {})):
        p = getattr(sg, name)(x, **controls)
        want = getattr(sg, name)(x.astype(np.float64), **controls)
        np.testing.assert_allclose(p, want, rtol=1e-4, atol=32 * EPS)
