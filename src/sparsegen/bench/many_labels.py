"""Time and memory of SparseMultilabelClassifier.fit where there are thousands of labels: made documents, sparse."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from sparsegen.bench.measure import Settings, Tell, machine
from sparsegen.experiments.memory import peak_mib
from sparsegen.experiments.multilabel.metrics import micro_f1
from sparsegen.sklearn import SparseMultilabelClassifier

CARDINALITY, OWN, NOISE = 3, 6, 12  # labels of a row, words of a label, other words of a row
PENALTY = 0.05


class Case(NamedTuple):
    """Sizes of a data set, a fifth of which is held out; a penalty of None is chosen in `fit`."""

    rows: int
    features: int
    labels: int
    alpha: float | None = None


# The last has a penalty: to choose one would hold the weights of a fold beside those of the fit.
CASES = (Case(20_000, 5000, 1000), Case(20_000, 5000, 10_000), Case(5000, 1000, 100_000, PENALTY))
QUICK = (Case(100, 40, 12),)


def documents(case: Case, seed: int = 0) -> tuple[Any, Any]:
    """Rows with some labels, the words that are those labels' own, and words of chance; both as CSR.

    >>> X, Y = documents(Case(10, 50, 20))
    >>> X.shape, Y.shape
    ((10, 50), (10, 20))
    """
    random = np.random.default_rng(seed)
    own = random.integers(case.features, size=(case.labels, OWN))
    labels = random.integers(case.labels, size=(case.rows, CARDINALITY))
    noise = random.integers(case.features, size=(case.rows, NOISE))
    words = np.concatenate([own[labels].reshape(case.rows, -1), noise], axis=1)
    return _indicator(words, case.features, np.float64), _indicator(labels, case.labels, np.int64)


def _indicator(columns: np.ndarray, n: int, kind: type) -> Any:
    """Rows with a 1 in each of some columns, however often they are named."""
    rows = np.repeat(np.arange(len(columns)), columns.shape[1])
    made = sparse.csr_array((np.ones(rows.size, kind), (rows, columns.ravel())), shape=(len(columns), n))
    made.sum_duplicates()
    made.data[:] = 1
    return made


def measure(case: Case) -> dict[str, Any]:
    """One fit and its predictions. Run in a process of its own, its peak memory is its own.

    >>> measure(Case(60, 30, 8, 0.05))["labels"]
    8
    """
    X, Y = documents(case)
    cut, before = case.rows * 4 // 5, peak_mib()
    start = time.process_time()
    model = SparseMultilabelClassifier(alpha="auto" if case.alpha is None else case.alpha).fit(X[:cut], Y[:cut])
    fitted = time.process_time()
    labels = model.predict(X[cut:])
    return {
        **case._asdict(), "fit_seconds": fitted - start, "predict_seconds": time.process_time() - fitted,
        "test_f1": float(micro_f1(Y[cut:], labels)), "gap": model.gap_, "n_iter": int(model.n_iter_),
        "mib_before": before, "peak_mib": peak_mib(), "weights_mib": model.coef_.nbytes / 2**20,
        "predicted_as": type(labels).__name__,
    }  # fmt: skip


def run(settings: Settings, tell: Tell) -> dict[str, Any]:
    """Fit every case in a fresh process. `tell` hears which."""
    if settings.quick:
        return {"machine": machine(), "fits": [measure(case) for case in QUICK], "missing": {}}
    fits: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for case in CASES:
        tell(f"{case.labels} labels")
        try:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                fits.append(pool.submit(measure, case).result())
        except BrokenProcessPool:
            missing[f"{case.labels} labels"] = "the process was killed; it may have run out of memory"
    return {"machine": machine(["scikit-learn", "scipy"]), "fits": fits, "missing": missing}
