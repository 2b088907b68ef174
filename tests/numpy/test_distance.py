"""lam by what it does to maps that begin at softmax or at shares: distance, support, mean support."""

from __future__ import annotations

import numpy as np
import pytest

import sparsegen as sg
from sparsegen.numpy.dial import NAMES

torch = pytest.importorskip("torch")
sgt = pytest.importorskip("sparsegen.torch")

RNG = np.random.default_rng(5)
Z = RNG.standard_normal((60, 7)) * RNG.choice([0.1, 1.0, 4.0], (60, 1))
Z[:10] = np.round(Z[:10])  # ties
Z[:10, 0] += 1
Z[0] = 1.0
POSITIVE = abs(Z) + 0.125


def scores(mapping):
    return POSITIVE if mapping in ("sum_normalization", "sparsegen_log") else Z


def away(mapping, z, lam, **others):
    f = getattr(sg, mapping)
    return abs(f(z, lam=lam, **others) - f(z, lam=0.0, **others)).sum(-1) / 2


def bisected(mapping, z, distance, **others):
    """The largest lam by halving, from the map alone."""
    low, high = np.zeros(len(z)), np.ones(len(z))
    for _ in range(60):
        middle = (low + high) / 2
        near = away(mapping, z, np.minimum(middle, np.nextafter(1, 0)), **others) <= distance
        low, high = np.where(near, middle, low), np.where(near, high, middle)
    return low


@pytest.mark.parametrize("mapping", NAMES)
@pytest.mark.parametrize("distance", [0.0, 1e-6, 0.01, 0.1, 0.4, 0.9])
def test_the_distance_is_reached_and_not_passed(mapping, distance):
    z = scores(mapping)
    lam = sg.lam_for_distance(z, distance, mapping=mapping)
    assert (lam >= np.minimum(distance, 1 - 1e-15) - 1e-12).all()  # lam is a bound of the distance
    assert (away(mapping, z, lam) <= distance + 1e-12).all()
    moves = (away(mapping, z, np.nextafter(1, 0)) > distance + 1e-9) & (distance > 0)
    np.testing.assert_allclose(away(mapping, z, lam)[moves], distance, atol=1e-12)
    if distance >= 0.01:
        np.testing.assert_allclose(lam, bisected(mapping, z, distance), atol=1e-9)


def test_one_distance_per_row_a_temperature_an_axis_and_a_mask():
    mask = RNG.random(Z.shape) < 0.7
    mask[:, 0] = True
    wished = RNG.random(60) / 2
    lam = sg.lam_for_distance(Z.T, wished, axis=0, mask=mask.T, temperature=0.5)
    f = {"mask": mask, "temperature": 0.5}
    far = abs(sg.sparsegen_softmax(Z, lam=lam, **f) - sg.softmax(Z, **f)).sum(-1) / 2
    assert (far <= wished + 1e-12).all()
    np.testing.assert_allclose(far[lam < 1 - 1e-12], wished[lam < 1 - 1e-12], atol=1e-12)
    found = sgt.lam_for_distance(
        torch.tensor(Z.T), torch.tensor(wished), dim=0, mask=torch.tensor(mask.T), temperature=0.5
    )
    np.testing.assert_array_equal(found, lam)


def test_rows_that_cannot_move_have_the_largest_number_below_1():
    assert sg.lam_for_distance([1.0, 1.0, 1.0], 0.0) == np.nextafter(1, 0)
    assert sg.lam_for_distance([3.0], 0.0) == np.nextafter(1, 0)
    assert sg.lam_for_distance([1.0, 0.0], 0.0) == pytest.approx(0, abs=1e-15)
    assert sg.lam_for_distance([1.0, 0.0], 1.0) == np.nextafter(1, 0)


@pytest.mark.parametrize("mapping", NAMES)
def test_the_support_is_had_for_every_map_with_lam(mapping):
    z = scores(mapping)[10:]
    for k in (1, 3, 7):
        lam = sg.lam_for_support(z, k, mapping=mapping)
        assert ((getattr(sg, mapping)(z, lam=lam) > 0).sum(-1) == k).all()
    lam = sg.lam_for_mean_support(z, 3, mapping=mapping)
    assert (getattr(sg, mapping)(z, lam=lam) > 0).sum() == 3 * len(z)
    found = sgt.lam_for_mean_support(torch.tensor(z), 3, mapping=mapping)
    assert found == lam


def test_the_temperature_moves_the_support():
    lam = sg.lam_for_support(Z[10:], 4, mapping="sparsegen_softmax", temperature=0.5)
    assert ((sg.sparsegen_softmax(Z[10:], lam=lam, temperature=0.5) > 0).sum(-1) == 4).all()
    found = sgt.lam_for_support(torch.tensor(Z[10:]), 4, mapping="sparsegen_softmax", temperature=0.5)
    np.testing.assert_array_equal(found, lam)


@pytest.mark.parametrize(("call", "text"), [
    (lambda: sg.lam_for_distance(Z, -0.1), r"distance must be at least 0, got -0\.1"),
    (lambda: sg.lam_for_distance(Z, np.nan), "distance must be at least 0, got nan"),
    (lambda: sg.lam_for_distance(Z, 0.1, mapping="entmax"), "mapping must be one of 'sparsegen_lin'"),
    (lambda: sg.lam_for_support(Z, 1, temperature=2.0), "temperature must be left out for mapping 'sparsegen_lin'"),
    (lambda: sg.lam_for_support(-POSITIVE, 1, mapping="sum_normalization"), "must be at least 0"),
    (lambda: sg.lam_for_support(-POSITIVE, 1, mapping="sparsegen_log"), "must be above 0|must be positive"),
])  # fmt: skip
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call()
