"""F-score, divergence and sparsity of the synthetic documents, drawn from a Result.

Colours are those of Okabe and Ito, told apart by colour-blind readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparsegen.experiments.drawings import STYLE, Drawing
from sparsegen.experiments.store import Result

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


def drawings(result: Result) -> Iterator[Drawing]:
    """Yield micro F1, divergence and sparsity against the three settings."""
    lines = "A line for each pair with its 95 % band; the numbers are in the table."
    for measure in ("f1", "jsd"):
        title = TITLES[measure]
        caption = f"{title[0].upper()}{title[1:]} against the mean number of labels, its range, and the document length"
        yield Drawing(f"synthetic-{measure}", _panels(result, measure), caption, f"{caption}. {lines}")
    caption = "Nonzero probabilities against the mean number of labels, beside the number of true labels"
    yield Drawing("synthetic-sparsity", _sparsity(result), caption, f"{caption}. {lines}")
