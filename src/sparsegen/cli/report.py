"""`sparsegen report`: a page of saved Results."""

from __future__ import annotations

from pathlib import Path

import typer

from sparsegen.cli.messages import check_file, said_plainly


def report(
    results: list[Path] = typer.Argument(..., help="Result files, or folders of them.", exists=True),
    out: Path = typer.Option(Path("report.html"), help="The page to write."),
) -> None:
    """Make one HTML page of saved Results: tables, figures and ledger. Nothing is run."""
    with said_plainly():
        from sparsegen.report.page import write
        from sparsegen.report.reading import read

        check_file(out)
        found, others = read(results)
        if others:
            typer.echo(f"left out, as they hold no experiment: {', '.join(path.name for path in others)}")
        write(found, out)
        typer.echo(f"wrote {out}")
