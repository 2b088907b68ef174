"""The way back of entmax with alpha = 1.5: grad_z = s o (v - s.v / sum(s)), s = sqrt(p), on every engine."""

import math

import numpy as np
import pytest

import buffers
import sparsegen as sg

# Transposed, together, alone: on either side of every limit, and of every vector.
SIZES = (*range(1, 36), 47, 48, 49, 63, 64, 65, 80, 127, 128, 129, 300, 1100)
JUNK = (math.nan, math.inf, -math.inf)


def closed_form(p, v):
    """In long double, rows along the middle axis; entries outside the support are not read."""
    s, v = np.sqrt(p.astype(np.longdouble)), np.where(p > 0, v, 0).astype(np.longdouble)
    mean = (s * v).sum(1, keepdims=True) / np.maximum(s.sum(1, keepdims=True), 1e-30)
    return s * np.where(p > 0, v - mean, 0)


def case(outer, k, inner, storage):
    """Stored probabilities, about half of them 0, and upstream gradients."""
    rng = np.random.default_rng([outer, k, inner])
    p = np.maximum(rng.standard_normal((outer, k, inner)), 0) ** 2
    p /= np.maximum(p.sum(1, keepdims=True), 1e-30)
    return buffers.stored(p, storage), buffers.stored(rng.standard_normal((outer, k, inner)), storage)


@pytest.mark.parametrize("storage", buffers.STORAGE)
def test_the_gradient_is_the_closed_form(storage, engine):
    single = 2.0**-52 if storage == "float64" else 2.0**-23
    for k in SIZES:
        for outer, inner in ((1, 1), (37, 1), (2, 9)):
            p, v = case(outer, k, inner, storage)
            got = buffers.floats(buffers.root_vjp(p, v, storage), storage)
            want = closed_form(buffers.floats(p, storage), buffers.floats(v, storage)).astype(np.float64)
            np.testing.assert_allclose(got, want, rtol=buffers.EPS[storage], atol=8 * single, err_msg=f"K = {k}")
            assert (got[buffers.floats(p, storage) == 0] == 0).all()


@pytest.mark.parametrize("storage", buffers.STORAGE)
def test_upstream_outside_the_support_is_not_read(storage, engine):
    for k in SIZES[::3]:
        p, v = case(18, k, 1, storage)
        off, clean = buffers.floats(p, storage) == 0, buffers.root_vjp(p, v, storage)
        for junk in JUNK:
            spoilt = np.where(off, buffers.stored(np.full(v.shape, junk), storage), v)
            np.testing.assert_array_equal(buffers.root_vjp(p, spoilt, storage), clean)


@pytest.mark.parametrize("storage", buffers.STORAGE)
def test_rows_of_zeros_have_no_gradient_and_nan_rows_a_nan_one(storage, engine):
    nan = buffers.stored(math.nan, storage)
    for k in SIZES[::3]:
        p, v = case(20, k, 1, storage)
        others = buffers.floats(buffers.root_vjp(p, v, storage), storage)
        p[3], p[4], p[17, 0] = 0, nan, nan  # the first entry speaks for its row
        grad, grad_alpha = buffers.root_vjp(p, v, storage, along=True)
        grad, broken = buffers.floats(grad, storage), np.isin(np.arange(20), (4, 17))
        assert (grad[3] == 0).all()
        assert np.isnan(grad[broken]).all()
        assert (np.isnan(grad_alpha[:, 0]) == broken).all()
        rest = ~broken & (np.arange(20) != 3)
        np.testing.assert_array_equal(grad[rest], others[rest])


@pytest.mark.parametrize("storage", ["float32", "float64"])
def test_the_bits_are_the_same_in_any_company(storage, engine):
    """Alone, beside rows with another alpha, by more threads, across memory, and where alpha has a gradient too."""
    for k in (1, 7, 10, 15, 16, 33, 50, 64, 65):
        p, v = case(500, k, 1, storage)
        grad = buffers.root_vjp(p, v, storage)
        np.testing.assert_array_equal(buffers.root_vjp(p, v, storage, threads=3), grad)
        np.testing.assert_array_equal(buffers.root_vjp(p, v, storage, along=True)[0], grad)
        for i in (0, 13, 499):
            np.testing.assert_array_equal(buffers.root_vjp(p[i : i + 1], v[i : i + 1], storage)[0], grad[i])
        across = [np.ascontiguousarray(x[:, :, 0].T)[None] for x in (p, v)]
        np.testing.assert_array_equal(buffers.root_vjp(*across, storage)[0].T, grad[:, :, 0])
        some = np.arange(500) % 3 > 0
        mixed = buffers.root_vjp(p, v, storage, np.where(some, 1.5, 1.25)[:, None])
        np.testing.assert_array_equal(mixed[some], grad[some])


def test_the_gradient_is_the_finite_difference(engine):
    rng = np.random.default_rng(3)
    for k in (3, 12, 40, 100):
        z, v, h = rng.standard_normal((1, k)), rng.standard_normal((1, k)), 1e-6
        p = sg.entmax15(z)
        grad = buffers.root_vjp(p[:, :, None], v[:, :, None], "float64")[0, :, 0]
        ends = [sg.entmax15(z + side * h * np.eye(k)) for side in (1, -1)]
        np.testing.assert_allclose(grad, ((ends[0] - ends[1]) @ v[0]) / (2 * h), atol=1e-5)
