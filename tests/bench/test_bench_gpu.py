"""The benchmark of GPUs, as far as it can be tried without one."""

import math

import pytest
import torch

from sparsegen.bench import gpu, run, show
from sparsegen.bench.measure import Settings


def test_it_refuses_a_machine_without_a_gpu():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match="must be a GPU that torch can use, got none"):
        gpu.run(Settings(quick=True), lambda text: None)
    assert "gpu" not in run.chosen("all")


def test_it_measures_and_shows_on_any_device():
    found = gpu.run(Settings(quick=True), lambda text: None, "cpu")
    assert all(math.isfinite(case["forward"]["sparsegen"]) for case in found["rows"])
    assert all(math.isfinite(case["step"]) for case in found["attention"])
    assert len(list(show.gpu(found))) == 3


def test_a_wrong_answer_gets_no_time(monkeypatch):
    monkeypatch.setitem(gpu.FORMS, "entmax", ("torch", lambda: lambda x: torch.softmax(x, -1), True))
    (case,) = gpu.run(Settings(quick=True), lambda text: None, "cpu")["rows"]
    assert case["errors"]["entmax"] > 0.01
    assert "entmax" not in case["forward"]
