"""The paper's figures of the maps, drawn from the maps themselves, and an atlas of all of them on the triangle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import sparsegen as sg
from sparsegen.experiments.drawings import STYLE, Drawing

SPARSE, DENSE, SIMPLEX, LINE = "#f2c9b5", "#c6dcef", "#009E73", "#555555"  # pale vermilion and blue, bluish green
SIZES = ("#0072B2", "#E69F00", "#eeeeee")  # support of 1, 2, 3
Map2 = Callable[[np.ndarray], np.ndarray]


def _plane(low: float, high: float, n: int = 301) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    axis = np.linspace(low, high, n)
    x, y = np.meshgrid(axis, axis)
    return x, y, np.stack([x, y], axis=-1)


def _plain_axes(axes: Any, low: float, high: float, title: str) -> None:
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal", xlabel="$z_1$", ylabel="$z_2$", title=title)
    axes.grid(False)
    axes.plot([1, 0], [0, 1], color=SIMPLEX, linewidth=2.2, solid_capstyle="round", zorder=3)


def _label_places(name: str, p: np.ndarray) -> list[tuple[float, float]]:
    """Points of the contours at which their values are written: across the plane, away from its edges."""
    if name == "sum_normalization":
        return list(zip(1.6 * p, 1.6 * (1 - p)))
    apart, total = (np.log(p / (1 - p)), 1.4) if name == "softmax" else (2 * p - 1, 2.2)
    return list(zip((total + apart) / 2, (total - apart) / 2))


def contours() -> Figure:
    """Draw the lines of equal p_1 in the plane for softmax, sparsemax and sum-normalization."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 2.6), layout="constrained")
        panels = figure.subplots(1, 3)
        for axes, name in zip(panels, ("softmax", "sparsemax", "sum_normalization")):
            low = 0.0 if name == "sum_normalization" else -1.0
            x, y, z = _plane(low, 2.0)
            z = np.maximum(z, 1e-9) if name == "sum_normalization" else z
            p = getattr(sg, name)(z)[..., 0]
            lines = axes.contour(x, y, p, levels=np.arange(0.1, 0.95, 0.1), colors=LINE, linewidths=0.8)
            if name == "sparsemax":  # the edges of the sparse regions
                axes.contour(x, y, p, levels=[1e-6, 1 - 1e-6], colors="#D55E00", linewidths=1, linestyles="--")
            places = _label_places(name, np.array([0.1, 0.3, 0.5, 0.7, 0.9]))
            axes.clabel(lines, fmt="%.1f", fontsize=7, inline_spacing=2, manual=places)
            _plain_axes(axes, low, 2.0, name.replace("_", "-"))
    return figure


def _regions(axes: Any, f: Map2, low: float, high: float, title: str) -> None:
    """Colour the plane by whether a map gives one nonzero or two."""
    x, y, z = _plane(low, high, 601)
    with np.errstate(invalid="ignore"):
        size = (f(z) > 0).sum(axis=-1)
    axes.contourf(x, y, size, levels=[0.5, 1.5, 2.5], colors=[SPARSE, DENSE])
    axes.contour(x, y, size, levels=[1.5], colors="#D55E00", linewidths=1, linestyles="--")
    _plain_axes(axes, low, high, title)


def _point(axes: Any, at: Any, name: str, offset: tuple[float, float] = (4, 4)) -> None:
    axes.plot(*at, "o", color="black", markersize=3.5, zorder=4)
    axes.annotate(name, at, xytext=offset, textcoords="offset points", fontsize=9, zorder=5)


def _arrow(axes: Any, start: Any, end: Any) -> None:
    axes.annotate("", end, xytext=start, arrowprops={"arrowstyle": "->", "linewidth": 0.8, "linestyle": ":"}, zorder=3)


def regions(lam: float = 0.5) -> Figure:
    """Draw where sparsegen-lin is sparse, beside sparsemax, with the points that become corners."""
    z, other = np.array([1.0, 0.3]), np.array([0.25, 0.95])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.4, 2.9), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, value in zip(panels, (0.0, lam)):
            title = "sparsemax ($\\lambda = 0$)" if value == 0 else f"sparsegen-lin, $\\lambda = {value:g}$"
            _regions(axes, partial(sg.sparsegen_lin, lam=value), -0.5, 1.6, title)
            for point, name in ((z, "$z$"), (other, "$z'$")):
                _point(axes, point, name)
                _arrow(axes, point, sg.sparsegen_lin(point, lam=value))
        _point(panels[1], (1, 0), "A", (5, -10))
        _point(panels[1], (0, 1), "B", (-11, 3))
    return figure


def cone_and_hourglass(q: float = 1.0) -> Figure:
    """Draw how sparsecone and sparsehourglass find their point: along the line from the anchor, after a mirror."""
    anchor, z, below = np.array([-q, -q]), np.array([1.0, 0.6]), np.array([-1.3, -0.3])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.8, 3.1), layout="constrained")
        left, right = figure.subplots(1, 2)
        _regions(left, partial(_cone, q=q), -1.8, 1.8, f"sparsecone, $q = {q:g}$")
        _regions(right, partial(sg.sparsehourglass, q=q), -1.8, 1.8, f"sparsehourglass, $q = {q:g}$")
        for axes in (left, right):
            _point(axes, anchor, "$(-q, -q)$", (5, -10))
        _point(left, z, "$z$")
        left.plot(*zip(anchor, z), color=LINE, linewidth=0.8)
        _point(left, sg.sparsecone(z, q=q), "$p$", (-3, -13))
        _point(right, -anchor, "$(q, q)$", (-4, 5))
        mirror = below - 2 * below.mean()
        _point(right, below, "$z$", (-10, -3))
        _point(right, mirror, r"$\tilde z$", (5, 2))
        _arrow(right, below, mirror)
        right.plot(*zip(anchor, mirror), color=LINE, linewidth=0.8)
        _point(right, sg.sparsehourglass(below, q=q), "$p$", (5, -3))
    return figure


def _cone(points: np.ndarray, q: float) -> np.ndarray:
    """sparsecone where it is defined; elsewhere nothing."""
    rows = points.reshape(-1, 2)
    p = np.full(rows.shape, np.nan)
    inside = rows.sum(axis=1) > -2 * q
    p[inside] = sg.sparsecone(rows[inside], q=q)
    return p.reshape(points.shape)


TRIANGLE = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
SUM = 3.0  # of the scores in the row of maps that look at it; 1 in the others: scores on the triangle are probabilities
LAMS = (-2.0, -0.5, 0.0, 0.5, 0.75)
Panel = tuple[str, Callable[..., np.ndarray]]


def _by_lam(f: Callable[..., np.ndarray]) -> list[Panel]:
    return [(f"$\\lambda = {lam:g}$", partial(f, lam=lam)) for lam in LAMS]


ATLAS: dict[str, tuple[float, list[Panel]]] = {
    "sparsegen-lin": (1.0, _by_lam(sg.sparsegen_lin)),
    "sparsegen-exp": (1.0, _by_lam(sg.sparsegen_exp)),
    "sparsegen-sq": (1.0, _by_lam(sg.sparsegen_sq)),
    f"sparsehourglass\n(sum {SUM:g})": (
        SUM, [(f"$q = {q:g}$", partial(sg.sparsehourglass, q=q)) for q in (0.0, 0.2, 0.5, 1.0, 5.0)],
    ),
    "others": (1.0, [
        ("softmax", sg.softmax), ("softmax, $t = 0.3$", partial(sg.softmax, temperature=0.3)),
        ("spherical", sg.spherical_softmax), ("sparsemax", sg.sparsemax), ("hardmax", sg.hardmax),
    ]),
}  # fmt: skip


def atlas() -> Figure:
    """Draw what maps do to scores on a plane around the triangle: size of the support, and lines of equal p_1."""
    x, y = np.meshgrid(np.linspace(-0.55, 1.55, 160), np.linspace(-0.6, 1.5, 160))
    corner = np.linalg.inv(np.column_stack([TRIANGLE, np.ones(3)]).T)
    z = np.stack([x, y, np.ones_like(x)], axis=-1) @ corner.T  # scores of sum 1, equal to p on the triangle
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 7.4), layout="constrained")
        grid = figure.subplots(len(ATLAS), 5)
        for line, (name, (total, maps)) in zip(grid, ATLAS.items()):
            for axes, (title, f) in zip(line, maps):
                p = f(z + (total - 1) / 3)
                axes.contourf(x, y, (p > 0).sum(axis=-1), levels=[0.5, 1.5, 2.5, 3.5], colors=SIZES, alpha=0.75)
                axes.contour(x, y, p[..., 0], levels=[0.2, 0.4, 0.6, 0.8], colors="black", linewidths=0.6)
                axes.plot(*np.vstack([TRIANGLE, TRIANGLE[:1]]).T, color=SIMPLEX, linewidth=1.5)
                axes.set(aspect="equal", xticks=[], yticks=[], title=title)
                axes.grid(False)
            line[0].set_ylabel(name)
        names = ("1 nonzero", "2 nonzeros", "3 nonzeros")
        key = [Patch(color=color, alpha=0.75, label=name) for name, color in zip(names, SIZES)]
        figure.legend(handles=key, loc="outside upper center", ncols=3, frameon=False)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "contours": contours, "sparsegen-lin-regions": regions, "cone-and-hourglass": cone_and_hourglass, "atlas": atlas,
}  # fmt: skip
# What the figures of the maps show, for who reads and for who cannot see them.
TEXTS = {
    "contours": (
        "Lines of equal probability of the first of two scores",
        "In the plane of two scores: parallel lines for softmax, parallel lines between two flat regions for "
        "sparsemax, rays from the origin for sum-normalization.",
    ),
    "sparsegen-lin-regions": (
        "Where sparsegen-lin gives one nonzero and where two, beside sparsemax",
        "In the plane of two scores, a diagonal band gives two nonzeros, all outside of it one. At lam = 0.5 the band "
        "is half as wide as that of sparsemax, and the points z and z' become the corners A and B.",
    ),
    "cone-and-hourglass": (
        "How sparsecone and sparsehourglass find their point",
        "Two planes of two scores. Sparsecone goes along the line from the score to (-q, -q) until it meets the "
        "simplex; sparsehourglass mirrors scores of negative sum first, so that its region is an hourglass.",
    ),
    "atlas": (
        "Size of the support, and lines of equal probability of the first class, around the triangle of three classes",
        "A grid of triangles: a row each for sparsegen-lin, sparsegen-exp, sparsegen-sq, sparsehourglass and other "
        "maps, from denser on the left to sparser on the right where there is a control.",
    ),
}


def drawings() -> Iterator[Drawing]:
    """Yield all of them, in words too."""
    return (Drawing(name, make(), *TEXTS[name]) for name, make in FIGURES.items())
