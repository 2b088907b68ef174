"""Checkpoints of models with :class:`ShardedLinear`: written by all ranks, read by any number of them.

A checkpoint is a folder: ``whole.pt`` has what every rank has alike, ``rows-FIRST-LAST.pt`` the rows of some classes. A
rank that reads takes the rows it needs from whichever files have them, without loading the rest.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsegen._table import checks
from sparsegen.torch.distributed._exchange import Exchange
from sparsegen.torch.distributed.linear import ShardedLinear

_ROWS = re.compile(r"rows-(\d+)-(\d+)\.pt")


def _layer(model: nn.Module) -> tuple[str, ShardedLinear]:
    found = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, ShardedLinear)]
    if len(found) != 1:
        checks.fail(ValueError, "model", "one with a single ShardedLinear", f"{len(found)} of them")
    return found[0]


def _state(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What every rank has alike, and the tensors of which each rank has rows, by name."""
    prefix, _ = _layer(model)
    own = {f"{prefix}.{name}".lstrip(".") for name in ("weight", "bias")}
    names = {id(p): name for name, p in model.named_parameters()}
    whole: dict[str, Any] = {}
    split: dict[str, Tensor] = {}
    for name, t in model.state_dict().items():
        (split if name in own else whole)[name] = t
    for p, state in (optimizer.state if optimizer is not None else {}).items():
        for key, t in state.items():
            rows = names[id(p)] in own and isinstance(t, Tensor) and t.shape == p.shape
            (split if rows else whole)[f"{names[id(p)]}/{key}"] = t
    return whole, split


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write a file to the disk; an error, such as that of a full one, says which file it was."""
    try:
        with open(path, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__  # torch hides it behind an error of its own
        if not isinstance(cause, OSError):
            raise
        cause.filename = cause.filename or str(path)
        raise cause from None


def save(folder: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **extra: Any) -> None:
    """Write a checkpoint; all ranks of the layer's group must call it. It is there in full, or not at all.

    Parameters
    ----------
    folder : path
        To be made; one of that name is replaced.
    model : nn.Module
        With one :class:`ShardedLinear`; all else is the same on every rank.
    optimizer : torch.optim.Optimizer, optional
        Whose state is kept too.
    **extra : object
        Small things to keep beside, such as the step.

    Examples
    --------
    >>> import tempfile, torch, sparsegen.torch.distributed as sgd
    >>> with sgd.single_process(), tempfile.TemporaryDirectory() as folder:
    ...     sgd.save(folder + "/a", sgd.ShardedLinear(2, 3), step=7)
    ...     sgd.load(folder + "/a", sgd.ShardedLinear(2, 3, seed=1))
    {'step': 7}
    """
    folder, (_, layer) = Path(folder), _layer(model)
    ex = Exchange(layer.group)
    unfinished = folder.with_name(folder.name + ".unfinished")

    def write() -> None:
        unfinished.mkdir(parents=True, exist_ok=True)
        whole, split = _state(model, optimizer)
        if ex.rank == 0:
            _write(unfinished / "whole.pt", {"state": whole, "extra": extra, "classes": layer.out_features})
        if layer.first < layer.last:  # else other ranks have all classes
            _write(unfinished / f"rows-{layer.first:012d}-{layer.last:012d}.pt", split)

    def publish() -> None:
        if ex.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)

    ex.together(lambda: shutil.rmtree(unfinished, ignore_errors=True) if ex.rank == 0 else None)
    ex.together(write)
    ex.together(publish)


def _overlaps(folder: Path, first: int, last: int) -> Iterator[tuple[Path, int, int, int, int]]:
    """Files that have classes from `first` to `last`: which of all, the first in the file, and how many it has."""
    at = first
    for path in sorted(folder.glob("rows-*.pt")):
        found = _ROWS.fullmatch(path.name)
        a, b = (int(number) for number in found.groups()) if found else (0, 0)
        low, high = max(a, first), min(b, last)
        if low < high:
            if low != at:
                break
            yield path, low, high, a, b - a
            at = high
    if at < last:
        checks.fail(ValueError, f"the checkpoint {folder.name}", "complete", f"no file with class {at}")


def _read(path: Path, **options: Any) -> dict[str, Any]:
    """What a file of a checkpoint holds; no code in it is run. One that is torn or of another kind is refused."""
    name, wanted = f"{path.parent.name}/{path.name}", "a whole file of a checkpoint"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch remarks on pickles of other kinds, which are refused anyway
            found = torch.load(path, weights_only=True, **options)
    except FileNotFoundError:
        raise
    except Exception as error:  # a torn or foreign file may raise anything
        checks.fail(ValueError, name, wanted, f"one torch cannot read ({type(error).__name__})")
    if not isinstance(found, dict):
        checks.fail(ValueError, name, wanted, f"a {type(found).__name__}")
    return found


def _kept(folder: Path) -> dict[str, Any]:
    """What every rank has alike, and what was kept beside."""
    kept = _read(folder / "whole.pt")
    parts = {"classes": int, "state": dict, "extra": dict}
    wrong = [name for name, kind in parts.items() if not isinstance(kept.get(name), kind)]
    if wrong:
        checks.fail(ValueError, f"{folder.name}/whole.pt", "a file with classes, state and extra", f"none of {wrong}")
    return kept


def _rows(path: Path, size: int) -> dict[str, Tensor]:
    """The tensors of a file with the rows of so many classes."""
    found = _read(path, mmap=True)
    for name, t in found.items():
        if not isinstance(t, Tensor) or not t.dim() or len(t) != size:
            checks.fail(ValueError, f"{name} in {path.parent.name}/{path.name}", f"a tensor of {size} rows", type(t))
    return found


def load(folder: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """Read a checkpoint into a model and an optimizer, on as many ranks as there are now.

    Parameters
    ----------
    folder : path
        As :func:`save` wrote it, on any number of ranks.
    model : nn.Module
        Of the same shape as the one that was saved.
    optimizer : torch.optim.Optimizer, optional
        Of the model's parameters; it gets the state that was saved.

    Returns
    -------
    dict
        The small things that were kept beside.

    Examples
    --------
    >>> import tempfile, sparsegen.torch.distributed as sgd
    >>> with sgd.single_process(), tempfile.TemporaryDirectory() as folder:
    ...     one, other = sgd.ShardedLinear(2, 3), sgd.ShardedLinear(2, 3, seed=1)
    ...     sgd.save(folder + "/a", one)
    ...     sgd.load(folder + "/a", other), bool((one.weight == other.weight).all())
    ({}, True)
    """
    folder, (_, layer) = Path(folder), _layer(model)

    def read() -> dict[str, Any]:
        kept = _kept(folder)
        if kept["classes"] != layer.out_features:
            got = f"{layer.out_features} where it has {kept['classes']}"
            checks.fail(ValueError, "the classes of the model", "those of the checkpoint", got)
        state, parameters = dict(kept["state"]), dict(model.named_parameters())
        for path, low, high, start, size in _overlaps(folder, layer.first, layer.last):
            for name, t in _rows(path, size).items():
                if name not in state:
                    state[name] = torch.empty(layer.last - layer.first, *t.shape[1:], dtype=t.dtype)
                state[name][low - layer.first : high - layer.first] = t[low - start : high - start]
        model.load_state_dict({name: t for name, t in state.items() if "/" not in name})
        if optimizer is not None:
            optimizer.state.clear()
            for name, t in state.items():
                if "/" in name:
                    parameter, key = name.rsplit("/", 1)
                    optimizer.state[parameters[parameter]][key] = t
        return kept["extra"]

    return Exchange(layer.group).together(read)


def latest(folder: Path | str) -> Path | None:
    """The newest checkpoint of a folder, by the number in its name; None if there is none.

    >>> latest("/nowhere") is None
    True
    """
    found = [path for path in Path(folder).glob("step-*") if path.name[5:].isdigit() and (path / "whole.pt").exists()]
    return max(found, key=lambda path: int(path.name[5:]), default=None)
