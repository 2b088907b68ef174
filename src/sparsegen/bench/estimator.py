"""Time, memory and duality gap of SparseMultilabelClassifier.fit: synthetic documents, scene, delicious."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

from sparsegen.bench.measure import Settings, Tell, machine
from sparsegen.experiments.memory import peak_mib
from sparsegen.experiments.multilabel.datasets import load
from sparsegen.experiments.multilabel.metrics import micro_f1
from sparsegen.experiments.multilabel.synthetic_data import make_documents, split
from sparsegen.sklearn import SparseMultilabelClassifier

CASES = [("documents", 1e-4, 1e-3), ("scene", 0.1, 1e-3), ("delicious", 10.0, 2e-2)]  # data, alpha, tol
MAPPINGS = {"sparsemax": "hinge", "sparsehourglass": "hinge", "softmax": "log"}
QUICK_ROWS = 200


def parts(name: str, folder: Path | None = None, rows: int | None = None) -> tuple[Any, Any, Any, Any]:
    """Training and test data, X scaled where it is dense; the first rows only, if asked.

    >>> [part.shape[0] for part in parts("documents", rows=10)]
    [10, 10, 10, 10]
    """
    if name == "documents":
        train, _, test = split(make_documents(labels="mean", value=3, seed=0), seed=0)
        X, Y, X_test, Y_test = train.X, train.Y, test.X, test.Y
    else:
        data = load(name, folder)
        X, Y, X_test, Y_test = data.X_train, data.Y_train, data.X_test, data.Y_test
    if name != "delicious":
        scale = StandardScaler().fit(X)
        X, X_test = scale.transform(X), scale.transform(X_test)
    return X[:rows], Y[:rows], X_test[:rows], Y_test[:rows]


def measure(
    name: str, mapping: str, alpha: float, tol: float, folder: Path | None = None, rows: int | None = None
) -> dict[str, Any]:
    """One fit. Run in a process of its own, its peak memory is its own.

    >>> measure("documents", "sparsemax", 1e-2, 1e-2, rows=20)["rows"]
    20
    """
    X, Y, X_test, Y_test = parts(name, folder, rows)
    before = peak_mib()
    start = time.perf_counter()
    fixed: dict[str, Any] = {"alpha": alpha, "tol": tol, "threshold": 0.1 if mapping == "softmax" else 0.0}
    model = SparseMultilabelClassifier(mapping, MAPPINGS[mapping], **fixed, intercept_scaling=1.0, max_iter=10_000)
    model.fit(X, Y)
    seconds = time.perf_counter() - start
    peak = peak_mib()
    scores = np.asarray(X @ model.coef_.T)
    return {
        "data": name, "rows": X.shape[0], "features": X.shape[1], "labels": Y.shape[1], "mapping": mapping,
        "alpha": alpha, "tol": tol, "seconds": seconds, "gap": model.gap_, "n_iter": int(model.n_iter_),
        "test_f1": micro_f1(Y_test, model.predict(X_test)),
        "peak_mib": peak, "mib_before": before, "scores_mib": scores.nbytes / 2**20,
    }  # fmt: skip


def run(settings: Settings, tell: Tell) -> dict[str, Any]:
    """Fit every case in a fresh process; data sets that are not there are named. `tell` hears which."""
    if settings.quick:
        return {"machine": machine(), "fits": [measure("documents", "sparsemax", 1e-2, 1e-2, rows=QUICK_ROWS)]}
    fits: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for name, alpha, tol in CASES:
        for mapping in MAPPINGS:
            tell(f"{name}, {mapping}")
            try:
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    fits.append(pool.submit(measure, name, mapping, alpha, tol, settings.data).result())
            except FileNotFoundError as error:
                missing[name] = str(error)
                break
            except BrokenProcessPool:
                missing[name] = f"the process that fitted {mapping} was killed; it may have run out of memory"
                break
    return {"machine": machine(["scikit-learn", "scipy"]), "fits": fits, "missing": missing}
