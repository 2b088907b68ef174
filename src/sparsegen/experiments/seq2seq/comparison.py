"""The rows of the paper's table of attention, which translation and summarization share, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsegen._table.extras import needed
from sparsegen.experiments.registry import Experiment, Option, scaled_down
from sparsegen.experiments.seq2seq import significance
from sparsegen.experiments.store import Result
from sparsegen.experiments.tables import Column, Table

if TYPE_CHECKING:
    from sparsegen.experiments.drawings import Drawing
    from sparsegen.experiments.seq2seq.splits import Split


@dataclass(frozen=True)
class Row:
    """A row of the paper's table, or one added to it: a map and the values its control is chosen from."""

    name: str
    mapping: str
    grid: tuple[float, ...] = ()
    papers: bool = True  # what the paper claims is judged by its own rows alone


ROWS = {
    row.name: row
    for row in (
        Row("softmax", "softmax"),
        Row("softmax (with temp.)", "softmax", (0.5, 2.0)),
        Row("sparsemax", "sparsemax"),
        Row("sparsegen-lin", "sparsegen_lin", (-1.0, 0.5, 0.75)),
        Row("sparsehg", "sparsehourglass", (0.1, 1.0, 10.0)),
        Row("entmax-1.5", "entmax15", papers=False),
        Row("sparsegen-softmax", "sparsegen_softmax", (0.25, 0.5), papers=False),
    )
}
ALIASES = {"sparsegen_lin": "sparsegen-lin", "sparsehourglass": "sparsehg", "softmax-temp": "softmax (with temp.)"}
PAPERS_ROWS = tuple(name for name, row in ROWS.items() if row.papers)
BASES = ("softmax", "sparsemax")  # the rows that the paper compares its own with
OPTIONS = (
    Option("corpora", "Names of corpora, with commas; else those of the experiment."),
    Option("maps", "Rows of the table, with commas: softmax, sparsegen-lin, entmax-1.5 and the like; else all."),
    Option("controls_from", "A corpus whose validation chooses the controls for all; else each for itself.", str),
    Option("seeds", "How many seeds each row is trained with, from --seed on.", int),
)


@dataclass(frozen=True, kw_only=True)
class Comparison(Experiment):
    """An experiment that trains every row of the table on some corpora; it is called as the task of its corpora.

    Parameters
    ----------
    corpora : tuple of str
    measure : str
        What rows are compared by, a cell of a line.
    score : callable
        From the name of a test set, the lines written and the Split to what is kept of them.
    line : callable
        From a row, the name of a test set and what was kept to the cells of its line in the paper's table.
    statistics, combine : callable
        From the name of a test set, the lines written and the Split to what is added up over lines, (lines, any); and
        from such sums to the measure.
    randomised : callable, optional
        From two texts and the references to the p-value of a paired test of a library.
    """

    corpora: tuple[str, ...]
    measure: str
    score: Callable[[str, list[str], Split], dict[str, Any]]
    line: Callable[[dict[str, Any], str, dict[str, Any]], dict[str, Any]]
    statistics: Callable[[str, list[str], Split], Any]
    combine: Callable[[Any], Any]
    randomised: Callable[[list[str], list[str], Any], float] | None = None

    def kept(self, saved: Result, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return, in words, the corpora and rows of a saved Result that a run with these options does not train."""
        from sparsegen.experiments.seq2seq import joining

        corpora, lender = options.get("corpora") or self.corpora, options.get("controls_from")
        config = {"corpora": corpora, "maps": meant(options.get("maps", ())) or tuple(ROWS)}
        config |= {"scale": options.get("scale", "small"), "seeds": options.get("seeds", 1)}
        config["controls_from"] = dict.fromkeys(corpora, lender) if lender else {}
        return tuple(joining.announced(saved, config, options.get("seed", 0)))

    def replaced(self, saved: Result, result: Result) -> tuple[str, ...]:
        """Return, in words, what a saved Result has of corpora that were trained on again and `result` has not."""
        from sparsegen.experiments.seq2seq import joining

        return tuple(joining.replaced(saved, result))

    def table(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the paper's table: a line a map and test set, means over seeds, with the paper's numbers beside."""
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in rows:
            groups.setdefault((row["corpus"], row["row"]), []).append(row)
        return [self._mean_line(group, test) for group in groups.values() for test in group[0]["tests"]]

    def _mean_line(self, group: list[dict[str, Any]], test: str) -> dict[str, Any]:
        """The line of one row of the table on one test set, from the runs of its seeds."""
        lines = [
            {"support": found["support"], "source_words": found["source_words"], **self.line(row, test, found)}
            for row, found in ((row, row["tests"][test]) for row in group)
        ]
        means = {
            name: sum(line[name] for line in lines) / len(lines) if isinstance(value, float) else value
            for name, value in lines[0].items()
        }
        known = {"corpus": group[0]["corpus"], "row": group[0]["row"], "control": group[0]["control"], "test": test}
        means |= _copied([row["tests"][test] for row in group])
        return {**known, **means, "seeds": [row["seed"] for row in group], "each": [x[self.measure] for x in lines]}

    def leads(self, corpus: str, rows: list[dict[str, Any]], tests: dict[str, Split]) -> list[dict[str, Any]]:
        """Return by how much each row of a corpus is ahead of softmax and of sparsemax on each test set."""
        names = list(dict.fromkeys(row["row"] for row in rows))
        found = []
        for test, split in tests.items():
            texts = {name: [row["tests"][test]["written"] for row in rows if row["row"] == name] for name in names}
            counts = {
                name: np.stack([self.statistics(test, each, split) for each in written])
                for name, written in texts.items()
            }
            for base in (base for base in BASES if base in names):
                for name in (name for name in names if name != base):
                    row = {"corpus": corpus, "test": test, "row": name, "base": base}
                    row |= significance.lead(counts[name], counts[base], self.combine)
                    if self.randomised is not None:
                        pairs = zip(texts[name], texts[base])
                        row["p_each"] = [self.randomised(mine, theirs, split.references) for mine, theirs in pairs]
                    found.append(row)
        return found


def _copied(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The share of the words written that were copied from the source, and how many of these were right, over seeds.

    Runs of before these were counted say nothing.
    """
    if any("copied" not in each for each in found):
        return {}
    words, copied, right = (sum(each[name] for each in found) for name in ("words", "copied", "copied_right"))
    return {"copied": copied / words if words else 0.0, "copied_right": right / copied if copied else None}


def meant(maps: Iterable[str]) -> tuple[str, ...]:
    """Return the rows that names or their aliases stand for."""
    return tuple(ALIASES.get(name, name) for name in maps)


def files(corpora: Iterable[str]) -> list[str]:
    """Return the names of the files that corpora are read from."""
    from sparsegen.experiments.seq2seq.corpora import CORPORA

    return [file for name in corpora for file in CORPORA[name].files]


def train(experiment: Comparison, scale: str, **options: Any) -> Result:
    """Train and score every row; see :func:`sparsegen.experiments.seq2seq.generation.run`."""
    with needed(experiment.name, "all"):
        from sparsegen.experiments.seq2seq import generation
    return generation.run(experiment, scale, **options)


def by_test(result: Result) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield a title, and the lines of the paper's table, for each corpus and test set."""
    table = result.summary["table"]
    for corpus, test in dict.fromkeys((row["corpus"], row["test"]) for row in table):
        yield (
            corpus if test in corpus else f"{corpus}: {test}",
            [row for row in table if (row["corpus"], row["test"]) == (corpus, test)],
        )


def lead_table(result: Result, title: str, rows: list[dict[str, Any]], measure: str) -> Iterator[Table]:
    """Yield how far the rows of a table are ahead of softmax, where there is another row."""
    where = (rows[0]["corpus"], rows[0]["test"], "softmax")
    leads = [lead for lead in result.summary["leads"] if (lead["corpus"], lead["test"], lead["base"]) == where]
    lines = (
        (lead["row"], f"{lead['lead']:+.2f}", f"{lead['low']:+.2f} to {lead['high']:+.2f}", f"{lead['p']:.3f}")
        for lead in leads
    )
    columns = (Column("attention", "name"), *map(Column, (measure, "95 % of draws", "p")))
    if leads:
        yield Table(f"{title}, ahead of softmax", columns, tuple(lines))


def copied_table(title: str, rows: list[dict[str, Any]]) -> Iterator[Table]:
    """Yield how often an unknown word was replaced by the source word it attends to, where that was counted."""
    lines = tuple((row["row"], share(row["copied"]), share(row["copied_right"])) for row in rows if "copied" in row)
    columns = (Column("attention", "name"), *map(Column, ("of all words", "of these in a reference")))
    if lines:
        yield Table(f"{title}, words copied from the source", columns, lines)


def share(value: float | None) -> str:
    """Return a share in per cent; there is none of nothing."""
    return "" if value is None else f"{100 * value:.1f} %"


def about(title: str, rows: list[dict[str, Any]], result: Result) -> str:
    """Return the title of a table with the length of the sources and the size of the run."""
    size = "; a scaled-down run" if scaled_down(result) else ""
    seeds = len(rows[0]["seeds"])
    runs = f", means of {seeds} seeds" if seeds > 1 else ", one seed"
    return f"{title}, {rows[0]['source_words']:.1f} source words{runs}{size}"


def figures(result: Result) -> Iterable[Drawing]:
    """Draw learning curves and attention."""
    from sparsegen.experiments.seq2seq import figures as drawn

    return drawn.drawings(result)
