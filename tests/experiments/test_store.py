"""What experiments keep on disk is whole, exact and refused with a reason when it is not ours."""

import errno
import json
import math
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsegen.experiments import store as results
from sparsegen.experiments.store import CellStore, Result, from_json, plain, to_json

FIELDS = {
    "experiment": "toy",
    "config": {"q": 1.0, "pairs": ("a", "b")},
    "seed": np.int64(7),
    "rows": ({"f1": np.float32(0.5), "support": np.arange(2)}, {"f1": 0.1 + 0.2, "name": "é\u2028"}),
    "summary": {"holds": np.bool_(True), "none": None},
    "versions": {"python": "3"},
    "wall_time": 1.5,
    "started": "2030-01-31T12:00:00+00:00",
}

numbers = st.floats() | st.integers(-(2**70), 2**70) | st.booleans() | st.none()
texts = st.text().filter(lambda text: text not in ("NaN", "Infinity", "-Infinity"))
values = st.recursive(numbers | texts, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


def same(a, b):
    """Equal in type and value, with NaN equal to itself and 0.0 apart from -0.0."""
    return repr(a) == repr(b)


@given(values)
def test_every_value_is_read_as_it_was_written(value):
    assert same(from_json(to_json(value)), json.loads(json.dumps(value, sort_keys=True)))


@given(values)
def test_the_text_is_json_as_every_reader_knows_it(value):
    def refuse(constant):
        raise AssertionError(constant)

    json.loads(to_json(value), parse_constant=refuse)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64("nan"), math.nan),
        (np.array([[1, 2]], dtype=np.uint8), [[1, 2]]),
        (np.array(3.5, dtype=np.float16), 3.5),
        (np.str_("a"), "a"),
        (np.array([-np.inf]), [-math.inf]),
        ((1, (2,)), [1, [2]]),
    ],
)
def test_numpy_values_become_pythons_own(value, expected):
    assert same(plain(value), expected)
    assert same(from_json(to_json(value)), expected)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({"a": [1, {2}]}, TypeError, r"x\['a'\]\[1\] must be None, a bool, .*got \{2\} of type set\."),
        ({"a": {1: 2}}, TypeError, r"each key of x\['a'\] must be a text, got 1\."),
        (1j, TypeError, "got 1j of type complex"),
        (np.longdouble(1), TypeError, "of type longdouble"),
        (Path("."), TypeError, "PosixPath"),
        (["NaN"], ValueError, r"x\[0\] must be a text other than .*got 'NaN'\."),
        (np.array(["-Infinity"]), ValueError, "got '-Infinity'"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_place(value, error, message):
    with pytest.raises(error, match=f"^sparsegen: .*{message}"):
        plain(value, "x")


def test_a_result_is_read_as_it_was_made(tmp_path):
    result = Result(**FIELDS)
    result.save(tmp_path / "new" / "toy.json")
    back = Result.load(tmp_path / "new" / "toy.json")
    assert back == result
    assert same(back, result)
    assert back.rows[0] == {"f1": 0.5, "support": [0, 1]}
    assert back.rows[1]["f1"] == 0.1 + 0.2
    assert [type(v) for v in (back.seed, back.rows, back.summary["holds"])] == [int, tuple, bool]
    assert os.listdir(tmp_path / "new") == ["toy.json"]


def test_equal_results_have_equal_files(tmp_path):
    Result(**FIELDS).save(tmp_path / "a.json")
    turned = {**FIELDS, "config": dict(reversed(FIELDS["config"].items())), "seed": 7}
    Result(**turned).save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_result_does_not_follow_its_makers_changes():
    config = {"grid": [1, 2]}
    rows = [{"a": np.array([1.0])}]
    result = Result(**{**FIELDS, "config": config, "rows": rows})
    config["grid"].append(3)
    rows[0]["a"][0] = 9
    assert result.config == {"grid": [1, 2]}
    assert result.rows == ({"a": [1.0]},)
    with pytest.raises(AttributeError):
        result.seed = 1


@pytest.mark.parametrize(
    ("name", "value", "condition"),
    [
        ("experiment", 3, "a text, got 3"),
        ("config", [], r"a dict, got \[\]"),
        ("seed", 1.5, "an integer, got 1.5"),
        ("seed", True, "an integer, got True"),
        ("rows", [1], r"a list of dicts, got \[1\]"),
        ("wall_time", "long", "a number of seconds, got 'long'"),
        ("started", "yesterday", "ISO 8601, got 'yesterday'"),
    ],
)
def test_a_wrong_field_is_refused_when_made_and_when_read(tmp_path, name, value, condition):
    with pytest.raises(ValueError, match=f"sparsegen: {name} of a Result must be .*{condition}"):
        Result(**{**FIELDS, name: value})
    Result(**FIELDS).save(tmp_path / "r.json")
    stored = json.loads((tmp_path / "r.json").read_text())
    (tmp_path / "r.json").write_text(json.dumps({**stored, name: value}))
    with pytest.raises(ValueError, match=rf"sparsegen: {name} in .*r\.json must be .*{condition}"):
        Result.load(tmp_path / "r.json")


def test_a_file_cut_at_any_byte_is_refused_by_name(tmp_path):
    path = tmp_path / "r.json"
    Result(**FIELDS).save(path)
    whole = path.read_bytes()
    for size in range(len(whole) - 1):  # without the end of its last line it is still whole
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"sparsegen: .*r\.json must be a whole JSON file, got {size} bytes"):
            Result.load(path)
    path.write_bytes(whole[:-1])
    assert Result.load(path) == Result(**FIELDS)


def without(name):
    return lambda stored: {key: value for key, value in stored.items() if key != name}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda stored: [stored], "format 'sparsegen result', got a list"),
        (lambda stored: {"nodes": []}, "format 'sparsegen result', got format None"),
        (lambda stored: {**stored, "schema": 2}, "must be 1, the one this version reads, got 2"),
        (without("schema"), "must be 1, the one this version reads, got None"),
        (without("rows"), r"got missing \['rows'\] and unknown \[\]"),
        (lambda stored: {**stored, "extra": 1}, r"got missing \[\] and unknown \['extra'\]"),
        (lambda stored: {**stored, "seed": math.nan}, "the bare constant NaN"),
    ],
)
def test_a_foreign_file_is_refused_with_the_reason(tmp_path, change, reason):
    path = tmp_path / "foreign.json"
    Result(**FIELDS).save(path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ValueError, match=rf"sparsegen: .*foreign\.json .*{reason}"):
        Result.load(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"\x80\x04\x95\xff")
    with pytest.raises(ValueError, match=r"model\.bin must be a whole JSON file, got 4 bytes"):
        Result.load(tmp_path / "model.bin")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "r.json"
    Result(**FIELDS).save(path)

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="no space"):
        Result(**{**FIELDS, "seed": 8}).save(path)
    assert os.listdir(tmp_path) == ["r.json"]
    assert Result.load(path).seed == 7


def test_a_full_disk_is_told_with_the_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with CellStore.opened(tmp_path) as store:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: '.*cells\.jsonl'"):
            store.add("a", {"q": 1.0}, {"f1": 0.5}, seconds=0.1)
    with pytest.raises(OSError, match=r"No space left on device: '.*r\.json'"):
        Result(**FIELDS).save(tmp_path / "r.json")


def test_a_full_disk_is_told_where_torch_hides_it(tmp_path):
    def write(_):
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            raise RuntimeError("unexpected pos 1216 vs 1110")

    with (
        pytest.raises(OSError, match=r"No space left on device: '.*best\.pt'"),
        results.whole_file(tmp_path / "best.pt") as f,
    ):
        write(f)
    with pytest.raises(RuntimeError, match="of its own"), results.whole_file(tmp_path / "best.pt"):
        raise RuntimeError("of its own")
    assert os.listdir(tmp_path) == []


def test_versions_are_those_installed_and_nothing_is_imported_for_them():
    code = "import sys; from sparsegen.experiments.store import versions; print(versions(), *sys.modules, sep='\\n')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    found, *modules = run.stdout.splitlines()
    import scipy
    import sklearn

    expected = {"numpy": np.__version__, "scipy": scipy.__version__, "sklearn": sklearn.__version__}
    assert expected.items() <= results.versions().items()
    assert found == str(results.versions())
    assert not {"scipy", "sklearn", "torch", "joblib"} & set(modules)


def test_versions_leave_out_what_is_not_installed(monkeypatch):
    def version(package):
        if package == "torch":
            raise metadata.PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(metadata, "version", version)
    assert set(results.versions()) == {"python", "sparsegen", "numpy", "scipy", "sklearn"}


def filled(folder, n):
    with CellStore.opened(folder) as store:
        for i in range(n):
            store.add(f"key{i}", {"i": i}, {"value": [i / 3, math.nan]}, seconds=0.1)
    return folder / "cells.jsonl"


def test_a_store_cut_at_any_byte_of_its_last_line_keeps_the_others_and_goes_on(tmp_path):
    path = filled(tmp_path, 3)
    whole = path.read_bytes()
    two = whole.rfind(b"\n", 0, -1) + 1
    for size in range(two, len(whole)):
        path.write_bytes(whole[:size])
        with CellStore.opened(tmp_path) as store:
            assert list(store.outputs) == ["key0", "key1"]
            assert path.stat().st_size == two
            store.add("key2", {"i": 2}, {"value": [2 / 3, math.nan]}, seconds=0.1)
        assert path.read_bytes() == whole
    with CellStore.opened(tmp_path) as store:
        assert same(store.outputs, {f"key{i}": {"value": [i / 3, math.nan]} for i in range(3)})


@pytest.mark.parametrize("line", [b"", b"{}", b"[1]", b"3", b'{"key": "a"', b"\x00\x00", b"\xff"])
def test_a_bad_line_inside_a_store_is_refused_by_its_number(tmp_path, line):
    path = filled(tmp_path, 2)
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + line + b"\n" + second)
    with (
        pytest.raises(ValueError, match=r"sparsegen: line 2 of .*cells\.jsonl must be a finished cell as JSON"),
        CellStore.opened(tmp_path),
    ):
        pass
    assert path.read_bytes() == first + line + b"\n" + second


def test_writes_taken_in_parts_are_completed(tmp_path):
    class Reluctant:
        def __init__(self, file):
            self.file, self.fileno = file, file.fileno

        def write(self, data):
            return self.file.write(data[:7])

    with open(tmp_path / "cells.jsonl", "wb", buffering=0) as file:
        CellStore(Reluctant(file)).add("a", {"x": 1}, {"y": "z" * 40}, seconds=1.0)
    with CellStore.opened(tmp_path) as store:
        assert store.outputs == {"a": {"y": "z" * 40}}


@pytest.mark.skipif(sys.platform == "win32", reason="locks are POSIX's")
def test_a_store_in_use_is_refused(tmp_path):
    with CellStore.opened(tmp_path) as store:
        store.add("a", {}, {}, seconds=0.0)
        with pytest.raises(RuntimeError, match="store must be used by one sweep at a time"), CellStore.opened(tmp_path):
            pass
    with CellStore.opened(tmp_path) as store:
        assert list(store.outputs) == ["a"]


def test_a_file_is_no_store(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="sparsegen: store must be a folder"), CellStore.opened(tmp_path / "file"):
        pass
