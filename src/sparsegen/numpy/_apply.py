"""The recipe on NumPy arrays: check, then the kernel. Rows on which a map is not defined are errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sparsegen._table import checks, recipe
from sparsegen._table.maps import MAPS, TRANSFORMS, Map
from sparsegen._table.radius import DIAL
from sparsegen.numpy import _kernel
from sparsegen.numpy._inputs import read_control, read_scores


class Info(NamedTuple):
    """What a projection found, one entry per row.

    >>> import sparsegen as sg
    >>> p, info = sg.sparsemax([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], return_info=True)
    >>> info.support_size
    array([2, 1])
    >>> info.threshold
    array([0., 0.])
    """

    support_size: np.ndarray
    """Number of entries with positive probability."""
    threshold: np.ndarray
    """The tau of the map's equation: entries whose transformed score exceeds it are the support."""


def _lead(at: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return at[:axis] + at[axis + 1 :]


class _Frame:
    """NumPy as the recipe asks for it."""

    xp: Any = np

    def nothing(self, z: np.ndarray, axis: int) -> bool:
        return z.shape[axis] == 0

    def unmoved(self, x: np.ndarray, control: Any) -> np.ndarray:
        return x

    def wide(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x, np.float64)

    def working(self, z: np.ndarray) -> np.ndarray:
        return z.astype(np.float32) if z.dtype == np.float16 else z

    def like(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        return np.asarray(x).astype(z.dtype, copy=False)

    def still(self, x: np.ndarray) -> np.ndarray:
        return x

    def number(self, value: Any, like: np.ndarray) -> np.ndarray:
        return np.asarray(value, np.float64)

    def total(self, w: np.ndarray, axis: int) -> np.ndarray:
        return np.sum(w, axis, keepdims=True, dtype=np.float64).astype(w.dtype)

    def project(self, x: np.ndarray, radius: Any, axis: int, mask: np.ndarray | None, own: bool) -> np.ndarray:
        x = np.ascontiguousarray(x) if own else x
        return _kernel.project(x, radius, axis, mask, out=x if own else None)

    def means(self, z: np.ndarray, axis: int, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        return _kernel.means(z, axis, mask)

    def project_mean(self, m: Map, z: np.ndarray, q: Any, axis: int, mask: np.ndarray | None) -> np.ndarray:
        p, outside = _kernel.map_rows(z, m.code, q, 1.0, axis, mask)
        if outside:
            mean, n = _kernel.means(z, axis, mask)
            radius = recipe.of_mean(np, m.radius, mean, n, np.asarray(q, np.float64))
            at = tuple(int(i) for i in np.argwhere(np.isnan(radius) & np.isfinite(mean))[0])
            least = -n[at] * np.broadcast_to(q, n.shape)[at]
            checks.outside_domain(m.name, f"of a sum above -K q = {least}", at, mean[at] * n[at])
        return p

    def exp_shares(self, x: np.ndarray, axis: int) -> np.ndarray:
        w = np.exp(x)
        w /= self.total(w, axis)
        return w

    def entmax(self, z: np.ndarray, alpha: Any, axis: int, mask: np.ndarray | None) -> np.ndarray:
        return _kernel.map_rows(z, MAPS["entmax"].code, 1.0, alpha, axis, mask)[0]

    def whole(
        self, m: Map, z: np.ndarray, radius: Any, temperature: Any, axis: int, mask: np.ndarray | None
    ) -> np.ndarray | None:
        p, outside = _kernel.map_rows(z, m.code, radius, temperature, axis, mask)
        return None if outside else p  # the recipe finds which row, and says so

    def refuse(self, m: Map, wrong: np.ndarray, condition: str, values: Any, x: np.ndarray, axis: int) -> np.ndarray:
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            checks.outside_domain(m.name, condition, _lead(at, axis), "zeros" if values is None else values[at])
        return x


FRAME = _Frame()


def _read(scores: Any, axis: Any, mask: Any, name: str = "scores") -> tuple[np.ndarray, int, np.ndarray | None]:
    z, mask = read_scores(scores, mask, name)
    return z, checks.axis_index("axis", axis, z.shape, name), mask


def _finish(found: Any, return_info: bool) -> Any:
    if not return_info:
        return found
    p, (size, threshold) = found
    return p, Info(np.asarray(size, np.int64), np.asarray(threshold, np.float64))


def apply(name: str, scores: Any, controls: dict[str, Any], axis: int, mask: Any, return_info: bool) -> Any:
    """Apply the map called `name` in the table."""
    m = MAPS[name]
    z, axis, mask = _read(scores, axis, mask)
    lead = _lead(z.shape, axis)
    checked = {key: read_control(key, value, lead) for key, value in controls.items()}
    with np.errstate(all="ignore"):
        return _finish(recipe.apply(FRAME, m, z, checked, axis, mask, return_info), return_info)


def apply_project(points: Any, radius: Any, axis: int, mask: Any, return_info: bool) -> Any:
    """Apply the primitive itself."""
    z, axis, mask = _read(points, axis, mask, "points")
    r = read_control("radius", radius, _lead(z.shape, axis))
    return _finish(recipe.project(FRAME, z, r, axis, mask, return_info), return_info)


def _checked(transform: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], np.ndarray]:
    """A caller's own transform whose result is looked at; it gets a copy, so nothing of ours can be written."""

    def g(z: np.ndarray) -> np.ndarray:
        x = np.array(transform(np.array(z)))
        checks.transform_shape(x.shape, z.shape)
        return x

    return g


def apply_sparsegen(scores: Any, lam: Any, transform: Any, axis: int, mask: Any, return_info: bool) -> Any:
    """Apply sparsegen with a named transform or the caller's own."""
    if not callable(transform):
        checks.transform_name(transform, tuple(TRANSFORMS))
        return apply(f"sparsegen_{transform}", scores, {"lam": lam}, axis, mask, return_info)
    z, axis, mask = _read(scores, axis, mask)
    r = DIAL.value(np, read_control("lam", lam, _lead(z.shape, axis)))
    own = _checked(transform)

    def points(x: np.ndarray) -> Any:
        return recipe.own_points(FRAME, own, x, axis)

    found = recipe.project(FRAME, z, r, axis, mask, return_info, points, lambda x: points(x).x)
    return _finish(found, return_info)
