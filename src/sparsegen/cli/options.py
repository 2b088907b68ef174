"""Options that several commands share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import typer

from sparsegen.experiments.registry import SCALES


class Scale(str, Enum):
    """How much is run."""

    smoke = "smoke"
    small = "small"
    paper = "paper"


class Engine(str, Enum):
    """What runs the cells of a sweep."""

    joblib = "joblib"
    dask = "dask"
    ray = "ray"


SCALE_HELP = "; ".join(f"{name}: {meaning}" for name, meaning in SCALES.items()) + "."
SCALE = typer.Option(Scale.small, help=SCALE_HELP)
SEED = typer.Option(0, min=0, help="First seed; the same numbers for the same seed.")
JOBS = typer.Option(0, min=0, help="Worker processes; 0: as many as cores.")
OUT = typer.Option(Path("reproduction"), help="Folder for results; an interrupted run is resumed from it.")
DATA = typer.Option(None, help="Folder of the data sets; else SPARSEGEN_DATA.", file_okay=False)
ENGINE = typer.Option(Engine.joblib, help="Where the cells run.")
ADDRESS = typer.Option(None, help="Address of an existing Dask scheduler or Ray cluster.")
