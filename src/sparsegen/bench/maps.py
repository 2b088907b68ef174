"""The maps beside torch.softmax, a copy and other libraries: forward, backward, half precision, memory, threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import sparsegen.torch as sgt
from sparsegen.bench.inputs import DENSITIES, adversarial_rows, corners, lam_of, scores
from sparsegen.bench.measure import (
    Settings,
    Tell,
    Times,
    default_threads,
    geometric_mean,
    in_places,
    interleaved,
    machine,
    ratio,
    torch_threads,
)
from sparsegen.bench.overhead import compiles, import_time, memory, small_calls
from sparsegen.bench.peers import COPY, OURS, PEERS, SOFTMAX, Peer, Verdict, gate, present
from sparsegen.bench.targets import targets

SHAPES = [(65536, 10), (4096, 50), (8192, 128), (4096, 512), (1024, 2048), (256, 32000), (64, 131072)]
QUICK_SHAPES = [(64, 10), (16, 600)]
PATIENCE = 0.1  # seconds for one call of another library: where it needs more, it is given fewer rows
LARGE = 4_000_000  # entries from which two threads have to pay
MEMORY_SHAPE = (512, 32768)


def _pair(peer: Peer, x: Tensor, lam: float) -> dict[str, Callable[[], Any]]:
    """Forward and, where there is one, backward call of an implementation."""
    function, z = peer.function(lam), peer.input(x, lam)
    given = peer.enter(z)
    calls: dict[str, Callable[[], Any]] = {f"{peer.name}/forward": lambda: function(given)}
    if peer.gradient:
        leaf = z.clone().requires_grad_()
        p, v = function(leaf), scores(*x.shape).flip(0).to(x.dtype)
        calls[f"{peer.name}/backward"] = lambda: torch.autograd.grad(p, leaf, v, retain_graph=True)
    return calls


def side_by_side(peers: Sequence[Peer], x: Tensor, lam: float, seconds: float, least: int) -> Times:
    """Times of several implementations on the same rows, as "name/forward" and "name/backward".

    >>> found = side_by_side(PEERS[:2], scores(4, 8), 0.5, 0.0, least=2)
    >>> sorted(found)
    ['sparsegen/backward', 'sparsegen/forward', 'torch.softmax/backward', 'torch.softmax/forward']
    """
    return interleaved(_pairs(peers, x, lam), seconds, least)


def _pairs(peers: Sequence[Peer], x: Tensor, lam: float) -> dict[str, Callable[[], Any]]:
    calls: dict[str, Callable[[], Any]] = {}
    for peer in peers:
        calls |= _pair(peer, x, lam)
    return calls


def affordable_rows(peer: Peer, x: Tensor, lam: float, patience: float = PATIENCE) -> int:
    """How many rows an implementation can do within the patience, judged by one call on a part of them.

    >>> affordable_rows(PEERS[0], scores(4, 8), 0.5, patience=60.0)
    4
    """
    part = x[: max(1, min(len(x), 2**16 // x.shape[-1]))]
    function, given = peer.function(lam), peer.enter(peer.input(part, lam))
    function(given)
    start = time.perf_counter()
    function(given)
    predicted = (time.perf_counter() - start) * len(x) / len(part)
    return len(x) if predicted <= patience else max(1, int(len(x) * patience / predicted))


def _record(peer: Peer, verdict: Verdict, times: Times, rows: int) -> dict[str, Any]:
    """What is kept of an implementation: verdict, times, and ratios to those that ran beside it."""
    name, found = peer.name, {**verdict.record(), "rows": rows}
    for part in ("forward", "backward"):
        if f"{name}/{part}" not in times:
            continue
        found[part] = times[f"{name}/{part}"]
        for other, key in ((SOFTMAX, "softmax"), (COPY, "copy"), (OURS, "sparsegen")):
            if f"{other}/{part}" in times:
                found[f"{part}_to_{key}"] = ratio(times, f"{name}/{part}", f"{other}/{part}")
    return found


def measure_peers(peers: Sequence[Peer], x: Tensor, lam: float, seconds: float, absent: dict[str, Verdict]) -> Any:
    """Gate every implementation on the very input, then time those that are right.

    The library, softmax and the copy take turns alone, in several places of memory; each other library is timed beside
    these three on the rows it has the patience for, so that none leaves cold caches to the rest.

    >>> found = measure_peers(PEERS[:4], scores(8, 16), 0.5, 0.0, {"entmax sort": Verdict("not installed")})
    >>> found["sparsegen"]["state"], found["entmax sort"]
    ('right', {'state': 'not installed'})
    """
    verdicts = {peer.name: absent.get(peer.name) or gate(peer, x, lam) for peer in peers}
    trusted = [peer for peer in peers if peer.name in (OURS, SOFTMAX, COPY) and verdicts[peer.name].timed]
    times = in_places(lambda: _pairs(trusted, x.clone(), lam), seconds)
    found = {}
    for peer in peers:
        if not verdicts[peer.name].timed:
            found[peer.name] = verdicts[peer.name].record()
        elif peer in trusted:
            found[peer.name] = _record(peer, verdicts[peer.name], times, len(x))
        else:
            part = x[: affordable_rows(peer, x, lam)]
            beside = side_by_side([*trusted, peer], part, lam, seconds / 4, least=3)
            found[peer.name] = _record(peer, verdicts[peer.name], beside, len(part))
    return found


def case(
    shape: tuple[int, int], density: str, threads: int, seconds: float, peers: Sequence[Peer] = PEERS,
    absent: dict[str, Verdict] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One cell of the grid: every implementation on the same scores.

    >>> found = case((8, 16), "sparse", 1, 0.0, PEERS[:3])
    >>> sorted(found["implementations"])
    ['copy', 'sparsegen', 'torch.softmax']
    """
    with torch_threads(threads):
        x = scores(*shape)
        lam = lam_of(x, density)
        found = measure_peers(peers, x, lam, seconds, present(peers) if absent is None else absent)
        support = float((sgt.sparsegen_lin(x, lam=lam) > 0).sum(-1).double().mean())
    ours = found[OURS]
    ratios = {
        "forward_ratio": "forward_to_softmax", "backward_ratio": "backward_to_softmax",
        "copy_ratio": "forward_to_copy",
    }  # fmt: skip
    return {
        "rows": shape[0], "K": shape[1], "density": density, "threads": threads, "lam": lam, "support": support,
        "implementations": found, **{name: ours[key] for name, key in ratios.items() if key in ours},
    }  # fmt: skip


def gate_table(peers: Sequence[Peer], absent: dict[str, Verdict]) -> dict[str, Any]:
    """Verdicts on plain and on corner rows, without times.

    >>> gate_table(PEERS[:1], {})["sparsegen"]["ties"]["state"]
    'right'
    """
    inputs = {"plain": scores(8, 64), **corners()}
    return {
        peer.name: {name: (absent.get(peer.name) or gate(peer, x, 0.0)).record() for name, x in inputs.items()}
        for peer in peers
        if peer.takes != "scores"
    }


def two(x: Tensor, lam: float, seconds: float, before: Callable[[str], Any] | None = None) -> dict[str, Any]:
    """The library beside torch.softmax on one input; no time if it is wrong there.

    >>> sorted(two(scores(4, 8, torch.bfloat16), 0.5, 0.0))
    ['error', 'ratio', 'state', 'times']
    """
    verdict = gate(PEERS[0], x, lam)
    if not verdict.timed:
        return verdict.record()
    calls = {OURS: lambda: sgt.sparsegen_lin(x, lam=lam), SOFTMAX: lambda: torch.softmax(x, -1)}
    times = interleaved(calls, seconds, before=before)
    return {**verdict.record(), "times": times, "ratio": ratio(times, OURS, SOFTMAX)}


def half(shapes: Sequence[tuple[int, int]], seconds: float) -> list[dict[str, Any]]:
    """bfloat16 beside torch.softmax in bfloat16, one thread.

    >>> [row["K"] for row in half([(4, 8)], 0.0)]
    [8, 8]
    """
    found = []
    for rows, n in shapes:
        for density in DENSITIES:
            x = scores(rows, n, torch.bfloat16)
            with torch_threads(1):
                row = two(x, lam_of(x, density), seconds)
            found.append({"rows": rows, "K": n, "density": density, **row})
    return found


def thread_gain(shape: tuple[int, int], density: str, counts: Sequence[int], seconds: float) -> dict[str, Any]:
    """How many times as fast more threads make the forward call, all counts taking turns.

    >>> thread_gain((4, 8), "sparse", [1], 0.0)["times_as_fast"]
    {'1': 1.0}
    """
    x = scores(*shape)
    lam = lam_of(x, density)
    known = {"rows": shape[0], "K": shape[1], "density": density}
    verdict = gate(PEERS[0], x, lam)
    if not verdict.timed:
        return {**known, **verdict.record(), "times_as_fast": {}}
    with torch_threads(1):
        calls = {str(count): lambda: sgt.sparsegen_lin(x, lam=lam) for count in counts}
        times = interleaved(calls, seconds, before=lambda name: torch.set_num_threads(int(name)))
    first = str(counts[0])
    gain = {name: ratio(times, first, name) for name in times}
    return {**known, **verdict.record(), "times": times, "times_as_fast": gain}


def adversarial(n: int, entries: int, seconds: float) -> dict[str, Any]:
    """Times on adversarial rows over those on random rows of the same shape, one thread.

    >>> sorted(adversarial(8, 32, 0.0)["to_random"])[:2]
    ['all equal', 'alternating']
    """
    inputs = adversarial_rows(max(1, entries // n), n)
    lam = lam_of(inputs["random"], "sparse")
    verdicts = {name: gate(PEERS[0], x, lam) for name, x in inputs.items()}
    right = {name: x for name, x in inputs.items() if verdicts[name].timed}
    with torch_threads(1):
        times = interleaved({name: partial(sgt.sparsegen_lin, x, lam=lam) for name, x in right.items()}, seconds)
    others = [name for name in right if name != "random"] if "random" in right else []
    return {
        "rows": max(1, entries // n), "K": n, "lam": lam, "times": times,
        "to_random": {name: ratio(times, name, "random") for name in others},
        "wrong": {name: verdict.record() for name, verdict in verdicts.items() if not verdict.timed},
    }  # fmt: skip


def summarize(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means and worst cells of the library's ratios to softmax, by threads.

    >>> ours = {"forward_to_softmax": 0.5, "backward_to_softmax": 2.0}
    >>> row = {"rows": 1, "K": 2, "density": "sparse", "threads": 1, "implementations": {"sparsegen": ours}}
    >>> summarize([row])["1"]["backward"]
    {'geometric_mean': 2.0, 'worst': 2.0, 'worst_cell': '1 x 2 sparse'}
    """
    found: dict[str, Any] = {}
    for threads in sorted({row["threads"] for row in cases}):
        for part in ("forward", "backward"):
            cells = {
                f"{row['rows']} x {row['K']} {row['density']}": row["implementations"][OURS][f"{part}_to_softmax"]
                for row in cases
                if row["threads"] == threads and f"{part}_to_softmax" in row["implementations"][OURS]
            }
            if cells:
                worst = max(cells, key=lambda cell: cells[cell])
                mean = geometric_mean(list(cells.values()))
                means = {"geometric_mean": mean, "worst": cells[worst], "worst_cell": worst}
                found.setdefault(str(threads), {})[part] = means
    return found


def run(settings: Settings, tell: Tell, peers: Sequence[Peer] = PEERS) -> dict[str, Any]:
    """Measure everything about the maps; see the module. `tell` hears what is being measured."""
    seconds, quick = settings.time(2.0), settings.quick
    shapes = QUICK_SHAPES if quick else SHAPES
    threads = settings.thread_counts(default_threads())
    absent = present(peers, quick)
    result: dict[str, Any] = {
        "machine": machine([peer.package for peer in peers]), "seconds": seconds, "patience_seconds": PATIENCE,
        "quick": quick, "own_threads": [peer.name for peer in peers if peer.own_threads and peer.name not in absent],
        "gate": gate_table(peers, absent), "cases": [],
    }  # fmt: skip
    for count in threads:
        for shape in shapes:
            for density in DENSITIES:
                tell(f"{shape[0]} x {shape[1]}, {density}, {count} thread(s)")
                result["cases"].append(case(shape, density, count, seconds, peers, absent))
    result["summary"] = summarize(result["cases"])
    result |= _rest(shapes, threads, seconds, quick, tell)
    right = [name for name, verdicts in result["gate"].items() if verdicts["plain"]["state"] == "right"]
    result["memory"] = [] if quick else _memory(right, threads, tell)
    return {**result, "targets": targets(result)}


def _rest(shapes: Sequence[tuple[int, int]], threads: list[int], seconds: float, quick: bool, tell: Tell) -> Any:
    """What is measured once: half precision, threads, adversarial rows, small calls, compiling, importing."""
    found: dict[str, Any] = {}
    tell("bfloat16")
    found["bfloat16"] = half(shapes, seconds / 2)
    tell("one thread against more")
    large = [shape for shape in shapes if quick or shape[0] * shape[1] >= LARGE]
    counts = sorted({1, *threads})
    found["threads"] = [thread_gain(shape, density, counts, seconds) for shape in large for density in DENSITIES]
    tell("adversarial rows")
    sizes, entries = ((10, 50), 500) if quick else ((50, 512, 32000), 2**20)
    found["adversarial"] = [adversarial(n, entries, seconds) for n in sizes]
    tell("small calls")
    found["small_calls"] = small_calls(2 * seconds, block=20 if quick else 200)
    found["compile"] = {} if quick else compiles()
    found["import"] = {} if quick else import_time()
    return found


def _memory(right: Sequence[str], threads: list[int], tell: Tell) -> list[dict[str, Any]]:
    found = []
    for name in (COPY, SOFTMAX, *right):
        for count in threads if name == OURS else threads[:1]:
            tell(f"memory of {name}, {count} thread(s)")
            found.append(memory(name, *MEMORY_SHAPE, count))
    return found
