"""HTML made of nested calls. A plain text is escaped wherever it stands; only what is made here passes as it is."""

from __future__ import annotations

import html
from typing import Any

ALONE = ("br", "img", "meta")  # elements without an end
IN_LINE = ("a", "b", "caption", "figcaption", "h1", "h2", "li", "p", "span", "td", "th", "title")


class Html(str):
    """A piece of HTML, as opposed to a text."""


def joined(*pieces: Any) -> Html:
    """Put pieces one after another; texts are escaped, and None is nothing.

    Examples
    --------
    >>> joined("a < b", Html("<br>"), None)
    'a &lt; b<br>'
    """
    kept = (piece if isinstance(piece, Html) else html.escape(str(piece)) for piece in pieces if piece is not None)
    return Html("".join(kept))


def element(tag: str, *children: Any, **attributes: Any) -> Html:
    """Make an element; `class_` is the attribute class, `aria_label` is aria-label, and None leaves one out.

    Examples
    --------
    >>> element("a", "R&D", href="#top", class_="back", title=None)
    '<a href="#top" class="back">R&amp;D</a>'
    >>> element("img", alt='a "b"')
    '<img alt="a &quot;b&quot;">'
    """
    given = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    head = "".join(f' {name}="{html.escape(str(value))}"' for name, value in given.items())
    if tag in ALONE:
        return Html(f"<{tag}{head}>")
    end = "" if tag in IN_LINE else "\n"
    return Html(f"<{tag}{head}>{end}{joined(*children)}</{tag}>{end}")


def label(text: str, where: str) -> str:
    """Return what a box is called by who cannot see where it stands: no two the same.

    Examples
    --------
    >>> label("Micro F1", "Real data"), label("Versions", "")
    ('Real data: Micro F1', 'Versions')
    """
    return f"{where}: {text}" if where else text
