"""What the paper claims of attention, judged by the numbers of a Result. What it cannot speak of is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from sparsegen.experiments.ledger import UNKNOWN, Entry, by_intervals, by_share
from sparsegen.experiments.seq2seq.comparison import PAPERS_ROWS
from sparsegen.experiments.store import Result

SOURCE, APPENDIX = "Sec. 6.2", "App. Controlled Sparse Attention"
COMPARABLE = 1.0  # points between rows that the paper would call comparable
GENERAL = 0.7  # of ROUGE-L on a model's own kind of text; in the paper DUC has 0.73 to 0.91 of Gigaword's
RULE = "holds if all are for it, partly if some are and no more against it; if none decides, one cannot tell"
CONTROLLED = ("sparsegen-lin", "sparsehg")

Lead = dict[str, Any]


def _leads(result: Result, rows: Iterable[str], bases: Iterable[str], corpora: str = "") -> list[Lead]:
    """The comparisons of some rows with others, on corpora whose name ends so."""
    return [
        lead for row in rows for base in bases for lead in result.summary["leads"]
        if (lead["row"], lead["base"]) == (row, base) and lead["corpus"].endswith(corpora)
    ]  # fmt: skip


def _said(result: Result, corpus: str, leads: list[Lead]) -> str:
    """The comparisons on one corpus in words, and how many seeds they are from."""
    texts = [
        f"{lead['row']} {lead['lead']:+.2f} ({lead['low']:+.2f} to {lead['high']:+.2f}) "
        f"against {lead['base']} on {lead['test']}"
        for lead in leads
    ]
    seeds = min(len(line["seeds"]) for line in result.summary["table"] if line["corpus"] == corpus)
    return f"{corpus}, {'one seed' if seeds == 1 else f'{seeds} seeds'}: {'; '.join(texts)}"


def _counted(sure: int, against: int, total: int) -> str:
    """How many intervals decide, in words."""
    if not sure and not against:
        return "no interval decides: runs of this size do not tell"
    return f"of {total} intervals {sure} are for it, {against} against it"


def _each_corpus(
    result: Result, leads: list[Lead], claim: str, source: str, rule: str, decided: Callable[[Lead], tuple[bool, bool]]
) -> Iterator[Entry]:
    """Judge a claim on each corpus by what each interval says: surely for it, surely against it, or neither."""
    corpora = list(dict.fromkeys(lead["corpus"] for lead in leads))
    for corpus in corpora:
        own = [lead for lead in leads if lead["corpus"] == corpus]
        sure, against = (sum(side) for side in zip(*map(decided, own)))
        measured = f"{_said(result, corpus, own)}; {_counted(sure, against, len(own))}"
        named = f"{claim}: {corpus}" if len(corpora) > 1 else claim
        yield Entry(named, source, rule, measured, by_intervals(sure, against, len(own)))


def _ahead(result: Result, leads: list[Lead], claim: str, source: str, sign: int = 1) -> Iterator[Entry]:
    """Judge a claim that rows are ahead (or, with `sign` -1, behind) by the intervals of their leads."""

    def decided(lead: Lead) -> tuple[bool, bool]:
        above, below = lead["low"] > 0, lead["high"] < 0
        return (above, below) if sign > 0 else (below, above)

    return _each_corpus(result, leads, claim, source, f"an interval (95 %) decides if 0 is outside it; {RULE}", decided)


def _comparable(result: Result, leads: list[Lead], claim: str, source: str) -> Iterator[Entry]:
    """Judge a claim that rows do not fall behind others by more than a little."""
    rule = f"an interval (95 %) is for it if all of it is at least -{COMPARABLE:g}, against it if all is below; {RULE}"
    return _each_corpus(
        result, leads, claim, source, rule, lambda lead: (lead["low"] >= -COMPARABLE, lead["high"] < -COMPARABLE)
    )


def _falls(result: Result, claim: str, source: str, words_of: Callable[[dict[str, Any]], float | None]) -> Entry | None:
    """Judge a claim that a number of source words falls as lam grows, on trainings that differ in lam alone."""
    falls, texts = [], []
    for corpus in dict.fromkeys(row["corpus"] for row in result.summary["tried"]):
        tried = [r for r in result.summary["tried"] if (r["mapping"], r["corpus"]) == ("sparsegen_lin", corpus)]
        found = sorted((row["control"], words) for row in tried if (words := words_of(row)) is not None)
        falls += [later < earlier for (_, earlier), (_, later) in pairwise(found)]
        if found:
            texts.append(f"{corpus}: " + ", ".join(f"lam {lam:g}: {words:.2f} source words" for lam, words in found))
    if not falls:
        return None
    _, verdict = by_share(falls)
    rule = "holds if it falls with every step of lam, partly with half of them; trainings that differ in lam alone"
    return Entry(claim, source, rule, "; ".join(texts), verdict)


def _columns(row: dict[str, Any]) -> float | None:
    """The columns of the kept heatmaps that are not white, per line."""
    lines = [line for sample in row.get("samples", ()) for line in sample["weights"]]
    return sum(sum(weight > 0 for weight in line) for line in lines) / len(lines) if lines else None


def _sparser(result: Result) -> Iterable[Entry | None]:
    yield _falls(result, "Larger lam leads to sparser attention", SOURCE, lambda row: row.get("support"))
    yield _falls(result, "Increasing lam leads to crisper heatmaps: fewer columns per line", SOURCE, _columns)


def _generalises(result: Result) -> Entry | None:
    """Judge the claim that models trained on Gigaword do well on the DUC sets."""
    lines = {(line["row"], line["test"]): line["rougeL"] for line in result.summary["table"]
             if line["corpus"] == "gigaword" and line["row"] in PAPERS_ROWS}  # fmt: skip
    shares = {
        f"{row} {test}": score / lines[row, "gigaword"]
        for (row, test), score in lines.items() if test.startswith("duc") and lines.get((row, "gigaword"))
    }  # fmt: skip
    if not shares:
        return None
    _, verdict = by_share([share >= GENERAL for share in shares.values()])
    text = ", ".join(f"{name}: {share:.2f} of ROUGE-L on Gigaword" for name, share in shares.items())
    rule = f"holds if each of the paper's rows has at least {GENERAL:g} of its ROUGE-L on Gigaword, partly if half do"
    return Entry("Models trained on Gigaword generalize well to DUC2003 and DUC2004", SOURCE, rule, text, verdict)


def _kept(result: Result, entries: Iterable[Entry | None]) -> list[Entry]:
    """What can be judged; a smoke run is no evidence."""
    found = [entry for entry in entries if entry is not None]
    if result.config["scale"] != "smoke":
        return found
    return [replace(entry, measured="a smoke run trains too little to tell", verdict=UNKNOWN) for entry in found]


def of_translation(result: Result) -> list[Entry]:
    """Judge what the paper says of translation."""
    best = "Sparsegen-lin surpasses the BLEU of softmax and sparsemax from French to English"
    others = ("sparsemax", *CONTROLLED)
    return _kept(result, (
        *_ahead(result, _leads(result, ["sparsegen-lin"], ("softmax", "sparsemax"), "fr-en"), best, SOURCE),
        *_comparable(result, _leads(result, ["sparsehg"], ("softmax", "sparsemax")),
                     "Sparsehg formulations yield comparable performance", SOURCE),
        *_ahead(result, _leads(result, others, ["softmax"], "en-fr"),
                "From English to French softmax is still better than the others", APPENDIX, -1),
        *_comparable(result, _leads(result, CONTROLLED, ["softmax"]),
                     "Explicit controls do not come at the cost of accuracy", SOURCE),
        *_sparser(result),
    ))  # fmt: skip


def of_summarization(result: Result) -> list[Entry]:
    """Judge what the paper says of summarization, by ROUGE-L."""
    both = ("softmax", "sparsemax")
    return _kept(result, (
        *_ahead(result, _leads(result, ["sparsegen-lin"], both), "Sparsegen-lin stands out in ROUGE-L", SOURCE),
        *_comparable(result, _leads(result, ["sparsehg"], both),
                     "Other formulations are comparable to softmax and sparsemax", SOURCE),
        _generalises(result),
        *_sparser(result),
    ))  # fmt: skip
