"""Running an experiment: with a bar, resumed from its store, saved, drawn and shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sparsegen.experiments.folders import DATA_VARIABLE, environment
from sparsegen.experiments.registry import Experiment
from sparsegen.experiments.store import Result
from sparsegen.report import figures
from sparsegen.report.terminal import show


def say(console: Console, text: str) -> None:
    """Print a line as it is: a path in it may be long, and have brackets."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def say_written(console: Console, paths: Iterable[Path]) -> None:
    """Print a line for each file written."""
    for path in paths:
        say(console, f"wrote {path}")


def _watched(console: Console, title: str, work: Callable[[Callable[..., None]], Result]) -> Result:
    """Run `work` with a progress bar; a sweep that follows another starts the bar anew."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title)

        def moved(done: int, total: int, cell: Any, seconds: float) -> None:
            progress.update(task, completed=done, total=total)
            if not console.is_terminal and cell is not None:  # where no bar can move
                console.print(f"{title}: {done} of {total}, this one in {seconds:.0f} s", highlight=False)

        return work(moved)


def _saved(path: Path) -> Result | None:
    """The Result of a file, if it has one."""
    try:
        return Result.load(path)
    except (OSError, ValueError):
        return None


def _earlier(result: Result, path: Path) -> Result:
    """The Result saved before if it has the same numbers: its times are of the work, not of reading the store."""
    before = _saved(path)
    if before is None:
        return result
    return before if replace(result, wall_time=before.wall_time, started=before.started) == before else result


def run(
    experiment: Experiment, *, out: Path, data: Path | None, console: Console, name: str | None = None, **options: Any
) -> Result:
    """Run an experiment, resuming what an earlier run left in `out`; save it under a name, draw and show it.

    What an experiment keeps of an earlier Result of that name stays in it, and what it replaces is told.
    """
    assert experiment.run is not None  # others are drawn
    run_it, name = experiment.run, name or experiment.name
    folder, path = out / name, out / f"{name}.json"
    named = {} if data is None else {DATA_VARIABLE: str(data.resolve())}  # where worker processes find it, too
    before = _saved(path)
    for kept in () if before is None else experiment.kept(before, options):
        say(console, f"{path} has {kept}")
        options["beside"] = path
    with environment(named):
        result = _watched(console, name, lambda moved: run_it(store=folder, progress=moved, **options))
    before, result = _saved(path), _earlier(result, path)  # as it is by now
    result.save(path)
    for lost in () if before is None else experiment.replaced(before, result):
        say(console, f"{path} had {lost}")
    show(result, console)
    say_written(console, [path, *figures.save(figures.figures_of(result), folder)])
    return result


def draw(experiment: Experiment, *, out: Path, console: Console) -> None:
    """Draw the figures of an experiment that measures nothing."""
    say_written(console, figures.save(figures.figures_without_result(experiment), out / experiment.name))
