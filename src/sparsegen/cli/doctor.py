"""`sparsegen doctor`: what this installation has to work with, for a person and for a report of a fault."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from typing import Any

import numpy as np
import typer

import sparsegen
from sparsegen import _core
from sparsegen._table.extras import advice
from sparsegen.experiments.folders import DATA_VARIABLE, RUNS_VARIABLE, places

OPTIONAL = (  # package, module, extra
    ("torch", "torch", "torch"),
    ("triton", "triton", "gpu"),
    ("jax", "jax", "jax"),
    ("scikit-learn", "sklearn", "sklearn"),
    ("transformers", "transformers", "transformers"),
)


def doctor() -> None:
    """Say what this installation has to work with: kernel, threads, packages, folders; and try the kernel."""
    lines = list(findings())
    for name, text in lines:
        typer.echo(f"{name:<13} {text}")
    if any(text.startswith("wrong") for _, text in lines):
        raise typer.Exit(1)


def findings() -> Iterator[tuple[str, str]]:
    """What was found, a name and a line each.

    >>> dict(findings())["sparsegen"].split(",")[0] == sparsegen.__version__
    True
    """
    yield "sparsegen", f"{sparsegen.__version__}, Python {platform.python_version()}, {_system()}"
    yield "kernel", f"engine {_core.engine()}, of {', '.join(_core.engines())}"
    yield "tried", _trial()
    yield "threads", f"{sparsegen.get_num_threads()}{_asked('SPARSEGEN_NUM_THREADS', 'OMP_NUM_THREADS')}"
    yield "numpy", np.__version__
    for package, module, extra in OPTIONAL:
        yield package, _package(package, module, extra)
    folder = places(None, "")[0]
    there = "there" if folder.is_dir() else "not there: only what needs no data can run"
    yield "data", f"{folder.absolute()}{_asked(DATA_VARIABLE)}, {there}"
    yield "runs", os.environ.get(RUNS_VARIABLE) or f"in --out, as {RUNS_VARIABLE} is not set"


def _system() -> str:
    return f"{platform.system()} {platform.machine()}" + (
        ", a debugging build" if hasattr(sys, "gettotalrefcount") else ""
    )


def _asked(*variables: str) -> str:
    """Which variable of the environment said so."""
    found = next((name for name in variables if os.environ.get(name)), None)
    return f" (from {found})" if found else ""


def _package(package: str, module: str, extra: str) -> str:
    """The version of a package and what matters of it; or how to get it; or why it cannot be used."""
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return f"not found: {advice(extra)}"
    try:
        found = import_module(module)
        more = {"torch": _of_torch, "jax": _of_jax}.get(package)
        return f"{version}, {more(found)}" if more else version
    except Exception as error:  # a broken installation may raise anything
        reason = (str(error).splitlines() or [""])[0]
        return f"{version}, found but not usable: {type(error).__name__}: {reason}"


def _of_torch(torch: Any) -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{torch.get_num_threads()} threads, {device}"


def _of_jax(jax: Any) -> str:
    from sparsegen.jax import _ffi

    handlers = "the kernel's handlers" if _ffi.READY else f"plain operations: {_ffi.MISSING}"
    return f"{jax.default_backend()}, {handlers}"


def _trial() -> str:
    """Compare the kernel with sorting on rows of several lengths, with every engine that this CPU has."""
    rng = np.random.default_rng(0)
    before, rows = _core.engine(), 0
    try:
        for engine in _core.engines():
            _core.use_engine(engine)
            for length in (1, 5, 50, 700, 5000):
                z = rng.normal(size=(20, length))
                rows += len(z)
                error = float(np.abs(sparsegen.sparsemax(z) - _by_sorting(z)).max())
                if not error < 1e-12:
                    return f"wrong: engine {engine} is {error:.2g} off on rows of {length}; please report this"
    finally:
        _core.use_engine(before)
    return f"{rows} rows with every engine, right"


def _by_sorting(z: np.ndarray) -> np.ndarray:
    """Sparsemax as the paper has it.

    >>> _by_sorting(np.array([[0.5, 0.25, -1.0]])).tolist()
    [[0.625, 0.375, 0.0]]
    """
    down = -np.sort(-z, axis=-1)
    excess = (down.cumsum(axis=-1) - 1) / np.arange(1, z.shape[-1] + 1)
    size = (down > excess).sum(axis=-1, keepdims=True)
    return np.maximum(z - np.take_along_axis(excess, size - 1, axis=-1), 0)
