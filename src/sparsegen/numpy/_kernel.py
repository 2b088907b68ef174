"""Arrays to the kernel and back: addresses, sizes and strides. Everything was checked above."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegen import _core
from sparsegen._table.rows import Layout, contiguous, layout
from sparsegen.numpy.threads import get_num_threads

STORAGE = {np.dtype(np.float32): 0, np.dtype(np.float64): 1, np.dtype(np.float16): 2}


def walked(x: np.ndarray, axis: int) -> tuple[np.ndarray, Layout]:
    """`x`, copied only if its strides cannot be walked, and how to walk it."""
    if x.flags.aligned and all(s % x.itemsize == 0 for s in x.strides):
        walk = layout(x.shape, [s // x.itemsize for s in x.strides], axis)
        if walk is not None:
            return x, walk
    return np.ascontiguousarray(x), contiguous(x.shape, axis)


def address(array: np.ndarray | None) -> int:
    return 0 if array is None else int(array.__array_interface__["data"][0])


def mask_rows(mask: np.ndarray | None, shape: tuple[int, ...], axis: int) -> tuple[np.ndarray | None, ...]:
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


def project(
    x: np.ndarray, radius: Any, axis: int, mask: np.ndarray | None, out: np.ndarray | None = None
) -> np.ndarray:
    """Project rows along `axis` onto one radius or one per row. `out` may be `x`."""
    lead = x.shape[:axis] + x.shape[axis + 1 :]
    p = np.empty(x.shape, x.dtype) if out is None else out
    if x.size == 0:
        return p
    x, walk = walked(x, axis)
    one = np.ndim(radius) == 0
    radius = np.ascontiguousarray(radius if one else np.broadcast_to(radius, lead), np.float64)
    rows, offsets = mask_rows(mask, x.shape, axis)
    _core.project_strided(
        address(x), address(p), STORAGE[x.dtype], walk.outer, walk.n, walk.inner, *walk.strides,
        address(radius), not one, address(rows), address(offsets), 0, 0, get_num_threads(),
    )  # fmt: skip
    return p


def _control(value: Any, lead: tuple[int, ...]) -> tuple[float, np.ndarray | None]:
    """A control as the kernel takes it: one number, or one per row."""
    if np.ndim(value) == 0:
        return float(value), None
    return 0.0, np.ascontiguousarray(np.broadcast_to(value, lead), np.float64)


def map_rows(
    x: np.ndarray, code: tuple[int, int, bool], radius: Any, second: Any, axis: int, mask: np.ndarray | None
) -> tuple[np.ndarray, bool]:
    """Probabilities of a map by its code, and whether a row is outside its domain; `second` is temperature or alpha."""
    lead = x.shape[:axis] + x.shape[axis + 1 :]
    p = np.empty(x.shape, x.dtype)
    if x.size == 0:
        return p, False
    x, walk = walked(x, axis)
    (r, radii), (s, seconds) = _control(radius, lead), _control(second, lead)
    rows, offsets = mask_rows(mask, x.shape, axis)
    outside = _core.map(
        address(x), address(p), STORAGE[x.dtype], walk.outer, walk.n, walk.inner, *walk.strides, *code, r,
        address(radii), s, address(seconds), address(rows), address(offsets), 0, 0, 0, 0, get_num_threads(),
    )  # fmt: skip
    return p, outside


def means(z: np.ndarray, axis: int, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and number of each row's entries that may be chosen."""
    lead = z.shape[:axis] + z.shape[axis + 1 :]
    mean, count = np.zeros(lead), np.zeros(lead)
    if z.size:
        z, walk = walked(z, axis)
        rows, offsets = mask_rows(mask, z.shape, axis)
        _core.row_means(
            address(z), STORAGE[z.dtype], walk.outer, walk.n, walk.inner, *walk.strides, address(rows),
            address(offsets), address(mean), address(count), get_num_threads(),
        )  # fmt: skip
    return mean, count
