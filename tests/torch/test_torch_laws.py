"""The laws of laws.py over the torch front end: each map, dtype and way a call can take."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laws import LAWS, inside
from sparsegen._table.maps import MAPS
from sparsegen.torch import _cpu, _plain, _route, maps
from test_torch_cases import NAMES, controls, torch_map


def _tensor(a: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(a))


def _sorted(x, radius, dim, mask):
    """What other devices do, in place of the kernel."""
    if x.numel() == 0:
        return torch.empty_like(x)
    return _plain.project(x, torch.as_tensor(radius, dtype=torch.float64), dim, mask)


def _composed(name, z, mask, given):
    return torch_map(name)(z, mask=mask, **given)


def _with_gradient(name, z, mask, given):
    return torch_map(name)(z.clone().requires_grad_(), mask=mask, **given).detach()


def _functional(name, z, mask, given):
    return torch.func.vjp(lambda z: torch_map(name)(z, mask=mask, **given), z)[0]


def _control_tensors(name, z, mask, given):
    given = {key: torch.full(z.shape[:-1], value, dtype=torch.float64) for key, value in given.items()}
    return torch_map(name)(z, mask=mask, **given)


def _as_on_other_devices(monkeypatch, project):
    monkeypatch.setattr(_route, "bare", lambda: False)
    monkeypatch.setattr(maps, "quick", lambda *_: None)
    monkeypatch.setattr(_cpu, "project", project)


WAYS = {
    "plain": _composed,
    "gradient": _with_gradient,
    "func": _functional,
    "tensors": _control_tensors,
    "sort": _composed,
}


CASES = [*((name, np.float64) for name in WAYS), ("plain", np.float32), ("sort", np.float32)]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1].__name__}")
def way_and_dtype(request, monkeypatch):
    way, dtype = request.param
    if way == "sort":
        _as_on_other_devices(monkeypatch, _sorted)
    return WAYS[way], dtype


def _callable(name, way):
    def f(scores, mask=None, **given):
        hidden = None if mask is None else _tensor(mask)
        return way(name, _tensor(scores), hidden, {**controls(name), **given}).numpy()

    return f


@pytest.mark.parametrize("name", NAMES)
def test_the_laws_hold_in_torch(name, way_and_dtype):
    (way, dtype), m = way_and_dtype, MAPS[name]
    for k in (1, 2, 5, 40):
        z = inside(m, np.random.default_rng(k).standard_normal((6, k)).astype(dtype))
        for law in LAWS:
            law(_callable(name, way), m, z)


def test_the_sort_path_is_really_in_place(monkeypatch):
    calls = []
    _as_on_other_devices(monkeypatch, lambda *given: calls.append(given) or _sorted(*given))
    torch_map("sparsehourglass")(torch.zeros(2, 3), q=0.5)
    assert len(calls) == 1
