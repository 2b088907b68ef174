"""Tables as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from sparsegen.experiments.ledger import VERDICTS
from sparsegen.experiments.tables import Column, Table
from sparsegen.report.html import Html, element, joined, label

VERDICT_CLASSES = dict(zip(VERDICTS, ("holds", "partly", "not", "open", "unknown")))


def _cell(text: str, column: Column) -> Html:
    if column.kind == "name":
        return element("th", text, scope="row", class_="name")
    if column.kind == "verdict":
        return element("td", element("span", text, class_=VERDICT_CLASSES[text]), class_="verdict")
    word, bracket, rest = text.partition(" (") if column.kind == "mark" else (text, "", "")
    other = element("span", bracket.strip() + rest, class_="other") if rest else None
    return element("td", word, " " if rest else None, other, class_=column.kind)


def _lines(rows: Iterable[Sequence[str]], columns: Sequence[Column]) -> list[Html]:
    return [joined(*(_cell(text, column) for text, column in zip(row, columns))) for row in rows]


def _bodies(table: Table) -> Iterator[Html]:
    """The lines of a table; those of a group stand in a body of their own, headed by its name."""
    if table.columns[0].kind != "group":
        yield element("tbody", *(element("tr", line) for line in _lines(table.rows, table.columns)))
        return
    for name, rows in groupby(table.rows, key=lambda row: row[0]):
        first, *others = _lines((row[1:] for row in rows), table.columns[1:])
        head = element("th", name, scope="rowgroup", rowspan=1 + len(others), class_="group")
        yield element("tbody", element("tr", head, first), *(element("tr", line) for line in others))


def table_box(table: Table, where: str = "", look: str = "") -> Html:
    """Return a table in a box of its own that scrolls, by keyboard too, where the page is narrow."""
    heads = (element("th", column.title, scope="col", class_=column.kind) for column in table.columns)
    parts = (element("caption", element("span", table.title)), element("thead", element("tr", *heads)), *_bodies(table))
    box = element(
        "div", element("table", *parts), class_=f"scroll {look}".strip(), tabindex=0, role="region",
        aria_label=label(table.title, where),
    )  # fmt: skip
    return joined(box, *(element("p", note, class_="note") for note in table.notes))
