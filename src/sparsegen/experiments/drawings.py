"""How figures look and how they are written; nothing here trains."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

from sparsegen._table.extras import missing
from sparsegen.experiments.store import whole_file

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
except ImportError as error:
    raise missing("drawing figures", "matplotlib", "experiments") from error

STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "svg.hashsalt": "sparsegen",  # the same file for the same numbers
}


class Drawing(NamedTuple):
    """A figure of a Result with its file name, and in words: what it is, and what it shows to who cannot see it."""

    name: str
    figure: Figure
    caption: str
    alt: str


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and as SVG; return the paths."""
    return [save_as(figure, path.with_suffix(f".{kind}")) for kind in ("png", "svg")]


def rendered(figure: Figure, kind: str) -> bytes:
    """Return a figure as the bytes of a file: the same for the same figure."""
    undated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    file = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(file, format=kind, dpi=200, bbox_inches="tight", metadata=undated)
    return file.getvalue()


def save_as(figure: Figure, path: Path) -> Path:
    """Write a figure in the format its file name ends in, by way of a temporary name; return the path."""
    content = rendered(figure, path.suffix[1:])
    with whole_file(path) as file:
        file.write(content)
    return path
