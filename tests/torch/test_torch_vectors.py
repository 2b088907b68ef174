"""The exact vectors of docs/math.md, section 6, through torch: values and vector-Jacobian products."""

from __future__ import annotations

import pytest
import torch

import exact_vectors
from test_torch_cases import torch_map

NEAR = {"rtol": 1e-10, "atol": 1e-10}


def _of(cases: list[dict], wanted=lambda entry: True):
    entries = [entry for entry in cases if wanted(entry)]
    names = [entry.get("name", f"{entry['function']}-{i}") for i, entry in enumerate(entries)]
    return pytest.mark.parametrize("entry", entries, ids=names)


def _tensor(values) -> torch.Tensor:
    return torch.tensor([float(value) for value in values], dtype=torch.float64)


def _controls(entry) -> dict[str, torch.Tensor]:
    return {key: torch.tensor(float(value), dtype=torch.float64) for key, value in entry["params"].items()}


def _eager_vjp(f, z, controls, v):
    inputs = [t.clone().requires_grad_() for t in (z, *controls.values())]
    p = f(inputs[0], **dict(zip(controls, inputs[1:])))
    return p.detach(), torch.autograd.grad(p, inputs, v, materialize_grads=True)


def _functional_vjp(f, z, controls, v):
    p, pull = torch.func.vjp(lambda z, *c: f(z, **dict(zip(controls, c))), z, *controls.values())
    return p, pull(v)


@_of(exact_vectors.MAPS)
def test_values_are_the_exact_ones(entry):
    p = torch_map(entry["function"])(_tensor(entry["z"]), **_controls(entry))
    torch.testing.assert_close(p, _tensor(entry["p"]), **NEAR)
    assert p.nonzero().flatten().tolist() == entry["support"]


@_of(exact_vectors.MAPS)
def test_values_in_float32_are_the_exact_ones_rounded(entry):
    controls = {key: float(value) for key, value in _controls(entry).items()}
    p = torch_map(entry["function"])(_tensor(entry["z"]).float(), **controls)
    torch.testing.assert_close(p, _tensor(entry["p"]).float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("route", [_eager_vjp, _functional_vjp], ids=["eager", "func"])
@_of(exact_vectors.MAPS, lambda entry: entry["vjp"])
def test_vjps_are_the_exact_ones(entry, route):
    given = entry["vjp"]
    controls = _controls(entry)
    p, grads = route(torch_map(entry["function"]), _tensor(entry["z"]), controls, _tensor(given["v"]))
    torch.testing.assert_close(p, _tensor(entry["p"]), **NEAR)
    torch.testing.assert_close(grads[0], _tensor(given["grad_z"]), **NEAR)
    for key, grad in zip(controls, grads[1:]):
        if f"grad_{key}" in given:
            torch.testing.assert_close(grad.item(), given[f"grad_{key}"], **NEAR)


def test_vectors_hold_vjps_for_both_controls():
    keys = {key for entry in exact_vectors.MAPS if entry["vjp"] for key in entry["vjp"]}
    assert keys == {"v", "grad_z", "grad_lam", "grad_q"}


@_of(exact_vectors.EDGES, lambda entry: entry["p"] is not None)
def test_edges_are_as_the_vectors_say(entry):
    p = torch_map(entry["function"])(_tensor(entry["z"]), **_controls(entry))
    torch.testing.assert_close(p, _tensor(entry["p"]), equal_nan=True, **NEAR)


@_of(exact_vectors.EDGES, lambda entry: entry["p"] is None)
def test_what_numpy_refuses_is_a_nan_row_with_tensor_controls(entry):
    p = torch_map(entry["function"])(_tensor(entry["z"]), **_controls(entry))
    assert p.isnan().all()


# The essential vectors written out.
# (map, controls, z, p, v, grad_z, grad of the control)
ESSENTIAL = {
    "sparsemax": ("sparsemax", {}, [0.1, 1.1, 0.2], [0, 0.95, 0.05], [3, -1, 2], [0, -1.5, 1.5], None),
    "sparser": ("sparsegen_lin", {"lam": 0.5}, [0.5, 0.25, 0.0], [0.75, 0.25, 0], [1, 0, 0], [1, -1, 0], 0.5),
    "square": (
        "sparsegen_sq", {"lam": 0.5}, [0.5, -0.75, 0.25], [0.1875, 0.8125, 0], [1, 0, 0], [1, 1.5, 0], -0.625,
    ),
    "cone": ("sparsecone", {"q": 0.0}, [1, 3, 4], [0.125, 0.375, 0.5], [1, 0, 0],
             [0.125 * 0.875, -0.125 * 0.125, -0.125 * 0.125], (0.125 - 1 / 3) * 3 * 7 / 8),
    "hourglass": ("sparsehourglass", {"q": 0.0}, [-1, -2], [2 / 3, 1 / 3], [1, 0],
                  [1 / 6 + 1 / 18, -1 / 6 + 1 / 18], 1 / 6 * 2 * 2 / 3),
    "one-hot": ("sparsehourglass", {"q": 0.5}, [5, 0, 0], [1, 0, 0], [3, 2, 1], [0, 0, 0], 0),
    "spherical": ("spherical_softmax", {}, [1, -1, 0], [0.5, 0.5, 0], [1, 0, 0], [0.5, 0.5, 0], None),
    "sum": ("sum_normalization", {}, [1, 3, 4], [0.125, 0.375, 0.5], [0, 0, 1], [-0.0625, -0.0625, 0.0625], None),
    "hardmax": ("hardmax", {}, [2, 0.5, 2], [0.5, 0, 0.5], [1, 2, 3], [0, 0, 0], None),
}  # fmt: skip


@pytest.mark.parametrize("case", ESSENTIAL)
@pytest.mark.parametrize("route", [_eager_vjp, _functional_vjp], ids=["eager", "func"])
def test_essential_vectors_hold(case, route):
    name, params, z, p, v, grad_z, grad_control = ESSENTIAL[case]
    got, grads = route(torch_map(name), _tensor(z), _controls({"params": params}), _tensor(v))
    torch.testing.assert_close(got, _tensor(p), **NEAR)
    torch.testing.assert_close(grads[0], _tensor(grad_z), **NEAR)
    if grad_control is not None:
        torch.testing.assert_close(grads[1].item(), float(grad_control), **NEAR)
