"""The figures of the documents that show results/, each with a stamp that says which file it was drawn from."""

from __future__ import annotations

import hashlib
import runpy
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from marks import ROOT, as_result
from performance import ordered

from sparsegen.bench import draw
from sparsegen.report import figures

START = 33  # of a PNG's chunks after its signature and its header
KEY = b"results"


def maps(found: dict[str, Any]) -> Any:
    """The figure of the maps, its lines in the order of the tables."""
    for case in found["cases"]:
        case["implementations"] = {name: case["implementations"][name] for name in ordered(case["implementations"])}
    return draw.maps(found)


def drawing(name: str) -> Callable[[dict[str, Any]], Any]:
    """The figure of that name among those of a Result."""
    return lambda found: next(d.figure for d in figures.figures_of(as_result(found)) if d.name == name)


def example(name: str) -> Callable[[dict[str, Any]], Any]:
    """The figure of an example, drawn as it draws it."""

    def drawn(found: dict[str, Any]) -> Any:
        folder = ROOT / "examples"
        with mock.patch.object(sys, "path", [str(folder), *sys.path]):  # it may import what examples share
            return runpy.run_path(str(folder / f"{name}.py"))["drawn"](found)

    return drawn


# The file of each figure, and what draws it.
PICTURES: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "maps": ("maps", maps),
    "scaling": ("scaling", draw.scaling),
    "language-model": ("language-model", example("sparse_language_model")),
    "distillation": ("distillation", example("sparse_distillation")),
    "policy": ("policy", example("sparse_policy")),
    "memory": ("memory", example("sparse_memory")),
    "synthetic-f1": ("synthetic", drawing("synthetic-f1")),
    "translation-curves": ("translation", drawing("translation-curves")),
    "multi30k-attention": ("translation", drawing("multi30k-fr-en-attention")),
    "numbers-attention": ("numbers", drawing("numbers-fr-en-attention")),
}


def stamp(file: str) -> str:
    """What a figure of a file of results/ is stamped with."""
    content = (ROOT / "results" / f"{file}.json").read_bytes()
    return f"{file}.json {hashlib.sha256(content).hexdigest()}"


def stamped(png: bytes, text: str) -> bytes:
    """Return a PNG with a line of text in it, which viewers do not show."""
    chunk = b"tEXt" + KEY + b"\0" + text.encode("ascii")
    whole = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return png[:START] + whole + png[START:]


def stamp_of(png: bytes) -> str | None:
    """Return what `stamped` wrote into a PNG."""
    head = b"tEXt" + KEY + b"\0"
    if png[START + 4 : START + 4 + len(head)] != head:
        return None
    (size,) = struct.unpack(">I", png[START : START + 4])
    return png[START + 4 + len(head) : START + 8 + size].decode("ascii")


def path_of(name: str) -> Path:
    return ROOT / "docs" / "figures" / f"{name}.png"
