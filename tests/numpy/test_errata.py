"""Where the paper is wrong about a map, the library follows the mathematics: math.md, section 2."""

import math

import numpy as np
import pytest

import sparsegen as sg

EXACT = {"rtol": 0, "atol": 1e-15}


def sizes(f, values):
    return [int(np.count_nonzero(f(v))) for v in values]


def test_e1_lam_towards_1_is_sparse_and_towards_minus_infinity_uniform():
    z = [0.5, 0.3, 0.2]
    np.testing.assert_allclose(sg.sparsegen_lin(z, lam=-1e6), [1 / 3] * 3, atol=1e-6)
    np.testing.assert_allclose(sg.sparsegen_lin(z, lam=0.5), [2 / 3, 4 / 15, 1 / 15], **EXACT)
    np.testing.assert_allclose(sg.sparsegen_lin(z, lam=0.9), [1, 0, 0], **EXACT)
    for lam in (-1e6, 0.0, 0.9, 1 - 2.0**-50):
        np.testing.assert_array_equal(sg.sparsegen_lin([1.0, 1.0], lam=lam), [0.5, 0.5])


def test_e1_support_is_full_at_a_finite_lam():
    z = np.array([0.5, 0.3, 0.2])
    edge = 1 - (z - z.min()).sum()
    assert sizes(lambda lam: sg.sparsegen_lin(z, lam=lam), [edge - 1e-9, edge + 1e-9]) == [3, 2]


@pytest.mark.parametrize(("z", "reached"), [((1, 0.5, 0.5), {1, 3}), ((2, 1, 1, 0), {1, 3, 4})])
def test_e2_only_sizes_that_split_no_tie_can_be_reached(z, reached):
    lams = [*np.linspace(-40, 0.999, 4000), 1 - 1e-12]
    assert set(sizes(lambda lam: sg.sparsegen_lin(z, lam=lam), lams)) == reached


def steepest(n, q, height=1e-4, share=1e-4):
    """A point with a sum of nearly 0 and nearly one-hot probabilities, all positive, and its steepest direction."""
    p = np.full(n, share / n)
    p[0] = 1 - (n - 1) * share / n
    radius = (height + n * q) / (1 + n * q)
    z = radius * p + (height - radius) / n
    off = p - 1 / n
    matrix = (np.eye(n) - 1 / n) / radius - np.outer(off, np.ones(n)) / (height + n * q)
    return z, np.linalg.svd(matrix)[2][0]


@pytest.mark.parametrize(("n", "q"), [(2, 1.0), (5, 0.1), (10, 0.01), (10, 0.1), (100, 0.01), (100, 1.0)])
def test_e3_lipschitz_constant_of_the_hourglass_exceeds_the_papers(n, q):
    true, paper = math.sqrt((1 + n * q) ** 2 + n - 1) / (n * q), 1 + 1 / (n * q)
    z, direction = steepest(n, q)
    h = 1e-8
    moved = sg.sparsehourglass(z + h * direction, q=q) - sg.sparsehourglass(z - h * direction, q=q)
    quotient = np.linalg.norm(moved) / (2 * h)
    assert paper < quotient < true * (1 + 1e-6)
    assert quotient > true * (1 - 5e-3)


@pytest.mark.parametrize(("n", "q"), [(2, 1.0), (5, 0.1), (10, 0.01), (10, 0.1)])
def test_e3_no_pair_of_points_beats_the_true_constant(n, q):
    rng = np.random.default_rng(n)
    true = math.sqrt((1 + n * q) ** 2 + n - 1) / (n * q)
    a = rng.standard_normal((5000, n)) * rng.choice([0.01, 0.1, 1.0], (5000, 1))
    a -= a.mean(-1, keepdims=True) * rng.choice([0.0, 0.99], (5000, 1))
    b = a + rng.standard_normal((5000, n)) * rng.choice([1e-4, 1e-2, 1.0], (5000, 1))
    moved = np.linalg.norm(sg.sparsehourglass(a, q=q) - sg.sparsehourglass(b, q=q), axis=-1)
    assert (moved <= true * np.linalg.norm(a - b, axis=-1) * (1 + 1e-9)).all()


def test_e6_sum_normalization_keeps_order_on_its_domain_and_refuses_the_rest():
    np.testing.assert_allclose(sg.sum_normalization([1.0, 2.0]), [1 / 3, 2 / 3], **EXACT)
    for z in ([-1.0, -2.0], [-1.0, 3.0]):
        with pytest.raises(ValueError, match=r"must be at least 0, got -1\.0"):
            sg.sum_normalization(z)


def test_e6_spherical_softmax_does_not_see_the_sign_of_the_factor():
    z = np.array([1.0, -2.0, 0.5])
    np.testing.assert_array_equal(sg.spherical_softmax(z), sg.spherical_softmax(-4 * z))


def test_e6_sparsegen_sq_is_idempotent_for_two_classes_only():
    for a in np.linspace(0, 1, 33):
        np.testing.assert_allclose(sg.sparsegen_sq([a, 1 - a]), [a, 1 - a], atol=4e-16)
    np.testing.assert_allclose(sg.sparsegen_sq([0.5, 0.3, 0.2]), [0.457, 0.297, 0.247], atol=5e-4)


def test_e6_sparsecone_keeps_order_on_its_domain_and_refuses_the_apex():
    rng = np.random.default_rng(0)
    z = rng.standard_normal((2000, 4))
    z = z[z.sum(-1) > -4 * 0.5 + 1e-6]
    order = np.argsort(z, axis=-1)
    assert (np.diff(np.take_along_axis(sg.sparsecone(z, q=0.5), order, -1)) >= 0).all()
    for outside in ([-2.0, -1.0], [-1.5, -0.5]):
        with pytest.raises(ValueError, match="sum above -K q"):
            sg.sparsecone(outside, q=1.0)
    np.testing.assert_array_equal(sg.sparsecone([2.0, -1.0], q=0), [1, 0])


@pytest.mark.parametrize(("q", "gap"), [(1.0, 0.22), (1e3, 0.002), (1e6, 2e-6)])
def test_e6_hourglass_is_not_translation_invariant_at_any_finite_q(q, gap):
    z = np.array([0.0, 0.4])
    moved = abs(sg.sparsehourglass(z, q=q) - sg.sparsehourglass(z + 10, q=q)).max()
    assert 0.8 * gap < moved < 1.2 * gap


def test_e6_sum_normalization_plus_has_no_limit_at_a_sum_of_0():
    e = 1e-9
    for z, want in [
        ((1 + e, 1, -2), (1, 0, 0)),
        ((1, 1, -2 + e), (0.5, 0.5, 0)),
        ((1, 1 + e, -2), (0, 1, 0)),
        ((e, 2 * e), (1 / 3, 2 / 3)),
        ((-e, -2 * e), (2 / 3, 1 / 3)),
    ]:
        np.testing.assert_allclose(sg.sum_normalization_plus(z), want, atol=1e-6)


def test_e6_scale_invariance_is_for_positive_factors():
    np.testing.assert_allclose(sg.sum_normalization_plus([1.0, 2.0]), [1 / 3, 2 / 3], **EXACT)
    np.testing.assert_allclose(sg.sum_normalization_plus([-1.0, -2.0]), [2 / 3, 1 / 3], **EXACT)


def test_e10_q_sparsifies_rows_with_a_large_sum_and_densifies_the_others():
    qs = [0.0, 0.1, 0.19, 0.21, 1.0, 2.3, 2.4, 10.0, math.inf]
    assert sizes(lambda q: sg.sparsehourglass([1.8, 0.6, 0.2], q=q), qs) == [3, 3, 3, 2, 2, 2, 1, 1, 1]
    assert sizes(lambda q: sg.sparsehourglass([0.36, 0.12, 0.04], q=q), qs) == [3] * 9
    small = np.array([0.5, 0.1, -0.4])
    grown = sizes(lambda q: sg.sparsehourglass(small, q=q), [0.0, 0.1, 1.0, 100.0])
    assert grown == sorted(grown)
    assert grown[0] < grown[-1]


def test_e10_q_does_nothing_at_a_sum_of_1():
    z = [0.75, 0.5, -0.25]
    for q in (0.0, 0.1, 10.0, math.inf):
        np.testing.assert_allclose(sg.sparsehourglass(z, q=q), sg.sparsemax(z), atol=1e-15)


def test_e12_special_lam_is_lost_in_floats_and_softmax_is_not():
    z = np.array([-40.0, -41.0])
    lam = 1 - np.exp(z).sum()
    assert lam == 1.0
    with pytest.raises(ValueError, match=r"lam must be a number below 1, got 1\.0"):
        sg.sparsegen_exp(z, lam=lam)
    want = 1 / (1 + np.exp([-1.0, 1.0]))
    np.testing.assert_allclose(sg.softmax(z), want, atol=1e-15)
    np.testing.assert_allclose(sg.project(np.exp(z), np.exp(z).sum()), want, atol=1e-15)
    np.testing.assert_allclose(sg.softmax([801.0, 800.0]), want, atol=1e-15)
    near = np.array([-1.0, 0.5, 0.25])
    np.testing.assert_allclose(sg.sparsegen_exp(near, lam=1 - np.exp(near).sum()), sg.softmax(near), atol=1e-15)
    np.testing.assert_allclose(sg.sparsegen_sq(near, lam=1 - near @ near), sg.spherical_softmax(near), atol=1e-15)
