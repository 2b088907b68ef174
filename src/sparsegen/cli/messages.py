"""What a person can mend is said in a line, not in a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from sparsegen._table.checks import fail
from sparsegen.experiments.sweep import SweepError


@contextmanager
def said_plainly(out: Path | None = None) -> Iterator[None]:
    """Within it, errors of files, arguments and cells end the command in a line; an interruption says what is kept."""
    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            kept = f"What is finished is kept in {out}; the same command goes on from there."
            typer.echo(f"Interrupted. {kept if out.exists() else 'Nothing was finished yet.'}")
        raise typer.Exit(130) from None
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except (FileNotFoundError, ValueError, SweepError, ImportError, OSError) as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from None


def check_file(out: Path) -> None:
    """Refuse to write a page over a folder, before any work."""
    if out.is_dir():
        fail(IsADirectoryError, "--out", "a file to write", f"the folder {out}")


def check_folder(out: Path) -> None:
    """Refuse to write results into what is no folder, before any work."""
    taken = next((place for place in (out, *out.parents) if place.exists()), None)
    if taken is not None and not taken.is_dir():
        fail(NotADirectoryError, "--out", "a folder", f"the file {taken}")
