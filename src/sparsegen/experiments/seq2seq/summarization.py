"""Summarization with attention by every map (Sec. 6.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsegen.experiments.ledger import Entry
from sparsegen.experiments.registry import Data, Part
from sparsegen.experiments.seq2seq import claims
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

# ROUGE-1, -2, -L in the paper's table.
PAPER = {
    "softmax": {
        "gigaword": (34.80, 16.64, 32.15), "duc2003": (27.95, 9.22, 24.54), "duc2004": (30.68, 12.24, 28.12),
    },
    "softmax (with temp.)": {
        "gigaword": (35.00, 17.15, 32.57), "duc2003": (27.78, 8.91, 24.53), "duc2004": (31.64, 12.89, 28.51),
    },
    "sparsemax": {
        "gigaword": (34.89, 16.88, 32.20), "duc2003": (27.29, 8.48, 24.04), "duc2004": (30.80, 12.01, 28.04),
    },
    "sparsegen-lin": {
        "gigaword": (35.90, 17.57, 33.37), "duc2003": (28.13, 9.00, 24.89), "duc2004": (31.85, 12.28, 29.13),
    },
    "sparsehg": {
        "gigaword": (35.14, 16.91, 32.66), "duc2003": (27.39, 9.11, 24.53), "duc2004": (30.64, 12.05, 28.18),
    },
}  # fmt: skip
PAPERS = "gigaword"  # what the paper trains on
MEASURES = {"rouge": "F1", "rouge_recall_75": "recall at 75 bytes"}


def score(test: str, written: list[str], split: Split) -> dict[str, Any]:
    """Score lines by ROUGE: its F1, or for the DUC sets its recall at 75 bytes."""
    from sparsegen.experiments.seq2seq import text_metrics

    if test.startswith("duc"):
        return {"rouge_recall_75": text_metrics.rouge_recall(written, split.references)}
    return {"rouge": text_metrics.rouge(written, split.references)}


def statistics(test: str, written: list[str], split: Split) -> Any:
    """Return ROUGE-L, of the kind the test set is scored by, and 1, line by line."""
    from sparsegen.experiments.seq2seq import text_metrics

    rouge = text_metrics.rouge_recall if test.startswith("duc") else text_metrics.rouge
    return np.array([[rouge([text], [wanted])["rougeL"], 1.0] for text, wanted in zip(written, split.references)])


def mean(sums: Any) -> Any:
    """Return the mean over lines from a sum and a number of lines."""
    return sums[..., 0] / sums[..., 1]


def line(row: dict[str, Any], test: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return the three ROUGE of a row on a test set, beside the paper's for models that were trained on Gigaword."""
    kind = "rouge_recall_75" if "rouge_recall_75" in found else "rouge"
    paper = PAPER.get(row["row"], {}).get(test) if row["corpus"] == PAPERS else None
    return {"measure": kind, **found[kind], "paper": paper}


def tables(result: Result) -> Iterator[Table]:
    """Return ROUGE and support of every map, a table a test set."""
    titles = ("R-1, R-2, R-L", "in the paper", "support")
    columns = (Column("attention", "name"), *map(Column, titles))
    for title, rows in by_test(result):
        lines = []
        for row in rows:
            name = row["row"] if row["control"] is None else f"{row['row']} {row['control']:g}"
            measured = " ".join(f"{row[key]:.2f}" for key in ("rouge1", "rouge2", "rougeL"))
            paper = "" if row["paper"] is None else " ".join(f"{value:.2f}" for value in row["paper"])
            lines.append((name, measured, paper, number(row["support"])))
        titled = f"{title}, ROUGE {MEASURES[rows[0]['measure']]}"
        yield Table(about(titled, rows, result), columns, tuple(lines))
        yield from lead_table(result, title, rows, "ROUGE-L")
        yield from copied_table(title, rows)


def ledger(result: Result) -> list[Entry]:
    """Judge the paper's claims on summarization."""
    return claims.of_summarization(result)


def run(scale: str = "small", **options: Any) -> Result:
    """Run the experiment and return its Result; options are those of :func:`.generation.run`."""
    return train(EXPERIMENT, scale, **options)


CORPORA = ("gigaword", "reuters", "acl")
EXPERIMENT = Comparison(
    name="summarization",
    title="Summarization",
    help="Write headlines with attention by every map, trained on Gigaword, Reuters and ACL: ROUGE, support, heatmaps.",
    order=60,
    run=run,
    options=OPTIONS,
    data=Data("Gigaword", "summarization", lambda scale: files([PAPERS])),
    runs=(Part("summarization", {"corpora": (PAPERS,)}),),  # the others take hours
    tables=tables,
    ledger=ledger,
    figures=figures,
    corpora=CORPORA,
    measure="rougeL",
    score=score,
    line=line,
    statistics=statistics,
    combine=mean,
)
