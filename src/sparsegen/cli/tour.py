"""`sparsegen tour`: each map on one vector, the dial, and the speed beside softmax."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import sparsegen
from sparsegen._table.extras import needed
from sparsegen._table.maps import MAPS
from sparsegen.experiments.terminal import table

SCORES = (1.2, 0.9, 0.5, 0.3, 0.1)
CONTROLS = {"lam": 0.5, "q": 0.5, "temperature": 1.0, "alpha": 1.5}
SHORT = {"temperature": "t"}
SHAPES = ((65536, 10), (4096, 512), (256, 32000))


class MapRow(NamedTuple):
    """One map on one vector."""

    name: str
    control: str
    p: np.ndarray
    support_size: int
    threshold: float


def map_rows(scores: Any = SCORES) -> Iterator[MapRow]:
    """Every map of the table on `scores`, sparsegen-lin at three settings of its dial.

    >>> next(iter(map_rows())).name
    'sparsemax'
    """
    for m in MAPS.values():
        for lam in (-1.0, 0.5, 0.9) if m.name == "sparsegen_lin" else (CONTROLS["lam"],):
            controls = {name: {**CONTROLS, "lam": lam}[name] for name in m.controls}
            p, info = getattr(sparsegen, m.name)(np.array(scores), return_info=True, **controls)
            shown = ", ".join(f"{SHORT.get(name, name)}={value:g}" for name, value in controls.items())
            yield MapRow(m.name, shown, p, int(info.support_size), float(info.threshold))


class SpeedRow(NamedTuple):
    """Medians of interleaved calls, one thread, float32."""

    rows: int
    n: int
    support: float
    sparsegen_us: float
    softmax_us: float

    @property
    def ratio(self) -> float:
        """Time relative to torch.softmax."""
        return self.sparsegen_us / self.softmax_us


def speed_rows(seconds: float = 1.0) -> Iterator[SpeedRow]:
    """sparsegen-lin beside torch.softmax on N(0, 1) scores, with `lam` for about five nonzeros per row."""
    with needed("measuring speed", "torch"):
        import sparsegen.torch as sgt
        from sparsegen.bench.inputs import lam_of, scores
        from sparsegen.bench.measure import interleaved, torch_threads

    with torch_threads(1):
        for rows, n in SHAPES:
            x = scores(rows, n)
            lam = lam_of(x, "sparse")
            support = float((sgt.sparsegen_lin(x, lam=lam) > 0).sum(-1).double().mean())
            ours, softmax = partial(sgt.sparsegen_lin, x, lam=lam), partial(x.softmax, -1)
            times = interleaved({"sparsegen": ours, "softmax": softmax}, seconds)
            yield SpeedRow(rows, n, support, times["sparsegen"]["low_us"], times["softmax"]["low_us"])


def _map_table() -> Table:
    scores = ", ".join(f"{z:g}" for z in SCORES)
    made = table(f"Every map on z = ({scores})", "map", "probabilities", "support", "tau")
    for row in map_rows():
        p = " ".join(f"{'0' if v == 0 else f'{v:.2f}':>4}" for v in row.p)
        name = f"{row.name} {row.control}".strip()
        made.add_row(name, p, str(row.support_size), f"{row.threshold:.2f}")
    return made


def _speed_table(seconds: float) -> Table:
    title = "Speed beside torch.softmax (float32, one thread, lower quartiles)"
    made = table(title, "rows x K", "nonzeros per row", "sparsegen_lin", "softmax", "ratio")
    for row in speed_rows(seconds):
        ours, softmax = f"{row.sparsegen_us:.0f} us", f"{row.softmax_us:.0f} us"
        made.add_row(f"{row.rows} x {row.n}", f"{row.support:.1f}", ours, softmax, f"{row.ratio:.2f}")
    return made


def tour(seconds: float = typer.Option(1.0, min=0.0, help="Time for each measurement.")) -> None:
    """Show each map on one vector, and the speed beside softmax."""
    console = Console()
    console.print(f"sparsegen {sparsegen.__version__}: probability maps with a dial\n", highlight=False)
    console.print(_map_table())
    console.print("Towards lam = 1 sparsegen gets sparser; towards minus infinity, denser.\n", highlight=False)
    try:
        console.print(_speed_table(seconds))
    except ImportError as error:
        console.print(str(error), markup=False, highlight=False)
