"""What a newcomer runs first: tour, Makefile. The examples of README and docs are in test_documents.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sparsegen._table.maps import MAPS
from sparsegen.cli import app, tour

ROOT = Path(__file__).resolve().parent.parent


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
    for name in ("pyproject.toml", "constraints.txt", "lock.txt", "CMakeLists.txt"):
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
