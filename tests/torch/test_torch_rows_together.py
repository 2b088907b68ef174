"""Gradients of rows worked together: closed forms in long double, at every length that has a way of its own."""

import numpy as np
import pytest
import torch

import sparsegen.torch as sgt
from sparsegen._table.maps import MAPS

MEANS = {"sparsecone": {"q": 0.5}, "sparsehourglass": {"q": 0.5}, "sum_normalization_plus": {}}
SUMS = {"sum_normalization": 1, "spherical_softmax": 2}
SIZES = [1, 2, 7, 10, 16, 33, 50, 64, 100, 128, 161, 257, 513, 1030, 2500]
EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}
WIDE = np.longdouble


def grads(name, z, v, mask=None, **controls):
    """Probabilities and gradients of scores and, by another call, of scores and controls."""
    leaf = z.clone().requires_grad_()
    p = getattr(sgt, name)(leaf, mask=mask, **controls)
    (alone,) = torch.autograd.grad(p, leaf, v)
    tensors = {key: torch.tensor(value, dtype=torch.float64, requires_grad=True) for key, value in controls.items()}
    leaf = z.clone().requires_grad_()
    q = getattr(sgt, name)(leaf, mask=mask, **tensors)
    both = torch.autograd.grad(q, [leaf, *tensors.values()], v)
    return p.detach(), alone, both


def centred(p, v):
    """s o (v - mean_S v), in long double; v outside the support is not read."""
    on = p > 0
    v = np.where(on, v, 0).astype(WIDE)
    return np.where(on, v - v.sum(-1, keepdims=True) / np.maximum(on.sum(-1, keepdims=True), 1), 0)


def of_mean(name, z, p, v, q, hidden):
    """grad_z and grad_q of project(z, r), r = (h + q) / (1/n + q) with h the mean or its size."""
    n = (~hidden).sum(-1, keepdims=True).astype(WIDE)
    mean = np.where(hidden, 0, z).astype(WIDE).sum(-1, keepdims=True) / n
    turn, height = (1, mean) if name == "sparsecone" else (np.sign(mean), abs(mean))
    width = 1 / n + WIDE(q)
    r, w = (height + q) / width, centred(p, v)
    along = (w * p).sum(-1, keepdims=True)
    grad = np.where(hidden, 0, w / r - along / r * turn / n / width)
    return grad, (-along / r * (1 / n - height) / width**2).sum(), 1 / r


def of_sum(power, z, p, v, lam, hidden):
    """grad_z and grad_lam of project(z^power, (1 - lam) sum z^power)."""
    z = np.where(hidden, 0, z).astype(WIDE)
    total, share = (z**power).sum(-1, keepdims=True), 1 - WIDE(lam)
    r, w = share * total, centred(p, v)
    along = (w * p).sum(-1, keepdims=True)
    steep = power * z ** (power - 1)
    # Where all of the sum is the radius the threshold is 0: entries that are 0 move too.
    points = (np.where(hidden, 0, v) - (v * p).sum(-1, keepdims=True)) / r if lam == 0 else w / r - along / r * share
    return np.where(hidden, 0, points * steep), (along / share).sum(), abs(steep).max(-1, keepdims=True) / r


def inputs(k, dtype, positive, hide):
    rng = np.random.default_rng(k)
    z, v = rng.standard_normal((37, k)) + 0.3, rng.standard_normal((37, k))
    z = abs(z) + 0.05 if positive else z
    z[:, 2::5] *= 0 if positive else 1
    mask = np.ones(z.shape, bool)
    if hide:
        mask[::3] = rng.random(mask[::3].shape) < 0.7
        mask[:, 0] = True
    return torch.tensor(z, dtype=dtype), torch.tensor(v, dtype=dtype), mask


def check(got, want, size, tolerance):
    _, alone, (both, *control) = got
    grad, to_control, unit = want
    allowed = tolerance * np.maximum(abs(grad), unit * size)
    for g in (alone, both):
        assert (abs(g.double().numpy() - grad) <= allowed).all()
    for g in control:
        assert abs(float(g) - to_control) <= tolerance * size * 37 * max(1.0, float(abs(to_control)))


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("name", MEANS)
def test_radii_of_the_mean_have_the_gradients_of_the_closed_form(name, hide, dtype, engine):
    for k in SIZES:
        z, v, mask = inputs(k, dtype, name == "sparsecone", hide)
        got = grads(name, z, v, torch.tensor(mask) if hide else None, **MEANS[name])
        zs, ps, vs = (t.double().numpy() for t in (z, got[0], v))
        want = of_mean(name, zs, ps, vs, MEANS[name].get("q", 0.0), ~mask)
        check(got, want, abs(vs).max(), 24 * EPS[dtype])


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("lam", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("name", SUMS)
def test_shares_of_a_sum_have_the_gradients_of_the_closed_form(name, lam, hide, dtype, engine):
    for k in SIZES:
        z, v, mask = inputs(k, dtype, True, hide)
        got = grads(name, z, v, torch.tensor(mask) if hide else None, lam=lam)
        zs, ps, vs = (t.double().numpy() for t in (z, got[0], v))
        check(got, of_sum(SUMS[name], zs, ps, vs, lam, ~mask), abs(vs).max(), 24 * EPS[dtype])


@pytest.mark.parametrize(
    "name", [*MEANS, *SUMS, "sparsegen_sq", "sparsegen_log", "sparsegen_exp", "sparsegen_softmax", "softmax"]
)
def test_the_gradient_of_a_row_has_the_same_bits_among_any_others(name, engine):
    controls = {"lam": 0.1} if name in SUMS else MEANS.get(name, {})
    for k in (3, 10, 50, 128, 300, 1500):
        z, v, mask = inputs(k, torch.float32, True, True)
        z += 0.25 * (name == "sparsegen_log")
        z[5] = 1.0  # all the same: one map's radius of this row is its own
        z[6], mask[7] = 2.0**70, False
        mask[7, 0] = True
        _, together, _ = grads(name, z, v, torch.tensor(mask), **controls)
        for i in (0, 5, 6, 7, 8, 36):
            _, alone, _ = grads(name, z[i : i + 1], v[i : i + 1], torch.tensor(mask[i : i + 1]), **controls)
            assert torch.equal(alone[0], together[i])


@pytest.mark.parametrize("name", [*MEANS, *SUMS])
def test_ones_have_no_gradient_and_a_common_offset_hardly_one(name, engine):
    controls = {"lam": 0.1} if name in SUMS else MEANS[name]
    for k in SIZES[3::2]:
        z, v, _ = inputs(k, torch.float32, True, False)
        for g in grads(name, z, torch.ones_like(v), **controls)[1:2]:
            assert g.abs().max() <= (0 if name != "spherical_softmax" else 1e-6)
        _, small, _ = grads(name, z, v, **controls)
        lifted = (v.double() + 1024).float()
        _, offset, _ = grads(name, z, lifted, **controls)
        _, exact, _ = grads(name, z.double(), lifted.double(), **controls)
        assert (offset.double() - exact).abs().max() <= 1024 * 8 * EPS[torch.float32] * max(
            1.0, float(small.abs().max())
        )


@pytest.mark.parametrize("name", MEANS)
def test_a_support_that_comes_and_goes_has_the_gradient_of_the_closed_form(name, engine):
    for k in (1100, 2500, 9500):
        z, v, mask = inputs(k, torch.float32, True, False)
        z[:4, : k // 2], z[4:8, k // 2 :] = 0.01, 0.01
        z[8:12] *= torch.arange(k) % 320 < 96  # now and then
        got = grads(name, z, v, **MEANS[name])
        zs, ps, vs = (t.double().numpy() for t in (z, got[0], v))
        check(got, of_mean(name, zs, ps, vs, MEANS[name].get("q", 0.0), ~mask), abs(vs).max(), 24 * EPS[torch.float32])
        junk = torch.where(got[0] > 0, v, torch.nan)
        assert torch.equal(grads(name, z, junk, **MEANS[name])[1], got[1])


@pytest.mark.parametrize("name", [*MEANS, *SUMS, "hardmax", "sparsegen_sq"])
def test_results_that_bypass_the_caches_have_the_same_bits(name):
    controls = {"lam": 0.1} if name in SUMS else MEANS.get(name, {})
    z, v, _ = inputs(4096, torch.float32, True, False)
    few = grads(name, z, v, **controls)
    many = grads(name, z.repeat(25, 1), v.repeat(25, 1), **controls)
    for a, b in zip(few[:2], many[:2]):
        assert torch.equal(a.repeat(25, 1), b)


@pytest.mark.parametrize("junk", [np.nan, np.inf])
@pytest.mark.parametrize("name", [*MEANS, "sum_normalization", "spherical_softmax"])
def test_upstreams_outside_the_support_are_not_read(name, junk, engine):
    controls = {"lam": 0.5} if name in SUMS else MEANS[name]
    for k in SIZES[3:]:
        z, v, _ = inputs(k, torch.float32, name != "sparsehourglass", False)
        p, clean, _ = grads(name, z, v, **controls)
        _, dirty, _ = grads(name, z, torch.where(p > 0, v, junk), **controls)
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize("k", [3, 7, 20, 40, 100, 300, 2000])
@pytest.mark.parametrize("name", [name for name in MAPS if MAPS[name].controls])
def test_controls_of_rows_without_an_answer_have_none_and_others_have_theirs(name, k):
    control = MAPS[name].controls[0]
    z = torch.rand(5, k, generator=torch.Generator().manual_seed(k), dtype=torch.float64) + 0.1
    z[2, 1], z[3, 0] = torch.nan, torch.inf
    value = torch.full((5,), 1.3 if control == "alpha" else 0.5, dtype=torch.float64, requires_grad=True)
    p = getattr(sgt, name)(z.requires_grad_(), **{control: value})
    to_scores, to_control = torch.autograd.grad(p, (z, value), torch.ones_like(z).cumsum(-1))
    wrong = torch.tensor([False, False, True, True, False])
    assert torch.equal(to_control.isnan(), wrong)
    assert torch.equal(to_scores.isnan().all(-1), wrong)
    assert torch.equal(to_scores.isnan().any(-1), wrong)
