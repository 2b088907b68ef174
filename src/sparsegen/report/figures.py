"""The figures of a Result: as files, and as images inside a page."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsegen._table.extras import needed
from sparsegen.experiments import registry
from sparsegen.experiments.registry import Experiment
from sparsegen.experiments.store import Result
from sparsegen.report.html import Html, element, label

if TYPE_CHECKING:
    from sparsegen.experiments.drawings import Drawing

HEAVY = 300_000  # bytes from which an SVG gives way to a PNG


def figures_of(result: Result) -> list[Drawing]:
    """Draw the figures of a Result: F-score, JSD and sparsity, or learning curves and attention, or none."""
    with needed("drawing figures", "experiments"):
        return list(registry.of(result).figures(result))


def figures_without_result(experiment: Experiment) -> list[Drawing]:
    """Draw the figures of an experiment that measures nothing."""
    with needed("drawing figures", "experiments"):
        return list(experiment.figures())


def save(drawings: Iterable[Drawing], folder: Path) -> list[Path]:
    """Write figures as PNG and SVG; return the paths."""
    from sparsegen.experiments import drawings as drawn

    return [path for drawing in drawings for path in drawn.save(drawing.figure, folder / drawing.name)]


def _image(figure: Any) -> tuple[str, bytes, int, int]:
    """A figure as its MIME type, bytes, and width and height on the page."""
    from sparsegen.experiments.drawings import rendered

    svg = rendered(figure, "svg")
    size = re.search(rb'<svg [^>]*width="([\d.]+)pt" height="([\d.]+)pt"', svg)
    assert size is not None  # matplotlib writes them
    width, height = (round(float(text) * 96 / 72) for text in size.groups())
    if len(svg) <= HEAVY:
        return "image/svg+xml", svg, width, height
    return "image/png", rendered(figure, "png"), width, height


def card(drawing: Drawing, where: str = "") -> Html:
    """Return a figure on a white card that scrolls where the page is too narrow for its letters.

    `where` names the section for who cannot see it: no two cards are called the same.
    """
    kind, content, width, height = _image(drawing.figure)
    source = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    image = element("img", src=source, alt=drawing.alt, width=width, height=height)
    box = element("div", image, class_="scroll", tabindex=0, role="region", aria_label=label(drawing.caption, where))
    return element("figure", box, element("figcaption", drawing.caption, "."))
