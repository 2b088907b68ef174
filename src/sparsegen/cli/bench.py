"""`sparsegen bench`: speed beside other libraries, on this machine."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import typer

from sparsegen.cli.messages import said_plainly
from sparsegen.cli.options import DATA


class Bench(str, Enum):
    """What is measured."""

    maps = "maps"
    family = "family"
    scaling = "scaling"
    losses = "losses"
    attention = "attention"
    estimator = "estimator"
    many_labels = "many_labels"
    jax = "jax"
    gpu = "gpu"
    all = "all"


def bench(
    name: Bench = typer.Argument(Bench.maps, help="What to measure."),
    seconds: float = typer.Option(None, min=0.0, help="Time for each case; else the benchmark's own."),
    threads: str = typer.Option(None, help="Numbers of threads, with commas, such as 1,2."),
    quick: bool = typer.Option(False, "--quick", help="Toy sizes, a second; nothing is written without --out."),
    out: Path = typer.Option(None, help="Folder for JSON and figures; else bench.", file_okay=False),
    data: Path = DATA,
) -> None:
    """Measure speed beside torch.softmax and other libraries, on this machine. Wrong answers get no time."""
    with said_plainly():
        from sparsegen.bench import measure
        from sparsegen.bench import run as benches

        counts = measure.thread_counts(threads) if threads is not None else None
        folder = out or (None if quick else Path("bench"))
        benches.run(name.value, measure.Settings(seconds, counts, quick, data), folder, benches.console())
