"""Where data sets and training runs lie, and how worker processes learn of it: through the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DATA_VARIABLE = "SPARSEGEN_DATA"
RUNS_VARIABLE = "SPARSEGEN_RUNS"  # folder in which training runs are kept and resumed


def places(folder: str | Path | None, kind: str) -> list[Path]:
    """Folders that may hold files of a kind. One that was asked for is the only one: another's would be a surprise.

    >>> [place.as_posix() for place in places("mine", "multilabel")]
    ['mine', 'mine/multilabel']
    """
    asked = folder or os.environ.get(DATA_VARIABLE)
    root = Path(asked or "data")
    return [root, root / kind]


def chosen() -> dict[str, str | None]:
    """Return the folders that the environment names, None for one that it does not."""
    return {name: os.environ.get(name) for name in (DATA_VARIABLE, RUNS_VARIABLE)}


def choose(folders: dict[str, str | None]) -> None:
    """Make this process look where another does, by what :func:`chosen` said there.

    >>> before = chosen()
    >>> choose({DATA_VARIABLE: "mine"})
    >>> chosen()[DATA_VARIABLE]
    'mine'
    >>> choose(before)
    """
    for name, folder in folders.items():
        if folder is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = folder


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Environment for processes started within; undone at the end, with what others left in it meanwhile.

    >>> with environment({"SPARSEGEN_EXAMPLE": "1"}):
    ...     os.environ["SPARSEGEN_EXAMPLE"]
    '1'
    >>> "SPARSEGEN_EXAMPLE" in os.environ
    False
    """
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
