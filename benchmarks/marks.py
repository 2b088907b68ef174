"""Marks: the places in a Markdown text that hold what was measured, and the functions that say what stands there.

A mark is a pair of comments, which Markdown does not show, around a number in a line or around a block:

    Forward takes <!--n:maps.forward-->0.41<!--/n--> of softmax's time.

Its name is a file of results/ and a function here that makes the text from that file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from sparsegen.experiments.store import Result

ROOT = Path(__file__).resolve().parents[1]
Read = Callable[[str], Any]
Text = Callable[[Any], str]

MARK = re.compile(r"<!--n:(?P<name>[\w.-]+)-->(?P<text>.*?)<!--/n-->", re.DOTALL)
LOOSE = re.compile(r"<!--/?n\b[^>]*-->")
MARKS: dict[str, Text] = {}


def mark(*files: str, name: str = "") -> Callable[[Text], Text]:
    """Register a function of a file of results/ as the mark "file.function"."""

    def register(text: Text) -> Text:
        MARKS.update({f"{file}.{name or text.__name__}": text for file in files})
        return text

    return register


def read(file: str) -> Any:
    """The content of a file of results/."""
    return json.loads((ROOT / "results" / f"{file}.json").read_text())


def as_result(found: dict[str, Any]) -> Result:
    """What an experiment has stored, as the library's own record."""
    return Result(**{field.name: found[field.name] for field in fields(Result)})


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def span(values: Iterable[float], form: str = ".2f") -> str:
    """The least and the largest: "0.42 to 0.63", or one number where they read the same."""
    values = list(values)
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low} to {high}"


def fill(text: str, read: Read = read) -> str:
    """Return a Markdown text with every mark filled from the results."""

    def filled(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in MARKS:
            raise KeyError(f"no function makes the mark {name!r}; there are {', '.join(sorted(MARKS))}")
        made = MARKS[name](read(name.split(".")[0]))
        block = "\n" in made or made.startswith("- ")
        return f"<!--n:{name}-->" + (f"\n\n{made}\n\n" if block else made) + "<!--/n-->"

    loose = LOOSE.search(MARK.sub("", text))
    if loose or any("<!--n:" in found["text"] for found in MARK.finditer(text)):
        raise ValueError(f"a mark is not closed or not opened: {loose[0] if loose else 'one holds another'}")
    return MARK.sub(filled, text)
