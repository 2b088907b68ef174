"""The page to play with: one HTML file, made of the library's table of maps and a little JavaScript."""

from __future__ import annotations

import html
import json
import math
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import sparsegen
from sparsegen._table.checks import fail, one_of
from sparsegen._table.controls import CONDITIONS, control_number
from sparsegen._table.maps import MAPS, Map


def _row(row: Map) -> dict[str, Any]:
    """A row of the table as the page reads it: a radius is a number or a function's name."""
    radius = row.radius.name if row.radius.fixed is None else row.radius.fixed
    return {
        "name": row.name, "equation": row.equation, "transform": row.transform, "radius": radius,
        "controls": row.controls, "fixed": dict(row.fixed), "power": row.power, "domain": row.domain,
    }  # fmt: skip


def page(shown: dict[str, str] | None = None) -> str:
    """Return the page: HTML, style, script and the table of maps in one text that needs nothing else.

    It opens at the :func:`state` `shown`, unless its address says otherwise.

    Examples
    --------
    >>> page().startswith("<!doctype html>")
    True
    """
    files = resources.files(__name__)
    text = files.joinpath("page.html").read_text(encoding="utf-8")
    for name in ("page.css", "maps.js", "page.js"):
        text = text.replace(f"/*{{{name}}}*/", files.joinpath(name).read_text(encoding="utf-8"))
    table = json.dumps([_row(row) for row in MAPS.values()]).replace("<", "\\u003c")  # a script must not end in it
    text = text.replace("{start}", html.escape(urlencode(shown or {})))
    return text.replace("/*{table}*/", table).replace("<!--{version}-->", sparsegen.__version__)


LEAST, MOST, LARGEST = 2, 12, 1e6  # scores the page has room for
# An infinite temperature has no place on its slider.
CONDITIONS = {**CONDITIONS, "temperature": ("a positive, finite number", lambda v: 0 < v < math.inf)}


def state(scores: str | None = None, mapping: str | None = None, **controls: float | None) -> dict[str, str]:
    """Check what a page is to show first, and return it as the address spells it.

    Examples
    --------
    >>> state("1.2 0.9", "sparsemax", lam=0.5)
    {'z': '1.2,0.9', 'map': 'sparsemax', 'lam': '0.5'}
    """
    found = {}
    if scores is not None:
        found["z"] = ",".join(map(repr, _scores(scores)))
    if mapping is not None:
        mapping = mapping.replace("-", "_")  # as the paper spells them
        if mapping not in MAPS:
            fail(ValueError, "mapping", one_of(MAPS), repr(mapping))
        found["map"] = mapping
    for name, value in controls.items():
        if value is not None:
            found[name] = str(control_number(name, value, CONDITIONS))
    return found


def _scores(text: str) -> list[float]:
    condition = f"{LEAST} to {MOST} numbers from -{LARGEST:g} to {LARGEST:g}, separated by commas or spaces"
    try:
        scores = [float(word) for word in text.replace(",", " ").split()]
    except ValueError:
        fail(ValueError, "scores", condition, repr(text))
    if not LEAST <= len(scores) <= MOST or not all(abs(score) <= LARGEST for score in scores):
        fail(ValueError, "scores", condition, repr(text))
    return scores


def address(path: Path, shown: dict[str, str]) -> str:
    """Return the address that opens a page at a :func:`state`.

    Examples
    --------
    >>> address(Path("/tmp/explore.html"), {"z": "1.2,0.9", "lam": "0.5"})
    'file:///tmp/explore.html#z=1.2%2C0.9&lam=0.5'
    """
    return path.absolute().as_uri() + (f"#{urlencode(shown)}" if shown else "")
