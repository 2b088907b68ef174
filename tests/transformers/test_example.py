"""The example of the documentation, at toy size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "sparse_language_model.py"


@pytest.mark.slow
def test_a_model_is_trained_switched_calibrated_and_tuned(tmp_path):
    pytest.importorskip("matplotlib")
    command = [sys.executable, EXAMPLE, "--steps", "4", "--figure", tmp_path / "a.png", "--out", tmp_path / "a.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert {row["mapping"] for row in found["switched"]} == {"sparsegen_softmax", "sparsegen_lin", "entmax"}
    for row in [*found["switched"], found["softmax"], found["calibrated"], found["sparsegen_lin to 3 keys"]]:
        assert 0 < row["loss"] < 10
        assert 1 <= row["support"] <= 64.5
