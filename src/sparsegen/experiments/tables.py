"""Tables of plain texts: the terminal and the report print the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

# A name heads its line; a group is a name that several lines share; a mark may have another word in brackets; a text
# may be long, a word not.
Kind = Literal["name", "group", "number", "mark", "word", "text", "verdict"]


class Column(NamedTuple):
    """The head of a column: its title, what its cells are, and a shorter title for narrow places."""

    title: str
    kind: Kind = "number"
    short: str = ""


@dataclass(frozen=True)
class Table:
    """A table of texts, with sentences that belong under it.

    Examples
    --------
    >>> table = Table("Speed", (Column("map", "name"), Column("ratio")), (("softmax", "1.00"),))
    >>> [column.title for column in table.columns], table.rows[0]
    (['map', 'ratio'], ('softmax', '1.00'))
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def number(value: float | None, digits: int = 2) -> str:
    """Write a number with so many decimals, None as nothing.

    Examples
    --------
    >>> number(0.126), number(None)
    ('0.13', '')
    """
    return "" if value is None else f"{value:.{digits}f}"
