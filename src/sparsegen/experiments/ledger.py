"""The ledger: what the paper claims, what was measured, the verdict; computed from Results, never typed in."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.experiments import registry
from sparsegen.experiments.store import Result

HOLDS, PARTLY, NOT, OPEN, UNKNOWN = VERDICTS = (
    "holds", "holds partly", "does not hold", "cannot tell", "not measured",
)  # fmt: skip


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


def by_intervals(sure: int, against: int, total: int) -> str:
    """Judge a claim by comparisons with intervals: those surely for it and surely against it, of so many.

    Where both are found, the claim holds partly if at least as many are for it.

    Examples
    --------
    >>> [by_intervals(*counts, 4) for counts in ((4, 0), (1, 0), (0, 0), (0, 1), (1, 2))]
    ['holds', 'holds partly', 'cannot tell', 'does not hold', 'does not hold']
    """
    if not sure and not against:
        return OPEN
    return HOLDS if sure == total else PARTLY if sure >= against else NOT


def ledger(result: Result) -> list[Entry]:
    """Return the claims that a Result speaks of, with their verdicts."""
    return list(registry.of(result).ledger(result))
