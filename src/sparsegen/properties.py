"""What a map does, measured: the laws of the paper's Table 1 for any callable, with a counterexample where one fails.

Nothing here knows how a map is computed. A law is tried on rows of a few scores: random ones of several sizes, a
lattice full of ties, and points where formulas break (zero, sum zero, far out).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import sparsegen
from sparsegen._table import checks
from sparsegen._table.controls import renamed
from sparsegen._table.maps import MAPS, Map, Properties
from sparsegen._table.radius import of_mean

__all__ = ["Finding", "Report", "check"]

Function = Callable[[np.ndarray], Any]
LAWS = ("probability", "full_domain", "permutation", "idempotent", "monotone", "translation", "scale", "jacobian")
SHIFTS, FACTORS = (-3.0, -0.5, 0.5, 10.0), (0.25, 0.5, 2.0, 8.0)  # powers of two keep ties exact
TOLERANCE = 1e-7
ENOUGH = 20  # pairs of rows on which a law must have been tried
STEEP = 300.0  # slopes beyond this are taken for a sign that there is no bound


@dataclass(frozen=True, eq=False)
class Finding:
    """Whether a law held on every row tried, and the worst row where it did not.

    >>> from sparsegen.properties import check
    >>> import numpy as np
    >>> found = check(lambda z: np.exp(z) / np.exp(z).sum(-1, keepdims=True)).findings["idempotent"]
    >>> found.holds, found.tried > 100
    (False, True)
    """

    law: str
    holds: bool
    tried: int
    """Rows, or pairs of them, on which it could be tried."""
    counterexample: dict[str, Any] | None = None
    """The scores and what the map made of them."""


@dataclass(frozen=True, eq=False)
class Report:
    """What was found of a map."""

    findings: dict[str, Finding]
    lipschitz: float
    """The steepest slope found, a lower bound of the Lipschitz constant; inf where slopes grow on or exceed 300."""

    def __str__(self) -> str:
        lines = []
        for finding in self.findings.values():
            seen = finding.counterexample or {}
            example = "" if finding.holds else "  " + ", ".join(f"{key}: {_text(value)}" for key, value in seen.items())
            lines.append(f"{finding.law:<12} {'yes' if finding.holds else 'no':<4}{example}")
        return "\n".join([*lines, f"{'lipschitz':<12} {self.lipschitz:.4g}"])


def _text(value: Any) -> str:
    return str(np.round(value, 4).tolist()) if isinstance(value, np.ndarray) else f"{value:.4g}"


class _Safe:
    """A map that gives NaN where it fails: rows are tried one by one once a batch has raised."""

    def __init__(self, f: Function) -> None:
        self.f = f

    def __call__(self, z: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            try:
                p = self.f(z.copy())
            except (ValueError, ArithmeticError):
                p = np.stack([self._row(row) for row in z])
        p = np.asarray(p, dtype=np.float64)
        if p.shape != z.shape:
            checks.fail(ValueError, "the result of the map", f"of the scores' shape {z.shape}", p.shape)
        return p

    def _row(self, row: np.ndarray) -> np.ndarray:
        try:
            return np.asarray(self.f(row[None].copy()), dtype=np.float64)[0]
        except (ValueError, ArithmeticError):
            return np.full(row.shape, np.nan)


def probes(n: int, rng: np.random.Generator, rows: int = 200) -> np.ndarray:
    """Return rows of `n` scores on which maps differ: spread, tied, of sum zero, far out.

    >>> import numpy as np
    >>> probes(3, np.random.default_rng(0)).shape[1]
    3
    """
    normal = np.concatenate([scale * rng.normal(size=(rows, n)) for scale in (0.1, 1.0, 10.0)])
    lattice = rng.integers(-4, 5, size=(2 * rows, n)) / 2
    zero_sum = np.concatenate([np.ones((1, n)), rng.integers(-2, 3, size=(20, n))]).astype(float)
    zero_sum[:, -1] = -zero_sum[:, :-1].sum(axis=1)
    special = np.stack([np.zeros(n), np.ones(n), -np.ones(n), np.eye(n)[0], 1e3 * np.eye(n)[0], np.full(n, -1e3)])
    return np.concatenate([normal, lattice, zero_sum, special])


def _simplex(n: int, rng: np.random.Generator, rows: int = 200) -> np.ndarray:
    """Points of the simplex: inside, on faces, and the corners."""
    inside = rng.dirichlet(np.ones(n), size=rows)
    faces = inside * (rng.random((rows, n)) < 0.6)
    faces = faces[faces.sum(axis=1) > 0]
    return np.concatenate([inside, faces / faces.sum(axis=1, keepdims=True), np.eye(n), np.full((1, n), 1 / n)])


def _worst(law: str, error: np.ndarray, tolerance: float, **seen: np.ndarray) -> Finding:
    """A finding from the error of each row; NaN counts as not tried."""
    tried = ~np.isnan(error)
    bad = tried & (error > tolerance)
    if not bad.any():
        return Finding(law, bool(tried.sum() >= ENOUGH), int(tried.sum()))
    at = int(np.where(tried, error, -np.inf).argmax())
    return Finding(law, False, int(tried.sum()), {name: value[at] for name, value in seen.items()})


def _difference(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return np.abs(p - q).max(axis=1)


def _tried_laws(f: _Safe, n: int, rng: np.random.Generator) -> Iterator[Finding]:
    z = probes(n, rng)
    p = f(z)
    defined = np.isfinite(p).all(axis=1)
    yield _worst("full_domain", (~defined).astype(float), 0.5, z=z, p=p)
    off = np.maximum(np.abs(p.sum(axis=1) - 1), -p.min(axis=1))
    yield _worst("probability", np.where(defined, off, np.nan), TOLERANCE, z=z, p=p)
    order = rng.permutation(n)
    yield _worst(
        "permutation", _difference(f(z[:, order]), p[:, order]), TOLERANCE, z=z, p=p, p_permuted=f(z[:, order])
    )
    s = _simplex(n, rng)
    yield _worst("idempotent", _difference(f(s), s), TOLERANCE, z=s, p=f(s))
    yield _worst("monotone", _disorder(z, p), TOLERANCE, z=z, p=p)
    yield _moved("translation", f, z, p, [z + shift for shift in SHIFTS])
    yield _moved("scale", f, z, p, [z * factor for factor in FACTORS])
    yield _smooth(f, rng.normal(size=(200, n)), rng)


def _disorder(z: np.ndarray, p: np.ndarray) -> np.ndarray:
    """By how much the order of the scores is broken; equal scores must have equal probabilities."""
    order = np.argsort(z, axis=1, kind="stable")
    step, tied = np.diff(np.take_along_axis(p, order, 1)), np.diff(np.take_along_axis(z, order, 1)) == 0
    return np.where(tied, np.abs(step), -step).max(axis=1)


def _moved(law: str, f: _Safe, z: np.ndarray, p: np.ndarray, others: list[np.ndarray]) -> Finding:
    """Whether moved scores have the same probabilities, where both have any."""
    moved = np.concatenate(others)
    z, p = np.tile(z, (len(others), 1)), np.tile(p, (len(others), 1))
    q = f(moved)
    return _worst(law, _difference(p, q), TOLERANCE, z=z, moved=moved, p=p, p_moved=q)


def _smooth(f: _Safe, z: np.ndarray, rng: np.random.Generator, h: float = 1e-6) -> Finding:
    """Whether slopes from both sides agree at random points; a map may have kinks, but not everywhere."""
    d = rng.normal(size=z.shape)
    ahead, behind = (f(z + h * d) - f(z)) / h, (f(z) - f(z - h * d)) / h
    error = np.abs(ahead - behind).max(axis=1)
    kinks, tried = error > 1e-2 * (1 + np.abs(ahead).max(axis=1)), ~np.isnan(error)
    if not tried.any():  # it has a value nowhere near these points
        return Finding("jacobian", False, 0)
    holds = bool(kinks[tried].mean() < 0.02)
    return Finding("jacobian", holds, int(tried.sum()), None if holds else {"z": z[int(kinks.argmax())]})


def _starts(n: int, reach: float, rng: np.random.Generator, rows: int) -> np.ndarray:
    """Points from which slopes are searched: of sizes from 1 / reach to reach, with ties and small sums."""
    size = reach ** rng.uniform(-1, 1, size=(rows, 1))
    z = size * rng.normal(size=(rows, n))
    third = rows // 3
    z[:third] -= z[:third].mean(axis=1, keepdims=True) * (1 - 1e-3 / size[:third])  # nearly of sum zero
    shared = rng.random((third, n)) < 0.7
    z[-third:] = np.where(shared, size[-third:], z[-third:] / reach) * rng.choice([-1, 1], size=(third, 1))
    return z


def _slopes(f: _Safe, z: np.ndarray, h: float) -> np.ndarray:
    """The largest singular value of the matrix of difference quotients at each row."""
    rows, n = z.shape
    steps = h * np.eye(n)
    moved = (z[:, None, :] + steps).reshape(-1, n), (z[:, None, :] - steps).reshape(-1, n)
    J = ((f(moved[0]) - f(moved[1])) / (2 * h)).reshape(rows, n, n)
    finite = np.isfinite(J).all(axis=(1, 2))
    found = np.zeros(rows)
    if finite.any():
        found[finite] = np.linalg.norm(J[finite], ord=2, axis=(1, 2))
    return found


def _steepest(f: _Safe, n: int, reach: float, rng: np.random.Generator, rows: int = 300, rounds: int = 60) -> float:
    """The steepest slope that a random search from many starts finds."""
    h = 1e-6 / reach
    z = _starts(n, reach, rng, rows)
    best = _slopes(f, z, h)
    keep = np.argsort(best)[-20:]
    z, best = z[keep], best[keep]
    spread = np.maximum(np.abs(z).max(axis=1, keepdims=True), 1 / reach)
    for i in range(rounds):
        tried = z + spread * 0.5 ** (i / 6) * rng.normal(size=z.shape)
        slope = _slopes(f, tried, h)
        better = slope > best
        z[better], best[better] = tried[better], slope[better]
    return float(best.max())


def _lipschitz(f: _Safe, n: int, rng: np.random.Generator) -> float:
    """The steepest slope near and far; inf where it keeps growing with the reach of the search, or is very steep."""
    near, far, farther = (_steepest(f, n, reach, rng) for reach in (10.0, 100.0, 1000.0))
    growing = farther > 3 * near and farther > 1.5 * far
    return math.inf if growing or max(near, far, farther) > STEEP else max(near, far, farther)


def check(
    mapping: Function | None = None, *, n_classes: tuple[int, ...] = (2, 3, 5), seed: int = 0,
    map: Function | None = None,
) -> Report:  # fmt: skip
    """Measure what a map does: any callable from rows of scores (rows, K) to rows of probabilities.

    Parameters
    ----------
    mapping : callable
        Called with float64 arrays of shape (rows, K). Where it has no value it may raise ValueError or return NaN.
    n_classes : tuple of int
        The K to try; a law holds if it does for all.
    seed : int
        Of the rows tried.
    map : callable
        The old name of `mapping`.

    Returns
    -------
    Report
        A finding for each of: probability, full_domain, permutation (equivariance), idempotent, monotone,
        translation and scale (invariance), jacobian (it exists almost everywhere); and the steepest slope found.

    Examples
    --------
    >>> import numpy as np, sparsegen as sg
    >>> from sparsegen.properties import check
    >>> report = check(sg.sparsemax)
    >>> [law for law, found in report.findings.items() if not found.holds], round(report.lipschitz, 3)
    (['scale'], 1.0)
    >>> wrong = check(lambda z: np.maximum(z, 0) / np.abs(z).sum(-1, keepdims=True))
    >>> bool(wrong.findings["probability"].counterexample["p"].sum() < 1)
    True
    """
    mapping = renamed(mapping, map)
    if not callable(mapping):
        checks.fail(TypeError, "mapping", "callable", repr(mapping))
    f = _Safe(mapping)
    steepest = max(_lipschitz(f, n, np.random.default_rng([seed, n])) for n in n_classes)
    return Report(_findings(f, n_classes, seed), steepest)


def _findings(f: _Safe, n_classes: tuple[int, ...], seed: int) -> dict[str, Finding]:
    """Each law over several numbers of classes: the first failure, if there is one."""
    found: dict[str, Finding] = {}
    for n in n_classes:
        for finding in _tried_laws(f, n, np.random.default_rng([seed, n])):
            if finding.law not in found or (found[finding.law].holds and not finding.holds):
                found[finding.law] = finding
    return {law: found[law] for law in LAWS}


# Where the laws of the table are tried. At the ends of its dial a map may have an invariance that it has nowhere else
# ("some"); the other laws speak of the dial's inside.
INSIDE: dict[str, tuple[float, ...]] = {
    "lam": (-1.0, 0.0, 0.5),
    "q": (0.5,),
    "temperature": (0.5, 1.0),
    "alpha": (1.0, 1.5, 2.0),
}
ENDS: dict[str, tuple[float, ...]] = {"q": (0.0, math.inf)}
DIALLED = ("idempotent", "translation", "scale")
COLUMNS = ("idempotent", "monotone", "translation", "scale", "full_domain")


def equation(name: str, **controls: float) -> Function:
    """Return a map as its equation has it: without a value where the radius is 0; the library takes a limit there.

    >>> import numpy as np
    >>> equation("sum_normalization_plus")(np.array([[1.0, 3.0], [1.0, -1.0]]))
    array([[0.25, 0.75],
           [ nan,  nan]])
    """
    m, f = MAPS[name], getattr(sparsegen, name)

    def call(z: np.ndarray) -> np.ndarray:
        p, on = np.full(z.shape, np.nan), has_value(m, z, controls)  # one call for all rows that have one
        p[on] = f(z[on], **controls)
        return p

    return call


def has_value(m: Map, z: np.ndarray, controls: dict[str, float]) -> np.ndarray:
    """Which rows lie in a map's domain and have a radius."""
    on = np.ones(len(z), dtype=bool) if m.outside is None else ~m.outside(z).any(axis=1)
    if m.radius.of == "sum" and m.domain:
        return on & (z != 0).any(axis=1)
    if m.radius.of != "mean":
        return on
    q = np.asarray({**m.fixed, **controls}["q"], dtype=np.float64)
    return on & (of_mean(np, m.radius, z.mean(axis=1), np.full(len(z), float(z.shape[1])), q) > 0)


@dataclass(frozen=True)
class Measured:
    """A row of the table, measured: beside what holds and what the paper says."""

    name: str
    row: Properties
    true: Properties
    claimed: Properties | None
    lipschitz: dict[str, float]
    """The steepest slope found, by control."""


def _settings(m: Map, ends: bool) -> list[dict[str, float]]:
    if not m.controls:
        return [{}]
    name = m.controls[0]
    return [{name: value} for value in (*INSIDE[name], *(ENDS.get(name, ()) if ends else ()))]


def _cell(law: str, reports: dict[str, Report], inside: list[str]) -> str:
    held = [report.findings[law].holds for key, report in reports.items() if law in DIALLED or key in inside]
    return "yes" if all(held) else "some" if any(held) and law in DIALLED else "no"


def _slope_cell(m: Map, reports: dict[str, Report], settings: dict[str, dict[str, float]], n: int) -> str:
    """The formula where the slopes found agree with it, else the slopes."""
    assert m.true is not None  # every map of the table has it
    found = {key: report.lipschitz for key, report in reports.items() if key in settings}
    exact = {key: m.lipschitz(n, **settings[key]) for key in found}
    near = all(found[k] == exact[k] or 0.97 * exact[k] <= found[k] <= exact[k] * (1 + 1e-4) for k in found)
    return m.true.lipschitz if near else ", ".join(f"{value:.3g}" for value in found.values())


def measure(name: str, *, seed: int = 0, n_classes: int = 3) -> Measured:
    """Measure one map of the table over its dial.

    >>> from sparsegen.properties import measure
    >>> measure("sparsemax").row.translation
    'yes'
    """
    m = MAPS[name]
    inside = {repr(setting): setting for setting in _settings(m, ends=False)}
    # Slopes are judged at one number of classes, as some constants depend on it; the other laws at several.
    reports = {
        repr(setting): _measure_one(equation(name, **setting), repr(setting) in inside, seed, n_classes)
        for setting in _settings(m, ends=True)
    }
    cells = {
        law: _cell(law, reports, list(inside))
        for law in ("idempotent", "monotone", "translation", "scale", "full_domain")
    }
    row = Properties(**cells, lipschitz=_slope_cell(m, reports, inside, n_classes))
    assert m.true is not None  # every map of the table has it
    return Measured(name, row, m.true, m.claimed, {key: reports[key].lipschitz for key in inside})


def _measure_one(f: Function, slopes: bool, seed: int, n: int) -> Report:
    safe = _Safe(f)
    steepest = _lipschitz(safe, n, np.random.default_rng([seed, n])) if slopes else math.nan
    return Report(_findings(safe, (2, 3, 5), seed), steepest)
