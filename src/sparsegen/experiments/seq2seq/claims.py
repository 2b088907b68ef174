"""What the paper claims of attention, judged by the numbers of a Result. What it cannot speak of is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from sparsegen.experiments.ledger import HOLDS, NOT, PARTLY, UNKNOWN, Entry, by_share
from sparsegen.experiments.store import Result

SOURCE, APPENDIX = "Sec. 6.2", "App. Controlled Sparse Attention"
COMPARABLE = 1.0  # points between rows that the paper would call comparable
GENERAL = 0.7  # of ROUGE-L on a model's own kind of text; in the paper DUC has 0.73 to 0.91 of Gigaword's
CONTROLLED = ("sparsegen-lin", "sparsehg")

Lead = dict[str, Any]


def _leads(result: Result, rows: Iterable[str], bases: Iterable[str], corpora: str = "") -> list[Lead]:
    """The comparisons of some rows with others, on corpora whose name ends so."""
    return [
        lead for row in rows for base in bases for lead in result.summary["leads"]
        if (lead["row"], lead["base"]) == (row, base) and lead["corpus"].endswith(corpora)
    ]  # fmt: skip


def _said(result: Result, leads: list[Lead]) -> str:
    """The comparisons in words, and how many seeds they are from."""
    texts = [
        f"{lead['corpus']} {lead['test']}: {lead['row']} {lead['lead']:+.2f} "
        f"({lead['low']:+.2f} to {lead['high']:+.2f}) against {lead['base']}"
        for lead in leads
    ]
    corpora = {lead["corpus"] for lead in leads}
    seeds = min(len(line["seeds"]) for line in result.summary["table"] if line["corpus"] in corpora)
    return f"{'; '.join(texts)}; {'one seed' if seeds == 1 else f'{seeds} seeds'}"


def _ahead(result: Result, leads: list[Lead], claim: str, source: str, sign: int = 1) -> Entry | None:
    """Judge a claim that rows are ahead (or, with `sign` -1, behind) by the intervals of their leads."""
    if not leads:
        return None
    rule = "holds if every interval (95 %) is on that side of 0, partly if half of the means are and none on the other"
    sure = [sign * lead["low" if sign > 0 else "high"] > 0 for lead in leads]
    refuted = any(sign * lead["high" if sign > 0 else "low"] < 0 for lead in leads)
    wins = [sign * lead["lead"] > 0 for lead in leads]
    likely = not refuted and 2 * sum(wins) >= len(wins)
    return Entry(claim, source, rule, _said(result, leads), HOLDS if all(sure) else PARTLY if likely else NOT)


def _comparable(result: Result, leads: list[Lead], claim: str, source: str) -> Entry | None:
    """Judge a claim that rows do not fall behind others."""
    if not leads:
        return None
    rule = (
        f"holds if every interval (95 %) ends above -{COMPARABLE:g} at its lower end, "
        f"partly if no mean is lower than that"
    )
    sure, likely = ([lead[end] >= -COMPARABLE for lead in leads] for end in ("low", "lead"))
    return Entry(claim, source, rule, _said(result, leads), HOLDS if all(sure) else PARTLY if all(likely) else NOT)


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
             if line["corpus"] == "gigaword"}  # fmt: skip
    shares = {
        f"{row} {test}": score / lines[row, "gigaword"]
        for (row, test), score in lines.items() if test.startswith("duc") and lines.get((row, "gigaword"))
    }  # fmt: skip
    if not shares:
        return None
    _, verdict = by_share([share >= GENERAL for share in shares.values()])
    text = ", ".join(f"{name}: {share:.2f} of ROUGE-L on Gigaword" for name, share in shares.items())
    rule = f"holds if every row has at least {GENERAL:g} of its ROUGE-L on Gigaword, partly if half of them do"
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
        _ahead(result, _leads(result, ["sparsegen-lin"], ("softmax", "sparsemax"), "fr-en"), best, SOURCE),
        _comparable(result, _leads(result, ["sparsehg"], ("softmax", "sparsemax")),
                    "Sparsehg formulations yield comparable performance", SOURCE),
        _ahead(result, _leads(result, others, ["softmax"], "en-fr"),
               "From English to French softmax is still better than the others", APPENDIX, -1),
        _comparable(result, _leads(result, CONTROLLED, ["softmax"]),
                    "Explicit controls do not come at the cost of accuracy", SOURCE),
        *_sparser(result),
    ))  # fmt: skip


def of_summarization(result: Result) -> list[Entry]:
    """Judge what the paper says of summarization, by ROUGE-L."""
    both = ("softmax", "sparsemax")
    return _kept(result, (
        _ahead(result, _leads(result, ["sparsegen-lin"], both), "Sparsegen-lin stands out in ROUGE-L", SOURCE),
        _comparable(result, _leads(result, ["sparsehg"], both),
                    "Other formulations are comparable to softmax and sparsemax", SOURCE),
        _generalises(result),
        *_sparser(result),
    ))  # fmt: skip
