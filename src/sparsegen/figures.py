"""Results as figures; nothing here trains. Colours are those of Okabe and Ito, told apart by colour-blind readers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sparsegen.experiments.results import Result

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ImportError(
        "sparsegen.figures needs matplotlib, which is not installed: pip install 'sparsegen[experiments]'."
    ) from error

# One look for each pair in every figure: colour, marker, its size, line. The last two often coincide: one stands around
# the other.
LOOKS = {
    "softmax+log": ("#000000", "o", 4, ":"),
    "sparsemax+huber": ("#D55E00", "s", 4, "--"),
    "sparsemax+hinge": ("#0072B2", "^", 7, "-"),
    "sparsehg+hinge": ("#009E73", ".", 5, "--"),
}
AXES = {
    "mean": "mean number of labels",
    "range": "range r of the number of labels",
    "length": "document length",
}
TITLES = {"f1": "micro F1", "jsd": "Jensen-Shannon divergence (nats)", "support": "nonzero probabilities"}
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


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and as SVG, by way of temporary names; return the paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for kind in ("png", "svg"):
        target, draft = path.with_suffix(f".{kind}"), path.with_name(f".{path.name}.tmp.{kind}")
        with mpl.rc_context(STYLE):
            figure.savefig(draft, dpi=200, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None)
        os.replace(draft, target)
        written.append(target)
    return written


def _curves(axes: Any, table: list[dict[str, Any]], setting: str, measure: str, pairs: list[str]) -> None:
    """One line a pair with its confidence band."""
    for pair in pairs:
        rows = sorted((r for r in table if r["setting"] == setting and r["pair"] == pair), key=lambda r: r["value"])
        colour, marker, size, line = LOOKS[pair]
        x = [row["value"] for row in rows]
        mean, low, high = zip(*(row[measure] for row in rows))
        axes.plot(x, mean, color=colour, marker=marker, markersize=size, linestyle=line, linewidth=1.2, label=pair)
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel(AXES[setting])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def _panels(result: Result, measure: str) -> Figure:
    """The three settings of one measure side by side."""
    table = result.summary["table"]
    settings = [name for name in AXES if any(row["setting"] == name for row in table)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.4 * len(settings), 2.5), layout="constrained")
        panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
        for axes, setting in zip(panels, settings):
            _curves(axes, table, setting, measure, list(LOOKS))
        panels[0].set_ylabel(TITLES[measure])
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    return figure


def _sparsity(result: Result) -> Figure:
    """Size of the output's support against the mean number of labels, with the truth beside it."""
    table = result.summary["table"]
    sparse = [pair for pair in LOOKS if pair != "softmax+log"]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.3, 2.7), layout="constrained")
        axes = figure.subplots()
        _curves(axes, table, "mean", "support", sparse)
        x = sorted({row["value"] for row in table if row["setting"] == "mean"})
        axes.plot(x, x, color="#999999", linewidth=1, label="true labels")
        axes.set_ylabel(TITLES["support"])
        axes.legend(frameon=False)
    return figure


def synthetic(result: Result, folder: Path) -> list[Path]:
    """Draw the paper's F-score, JSD and sparsity figures from a synthetic Result."""
    drawn = {"f1": _panels(result, "f1"), "jsd": _panels(result, "jsd"), "sparsity": _sparsity(result)}
    return [path for name, figure in drawn.items() for path in save(figure, folder / f"synthetic-{name}")]
