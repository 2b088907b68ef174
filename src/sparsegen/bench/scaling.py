"""How the cost grows: with K, rows, threads and support, and what number types and memory layouts change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import sparsegen.torch as sgt
from sparsegen.bench.inputs import lam_of, scores
from sparsegen.bench.measure import Settings, Tell, cores, exponent, interleaved, machine, ratio, torch_threads
from sparsegen.bench.peers import COPY, OURS, PEERS, SOFTMAX, gate

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def point(value: Any, x: Tensor, lam: float, seconds: float, dim: int = -1, threads: int = 1) -> dict[str, Any]:
    """Time the library beside torch.softmax and a copy on one input; no time if it is wrong there.

    >>> found = point(8, scores(4, 8), 0.5, 0.0)
    >>> found["rows"], found["K"], found["state"], sorted(found["times"])
    (4, 8, 'right', ['copy', 'sparsegen', 'torch.softmax'])
    """
    n = x.shape[dim]
    verdict = gate(PEERS[0], x.movedim(dim, -1), lam)
    known = {"value": value, "rows": x.numel() // n, "K": n, "threads": threads, "lam": lam, **verdict.record()}
    if not verdict.timed:
        return known
    calls: dict[str, Callable[[], Any]] = {
        OURS: lambda: sgt.sparsegen_lin(x, lam=lam, dim=dim),
        SOFTMAX: lambda: torch.softmax(x, dim),
        COPY: lambda: x.clone(),
    }
    with torch_threads(threads):
        times = interleaved(calls, seconds)
    return {**known, "times": times, "ratio": ratio(times, OURS, SOFTMAX), "copy_ratio": ratio(times, COPY, SOFTMAX)}


def exponents(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Fitted exponents of the time against the value, for the library and for softmax.

    Small sizes cost what a call costs, so the upper half of the sizes is fitted alone too.

    >>> time = lambda us: {"sparsegen": {"median_us": us}, "torch.softmax": {"median_us": us * us}}
    >>> found = exponents([{"value": n, "times": time(float(n))} for n in (2, 4, 8, 16)])
    >>> round(found["sparsegen"]["all"], 6), round(found["torch.softmax"]["upper_half"], 6)
    (1.0, 2.0)
    """
    timed = [point for point in points if "times" in point]
    if len(timed) < 4:
        return {}
    found = {}
    for name in (OURS, SOFTMAX):
        sizes, costs = zip(*((point["value"], point["times"][name]["median_us"]) for point in timed))
        half = len(timed) // 2
        found[name] = {"all": exponent(sizes, costs), "upper_half": exponent(sizes[half:], costs[half:])}
    return found


def _section(title: str, varies: str, fixed: str, points: list[dict[str, Any]], fit: bool = True) -> dict[str, Any]:
    fits = exponents(points) if fit else {}
    return {"title": title, "varies": varies, "fixed": fixed, "points": points, "exponents": fits}


def _sizes(low: int, high: int, step: int = 1) -> list[int]:
    return [2**power for power in range(low, high + 1, step)]


def _sparse(value: int, rows: int, n: int, seconds: float) -> dict[str, Any]:
    x = scores(rows, n)
    return point(value, x, lam_of(x, "sparse"), seconds)


def length(largest: int, seconds: float) -> dict[str, Any]:
    """Time against K with as many rows as keep the number of entries the same; `largest` is a power of 2.

    >>> [found["value"] for found in length(6, 0.0)["points"]]
    [8, 16, 32, 64]
    """
    points = [_sparse(n, 2**largest // n, n, seconds) for n in _sizes(3, largest)]
    return _section("same number of entries", "K", f"rows x K = 2^{largest}, five nonzeros per row", points)


def length_alone(rows: int, largest: int, seconds: float) -> dict[str, Any]:
    """Time against K with the same rows.

    >>> length_alone(2, 6, 0.0)["fixed"]
    '2 rows, five nonzeros per row'
    """
    points = [_sparse(n, rows, n, seconds) for n in _sizes(3, largest)]
    return _section("same rows", "K", f"{rows} rows, five nonzeros per row", points)


def row_count(n: int, largest: int, seconds: float) -> dict[str, Any]:
    """Time against the number of rows.

    >>> [found["rows"] for found in row_count(8, 3, 0.0)["points"]]
    [1, 2, 4, 8]
    """
    points = [_sparse(rows, rows, n, seconds) for rows in _sizes(0, largest)]
    return _section("same K", "rows", f"K = {n}, five nonzeros per row", points)


def support(rows: int, n: int, seconds: float, step: int = 1) -> dict[str, Any]:
    """Time against the number of nonzeros per row, from 1 to K.

    >>> [found["value"] for found in support(4, 8, 0.0)["points"]]
    [1, 2, 4, 8]
    """
    x = scores(rows, n)
    lams = {size: sgt.lam_for_mean_support(x[:256], size) for size in _sizes(0, n.bit_length() - 1, step)}
    points = [point(size, x, lam, seconds) for size, lam in lams.items()]
    return _section("same shape", "nonzeros per row", f"{rows} x {n}", points)


def threads(shape: tuple[int, int], counts: Sequence[int], seconds: float) -> dict[str, Any]:
    """Time with more and more threads.

    >>> [found["threads"] for found in threads((4, 8), [1], 0.0)["points"]]
    [1]
    """
    x = scores(*shape)
    lam = lam_of(x, "sparse")
    points = [point(count, x, lam, seconds, threads=count) for count in counts]
    return _section("threads", "threads", f"{shape[0]} x {shape[1]}, five nonzeros per row", points, fit=False)


def dtypes(shape: tuple[int, int], seconds: float) -> dict[str, Any]:
    """Time in each number type.

    >>> [found["state"] for found in dtypes((4, 8), 0.0)["points"]]
    ['right', 'right', 'right', 'right']
    """
    lam = lam_of(scores(*shape), "sparse")
    points = [point(name, scores(*shape, dtype), lam, seconds) for name, dtype in DTYPES.items()]
    return _section("number types", "type", f"{shape[0]} x {shape[1]}, five nonzeros per row", points, fit=False)


def layouts(shape: tuple[int, int], seconds: float) -> dict[str, Any]:
    """Time on contiguous rows, on every second column of wider ones, and along the first axis.

    >>> [found["K"] for found in layouts((4, 8), 0.0)["points"]]
    [8, 8, 8]
    """
    rows, n = shape
    x = scores(rows, n)
    wide = scores(rows, 2 * n)
    wide[:, ::2] = x
    lam = lam_of(x, "sparse")
    points = [
        point("contiguous", x, lam, seconds),
        point("every second column", wide[:, ::2], lam, seconds),
        point("first axis", x.T.contiguous(), lam, seconds, dim=0),
    ]
    return _section("layouts", "layout", f"{rows} x {n}, five nonzeros per row", points, fit=False)


def run(settings: Settings, tell: Tell) -> dict[str, Any]:
    """Measure all sections; `tell` hears which."""
    seconds, quick = settings.time(0.5), settings.quick
    shape, large = ((8, 32), 8) if quick else ((2048, 512), 20)
    counts = settings.thread_counts(range(1, cores() + 1))
    sections: dict[str, Callable[[], dict[str, Any]]] = {
        "K, same number of entries": lambda: length(large, seconds),
        "K, same rows": lambda: length_alone(2 if quick else 16, large, seconds),
        "rows": lambda: row_count(32 if quick else 512, 4 if quick else 13, seconds),
        "support": lambda: support(*((4, 32) if quick else (256, 4096)), seconds),
        "threads, rows of medium length": lambda: threads(shape, counts, seconds),
        "threads, long rows": lambda: threads((2, 64) if quick else (256, 32768), counts, seconds),
        "number types": lambda: dtypes(shape, seconds),
        "layouts": lambda: layouts(shape, seconds),
    }
    found = []
    for name, measure in sections.items():
        tell(name)
        found.append(measure())
    return {"machine": machine(), "seconds": seconds, "quick": quick, "sections": found}
