"""The paper's figures of the maps: nothing is measured, they are drawn from the maps themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sparsegen.experiments.registry import Experiment

if TYPE_CHECKING:
    from sparsegen.experiments.drawings import Drawing


def figures() -> Iterable[Drawing]:
    """Draw contours, regions, cone and hourglass, and the atlas."""
    from sparsegen.experiments.table1.map_figures import drawings

    return drawings()


EXPERIMENT = Experiment(
    name="figures",
    title="Figures of the maps",
    help="Draw the paper's figures of the maps, and an atlas of all of them.",
    order=20,
    scales=(),
    figures=figures,
    beside="properties",
)
