"""DTensors split along the classes: values and gradients are those of one process."""

import re

import pytest
import torch

import sharded_cases as cases
import sparsegen.torch as sgt
from sparsegen._table.losses import LOSSES
from sparsegen._table.maps import MAPS

CONTROLS = {"lam": 0.25, "q": 0.5, "temperature": 0.75}
LOSS_NAMES = [f"{name}_loss" for name, loss in LOSSES.items() if not loss.map.power]


def scores(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def controls_of(names):
    return {name: torch.tensor(CONTROLS[name], dtype=torch.float64) for name in names}


def alone(f, z, v, controls, **options):
    """Value, gradients and info of one process."""
    x, own = z.clone().requires_grad_(), cases.with_grad(controls)
    p, info = f(x, return_info=True, **own, **options)
    p.backward(v)
    return p.detach(), x.grad, {k: c.grad for k, c in own.items()}, tuple(info)


def check(found, want):
    for p, grad, grads, info in found:
        for a, b in zip((p, grad, *grads.values(), *info), (want[0], want[1], *want[2].values(), *want[3])):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        assert grads.keys() == want[2].keys()


@pytest.mark.parametrize("name", [name for name, m in MAPS.items() if not m.power])
def test_a_map_of_a_dtensor_is_that_of_one_process(ranks, name):
    z, v = scores(5, 21).abs() + 0.1, scores(5, 21, seed=1)  # 21: parts of 11 and 10
    controls = controls_of(MAPS[name].controls)
    found = ranks.run(cases.dtensor_map_case, name=name, z=z, v=v, controls=controls)
    check(found, alone(getattr(sgt, name), z, v, controls))


def test_any_axis_and_a_mask(ranks):
    z, v, mask = scores(3, 8, 2), scores(3, 8, 2, seed=1), scores(8, 1, seed=2) > -0.5
    want = alone(sgt.sparsemax, z, v, {}, dim=1, mask=mask)
    check(ranks.run(cases.dtensor_map_case, name="sparsemax", z=z, v=v, dim=1, mask=mask), want)


def test_rows_may_be_split_by_another_dimension_of_the_mesh(ranks):
    z, v, controls = scores(4, 9), scores(4, 9, seed=1), controls_of(["lam"])
    want = alone(sgt.sparsegen_lin, z, v, controls)
    check(ranks.run(cases.dtensor_map_case, name="sparsegen_lin", z=z, v=v, controls=controls, rows_split=True), want)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_a_loss_of_a_dtensor_is_that_of_one_process(ranks, name, dense):
    z, labels = scores(6, 9), torch.tensor([0, 8, 3, 4, 4, 1])
    target = torch.nn.functional.one_hot(labels, 9).double() if dense else labels
    control = LOSSES[name.removesuffix("_loss")].control
    given = controls_of([control] if control else [])
    x, own = z.clone().requires_grad_(), cases.with_grad(given)
    loss = getattr(sgt, name)(x, target, **own)
    loss.backward()
    for value, grad, grads in ranks.run(
        cases.dtensor_loss_case, name=name, z=z, target=target, control=given, dense=dense
    ):
        torch.testing.assert_close(value, loss.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(grad, x.grad, rtol=1e-12, atol=1e-12)
        for key in own:
            torch.testing.assert_close(grads[key], own[key].grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("replicated", "scores must be a DTensor sharded along dim 1, the classes, by one dimension of its mesh, got"),
        ("by rows", "scores must be a DTensor sharded along dim 1, the classes, by one dimension of its mesh, got"),
        ("partial", "scores must be a DTensor sharded along dim 1, the classes, by one dimension of its mesh, got"),
        ("mask", r"mask must be a DTensor, as the scores are, got a Tensor of shape \(4, 3\)"),
        ("group", "group must be None with a DTensor, which has its own, got"),
        ("loss by rows", "scores must be a DTensor whose rows are whole on every rank, got"),
    ],
)
def test_what_is_split_otherwise_is_refused_on_every_rank(ranks, kind, text):
    for error in ranks.errors(cases.dtensor_error_case, kind=kind):
        assert isinstance(error, (TypeError, ValueError))
        assert re.match(f"sparsegen: {text}", str(error)), str(error)
