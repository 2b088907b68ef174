"""What a report is made of, and how it is read from files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sparsegen._table.checks import fail
from sparsegen.experiments import registry
from sparsegen.experiments.store import FORMAT, Result, from_json
from sparsegen.report.tables import ledger_table, tables_of


class Missing(NamedTuple):
    """A part that the report does not have, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Contents:
    """What a report is made of.

    Parameters
    ----------
    results : dict of str to Result
        By name: that of the file, without its ending.
    missing : list of Missing
        What was left out, or failed.
    drawn : tuple of str
        Experiments that measure nothing whose figures are shown. `read` takes those that stand beside a Result.
    """

    results: dict[str, Result] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    drawn: tuple[str, ...] = ()


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Each file, and whether it was named itself; of folders those that end in .json, in the order of their names."""
    for path in paths:
        if path.is_dir():
            yield from ((file, False) for file in sorted(path.glob("*.json")))
        else:
            yield path, True


def _checked(result: Result, path: Path) -> Result:
    """Refuse a Result whose tables cannot be made, by name."""
    try:
        tables_of(result)
        ledger_table(result)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        got = f"one without {error}" if isinstance(error, KeyError) else str(error)
        fail(ValueError, str(path), f"a Result of {result.experiment} as this version writes it", got)
    except ValueError as error:
        raise ValueError(f"{error} It is in {path}.") from None
    return result


def _is_result(path: Path) -> bool:
    """Whether a file is a Result, or torn: loading it says so."""
    try:
        stored = from_json(path.read_bytes())
    except ValueError:
        return True
    return isinstance(stored, dict) and stored.get("format") == FORMAT


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    """The name, with a number behind it if it is taken."""
    names = (name, *(f"{name}-{i}" for i in range(2, len(taken) + 3)))
    return next(new for new in names if new not in taken)


def read(paths: Iterable[Path]) -> tuple[Contents, list[Path]]:
    """Read Results from files and folders; return them, and the files of folders that are something else.

    Parameters
    ----------
    paths : iterable of Path
        Of a folder the files that end in .json are read.

    Raises
    ------
    FileNotFoundError
        A file is not there.
    ValueError
        A file is torn, or was named itself and is no Result; or there is none at all.

    Examples
    --------
    >>> read([Path("nowhere.json")])
    Traceback (most recent call last):
        ...
    FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.json'
    """
    results: dict[str, Result] = {}
    others = []
    for path, asked in _files(paths):
        if asked or _is_result(path):
            results[_unused(path.stem, results)] = _checked(Result.load(path), path)
        else:
            others.append(path)
    if not results:
        fail(ValueError, "paths", "Results, or folders with one", ", ".join(map(str, others)) or "no JSON file")
    kinds = {result.experiment for result in results.values()}
    drawn = tuple(name for name, experiment in registry.experiments().items() if experiment.beside in kinds)
    return Contents(results, drawn=drawn), others
