"""The way back of squares projected onto a radius or onto a share of their sum, on every engine.

grad_z = 2 z o (w / r - (w.p) / r dr/dx), with s = [p > 0] and w = s o (v - mean_S v).
"""

import math

import numpy as np
import pytest

import buffers
from buffers import GIVEN, TOTAL

# Less than a vector, together, alone, long: on either side of every limit, and of every vector.
SIZES = (*range(1, 20), 31, 32, 33, 50, 63, 64, 65, 80, 127, 129, 300, 1023, 1024, 1100)
RADIUS = 0.6  # or this share of the sum
EPS = {"float32": 2.0**-23, "float64": 2.0**-52}


def closed_form(z, p, v, rule):
    """Gradients of scores and of the radius, or of the share, in long double; v is read on the support alone."""
    z, p = z.astype(np.longdouble), p.astype(np.longdouble)
    on, open_ = p > 0, z > -np.inf
    x = np.where(open_, z, 0) ** 2
    v = np.where(on, v, 0).astype(np.longdouble)
    w = np.where(on, v - v.sum(1, keepdims=True) / np.maximum(on.sum(1, keepdims=True), 1), 0)
    along = (w * p).sum(1, keepdims=True)
    r, slope = (RADIUS, 0) if rule == GIVEN else (RADIUS * np.maximum(x.sum(1, keepdims=True), 1e-300), RADIUS)
    grad = np.where(open_, 2 * np.where(open_, z, 0) * (w - along * slope) / r, 0)
    return grad, -along[:, 0] / RADIUS


def case(outer, k, inner, storage, scale=1.0):
    rng = np.random.default_rng([outer, k, inner])
    made = (scale * (np.abs(rng.standard_normal((outer, k, inner))) + 0.01), rng.standard_normal((outer, k, inner)))
    return tuple(buffers.stored(x, storage) for x in made)


def check(z, v, rule, storage):
    p, grad, to_radius = buffers.squares(z, v, RADIUS, rule, storage, along=True)
    want, wanted = closed_form(z, p, v, rule)
    assert near(grad, want, v, p, storage).all(), f"K = {z.shape[1]}"
    np.testing.assert_allclose(to_radius, wanted.astype(float), rtol=0, atol=64 * EPS[storage] * np.abs(v).max())
    np.testing.assert_array_equal(buffers.squares(z, v, RADIUS, rule, storage)[1], grad)
    return grad


@pytest.mark.parametrize("storage", EPS)
@pytest.mark.parametrize("rule", [GIVEN, TOTAL], ids=["given", "total"])
def test_the_gradient_is_the_closed_form(rule, storage, engine):
    for k in SIZES:
        for outer, inner in ((37, 1), (2, 9)):
            check(*case(outer, k, inner, storage), rule, storage)


def near(grad, want, v, p, storage):
    size = np.abs(want).max(1, keepdims=True) + (np.abs(v) * (p > 0)).max(1, keepdims=True) * np.abs(want).max()
    return np.abs(grad - want) <= 64 * EPS[storage] * size + 1e-300


@pytest.mark.parametrize("storage", EPS)
@pytest.mark.parametrize("rule", [GIVEN, TOTAL], ids=["given", "total"])
def test_the_support_as_words_is_enough(rule, storage, engine):
    """Probabilities are not read: those that the way back is given are others.

    Not with a given radius where rows share no group: whether entries are hidden is not known there.
    """
    sizes = [k for k in SIZES if rule == TOTAL or (8 if storage == "float32" else 65) <= k <= 128]
    for k in sizes:
        for outer, inner in ((37, 1), (2, 9)) if rule == TOTAL else ((48, 1), (2, 24)):
            z, v = case(outer, k, inner, storage)
            p, grad, *to_share = buffers.squares(z, v, RADIUS, rule, storage, along=rule == TOTAL, words=True)
            want, wanted = closed_form(z, p, v, rule)
            assert near(grad, want, v, p, storage).all(), f"K = {k}"
            for found in to_share:
                np.testing.assert_allclose(
                    found, wanted.astype(float), rtol=0, atol=64 * EPS[storage] * np.abs(v).max()
                )
            one = np.ones_like(v)
            assert (buffers.squares(z, one, RADIUS, rule, storage, words=True)[1] == 0).all()


@pytest.mark.parametrize("storage", EPS)
def test_shares_of_squares_are_told_by_their_scores(storage, engine):
    """All of the sum is the radius: grad_z = 2 z o (v - v.p) / sum. Scores far from 1 are scaled: p is read."""
    for k in SIZES:
        for scale in (1.0, 2.0**-14, 2.0**40):
            z, v = case(19, k, 1, storage, scale)
            p, grad = buffers.squares(z, v, 1.0, TOTAL, storage)
            x = z.astype(np.longdouble) ** 2
            total = x.sum(1, keepdims=True)
            steep = 2 * z / total
            want = steep * (v - (x * v).sum(1, keepdims=True) / total)
            np.testing.assert_allclose(p, (x / total).astype(float), rtol=8 * EPS[storage])
            assert (np.abs(grad - want) <= 8 * EPS[storage] * steep * np.abs(v).max(1, keepdims=True)).all(), f"K = {k}"


@pytest.mark.parametrize("storage", EPS)
@pytest.mark.parametrize("rule", [GIVEN, TOTAL], ids=["given", "total"])
def test_rows_with_words_do_not_see_their_neighbours(rule, storage, engine):
    for k in (3, 10, 16, 33, 50, 65, 128, 1100) if rule == TOTAL else (65, 128):
        z, v = case(48, k, 1, storage)
        clean = buffers.squares(z, v, RADIUS, rule, storage, words=True)[1]
        odd = np.isin(np.arange(48), (2, 21, 39))
        z[2, 1:], z[21, k // 2], z[39] = -math.inf, math.nan, -math.inf
        grad = buffers.squares(z, v, RADIUS, rule, storage, words=True)[1]
        np.testing.assert_array_equal(grad[~odd], clean[~odd])
        np.testing.assert_array_equal(grad[odd], buffers.squares(z, v, RADIUS, rule, storage)[1][odd])
        assert np.isnan(grad[21]).all()
        assert (grad[39] == 0).all()


@pytest.mark.parametrize("storage", EPS)
def test_the_gradient_is_the_closed_form_for_scores_of_any_size(storage, engine):
    """Their squares are measured in units of their own, which the gradient has to give back."""
    for k in (10, 50, 128):
        for scale in (2.0**-40, 2.0**-14, 2.0**14, 2.0**40):
            check(*case(35, k, 1, storage, scale), TOTAL, storage)


@pytest.mark.parametrize("storage", EPS)
@pytest.mark.parametrize("rule", [GIVEN, TOTAL], ids=["given", "total"])
def test_neighbours_make_no_difference(rule, storage, engine):
    """Neither with hidden entries, nor NaN, nor of another size; upstream may be anything off the support."""
    for k in (3, 10, 15, 16, 33, 50, 64, 65, 128, 300, 1100):
        z, v = case(40, k, 1, storage)
        clean = check(z, v, rule, storage)
        odd = np.isin(np.arange(40), (2, 7, 21, 39))
        z[2, 1:], z[7], z[21, k // 2], z[39] = -math.inf, z[7] * 2.0**45, math.nan, -math.inf
        p, grad = buffers.squares(z, v, RADIUS, rule, storage)
        np.testing.assert_array_equal(grad[~odd], clean[~odd])
        assert (grad[2, 1:] == 0).all()
        assert np.isnan(grad[21]).all()
        assert (grad[39] == 0).all()
        fine = np.arange(40) != 21
        want = closed_form(z[fine], p[fine], v[fine], rule)[0]
        assert (np.abs(grad[fine] - want) <= 1e-4 * np.abs(want).max(1, keepdims=True) + 1e-30).all()
        if rule == GIVEN:
            v[p == 0] = math.inf
            np.testing.assert_array_equal(buffers.squares(z, v, RADIUS, rule, storage)[1], grad)
