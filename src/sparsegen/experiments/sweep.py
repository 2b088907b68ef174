"""Run one function over many cells: in parallel, resumably, here or on a cluster.

A cell is a dict of keyword arguments. Its output is kept on disk the moment it arrives, so a sweep that was stopped, by
whatever means, goes on where it was when it is run again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import logging
import os
import socket
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sparsegen._table.checks import fail, one_of
from sparsegen._table.extras import missing
from sparsegen.experiments.folders import choose, chosen, environment
from sparsegen.experiments.store import CellStore, plain, to_json

Cell = dict[str, Any]
Function = Callable[..., dict[str, Any]]
Progress = Callable[[int, int, "Cell | None", float], object]

# Workers share the cores already: threads inside them would only fight.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "SPARSEGEN_NUM_THREADS"), "1")


class SweepError(RuntimeError):
    """Raised at the end of a sweep in which a cell failed; all the others were run.

    Attributes
    ----------
    failures : list of (dict, str)
        The cells that failed, each with its error as text.
    outputs : list of (dict or None)
        The outputs in the order of the cells, None for those that failed.
    """

    failures: list[tuple[Cell, str]]
    outputs: list[dict[str, Any] | None]


class _WorkerTraceback(Exception):
    """Carries the traceback of a failed cell as text: the exception itself may not survive the way from a worker."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class _Outcome:
    index: int
    seconds: float
    output: dict[str, Any]
    error: str = ""
    trace: str = ""


def run(
    function: Function,
    cells: Iterable[Cell],
    *,
    store: str | Path | None = None,
    jobs: int = 1,
    engine: str = "joblib",
    address: str | None = None,
    version: str = "",
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Return ``function(**cell)`` for each cell, in the order of the cells.

    Cells whose output is in the store are not run again. Equal cells are run once and counted once. One sweep at a
    time may use a store.

    Parameters
    ----------
    function : callable
        A module-level function of keyword arguments that returns a dict. Arguments and outputs are what
        :func:`~sparsegen.experiments.store.plain` accepts, and are given and returned as it makes them.
    cells : iterable of dict
        The keyword arguments of each call.
    store : path, optional
        Folder of the file ``cells.jsonl``, made if missing. A cell is found in it by :func:`cell_key`.
    jobs : int
        Number of worker processes, each of which uses one thread. With 1 and joblib the cells are run in this process,
        with as many threads as it likes. It says nothing when `address` is given.
    engine : {"joblib", "dask", "ray"}
        What runs the workers. joblib keeps idle ones for a while, for the next sweep; the others are ended.
    address : str, optional
        An existing Dask scheduler (``"tcp://..."``) or Ray cluster. It is left running; its workers need this package
        and the function's module. Where Ray is already initialised in this process, that connection is used.
    version : str
        Part of a cell's key: change it when the function's meaning changes, so that old outputs are not taken for new.
    progress : callable, optional
        Called as ``progress(done, total, cell, seconds)`` when a cell has ended, well or not, and once at the start
        with the number found in the store, None and 0.

    Raises
    ------
    SweepError
        When a cell failed, after all others were run and stored. It names the first that did.

    Examples
    --------
    >>> run(dict, [{"seed": 1}, {"seed": 2}])  # dict returns its keyword arguments
    [{'seed': 1}, {'seed': 2}]
    """
    cells = [_checked_cell(i, cell) for i, cell in enumerate(cells)]
    _check(function, jobs, engine, address)
    keys = [cell_key(function, cell, version) for cell in cells]
    unique = dict(zip(keys, cells))
    with CellStore.opened(store) as kept:
        failures = _run_missing(function, unique, kept, (jobs, engine, address), progress)
    if failures:
        _raise(failures, unique, [kept.outputs.get(key) for key in keys])
    return [plain(kept.outputs[key]) for key in keys]  # a copy each, as equal cells share one


def _run_missing(
    function: Function, cells: dict[str, Cell], kept: CellStore, how: tuple[int, str, Any], progress: Progress | None
) -> dict[str, _Outcome]:
    """Run the cells that are not in the store and put them there; return the failures."""
    missing = [key for key in cells if key not in kept.outputs]
    done, total, failures = len(cells) - len(missing), len(cells), {}
    if progress:
        progress(done, total, None, 0.0)
    with contextlib.closing(_outcomes(function, [cells[key] for key in missing], *how)) as outcomes:
        for outcome in outcomes:
            key = missing[outcome.index]
            if outcome.error:
                failures[key] = outcome
            else:
                kept.add(key, cells[key], outcome.output, outcome.seconds)
            done += 1
            if progress:
                progress(done, total, cells[key], outcome.seconds)
    return failures


def cell_key(function: Function, cell: Cell, version: str = "") -> str:
    """Return the name under which the output of a cell is stored, the same in every process and on every machine.

    Numbers are told apart as JSON does: 1 and 1.0 are different cells.

    Examples
    --------
    >>> cell_key(dict, {"lam": 0.5, "q": 1}) == cell_key(dict, {"q": 1, "lam": 0.5})
    True
    >>> cell_key(dict, {"q": 1}) == cell_key(dict, {"q": 1}, version="2")
    False
    """
    text = to_json([f"{function.__module__}.{function.__qualname__}", cell, version])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _checked_cell(index: int, cell: Any) -> Cell:
    if not isinstance(cell, dict):
        fail(TypeError, f"cells[{index}]", "a dict of keyword arguments", repr(cell))
    return plain(cell, f"cells[{index}]")


def _check(function: Any, jobs: Any, engine: Any, address: Any) -> None:
    if "<" in getattr(function, "__qualname__", "<"):  # <lambda> or f.<locals>.g
        fail(TypeError, "function", "a module-level function, which workers can import", repr(function))
    if not isinstance(jobs, int) or jobs < 1:
        fail(ValueError, "jobs", "a positive integer", repr(jobs))
    if engine not in _ENGINES:
        fail(ValueError, "engine", one_of(_ENGINES), repr(engine))
    if address is not None and engine == "joblib":
        fail(ValueError, "address", "None with engine 'joblib', which runs on this machine", repr(address))


def _raise(failures: dict[str, _Outcome], cells: dict[str, Cell], outputs: list[dict[str, Any] | None]) -> None:
    """Raise the error that ends a sweep with failures; the first in the order of the cells is named."""
    failed = [key for key in cells if key in failures]
    first = failures[failed[0]]
    text = f"{first.error} ({len(failed)} of {len(cells)} cells failed, the others are done)"
    try:
        fail(SweepError, f"the cell {to_json(cells[failed[0]])}", "one that runs without an error", text)
    except SweepError as error:
        error.failures = [(cells[key], failures[key].error) for key in failed]
        error.outputs = outputs
        raise error from _WorkerTraceback(first.trace)


def _call(function: Function, index: int, cell: Cell) -> _Outcome:
    """Run one cell, in a worker or here; an error becomes text, so that no other cell is lost by it."""
    start = time.perf_counter()
    try:
        output = function(**plain(cell))  # a copy: the function may change what it is given
        if not isinstance(output, dict):
            fail(TypeError, "the output of function", "a dict", repr(output))
        return _Outcome(index, time.perf_counter() - start, plain(output, "output"))
    except Exception as error:
        return _failure(index, time.perf_counter() - start, error)


def _call_in_joblib(
    function: Function, index: int, cell: Cell, parent: int, folders: dict[str, str | None]
) -> _Outcome:
    os.environ.update(ONE_THREAD)  # our kernel reads it when it is called; joblib sets the others, but not ours
    choose(folders)  # the worker may have been started by a sweep that looked elsewhere
    _end_with(parent)
    return _call(function, index, cell)


@functools.cache  # once in each worker
def _end_with(parent: int) -> None:
    """End this worker when the process of the sweep is killed, as Dask and Ray do; joblib's would go on for minutes."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    if os.getppid() == parent:  # else joblib could not start workers and this is the sweep's own process
        threading.Thread(target=watch, daemon=True).start()


def _failure(index: int, seconds: float, error: Exception) -> _Outcome:
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return _Outcome(index, seconds, {}, f"{type(error).__name__}: {error}", trace)


def _package(name: str, extra: str) -> Any:
    """Import what an engine needs, only when it is used."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise missing("this engine", name, extra) from error


def _outcomes(
    function: Function, cells: list[Cell], jobs: int, engine: str, address: str | None
) -> Generator[_Outcome, None, None]:
    """Outcomes as they arrive; closing the generator ends the workers."""
    if address is not None and cells:
        _check_reachable(address)
    if engine == "joblib" and jobs == 1:
        for i, cell in enumerate(cells):
            yield _call(function, i, cell)
    elif cells:
        yield from _ENGINES[engine](function, cells, jobs, address)


def _check_reachable(address: str) -> None:
    """Refuse at once an address nobody listens at: the engines would wait for minutes, and not in silence."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    if parts.scheme not in ("", "tcp", "tls", "ray") or address == "auto":  # Ray's word for the cluster of this machine
        return
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10).close()
    except (OSError, ValueError) as error:
        fail(ConnectionError, "address", "that of a running cluster, as host:port", f"{address!r} ({error})")


def _joblib(function: Function, cells: list[Cell], jobs: int, address: str | None) -> Iterator[_Outcome]:
    joblib = _package("joblib", "sklearn")
    call, parent, folders = joblib.delayed(_call_in_joblib), os.getpid(), chosen()
    tasks = (call(function, i, cell, parent, folders) for i, cell in enumerate(cells))
    with joblib.parallel_config(backend="loky", n_jobs=jobs, inner_max_num_threads=1):
        # In batches, finished cells would wait for others before they are stored.
        outcomes = joblib.Parallel(return_as="generator_unordered", batch_size=1)(tasks)
    try:
        for outcome in outcomes:  # noqa: UP028 - `yield from` would close it outside the filter below
            yield outcome
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # joblib remarks that the rest is cancelled, which is what is wanted
            outcomes.close()


def _dask(function: Function, cells: list[Cell], jobs: int, address: str | None) -> Iterator[_Outcome]:
    distributed = _package("distributed", "cluster")
    with contextlib.ExitStack() as opened:
        if address is None:
            opened.enter_context(environment(ONE_THREAD))
            address = opened.enter_context(_dask_cluster(distributed, jobs)).scheduler_address
        client = opened.enter_context(distributed.Client(address, set_as_default=False))
        futures = {client.submit(_call, function, i, cell, pure=False): i for i, cell in enumerate(cells)}
        for future in distributed.as_completed(list(futures), loop=client.loop):
            try:
                outcome = future.result()
            except Exception as error:  # not of the function: its worker died, say
                outcome = _failure(futures[future], 0.0, error)
            yield outcome


def _dask_cluster(distributed: Any, jobs: int) -> Any:
    """Workers on this machine, without limits on memory, a dashboard or messages, as joblib's are."""
    return distributed.LocalCluster(
        n_workers=jobs,
        threads_per_worker=1,
        processes=True,
        memory_limit=0,
        scheduler_kwargs={"dashboard": False},
        dashboard_address="127.0.0.1:0",  # of the scheduler's web server, which is always there; None is port 8787
        silence_logs=logging.CRITICAL,
    )


def _ray(function: Function, cells: list[Cell], jobs: int, address: str | None) -> Iterator[_Outcome]:
    ray = _package("ray", "cluster")
    ours = not ray.is_initialized()
    waiting: dict[Any, int] = {}
    try:
        if ours:
            local = {"address": "local", "num_cpus": jobs, "include_dashboard": False}
            ray.init(**({"address": address} if address else local), logging_level=logging.ERROR, log_to_driver=False)
        call = ray.remote(num_cpus=1, runtime_env={"env_vars": ONE_THREAD})(_call)
        waiting = {call.remote(function, i, cell): i for i, cell in enumerate(cells)}
        while waiting:
            (task,), _ = ray.wait(list(waiting))
            index = waiting.pop(task)
            try:
                outcome = ray.get(task)
            except ray.exceptions.RayError as error:  # not of the function: its worker died, say
                outcome = _failure(index, 0.0, error)
            yield outcome
    finally:
        for task in waiting:
            ray.cancel(task, force=True)
        if ours:
            ray.shutdown()


_ENGINES = {"joblib": _joblib, "dask": _dask, "ray": _ray}
