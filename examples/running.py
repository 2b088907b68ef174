"""What the longer examples share: their options, and how seeds are summed up. It is no example itself."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from sparsegen.bench.measure import machine
from sparsegen.experiments.store import write_text

Found = dict[str, Any]
T_975 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}  # by the number of seeds


def over_seeds(values: Sequence[float]) -> dict[str, float]:
    """Return the mean of some seeds and half the width of its interval (95 %, Student's)."""
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return {"mean": mean, "half": math.nan}
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    return {"mean": mean, "half": T_975[n] * deviation / math.sqrt(n)}


def summed_up(rows: Iterable[Found], by: Sequence[str], measures: Sequence[str]) -> list[Found]:
    """Return a row for each group of rows that differ in their seed alone."""
    groups: dict[tuple, list[Found]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    return [
        dict(zip(by, key)) | {name: over_seeds([row[name] for row in group]) for name in measures}
        for key, group in groups.items()
    ]


def command(text: str | None, work: Callable[[bool], Found], drawn: Callable[[Found], Any]) -> None:
    """Run an example from the command line: print what it found, and write the figure and the file asked for."""
    options = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="a toy run of seconds, which shows nothing")
    options.add_argument("--figure", type=Path)
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    start = time.perf_counter()
    found = work(asked.quick)
    found["seconds"] = time.perf_counter() - start
    for row in found["summary"]:
        print(
            "  ".join(
                f"{n} {v['mean']:.3f} ± {v['half']:.3f}" if isinstance(v, dict) else f"{v}" for n, v in row.items()
            )
        )
    print(f"{found['seconds']:.0f} s")
    if asked.figure:
        drawn(found).savefig(asked.figure)
    if asked.out:
        write_text(asked.out, json.dumps({**found, "machine": machine()}, indent=1) + "\n")
