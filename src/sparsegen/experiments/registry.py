"""Experiments as objects: what each runs, takes, needs and shows. The command line and the report read them from here.

A module of a family's folder that defines ``EXPERIMENT = Experiment(...)`` is found by itself; adding an experiment is
adding that module. It is imported by every command, so it loads nothing heavier than NumPy until its work begins.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import sparsegen.experiments
from sparsegen._table.checks import fail, one_of
from sparsegen.experiments.store import Result

if TYPE_CHECKING:
    from sparsegen.experiments.drawings import Drawing
    from sparsegen.experiments.ledger import Entry
    from sparsegen.experiments.tables import Table

SCALES = {"smoke": "seconds", "small": "minutes", "paper": "the paper's sizes"}


@dataclass(frozen=True)
class Option:
    """An argument of an experiment's `run` beyond scale and seed, and the option of its command."""

    name: str
    help: str
    kind: type = tuple
    """`tuple`: names with commas, none where it is not given; `bool`: a flag, off then; `int`: a count, 1 then;
    `str`: one name, empty then."""


@dataclass(frozen=True)
class Data:
    """The files without which an experiment has nothing to run on."""

    title: str
    """What they are called where they are missing."""
    folder: str
    """The subfolder they may be in."""
    files: Callable[[str], Iterable[str]]
    """Their names at a scale."""


@dataclass(frozen=True)
class Part:
    """One run of an experiment in `reproduce all`, saved under a name of its own."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `run` beyond scale and seed."""
    needs_data: bool = True


def _nothing(result: Result) -> tuple[()]:
    return ()


@dataclass(frozen=True)
class Experiment:
    """An experiment, and all that commands and report want to know of it.

    Parameters
    ----------
    name, title, help : str
        Of its command; the heading of its section in the report; the text of `--help`.
    order : int
        Experiments are listed, run and reported from the lowest on.
    run : callable, optional
        ``run(scale, seed=..., store=..., **options, **how)`` returns a Result; `how` is for
        :func:`sparsegen.experiments.sweep.run`. None: nothing is measured, and its figures need no Result.
    scales : tuple of str
        Those it can be run at; empty where there is but one size.
    full : tuple of str
        The scales that are no scaled-down run.
    options : tuple of Option
        What `run` takes beyond scale and seed.
    data : Data, optional
        The files it needs.
    runs : tuple of Part
        What `reproduce all` runs; else the experiment itself.
    tables, ledger, figures : callable
        What a Result is shown as; figures are called without one where nothing is measured.
    beside : str
        Where nothing is measured: the experiment whose Result brings these figures into a report.

    Examples
    --------
    >>> toy = Experiment("toy", "A toy", "Run a toy.", 0, run=lambda scale, **how: None)
    >>> [part.name for part in toy.parts]
    ['toy']
    """

    name: str
    title: str
    help: str
    order: int
    run: Callable[..., Result] | None = None
    scales: tuple[str, ...] = tuple(SCALES)
    full: tuple[str, ...] = ("paper",)
    options: tuple[Option, ...] = ()
    data: Data | None = None
    runs: tuple[Part, ...] = ()
    tables: Callable[[Result], Iterable[Table]] = _nothing
    ledger: Callable[[Result], Iterable[Entry]] = _nothing
    figures: Callable[..., Iterable[Drawing]] = _nothing
    beside: str = ""

    @property
    def parts(self) -> tuple[Part, ...]:
        """What `reproduce all` runs of it."""
        return self.runs or (Part(self.name),)

    def kept(self, saved: Result, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return, in words, what a run with these options has not of a saved Result; it takes the file as `beside`."""
        return ()

    def replaced(self, saved: Result, result: Result) -> tuple[str, ...]:
        """Return, in words, what a saved Result has that is not in the one that takes its place."""
        return ()


_added: dict[str, Experiment] = {}


def register(experiment: Experiment) -> Experiment:
    """Add an experiment that is defined elsewhere; its name must be new."""
    if experiment.name in experiments():
        fail(ValueError, "the name of an experiment", "one that no other has", repr(experiment.name))
    _added[experiment.name] = experiment
    return experiment


def _modules() -> Iterator[str]:
    """Names of the modules that define an experiment, told by their text: to import all would load torch."""
    for info in pkgutil.walk_packages(sparsegen.experiments.__path__, f"{sparsegen.experiments.__name__}."):
        spec = None if info.ispkg else info.module_finder.find_spec(info.name, None)
        source = getattr(spec.loader, "get_source", lambda name: None)(info.name) if spec else None
        if source and re.search(r"^EXPERIMENT\b", source, re.MULTILINE):
            yield info.name


@cache
def _found() -> dict[str, Experiment]:
    found: dict[str, Experiment] = {}
    for name in _modules():
        experiment = import_module(name).EXPERIMENT
        if experiment.name in found:
            fail(ValueError, f"the name of the experiment in {name}", "one that no other has", repr(experiment.name))
        found[experiment.name] = experiment
    return found


def experiments() -> dict[str, Experiment]:
    """Return every experiment by name, in their order.

    Examples
    --------
    >>> list(experiments())
    ['properties', 'figures', 'synthetic', 'real', 'classifiers', 'translation', 'summarization']
    """
    return {each.name: each for each in sorted({**_found(), **_added}.values(), key=lambda each: each.order)}


def measured() -> dict[str, Experiment]:
    """Return the experiments that give a Result."""
    return {name: each for name, each in experiments().items() if each.run is not None}


def of(result: Result) -> Experiment:
    """Return the experiment a Result is of; a Result of another is refused."""
    known = measured()
    if result.experiment not in known:
        fail(ValueError, "the experiment of a Result", one_of(known), repr(result.experiment))
    return known[result.experiment]


def scaled_down(result: Result) -> bool:
    """Tell whether a Result comes from less than the paper's sizes.

    Table 1 has one size, and the small scale of the real sets is the paper's three sets in full.

    Examples
    --------
    >>> about = (0, (), {}, {}, 1.0, "2030-01-31T12:00:00")
    >>> [scaled_down(Result(name, {"scale": "small"}, *about)) for name in ("synthetic", "real", "properties")]
    [True, False, False]
    """
    experiment = of(result)
    return bool(experiment.scales) and result.config.get("scale", "paper") not in experiment.full
