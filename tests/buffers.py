"""The kernel called directly on raw memory: outputs start as NaN, with guard cells on either side."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np

from sparsegen import _core

STORAGE = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_GUARD, _LINE = 64, 64


@contextmanager
def _setting(read, write, value):
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def using_engine(name: str):
    return _setting(_core.engine, _core.use_engine, name)


def written_past_the_caches(past: bool):
    """Let large results be written past the caches, or into them, whatever is faster on this processor."""
    return _setting(_core.past_caches, _core.write_past_caches, past)


def foreseeing(does: bool):
    """Take the processor for one that foresees what long rows read next, or for one that has to be asked."""
    return _setting(_core.foresees, _core.expect_to_foresee, does)


def _bfloat_bits(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def stored(x, storage: str) -> np.ndarray:
    """Numbers rounded to `storage`, as the array the kernel reads; bfloat16 as its bits."""
    x = np.asarray(x)
    return _bfloat_bits(x) if storage == "bfloat16" else np.ascontiguousarray(x, dtype=storage)


def floats(bits: np.ndarray, storage: str) -> np.ndarray:
    """What `stored` numbers are worth, in float64."""
    if storage == "bfloat16":
        bits = (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float64)


class Output:
    """Room for a result: NaN inside, a pattern outside that nobody may touch."""

    def __init__(self, shape, storage: str):
        dtype = np.dtype(np.uint16 if storage == "bfloat16" else storage)
        size = int(np.prod(shape))
        edge = _GUARD * dtype.itemsize
        room = np.full(size * dtype.itemsize + 2 * edge + _LINE, 0xA5, np.uint8)
        # What is so large may be written past the caches, but only where it begins with a line of memory.
        large = size * dtype.itemsize >= _core.STREAM_FROM // 2
        start = -room.ctypes.data % _LINE if large else 0
        self._all = room[start : start + size * dtype.itemsize + 2 * edge]
        self.cells = self._all[edge : len(self._all) - edge].view(dtype).reshape(shape)
        self.cells[...] = 0x7FC0 if storage == "bfloat16" else np.nan
        self._edge = edge

    @property
    def address(self) -> int:
        return self.cells.ctypes.data

    def take(self) -> np.ndarray:
        """The result, once the guard cells have been looked at."""
        assert (self._all[: self._edge] == 0xA5).all(), "the kernel wrote before its output"
        assert (self._all[-self._edge :] == 0xA5).all(), "the kernel wrote past its output"
        return self.cells


def project(x: np.ndarray, r: float, storage: str, threads: int = 1) -> np.ndarray:
    """Contiguous rows (N, K) of stored numbers."""
    out = Output(x.shape, storage)
    _core.project(x.ctypes.data, out.address, STORAGE[storage], *x.shape, r, threads)
    return out.take()


def project_strided(x: np.ndarray, r, storage: str, mask=None, threads: int = 1):
    """Rows along the middle of (outer, K, inner), any strides; radii (outer, inner). Returns p, support, threshold."""
    outer, n, inner = x.shape
    p, support = Output(x.shape, storage), Output((outer, inner), "float64")
    threshold = Output((outer, inner), "float64")
    radius = np.ascontiguousarray(np.broadcast_to(r, (outer, inner)), np.float64)
    rows = None if mask is None else np.ascontiguousarray(np.moveaxis(mask, 1, -1))
    _core.project_strided(
        x.ctypes.data, p.address, STORAGE[storage], outer, n, inner, *(s // x.itemsize for s in x.strides),
        radius.ctypes.data, True, 0 if rows is None else rows.ctypes.data, 0, support.address, threshold.address,
        threads,
    )  # fmt: skip
    return p.take(), support.take().view(np.int64), threshold.take()


def vjp(p: np.ndarray, v: np.ndarray, r, storage: str, threads: int = 1):
    """Rows along the middle of (outer, K, inner). Returns grad_x and grad_radius."""
    outer, n, inner = p.shape
    grad, grad_radius = Output(p.shape, storage), Output((outer, inner), "float64")
    radius = np.ascontiguousarray(np.broadcast_to(r, (outer, inner)), np.float64)
    _core.project_vjp(
        p.ctypes.data, v.ctypes.data, grad.address, STORAGE[storage], outer, n, inner, radius.ctypes.data, True,
        grad_radius.address, threads,
    )  # fmt: skip
    return grad.take(), grad_radius.take()


def project_words(x: np.ndarray, r: float, storage: str, threads: int = 1):
    """Contiguous rows (N, K). Returns p, the support as words of 32 bits, and whether a row is NaN."""
    rows, n = x.shape
    p, words = Output(x.shape, storage), Output((rows, (n + 31) // 32), "float32")
    broken = _core.project_words(x.ctypes.data, p.address, words.address, STORAGE[storage], rows, n, r, threads)
    return p.take(), words.take().view(np.uint32), broken


def vjp_words(words: np.ndarray, v: np.ndarray, r: float, storage: str, threads: int = 1) -> np.ndarray:
    """Gradients of contiguous rows (N, K) whose support is given as words."""
    grad = Output(v.shape, storage)
    _core.project_vjp_words(words.ctypes.data, v.ctypes.data, grad.address, STORAGE[storage], *v.shape, r, threads)
    return grad.take()


def root_vjp(p: np.ndarray, v: np.ndarray, storage: str, alpha=1.5, along: bool = False, threads: int = 1):
    """Entmax's gradient in its scores, rows along the middle of (outer, K, inner); and in alpha, if `along`."""
    outer, n, inner = p.shape
    grad, grad_alpha = Output(p.shape, storage), Output((outer, inner), "float64")
    alphas = np.ascontiguousarray(np.broadcast_to(alpha, (outer, inner)), np.float64) if np.ndim(alpha) else None
    _core.map_vjp(
        p.ctypes.data, p.ctypes.data, v.ctypes.data, grad.address, STORAGE[storage], outer, n, inner,
        n * inner, inner, 1, 0, 0, True, 1.0, 0, 1.5 if np.ndim(alpha) else alpha,
        0 if alphas is None else alphas.ctypes.data, 0, 0, 0, 0, 0, 0, 0, grad_alpha.address if along else 0, threads,
    )  # fmt: skip
    return (grad.take(), grad_alpha.take()) if along else grad.take()


SQUARE, GIVEN, CONE, HOURGLASS, TOTAL = 2, 0, 1, 2, 3  # transform and rules as the kernel numbers them


def mapped(
    z, v, kind, control: float, storage: str, second: float = 1.0, along: bool = False, words: bool = False, spoil=None
):  # fmt: skip
    """A map of (transform, rule, power), rows along the middle of (outer, K, inner): p, its gradient and, if `along`,
    the control's.

    With `words` the support is kept as bits; `spoil(p)` are the probabilities that the way back is then given.
    """
    outer, n, inner = z.shape
    p, grad, to_control = Output(z.shape, storage), Output(z.shape, storage), Output((outer, inner), "float64")
    kept, bits = np.ones((3, outer, inner)), Output((outer * inner * ((n + 31) // 32) + 1,), "float32")
    step, at = 8 * outer * inner, kept.ctypes.data
    map_of = (*kind, control, 0, second, 0, 0, 0, at, at + step, at + 2 * step, bits.address if words else 0)
    shape = (STORAGE[storage], outer, n, inner, n * inner, inner, 1)
    _core.map(z.ctypes.data, p.address, *shape, *map_of, 1)
    found = p.take()
    read = np.ascontiguousarray(spoil(found), found.dtype) if words else found
    _core.map_vjp(
        z.ctypes.data, read.ctypes.data, v.ctypes.data, grad.address, *shape, *map_of,
        to_control.address if along else 0, 0, 1,
    )  # fmt: skip
    return (found, grad.take(), to_control.take()) if along else (found, grad.take())


def squares(z, v, radius: float, rule: int, storage: str, along: bool = False, words: bool = False):
    """Squares onto a radius, or onto that share of their sum: see mapped().

    With `words` p is spoilt before the way back in rows that are numbers throughout.
    """
    numbers = np.isfinite(z).all(1, keepdims=True)
    kind = (SQUARE, rule, False)
    return mapped(z, v, kind, radius, storage, along=along, words=words, spoil=lambda p: np.where(numbers, 7.5, p))
