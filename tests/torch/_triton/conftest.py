"""The kernels of GPUs without one: Triton's interpreter runs them on the CPU's tensors.

With a GPU the same tests run there, and have the marker `gpu`: a process has either kernels or their interpreter.
"""

import os
import warnings

import numpy as np
import pytest
import torch

HERE = "cuda" if torch.cuda.is_available() else "cpu"
if HERE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # Triton asks when a kernel is decorated, its own ones too

pytest.importorskip("triton")

from triton import knobs

from sparsegen.torch import _autograd, _fused, _mapping, _operators, _route, _triton, maps
from sparsegen.torch._triton import attention_launch, launch, layout
from sparsegen.torch._triton.numbers import add2
from sparsegen.torch.attention import functional

if HERE == "cpu":
    from interpreter import mend

    assert knobs.runtime.interpret
    mend(add2)


@pytest.fixture(autouse=True)
def _quiet():
    """NumPy, which the interpreter computes with, warns of what a GPU does in silence."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice encountered", RuntimeWarning)
        yield


THERE = pytest.param("cuda", marks=pytest.mark.gpu) if HERE == "cuda" else pytest.param("cpu", id="interpreter")


@pytest.fixture(params=[THERE])
def device(request):
    """Where the kernels run."""
    return request.param


@pytest.fixture
def gpu(device, monkeypatch):
    """Calls of the front end take the way of a GPU: on the CPU's tensors, with the interpreter, where there is none."""
    if device == "cpu":
        for module in (_operators, _fused, _route):
            monkeypatch.setattr(module, "engine", lambda t: _triton)
        for module in (maps, _mapping):
            monkeypatch.setattr(module, "quick", lambda *given: None)
        monkeypatch.setattr(_mapping, "quick_module", lambda *given: None)
        monkeypatch.setattr(functional, "_quick", lambda *given: None)
        monkeypatch.setattr(_autograd, "eager", lambda *given: False)
        monkeypatch.setattr(_autograd, "by_operator", lambda x: not _route.transformed())
        for module in (_fused, _route):
            monkeypatch.setattr(module, "knows_maps", lambda x: not _route.transformed())
    return device


@pytest.fixture
def small_tiles(monkeypatch):
    """Several tiles in each direction for lengths that the interpreter can do."""
    monkeypatch.setattr(attention_launch, "tiles_for", lambda dtype, size: attention_launch.Tiles(16, 16, 8, 4))


@pytest.fixture(params=["registers", "streamed"])
def length(request, monkeypatch):
    """Rows as they are, and as if they were too long for registers, in small parts."""
    if request.param == "streamed":
        for name, size in (("GROUP", 4), ("GROUPS", 8), ("PART", 16)):
            monkeypatch.setattr(launch, name, size)
        for module in (launch, layout):
            monkeypatch.setattr(module, "REGISTERS", 0)
            monkeypatch.setattr(module, "BACK", 0)
    return request.param
