"""`sparsegen reproduce`: a command for each experiment of the registry, and one for all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

import sparsegen
from sparsegen.cli.everything import run_all
from sparsegen.cli.messages import check_folder, said_plainly
from sparsegen.cli.options import ADDRESS, DATA, ENGINE, JOBS, OUT, SCALE, SCALE_HELP, SEED, Engine, Scale
from sparsegen.cli.running import draw, run
from sparsegen.experiments.registry import Experiment, Option, experiments


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _parameter(name: str, default: Any, kind: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _scale(scales: tuple[str, ...]) -> inspect.Parameter:
    kind = Enum("Scale", [(name, name) for name in scales], type=str)  # type: ignore[misc]
    return _parameter("scale", typer.Option("small" if "small" in scales else scales[0], help=SCALE_HELP), kind)


def _own(option: Option) -> inspect.Parameter:
    """An option of the experiment's own; names with commas are one text."""
    if option.kind is bool:
        flag = f"--{option.name.replace('_', '-')}"
        return _parameter(option.name, typer.Option(False, flag, help=option.help), bool)
    if option.kind is int:
        return _parameter(option.name, typer.Option(1, min=1, help=option.help), int)
    return _parameter(option.name, typer.Option("", help=option.help), str)


def _parameters(experiment: Experiment) -> Iterator[inspect.Parameter]:
    """The options of an experiment's command."""
    if experiment.run is None:
        yield _parameter("out", OUT, Path)
        return
    if experiment.scales:
        yield _scale(experiment.scales)
    yield from (_parameter("seed", SEED, int), _parameter("jobs", JOBS, int), _parameter("out", OUT, Path))
    if experiment.data is not None:
        yield _parameter("data", DATA, Path)
    yield from map(_own, experiment.options)
    yield from (_parameter("engine", ENGINE, Engine), _parameter("address", ADDRESS, str))


def _arguments(experiment: Experiment, given: dict[str, Any]) -> dict[str, Any]:
    """What `run` is called with: plain values, names apart."""
    listed = {option.name for option in experiment.options if option.kind is tuple}
    found = {name: value.value if isinstance(value, Enum) else value for name, value in given.items()}
    found |= {name: _names(found[name]) for name in listed}
    found["jobs"] = found["jobs"] or sparsegen.get_num_threads()
    return {"data": None, **found}


def _function(experiment: Experiment) -> Callable[..., None]:
    """What a command calls, with the signature typer reads the options from."""

    def call(**given: Any) -> None:
        with said_plainly(given["out"]):
            check_folder(given["out"])
            if experiment.run is None:
                draw(experiment, console=Console(), **given)
            else:
                run(experiment, console=Console(), **_arguments(experiment, given))

    call.__signature__ = inspect.Signature(list(_parameters(experiment)))  # type: ignore[attr-defined]
    call.__annotations__ = {}
    return call


class Experiments(TyperGroup):
    """The group of commands, read from the registry each time: what is registered later is there too."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the experiments, and of the command that runs them all."""
        return [*experiments(), *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of an experiment, or one of this module's."""
        experiment = experiments().get(cmd_name)
        if experiment is None:
            return super().get_command(ctx, cmd_name)
        made = typer.Typer(add_completion=False)
        made.command(cmd_name, help=experiment.help)(_function(experiment))
        return typer.main.get_command(made)


reproduce = typer.Typer(cls=Experiments, no_args_is_help=True, help="Run the paper's experiments.")


@reproduce.command("all")
def everything(scale: Scale = SCALE, seed: int = SEED, jobs: int = JOBS, out: Path = OUT, data: Path = DATA) -> None:
    """Run all of these one after another and write report.html; without data, those that need none."""
    with said_plainly(out):
        check_folder(out)
        how = {"seed": seed, "jobs": jobs or sparsegen.get_num_threads()}
        if not run_all(out=out, data=data, console=Console(), scale=scale.value, **how):
            raise typer.Exit(1)
