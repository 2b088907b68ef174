"""Side-by-side timing: every implementation in turn, many times, so that noise hits all alike."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sparsegen
from sparsegen import _core

RESULTS = Path(__file__).resolve().parent.parent / "results"


def interleaved(calls: dict[str, Callable[[], Any]], seconds: float, least: int = 7) -> dict[str, dict[str, float]]:
    """Time each call in turn until `seconds` are spent; median and quartiles in microseconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < least:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: summary(values) for name, values in times.items()}


def summary(seconds: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return {"median_us": median * 1e6, "low_us": low * 1e6, "high_us": high * 1e6, "repeats": len(seconds)}


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model or platform.processor(),
        "cores": os.cpu_count(),
        "engine": _core.engine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "sparsegen": sparsegen.__version__,
    }


def save(name: str, result: dict[str, Any]) -> Path:
    """Write results/NAME.json by way of a temporary name, so that no half-written file is ever seen."""
    RESULTS.mkdir(exist_ok=True)
    path, draft = RESULTS / f"{name}.json", RESULTS / f".{name}.json.tmp"
    draft.write_text(json.dumps(result, indent=1) + "\n")
    draft.replace(path)
    return path
