"""What a newcomer runs first: README, tour, Makefile."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sparsegen
from sparsegen import tour
from sparsegen._maps import MAPS
from sparsegen.cli import app

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_the_readme_runs(block):
    names: dict = {}
    exec(block, names)
    seen = {
        "info": lambda p: p.support_size == 3,
        "attend": lambda p: p(torch.zeros(2, 8, 10, 10)).shape == (2, 8, 10, 10) and p.theta.grad is not None,
        "found": lambda p: p.support_size.shape == (1000,) and p.lipschitz == 2,
        "probe": lambda p: [row["head"] for row in p.table()] == [0, 1, 2, 3],
        "loss": lambda p: abs(p - 0.35) < 1e-12,
        "model": lambda p: p.predict([[0.1, 1.0], [1.0, 1.0]]) == [("wind",), ("rain", "wind")] and p.gap_ <= p.tol,
    }
    checked = [seen[name](names[name]) for name in seen if name in names]
    assert checked == [True]


def test_what_the_readme_says_of_its_example_is_so():
    z = np.array([1.2, 0.9, 0.5, 0.3, 0.1])
    np.testing.assert_allclose(sparsegen.sparsemax(z), [0.65, 0.35, 0, 0, 0])
    assert (sparsegen.sparsegen_lin(z, lam=-1.0) > 0).sum() == 4
    assert sparsegen.sparsegen_lin(z, lam=0.9).tolist() == [1, 0, 0, 0, 0]
    assert round(float(sparsegen.sparsehourglass(z, q=0.5, return_info=True)[1].threshold), 3) == 0.343


def test_the_readme_names_every_map():
    missing = [name for name in MAPS if name.replace("sparsegen", "") not in README]
    assert not missing


def test_results_named_in_the_documents_exist():
    texts = [README, *(p.read_text() for p in (ROOT / "docs").rglob("*.md"))]
    named = {name for text in texts for name in re.findall(r"results/[\w.-]+\.json", text)}
    assert named
    for name in named:
        found = json.loads((ROOT / name).read_text())
        assert (found.get("machine") or found["versions"])["sparsegen"]


def test_the_page_of_performance_is_made_of_the_results():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import performance
    finally:
        sys.path.pop(0)
    maps, scaling = (json.loads((ROOT / "results" / f"{name}.json").read_text()) for name in ("maps", "scaling"))
    page = performance.page(maps, scaling)
    assert (ROOT / "docs" / "performance.md").read_text() == page, "run: python benchmarks/performance.py"


def test_the_tour_shows_every_map_with_its_support_and_threshold():
    result = CliRunner().invoke(app, ["tour", "--seconds", "0"])
    assert result.exit_code == 0, result.output
    for name in MAPS:
        assert re.search(rf"{name}\b.*\d+ +-?\d+\.\d\d", result.output), name
    assert "ratio" in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_the_tour_reports_what_the_maps_give():
    rows = {(row.name, row.control): row for row in tour.map_rows()}
    row = rows["sparsegen_lin", "lam=0.5"]
    np.testing.assert_allclose(row.p, [0.8, 0.2, 0, 0, 0], atol=1e-15)
    assert row.support_size == 2
    assert row.threshold == pytest.approx(0.8)


@pytest.mark.skipif(os.name != "posix", reason="make and a POSIX shell are needed")
def test_make_says_what_to_install_where_there_is_no_compiler(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt", "CMakeLists.txt"):
        (tmp_path / name).touch()
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "echo"):
        (tools / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    (tools / "python3").symlink_to(sys.executable)
    make = shutil.which("make")
    assert make
    environment = {"PATH": str(tools)}
    done = subprocess.run([make, "test"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "a C++17 compiler is needed to build the kernel, and none was found" in done.stdout
    assert "apt-get install g++" in done.stdout
