"""Run benchmarks by name: measure, show, and keep what was found."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sparsegen._table.checks import fail
from sparsegen.bench.measure import Settings
from sparsegen.bench.show import SHOWN, WIDTH
from sparsegen.experiments.store import to_json, write_text

NAMES = tuple(SHOWN)
ASKED_FOR = ("gpu",)  # not part of "all": it needs a device that most machines do not have


def chosen(name: str) -> tuple[str, ...]:
    """Names of the benchmarks meant by a name.

    >>> chosen("maps"), len(chosen("all"))
    (('maps',), 8)
    """
    if name not in (*NAMES, "all"):
        fail(ValueError, "name", "one of " + ", ".join((*NAMES, "all")), repr(name))
    return tuple(each for each in NAMES if each not in ASKED_FOR) if name == "all" else (name,)


def console() -> Console:
    """Return a console as wide as the tables, where no terminal says how wide it is."""
    made = Console()
    return made if made.is_terminal else Console(width=WIDTH)


def measure(name: str, settings: Settings, console: Console) -> dict[str, Any]:
    """Run one benchmark, telling on the console what is being measured."""
    bench: Callable[..., dict[str, Any]] = import_module(f"sparsegen.bench.{name}").run
    # Drawn anew between measurements only: a thread that draws would take time from them.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        return bench(settings, lambda text: live.update(Text(f"{name}: {text}"), refresh=True))


def run(name: str, settings: Settings, out: Path | None, console: Console) -> None:
    """Measure, show, and write OUT/<name>.json and figures; nothing is written if `out` is None.

    Examples
    --------
    >>> import io
    >>> console = Console(file=io.StringIO(), width=100)
    >>> run("losses", Settings(quick=True), None, console)
    >>> "all pairs" in console.file.getvalue()
    True
    """
    for each in chosen(name):
        result = measure(each, settings, console)
        written = [] if out is None else _keep(each, result, out)
        for shown in SHOWN[each](result):
            console.print(shown, highlight=False, markup=False)
        if settings.quick:
            console.print("Toy sizes: these numbers say that the benchmark runs, nothing of speed.", style="dim")
        for path in written:
            console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)


def _keep(name: str, result: dict[str, Any], out: Path) -> list[Path]:
    from sparsegen.bench.draw import draw

    path = out / f"{name}.json"
    write_text(path, to_json(result, name=name, indent=1) + "\n")
    return [path, *draw(name, result, out)]
