"""The paper's Table 1, measured, and the numbers behind its errata (docs/math.md, section 10)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import sparsegen as sg
from sparsegen._table.maps import MAPS
from sparsegen.experiments import sweep
from sparsegen.experiments.registry import Experiment
from sparsegen.experiments.store import Result, Stopwatch
from sparsegen.experiments.tables import Column, Table
from sparsegen.properties import COLUMNS, check, measure

VERSION = "1"  # of the cells: raised when they would give other numbers
HOURGLASS = ((2, 1.0), (5, 0.1), (10, 0.1))  # K, q at which the Lipschitz constant is searched


def row(name: str, seed: int) -> dict[str, Any]:
    """Measure one map."""
    found = measure(name, seed=seed)
    cells = asdict(found.row)
    agrees = {column: cells[column] == asdict(found.true)[column] for column in cells}
    claimed = None if found.claimed is None else asdict(found.claimed)
    return {
        "measured": cells,
        "true": asdict(found.true),
        "claimed": claimed,
        "agrees": agrees,
        "slopes": found.lipschitz,
    }


def _short(p: Any) -> str:
    return "(" + ", ".join(f"{value:.3g}" for value in np.asarray(p)) + ")"


def hourglass_slopes(seed: int) -> dict[str, Any]:
    """Search the steepest slope of sparsehourglass beside the paper's constant and the true one."""
    lines = []
    for n, q in HOURGLASS:
        found = check(partial(sg.sparsehourglass, q=q), n_classes=(n,), seed=seed).lipschitz
        true = sg.lipschitz("sparsehourglass", n, q=q)
        lines.append({"K": n, "q": q, "claim": 1 + 1 / (n * q), "true": true, "found": found})
    return {"lines": lines}


def _beyond_one(lam: float = 2.0) -> str:
    """What the library says of lam > 1, and what the formula would: worse than a corner."""
    z = np.array([0.6, 0.4])
    formula, corner = sg.sparsemax(z / (1 - lam)), np.eye(2)[z.argmax()]
    values = [((p - z) ** 2).sum() - lam * (p**2).sum() for p in (formula, corner)]
    try:
        answer = _short(sg.sparsegen_lin(z, lam=lam))
    except ValueError:
        answer = "refused"
    kind = "no minimum" if values[0] > values[1] else "no higher than a corner"
    return f"{answer}: the formula is {kind} there, {_short(z)} at lam = {lam:g} would give {_short(formula)}"


def errata(slopes: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return what the paper says, and the numbers that show what holds."""
    z, e = np.array([0.5, 0.3, 0.2]), 1e-6
    ends = [_short(sg.sparsegen_lin(z, lam=lam)) for lam in (0.9, -99.0)]
    soft = max(np.linalg.norm(sg.softmax([h, 0.0]) - sg.softmax([0.0, 0.0])) / h for h in (1e-3, 1e-4))
    plus = [_short(sg.sum_normalization_plus(point)) for point in ([1 + e, 1, -2], [1, 1, -2 + e])]
    found = [
        ("E1", "uniform for lam -> 1, hardmax for lam -> -inf", f"{_short(z)}: {ends[0]} at 0.9, {ends[1]} at -99"),
        *(
            (
                "E3",
                f"sparsehourglass, K = {line['K']}, q = {line['q']:g}: Lipschitz constant {line['claim']:.3f}",
                f"slope {line['found']:.3f} found; the constant is {line['true']:.3f}",
            )
            for line in slopes
        ),
        ("E4", "softmax is 1-Lipschitz", f"steepest at ties, {soft * math.sqrt(2):.3f} along (1, -1)"),
        ("E6", "sum-normalisation++ has a value everywhere", f"near (1, 1, -2): {plus[0]} and {plus[1]}"),
        ("E9", "sparsegen for lam > 1", _beyond_one()),
    ]
    return [dict(zip(("name", "claim", "measured"), line)) for line in found]


def run(scale: str = "small", *, seed: int = 0, store: Path | None = None, **how: Any) -> Result:
    """Measure every map; `how` goes to :func:`sparsegen.experiments.sweep.run`. All scales are the same size."""
    clock = Stopwatch()
    cells = [{"name": name, "seed": seed} for name in MAPS]
    rows = sweep.run(row, cells, store=store, version=VERSION, **how)
    slopes = sweep.run(hourglass_slopes, [{"seed": seed}], store=store, version=VERSION, **how)[0]["lines"]
    full = [{"name": cell["name"], **output} for cell, output in zip(cells, rows)]
    equal = [output["agrees"][column] for output in rows for column in (*COLUMNS, "lipschitz")]
    summary = {"cells": len(equal), "equal": sum(equal), "errata": errata(slopes)}
    return clock.result(EXPERIMENT.name, {"scale": scale}, seed, full, summary)


MARKS = {
    "idempotent": Column("idempotent", "mark", "idem."),
    "monotone": Column("monotone", "mark", "mono."),
    "translation": Column("translation", "mark", "shift"),
    "scale": Column("scale", "mark"),
    "full_domain": Column("full domain", "mark", "domain"),
}


def tables(result: Result) -> Iterator[Table]:
    """Return the paper's Table 1 as measured, and the errata."""
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


EXPERIMENT = Experiment(
    name="properties",
    title="Table 1: properties of the maps",
    help="Measure the paper's Table 1 for every map, and the numbers behind its errata.",
    order=10,
    run=run,
    scales=(),
    tables=tables,
)
