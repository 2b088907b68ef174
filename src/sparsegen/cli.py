"""The command line: `sparsegen tour`, `sparsegen reproduce`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

try:
    import typer
    from rich.console import Console
    from rich.table import Table

    from sparsegen.reproduce import run, table
except ImportError as error:
    raise SystemExit(
        f"sparsegen: the command line needs {error.name}, which is not installed: pip install 'sparsegen[experiments]'."
    ) from error

import sparsegen
from sparsegen import tour as _tour

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Probability maps with a dial.")


@app.callback()
def _top() -> None:
    """Probability maps with a dial."""


def _map_table() -> Table:
    scores = ", ".join(f"{z:g}" for z in _tour.SCORES)
    made = table(f"Every map on z = ({scores})", "map", "probabilities", "support", "threshold")
    for row in _tour.map_rows():
        p = " ".join(f"{'0' if v == 0 else f'{v:.2f}':>4}" for v in row.p)
        name = f"{row.name} {row.control}".strip()
        made.add_row(name, p, str(row.support_size), f"{row.threshold:.2f}")
    return made


def _speed_table(seconds: float) -> Table:
    title = "Speed beside torch.softmax (float32, one thread, medians)"
    made = table(title, "rows x K", "nonzeros a row", "sparsegen_lin", "softmax", "ratio")
    for row in _tour.speed_rows(seconds):
        ours, softmax = f"{row.sparsegen_us:.0f} us", f"{row.softmax_us:.0f} us"
        made.add_row(f"{row.rows} x {row.n}", f"{row.support:.1f}", ours, softmax, f"{row.ratio:.2f}")
    return made


@app.command()
def tour(seconds: float = typer.Option(1.0, min=0.0, help="Time for each measurement.")) -> None:
    """Show each map on one vector, and the speed beside softmax."""
    console = Console()
    console.print(f"sparsegen {sparsegen.__version__}: probability maps with a dial\n", highlight=False)
    console.print(_map_table())
    console.print("Towards lam = 1 sparsegen gets sparser; towards minus infinity, denser.\n", highlight=False)
    try:
        console.print(_speed_table(seconds))
    except ImportError:
        console.print(
            "Speed is measured beside torch, which is not installed: pip install 'sparsegen[torch]'.", markup=False
        )


class Scale(str, Enum):
    """How much is run."""

    smoke = "smoke"
    small = "small"
    paper = "paper"


class Engine(str, Enum):
    """What runs the cells of a sweep."""

    joblib = "joblib"
    dask = "dask"
    ray = "ray"


SCALE = typer.Option(Scale.small, help="smoke: seconds; small: minutes; paper: the paper's sizes.")
SEED = typer.Option(0, min=0, help="First seed; the same numbers for the same seed.")
JOBS = typer.Option(0, min=0, help="Worker processes; 0: as many as cores.")
OUT = typer.Option(Path("reproduction"), help="Folder for results; an interrupted run is resumed from it.")
DATA = typer.Option(None, help="Folder of the data sets; else SPARSEGEN_DATA.", file_okay=False)
ENGINE = typer.Option(Engine.joblib, help="Where the cells run.")
ADDRESS = typer.Option(None, help="Address of an existing Dask scheduler or Ray cluster.")

reproduce = typer.Typer(no_args_is_help=True, help="Run the paper's experiments.")
app.add_typer(reproduce, name="reproduce")


def _reproduce(experiment: str, jobs: int, out: Path, data: Path | None, **options: Any) -> None:
    """Run an experiment; what a person can mend is said in a line, not in a traceback."""
    from sparsegen.experiments.sweep import SweepError

    console = Console()
    try:
        run(experiment, out=out, data=data, console=console, jobs=jobs or sparsegen.get_num_threads(), **options)
    except KeyboardInterrupt:
        console.print(f"Interrupted. What is finished is kept in {out}; the same command goes on from there.")
        raise typer.Exit(130) from None
    except (FileNotFoundError, ValueError, SweepError, ImportError, OSError) as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from None


@reproduce.command()
def synthetic(
    scale: Scale = SCALE, seed: int = SEED, jobs: int = JOBS, out: Path = OUT, engine: Engine = ENGINE,
    address: str = ADDRESS,
) -> None:  # fmt: skip
    """Multilabel learning on the paper's synthetic documents: F-score, JSD and sparsity figures."""
    _reproduce("synthetic", jobs, out, None, scale=scale.value, seed=seed, engine=engine.value, address=address)


@reproduce.command()
def real(
    scale: Scale = SCALE, seed: int = SEED, jobs: int = JOBS, out: Path = OUT, data: Path = DATA,
    sets: str = typer.Option("", help="Names of data sets, with commas; else those of the scale."),
    openml: bool = typer.Option(False, "--openml", help="Download from OpenML instead (no Mulan split there)."),
    engine: Engine = ENGINE, address: str = ADDRESS,
) -> None:  # fmt: skip
    """Multilabel learning on real data: Scene, Emotions and Birds beside the paper, and larger sets."""
    chosen = tuple(name.strip() for name in sets.split(",") if name.strip())
    options = {"scale": scale.value, "seed": seed, "engine": engine.value, "address": address}
    _reproduce("real", jobs, out, data, sets=chosen, openml=openml, **options)


def main() -> None:
    """Run the command line."""
    app()
