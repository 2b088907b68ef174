"""Exact vectors, found in rational arithmetic by enumerating supports: maps with their products, losses, edges."""

from __future__ import annotations

import json
from pathlib import Path

_COLUMNS = {
    "maps": ("name", "function", "params", "z", "p_exact", "p", "support", "vjp"),
    "losses": ("name", "function", "params", "z", "eta", "y", "value_exact", "value", "slopes"),
    "edges": ("function", "params", "z", "p", "raises"),
}
_FOUND = json.loads(Path(__file__).with_suffix(".json").read_text())


def _cases(kind: str) -> list[dict]:
    return [dict(zip(_COLUMNS[kind], row, strict=True)) for row in _FOUND[kind]]


MAPS, LOSSES, EDGES = _cases("maps"), _cases("losses"), _cases("edges")
