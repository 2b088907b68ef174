"""Samples the torch tests share: for every map of the table, controls and scores inside its domain."""

from __future__ import annotations

import numpy as np
import pytest

import sparsegen as sg
from sparsegen._table.maps import MAPS

torch = pytest.importorskip("torch")
sgt = pytest.importorskip("sparsegen.torch")

NAMES = tuple(MAPS)
CONTROLLED = tuple(name for name in NAMES if MAPS[name].controls)
# Those with a threshold, so exact zeros.
PROJECTIONS = tuple(name for name, m in MAPS.items() if m.radius.of != "sum" or "lam" in m.controls)
CONTROLS = {"lam": 0.25, "q": 0.5, "temperature": 0.75, "alpha": 1.75}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)
# torch itself calls torch.jit.script, and warns of it, when forward mode is first used.
FORWARD_MODE = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


def controls(name: str) -> dict[str, float]:
    """The map's controls, as numbers."""
    return {key: CONTROLS[key] for key in MAPS[name].controls}


def control_tensors(name: str, shape=(), dtype=torch.float64, seed: int = 7) -> dict[str, torch.Tensor]:
    """The map's controls, different in each entry of `shape`."""
    spread = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return {key: around(key, 0.5 + spread).to(dtype) for key in controls(name)}


def around(key: str, factors: torch.Tensor) -> torch.Tensor:
    """Values of a control about its usual one: multiples of how far that is above the control's least."""
    least = 1.0 if key == "alpha" else 0.0
    return least + (CONTROLS[key] - least) * factors


def scores(name: str, *shape: int, dtype=torch.float64, seed: int = 0) -> torch.Tensor:
    """Random scores in the map's domain."""
    z = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (z.abs() + 0.125 if MAPS[name].domain else z).to(dtype)


def some_mask(*shape: int, seed: int = 3) -> torch.Tensor:
    """About two thirds True, and never a row of the last axis without a choice."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.65
    mask[..., 0] = True
    return mask


def torch_map(name: str):
    return getattr(sgt, name)


def numpy_map(name: str):
    return getattr(sg, name)


def as_numpy(values: dict) -> dict:
    return {key: value.numpy() if isinstance(value, torch.Tensor) else value for key, value in values.items()}


def close(got, expected, dtype=torch.float64, scale: float = 16.0) -> None:
    """Equal to `scale` units in the last place of 1 (all results are probabilities or of that size)."""
    got = torch.as_tensor(np.array(got)) if not isinstance(got, torch.Tensor) else got.detach()
    expected = torch.as_tensor(np.array(expected)) if not isinstance(expected, torch.Tensor) else expected.detach()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(
        got.double(), expected.double(), rtol=scale * eps, atol=scale * eps, equal_nan=True, check_device=False
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_map_of_the_table_is_a_torch_function_and_a_numpy_function(name):
    assert name in sgt.__all__
    assert name in sg.__all__
    assert callable(torch_map(name))


@pytest.mark.parametrize("name", NAMES)
def test_samples_lie_in_the_domain(name):
    p = numpy_map(name)(scores(name, 50, 6).numpy(), **controls(name))  # would raise outside
    assert np.isfinite(p).all()


@pytest.mark.parametrize("name", [n for n in PROJECTIONS if n != "hardmax"])
def test_samples_have_supports_of_several_sizes(name):
    _, info = torch_map(name)(scores(name, 50, 6), **controls(name), return_info=True)
    assert len(info.support_size.unique()) > 2


def test_close_sees_a_difference_in_the_last_digits():
    with pytest.raises(AssertionError):
        close(torch.tensor([0.5, 0.5 + 1e-14]), torch.tensor([0.5, 0.5 - 1e-14], dtype=torch.float64))
    with pytest.raises(AssertionError):
        close(torch.tensor([torch.nan]), torch.tensor([0.0]))
