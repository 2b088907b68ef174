"""`sparsegen reproduce`: run an experiment, save its Result and figures, and show tables and ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from sparsegen.experiments.folders import DATA_VARIABLE, environment, places
from sparsegen.experiments.store import Result
from sparsegen.experiments.sweep import SweepError
from sparsegen.experiments.terminal import empty
from sparsegen.report import page as report
from sparsegen.report import tables
from sparsegen.report.page import Missing

VERDICT_STYLES = {"holds": "green", "holds partly": "yellow", "does not hold": "red", "not measured": "dim"}


def _cell(text: str, kind: tables.Kind) -> Text:
    """A cell as the terminal shows it: plain text, never markup."""
    if kind == "verdict":
        return Text(text, VERDICT_STYLES[text])
    word, bracket, rest = text.partition(" (") if kind == "mark" else (text, "", "")
    return Text.assemble(word, (bracket + rest, "dim"))


def printed(shown: tables.Table) -> Table:
    """Return a table for the terminal; a group's name stands on its first line only."""
    made = empty(shown.title)
    for column in shown.columns:
        right = column.kind in ("number", "mark")
        wraps = column.kind in ("text", "verdict")
        made.add_column(column.short or column.title, justify="right" if right else "left", no_wrap=not wraps)
    last: tuple[str, ...] = ("",) * len(shown.columns)
    for row in shown.rows:
        cells = zip(row, last, shown.columns)
        again = ["" if column.kind == "group" and text == before else text for text, before, column in cells]
        made.add_row(*(_cell(text, column.kind) for text, column in zip(again, shown.columns)))
        last = row
    return made


def show(result: Result, console: Console) -> None:
    """Print the tables and the ledger of a Result."""
    for shown in (*tables.tables_of(result), tables.ledger_table(result)):
        if shown is not None:
            console.print(printed(shown))
            for note in shown.notes:
                console.print(note, highlight=False, markup=False)
            if shown.notes:
                console.print()


def _watched(console: Console, title: str, work: Callable[[Callable[..., None]], Result]) -> Result:
    """Run `work` with a progress bar; a sweep that follows another starts the bar anew."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title)

        def moved(done: int, total: int, cell: Any, seconds: float) -> None:
            progress.update(task, completed=done, total=total)
            if not console.is_terminal and cell is not None:  # where no bar can move
                console.print(f"{title}: {done} of {total} after {seconds:.0f} s", highlight=False)

        return work(moved)


def _runner(experiment: str) -> Callable[..., Result]:
    from sparsegen.experiments.multilabel import real, synthetic

    if experiment == "properties":
        from sparsegen.experiments.table1 import properties as laws

        return laws.run
    if experiment in ("translation", "summarization"):
        try:
            from sparsegen.experiments.seq2seq import generation
        except ImportError as error:
            raise ImportError(f"{experiment} needs {error.name}: pip install 'sparsegen[all]'.") from error
        return partial(generation.run, experiment)
    return {"synthetic": synthetic.run, "real": real.run}[experiment]


def _earlier(result: Result, path: Path) -> Result:
    """The Result saved before if it has the same numbers: its times are of the work, not of reading the store."""
    try:
        before = Result.load(path)
    except (OSError, ValueError):
        return result
    return before if replace(result, wall_time=before.wall_time, started=before.started) == before else result


def run(
    experiment: str, *, out: Path, data: Path | None, console: Console, name: str | None = None, **options: Any
) -> Result:
    """Run an experiment, resuming what an earlier run left in `out`; save it under a name, draw and show it."""
    name = name or experiment
    folder, path = out / name, out / f"{name}.json"
    named = {} if data is None else {DATA_VARIABLE: str(data.resolve())}  # where worker processes find it, too
    with environment(named):
        run_it = _runner(experiment)
        result = _watched(console, name, lambda moved: run_it(store=folder, progress=moved, **options))
    result = _earlier(result, path)
    result.save(path)
    show(result, console)
    from sparsegen.experiments import drawings as figures

    _say_written(console, [path, *figures.draw(result, folder)])
    return result


def _say(console: Console, text: str) -> None:
    """Print a line as it is: a path in it may be long, and have brackets."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _say_written(console: Console, paths: Iterable[Path]) -> None:
    for path in paths:
        _say(console, f"wrote {path}")


# Everything at once


def _mulan_files(scale: str) -> list[str]:
    from sparsegen.experiments.multilabel import datasets, real

    facts = [datasets.SETS[name] for name in real.SCALES[scale]]
    return [file for found in facts for file in (found.train, found.test, found.labels)]


def _corpus_files(task: str) -> list[str]:
    from sparsegen.experiments.seq2seq import corpora, generation

    return [file for name in generation.TASKS[task] for file in corpora.CORPORA[name].files]


def _at_hand(files: Iterable[str], kind: str) -> bool:
    """Whether any of the files is there; where some are missing, the run says which."""
    names = [name for file in files for name in (file, f"{file}.gz")]
    return any((place / name).is_file() for place in places(None, kind) for name in names)


class Part(NamedTuple):
    """A part of `reproduce all`: the name of its files, the experiment, its options, the data it needs."""

    name: str
    experiment: str
    options: dict[str, Any]
    files: Callable[[], list[str]] | None = None
    kind: str = ""  # the subfolder they may be in
    data: str = ""  # what they are called


def parts(scale: str, seed: int) -> list[Part]:
    """Return the experiments of `reproduce all` in their order; Table 1 has one size."""
    sized = {"scale": scale, "seed": seed}
    return [
        Part("properties", "properties", {"seed": seed}),
        Part("synthetic", "synthetic", sized),
        Part("real", "real", sized, partial(_mulan_files, scale), "multilabel", "Mulan's files"),
        Part("numbers", "translation", {**sized, "corpora": ("numbers-fr-en",)}),
        Part("translation", "translation", sized, partial(_corpus_files, "translation"), "translation", "Multi30k"),
        Part(
            "summarization",
            "summarization",
            sized,
            partial(_corpus_files, "summarization"),
            "summarization",
            "Gigaword",
        ),
    ]


NO_DATA = "left out: {} not found; name the folder by --data or SPARSEGEN_DATA"


class _All:
    """One run of everything: what came out, and what did not."""

    def __init__(self, out: Path, data: Path | None, console: Console) -> None:
        self.out, self.data, self.console = out, data, console
        self.results: dict[str, Result] = {}
        self.missing: list[Missing] = []
        self.failed = False
        self.maps = False

    def leave_out(self, name: str, why: str) -> None:
        self.missing.append(Missing(name, why))
        _say(self.console, f"{name} {why}")

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

    def part(self, part: Part, jobs: int) -> None:
        """Run a part, unless it needs data that nobody named and that is not where it is looked for."""
        with self.attempt(part.name):
            if part.files is not None and self.data is None and not _at_hand(part.files(), part.kind):
                self.leave_out(part.name, NO_DATA.format(part.data))
                return
            common: dict[str, Any] = {"out": self.out, "data": self.data, "console": self.console, "name": part.name}
            self.results[part.name] = run(part.experiment, **common, jobs=jobs, **part.options)

    def figures(self) -> None:
        """Draw the figures of the maps."""
        with self.attempt("figures"):
            from sparsegen.experiments.table1 import map_figures

            _say_written(self.console, map_figures.draw(self.out / "figures"))
            self.maps = True

    def report(self) -> None:
        """Write the page, and say again what it does not have."""
        path = self.out / "report.html"
        report.write(report.Contents(self.results, missing=self.missing, maps=self.maps), path)
        self.console.rule("report")
        for part in self.missing:
            _say(self.console, f"{part.name} {part.why}")
        _say_written(self.console, [path])


def run_all(*, out: Path, data: Path | None, console: Console, jobs: int, scale: str = "small", seed: int = 0) -> bool:
    """Run every experiment one after another and write `report.html`; return whether none failed.

    What is finished is taken from its store. Parts whose data is not at hand are left out unless `data` is given; a
    part that fails is told, and the others run.
    """
    everything = _All(out, data, console)
    first, *others = parts(scale, seed)
    try:
        everything.part(first, jobs)
        everything.figures()
        for part in others:
            everything.part(part, jobs)
        everything.report()
    except KeyboardInterrupt:
        if everything.results:
            _say(console, f"Finished: {', '.join(everything.results)}. A page of them: sparsegen report {out}")
        raise
    return not everything.failed
