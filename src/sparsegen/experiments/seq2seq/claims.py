"""What the paper claims of attention, judged by the numbers of a Result. What it cannot speak of is left out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from sparsegen.experiments.ledger import HOLDS, NOT, PARTLY, UNKNOWN, Entry
from sparsegen.experiments.store import Result

SOURCE = "Sec. 6.2"
COMPARABLE = 1.0  # points between rows that the paper would call comparable


def _scores(result: Result, measure: str) -> dict[str, dict[str, float]]:
    """The measure of each row of the paper's table, by corpus and test set."""
    found: dict[str, dict[str, float]] = {}
    for row in result.summary["table"]:
        found.setdefault(f"{row['corpus']} {row['test']}", {})[row["row"]] = row[measure]
    return found


def _sparsegen_best(result: Result, measure: str, claim: str, source: str) -> Entry | None:
    """Judge a claim that sparsegen-lin is ahead of softmax and sparsemax."""
    wins, texts = [], []
    for name, scores in _scores(result, measure).items():
        if not {"sparsegen-lin", "softmax", "sparsemax"} <= scores.keys():
            continue
        wins += [scores["sparsegen-lin"] > scores[other] for other in ("softmax", "sparsemax")]
        texts.append(f"{name}: {' '.join(f'{n} {scores[n]:.2f}' for n in ('sparsegen-lin', 'softmax', 'sparsemax'))}")
    if not wins:
        return None
    rule = "holds if ahead of both on every test set, partly in half of the comparisons; one seed"
    verdict = HOLDS if all(wins) else PARTLY if 2 * sum(wins) >= len(wins) else NOT
    return Entry(claim, source, rule, "; ".join(texts), verdict)


def _comparable(result: Result, measure: str) -> Entry | None:
    """Judge the claim that sparsehourglass is as good as the others."""
    gaps = {
        name: scores["sparsehg"] - max(value for row, value in scores.items() if row != "sparsehg")
        for name, scores in _scores(result, measure).items()
        if "sparsehg" in scores and len(scores) > 1
    }
    if not gaps:
        return None
    rule = f"holds if within {COMPARABLE:g} of the best row on every test set, partly on one"
    claim = "Sparsehg formulations yield comparable performance"
    near = [gap >= -COMPARABLE for gap in gaps.values()]
    text = "; ".join(f"{name}: {gap:+.2f} from the best other row" for name, gap in gaps.items())
    return Entry(claim, SOURCE, rule, text, HOLDS if all(near) else PARTLY if any(near) else NOT)


def _lam_and_support(result: Result) -> Entry | None:
    """Judge the claim that a larger lam makes attention sparser, on the short runs that differ in lam alone."""
    tried = [row for row in result.summary["tried"] if row["mapping"] == "sparsegen_lin"]
    found = sorted((row["control"], row["support"]) for row in tried if "support" in row)
    if len(found) < 2:
        return None
    claim, rule = "Larger lam leads to sparser attention", "holds if the support falls with every step of lam"
    falls = [later < earlier for (_, earlier), (_, later) in pairwise(found)]
    text = ", ".join(f"lam {lam:g}: {support:.2f} source words" for lam, support in found)
    return Entry(claim, SOURCE, rule, text, HOLDS if all(falls) else PARTLY if any(falls) else NOT)


def judged(result: Result, measure: str, claim: str, source: str = SOURCE) -> list[Entry]:
    """Judge the claims that the rows of a Result can speak of; a smoke run is no evidence.

    Parameters
    ----------
    result : Result
    measure : str
        What the rows are compared by, such as "bleu".
    claim, source : str
        In what sparsegen-lin is said to be ahead, and where.
    """
    found = (_sparsegen_best(result, measure, claim, source), _comparable(result, measure), _lam_and_support(result))
    entries = [entry for entry in found if entry is not None]
    if result.config["scale"] != "smoke":
        return entries
    return [replace(entry, measured="a smoke run trains too little to tell", verdict=UNKNOWN) for entry in entries]
