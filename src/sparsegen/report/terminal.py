"""A Result in the terminal: the same tables as on the page."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as Printed
from rich.text import Text

from sparsegen.experiments.ledger import VERDICTS
from sparsegen.experiments.store import Result
from sparsegen.experiments.tables import Kind, Table
from sparsegen.experiments.terminal import empty
from sparsegen.report.tables import ledger_table, tables_of

VERDICT_STYLES = dict(zip(VERDICTS, ("green", "yellow", "red", "cyan", "dim")))


def _cell(text: str, kind: Kind) -> Text:
    """A cell as the terminal shows it: plain text, never markup."""
    if kind == "verdict":
        return Text(text, VERDICT_STYLES[text])
    word, bracket, rest = text.partition(" (") if kind == "mark" else (text, "", "")
    return Text.assemble(word, (bracket + rest, "dim"))


def printed(shown: Table) -> Printed:
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
    for shown in (*tables_of(result), ledger_table(result)):
        if shown is not None:
            console.print(printed(shown))
            for note in shown.notes:
                console.print(note, highlight=False, markup=False)
            if shown.notes:
                console.print()
