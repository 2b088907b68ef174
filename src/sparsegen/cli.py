"""The command line: `sparsegen tour`."""

from __future__ import annotations

try:
    import typer
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
except ImportError as error:
    raise SystemExit(
        "sparsegen: the command line needs typer and rich, which are not installed: "
        "pip install 'sparsegen[experiments]'."
    ) from error

import sparsegen
from sparsegen import tour as _tour

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Probability maps with a dial.")


@app.callback()
def _top() -> None:
    """Probability maps with a dial."""


def _table(title: str, *columns: str) -> Table:
    """A table whose first column is text and the others numbers, narrow enough for 80 characters."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1), title_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    return table


def _map_table() -> Table:
    scores = ", ".join(f"{z:g}" for z in _tour.SCORES)
    table = _table(f"Every map on z = ({scores})", "map", "probabilities", "support", "threshold")
    for row in _tour.map_rows():
        p = " ".join(f"{'0' if v == 0 else f'{v:.2f}':>4}" for v in row.p)
        name = f"{row.name} {row.control}".strip()
        table.add_row(name, p, str(row.support_size), f"{row.threshold:.2f}")
    return table


def _speed_table(seconds: float) -> Table:
    title = "Speed beside torch.softmax (float32, one thread, medians)"
    table = _table(title, "rows x K", "nonzeros a row", "sparsegen_lin", "softmax", "ratio")
    for row in _tour.speed_rows(seconds):
        ours, softmax = f"{row.sparsegen_us:.0f} us", f"{row.softmax_us:.0f} us"
        table.add_row(f"{row.rows} x {row.n}", f"{row.support:.1f}", ours, softmax, f"{row.ratio:.2f}")
    return table


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


def main() -> None:
    """Run the command line."""
    app()
