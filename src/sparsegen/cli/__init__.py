"""The command line: `sparsegen tour`, `explore`, `reproduce`, `train`, `translate` and more."""

from __future__ import annotations

from sparsegen._table.extras import needed

try:
    with needed("the command line", "experiments"):
        import typer

        from sparsegen.cli import bench, doctor, explore, labels, report, reproduce, text, tour
except ImportError as error:
    raise SystemExit(str(error)) from error

import sparsegen

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Probability maps with a dial.")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"sparsegen {sparsegen.__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: bool = typer.Option(False, "--version", help="Show the version.", callback=_version, is_eager=True),
) -> None:
    """Probability maps with a dial."""


for command in (
    tour.tour,
    explore.explore,
    report.report,
    text.train,
    text.translate,
    labels.train_labels,
    bench.bench,
    doctor.doctor,
):
    app.command()(command)
app.add_typer(reproduce.reproduce, name="reproduce")


def main() -> None:
    """Run the command line."""
    app()
