"""Translation with attention by every map (Sec. 6.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sparsegen.experiments.ledger import Entry
from sparsegen.experiments.registry import Data, Part
from sparsegen.experiments.seq2seq import claims, significance
from sparsegen.experiments.seq2seq.comparison import (
    OPTIONS,
    Comparison,
    about,
    by_test,
    copied_table,
    figures,
    files,
    lead_table,
    train,
)
from sparsegen.experiments.store import Result
from sparsegen.experiments.tables import Column, Table, number

if TYPE_CHECKING:
    from sparsegen.experiments.seq2seq.splits import Split

# BLEU in the paper's table.
PAPER = {
    "softmax": {"fr-en": 36.38, "en-fr": 36.00},
    "softmax (with temp.)": {"fr-en": 36.63, "en-fr": 36.08},
    "sparsemax": {"fr-en": 36.73, "en-fr": 35.78},
    "sparsegen-lin": {"fr-en": 37.27, "en-fr": 35.78},
    "sparsehg": {"fr-en": 36.63, "en-fr": 35.69},
}


def score(test: str, written: list[str], split: Split) -> dict[str, Any]:
    """Score lines by BLEU."""
    from sparsegen.experiments.seq2seq import text_metrics

    found = text_metrics.bleu(written, split.references)
    return {"bleu": found.score, "signature": found.signature}


def statistics(test: str, written: list[str], split: Split) -> Any:
    """Return the counts of BLEU, line by line."""
    return significance.bleu_counts(written, split.references)


def line(row: dict[str, Any], test: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return BLEU and exact matches of a row, beside the paper's number for its direction."""
    corpus, _, direction = row["corpus"].partition("-")
    paper = None if corpus == "numbers" else PAPER.get(row["row"], {}).get(direction)  # the generated one is not its
    return {"bleu": found["bleu"], "exact_match": found["exact_match"], "paper": paper}


def tables(result: Result) -> Iterator[Table]:
    """Return BLEU, exact matches and support of every map, a table a test set."""
    for title, rows in by_test(result):
        beside = any(row["paper"] is not None for row in rows)
        titles = ("control", "BLEU", *(["paper"] if beside else []), "exact match", "support")
        lines = []
        for row in rows:
            control = "" if row["control"] is None else f"{row['control']:g}"
            scores = [number(row["bleu"]), *([number(row["paper"])] if beside else [])]
            lines.append((row["row"], control, *scores, f"{100 * row['exact_match']:.1f} %", number(row["support"])))
        columns = (Column("attention", "name"), *map(Column, titles))
        yield Table(about(title, rows, result), columns, tuple(lines))
        yield from lead_table(result, title, rows, "BLEU")
        yield from copied_table(title, rows)


def ledger(result: Result) -> list[Entry]:
    """Judge the paper's claims on translation."""
    return claims.of_translation(result)


def run(scale: str = "small", **options: Any) -> Result:
    """Run the experiment and return its Result; options are those of :func:`.generation.run`."""
    return train(EXPERIMENT, scale, **options)


CORPORA = ("multi30k-fr-en", "multi30k-en-fr")
EXPERIMENT = Comparison(
    name="translation",
    title="Translation",
    help="Translate with attention by every map: BLEU, support and heatmaps. numbers-fr-en needs no data.",
    order=50,
    run=run,
    options=OPTIONS,
    data=Data("Multi30k", "translation", lambda scale: files(CORPORA)),
    runs=(Part("numbers", {"corpora": ("numbers-fr-en",)}, needs_data=False), Part("translation")),
    tables=tables,
    ledger=ledger,
    figures=figures,
    corpora=CORPORA,
    measure="bleu",
    score=score,
    line=line,
    statistics=statistics,
    combine=significance.bleu_of,
    randomised=significance.randomised,
)
