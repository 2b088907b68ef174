"""Every engine of this machine on the grid of `sparsegen bench maps`, beside torch.softmax: results/engines.json.

`python benchmarks/engines.py [SECONDS]`, the seconds for each cell (1). Engines take turns in one process, one thread.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import sparsegen.torch as sgt
from sparsegen import _core
from sparsegen.bench.inputs import DENSITIES, lam_of, scores
from sparsegen.bench.maps import SHAPES
from sparsegen.bench.measure import geometric_mean, interleaved, machine, torch_threads

RESULT = Path(__file__).resolve().parent.parent / "results" / "engines.json"
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SOFTMAX = "torch.softmax"


def calls(shape: tuple[int, int], density: str, dtype: torch.dtype, part: str) -> dict[str, Callable[[], Any]]:
    """One call for each engine, and softmax's."""
    x = scores(*shape, dtype)
    maps = {name: partial(sgt.sparsegen_lin, lam=lam_of(x, density)) for name in _core.engines()}
    maps[SOFTMAX] = partial(torch.softmax, dim=-1)
    if part == "forward":
        return {name: partial(function, x) for name, function in maps.items()}
    leaf, v = x.clone().requires_grad_(), scores(*shape).flip(0).to(dtype)
    return {name: partial(torch.autograd.grad, f(leaf), leaf, v, retain_graph=True) for name, f in maps.items()}


def use(name: str) -> None:
    """Let an engine do the next call."""
    if name != SOFTMAX:
        _core.use_engine(name)


def cell(shape: tuple[int, int], density: str, dtype: torch.dtype, part: str, seconds: float) -> dict[str, Any]:
    """Medians in microseconds, and the ratio of the widest engine to the one before it and to softmax."""
    times = interleaved(calls(shape, density, dtype, part), seconds, least=15, before=use)
    found = {name: summary["median_us"] for name, summary in times.items()}
    *_, before, widest = _core.engines()
    return {
        "rows": shape[0], "K": shape[1], "density": density, "dtype": str(dtype).removeprefix("torch."), "part": part,
        "times_us": found, "widest_to_next": found[widest] / found[before],
        "to_softmax": found[widest] / found[SOFTMAX],
    }  # fmt: skip


def summarize(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric mean and worst of both ratios, by direction and storage."""
    found: dict[str, Any] = {}
    for row in cells:
        group = found.setdefault(f"{row['dtype']} {row['part']}", {"widest_to_next": [], "to_softmax": []})
        for key, values in group.items():
            values.append(row[key])
    return {
        name: {key: {"geometric_mean": geometric_mean(v), "worst": max(v)} for key, v in group.items()}
        for name, group in found.items()
    }


def main() -> None:
    """Measure and write the file."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    was = _core.engine()
    cells = []
    with torch_threads(1):
        for dtype in DTYPES:
            for shape in SHAPES:
                for density in DENSITIES:
                    cells += [cell(shape, density, dtype, part, seconds) for part in ("forward", "backward")]
                    _core.use_engine(was)
    result = {"machine": machine(), "engines": _core.engines(), "seconds": seconds, "cells": cells}
    RESULT.write_text(json.dumps({**result, "summary": summarize(cells)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
