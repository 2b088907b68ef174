"""Measurements as figures: the ratio to torch.softmax against the size, on logarithmic scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from sparsegen.experiments import drawings

# Colour (Okabe and Ito's), marker and line of each implementation in every figure.
LOOKS = {
    "sparsegen": ("#0072B2", "o", "-"),
    "copy": ("#999999", "", "--"),
    "entmax sort": ("#D55E00", "s", "-"),
    "entmax top-k": ("#E69F00", "^", "-"),
    "entmax bisection": ("#CC79A7", "D", "-"),
    "PyPI sparsemax": ("#009E73", "v", "--"),
    "optax": ("#56B4E9", "P", "-"),
    "keras": ("#7B5B00", "X", "-"),
}
OTHER = ("#555555", ".", ":")

Line = tuple[str, list[float], list[float]]


def short(value: float) -> str:
    """A number on an axis.

    >>> short(0.3), short(100.0), short(30_000.0), short(1e6)
    ('0.3', '100', '30k', '1M')
    """
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def _panel(axes: Any, title: str, varies: str, lines: Sequence[Line]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.axhline(1, color="#000000", linewidth=1, linestyle=":", label="torch.softmax")
    for name, x, y in lines:
        colour, marker, line = LOOKS.get(name, OTHER)
        axes.plot(x, y, color=colour, marker=marker, linestyle=line, linewidth=1.3, markersize=4, label=name)
    axes.set_title(title)
    axes.set_xlabel(varies)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_locator(LogLocator(base=10, subs=(1.0, 3.0) if axis is axes.yaxis else (1.0,), numticks=12))


def _figure(panels: Sequence[tuple[str, str, list[Line]]]) -> Figure:
    with mpl.rc_context(drawings.STYLE):
        figure = Figure(figsize=(2.4 * len(panels) + 1.4, 3.0), layout="constrained")
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, panel in zip(grid, panels):
            _panel(axes, *panel)
        grid[0].set_ylabel("time / torch.softmax's")
        named = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels())}
        figure.legend(named.values(), named.keys(), loc="outside right center", frameon=False)
    return figure


def _lines(cases: Sequence[dict[str, Any]], key: str) -> list[Line]:
    """One line an implementation; cells without a time leave a gap to the next."""
    found = []
    for name in cases[0]["implementations"]:
        cells = [(row["K"], row["implementations"][name].get(key)) for row in sorted(cases, key=lambda row: row["K"])]
        timed = [(float(n), ratio) for n, ratio in cells if ratio is not None]
        if timed and name != "torch.softmax":
            found.append((name, [n for n, _ in timed], [ratio for _, ratio in timed]))
    return found


def maps(result: dict[str, Any]) -> Figure:
    """Forward ratio against K for every implementation with right answers, sparse and dense rows, fewest threads."""
    threads = min(row["threads"] for row in result["cases"])
    panels = []
    for density in ("sparse", "dense"):
        cases = [row for row in result["cases"] if (row["threads"], row["density"]) == (threads, density)]
        panels.append((f"{density} rows, {threads} thread(s)", "K", _lines(cases, "forward_to_softmax")))
    return _figure(panels)


def scaling(result: dict[str, Any]) -> Figure | None:
    """Forward ratio of the library and of a copy against K, rows and support; None if nothing was timed."""
    panels = []
    for section in result["sections"]:
        points = [point for point in section["points"] if "times" in point]
        if section["exponents"]:
            x = [float(point["value"]) for point in points]
            ours = [point["ratio"] for point in points]
            copy = [point["copy_ratio"] for point in points]
            title = f"{section['title']}\n{section['fixed'].split(', ')[0]}"
            panels.append((title, section["varies"], [("sparsegen", x, ours), ("copy", x, copy)]))
    return _figure(panels) if panels else None


DRAWN: dict[str, Callable[[dict[str, Any]], Figure | None]] = {"maps": maps, "scaling": scaling}


def draw(name: str, result: dict[str, Any], folder: Path) -> list[Path]:
    """Write the figure of a benchmark, where it has one; return the paths."""
    figure = DRAWN[name](result) if name in DRAWN else None
    return [] if figure is None else drawings.save(figure, folder / name)
