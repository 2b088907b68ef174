"""The kernels compiled for GPUs that are not here: all of them were, nothing spills where it matters, and it fits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparsegen.bench import gpu_compile

FILE = Path(__file__).parents[3] / "results" / "gpu-compile.json"
FOUND = json.loads(FILE.read_text())
ROWS = [name for name in FOUND["kernels"] if not name.startswith("attention")]
HEADS = [name for name in FOUND["kernels"] if name.startswith("attention") and {"d64", "d128"} & set(name.split())]


def _compile(path, targets, only):
    command = [sys.executable, "-m", "sparsegen.bench.gpu_compile", str(path), ",".join(targets), only]
    subprocess.run(command, check=True, timeout=3600, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True)
    return json.loads(path.read_text())


def test_the_results_are_of_these_kernels():
    assert FOUND["sources"] == gpu_compile.fingerprint(), "run python -m sparsegen.bench.gpu_compile again"
    assert list(FOUND["kernels"]) == [case.name for case in gpu_compile.cases()]
    assert all(set(found) == set(gpu_compile.TARGETS) for found in FOUND["kernels"].values())


# One program for each long row, which is not where the time goes: a few bytes, on one target.
ALLOWED = {("long threshold bf16", "sm_100"): 16, ("long threshold fp32", "sm_100"): 16}


@pytest.mark.parametrize("target", gpu_compile.TARGETS)
@pytest.mark.parametrize("name", ROWS)
def test_no_row_kernel_spills(name, target):
    assert FOUND["kernels"][name][target]["spilled"] <= ALLOWED.get((name, target), 0)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", [name for name in HEADS if "bf16" in name])
def test_attention_does_not_spill_at_the_usual_head_sizes(name, target):
    assert FOUND["kernels"][name][target]["spilled"] == 0


@pytest.mark.parametrize("target", gpu_compile.TARGETS)
def test_shared_memory_is_there(target):
    taken = {name: found[target]["shared"] for name, found in FOUND["kernels"].items()}
    assert max(taken.values()) <= gpu_compile.SHARED[target], max(taken, key=taken.get)


def test_compiling_gives_what_the_results_say(tmp_path):
    name = "project bf16 1x8192"
    again = _compile(tmp_path / "found.json", ["sm_90", "gfx942"], name)["kernels"][name]
    assert again == {target: FOUND["kernels"][name][target] for target in again}
