"""Results as figures; nothing here trains. Colours are those of Okabe and Ito, told apart by colour-blind readers."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparsegen.experiments.store import Result, whole_file

try:
    import matplotlib as mpl
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ImportError(
        "sparsegen.experiments.drawings needs matplotlib, which is not installed: pip install 'sparsegen[experiments]'."
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


class Drawing(NamedTuple):
    """A figure of a Result with its file name, and in words: what it is, and what it shows to who cannot see it."""

    name: str
    figure: Figure
    caption: str
    alt: str


def _synthetic_drawings(result: Result) -> Iterator[Drawing]:
    lines = "A line for each pair with its 95 % band; the numbers are in the table."
    for measure in ("f1", "jsd"):
        title = TITLES[measure]
        caption = f"{title[0].upper()}{title[1:]} against the mean number of labels, its range, and the document length"
        yield Drawing(f"synthetic-{measure}", _panels(result, measure), caption, f"{caption}. {lines}")
    caption = "Nonzero probabilities against the mean number of labels, beside the number of true labels"
    yield Drawing("synthetic-sparsity", _sparsity(result), caption, f"{caption}. {lines}")


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
        kept = row["tests"][test]["samples"][sample]
        control = "" if row["control"] is None else f" ({row['control']:g})"
        shown = kept["written"][:MOST_WORDS]
        panels.append(Heatmap(f"{name}{control}", kept["source"], shown, kept["weights"][: len(shown)]))
    longest = max(len(panel.source) for panel in panels)
    return heatmaps(panels, columns=max(1, min(3, MOST_ACROSS // max(longest, 1))))


CURVES = {
    "softmax": ("#000000", ":"),
    "softmax (with temp.)": ("#E69F00", "-."),
    "sparsemax": ("#D55E00", "--"),
    "sparsegen-lin": ("#0072B2", "-"),
    "sparsehg": ("#009E73", "--"),
}


def learning_curves(result: Result) -> Figure:
    """Draw validation accuracy against the epoch, a panel a corpus, a line a map."""
    corpora = result.config["corpora"]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.0 * len(corpora), 2.5), layout="constrained")
        panels = figure.subplots(1, len(corpora), squeeze=False)[0]
        for axes, corpus in zip(panels, corpora):
            for row in (r for r in result.rows if r["corpus"] == corpus):
                colour, line = CURVES[row["row"]]
                x = [point["epoch"] + 1 for point in row["curve"]]
                y = [point["valid_accuracy"] for point in row["curve"]]
                axes.plot(x, y, color=colour, linestyle=line, linewidth=1.2, marker=".", markersize=4, label=row["row"])
            axes.set_xlabel("epoch")
            axes.set_title(corpus)
            axes.set_xlim(0.7, axes.get_xlim()[1] + 0.3)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        panels[0].set_ylabel("validation accuracy")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return figure


HEATMAP_ROWS = ("softmax", "sparsemax", "sparsegen-lin")


def _attention_drawings(result: Result) -> Iterator[Drawing]:
    caption = "Validation accuracy against the epoch"
    best = "; ".join(f"{row['corpus']}, {row['row']}: {row['valid_accuracy']:.3f}" for row in result.rows)
    yield Drawing(f"{result.experiment}-curves", learning_curves(result), caption, f"{caption}. At the best: {best}.")
    for corpus in result.config["corpora"]:
        rows = [row for row in result.rows if row["corpus"] == corpus and row["row"] in HEATMAP_ROWS]
        if rows:
            yield _heatmap_drawing(result, corpus, rows)


def _heatmap_drawing(result: Result, corpus: str, rows: list[dict[str, Any]]) -> Drawing:
    """The first sentence of the first test set under several maps."""
    test = next(iter(rows[0]["tests"]))
    samples = {row["row"]: row["tests"][test]["samples"][0] for row in rows}
    source = " ".join(next(iter(samples.values()))["source"])
    written = "; ".join(f"{name} writes: {' '.join(sample['written'])}" for name, sample in samples.items())
    figure = sample_heatmaps(result, corpus, test, 0, list(samples))
    caption = f"Attention on the first sentence of {test} ({corpus}): a line a written word, a column a source word"
    return Drawing(f"{corpus}-attention", figure, caption, f"Heatmaps for the source: {source}. {written}.")


DRAWINGS = {"synthetic": _synthetic_drawings, "translation": _attention_drawings, "summarization": _attention_drawings}


def drawings(result: Result) -> Iterator[Drawing]:
    """Yield the figures of a Result: F-score, JSD and sparsity, or learning curves and attention, or none."""
    return DRAWINGS[result.experiment](result) if result.experiment in DRAWINGS else iter(())


def draw(result: Result, folder: Path) -> list[Path]:
    """Draw the figures of a Result as PNG and SVG; return the paths."""
    return [path for drawn in drawings(result) for path in save(drawn.figure, folder / drawn.name)]
