"""Results as tables of plain texts, made once: the terminal and the report print the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sparsegen._table.checks import fail
from sparsegen.experiments.ledger import HOLDS, NOT, PARTLY, UNKNOWN, ledger
from sparsegen.experiments.store import Result

# A name heads its line; a group is a name that several lines share; a mark may have another word in brackets; a text
# may be long, a word not.
Kind = Literal["name", "group", "number", "mark", "word", "text", "verdict"]
VERDICTS = (HOLDS, PARTLY, NOT, UNKNOWN)


class Column(NamedTuple):
    """The head of a column: its title, what its cells are, and a shorter title for narrow places."""

    title: str
    kind: Kind = "number"
    short: str = ""


@dataclass(frozen=True)
class Table:
    """A table of texts, with sentences that belong under it.

    Examples
    --------
    >>> table = Table("Speed", (Column("map", "name"), Column("ratio")), (("softmax", "1.00"),))
    >>> [column.title for column in table.columns], table.rows[0]
    (['map', 'ratio'], ('softmax', '1.00'))
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def scaled_down(result: Result) -> bool:
    """Tell whether a Result comes from less than the paper's sizes.

    Table 1 has one size, and the small scale of the real sets is the paper's three sets in full.

    Examples
    --------
    >>> about = (0, (), {}, {}, 1.0, "2030-01-31T12:00:00")
    >>> [scaled_down(Result(name, {"scale": "small"}, *about)) for name in ("synthetic", "real", "properties")]
    [True, False, False]
    """
    full = {"properties": ("smoke", "small", "paper"), "real": ("small", "paper")}.get(result.experiment, ("paper",))
    return result.config.get("scale", "paper") not in full


def _optimum(result: Result) -> str:
    gap = result.summary["largest_gap"]
    return f"Every fit is within {gap:.1e} (relative) of the convex optimum, by its duality gap."


MEASURES = {"f1": "Micro F1", "jsd": "Jensen-Shannon divergence (nats)", "support": "Nonzero probabilities"}


def _measured(result: Result, measure: str) -> tuple[tuple[str, ...], ...]:
    """One line a point, one cell a pair: the mean and half the width of its confidence interval."""
    lines: dict[tuple[str, Any], dict[str, str]] = {}
    digits = 2 if measure == "support" else 3
    for row in result.summary["table"]:
        mean, low, high = row[measure]
        text = f"{mean:.{digits}f} ±{(high - low) / 2:.{digits}f}"
        lines.setdefault((row["setting"], row["value"]), {})[row["pair"]] = text
    pairs = result.config["pairs"]
    return tuple((f"{name} {value}", *(found[pair] for pair in pairs)) for (name, value), found in lines.items())


def _synthetic(result: Result) -> Iterator[Table]:
    pairs = (Column(pair, short=pair.replace("+", "\n+")) for pair in result.config["pairs"])
    columns = (Column("setting", "name"), *pairs)
    for measure, title in MEASURES.items():
        about = f"{title}: mean over {result.config['seeds']} seeds, 95 % interval"
        notes = (_optimum(result),) if measure == "support" else ()  # once, at the end
        yield Table(about, columns, _measured(result, measure), notes)


def _real(result: Result) -> Iterator[Table]:
    table = result.summary["table"]
    beside = any("paper" in row for row in table)
    rows = []
    for row in table:
        scores = (f"{row['f1']:.3f}", *([_plain(row.get("paper"))] if beside else []))
        rows.append((row["name"], row["pair"], *scores, _plain(row["support"]), f"{row['gap']:.0e}"))
    titles = ("F1", *(["paper"] if beside else []), "support", "relative gap")
    columns = (Column("set", "group"), Column("pair", "name"), *map(Column, titles))
    title = f"Micro F1 on real data{', beside the paper' if beside else ''}"
    yield Table(title, columns, tuple(rows), (_optimum(result),))


def _by_test(result: Result) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The lines of the paper's table for each corpus and test set."""
    table = result.summary["table"]
    for corpus, test in dict.fromkeys((row["corpus"], row["test"]) for row in table):
        yield (
            corpus if test in corpus else f"{corpus}: {test}",
            [row for row in table if (row["corpus"], row["test"]) == (corpus, test)],
        )


def _size(result: Result) -> str:
    return "; a scaled-down run" if scaled_down(result) else ""


def _plain(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _translation(result: Result) -> Iterator[Table]:
    for title, rows in _by_test(result):
        about = f"{title}, {rows[0]['source_words']:.1f} source words{_size(result)}"
        beside = any(row["paper"] is not None for row in rows)
        titles = ("control", "BLEU", *(["paper"] if beside else []), "exact match", "support")
        lines = []
        for row in rows:
            control = "" if row["control"] is None else f"{row['control']:g}"
            scores = [_plain(row["bleu"]), *([_plain(row["paper"])] if beside else [])]
            lines.append((row["row"], control, *scores, f"{100 * row['exact_match']:.1f} %", _plain(row["support"])))
        yield Table(about, (Column("attention", "name"), *map(Column, titles)), tuple(lines))


def _summarization(result: Result) -> Iterator[Table]:
    columns = (Column("attention", "name"), *map(Column, ("R-1, R-2, R-L", "in the paper", "support")))
    for title, rows in _by_test(result):
        measure = "recall at 75 bytes" if rows[0]["measure"] == "rouge_recall_75" else "F1"
        about = f"{title}, ROUGE {measure}, {rows[0]['source_words']:.1f} source words{_size(result)}"
        lines = []
        for row in rows:
            name = row["row"] if row["control"] is None else f"{row['row']} {row['control']:g}"
            measured = " ".join(f"{row[key]:.2f}" for key in ("rouge1", "rouge2", "rougeL"))
            paper = "" if row["paper"] is None else " ".join(f"{value:.2f}" for value in row["paper"])
            lines.append((name, measured, paper, _plain(row["support"])))
        yield Table(about, columns, tuple(lines))


MARKS = {
    "idempotent": Column("idempotent", "mark", "idem."),
    "monotone": Column("monotone", "mark", "mono."),
    "translation": Column("translation", "mark", "shift"),
    "scale": Column("scale", "mark"),
    "full_domain": Column("full domain", "mark", "domain"),
}


def _properties(result: Result) -> Iterator[Table]:
    """The paper's Table 1 as measured, and the errata."""
    rows = []
    for row in result.rows:
        measured, claimed = row["measured"], row["claimed"] or row["measured"]
        marks = [
            measured[name] if claimed[name] == measured[name] else f"{measured[name]} ({claimed[name]})"
            for name in MARKS
        ]
        slope = measured["lipschitz"].replace("sqrt((1 + Kq)^2 + K - 1)/(Kq)", "see E3")
        rows.append((row["name"].replace("sum_normalization", "sum_norm"), *marks, slope))
    columns = (Column("map", "name"), *MARKS.values(), Column("slope"))
    equal = f"{result.summary['equal']} of {result.summary['cells']} cells measured equal what docs/math.md (E6) says"
    slopes = [
        row for row in result.rows if row["claimed"] and row["claimed"]["lipschitz"] != row["measured"]["lipschitz"]
    ]
    others = ", ".join(f"{row['claimed']['lipschitz']} for {row['name']}" for row in slopes)
    notes = (f"{equal} holds.", *([f"Other slopes in the paper: {others}."] if slopes else []))
    title = "Table 1 as measured (the paper's word in brackets where it differs)"
    yield Table(title, columns, tuple(rows), notes)
    lines = tuple((line["name"], line["claim"], line["measured"]) for line in result.summary["errata"])
    heads = (Column("erratum", "name", " "), Column("the paper", "text"), Column("measured", "text"))
    yield Table("Errata, in numbers", heads, lines)


EXPERIMENTS: dict[str, Callable[[Result], Iterator[Table]]] = {
    "properties": _properties,
    "synthetic": _synthetic,
    "real": _real,
    "translation": _translation,
    "summarization": _summarization,
}


def tables_of(result: Result) -> list[Table]:
    """Return the tables of a Result, without its ledger.

    Examples
    --------
    >>> line = {"name": "scene", "pair": "softmax+log", "f1": 0.757, "paper": 0.71, "support": 6.0, "gap": 1e-4}
    >>> summary = {"table": [line], "largest_gap": 1e-4}
    >>> result = Result("real", {}, 0, (), summary, {}, 1.0, "2030-01-31T12:00:00")
    >>> tables_of(result)[0].rows
    (('scene', 'softmax+log', '0.757', '0.71', '6.00', '1e-04'),)
    """
    if result.experiment not in EXPERIMENTS:
        known = ", ".join(map(repr, EXPERIMENTS))
        fail(ValueError, "the experiment of a Result", f"one of {known}", repr(result.experiment))
    return list(EXPERIMENTS[result.experiment](result))


def ledger_table(result: Result, *, wide: bool = False) -> Table | None:
    """Return the ledger of a Result, None if it speaks of no claim.

    Parameters
    ----------
    result : Result
    wide : bool, default False
        Give source and rule columns of their own.

    Examples
    --------
    >>> rows = [{"name": "a", "pair": p, "f1": 0.5} for p in ("sparsemax+huber", "sparsemax+hinge", "sparsehg+hinge")]
    >>> result = Result("real", {}, 0, (), {"table": rows}, {}, 1.0, "2030-01-31T12:00:00")
    >>> ledger_table(result).rows[0][1:]
    ('better F1 in 0 of 2 comparisons', 'does not hold')
    """
    entries = ledger(result)
    if not entries:
        return None
    measured, verdict = Column("measured", "text"), Column("verdict", "verdict")
    title = "Ledger: what the paper claims, what was measured"
    if wide:
        columns = (Column("claim", "text"), Column("source", "word"), Column("rule", "text"), measured, verdict)
        return Table(title, columns, tuple((e.claim, e.source, e.rule, e.measured, e.verdict) for e in entries))
    rows = tuple((f"{e.claim} ({e.source})", e.measured, e.verdict) for e in entries)
    return Table(title, (Column("claim", "text"), measured, verdict), rows)
