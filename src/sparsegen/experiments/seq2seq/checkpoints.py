"""Files that hold a model, its vocabularies and, if training is to go on, everything training needs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from sparsegen._table.checks import fail
from sparsegen.experiments.store import whole_file

FORMAT = "sparsegen seq2seq"
SCHEMA = 1


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint so that its name holds either the old or the new one, whole."""
    with whole_file(path) as file:
        torch.save({"format": FORMAT, "schema": SCHEMA, **content}, file)


def load(path: str | Path, device: Any = "cpu", needed: Iterable[str] = ()) -> dict[str, Any]:
    """Read a checkpoint with what is needed; no code in it is run. A torn file, or one of another kind, is refused.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "model.pt"
    ...     save(path, {"epoch": 3})
    ...     load(path)["epoch"]
    3
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is not there. A checkpoint is made by: sparsegen train")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch remarks on pickles of other kinds, which are refused anyway
            found = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # a torn or foreign file may raise anything, OSError included
        fail(
            ValueError,
            str(path),
            "a whole checkpoint of tensors and plain values",
            f"one torch cannot read: {_line(error)}",
        )
    kind = found.get("format") if isinstance(found, dict) else None
    if kind != FORMAT:
        fail(ValueError, str(path), f"a checkpoint of format {FORMAT!r}", f"format {kind!r}")
    if found.get("schema") != SCHEMA:
        fail(ValueError, f"the schema of {path}", f"{SCHEMA}, the one this version reads", found.get("schema"))
    for name in needed:
        if name not in found:
            fail(ValueError, str(path), f"a checkpoint with {name!r} in it", "one without")
    return found


def _line(error: Exception) -> str:
    """The beginning of an error: torch's own may run over pages, and others are a bare number."""
    text = str(error).split("\n")[0].split(". ")[0][:120]
    return text if " " in text else type(error).__name__
