"""The classifier beside what people would pick instead, on Mulan's splits.

Every method chooses its penalty, and its dial or threshold if it has one, on training rows only: by cross-validation,
or on one held-out part where there are many scores. It is then fitted to all training rows and scored once on the test
rows. Seconds are those of the processor: of the classifier for all of `fit`, choices included; of logistic regressions
for the last fit alone.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparsegen._table.checks import fail, one_of
from sparsegen.experiments import sweep
from sparsegen.experiments.memory import peak_mib
from sparsegen.experiments.multilabel.mulan_sets import files, loaded
from sparsegen.experiments.registry import Data, Experiment, Option
from sparsegen.experiments.store import Result, Stopwatch
from sparsegen.experiments.tables import Column, Table, number

VERSION = "1"  # of the cells: raised when they would give other numbers
CLOSE = 0.01  # what the default may be behind the better of the tuned baselines
SPLITS = 10  # how often rows are dealt anew, where that is asked for
C_GRID = (10.0, 1.0, 0.1, 0.01)  # penalties of logistic regression
FOLDS, ONE_PART = 5, 1 << 22  # as the classifier deals rows
SETS = {
    "smoke": ("emotions",),
    "small": ("emotions", "birds", "scene", "yeast", "medical"),
    "paper": ("emotions", "birds", "scene", "yeast", "medical", "corel5k", "delicious"),
}

# The classifier under several names, by its options.
OURS: dict[str, dict[str, Any]] = {
    "default": {},
    "radius tuned": {"predict_radius": "auto"},
    "radius 0.5": {"predict_radius": 0.5},
    "support": {"threshold": 0.0},
    "hinge tuned": {"loss": "hinge"},
    "hinge, radius tuned": {"loss": "hinge", "predict_radius": "auto"},
    "softmax+log tuned": {"mapping": "softmax"},
}
LOGISTIC = {"logistic at 0.5": False, "logistic tuned": True}  # one against the rest; is the threshold tuned?
METHODS = (*OURS, *LOGISTIC)
BASELINES = ("softmax+log tuned", "logistic tuned")
ABOUT = {
    "default": "sparsemax and huber, a threshold on probabilities",
    "radius tuned": "the same fit, labels are the support of a smaller radius",
    "radius 0.5": "the same, half the radius of the loss",
    "support": "the paper's way: the support of the map that was trained",
    "hinge tuned": "sparsemax and hinge, a threshold on probabilities",
    "hinge, radius tuned": "the same loss, labels are the support of a smaller radius",
    "softmax+log tuned": "softmax, a threshold on probabilities",
    "logistic at 0.5": "one logistic regression per label (liblinear)",
    "logistic tuned": "the same, one threshold for all labels",
}


COMPARED = ("default", "softmax+log tuned", "logistic at 0.5", "logistic tuned")  # on rows that are dealt anew


class Parts(NamedTuple):
    """Features, scaled where they are dense, and label sets."""

    X: Any
    Y: Any
    X_test: Any
    Y_test: Any


def parts(name: str, split: int = 0) -> Parts:
    """Load a data set as all methods are given it: Mulan's split, or (from 1 on) one dealt by that seed."""
    from scipy import sparse
    from sklearn.preprocessing import StandardScaler

    data = loaded(name, False)
    X, Y, X_test, Y_test = data.X_train, data.Y_train, data.X_test, data.Y_test
    if split:
        both = sparse.vstack([X, X_test], format="csr") if sparse.issparse(X) else np.vstack([X, X_test])
        labels, n = sparse.vstack([Y, Y_test], format="csr"), X.shape[0]
        order = np.random.default_rng(split).permutation(both.shape[0])
        X, Y, X_test, Y_test = both[order[:n]], labels[order[:n]], both[order[n:]], labels[order[n:]]
    if not sparse.issparse(X):
        scale = StandardScaler().fit(X)
        X, X_test = scale.transform(X), scale.transform(X_test)
    return Parts(X, Y, X_test, Y_test)


def _ours(method: str, data: Parts) -> tuple[Any, dict[str, Any]]:
    """Labels of the test rows by the classifier, and what it chose."""
    from sparsegen.sklearn import ConstantFitWarning, SparseMultilabelClassifier

    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantFitWarning)
        model = SparseMultilabelClassifier(**OURS[method]).fit(data.X, data.Y)
    seconds = time.process_time() - start
    chosen = {"penalty": model.alpha_, "threshold": model.threshold_, "radius": model.predict_radius_}
    about = {"gap": model.gap_, "n_iter": model.n_iter_, "cv_score": float(np.max(model.cv_results_["score"]))}
    return model.predict(data.X_test), {**chosen, **about, "fit_seconds": seconds}


def _held_out(data: Parts) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows to fit to and rows to choose on."""
    from sklearn.model_selection import KFold

    n, K = data.Y.shape
    folds = KFold(FOLDS, shuffle=True, random_state=0).split(np.arange(n))
    return list(folds)[: 1 if n * K > ONE_PART else FOLDS]


def _fit_logistic(C: float, X: Any, Y: Any) -> Callable[[Any], np.ndarray]:
    """One logistic regression per label, as a function from features to probabilities."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # labels that no row of a fold has, and penalties said in a new way
        return OneVsRestClassifier(LogisticRegression(solver="liblinear", C=C)).fit(X, Y).predict_proba


@cache
def _held_probabilities(name: str, split: int, C: float) -> tuple[Any, np.ndarray]:
    """Label sets of held-out rows and the probabilities of logistic regressions: both its methods look at them."""
    from scipy import sparse

    data = parts(name, split)
    splits = _held_out(data)
    P = [_fit_logistic(C, data.X[train], data.Y[train])(data.X[test]) for train, test in splits]
    return sparse.vstack([data.Y[test] for _, test in splits], format="csr"), np.vstack(P)


def _choose_logistic(tuned: bool, name: str, split: int) -> tuple[float, float, float]:
    """Penalty, threshold and score of logistic regressions, chosen for micro F1."""
    from sparsegen.experiments.multilabel.metrics import micro_f1
    from sparsegen.sklearn import best_threshold

    best = (0.0, 0.5, -1.0)
    for C in C_GRID:
        Y, P = _held_probabilities(name, split, C)
        p0 = best_threshold(Y, P) if tuned else 0.5
        best = max(best, (C, p0, micro_f1(Y, p0 < P)), key=lambda tried: tried[2])
    return best


def _logistic(method: str, name: str, split: int, data: Parts) -> tuple[Any, dict[str, Any]]:
    """Labels of the test rows by logistic regressions, and what was chosen; seconds of the last fit alone."""
    C, p0, score = _choose_logistic(LOGISTIC[method], name, split)
    start = time.process_time()
    probabilities = _fit_logistic(C, data.X, data.Y)
    seconds = time.process_time() - start
    return p0 < probabilities(data.X_test), {"penalty": C, "threshold": p0, "cv_score": score, "fit_seconds": seconds}


def measure(name: str, method: str, split: int = 0) -> dict[str, Any]:
    """Fit a method to a data set, and score it on the test rows."""
    from sklearn.metrics import f1_score

    data = parts(name, split)
    labels, about = _ours(method, data) if method in OURS else _logistic(method, name, split, data)
    on = np.asarray(labels.toarray() if hasattr(labels, "toarray") else labels, np.int64)
    truth = data.Y_test.toarray()
    scores = {each: float(f1_score(truth, on, average=each, zero_division=0)) for each in ("micro", "macro", "samples")}
    return {**scores, **about, "labels": float(on.sum(axis=1).mean()), "peak_mib": peak_mib()}


def verdicts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the default beside the baselines on each set where all of them were run."""
    found = []
    for name in dict.fromkeys(row["name"] for row in rows):
        at = {row["method"]: row for row in rows if row["name"] == name}
        if not {"default", *BASELINES, "logistic at 0.5"} <= set(at):
            continue
        best = max(BASELINES, key=lambda method: at[method]["micro"])
        ours = at["default"]
        seconds = at["logistic tuned"]["fit_seconds"]
        found.append({
            "name": name, "default": ours["micro"], "plain": at["logistic at 0.5"]["micro"], "best": best,
            "tuned": at[best]["micro"], "ahead": bool(ours["micro"] >= at["logistic at 0.5"]["micro"]),
            "close": bool(ours["micro"] >= at[best]["micro"] - CLOSE), "times": ours["fit_seconds"] / seconds,
        })  # fmt: skip
    return found


def spread(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average micro F1 over the splits, and how far the default is ahead, with its 95 % interval."""
    from sparsegen.experiments.multilabel.metrics import confidence

    at = {(row["name"], row["method"], row["split"]): row["micro"] for row in rows}
    found = []
    for name, method in dict.fromkeys(key[:2] for key in at):
        splits = [key[2] for key in at if key[:2] == (name, method)]
        lead = confidence([at[name, "default", split] - at[name, method, split] for split in splits])
        mean = float(np.mean([at[name, method, split] for split in splits]))
        found.append({"name": name, "method": method, "micro": mean, "lead": lead._asdict(), "splits": len(splits)})
    return found


def run(
    scale: str = "small", *, sets: tuple[str, ...] = (), methods: tuple[str, ...] = (), splits: bool = False,
    seed: int = 0, store: Path | None = None, **how: Any,
) -> Result:  # fmt: skip
    """Run the experiment and return its Result; `how` goes to :func:`sparsegen.experiments.sweep.run`."""
    if scale not in SETS:
        fail(ValueError, "scale", one_of(SETS), repr(scale))
    sets, methods = tuple(sets) or SETS[scale], tuple(methods) or METHODS
    for given, known, what in ((sets, SETS["paper"], "sets"), (methods, METHODS, "methods")):
        for name in given:
            if name not in known:
                fail(ValueError, what, "among " + ", ".join(map(repr, known)), repr(name))
    for name in sets:
        loaded(name, False)  # a missing file is said before any work
    clock = Stopwatch()
    todo = [{"name": name, "method": method} for name in sets for method in methods]
    found = sweep.run(measure, todo, store=store, version=VERSION, **how)
    rows = [{**cell, **output} for cell, output in zip(todo, found)]
    summary: dict[str, Any] = {"verdicts": verdicts(rows)}
    if splits:
        more = [
            {"name": name, "method": method, "split": split}
            for name in sets if name in SETS["small"] for split in range(1, SPLITS + 1) for method in COMPARED
        ]  # fmt: skip
        again = sweep.run(measure, more, store=store, version=VERSION, **how)
        summary["spread"] = spread([{**cell, **output} for cell, output in zip(more, again)])
    config = {"scale": scale, "sets": list(sets), "methods": list(methods), "C": list(C_GRID), "close": CLOSE}
    true = {name: loaded(name, False).Y_test.sum(axis=1).mean() for name in sets}
    return clock.result(EXPERIMENT.name, config, seed, rows, {**summary, "true_labels": true})


def tables(result: Result) -> Iterator[Table]:
    """Return scores and seconds of every set and method."""
    heads = ("micro F1", "macro F1", "labels", "penalty", "threshold", "seconds")
    columns = (Column("set", "group"), Column("method", "name"), *map(Column, heads))
    rows = tuple(
        (row["name"], row["method"], f"{row['micro']:.3f}", f"{row['macro']:.3f}", number(row["labels"], 1),
         f"{row['penalty']:.2g}", number(row["threshold"], 3), number(row["fit_seconds"]))
        for row in result.rows
    )  # fmt: skip
    notes = tuple(
        f"{row['name']}: default {row['default']:.3f}, logistic at 0.5 {row['plain']:.3f}, better tuned baseline"
        f" ({row['best']}) {row['tuned']:.3f}; fit takes {row['times']:.1f} times one fit of logistic regressions."
        for row in result.summary["verdicts"]
    )
    yield Table("The classifier beside what people would pick instead", columns, rows, notes)


EXPERIMENT = Experiment(
    name="classifiers",
    title="The classifier beside others",
    help="The multilabel classifier beside logistic regressions and softmax, on Mulan's splits.",
    order=45,
    run=run,
    full=("paper",),
    options=(
        Option("sets", "Names of data sets, with commas; else those of the scale."),
        Option("methods", "Names of methods, with commas; else all."),
        Option("splits", "Deal the rows of the smaller sets anew too, ten times: micro F1 with its interval.", bool),
    ),
    data=Data("Mulan's files", "multilabel", lambda scale: files(SETS[scale])),
    tables=tables,
)
