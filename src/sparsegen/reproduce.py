"""`sparsegen reproduce`: run an experiment, save its Result and figures, and show tables and ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from sparsegen.experiments.folders import DATA_VARIABLE, environment
from sparsegen.experiments.results import Result

VERDICT_STYLES = {"holds": "green", "holds partly": "yellow", "does not hold": "red", "not measured": "dim"}


def table(title: str, *columns: str) -> Table:
    """Make a table whose first column is text and the others numbers, narrow enough for 80 characters."""
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1), title_style="bold")
    for i, name in enumerate(columns):
        made.add_column(name, justify="right" if i else "left", no_wrap=True)
    return made


def ledger_of(result: Result) -> list[Any]:
    """Return the entries of the ledger that a Result speaks of."""
    from sparsegen.experiments.ledger import ledger

    return ledger(result)


def _ledger_table(result: Result) -> Table:
    made = Table(title="Ledger: what the paper claims, what was measured", title_justify="left", box=SIMPLE_HEAD,
                 title_style="bold", padding=(0, 1))  # fmt: skip
    for name in ("claim", "measured", "verdict"):
        made.add_column(name)
    for entry in ledger_of(result):
        style = VERDICT_STYLES[entry.verdict]
        made.add_row(f"{entry.claim} ({entry.source})", entry.measured, f"[{style}]{entry.verdict}[/{style}]")
    return made


def _synthetic_table(result: Result, measure: str, title: str) -> Table:
    """One line a point, one column a pair: the mean and half the width of its confidence interval."""
    lines: dict[tuple[str, Any], dict[str, str]] = {}
    for row in result.summary["table"]:
        mean, low, high = row[measure]
        digits = 2 if measure == "support" else 3
        text = f"{mean:.{digits}f} ±{(high - low) / 2:.{digits}f}"
        lines.setdefault((row["setting"], row["value"]), {})[row["pair"]] = text
    pairs = result.config["pairs"]
    made = table(title, "setting", *(pair.replace("+", "\n+") for pair in pairs))
    for (setting, value), found in lines.items():
        made.add_row(f"{setting} {value}", *(found[pair] for pair in pairs))
    return made


def _real_table(result: Result) -> Table:
    made = table("Micro F1 on real data, beside the paper", "set", "pair", "F1", "paper", "support", "relative gap")
    made.columns[1].justify = "left"
    last = ""
    for row in result.summary["table"]:
        paper = f"{row['paper']:.2f}" if "paper" in row else ""
        name = "" if row["name"] == last else row["name"]
        last = row["name"]
        made.add_row(name, row["pair"], f"{row['f1']:.3f}", paper, f"{row['support']:.2f}", f"{row['gap']:.0e}")
    return made


def _by_test(result: Result) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The lines of the paper's table for each corpus and test set."""
    table = result.summary["table"]
    for corpus, test in dict.fromkeys((row["corpus"], row["test"]) for row in table):
        yield (
            corpus if test in corpus else f"{corpus}: {test}",
            [row for row in table if (row["corpus"], row["test"]) == (corpus, test)],
        )


def _size(result: Result) -> str:
    return "" if result.config["scale"] == "paper" else "; a scaled-down run"


def _plain(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _translation_tables(result: Result) -> Iterator[Table]:
    for title, rows in _by_test(result):
        about = f"{title}, {rows[0]['source_words']:.1f} source words{_size(result)}"
        beside = any(row["paper"] is not None for row in rows)
        made = table(about, "attention", "control", "BLEU", *(["paper"] if beside else []), "exact match", "support")
        for row in rows:
            control = "" if row["control"] is None else f"{row['control']:g}"
            exact = f"{100 * row['exact_match']:.1f} %"
            scores = [_plain(row["bleu"]), *([_plain(row["paper"])] if beside else [])]
            made.add_row(row["row"], control, *scores, exact, _plain(row["support"]))
        yield made


def _summarization_tables(result: Result) -> Iterator[Table]:
    for title, rows in _by_test(result):
        measure = "recall at 75 bytes" if rows[0]["measure"] == "rouge_recall_75" else "F1"
        about = f"{title}, ROUGE {measure}, {rows[0]['source_words']:.1f} source words{_size(result)}"
        made = table(about, "attention", "R-1, R-2, R-L", "in the paper", "support")
        for row in rows:
            name = row["row"] if row["control"] is None else f"{row['row']} {row['control']:g}"
            measured = " ".join(f"{row[key]:.2f}" for key in ("rouge1", "rouge2", "rougeL"))
            paper = "" if row["paper"] is None else " ".join(f"{value:.2f}" for value in row["paper"])
            made.add_row(name, measured, paper, _plain(row["support"]))
        yield made


MARKS = {
    "idempotent": "idem.",
    "monotone": "mono.",
    "translation": "transl.",
    "scale": "scale",
    "full_domain": "domain",
}


def _properties_tables(result: Result) -> Iterator[Table]:
    """The paper's Table 1 as measured; where the paper says otherwise, its word in brackets."""
    made = table("Table 1 as measured (the paper's word in brackets where it differs)", "map", *MARKS.values(), "slope")
    for row in result.rows:
        claimed = row["claimed"] or row["measured"]
        cells = [
            value if claimed[column] == value else f"{value} [dim]({claimed[column]})[/dim]"
            for column, value in ((column, row["measured"][column]) for column in MARKS)
        ]
        slope = row["measured"]["lipschitz"].replace("sqrt((1 + Kq)^2 + K - 1)/(Kq)", "see E3")
        made.add_row(row["name"].replace("sum_normalization", "sum_norm"), *cells, slope)
    yield made
    shown = Table(title="Errata, in numbers", title_justify="left", box=SIMPLE_HEAD, title_style="bold", padding=(0, 1))
    for name in ("", "the paper", "measured"):
        shown.add_column(name)
    for line in result.summary["errata"]:
        shown.add_row(line["name"], line["claim"], line["measured"])
    yield shown


TABLES = {"properties": _properties_tables, "translation": _translation_tables, "summarization": _summarization_tables}


def show(result: Result, console: Console) -> None:
    """Print the tables and the ledger of a Result."""
    if result.experiment in TABLES:
        for made in TABLES[result.experiment](result):
            console.print(made)
        if result.experiment == "properties":
            equal = f"{result.summary['equal']} of {result.summary['cells']} cells"
            console.print(f"{equal} measured equal what docs/math.md (E6) says holds.", highlight=False)
        elif ledger_of(result):
            console.print(_ledger_table(result))
        return
    if result.experiment == "real":
        console.print(_real_table(result))
    else:
        titles = {"f1": "Micro F1", "jsd": "Jensen-Shannon divergence (nats)", "support": "Nonzero probabilities"}
        for measure, title in titles.items():
            bands = f"{title}: mean over {result.config['seeds']} seeds, 95 % interval"
            console.print(_synthetic_table(result, measure, bands))
    console.print(_ledger_table(result))
    gap = result.summary["largest_gap"]
    console.print(
        f"Every fit is within {gap:.1e} (relative) of the convex optimum, by its duality gap.", highlight=False
    )


def _watched(console: Console, title: str, work: Callable[[Callable[..., None]], Result]) -> Result:
    """Run `work` with a progress bar; a sweep that follows another starts the bar anew."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title)

        def moved(done: int, total: int, cell: Any, seconds: float) -> None:
            progress.update(task, completed=done, total=total)
            if not console.is_terminal and cell is not None:  # where no bar can move
                console.print(f"{title}: {done} of {total} after {seconds:.0f} s", highlight=False)

        return work(moved)


def _figures(result: Result, folder: Path) -> list[Path]:
    from sparsegen import figures

    drawn = {"synthetic": figures.synthetic, "translation": figures.attention, "summarization": figures.attention}
    return drawn[result.experiment](result, folder) if result.experiment in drawn else []


def _runner(experiment: str) -> Callable[..., Result]:
    from sparsegen.experiments import real, synthetic

    if experiment == "properties":
        from sparsegen.experiments import laws

        return laws.run
    if experiment in TABLES:
        try:
            from sparsegen.experiments import generation
        except ImportError as error:
            raise ImportError(f"{experiment} needs {error.name}: pip install 'sparsegen[all]'.") from error
        return partial(generation.run, experiment)
    return {"synthetic": synthetic.run, "real": real.run}[experiment]


def run(experiment: str, *, out: Path, data: Path | None, console: Console, **options: Any) -> Result:
    """Run an experiment, resuming what an earlier run left in `out`; save, draw and show it."""
    folder = out / experiment
    named = {} if data is None else {DATA_VARIABLE: str(data.resolve())}  # where worker processes find it, too
    with environment(named):
        run_it = _runner(experiment)
        result = _watched(console, experiment, lambda moved: run_it(store=folder, progress=moved, **options))
    path = out / f"{experiment}.json"
    result.save(path)
    show(result, console)
    for written in [path, *_figures(result, folder)]:
        console.print(f"wrote {written}", highlight=False, soft_wrap=True)
    return result
