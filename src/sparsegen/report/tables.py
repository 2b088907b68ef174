"""The tables of a Result and of its ledger."""

from __future__ import annotations

from sparsegen.experiments import registry
from sparsegen.experiments.ledger import ledger
from sparsegen.experiments.store import Result
from sparsegen.experiments.tables import Column, Table


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
    return list(registry.of(result).tables(result))


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
