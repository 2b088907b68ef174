"""Side-by-side timing: every call in turn, many times, in a new order each time, so that noise hits all alike."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch

import sparsegen
from sparsegen import _core
from sparsegen._table.checks import fail
from sparsegen.experiments.store import versions

Times = dict[str, dict[str, float]]
Tell = Callable[[str], None]


class Settings(NamedTuple):
    """What a benchmark is asked for; seconds None: its own default."""

    seconds: float | None = None
    threads: tuple[int, ...] | None = None
    quick: bool = False
    data: Path | None = None

    def time(self, default: float) -> float:
        """Seconds for each case."""
        return 0.0 if self.quick else default if self.seconds is None else self.seconds

    def thread_counts(self, default: Sequence[int]) -> list[int]:
        """Numbers of threads to measure with."""
        return list(self.threads) if self.threads else [1] if self.quick else list(default)


def interleaved(
    calls: dict[str, Callable[[], Any]], seconds: float, least: int = 7, before: Callable[[str], Any] | None = None
) -> Times:
    """Time every call once a turn until `seconds` are spent, in `least` turns or more.

    Parameters
    ----------
    calls : dict
        What to time, by name. Each is called once before, untimed.
    seconds : float
        When to stop.
    least : int
        The fewest turns, 2 or more.
    before : callable, optional
        Called with the name before each call, untimed.

    Returns
    -------
    dict
        By name: median and quartiles in microseconds, and the number of turns.

    Examples
    --------
    >>> found = interleaved({"sum": lambda: sum(range(10)), "max": lambda: max(range(10))}, 0.0, least=3)
    >>> found["sum"]["repeats"], found["sum"]["low_us"] <= found["sum"]["median_us"] <= found["sum"]["high_us"]
    (3, True)
    """
    if least < 2:
        fail(ValueError, "least", "at least 2, for quartiles", least)
    times: dict[str, list[float]] = {name: [] for name in calls}
    ready = before or (lambda name: None)
    for name, call in calls.items():
        ready(name)
        call()
    order, shuffle = list(calls), random.Random(0).shuffle
    turns, end = 0, time.perf_counter() + seconds
    with _no_garbage_collection():
        while turns < least or time.perf_counter() < end:
            shuffle(order)  # no call always runs in the caches the same other left behind
            for name in order:
                ready(name)
                start = time.perf_counter()
                calls[name]()
                times[name].append(time.perf_counter() - start)
            turns += 1
    return {name: summary(values) for name, values in times.items()}


def in_places(make: Callable[[], dict[str, Callable[[], Any]]], seconds: float, places: int = 4) -> Times:
    """Time calls whose arrays are made anew several times: which pages an array happens to get can double its time.

    Parameters
    ----------
    make : callable
        Gives what to time, by name, with new arrays; those before it are still there, so their memory is not taken.
    seconds : float
        For all places together.
    places : int
        How often arrays are made.

    Returns
    -------
    dict
        As `interleaved` has it: the medians over places of medians and quartiles, and the number of turns in all.

    Examples
    --------
    >>> in_places(lambda: {"sum": lambda: sum(range(10))}, 0.0)["sum"]["repeats"]
    20
    """
    found: list[Times] = []
    for _ in range(places):
        calls = make()
        found.append(interleaved(calls, seconds / places, least=5))
    return {name: _median_of([times[name] for times in found]) for name in found[0]}


def _median_of(times: list[dict[str, float]]) -> dict[str, float]:
    keys = ("median_us", "low_us", "high_us")
    middle = {key: statistics.median(each[key] for each in times) for key in keys}
    return {**middle, "repeats": sum(each["repeats"] for each in times)}


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def summary(seconds: list[float]) -> dict[str, float]:
    """Median and quartiles in microseconds.

    >>> summary([1e-6, 2e-6, 3e-6, 4e-6, 5e-6]) == {"low_us": 2, "median_us": 3, "high_us": 4, "repeats": 5}
    True
    """
    low, median, high = (round(us * 1e6, 4) for us in statistics.quantiles(seconds, n=4, method="inclusive"))
    return {"median_us": median, "low_us": low, "high_us": high, "repeats": len(seconds)}


def same(name: str, found: torch.Tensor, exact: torch.Tensor, rtol: float, atol: float) -> None:
    """Refuse to go on if an answer is wrong: no time is taken of it.

    >>> same("half", torch.tensor(0.5), torch.tensor(0.5), 1e-6, 0.0)
    """
    try:
        torch.testing.assert_close(found.to(exact.dtype), exact, rtol=rtol, atol=atol)
    except AssertionError:
        gap = float((found.to(exact.dtype) - exact).abs().max())
        fail(ValueError, f"the answer of {name}", "right before it is timed", f"an error of {gap:.0e}")


def ratio(times: Times, name: str, to: str) -> float:
    """Median of one over the median of another.

    >>> ratio({"a": {"median_us": 3.0}, "b": {"median_us": 2.0}}, "a", "b")
    1.5
    """
    return times[name]["median_us"] / times[to]["median_us"]


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean: a ratio of 2 and one of 1/2 are even.

    >>> geometric_mean([2.0, 0.5])
    1.0
    """
    return math.exp(statistics.fmean(map(math.log, values)))


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Fit cost = c * size ** exponent by least squares on logarithms.

    >>> round(exponent([1, 10, 100], [3, 300, 30_000]), 6)
    2.0
    """
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(x, y).slope


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch, and with it this library, use so many threads.

    >>> with torch_threads(1):
    ...     torch.get_num_threads()
    1
    """
    was = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(was)


def cores() -> int:
    """Cores this process may use.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine(packages: Sequence[str] = ()) -> dict[str, Any]:
    """What the numbers depend on: processor, engine, versions; `packages` are named with their versions too.

    >>> sorted(machine())
    ['cores', 'cpu', 'engine', 'numpy', 'python', 'sparsegen', 'torch']
    """
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    names = ("python", "numpy", "sparsegen")
    found = {name: version for name, version in versions().items() if name in names}
    found |= {"cpu": model or platform.processor() or "unknown", "engine": _core.engine(), "torch": torch.__version__}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {**found, "cores": os.cpu_count()}


def _status(key: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def _child(answer: Any, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
    warm, call = make(*args)
    warm()
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")  # the peak counts from here on
    before = _status("VmRSS")
    kept = call()  # alive until the peak is read
    answer.send(_status("VmHWM") - before)
    del kept


def extra_memory(make: Callable[..., tuple[Callable[[], Any], Callable[[], Any]]], *args: Any) -> int | None:
    """Bytes a call needs beyond its input, at its peak, in a process of its own.

    ``make(*args)`` returns two callables: one that loads libraries and starts pools, and the one that is measured.
    None where the system does not tell (it is asked for in Linux's way) or the call fails.
    """
    if not os.path.exists("/proc/self/clear_refs"):
        return None
    context = multiprocessing.get_context("spawn")
    ask, answer = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(answer, make, args))
    child.start()
    answer.close()
    try:
        return ask.recv()
    except EOFError:
        return None
    finally:
        child.join()


def thread_counts(text: str) -> tuple[int, ...]:
    """Read numbers of threads, with commas.

    >>> thread_counts("1,2")
    (1, 2)
    """
    found = tuple(int(part) for part in text.split(",") if part.strip().isdigit())
    if len(found) != len(text.split(",")) or 0 in found:
        fail(ValueError, "threads", "positive integers with commas between them", repr(text))
    return found


def default_threads() -> list[int]:
    """One thread, and two where there are two cores: what the promises speak of."""
    return sorted({1, min(2, sparsegen.get_num_threads(), cores())})
