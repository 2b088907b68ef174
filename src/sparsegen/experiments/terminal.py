"""Tables for the terminal, all of one look."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text


def empty(title: str) -> Table:
    """Make a table without columns: narrow enough for 80 characters, its title plain text."""
    return Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1), title_style="bold")


def table(title: str, *columns: str) -> Table:
    """Make a table whose first column is text and the others numbers.

    Examples
    --------
    >>> [column.justify for column in table("Speed", "map", "ratio").columns]
    ['left', 'right']
    """
    made = empty(title)
    for i, name in enumerate(columns):
        made.add_column(name, justify="right" if i else "left", no_wrap=True)
    return made
