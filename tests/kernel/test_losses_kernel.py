"""The kernel of the hinge losses, called directly, and the solver's view of a loss: smoothing and dual bounds."""

from __future__ import annotations

import functools
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import buffers
import loss_oracle
import sparsegen as sg
from loss_oracle import HINGES, LOSSES
from sparsegen import _core
from sparsegen._table.targets import read
from sparsegen.numpy.losses import evaluate

INF, NAN = math.inf, math.nan
# Entries and labels of a row. Few labels are paired up, many are searched; the crossover lies somewhere in the middle.
MIDDLE = [(40, p) for p in (8, 11, 12, 13, 15, 16, 17, 20, 23, 24, 25, 28, 32)]
SIZES = [(1, 1), (2, 1), (5, 5), (7, 3), (257, 4), *MIDDLE, (33, 32), (300, 120)]


def hinge(bits, labels, radius, storage="float64", mask=None, smoothing=0.0, threads=1, want_grad=True):
    """F of stored rows (N, K), its slope in the radius and its gradient; outputs start as NaN between guards."""
    n, k = bits.shape
    bits = np.ascontiguousarray(bits)
    at = np.argwhere(labels).astype(np.int64)
    indptr = np.searchsorted(at[:, 0], np.arange(n + 1)).astype(np.int64)
    indices, radius = np.ascontiguousarray(at[:, 1]), np.ascontiguousarray(np.broadcast_to(radius, n), np.float64)
    value, slope = buffers.Output((n,), "float64"), buffers.Output((n,), "float64")
    grad = buffers.Output((n, k), "float64" if storage == "float64" else "float32")
    mask = None if mask is None else np.ascontiguousarray(mask)
    _core.hinge(
        bits.ctypes.data, buffers.STORAGE[storage], n, k, 0 if mask is None else mask.ctypes.data, 0,
        indptr.ctypes.data, indices.ctypes.data, radius.ctypes.data, True, smoothing, value.address, slope.address,
        grad.address if want_grad else 0, threads,
    )  # fmt: skip
    return value.take(), slope.take(), grad.take()


def sample(n, k, p, seed=0, dyadic=True):
    """Rows with p labels each; on a grid if `dyadic`, so that ties and kinks abound and every sum is exact."""
    rng = np.random.default_rng(seed + 1000 * k + p)
    z = rng.integers(-16, 17, (n, k)) / 8 if dyadic else rng.standard_normal((n, k))
    labels = np.argsort(rng.random((n, k)), axis=1) < p
    return z, labels


def assert_equal_rows(got, z, labels, radius, smoothing=0.0, **near):
    radius = np.broadcast_to(radius, len(z))
    for i in range(len(z)):
        want = loss_oracle.broadcast(z[i], labels[i], radius[i], smoothing)
        for found, expected in zip(got, want):
            np.testing.assert_allclose(found[i], expected, **near)


@pytest.mark.parametrize("storage", buffers.STORAGE)
def test_ties_and_kinks_give_the_double_sums_to_the_last_bit(storage, engine):
    for k, p in SIZES:
        z, labels = sample(5, k, p)
        for margin in (0.125, 1.0, 2.5):
            got = hinge(buffers.stored(z, storage), labels, p * margin, storage)
            for i in range(len(z)):
                value, slope, grad = loss_oracle.broadcast(z[i], labels[i], p * margin)
                np.testing.assert_array_equal(got[0][i], value)
                np.testing.assert_allclose(got[1][i], slope, rtol=1e-15)
                np.testing.assert_array_equal(got[2][i], grad)


def test_the_samples_have_ties_and_kinks():
    z, labels = sample(5, 40, 24)
    d = z[labels].reshape(5, -1, 1) - z[~labels].reshape(5, 1, -1)
    assert (d == 1.0).any()
    assert (d == 0).any()
    header = Path(__file__).parents[2] / "src" / "sparsegen" / "_kernel" / "hinge.hpp"
    (crossover,) = re.findall(r"kPairsUpTo = (\d+)", header.read_text())
    assert {p - int(crossover) for _, p in MIDDLE} >= {-1, 0, 1}


@pytest.mark.parametrize("offset", [0.0, 1e8, -1e8])
def test_random_rows_give_the_double_sums_at_any_offset(offset, engine):
    for k, p in SIZES:
        z, labels = sample(4, k, p, dyadic=False)
        radius = np.array([0.01, 0.7, 5.0, 100.0])
        assert_equal_rows(hinge(z + offset, labels, radius), z + offset, labels, radius, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("p", [3, 60])
def test_labels_far_apart_keep_the_digits_of_the_sum(p, engine):
    z, labels = sample(4, 80, p, dyadic=False)
    z *= 1e6
    got = hinge(z, labels, 1.0)
    for i in range(len(z)):
        d = z[i][labels[i]][:, None] - z[i][~labels[i]]
        inside = z[i][labels[i]][:, None] - z[i][labels[i]]
        want = math.fsum([*np.maximum(1 / p - d, 0).ravel(), *abs(inside).ravel()])
        assert got[0][i] == pytest.approx(want, rel=1e-13)


@pytest.mark.parametrize("storage", ["float16", "float32", "bfloat16"])
def test_narrow_rows_are_scored_as_their_wide_copies(storage, engine):
    for k, p in SIZES:
        bits = buffers.stored(sample(4, k, p, dyadic=False)[0], storage)
        labels = sample(4, k, p)[1]
        wide = hinge(buffers.floats(bits, storage), labels, 0.7)
        for got, want in zip(hinge(bits, labels, 0.7, storage), wide):
            np.testing.assert_array_equal(got, want.astype(got.dtype))


@pytest.mark.parametrize("p", [3, 60])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_any_number_of_threads_gives_the_same_bits(p, smoothing, engine):
    z, labels = sample(600, 70, p, dyadic=False)
    z[5, 3] = NAN
    one = hinge(z, labels, 0.7, smoothing=smoothing)
    for threads in (2, 3):
        for a, b in zip(one, hinge(z, labels, 0.7, smoothing=smoothing, threads=threads)):
            np.testing.assert_array_equal(a, b)
    for i in (0, 5, 599):
        for a, b in zip(one, hinge(z[i : i + 1], labels[i : i + 1], 0.7, smoothing=smoothing)):
            np.testing.assert_array_equal(a[i], b[0])


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_has_the_same_bits_with_one_thread_and_two(name, threads):
    z, labels = sample(600, 70, 30, dyadic=False)
    found = []
    for count in (1, 2):
        threads(count)
        value, grad = getattr(sg, f"{name}_loss")(z, labels, reduction="none", return_grad=True)
        found.append((value, grad.scores))
    for a, b in zip(*found):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
def test_engines_agree(smoothing):
    for k, p in SIZES:
        z, labels = sample(5, k, p, dyadic=False)
        found = []
        for name in _core.engines():
            with buffers.using_engine(name):
                found.append(hinge(z, labels, 1.0, smoothing=smoothing))
        for other in found[1:]:
            for a, b in zip(found[0], other):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("junk", [NAN, INF, -INF, 1e300])
def test_what_a_mask_hides_takes_no_part_and_is_not_read(junk, smoothing, engine):
    for k, p in SIZES:
        z, labels = sample(4, k, p)
        mask = (np.random.default_rng(k).random(z.shape) < 0.6) | labels
        got = hinge(np.where(mask, z, junk), labels, p * 0.5, mask=mask, smoothing=smoothing)
        assert (got[2][~mask] == 0).all()
        for i in range(len(z)):
            want = loss_oracle.broadcast(z[i][mask[i]], labels[i][mask[i]], p * 0.5, smoothing)
            near = {"rtol": 1e-12, "atol": 1e-12}
            np.testing.assert_allclose(got[0][i], want[0], **near)
            np.testing.assert_allclose(got[1][i], want[1], **near)
            np.testing.assert_allclose(got[2][i][mask[i]], want[2], **near)
        by_value = hinge(np.where(mask, z, -INF), labels, p * 0.5, smoothing=smoothing)
        for a, b in zip(got, by_value):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("p", [2, 30])
def test_spoilt_rows_are_nan_and_leave_the_others_alone(p, engine):
    z, labels = sample(6, 40, p)
    clean, radius = hinge(z, labels, 1.0), np.ones(6)
    z[1, 7], z[2, 8], z[3, np.argmax(labels[3])], radius[4] = NAN, INF, -INF, INF
    got = hinge(z, labels, radius)
    for a, b in zip(got, clean):
        assert np.isnan(a[1:5]).all()
        np.testing.assert_array_equal(a[[0, 5]], b[[0, 5]])


def test_a_row_without_labels_has_no_loss_and_a_gradient_need_not_be_asked_for(engine):
    z, labels = sample(4, 9, 3)
    labels[2] = False
    value, slope, grad = hinge(z, labels, 1.0)
    assert (value[2], slope[2], abs(grad[2]).max()) == (0, 0, 0)
    alone = hinge(z, labels, 1.0, want_grad=False)
    np.testing.assert_array_equal(alone[0], value)
    assert np.isnan(alone[2]).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_scores_radius_and_smoothing_scale_together(smoothing, engine):
    for k, p in SIZES:
        z, labels = sample(4, k, p, dyadic=False)
        one = hinge(z, labels, 0.7, smoothing=smoothing)
        for c in (2.0**20, 2.0**-20):
            two = hinge(c * z, labels, c * 0.7, smoothing=c * smoothing)
            np.testing.assert_array_equal(two[0], c * one[0])
            np.testing.assert_array_equal(two[2], one[2])
        if smoothing == 0:  # Euler: F = z.dF/dz + r dF/dr
            euler = (z * one[2]).sum(1) + 0.7 * one[1]
            np.testing.assert_allclose(euler, one[0], rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("smoothing", [1e-3, 0.25, 10.0])
def test_smoothed_rows_give_the_smoothed_double_sums(smoothing, engine):
    for dyadic in (False, True):
        for k, p in SIZES:
            z, labels = sample(4, k, p, dyadic=dyadic)
            got = hinge(z, labels, 0.7, smoothing=smoothing)
            assert_equal_rows(got, z, labels, 0.7, smoothing, rtol=1e-10, atol=1e-10 / min(smoothing, 1))


def test_smoothing_keeps_its_digits_where_labels_stand_in_two_groups(engine):
    rng = np.random.default_rng(0)
    for p in (10, 60):
        for s in (1e-2, 1e-4, 1e-6):
            z = np.concatenate([[0.0], 1 + s * rng.standard_normal(p - 1), 0.5 + s * rng.standard_normal(p)])[None]
            labels = np.arange(2 * p)[None] < p
            value, slope, grad = hinge(z, labels, 0.5 * p, smoothing=s)
            want = loss_oracle.broadcast(z[0], labels[0], 0.5 * p, s)
            lost = 2.0**-48 * p / s  # of differences this small
            np.testing.assert_allclose(value[0], want[0], rtol=p * lost)
            np.testing.assert_allclose(slope[0], want[1], rtol=lost)
            np.testing.assert_allclose(grad[0], want[2], atol=p * lost)
            assert value[0] <= hinge(z, labels, 0.5 * p)[0][0] * (1 + p * lost)


def one_row(name, z, y, control, smoothing=0.0):
    found = evaluate(name, np.array([z], np.float64), read([y], (1, len(z))), control, smoothing)
    return found.value[0], found.grad[0], found.along[0], found.dual[0]


@pytest.mark.parametrize("name", HINGES)
def test_smoothed_losses_equal_the_smoothed_double_sums_in_fractions(name):
    @given(st.data(), st.sampled_from([0.125, 0.5, 1.0, 4.0]))
    @settings(max_examples=50)
    def check(data, smoothing):
        k = data.draw(st.integers(1, 5))
        z = np.array(data.draw(st.lists(st.integers(-8, 8), min_size=k, max_size=k))) / 8
        y = np.arange(k) < data.draw(st.integers(1, k))
        control = data.draw(
            st.sampled_from([0.25, 1.0, 3.0, INF] if name == "sparsehourglass_hinge" else [0.0, 0.5, -1])
        )
        value, grad, along, _ = one_row(name, z, y, control, smoothing)
        want = loss_oracle.row(name, z, loss_oracle.shares(y), control, smoothing=smoothing)
        assert value == pytest.approx(want.value, abs=1e-13)
        np.testing.assert_allclose(grad, want.grad, atol=1e-13)
        assert along == pytest.approx(want.along, abs=1e-13)

    check()


CONTROLS = {"lam": (0.0, 0.75, -3.0), "q": (0.25, 2.0, INF), "": (0.0,)}
CASES = [(name, control) for name in LOSSES for control in CONTROLS[LOSSES[name]]]


def several(name, control, seed=0, k=6, dyadic=False, offset=0.0):
    """Rows with one to k labels, and the loss of other scores with these labels."""
    rng = np.random.default_rng(seed)
    z, y = sample(300, k, 1, seed, dyadic)[0] + offset, rng.random((300, k)) < 0.4
    y[~y.any(1), 0] = True
    return z, functools.partial(evaluate, name, target=read(y, y.shape), control=control)


@pytest.mark.parametrize(("name", "control"), CASES)
def test_the_smoothed_gradient_is_the_difference_quotient(name, control):
    z, f = several(name, control)
    h = 1e-6
    for smoothing in (0.1, 1.0):
        grad = f(z=z, smoothing=smoothing).grad
        for k in range(z.shape[1]):
            step = h * (np.arange(z.shape[1]) == k)
            beside = (f(z=z + step, smoothing=smoothing).value - f(z=z - step, smoothing=smoothing).value) / (2 * h)
            scale = 1 / min(1, 1 - control) if LOSSES[name] == "lam" else 1
            np.testing.assert_allclose(grad[:, k], beside, atol=1e-4 * scale / smoothing)


@pytest.mark.parametrize("k", [6, 60])
@pytest.mark.parametrize(("name", "control"), CASES)
def test_smoothing_lies_below_and_not_far(name, control, k):
    z, f = several(name, control, k=k)
    exact = f(z=z).value
    for smoothing in (1e-6, 0.01, 1.0):
        gap = exact - f(z=z, smoothing=smoothing).value
        scale = 1 / min(1, 1 - control) if LOSSES[name] == "lam" else 1
        assert (gap >= -1e-10 * k * scale).all()
        assert (gap <= (k * k * smoothing / 2 + k * smoothing) * scale + 1e-10 * k * scale).all()


@pytest.mark.parametrize("k", [6, 60])
@pytest.mark.parametrize("smoothing", [0.0, 1e-3, 0.5])
@pytest.mark.parametrize(("name", "control"), CASES)
def test_the_dual_bound_is_a_plane_below_the_loss(name, control, smoothing, k):
    for dyadic in (False, True):
        z, f = several(name, control, k=k, dyadic=dyadic)
        at = f(z=z, smoothing=smoothing)
        slack = 1e-10 * k * (1 / min(1, 1 - control) if LOSSES[name] == "lam" else 1)
        rng = np.random.default_rng(9)
        for other in (z, z + 0.1 * rng.standard_normal(z.shape), 10 * rng.standard_normal(z.shape), 0 * z, -z):
            assert (f(z=np.ascontiguousarray(other)).value >= (at.grad * other).sum(1) + at.dual - slack).all()
        if smoothing == 0:
            np.testing.assert_allclose((at.grad * z).sum(1) + at.dual, at.value, atol=slack)


@pytest.mark.parametrize("k", [3, 5, 6, 7, 11, 13])
def test_scores_that_add_up_to_0_have_no_pull_on_the_sum(k):
    for seed in range(20):
        z = np.random.default_rng(seed).integers(-8, 9, k) / 8
        z[-1] -= z.sum()
        y = np.arange(k) < 1
        _, grad = sg.sparsehourglass_hinge_loss(z, y, q=0.3, return_grad=True)
        assert grad.scores.sum() == 0  # the pull would add to every entry, the pairs cancel


BIG = """
import resource, sys
import numpy as np, sparsegen as sg

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MB

z = np.random.default_rng(0).standard_normal((4, 200_000))
for labels in (50, 1000):
    y = np.zeros(z.shape, np.int8)
    y[:, :labels] = 1
    before = peak()
    for f in (sg.sparsegen_hinge_loss, sg.sparsehourglass_hinge_loss):
        f(z, y, return_grad=True)
    print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak in kilobytes, as Linux has it")
def test_memory_grows_with_the_entries_and_not_with_the_labels():
    run = subprocess.run([sys.executable, "-c", BIG], capture_output=True, text=True, timeout=120, check=True)
    few, many = map(float, run.stdout.split())
    scores = 4 * 200_000 * 8 / 2**20  # 6.1 MB; the pairs of one row are 76 MB with 50 labels and 1526 with 1000
    assert few < 10 * scores
    assert many < 10 * scores
