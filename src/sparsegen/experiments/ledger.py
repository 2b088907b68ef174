"""The ledger: what the paper claims, what was measured, the verdict; computed from Results, never typed in."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.experiments import registry
from sparsegen.experiments.store import Result

HOLDS, PARTLY, NOT, UNKNOWN = VERDICTS = "holds", "holds partly", "does not hold", "not measured"


@dataclass(frozen=True)
class Entry:
    """A claim, where the paper makes it, how it is judged, and what was found."""

    claim: str
    source: str
    rule: str
    measured: str
    verdict: str


def by_share(wins: list[bool], *, most: bool = False) -> tuple[str, str]:
    """Judge a claim about all comparisons, or about most of them; return a text and the verdict.

    Examples
    --------
    >>> by_share([True, True, False])
    ('in 2 of 3 comparisons', 'holds partly')
    """
    share = sum(wins) / len(wins)
    text = f"in {sum(wins)} of {len(wins)} comparisons"
    holds, partly = (0.5, 0.25) if most else (1.0, 0.5)
    enough = share > holds if most else share >= holds
    return text, HOLDS if enough else PARTLY if share >= partly else NOT


def ledger(result: Result) -> list[Entry]:
    """Return the claims that a Result speaks of, with their verdicts."""
    return list(registry.of(result).ledger(result))
