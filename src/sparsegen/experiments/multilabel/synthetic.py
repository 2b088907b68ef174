"""The paper's multilabel experiment on synthetic documents: three settings, four pairs, several seeds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsegen._table.checks import fail, one_of
from sparsegen.experiments import sweep
from sparsegen.experiments.multilabel import claims
from sparsegen.experiments.multilabel.pairs import PAIRS, model, score, threshold_for, trained
from sparsegen.experiments.multilabel.synthetic_data import Documents, make_documents, split

if TYPE_CHECKING:
    from sparsegen.experiments.drawings import Drawing
from sparsegen.experiments.registry import Experiment
from sparsegen.experiments.store import Result, Stopwatch
from sparsegen.experiments.tables import Column, Table

VERSION = "1"  # of the cells: raised when they would give other numbers
ALPHA = 1e-4  # next to none: the paper names no penalty, and the optimum hardly moves below it
TOLERANCE = 1e-3  # relative duality gap of every fit
Q_GRID = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
LAM = 0.5  # of sparsegen-lin, which the paper says gives what sparsemax gives


@dataclass(frozen=True)
class Scale:
    """How much of the paper's experiment is run."""

    mean: tuple[int, ...]
    range: tuple[int, ...]
    length: tuple[int, ...]
    documents: int
    seeds: int
    q_grid: tuple[float, ...]


SCALES = {
    "smoke": Scale((2, 8), (1,), (200,), 400, 2, (0.1, 1.0)),
    "small": Scale(tuple(range(2, 10)), (0, 2, 4), (200, 600, 1000, 2000), 2000, 5, (0.03, 0.3, 3.0)),
    "paper": Scale(tuple(range(2, 10)), tuple(range(5)), tuple(range(200, 2001, 200)), 5000, 5, Q_GRID),
}
MEASURES = ("f1", "jsd", "support", "labels")


def documents(setting: str, value: int, n: int, seed: int) -> Documents:
    """Draw the documents of a point of a setting: N by mean or range at length 2000, or Poisson(5) at other lengths."""
    if setting == "length":
        return make_documents(n, labels="poisson", value=5, length=value, seed=seed)
    return make_documents(n, labels=setting, value=value, seed=seed)


def _parts(setting: str, value: int, n: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Train, validation and test parts, word counts standardised by the first."""
    parts = split(documents(setting, value, n, seed), seed=seed)
    centre, spread = parts[0].X.mean(axis=0), parts[0].X.std(axis=0)
    return [((part.X - centre) / np.where(spread > 0, spread, 1), part.Y) for part in parts]


def cell(setting: str, value: int, pair: str, seed: int, n_documents: int, q_grid: list[float]) -> dict[str, Any]:
    """Train one pair on one data set; tune q or p0 on the validation part and score the test part."""
    start = time.perf_counter()
    train, validation, test = _parts(setting, value, n_documents, seed)
    found = []
    fitted = model(pair, alpha=ALPHA, tol=TOLERANCE, warm_start=True)
    for q in q_grid if PAIRS[pair].tunes == "q" else [1.0]:
        trained(fitted.set_params(q=q), *train)
        P = fitted.predict_proba(validation[0])
        p0 = threshold_for(pair, validation[1], P)
        tried = score(validation[1], P, p0).f1
        found.append((tried, q, p0, fitted.gap_, fitted.predict_proba(test[0])))
    tried, q, p0, gap, P = max(found, key=lambda row: row[0])
    chosen = {"q": q} if PAIRS[pair].tunes == "q" else {"p0": p0} if PAIRS[pair].tunes == "p0" else {}
    seconds = time.perf_counter() - start
    return {**score(test[1], P, p0)._asdict(), **chosen, "validation_f1": tried, "gap": gap, "seconds": seconds}


def same_predictions(value: int, seed: int, n_documents: int, lam: float) -> dict[str, Any]:
    """Compare sparsegen-lin with its hinge loss at `lam` to sparsemax with its own.

    They are the same problem in scores scaled by 1 - lam, so with the penalty scaled by its square the predictions
    agree; with the same penalty they need not.
    """
    train, _, test = _parts("mean", value, n_documents, seed)
    alpha = 1e-2  # large enough to matter
    plain = trained(model("sparsemax+hinge", alpha=alpha, tol=TOLERANCE), *train).predict(test[0])
    found = {}
    for name, penalty in (("scaled", alpha / (1 - lam) ** 2), ("same", alpha)):
        other = model("sparsemax+hinge", alpha=penalty, tol=TOLERANCE).set_params(mapping="sparsegen_lin", lam=lam)
        found[f"equal_{name}_penalty"] = float((trained(other, *train).predict(test[0]) == plain).mean())
    return found


def points(scale: Scale) -> list[tuple[str, int]]:
    """Return every setting with its values."""
    return [(setting, value) for setting in ("mean", "range", "length") for value in getattr(scale, setting)]


def cells(scale: Scale, seed: int) -> list[dict[str, Any]]:
    """Return the arguments of every cell of the sweep; cheap and dear pairs are mixed."""
    shared = {"n_documents": scale.documents, "q_grid": list(scale.q_grid)}
    return [
        {"setting": setting, "value": value, "pair": pair, "seed": seed + i, **shared}
        for i in range(scale.seeds)
        for setting, value in points(scale)
        for pair in PAIRS
    ]


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and confidence band over the seeds of each point, pair and measure."""
    from sparsegen.experiments.multilabel.metrics import confidence

    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["setting"], row["value"], row["pair"]), []).append(row)
    table = []
    for (setting, value, pair), group in groups.items():
        line: dict[str, Any] = {"setting": setting, "value": value, "pair": pair, "seeds": len(group)}
        for measure in MEASURES:
            line[measure] = list(confidence([row[measure] for row in group]))
        table.append(line)
    return table


def run(scale: str = "small", *, seed: int = 0, store: Path | None = None, **how: Any) -> Result:
    """Run the experiment and return its Result; `how` goes to :func:`sparsegen.experiments.sweep.run`."""
    if scale not in SCALES:
        fail(ValueError, "scale", one_of(SCALES), repr(scale))
    clock, size = Stopwatch(), SCALES[scale]
    todo = cells(size, seed)
    found = sweep.run(cell, todo, store=store, version=VERSION, **how)
    rows = [{**arguments, **output} for arguments, output in zip(todo, found)]
    for row in rows:
        del row["q_grid"]
    same = [{"value": 3, "seed": seed + i, "n_documents": size.documents, "lam": LAM} for i in range(size.seeds)]
    how.pop("progress", None)
    equal = sweep.run(same_predictions, same, store=store, version=VERSION, **how)
    summary = {
        "table": summarize(rows),
        "equivalence": {key: float(np.mean([row[key] for row in equal])) for key in equal[0]},
        "largest_gap": max(row["gap"] for row in rows),
    }
    config = {"scale": scale, **asdict(size), "alpha": ALPHA, "tolerance": TOLERANCE, "pairs": list(PAIRS)}
    return clock.result(EXPERIMENT.name, config, seed, rows, summary)


TITLES = {"f1": "Micro F1", "jsd": "Jensen-Shannon divergence (nats)", "support": "Nonzero probabilities"}


def optimum(result: Result) -> str:
    """Say how near the optimum every fit is."""
    gap = result.summary["largest_gap"]
    return f"Every fit is within {gap:.1e} (relative) of the convex optimum, by its duality gap."


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


def tables(result: Result) -> Iterator[Table]:
    """Return micro F1, divergence and sparsity of every pair, a table each."""
    pairs = (Column(pair, short=pair.replace("+", "\n+")) for pair in result.config["pairs"])
    columns = (Column("setting", "name"), *pairs)
    for measure, title in TITLES.items():
        about = f"{title}: mean over {result.config['seeds']} seeds, 95 % interval"
        notes = (optimum(result),) if measure == "support" else ()  # once, at the end
        yield Table(about, columns, _measured(result, measure), notes)


def figures(result: Result) -> Iterable[Drawing]:
    """Draw micro F1, divergence and sparsity."""
    from sparsegen.experiments.multilabel.figures import drawings

    return drawings(result)


EXPERIMENT = Experiment(
    name="synthetic",
    title="Multilabel learning on synthetic documents",
    help="Multilabel learning on the paper's synthetic documents: F-score, JSD and sparsity figures.",
    order=30,
    run=run,
    tables=tables,
    ledger=claims.synthetic,
    figures=figures,
)
