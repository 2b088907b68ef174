"""NumPy front end: every map of the table on arrays, along any axis.

Data flows one way: scores -> check -> transform and radius -> rows -> kernel -> shape back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsegen import _checks, _core
from sparsegen._arrays import as_array, as_array_and_hidden
from sparsegen._maps import HIDDEN, MAPS, TRANSFORMS, Map, Points, sparsegen_radius
from sparsegen._rows import Layout, contiguous, layout

STORAGE = {np.dtype(np.float32): 0, np.dtype(np.float64): 1, np.dtype(np.float16): 2}


class Info(NamedTuple):
    """What a projection found, one entry a row.

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


_threads: int | None = None


def get_num_threads() -> int:
    """Return the number of threads used for large arrays.

    It is what :func:`set_num_threads` was given, or else the environment's ``SPARSEGEN_NUM_THREADS`` or
    ``OMP_NUM_THREADS``, or else the number of cores this process may use.

    >>> import sparsegen as sg
    >>> sg.get_num_threads() >= 1
    True
    """
    if _threads is not None:
        return _threads
    asked = os.environ.get("SPARSEGEN_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_num_threads(n: int) -> None:
    """Set the number of threads for large arrays. Results do not depend on it.

    >>> import sparsegen as sg
    >>> sg.set_num_threads(2)
    >>> sg.get_num_threads()
    2
    """
    global _threads
    if not isinstance(n, (int, np.integer)) or n < 1:
        _checks.fail(ValueError, "n", "a positive integer", repr(n))
    _threads = int(n)


def _floats(z: np.ndarray, name: str) -> np.ndarray:
    """An array in a float type of native byte order; the caller's own where possible."""
    if z.dtype.kind in "biu":
        return z.astype(np.float64)
    if z.dtype.newbyteorder("=") not in STORAGE:
        _checks.fail(TypeError, name, "float16, float32, float64, integers or booleans", f"dtype {z.dtype}")
    return z.astype(z.dtype.newbyteorder("="), copy=False)


def _scores(scores: Any, mask: Any, name: str = "scores") -> tuple[np.ndarray, np.ndarray | None]:
    """The caller's scores, and which of them may be chosen: neither hidden by the mask nor by one of their own."""
    z, hidden = as_array_and_hidden(name, scores)
    z, allowed = _floats(z, name), _mask(mask, z.shape)
    if hidden is None or not hidden.any():
        return z, allowed
    return z, ~hidden if allowed is None else ~hidden & allowed


def _mask(mask: Any, shape: Sequence[int]) -> np.ndarray | None:
    if mask is None:
        return None
    m = as_array("mask", mask)
    if m.dtype != np.bool_:
        _checks.fail(TypeError, "mask", "boolean (True = may be chosen)", f"dtype {m.dtype}")
    _checks.broadcasts("mask", m.shape, shape, _checks.MASK_SHAPE)
    return m


def _control(
    name: str, value: Any, lead: tuple[int, ...], conditions: _checks.Conditions = _checks.CONDITIONS
) -> np.ndarray:
    """A control as float64, a single number or broadcastable to the rows."""
    if type(value) is float:
        return np.asarray(_checks.control_number(name, value, conditions))
    c = as_array(name, value)
    if c.ndim == 0 and not isinstance(value, np.ndarray):
        return np.asarray(_checks.control_number(name, value, conditions))
    condition, holds = conditions[name]
    if c.dtype.kind not in "biuf":
        _checks.fail(TypeError, name, condition, f"dtype {c.dtype}")
    c = c.astype(np.float64)
    _checks.control_broadcasts(name, c.shape, lead)
    wrong = ~holds(c)
    if wrong.any():
        _checks.fail(ValueError, name, condition, c[wrong].flat[0])
    return c


def _layout(x: np.ndarray, axis: int) -> tuple[np.ndarray, Layout]:
    """`x`, copied only if its strides cannot be walked, and how to walk it."""
    if x.flags.aligned and all(s % x.itemsize == 0 for s in x.strides):
        walk = layout(x.shape, [s // x.itemsize for s in x.strides], axis)
        if walk is not None:
            return x, walk
    return np.ascontiguousarray(x), contiguous(x.shape, axis)


def _address(array: np.ndarray | None) -> int:
    return 0 if array is None else int(array.__array_interface__["data"][0])


def _mask_rows(mask: np.ndarray | None, shape: tuple[int, ...], axis: int) -> tuple[np.ndarray | None, ...]:
    """A mask as rows along the class axis and, where rows share it, the offset of each row's mask."""
    if mask is None:
        return None, None
    full = mask.reshape((1,) * (len(shape) - mask.ndim) + mask.shape)
    rows = np.moveaxis(full, axis, -1)
    rows = np.ascontiguousarray(np.broadcast_to(rows, (*rows.shape[:-1], shape[axis])))
    lead = shape[:axis] + shape[axis + 1 :]
    if rows.shape[:-1] == lead:
        return rows, None
    index = np.arange(rows[..., 0].size, dtype=np.int64).reshape(rows.shape[:-1]) * shape[axis]
    return rows, np.ascontiguousarray(np.broadcast_to(index, lead))


def _project(
    x: np.ndarray, radius: Any, axis: int, mask: np.ndarray | None, info: bool, out: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Kernel call: probabilities, and support size and threshold if asked. `out` may be `x`."""
    lead = x.shape[:axis] + x.shape[axis + 1 :]
    p = np.empty(x.shape, x.dtype) if out is None else out
    support = np.zeros(lead, np.int64) if info else None
    threshold = np.full(lead, np.nan) if info else None
    if x.size == 0:
        return p, support, threshold
    x, walk = _layout(x, axis)
    one = np.ndim(radius) == 0
    radius = np.ascontiguousarray(radius if one else np.broadcast_to(radius, lead), np.float64)
    rows, offsets = _mask_rows(mask, x.shape, axis)
    _core.project_strided(
        _address(x), _address(p), STORAGE[x.dtype], walk.outer, walk.n, walk.inner, *walk.strides,
        _address(radius), not one, _address(rows), _address(offsets), _address(support), _address(threshold),
        get_num_threads(),
    )  # fmt: skip
    return p, support, threshold


def _means(z: np.ndarray, axis: int, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and number of each row's entries that may be chosen."""
    lead = z.shape[:axis] + z.shape[axis + 1 :]
    mean, count = np.zeros(lead), np.zeros(lead)
    if z.size:
        z, walk = _layout(z, axis)
        rows, offsets = _mask_rows(mask, z.shape, axis)
        _core.row_means(
            _address(z), STORAGE[z.dtype], walk.outer, walk.n, walk.inner, *walk.strides, _address(rows),
            _address(offsets), _address(mean), _address(count), get_num_threads(),
        )  # fmt: skip
    return mean, count


def _first(rows: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(rows)[0])


def _hide(z: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    return z if mask is None else np.where(mask, z, z.dtype.type(HIDDEN))


def _top(z: np.ndarray, axis: int) -> np.ndarray:
    """Largest entry of each row; 0 where nothing may be chosen."""
    top = np.max(z, axis=axis, keepdims=True, initial=HIDDEN)
    return np.where(top == HIDDEN, z.dtype.type(0), top)


def _wide(z: np.ndarray) -> np.ndarray:
    return z.astype(np.float32) if z.dtype == np.float16 else z


def _check_each(m: Map, z: np.ndarray, hidden: np.ndarray, axis: int) -> None:
    """Refuse scores on which the map is not defined, naming the first."""
    if m.outside is None:
        return
    wrong = m.outside(z) & ~hidden
    if wrong.any():
        at = _first(wrong)
        _checks.outside_domain(m.name, m.each, at[:axis] + at[axis + 1 :], z[at])


def _points(m: Map, z: np.ndarray, axis: int) -> Points:
    """g(z) with hidden entries as -inf, in an array of its own."""
    g, hidden = TRANSFORMS[m.transform], z == HIDDEN
    _check_each(m, z, hidden, axis)
    safe = np.where(hidden, z.dtype.type(1), z)
    top = _top(np.where(hidden, z, g.top_of(safe)), axis) if g.top_of else np.zeros(1, z.dtype)
    with np.errstate(all="ignore"):
        points = g.points(np, safe, top, top.astype(np.float64))
    points.x[hidden] = HIDDEN
    return points


def _own_points(transform: Callable[[np.ndarray], Any], z: np.ndarray, axis: int) -> Points:
    """A caller's own transform; it sees the row's maximum where an entry is hidden."""
    hidden = z == HIDDEN
    given = np.where(hidden, _top(z, axis), z)
    x = np.array(transform(given))
    _checks.transform_shape(x.shape, z.shape)
    x = np.where(np.isnan(z) | (z == np.inf), np.nan, x).astype(z.dtype)
    x[hidden] = HIDDEN
    return Points(x)


def _lead(value: Any, axis: int) -> Any:
    return np.squeeze(value, axis) if np.ndim(value) else value


def _finish(p: np.ndarray, dtype: np.dtype, info: tuple[Any, Any] | None) -> Any:
    p = p.astype(dtype, copy=False)
    return p if info is None else (p, Info(*info))


def _scaled(radius: Any, unit: Any) -> Any:
    """radius * unit; an infinite radius stays infinite in any unit."""
    return np.where(np.isinf(radius), radius, radius * unit)


def _threshold(g: np.ndarray, p: np.ndarray, radius: Any, axis: int) -> np.ndarray:
    """The tau that makes the support p > 0 of the transformed scores `g` sum to 1; NaN without one."""
    chosen = p > 0
    n = np.count_nonzero(chosen, axis=axis)
    return (np.where(chosen, g, 0.0).sum(axis=axis, dtype=np.float64) - radius) / np.where(n > 0, n, np.nan)


def _run(
    z: np.ndarray, radius: Any, axis: int, mask: np.ndarray | None, info: bool,
    points: Callable[[np.ndarray], Points] | None = None, g: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Any:  # fmt: skip
    """Project `z`, or the points made of it, onto `radius`. `g` gives the scale thresholds are reported on."""
    if points is None or g is None:
        p, size, tau = _project(z, radius, axis, mask, info)
        return _finish(p, z.dtype, (size, tau) if info else None)
    scores = _hide(_wide(z), mask)
    made = points(scores)
    with np.errstate(all="ignore"):
        x = np.ascontiguousarray(made.x)  # an array of our own, which the kernel may overwrite
        p, size, _ = _project(x, _scaled(radius, _lead(made.unit, axis)), axis, None, info, out=x)
        if not info:
            return _finish(p, z.dtype, None)
        tau = _threshold(g(scores.astype(np.float64)), p, radius, axis)
    return _finish(p, z.dtype, (size, tau))


def _radius(m: Map, z: np.ndarray, controls: dict[str, np.ndarray], axis: int, mask: np.ndarray | None) -> Any:
    if not callable(m.radius):
        return m.radius
    if not m.rule:
        return m.radius(np, **controls)
    mean, count = _means(z, axis, mask)
    with np.errstate(all="ignore"):
        r = np.where(count > 0, m.radius(np, mean, count, **controls), 1.0)
    if m.domain:
        wrong = r <= 0
        if wrong.any():
            at = _first(wrong)
            q = np.broadcast_to(controls["q"], wrong.shape)[at]
            _checks.outside_domain(m.name, f"of a sum above -K q = {-count[at] * q}", at, mean[at] * count[at])
    return r


def _normalize(m: Map, z: np.ndarray, temperature: Any, axis: int, mask: np.ndarray | None, info: bool) -> Any:
    """Maps whose threshold is 0: weights over their sum."""
    dtype = z.dtype
    z = _hide(_wide(z), mask)
    hidden = z == HIDDEN
    _check_each(m, z, hidden, axis)
    if np.ndim(temperature):
        temperature = np.expand_dims(np.broadcast_to(temperature, z.shape[:axis] + z.shape[axis + 1 :]), axis)
    with np.errstate(all="ignore"):
        w = _weights(m.transform, z, hidden, temperature, axis)
        total = w.sum(axis=axis, keepdims=True, dtype=np.float64)
    wrong = _lead((total == 0) & ~hidden.all(axis=axis, keepdims=True), axis)
    if z.shape[axis] and wrong.any():
        _checks.outside_domain(m.name, "not all 0", _first(np.asarray(wrong)), "zeros")
    p = w / np.where(total == 0, 1.0, total).astype(w.dtype)
    if not info:
        return _finish(p, dtype, None)
    p = p.astype(dtype, copy=False)
    size = np.count_nonzero(p > 0, axis=axis)
    return _finish(p, dtype, (np.asarray(size, np.int64), np.where(size > 0, 0.0, np.nan)))


def _weights(transform: str, z: np.ndarray, hidden: np.ndarray, temperature: Any, axis: int) -> np.ndarray:
    """g(z) >= 0 over its largest value; 0 where hidden."""
    g = TRANSFORMS[transform].top_of or (lambda v: v)
    size = np.where(hidden, z, g(np.where(hidden, z.dtype.type(0), z)))
    top = _top(size, axis)
    if transform == "exp":
        # A temperature below the smallest number is that number: the limit is the same.
        w = np.exp((size - top) / np.maximum(temperature, np.finfo(z.dtype).tiny).astype(z.dtype))
    else:
        w = np.where(hidden, size.dtype.type(0), size) / np.where(top > 0, top, size.dtype.type(1))
        w = w * w if transform == "sq" else w
    return np.where(hidden, w.dtype.type(0), w)


def apply(name: str, scores: Any, controls: dict[str, Any], axis: int, mask: Any, return_info: bool) -> Any:
    """Apply the map called `name` in the table."""
    m = MAPS[name]
    z, mask = _scores(scores, mask)
    axis = _checks.axis_index("axis", axis, z.shape)
    lead = z.shape[:axis] + z.shape[axis + 1 :]
    checked = {key: _control(key, value, lead) for key, value in {**m.fixed, **controls}.items()}
    if m.radius is None:
        return _normalize(m, z, checked.get("temperature", 1.0), axis, mask, return_info)
    radius = _radius(m, z, checked, axis, mask)
    if m.transform == "lin":
        return _run(z, radius, axis, mask, return_info)
    g = TRANSFORMS[m.transform].g
    return _run(z, radius, axis, mask, return_info, lambda x: _points(m, x, axis), lambda x: g(np, x))


def apply_project(points: Any, radius: Any, axis: int, mask: Any, return_info: bool) -> Any:
    """Apply the primitive itself."""
    z, mask = _scores(points, mask, "points")
    axis = _checks.axis_index("axis", axis, z.shape, "points")
    r = _control("radius", radius, z.shape[:axis] + z.shape[axis + 1 :])
    return _run(z, r, axis, mask, return_info)


def apply_sparsegen(scores: Any, lam: Any, transform: Any, axis: int, mask: Any, return_info: bool) -> Any:
    """Apply sparsegen with a named transform or the caller's own."""
    if not callable(transform):
        _checks.transform_name(transform, tuple(TRANSFORMS))
        return apply(f"sparsegen_{transform}", scores, {"lam": lam}, axis, mask, return_info)
    z, mask = _scores(scores, mask)
    axis = _checks.axis_index("axis", axis, z.shape)
    r = sparsegen_radius(np, _control("lam", lam, z.shape[:axis] + z.shape[axis + 1 :]))
    return _run(
        z, r, axis, mask, return_info, lambda x: _own_points(transform, x, axis),
        lambda x: _own_points(transform, x, axis).x,
    )  # fmt: skip
