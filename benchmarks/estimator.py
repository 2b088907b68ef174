"""Time, memory and duality gap of SparseMultilabelClassifier.fit: synthetic documents, scene, delicious (983 labels).

python benchmarks/estimator.py            # needs the data sets (SPARSEGEN_DATA); writes results/estimator.json
python benchmarks/estimator.py --quick    # synthetic documents only, nothing written
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from typing import Any

import numpy as np
from measure import machine, save
from sklearn.preprocessing import StandardScaler

from sparsegen.experiments.datasets import load
from sparsegen.experiments.metrics import micro_f1
from sparsegen.experiments.synthetic_data import make_documents, split
from sparsegen.sklearn import SparseMultilabelClassifier

CASES = [("documents", 1e-4, 1e-3), ("scene", 0.1, 1e-3), ("delicious", 10.0, 2e-2)]  # data, alpha, tol
MAPPINGS = {"sparsemax": "hinge", "sparsehourglass": "hinge", "softmax": "log"}


def parts(name: str) -> tuple[Any, Any, Any, Any]:
    if name == "documents":
        train, _, test = split(make_documents(labels="mean", value=3, seed=0), seed=0)
        scale = StandardScaler().fit(train.X)
        return scale.transform(train.X), train.Y, scale.transform(test.X), test.Y
    data = load(name)
    if name == "delicious":
        return data.X_train, data.Y_train, data.X_test, data.Y_test
    scale = StandardScaler().fit(data.X_train)
    return scale.transform(data.X_train), data.Y_train, scale.transform(data.X_test), data.Y_test


def measure(name: str, mapping: str, alpha: float, tol: float) -> dict[str, Any]:
    """One fit in a process of its own, so that its peak memory is its own."""
    X, Y, X_test, Y_test = parts(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    model = SparseMultilabelClassifier(mapping, MAPPINGS[mapping], alpha=alpha, tol=tol, threshold=0.1).fit(X, Y)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    scores = np.asarray(X @ model.coef_.T)
    return {
        "data": name, "rows": X.shape[0], "features": X.shape[1], "labels": Y.shape[1], "mapping": mapping,
        "alpha": alpha, "tol": tol, "seconds": seconds, "gap": model.gap_, "n_iter": int(model.n_iter_),
        "test_f1": micro_f1(Y_test, model.predict(X_test)),
        "peak_mib": peak, "mib_before": before, "scores_mib": scores.nbytes / 2**20,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    found = []
    for name, alpha, tol in CASES[:1] if options.quick else CASES:
        for mapping in MAPPINGS:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                row = pool.apply(measure, (name, mapping, alpha, tol))
            found.append(row)
            size = f"{row['rows']} x {row['features']}, {row['labels']} labels"
            figures = (
                f"{row['seconds']:.1f} s, gap {row['gap']:.0e}, {row['peak_mib']:.0f} MiB, test F1 {row['test_f1']:.3f}"
            )
            print(f"{name} ({size}) {mapping}: {figures}", flush=True)
            if not options.quick:
                save("estimator", {"machine": machine(), "fits": found})


if __name__ == "__main__":
    main()
