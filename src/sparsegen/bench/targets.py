"""What the library promises of its speed, each promise beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sparsegen.bench.measure import geometric_mean

Result = dict[str, Any]


def _cells(
    result: Result, key: str, name: str = "sparsegen", keep: Callable[[dict[str, Any]], bool] = lambda row: True
) -> list[float]:
    """One-thread ratios of an implementation in the cells of the grid."""
    found = [row for row in result["cases"] if row["threads"] == 1 and keep(row)]
    return [row["implementations"][name][key] for row in found if key in row["implementations"].get(name, {})]


def _gains(result: Result) -> list[float]:
    rows = [row for row in result["threads"] if row["rows"] * row["K"] >= 4_000_000]
    return [row["times_as_fast"]["2"] for row in rows if "2" in row["times_as_fast"]]


def _others(small: dict[str, Any], key: str) -> list[float]:
    """Ratios of small calls but softmax's own."""
    return [value for name, value in small.get(key, {}).items() if name != "torch.softmax"]


def promise(text: str, values: Sequence[float], limit: float, take: Callable[[Sequence[float]], float]) -> Any:
    """One promise; without a measurement it is neither met nor broken. `take` is max or a mean for upper limits."""
    measured = take(values) if values else None
    met = None if measured is None else bool(measured >= limit if take is min else measured <= limit)
    return {"promise": text, "measured": measured, "limit": limit, "at": "least" if take is min else "most", "met": met}


def targets(result: Result) -> list[dict[str, Any]]:
    """Every promise with its measured value and whether it is met.

    >>> quiet = {"cases": [], "bfloat16": [], "threads": [], "adversarial": [], "compile": {}, "small_calls": {}}
    >>> found = targets(quiet)
    >>> {promise["met"] for promise in found}
    {None}
    """
    forward, backward = _cells(result, "forward_to_softmax"), _cells(result, "backward_to_softmax")
    large = _cells(result, "backward_to_softmax", keep=lambda row: row["rows"] * row["K"] >= 1_000_000)
    copy = _cells(result, "forward_to_copy", keep=lambda row: row["K"] >= 32000 and row["density"] == "sparse")
    entmax = _cells(result, "forward_to_sparsegen", "entmax sort", lambda row: row["K"] >= 512)
    half = [row["ratio"] for row in result["bfloat16"] if "ratio" in row]
    small = _others(result["small_calls"], "ratio")
    step = _others(result["small_calls"], "ratio_step")
    worst = [ratio for row in result["adversarial"] for ratio in row["to_random"].values()]
    breaks = [0 if result["compile"]["one_graph"] else 1] if result["compile"] else []
    found = [
        promise("forward / softmax, geometric mean of the grid", forward, 0.4, geometric_mean),
        promise("forward / softmax, worst cell", forward, 0.8, max),
        promise("backward / softmax's, geometric mean of the grid", backward, 0.7, geometric_mean),
        promise("backward / softmax's, worst cell of 1e6 entries or more", large, 1.0, max),
        promise("backward / softmax's, worst cell", backward, 1.1, max),
        promise("forward / copy, sparse rows of K >= 32000, worst cell", copy, 1.6, max),
        promise("bfloat16 forward / softmax in bfloat16, worst cell", half, 1.0, max),
        promise("two threads / one, times as fast, 4e6 entries or more, worst cell", _gains(result), 1.4, min),
        promise("1 x 32 call without gradients / softmax's, every map and modules that learn, worst", small, 2.5, max),
        promise("1 x 32 call with gradients, there and back / softmax's, the same, worst", step, 5.0, max),
        promise("entmax sort / sparsegen at K >= 512, times as long, worst cell", entmax, 20.0, min),
        promise("adversarial rows / random rows, worst", worst, 3.0, max),
        promise("graph breaks under torch.compile(fullgraph=True)", breaks, 0, max),
    ]
    return [{**each, "met": None} for each in found] if result.get("quick") else found  # toy sizes keep no promise
