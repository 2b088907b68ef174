"""The drivers of fuzz/ themselves: they notice what is broken and say how to see it; a seed gives a case again."""

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

import laws
import oracle
import sparsegen as sg
from sparsegen import _core
from sparsegen._table.maps import MAPS

if os.name != "posix":
    pytest.skip("the drivers are built by make", allow_module_level=True)
import fcntl

ROOT = Path(__file__).resolve().parent.parent
FUZZ = ROOT / "fuzz"
sys.path.insert(0, str(FUZZ))
try:
    import front_ends
    import long_double
    import long_run
    import map_cases
finally:
    sys.path.remove(str(FUZZ))


@pytest.fixture(scope="module")
def kernel():
    """The kernel's driver, built if that has not been done: one process at a time."""
    if not shutil.which("make"):
        pytest.skip("make is needed")
    if subprocess.run(["make", "-s", "-C", FUZZ, "can-sanitize"], check=False).returncode:
        pytest.skip("the compiler has no sanitizers")
    folder = ROOT / "build" / "fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["make", "-s", "-j2", "-C", FUZZ, "asan"], check=True)

    def call(*options):
        return subprocess.run([folder / "asan" / "kernel", *options], capture_output=True, text=True, check=False)

    return call


def reproduced(text):
    """What the line of Python that a driver printed prints itself."""
    line = re.search(r"^  Python: (.*)$", text, re.MULTILINE)[1]
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("family", ["project", "vjp", "means", "maps", "hinge", "attention"])
def test_the_kernels_driver_notices_a_broken_kernel(kernel, family):
    done = kernel(
        "--family", family, "--engine", "plain", "--cases", "20", "--sabotage", "--failures", "1", "--shrinking", "1"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"again: --family {family} --engine plain --seed 0 --case" in done.stdout
    assert reproduced(done.stdout).strip()


def test_the_kernels_driver_passes_the_kernel_as_it_is(kernel):
    done = kernel("--cases", "25", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    engines = kernel("--engines").stdout.split()
    assert {name.split("/")[1] for name in rows} == set(engines) >= set(_core.engines())
    names = {name.split("/")[0] for name in rows}
    assert {"project", "vjp", "vjp words", "maps sq total", "hinge", "attention", "pool"} <= names


def test_a_seed_gives_the_kernels_case_again(kernel):
    broken = ["--family", "project", "--engine", "plain", "--sabotage", "--failures", "1", "--shrinking", "0"]
    first = kernel(*broken, "--seed", "5", "--cases", "20")
    again = re.search(r"--case (\d+)", first.stdout)[1]
    alone = kernel(*broken, "--seed", "5", "--case", again)
    assert first.stdout.splitlines()[:3] == alone.stdout.splitlines()[:3]
    assert kernel(*broken, "--seed", "6", "--cases", "20").stdout.splitlines()[:3] != first.stdout.splitlines()[:3]


def test_the_kernels_driver_refuses_what_it_does_not_know(kernel):
    assert kernel("--family", "nonsense").returncode == 2
    assert kernel("--engine", "nonsense").returncode == 2
    assert kernel("--nonsense").returncode == 2


@pytest.fixture
def driver(capsys):
    """The front ends' driver on one engine, with all it set put back."""
    engine, threads = _core.engine(), sg.get_num_threads()
    yield lambda *options: (front_ends.main([*options, "--engine", "plain"]), capsys.readouterr().out)
    _core.use_engine(engine)
    sg.set_num_threads(threads)


@pytest.mark.parametrize("name", ["sparsegen_exp", "sparsegen_hinge_loss", "attention"])
def test_the_front_ends_driver_notices_a_wrong_answer(driver, monkeypatch, name):
    monkeypatch.setattr(front_ends, "SHRINKING_SECONDS", 1.0)
    code, text = driver("--map", name, "--cases", "8", "--sabotage", "--failures", "1")
    assert code == 1
    assert f"again: --map {name} --engine plain --seed 0 --case" in text
    assert reproduced(text).strip()


def test_the_front_ends_driver_passes_the_library_as_it_is(driver):
    code, text = driver("--cases", "2", "--json")
    assert code == 0, text
    rows = json.loads(text.splitlines()[-1])["rows"]
    assert set(MAPS) <= {name.split("/")[0] for name in rows}


def test_a_failing_case_is_made_small(driver, monkeypatch):
    monkeypatch.setattr(front_ends, "SHRINKING_SECONDS", 3.0)
    _, text = driver("--map", "sparsemax", "--cases", "8", "--sabotage", "--failures", "1")
    scores = np.array(eval(re.search(r"np\.array\((\[\[.*?\]\])", text)[1], {"inf": np.inf, "nan": np.nan}))
    assert scores.shape == (1, 2)


def test_a_seed_gives_the_front_ends_case_again():
    for name in ("sparsecone", "sparsemax_huber_loss", "attention"):
        a, b, c = (front_ends.case_of(seed, name, 3) for seed in (1, 1, 2))
        module = front_ends.module_of(name)
        assert module.line(a, "plain") == module.line(b, "plain") != module.line(c, "plain")


@pytest.mark.parametrize("name", MAPS)
def test_sorting_in_long_double_equals_exact_fractions(name):
    rng = np.random.default_rng(7)
    z = laws.inside(MAPS[name], np.round(rng.standard_normal((30, 5)) * 16) / 16)
    z[:, 0] += 1
    mask = rng.random(z.shape) < 0.8
    mask[:, 0] = True
    control = {"lam": 0.25, "q": 2.0, "temperature": 0.5, "alpha": 1.25}.get((*MAPS[name].controls, "")[0], 0.0)
    found = long_double.map_rows(name, z, mask, np.full(30, control), 2.0**-52)
    given = dict.fromkeys(MAPS[name].controls[:1], control)
    for i in range(30):
        np.testing.assert_allclose(
            found.p[i].astype(float), oracle.map_row(name, z[i], mask[i], **given).p, rtol=0, atol=4e-16
        )


@pytest.mark.parametrize("layout", map_cases.LAYOUTS)
def test_layouts_hold_the_same_rows(layout):
    x = np.arange(24.0).reshape(4, 6)
    np.testing.assert_array_equal(map_cases.as_rows(map_cases.laid_out(x, layout), layout, x.shape), x)


def test_a_long_run_adds_up_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    pieces, built = [], []

    def piece(command, seed, rows):
        pieces.append((command[-1], seed, rows))
        return {"rows": {f"{command[-1]}/plain/float32": rows}, "failures": []}

    monkeypatch.setattr(long_run, "run_piece", piece)
    monkeypatch.setattr(long_run, "build", lambda: built.append(len(pieces)))
    monkeypatch.setattr(long_run, "PIECE", 40)
    out = tmp_path / "fuzz.json"
    assert long_run.main(["--rows", "100", "--only", "project", "--only", "softmax", "--out", str(out)]) == 0
    assert pieces == [(name, seed, rows) for name in ("project", "softmax") for seed, rows in enumerate((40, 40, 20))]
    assert built == [0]  # before the first, so that no older driver is counted
    assert long_run.main(["--rows", "130", "--only", "project", "--out", str(out)]) == 0
    assert pieces[6:] == [("project", 3, 30)]
    found = json.loads(out.read_text())
    assert found["rows"]["kernel"]["project"] == {"plain": {"float32": 130}}
    assert found["violations"] == []
    assert found["machine"]["sparsegen"]
    assert str(Path.home()) not in out.read_text()
    monkeypatch.setattr(long_run, "sources", lambda: "another kernel")
    assert long_run.main(["--rows", "10", "--only", "project", "--out", str(out)]) == 0
    again = json.loads(out.read_text())
    assert again["rows"]["kernel"]["project"] == {"plain": {"float32": 10}}
    assert again["sources"] == {
        "kernel project": "another kernel",
        "front ends softmax": found["sources"]["front ends softmax"],
    }
    assert again["rows"]["front ends"] == found["rows"]["front ends"]


def test_a_long_run_keeps_what_went_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(long_run, "run_piece", lambda *args: {"rows": {}, "failures": ["project is wrong"]})
    monkeypatch.setattr(long_run, "build", lambda: None)
    out = tmp_path / "fuzz.json"
    assert long_run.main(["--rows", "100", "--only", "project", "--out", str(out)]) == 1
    assert json.loads(out.read_text())["violations"] == ["project is wrong"]


def test_a_driver_that_crashes_is_a_violation():
    crash = [sys.executable, "-c", "import os; os.abort()"]
    assert len(long_run.run_piece(crash, 0, 1)["failures"]) == 1
