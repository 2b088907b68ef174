"""Learning curves and attention heatmaps, drawn from a Result or from translations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from sparsegen.experiments.drawings import STYLE, Drawing
from sparsegen.experiments.store import Result


class Heatmap(NamedTuple):
    """Attention of one sentence: a row for each word written, a column for each source word."""

    title: str
    source: list[str]
    written: list[str]
    weights: Any  # (written, source)


HEAT = "Greys"  # dark for much
SHADES = Normalize(-0.15, 1)  # so that a small weight is not as white as none
CELL = 0.2  # inches
MOST_ACROSS = 54  # source words side by side, for a page's width
MOST_WORDS = 30  # of a sentence in a figure; models that were hardly trained repeat themselves


def _heat(axes: Any, panel: Heatmap) -> None:
    """Draw one sentence; cells of weight exactly 0 stay white, positive ones, however small, get a frame."""
    weights = np.asarray(panel.weights, dtype=float).reshape(len(panel.written), len(panel.source))
    if weights.size == 0:  # nothing was written
        axes.set_axis_off()
        axes.set_title(f"{panel.title}: no words")
        return
    axes.imshow(np.ma.masked_equal(weights, 0), cmap=HEAT, norm=SHADES, aspect="auto")
    for i, j in np.argwhere(weights > 0):
        axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor="#0072B2", linewidth=0.5))
    axes.set_xticks(range(len(panel.source)), panel.source, rotation=90)
    axes.set_yticks(range(len(panel.written)), panel.written)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)  # words with dollars are words
    axes.grid(False)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color("#999999")
    if panel.title:
        axes.set_xlabel(panel.title)


def heatmaps(panels: Sequence[Heatmap], columns: int = 3) -> Figure:
    """Draw attention heatmaps side by side, words legible, with one scale for all."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    words = max(len(p.source) for p in panels), max(len(p.written) for p in panels)
    letters = max((len(w) for p in panels for w in (*p.source, *p.written)), default=0)
    margin = 0.075 * letters
    width, height = words[0] * CELL + margin, words[1] * CELL + margin + 0.3
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(columns * width + 0.6, rows * height), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, panel in zip(grid, panels):
            _heat(axes, panel)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        bar = figure.colorbar(
            ScalarMappable(SHADES, HEAT), ax=grid.tolist(), shrink=0.6, pad=0.01, label="weight (framed: not 0)"
        )
        bar.ax.set_ylim(0, 1)
    return figure


def sample_heatmaps(result: Result, corpus: str, test: str, sample: int, rows: Sequence[str]) -> Figure:
    """Draw one test sentence under several maps of a translation or summarization Result."""
    panels = []
    for name in rows:
        row = next(r for r in result.rows if r["row"] == name and r["corpus"] == corpus)
        control = "" if row["control"] is None else f" ({row['control']:g})"
        panels.append(_panel(f"{name}{control}", row["tests"][test]["samples"][sample]))
    return _side_by_side(panels)


def _panel(title: str, sample: dict[str, Any]) -> Heatmap:
    shown = sample["written"][:MOST_WORDS]
    return Heatmap(title, sample["source"], shown, sample["weights"][: len(shown)])


def _side_by_side(panels: Sequence[Heatmap]) -> Figure:
    """As many heatmaps side by side as a page has room for."""
    longest = max(len(panel.source) for panel in panels)
    return heatmaps(panels, columns=max(1, min(3, MOST_ACROSS // max(longest, 1))))


CURVES = {
    "softmax": ("#000000", ":"),
    "softmax (with temp.)": ("#E69F00", "-."),
    "sparsemax": ("#D55E00", "--"),
    "sparsegen-lin": ("#0072B2", "-"),
    "sparsehg": ("#009E73", "--"),
    "entmax-1.5": ("#CC79A7", "-."),
    "sparsegen-softmax": ("#56B4E9", "-"),
}


def _mean_curve(rows: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Epochs, counted from 1, and the mean validation accuracy over the seeds of a row."""
    points = list(zip(*(row["curve"] for row in rows)))
    accuracy = [sum(point["valid_accuracy"] for point in each) / len(each) for each in points]
    return [each[0]["epoch"] + 1 for each in points], accuracy


def learning_curves(result: Result) -> Figure:
    """Draw validation accuracy against the epoch, a panel a corpus, a line a map, means over seeds."""
    corpora = result.config["corpora"]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.0 * len(corpora), 2.5), layout="constrained")
        panels = figure.subplots(1, len(corpora), squeeze=False)[0]
        for axes, corpus in zip(panels, corpora):
            own = [row for row in result.rows if row["corpus"] == corpus]
            for name in dict.fromkeys(row["row"] for row in own):
                colour, line = CURVES[name]
                x, y = _mean_curve([row for row in own if row["row"] == name])
                axes.plot(x, y, color=colour, linestyle=line, linewidth=1.2, marker=".", markersize=4, label=name)
            axes.set_xlabel("epoch")
            axes.set_title(corpus)
            axes.set_xlim(0.7, axes.get_xlim()[1] + 0.3)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        panels[0].set_ylabel("validation accuracy")
        drawn = {line.get_label(): line for axes in panels for line in axes.get_lines()}  # one may have rows of its own
        shown = {name: drawn[name] for name in CURVES if name in drawn}
        figure.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=3, frameon=False)
    return figure


HEATMAP_ROWS = ("softmax", "sparsemax", "sparsegen-lin")
DIALLED = "sparsegen_lin"  # whose heatmaps are shown for every value of its control


def drawings(result: Result) -> Iterator[Drawing]:
    """Yield the learning curves, and one sentence under several maps for each corpus."""
    caption = "Validation accuracy against the epoch"
    best = "; ".join(
        f"{row['corpus']}, {row['row']}, seed {row['seed']}: {row['valid_accuracy']:.3f}" for row in result.rows
    )
    yield Drawing(f"{result.experiment}-curves", learning_curves(result), caption, f"{caption}. At the best: {best}.")
    for corpus in result.config["corpora"]:
        rows = [row for row in result.rows if row["corpus"] == corpus and row["row"] in HEATMAP_ROWS]
        if rows:
            yield _heatmap_drawing(result, corpus, [row for row in rows if row["seed"] == rows[0]["seed"]])
        tried = [row for row in result.summary["tried"] if (row["corpus"], row["mapping"]) == (corpus, DIALLED)]
        shown = sorted((row for row in tried if row["samples"]), key=lambda row: row["control"])
        if shown:
            yield _dial_drawing(corpus, shown)


def _heatmap_drawing(result: Result, corpus: str, rows: list[dict[str, Any]]) -> Drawing:
    """The first sentence of the first test set under several maps."""
    test = next(iter(rows[0]["tests"]))
    samples = {row["row"]: row["tests"][test]["samples"][0] for row in rows}
    source = " ".join(next(iter(samples.values()))["source"])
    written = "; ".join(f"{name} writes: {' '.join(sample['written'])}" for name, sample in samples.items())
    figure = sample_heatmaps(result, corpus, test, 0, list(samples))
    caption = f"Attention on the first sentence of {test} ({corpus}): a line a written word, a column a source word"
    return Drawing(f"{corpus}-attention", figure, caption, f"Heatmaps for the source: {source}. {written}.")


def _dial_drawing(corpus: str, tried: list[dict[str, Any]]) -> Drawing:
    """The first validation sentence under each value of lam, each in a model that was trained with it."""
    figure = _side_by_side([_panel(f"lam = {row['control']:g}", row["samples"][0]) for row in tried])
    source = " ".join(tried[0]["samples"][0]["source"])
    support = ", ".join(f"lam {row['control']:g}: {row['support']:.2f}" for row in tried)
    caption = f"Attention of sparsegen-lin on the first validation sentence ({corpus}), in models trained with each lam"
    text = f"Heatmaps for the source: {source}. Source words a written word attends to, over validation: {support}."
    return Drawing(f"{corpus}-dial", figure, caption, text)
