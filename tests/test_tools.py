"""What packages and tries the project: records are kept by part, damage is damage, a changed run is noticed."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sparsegen as sg

torch = pytest.importorskip("torch")
sgt = pytest.importorskip("sparsegen.torch")
TOOLS = Path(__file__).resolve().parents[1] / "tools"
sys.path.insert(0, str(TOOLS))
try:
    import fresh
    import record
    import smoke
    import soak
    import trials
    import wheel
finally:
    sys.path.pop(0)


def test_a_record_keeps_the_parts_of_others(tmp_path):
    path = tmp_path / "r.json"
    record.keep("soak", {"calls": 1}, path)
    record.keep("kill", {"kills": 2}, path)
    record.keep("soak", {"calls": 3}, path)
    kept = json.loads(path.read_text())
    assert (kept["soak"], kept["kill"]) == ({"calls": 3}, {"kills": 2})
    assert kept["versions"]["sparsegen"]


def test_damage_changes_most_files():
    draw = random.Random(0)
    changed = [trials.damage(trials.ARFF, draw) != trials.ARFF for _ in range(200)]
    assert sum(changed) > 180


def test_a_reader_that_fails_otherwise_is_counted_as_such(tmp_path):
    path = tmp_path / "toy.arff"
    ends = {
        "refused by name": ValueError(f"sparsegen: {path} must be whole, got half"),
        "refused without a name: something": ValueError("something"),
        "KeyError: 'sea'": KeyError("sea"),
    }
    for end, error in ends.items():

        def read(_, error=error):
            raise error

        assert trials.read_damaged(path, read, None) == end
    assert trials.read_damaged(path, lambda _: 1, 1) == "read as before"
    assert trials.read_damaged(path, lambda _: 2, 1) == "read with other values"


def test_equal_runs_are_equal_without_their_times_and_another_bit_is_seen():
    run = {"loss": 0.5, "seconds": 3.0, "model": {"w": torch.arange(4.0)}}
    later = {"loss": 0.5, "seconds": 4.0, "model": {"w": torch.arange(4.0)}}
    other = {"loss": 0.5, "seconds": 3.0, "model": {"w": torch.nextafter(torch.arange(4.0), torch.tensor(9.0))}}
    assert trials.numbers(run) == trials.numbers(later) != trials.numbers(other)


def test_a_torn_file_is_seen_unless_nothing_reads_it(tmp_path):
    (tmp_path / "step-1.unfinished").mkdir()
    for name in ("whole.json", "torn.json", ".part.json", "step-1.unfinished/torn.json"):
        (tmp_path / name).write_text("{" if "whole" not in name else "{}")
    assert trials.torn(tmp_path) == ["torn.json: JSONDecodeError"]


def test_a_soak_notices_another_bit(monkeypatch):
    z = np.linspace(-1, 1, 12).reshape(3, 4)
    made = {"map": lambda: sg.sparsemax(z), "gradient": lambda: soak.with_gradient(sgt.sparsemax, z)}
    monkeypatch.setattr(soak, "cases", lambda: made)
    one = soak.Soak(0)
    assert all(one.compare(name) for name in one.names)
    made["map"] = lambda: np.nextafter(sg.sparsemax(z), 2)
    assert not one.compare("map")


def test_the_smoke_test_of_numpy_passes_and_says_what_it_found():
    done = subprocess.run(
        [sys.executable, str(TOOLS / "smoke.py"), "--only", "numpy"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("numpy: sparsegen ")
    with pytest.raises(SystemExit, match="a finite loss"):
        smoke.need(False, "a finite loss")


def test_platforms_are_ordered_by_their_glibc():
    tags = ["manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "manylinux_2_35_x86_64", "linux_x86_64"]
    assert sorted(tags, key=wheel.tag_number) == tags


MAKEFILE = """
good:
\t@echo "  Downloading a-1.whl (1.5 MB)"; sleep 0.6; echo "  Downloading b-1.whl (500 kB)"; echo $(PYTHON)
bad:
\t@echo going; echo "no compiler"; exit 3
"""


def test_a_fresh_run_counts_what_was_fetched_and_the_silence(tmp_path):
    (tmp_path / "Makefile").write_text(MAKEFILE)
    found = fresh.run("good", tmp_path, "/nowhere", "python3.99")
    assert (found["fetched_mb"], found["lines"]) == (2, 3)
    assert found["longest_silence_seconds"] == 1
    with pytest.raises(SystemExit, match=r"make bad failed:\ngoing\nno compiler"):
        fresh.run("bad", tmp_path, "/nowhere", "python3.99")


def test_a_fresh_environment_inherits_no_cache(monkeypatch):
    monkeypatch.setenv("PIP_CACHE_DIR", "/cache")
    monkeypatch.setenv("VIRTUAL_ENV", "/elsewhere")
    made = fresh.environment("/new")
    assert made["HOME"] == "/new"
    assert made["PIP_NO_CACHE_DIR"] == "1"
    assert not {"PIP_CACHE_DIR", "VIRTUAL_ENV"} & set(made)
