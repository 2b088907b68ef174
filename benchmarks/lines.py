"""What memory alone takes for the longest rows of `sparsegen bench family`: results/lines.json.

`python benchmarks/lines.py [ROUNDS]`, on x86. Builds lines.cpp with $CXX, or c++. A map can take no less: it reads its
scores and writes its probabilities; its gradient writes as many numbers and reads what they depend on. A sparse map
writes lines of zeros, a dense one does not, and some processors write zeros faster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from sparsegen.bench.family import SHAPES
from sparsegen.bench.measure import machine
from sparsegen.experiments.store import write_text

HERE = Path(__file__).resolve().parent
RESULT = HERE.parent / "results" / "lines.json"


def times(rows: int, K: int, rounds: int) -> dict[str, float]:
    """Median microseconds of each way of going over rows of K floats."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "lines"
        options = ["-std=c++17", "-O2", "-march=native", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([os.environ.get("CXX", "c++"), *options, str(HERE / "lines.cpp"), "-o", str(made)], check=True)
        said = subprocess.run([made, str(rows), str(K), str(rounds)], check=True, capture_output=True, text=True).stdout
    return {name: float(us) for name, us in (line.rsplit(": ", 1) for line in said.splitlines())}


def main() -> None:
    """Measure and write the file."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    rows, K = SHAPES[-1]
    us = times(rows, K, rounds)
    dense = {
        "zeros": us["write ones"] / us["write zeros"],
        "forward": us["read, write shares"] / us["read, write zeros"],
        "backward": us["read two, write products"] / us["write zeros"],
    }
    found = {"machine": machine(), "rows": rows, "K": K, "rounds": rounds, "us": us, "dense_to_sparse": dense}
    write_text(RESULT, json.dumps(found, indent=1) + "\n")
    for name, value in {**us, **dense}.items():
        print(f"{name}: {value:.2f}")


if __name__ == "__main__":
    main()
