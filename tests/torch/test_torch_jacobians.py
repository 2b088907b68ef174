"""Derivatives of first and second order: closed forms, gradcheck, and torch's own ways to build a Jacobian."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import sparsegen.torch as sgt
from sparsegen._table.maps import MAPS
from test_torch_cases import (
    CONTROLLED,
    FORWARD_MODE,
    NAMES,
    PROJECTIONS,
    close,
    control_tensors,
    controls,
    scores,
    some_mask,
    torch_map,
)

pytestmark = FORWARD_MODE

SLOPES = {"lin": torch.ones_like, "exp": torch.exp, "sq": lambda z: 2 * z, "log": lambda z: 1 / z}
STEP = 1e-6


def _projector(p: torch.Tensor) -> torch.Tensor:
    """P_S of math.md: takes the mean over the support away, and everything outside it."""
    s = (p > 0).to(p.dtype)
    return torch.diag(s) - torch.outer(s, s) / s.sum()


def _of_mean(z, p, q, height, sign):
    k = len(z)
    total = height + k * q
    column = torch.eye(k, dtype=z.dtype) - sign * torch.outer(z, torch.ones_like(z)) / total
    return (1 + k * q) / total * _projector(p) @ column


def _share(m, z, p, keep, t):
    """Jacobian of the projection of x onto the share `keep` of its sum."""
    exp = torch.exp(z / t)
    x, slope = {"lin": (z, 1 + 0 * z), "sq": (z * z, 2 * z), "exp": (exp, exp / t)}[m.transform]
    column = torch.eye(len(z), dtype=z.dtype) - keep * p[:, None]
    return _projector(p) @ column @ torch.diag(slope) / (keep * x.sum())


def closed_jacobian(name: str, z: torch.Tensor, **given) -> torch.Tensor:
    """docs/math.md, section 1.3."""
    p, m = torch_map(name)(z, **given), MAPS[name]
    total = z.sum()
    if name == "hardmax":
        return torch.zeros(len(z), len(z), dtype=z.dtype)
    if name == "sparsecone":
        return _of_mean(z, p, given["q"], total, 1.0)
    if m.radius.of == "mean":
        return _of_mean(z, p, given.get("q", 0.0), total.abs(), total.sign())
    if m.power:
        slope = torch.where(p > 0, p ** (2 - given.get("alpha", 1.5)), 0.0)
        return torch.diag(slope) - torch.outer(slope, slope) / slope.sum()
    if m.radius.of == "sum":
        return _share(m, z, p, 1 - given.get("lam", 0.0), given.get("temperature", 1.0))
    return _projector(p) @ torch.diag(SLOPES[m.transform](z)) / (1 - given.get("lam", 0.0))


def closed_control_derivative(name: str, z: torch.Tensor, **given) -> torch.Tensor:
    """The output's derivative in its first control; docs/math.md, section 1.3 and 9."""
    p = torch_map(name)(z, **given)
    if name == "softmax":
        t = given["temperature"]
        return -p * (z - (p * z).sum()) / t**2
    if "alpha" in given:
        gap, on = given["alpha"] - 1, p > 0
        slope = torch.where(on, p ** (1 - gap), 0.0)
        share, h = slope / slope.sum(), -torch.special.xlogy(p, p)
        return (p - share) / gap**2 + (h - share * h.sum()) / gap
    s = (p > 0).to(z.dtype)
    away = s * (p - 1 / s.sum())
    if "lam" in given:
        return away / (1 - given["lam"])
    k, q = len(z), given["q"]
    height = z.sum() if name == "sparsecone" else z.sum().abs()
    return away * k * (height - 1) / ((1 + k * q) * (height + k * q))


def finite_differences(f, z: torch.Tensor) -> torch.Tensor:
    steps = STEP * torch.eye(z.numel(), dtype=z.dtype)
    return torch.stack([(f(z + step) - f(z - step)) / (2 * STEP) for step in steps], -1)


def _rows(name, count=4, k=6):
    return scores(name, count, k, seed=11).unbind(0)


@pytest.mark.parametrize("name", NAMES)
def test_the_closed_jacobian_is_what_every_way_of_torch_gives(name):
    def f(z):
        return torch_map(name)(z, **controls(name))

    for z in _rows(name):
        expected = closed_jacobian(name, z, **controls(name))
        for way in (torch.func.jacrev, torch.func.jacfwd):
            close(way(f)(z), expected, scale=64)
        for how in ({}, {"vectorize": True}, {"vectorize": True, "strategy": "forward-mode"}):
            close(torch.autograd.functional.jacobian(f, z, **how), expected, scale=64)
        torch.testing.assert_close(finite_differences(f, z), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", CONTROLLED)
def test_the_closed_derivative_in_the_control_is_what_every_way_of_torch_gives(name):
    (key, value), *_ = controls(name).items()
    at = torch.tensor(value, dtype=torch.float64)
    for z in _rows(name):
        expected = closed_control_derivative(name, z, **{key: value})
        for way in (torch.func.jacrev, torch.func.jacfwd, lambda f: lambda c: torch.autograd.functional.jacobian(f, c)):
            close(way(lambda c: torch_map(name)(z, **{key: c}))(at), expected, scale=64)  # noqa: B023
        beside = (torch_map(name)(z, **{key: at + STEP}) - torch_map(name)(z, **{key: at - STEP})) / (2 * STEP)
        torch.testing.assert_close(beside, expected, rtol=1e-6, atol=1e-8)


def test_the_closed_jacobian_of_the_hourglass_is_dense_in_columns():
    z = torch.tensor([2.0, 1.8, -1.0], dtype=torch.float64)
    column = closed_jacobian("sparsehourglass", z, q=0.5)[:, 2]
    torch.testing.assert_close(column, torch.tensor([-0.0135, 0.0135, 0.0]).double(), atol=5e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck_in_scores_and_control(name):
    keys = tuple(controls(name))

    def f(z, *given):
        return torch_map(name)(z, **dict(zip(keys, given)))

    inputs = (scores(name, 3, 5, seed=11), *control_tensors(name, (3,)).values())
    inputs = tuple(t.requires_grad_() for t in inputs)
    assert gradcheck(
        f, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True,
        check_undefined_grad=True,
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_gradgradcheck_in_scores_and_control(name):
    keys = tuple(controls(name))

    def f(z, *given):
        return torch_map(name)(z, **dict(zip(keys, given)))

    inputs = (scores(name, 2, 4, seed=11), *control_tensors(name, (2,)).values())
    inputs = tuple(t.requires_grad_() for t in inputs)
    assert gradgradcheck(f, inputs, check_batched_grad=True, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck_with_mask_dim_and_one_control_for_several_rows(name):
    keys, mask = tuple(controls(name)), some_mask(4, 3)

    def f(z, *given):
        return torch_map(name)(z, dim=1, mask=mask, **dict(zip(keys, given)))

    inputs = (scores(name, 2, 4, 3, seed=13), *control_tensors(name, (2, 1)).values())
    inputs = tuple(t.requires_grad_() for t in inputs)
    assert gradcheck(f, inputs, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(f, inputs)


def test_gradcheck_of_project_in_points_and_radius():
    points = scores("sparsemax", 3, 5, seed=11).requires_grad_()
    radius = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(sgt.project, (points, radius), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(sgt.project, (points, radius), check_fwd_over_rev=True)


def test_gradcheck_through_a_callers_own_transform():
    z = scores("sparsemax", 3, 5, seed=11).requires_grad_()
    lam = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def f(z, lam):
        return sgt.sparsegen(z, lam=lam, transform=lambda x: torch.tanh(x) + x)

    assert gradcheck(f, (z, lam), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(f, (z, lam))


def test_a_callers_own_transform_with_an_infinite_slope_at_hidden_entries_gets_finite_gradients():
    z = torch.tensor([0.5, 0.4, -torch.inf, 0.3], dtype=torch.float64, requires_grad=True)
    sgt.sparsegen(z, transform=torch.sqrt)[0].backward()
    assert z.grad.isfinite().all()
    assert z.grad[2] == 0


@pytest.mark.parametrize("name", PROJECTIONS)
def test_forward_mode_gives_masked_entries_no_change(name):
    z, mask = scores(name, 3, 6), some_mask(3, 6)
    _, change = torch.func.jvp(
        lambda z: torch_map(name)(z, mask=mask, **controls(name)), (z,), (torch.where(mask, 0.0, 1e6).double(),)
    )
    assert torch.equal(change, torch.zeros_like(change))
