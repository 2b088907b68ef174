"""The rows of the paper's table of attention, which translation and summarization share, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparsegen._table.extras import needed
from sparsegen.experiments.registry import Experiment, Option, scaled_down
from sparsegen.experiments.store import Result

if TYPE_CHECKING:
    from sparsegen.experiments.drawings import Drawing
    from sparsegen.experiments.seq2seq.splits import Split


@dataclass(frozen=True)
class Row:
    """A row of the paper's table: a map and the values its control is chosen from."""

    name: str
    mapping: str
    grid: tuple[float, ...] = ()


ROWS = {
    row.name: row
    for row in (
        Row("softmax", "softmax"),
        Row("softmax (with temp.)", "softmax", (0.5, 2.0)),
        Row("sparsemax", "sparsemax"),
        Row("sparsegen-lin", "sparsegen_lin", (-1.0, 0.5, 0.75)),
        Row("sparsehg", "sparsehourglass", (0.1, 1.0, 10.0)),
    )
}
ALIASES = {"sparsegen_lin": "sparsegen-lin", "sparsehourglass": "sparsehg", "softmax-temp": "softmax (with temp.)"}
OPTIONS = (
    Option("corpora", "Names of corpora, with commas; else those of the experiment."),
    Option("maps", "Rows of the table, with commas: softmax, sparsemax, sparsegen-lin, sparsehg; else all."),
)


@dataclass(frozen=True, kw_only=True)
class Comparison(Experiment):
    """An experiment that trains every row of the table on some corpora; it is called as the task of its corpora.

    Parameters
    ----------
    corpora : tuple of str
        The first chooses the controls, the others take them over.
    score : callable
        From the name of a test set, the lines written and the Split to what is kept of them.
    line : callable
        From a row, the name of a test set and what was kept to the cells of its line in the paper's table.
    """

    corpora: tuple[str, ...]
    score: Callable[[str, list[str], Split], dict[str, Any]]
    line: Callable[[dict[str, Any], str, dict[str, Any]], dict[str, Any]]

    def table(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the paper's table: a line a map and test set, with the paper's numbers beside."""
        return [
            {"corpus": row["corpus"], "row": row["row"], "control": row["control"], "test": test}
            | {"support": found["support"], "source_words": found["source_words"]}
            | self.line(row, test, found)
            for row in rows
            for test, found in row["tests"].items()
        ]


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


def about(title: str, rows: list[dict[str, Any]], result: Result) -> str:
    """Return the title of a table with the length of the sources and the size of the run."""
    size = "; a scaled-down run" if scaled_down(result) else ""
    return f"{title}, {rows[0]['source_words']:.1f} source words{size}"


def figures(result: Result) -> Iterable[Drawing]:
    """Draw learning curves and attention."""
    from sparsegen.experiments.seq2seq import figures as drawn

    return drawn.drawings(result)
