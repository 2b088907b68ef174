"""`sparsegen reproduce all`: every experiment one after another, and the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from sparsegen.cli.running import draw, run, say, say_written
from sparsegen.experiments.folders import places
from sparsegen.experiments.registry import Data, Experiment, Part, experiments
from sparsegen.experiments.store import Result
from sparsegen.experiments.sweep import SweepError
from sparsegen.report.page import write
from sparsegen.report.reading import Contents, Missing

NO_DATA = "left out: {} not found; name the folder by --data or SPARSEGEN_DATA"


def _at_hand(data: Data, scale: str) -> bool:
    """Whether any of the files is there; where some are missing, the run says which."""
    names = [name for file in data.files(scale) for name in (file, f"{file}.gz")]
    return any((place / name).is_file() for place in places(None, data.folder) for name in names)


class _All:
    """One run of everything: what came out, and what did not."""

    def __init__(self, out: Path, data: Path | None, console: Console) -> None:
        self.out, self.data, self.console = out, data, console
        self.results: dict[str, Result] = {}
        self.missing: list[Missing] = []
        self.drawn: list[str] = []
        self.failed = False

    def leave_out(self, name: str, why: str) -> None:
        self.missing.append(Missing(name, why))
        say(self.console, f"{name} {why}")

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Tell of a failure and go on: hours of other parts may follow."""
        self.console.rule(name)
        try:
            yield
        except BrokenPipeError:  # nobody reads any longer
            raise
        except Exception as error:
            self.failed = True
            known = isinstance(error, (OSError, ValueError, ImportError, SweepError))
            self.leave_out(name, f"failed: {error}" if known else f"failed: {type(error).__name__}: {error}")

    def part(self, experiment: Experiment, part: Part, scale: str, **options: Any) -> None:
        """Run a part, unless it needs data that nobody named and that is not where it is looked for."""
        with self.attempt(part.name):
            needs = experiment.data if part.needs_data and self.data is None else None
            if needs is not None and not _at_hand(needs, scale):
                self.leave_out(part.name, NO_DATA.format(needs.title))
                return
            given = {**({"scale": scale} if experiment.scales else {}), **options, **part.options}
            where: dict[str, Any] = {"out": self.out, "data": self.data, "console": self.console, "name": part.name}
            self.results[part.name] = run(experiment, **where, **given)

    def figures(self, experiment: Experiment) -> None:
        """Draw the figures of an experiment that measures nothing."""
        with self.attempt(experiment.name):
            draw(experiment, out=self.out, console=self.console)
            self.drawn.append(experiment.name)

    def report(self) -> None:
        """Write the page, and say again what it does not have."""
        path = self.out / "report.html"
        write(Contents(self.results, missing=self.missing, drawn=tuple(self.drawn)), path)
        self.console.rule("report")
        for part in self.missing:
            say(self.console, f"{part.name} {part.why}")
        say_written(self.console, [path])


def run_all(*, out: Path, data: Path | None, console: Console, scale: str = "small", **options: Any) -> bool:
    """Run every experiment one after another and write `report.html`; return whether none failed.

    What is finished is taken from its store. Parts whose data is not at hand are left out unless `data` is given; a
    part that fails is told, and the others run. Options, such as seed and jobs, go to every run.
    """
    everything = _All(out, data, console)
    try:
        for experiment in experiments().values():
            if experiment.run is None:
                everything.figures(experiment)
                continue
            for part in experiment.parts:
                everything.part(experiment, part, scale, **options)
        everything.report()
    except KeyboardInterrupt:
        if everything.results:
            say(console, f"Finished: {', '.join(everything.results)}. A page of them: sparsegen report {out}")
        raise
    return not everything.failed
