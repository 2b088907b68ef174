"""The loss of entmax, in NumPy and torch: against long double, its inequality, and the losses at its ends."""

from __future__ import annotations

import numpy as np
import pytest

import oracle
import sparsegen as sg
from test_torch_cases import FORWARD_MODE

torch = pytest.importorskip("torch")
sgt = pytest.importorskip("sparsegen.torch")

RNG = np.random.default_rng(3)
Z = RNG.standard_normal((8, 5)) * 2
Y = RNG.dirichlet(np.full(5, 0.5), 8)
Y[0] = [0, 1, 0, 0, 0]
ALPHAS = (1.0, 1 + 1e-9, 1.001, 1.25, 1.5, 1.9, 2.0, 3.0)


def negentropy(p, alpha):
    """Omega of math.md, section 9, in long double."""
    p, alpha = np.asarray(p, np.longdouble), np.longdouble(alpha)
    log = np.log(np.where(p > 0, p, 1))
    each = log if alpha == 1 else np.expm1((alpha - 1) * log) / (alpha * (alpha - 1))
    return (p * each).sum(-1)


def literal(z, eta, alpha):
    p = np.asarray([float(v) for v in oracle.entmax_row(list(z), alpha)[0]], np.longdouble)
    return float(((p - eta) * (z - z.max())).sum() + negentropy(eta, alpha) - negentropy(p, alpha))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_value_and_gradients_are_those_of_the_definition(alpha):
    value, grad = sg.entmax_loss(Z, Y, alpha=alpha, reduction="none", return_grad=True)
    np.testing.assert_allclose(value, [literal(z, y, alpha) for z, y in zip(Z, Y)], rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(grad.scores, sg.entmax(Z, alpha=alpha) - Y, atol=1e-15)
    h = 1e-5
    if alpha - h < 1:  # one-sided, of second order
        ends = [np.sum([literal(z, y, alpha + i * h) for z, y in zip(Z, Y)]) for i in range(3)]
        assert grad.alpha == pytest.approx((4 * ends[1] - 3 * ends[0] - ends[2]) / (2 * h), rel=1e-6)
    else:
        ends = [np.sum([literal(z, y, alpha + s * h) for z, y in zip(Z, Y)]) for s in (1, -1)]
        assert grad.alpha == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-7)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_it_is_zero_where_the_map_returns_the_target_and_nowhere_negative(alpha):
    p = sg.entmax(Z, alpha=alpha)
    assert (sg.entmax_loss(Z, p, alpha=alpha, reduction="none") < 1e-13).all()
    assert (sg.entmax_loss(Z, Y, alpha=alpha, reduction="none") > 1e-3).all()
    # Fenchel and Young: the conjugate at z is at least q.z - Omega(q) for every distribution q.
    conjugate = sg.entmax_loss(Z, Y, alpha=alpha, reduction="none") - negentropy(Y, alpha) + (Y * Z).sum(-1)
    for q in RNG.dirichlet(np.ones(5), 200):
        assert (conjugate >= (q * Z).sum(-1) - negentropy(q, alpha) - 1e-12).all()


def test_its_ends_are_the_losses_of_softmax_and_sparsemax():
    for reduction in ("mean", "none"):
        np.testing.assert_allclose(
            sg.entmax_loss(Z, Y, alpha=1.0, reduction=reduction), sg.softmax_log_loss(Z, Y, reduction=reduction),
            rtol=1e-13,
        )  # fmt: skip
        np.testing.assert_allclose(
            sg.entmax_loss(Z, Y, alpha=2.0, reduction=reduction), sg.sparsemax_huber_loss(Z, Y, reduction=reduction),
            rtol=1e-13,
        )  # fmt: skip


@pytest.mark.parametrize("target", ["indices", "multi-hot", "distribution"])
def test_torch_gives_what_numpy_does_with_masks_weights_and_an_alpha_per_row(target):
    y = {"indices": Y.argmax(-1), "multi-hot": (Y.max(-1, keepdims=True) <= Y).astype(int), "distribution": Y}[target]
    mask = (Y > 0.05) | (RNG.random(Y.shape) < 0.6)
    y = np.where(mask, Y, 0) / np.where(mask, Y, 0).sum(-1, keepdims=True) if target == "distribution" else y
    weight, alpha = RNG.random(8), 1 + RNG.random(8)
    value, grad = sg.entmax_loss(Z, y, alpha=alpha, mask=mask, weight=weight, return_grad=True)
    z, a = torch.tensor(Z, requires_grad=True), torch.tensor(alpha, requires_grad=True)
    found = sgt.entmax_loss(z, torch.tensor(y), alpha=a, mask=torch.tensor(mask), weight=torch.tensor(weight))
    found.backward()
    assert found.item() == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(z.grad, grad.scores, atol=1e-14)
    np.testing.assert_allclose(a.grad, grad.alpha, rtol=1e-9, atol=1e-13)
    assert (grad.scores[~mask] == 0).all()


@FORWARD_MODE
def test_gradcheck_and_gradgradcheck():
    z = torch.tensor(Z[:3], requires_grad=True)
    alpha = torch.tensor([1.25, 1.5, 1.9], dtype=torch.float64, requires_grad=True)

    def f(z, alpha):
        return sgt.entmax_loss(z, torch.tensor(Y[:3]), alpha=alpha, reduction="none")

    assert torch.autograd.gradcheck(f, (z, alpha), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, (z, alpha))
    each = torch.func.vmap(torch.func.grad(lambda z, y: sgt.entmax_loss(z, y)))(torch.tensor(Z), torch.tensor(Y))
    np.testing.assert_allclose(each, sg.entmax15(Z) - Y, atol=1e-14)


def test_the_module_keeps_its_alpha():
    module = sgt.EntmaxLoss(alpha=1.25, reduction="sum")
    want = sg.entmax_loss(Z, Y, alpha=1.25, reduction="sum")
    assert module(torch.tensor(Z), torch.tensor(Y)).item() == pytest.approx(want)
    assert repr(module) == "EntmaxLoss(alpha=1.25, reduction='sum')"
    with pytest.raises(ValueError, match=r"alpha must be a finite number at least 1, got 0\.5"):
        sgt.EntmaxLoss(alpha=0.5)
