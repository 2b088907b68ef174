"""What experiments keep on disk: a frozen record of settings and numbers, and the finished cells of a sweep.

JSON has no numbers that are not finite, so they are written as the strings "NaN", "Infinity" and "-Infinity" and read
back as numbers. Those three texts are refused as values, so that what is read is always what was written.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import sparsegen
from sparsegen._table.checks import fail

if sys.platform != "win32":
    import fcntl

FORMAT = "sparsegen result"
SCHEMA = 1  # to be raised when a field changes its meaning

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def plain(value: Any, name: str = "value") -> Any:
    """Return a copy made of what JSON knows: NumPy's numbers become Python's, arrays and tuples lists; keys are sorted.

    Parameters
    ----------
    value : object
        None, bool, int, float, str, NumPy scalar or array, or a list, tuple or dict of them. Keys are strings.
    name : str
        What the value is called in an error.

    Examples
    --------
    >>> import numpy as np
    >>> plain({"f1": np.float32(0.5), "support": np.array([1, 2]), "range": (0, 1)})
    {'f1': 0.5, 'range': [0, 1], 'support': [1, 2]}
    """
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, str):
        if value in _SPECIAL:
            fail(ValueError, name, "a text other than those that stand for numbers in our files", repr(value))
        return value
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, dict):
        fail(TypeError, name, "None, a bool, number, text, list or dict", f"{value!r} of type {type(value).__name__}")
    for key in value:
        if not isinstance(key, str):
            fail(TypeError, f"each key of {name}", "a text", repr(key))
    return {key: plain(value[key], f"{name}[{key!r}]") for key in sorted(value)}


def _spell(value: Any) -> Any:
    """Replace numbers that are not finite by their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_spell(item) for item in value]
    if isinstance(value, dict):
        return {key: _spell(item) for key, item in value.items()}
    return value


def _unspell(value: Any) -> Any:
    """Undo `_spell`."""
    if isinstance(value, str):
        return _SPECIAL.get(value, value)
    if isinstance(value, list):
        return [_unspell(item) for item in value]
    if isinstance(value, dict):
        return {key: _unspell(item) for key, item in value.items()}
    return value


def to_json(value: Any, *, name: str = "value", indent: int | None = None) -> str:
    """Return the JSON text of a value, with sorted keys: equal values have equal texts.

    Examples
    --------
    >>> to_json({"q": 1.0, "lam": float("-inf")})
    '{"lam": "-Infinity", "q": 1.0}'
    """
    return json.dumps(_spell(plain(value, name)), indent=indent, allow_nan=False)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"the bare constant {text}")


def from_json(text: str | bytes) -> Any:
    """Return the value of a text written by `to_json`.

    Examples
    --------
    >>> from_json('{"lam": "-Infinity", "q": 1.0}')
    {'lam': -inf, 'q': 1.0}
    """
    return _unspell(json.loads(text, parse_constant=_refuse_constant))


def versions() -> dict[str, str]:
    """Return the versions numbers depend on, without importing the packages; those not installed are left out.

    Examples
    --------
    >>> sorted(versions())[:2]
    ['numpy', 'python']
    """
    found = {"python": platform.python_version(), "sparsegen": sparsegen.__version__}
    for name, package in (("numpy", "numpy"), ("scipy", "scipy"), ("sklearn", "scikit-learn"), ("torch", "torch")):
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _name(error: OSError, path: Path) -> None:
    """Make an error say which file it is about; that of a full disk does not."""
    if error.filename is None and error.errno is not None:
        error.filename = str(path)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Any]:
    """Open a file for bytes so that at every moment its name holds either the old content or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__  # torch hides it behind an error of its own
        if not isinstance(cause, OSError):
            raise
        _name(cause, path)
        raise cause from None
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file so that at every moment its name holds either the old text or the new one, whole.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_text(Path(folder) / "new" / "a.txt", "whole")
    ...     (Path(folder) / "new" / "a.txt").read_text()
    'whole'
    """
    with whole_file(path) as file:
        file.write(text.encode())


# What each field of a stored result is, in words and as types.
_FIELDS: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "experiment": ("a text", str),
    "config": ("a dict", dict),
    "seed": ("an integer", int),
    "rows": ("a list of dicts", list),
    "summary": ("a dict", dict),
    "versions": ("a dict", dict),
    "wall_time": ("a number of seconds", (int, float)),
    "started": ("a date and time as in ISO 8601", str),
}


def _check_field(name: str, value: Any, where: str) -> None:
    """Refuse a field of another kind than `_FIELDS` says."""
    condition, types = _FIELDS[name]
    good = isinstance(value, types) and not isinstance(value, bool)
    if name == "rows":
        good = good and all(isinstance(row, dict) for row in value)
    if name == "started" and good:
        try:
            datetime.fromisoformat(value)
        except ValueError:
            good = False
    if not good:
        text = repr(value)
        fail(ValueError, f"{name}{where}", condition, text if len(text) <= 60 else text[:60] + "...")


@dataclass(frozen=True)
class Result:
    """The outcome of one experiment: what was run, what came out, and with what.

    Values are copied and made plain when the record is made (see :func:`plain`), so it equals the one read back.

    Parameters
    ----------
    experiment : str
        Its name.
    config : dict
        The settings.
    seed : int
        The seed of the first repetition.
    rows : tuple of dict
        The measurements, a dict each.
    summary : dict
        What the experiment says of them.
    versions : dict
        See :func:`versions`.
    wall_time : float
        Seconds from start to end.
    started : str
        The moment it began, in ISO 8601.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> result = Result("toy", {"q": 1.0}, 0, ({"f1": 0.5},), {"best": 0.5}, versions(), 0.1, "2030-01-31T12:00:00")
    >>> with TemporaryDirectory() as folder:
    ...     result.save(Path(folder) / "toy.json")
    ...     Result.load(Path(folder) / "toy.json") == result
    True
    """

    experiment: str
    config: dict[str, Any]
    seed: int
    rows: tuple[dict[str, Any], ...]
    summary: dict[str, Any]
    versions: dict[str, str]
    wall_time: float
    started: str

    def __post_init__(self) -> None:
        for field in fields(self):
            value = plain(getattr(self, field.name), field.name)
            _check_field(field.name, value, " of a Result")
            object.__setattr__(self, field.name, tuple(value) if field.name == "rows" else value)

    def save(self, path: str | Path) -> None:
        """Write the record as JSON with sorted keys, whole or not at all; missing folders are made."""
        text = to_json({"format": FORMAT, "schema": SCHEMA, **asdict(self)}, indent=1)
        write_text(Path(path), text + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Read a record that `save` wrote; another or a torn file is refused by name and with the reason."""
        with open(path, "rb") as file:
            text = file.read()
        try:
            stored = from_json(text)
        except ValueError as error:  # of which JSONDecodeError and UnicodeDecodeError are kinds
            fail(ValueError, str(path), "a whole JSON file", f"{len(text)} bytes that are not: {error}")
        return cls(**_stored_fields(stored, path))


class Stopwatch:
    """Started before an experiment's work, it makes the Result at the end of it.

    Examples
    --------
    >>> result = Stopwatch().result("toy", {"q": 1.0}, 0, [{"f1": 0.5}], {"best": 0.5})
    >>> result.rows, result.wall_time < 60
    (({'f1': 0.5},), True)
    """

    def __init__(self) -> None:
        self._started, self._start = datetime.now().astimezone(), time.perf_counter()

    def result(
        self,
        experiment: str,
        config: dict[str, Any],
        seed: int,
        rows: Iterable[dict[str, Any]],
        summary: dict[str, Any],
    ) -> Result:
        """Return the Result, with the versions and the time since the start."""
        seconds = time.perf_counter() - self._start
        started = self._started.isoformat("T", "seconds")
        return Result(experiment, config, seed, tuple(rows), summary, versions(), seconds, started)


def _stored_fields(stored: Any, path: str | Path) -> dict[str, Any]:
    """Check what a file holds against the schema and return the fields of its record."""
    kind = stored.get("format") if isinstance(stored, dict) else None
    if kind != FORMAT:
        got = f"format {kind!r}" if isinstance(stored, dict) else f"a {type(stored).__name__}"
        fail(ValueError, str(path), f"a JSON object of format {FORMAT!r}", got)
    if stored.get("schema") != SCHEMA:
        fail(ValueError, f"the schema of {path}", f"{SCHEMA}, the one this version reads", stored.get("schema"))
    found = {name: value for name, value in stored.items() if name not in ("format", "schema")}
    if found.keys() != _FIELDS.keys():
        missing, unknown = sorted(_FIELDS.keys() - found.keys()), sorted(found.keys() - _FIELDS.keys())
        fail(ValueError, f"the fields of {path}", ", ".join(_FIELDS), f"missing {missing} and unknown {unknown}")
    for name, value in found.items():
        _check_field(name, value, f" in {path}")
    return found


class CellStore:
    """Outputs of the finished cells of a sweep, in memory and, if there is a folder, in its file ``cells.jsonl``.

    The file has one line for each cell: its key, arguments, output and seconds. A line without an end was cut short
    when the process was killed; it is dropped when the store is opened, and its cell counts as not run.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with CellStore.opened(folder) as store:
    ...         store.add("a", {"q": 1.0}, {"f1": 0.5}, seconds=0.1)
    ...     with CellStore.opened(folder) as store:
    ...         store.outputs
    {'a': {'f1': 0.5}}
    """

    def __init__(self, file: Any = None) -> None:
        self.outputs: dict[str, dict[str, Any]] = {}
        self._file = file

    @classmethod
    @contextlib.contextmanager
    def opened(cls, folder: str | Path | None) -> Iterator[CellStore]:
        """Open the store of a folder, made if missing, and repair it; one process at a time may."""
        if folder is None:
            yield cls()
            return
        path = Path(folder) / "cells.jsonl"
        if path.parent.exists() and not path.parent.is_dir():
            fail(ValueError, "store", "a folder", f"the file {folder}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab+", buffering=0) as file:
            _lock(file, path)
            store = cls(file)
            store._read(path)
            yield store

    def _read(self, path: Path) -> None:
        self._file.seek(0)
        text = self._file.read()
        end = text.rfind(b"\n") + 1
        if end < len(text):
            self._file.truncate(end)
        for number, line in enumerate(text[:end].split(b"\n")[:-1], 1):
            key, output = _stored_cell(line, number, path)
            self.outputs[key] = output

    def add(self, key: str, cell: dict[str, Any], output: dict[str, Any], seconds: float) -> None:
        """Keep an output; it is on disk when this returns."""
        self.outputs[key] = output
        if self._file is None:
            return
        line = to_json({"key": key, "cell": cell, "output": output, "seconds": seconds}) + "\n"
        rest = memoryview(line.encode())
        try:
            while rest:  # a raw write may take only a part
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            _name(error, Path(self._file.name))
            raise


def _lock(file: Any, path: Path) -> None:
    """Refuse a store that another process writes to: to repair it would cut that one's lines."""
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(RuntimeError, "store", "used by one sweep at a time", f"{path}, which another is writing to")


def _stored_cell(line: bytes, number: int, path: Path) -> tuple[str, dict[str, Any]]:
    try:
        entry = from_json(line)
        return entry["key"], entry["output"]
    except (ValueError, TypeError, KeyError):
        fail(ValueError, f"line {number} of {path}", "a finished cell as JSON", repr(line[:60]))
