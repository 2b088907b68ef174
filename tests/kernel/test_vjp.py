"""The vector-Jacobian product: grad_x = P_S v / r and grad_r = -(w.p)/r, on every engine and storage."""

import math

import numpy as np
import pytest

import buffers
import oracle

SIZES = [1, 2, 3, 8, 31, 32, 33, 100, 256, 257, 1000, 4097]


def closed_form(p, v, r):
    """math.md, section 0, on rows along the middle axis; entries outside the support are not read."""
    on = p > 0
    size = np.maximum(on.sum(1, keepdims=True), 1)
    mean = np.where(on, v, 0).sum(1, keepdims=True) / size
    w = np.where(on, v - mean, 0)
    return w / np.expand_dims(r, 1), -(w * p).sum(1) / r


def case(outer, k, inner, storage, seed=0, spread=0.5):
    """Stored probabilities, upstream gradients and radii."""
    rng = np.random.default_rng(seed + k)
    p = oracle.project_bisect(rng.standard_normal((outer, inner, k)) * spread, 1.0)
    v = rng.standard_normal((outer, k, inner))
    r = rng.uniform(0.5, 2, (outer, inner))
    return buffers.stored(np.moveaxis(p, -1, 1), storage).copy("C"), buffers.stored(v, storage), r


def assert_gradients(got, p, v, r, storage):
    grad, grad_radius = buffers.floats(got[0], storage), got[1]
    want, want_radius = closed_form(buffers.floats(p, storage), buffers.floats(v, storage), r)
    size = 4 / r.min()
    single = 2.0**-52 if storage == "float64" else 2.0**-23
    np.testing.assert_allclose(grad, want, rtol=buffers.EPS[storage], atol=16 * size * single + 2.0**-149)
    np.testing.assert_allclose(grad_radius, want_radius, rtol=0, atol=16 * size * single)
    assert (grad[buffers.floats(p, storage) == 0] == 0).all()


@pytest.mark.parametrize("storage", buffers.STORAGE)
@pytest.mark.parametrize("spread", [0.01, 1.0])
def test_vjp_equals_the_closed_form(storage, spread, engine):
    for k in SIZES:
        for outer, inner in ((1, 1), (19, 1), (2, 7)):
            p, v, r = case(outer, k, inner, storage, spread=spread)
            assert_gradients(buffers.vjp(p, v, r, storage), p, v, r, storage)


@pytest.mark.parametrize("storage", buffers.STORAGE)
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_upstream_outside_the_support_is_not_read(storage, junk, engine):
    for k in SIZES:
        p, v, r = case(3, k, 1, storage)
        off = buffers.floats(p, storage) == 0
        spoilt = np.where(off, buffers.stored(np.full(v.shape, junk), storage), v)
        for clean, dirty in zip(buffers.vjp(p, v, r, storage), buffers.vjp(p, spoilt, r, storage)):
            np.testing.assert_array_equal(dirty, clean)


@pytest.mark.parametrize("storage", buffers.STORAGE)
def test_vjp_has_the_same_bits_in_any_batch_and_with_any_threads(storage, engine):
    for k in (7, 100, 257, 5000):
        p, v, r = case(40, k, 1, storage)
        grad, grad_radius = buffers.vjp(p, v, r, storage)
        for count in (2, 3, 8):
            again = buffers.vjp(p, v, r, storage, threads=count)
            np.testing.assert_array_equal(again[0], grad)
            np.testing.assert_array_equal(again[1], grad_radius)
        for i in (0, 13, 39):
            alone = buffers.vjp(p[i : i + 1].copy(), v[i : i + 1].copy(), r[i : i + 1], storage)
            np.testing.assert_array_equal(alone[0][0], grad[i])
            np.testing.assert_array_equal(alone[1][0], grad_radius[i])


@pytest.mark.parametrize("storage", buffers.STORAGE)
def test_one_hot_rows_have_no_gradient_at_any_radius(storage, engine):
    for k in (1, 3, 40, 300):
        p = buffers.stored(np.eye(k)[:2, :, None], storage)
        v = buffers.stored(np.random.default_rng(k).standard_normal(p.shape) * 1e4, storage)
        for r in (0.0, 1e-300, 1e-40, 1.0, 1e40, math.inf):
            grad, grad_radius = buffers.vjp(p, v, r, storage)
            assert (buffers.floats(grad, storage) == 0).all()
            assert (grad_radius == 0).all()


@pytest.mark.parametrize("storage", buffers.STORAGE)
@pytest.mark.parametrize("r", [0.0, math.inf])
def test_limits_of_the_radius_have_no_gradient(storage, r, engine):
    p = buffers.stored(np.full((2, 4, 1), 0.25), storage)
    v = buffers.stored(np.arange(8.0).reshape(2, 4, 1), storage)
    grad, grad_radius = buffers.vjp(p, v, r, storage)
    assert (buffers.floats(grad, storage) == 0).all()
    assert (grad_radius == 0).all()


@pytest.mark.parametrize("storage", buffers.STORAGE)
def test_rows_of_zeros_have_no_gradient_and_nan_rows_a_nan_one(storage, engine):
    for k in (1, 5, 40, 300):
        p, v, r = case(3, k, 1, storage)
        p[0], p[1] = 0, buffers.stored(np.full((k, 1), math.nan), storage)
        grad, grad_radius = buffers.vjp(p, v, r, storage)
        grad = buffers.floats(grad, storage)
        assert (grad[0] == 0).all()
        assert grad_radius[0] == 0
        assert np.isnan(grad[1]).all()
        assert np.isnan(grad_radius[1]).all()
        assert np.isfinite(grad[2]).all()


def test_vjp_is_the_transpose_of_the_finite_difference():
    rng = np.random.default_rng(5)
    for k in (3, 20, 300):
        x, v, r, h = rng.standard_normal((1, k, 1)), rng.standard_normal((1, k, 1)), 1.5, 1e-7
        p = buffers.project_strided(x, r, "float64")[0]
        grad, grad_radius = buffers.vjp(p, v, r, "float64")
        for i in range(min(k, 20)):
            step = np.zeros((1, k, 1))
            step[0, i] = h
            ends = [buffers.project_strided(x + s * step, r, "float64")[0] for s in (1, -1)]
            assert abs((v * (ends[0] - ends[1])).sum() / (2 * h) - grad[0, i, 0]) < 1e-7
        ends = [buffers.project_strided(x, r + s * h, "float64")[0] for s in (1, -1)]
        assert abs((v * (ends[0] - ends[1])).sum() / (2 * h) - grad_radius[0, 0]) < 1e-7
