"""The benchmarks behind results/: `python benchmarks/run.py maps`, with the options of `sparsegen bench`."""

import sys
from pathlib import Path

from sparsegen.cli import app

if __name__ == "__main__":
    asked = sys.argv[1:]
    elsewhere = any(option.startswith(("--quick", "--out")) for option in asked)  # toy numbers are no results
    results = [] if elsewhere else ["--out", str(Path(__file__).resolve().parent.parent / "results")]
    app(["bench", *asked, *results])
