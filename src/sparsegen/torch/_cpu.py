"""Tensors on the CPU to the kernel and back: addresses, sizes and strides, nothing of autograd."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import threading
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import sparsegen._core as _core
from sparsegen._table.maps import MAPS, Map
from sparsegen._table.rows import Layout, contiguous, layout


def _is_forked() -> bool:
    """Is this process a fork that runs on without a program of its own?"""
    process = multiprocessing.current_process()
    if type(process).__name__ in ("ForkProcess", "ForkServerProcess"):
        return True
    # A bare os.fork leaves the main thread under the number of its parent.
    return sys.platform == "linux" and threading.main_thread().native_id != os.getpid()


def _borrow_openmp() -> None:
    """Let the kernel use torch's OpenMP threads where they are GCC's runtime; it has threads of its own if not.

    Those of a forked process stayed with its parent, and GCC's runtime would wait for them for ever. The kernel gives
    the loan back when it is forked; here nothing is borrowed if that was before this import.
    """
    if _is_forked():
        return
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        entry = ctypes.CDLL(str(library)).GOMP_parallel
    except (OSError, AttributeError):
        return
    _core.borrow_openmp(ctypes.cast(entry, ctypes.c_void_p).value or 0)


_borrow_openmp()

STORAGE = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}

# Where to read a tensor. A copy that torch puts off until somebody writes (torch._lazy_clone) stays put off, where
# data_ptr() would make it; older versions of torch have nothing else.
address = getattr(Tensor, "const_data_ptr", Tensor.data_ptr)

_LINEAR = MAPS["sparsegen_lin"].kind  # of a projection, as the kernel is told


def settled(t: Tensor) -> Tensor:
    """`t` with its numbers in memory: torch negates some views only as it reads them, and some zeros it never wrote."""
    return t.clone() if t.is_neg() or t._is_zerotensor() else t


def lead_shape(x: Tensor, dim: int) -> tuple[int, ...]:
    """Shape of `x` without its class axis `dim` (negative)."""
    shape = tuple(x.shape)
    axis = dim + len(shape)
    return shape[:axis] + shape[axis + 1 :]


def _walk(x: Tensor, dim: int) -> tuple[Tensor, Layout]:
    x = settled(x)
    walk = layout(x.shape, x.stride(), dim + x.dim())
    if walk is not None:
        return x, walk
    return x.contiguous(), contiguous(x.shape, dim + x.dim())


def address_or_none(t: Tensor | None) -> int:
    """Where a tensor lies that may be left out; 0 if it is."""
    return 0 if t is None else address(t)


def as_array(t: Tensor) -> np.ndarray:
    """The numbers of a CPU tensor for NumPy to read; in float32 for bfloat16, which NumPy does not have."""
    t = settled(t.detach())
    if t.dtype == torch.bfloat16:
        return t.float().numpy()
    # NumPy could write, so torch would make a copy that was put off: better one of our own.
    return (t.clone() if torch._C._is_cow_tensor(t) else t).numpy()  # type: ignore[attr-defined]


def _mask_rows(mask: Tensor | None, x: Tensor, dim: int) -> tuple[Tensor | None, Tensor | None]:
    """A mask as rows along the class axis and, where rows share it, the offset of each row's mask."""
    if mask is None:
        return None, None
    n, lead, mask = x.shape[dim], lead_shape(x, dim), settled(mask)
    rows = mask.reshape((1,) * (x.dim() - mask.dim()) + tuple(mask.shape)).movedim(dim, -1)
    rows = rows.expand(*rows.shape[:-1], n).contiguous()
    if rows.shape[:-1] == lead:
        return rows, None
    index = torch.arange(rows.numel() // n, dtype=torch.int64).reshape(rows.shape[:-1]) * n
    return rows, index.expand(lead).contiguous()


def _per_row(radius: Tensor, lead: tuple[int, ...]) -> tuple[Tensor, bool]:
    radius = settled(radius.double())
    if radius.dim() == 0:
        return radius, False
    return radius.expand(lead).contiguous(), True


def project(x: Tensor, radius: Tensor | float, dim: int, mask: Tensor | None) -> Tensor:
    """Project rows along `dim` (negative) of a CPU tensor."""
    if dim == -1 and type(radius) is float:
        p = _core.tensor_map(x, _LINEAR, radius, 1.0, False, mask)
        if p is not None:
            return p
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel() == 0:
        return p
    x, walk = _walk(x, dim)
    r, per_row = _per_row(torch.as_tensor(radius, dtype=torch.float64), lead_shape(x, dim))
    rows, offsets = _mask_rows(mask, x, dim)
    _core.project_strided(
        address(x), p.data_ptr(), STORAGE[x.dtype], walk.outer, walk.n, walk.inner, *walk.strides,
        address(r), per_row, address_or_none(rows), address_or_none(offsets), 0, 0, torch.get_num_threads(),
    )  # fmt: skip
    return p


def row_means(x: Tensor, dim: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean of each row's entries that may be chosen, with all its digits, and their number (float64)."""
    mean, count = torch.zeros((2, *lead_shape(x, dim)), dtype=torch.float64)
    if x.numel():
        x, walk = _walk(x, dim)
        rows, offsets = _mask_rows(mask, x, dim)
        _core.row_means(
            address(x), STORAGE[x.dtype], walk.outer, walk.n, walk.inner, *walk.strides, address_or_none(rows),
            address_or_none(offsets), mean.data_ptr(), count.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
    return mean, count


Control = Tensor | float
Kept = tuple[
    Tensor | None, Tensor | None, Tensor | None
]  # of each row: radius, largest score or mean, number of entries


def _control(value: Control, lead: tuple[int, ...]) -> tuple[float, Tensor | None]:
    """A control as the kernel takes it: one number, or one per row."""
    if type(value) is float:
        return value, None
    value = settled(value.detach().double())  # type: ignore[union-attr]
    return (value.item(), None) if value.dim() == 0 else (0.0, value.expand(lead).contiguous())


def map_rows(
    x: Tensor, m: Map, radius: Control, second: Control, dim: int, mask: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """Probabilities of a map; `second` is temperature or alpha. To `keep`, also what the way back needs of each row."""
    if dim == -1 and type(radius) is type(second) is float:
        quickly = _core.tensor_map(x, m.kind, radius, second, keep, mask)
        if quickly is not None:
            return quickly if keep else (quickly, None)
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    lead = lead_shape(x, dim)
    found = torch.ones((3, *lead), dtype=torch.float64) if keep else None
    if x.numel():
        x, walk = _walk(x, dim)
        (r, radii), (s, seconds) = _control(radius, lead), _control(second, lead)
        mask_rows, offsets = _mask_rows(mask, x, dim)
        at = found.data_ptr() if found is not None else 0
        step = walk.outer * walk.inner * 8 if keep else 0
        _core.map(
            address(x), p.data_ptr(), STORAGE[x.dtype], walk.outer, walk.n, walk.inner, *walk.strides, *m.code, r,
            address_or_none(radii), s, address_or_none(seconds), address_or_none(mask_rows), address_or_none(offsets),
            at, at + step, at + 2 * step, 0, torch.get_num_threads(),
        )  # fmt: skip
    return p, found


def map_vjp(
    z: Tensor, p: Tensor, v: Tensor, m: Map, radius: Control, second: Control, found: Tensor | None,
    dim: int, mask: Tensor | None, want: tuple[bool, bool],
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of scores and, if wanted, of both controls of each row (float64); `found` is what each row kept."""
    if dim == -1 and type(radius) is type(second) is float:
        quickly = _core.tensor_map_vjp(z, p, v, m.kind, radius, second, found, *want, mask)
        if quickly is not None:
            return quickly
    p, v = settled(p.contiguous()), settled(v.to(p.dtype).contiguous())
    grad, lead = torch.empty_like(p), lead_shape(p, dim)
    to_radius, to_second = (torch.zeros(lead, dtype=torch.float64) if wanted else None for wanted in want)
    if p.numel():
        z, walk = _walk(z, dim)
        (r, radii), (s, seconds) = _control(radius, lead), _control(second, lead)
        mask_rows, offsets = _mask_rows(mask, z, dim)
        at, step = (0, 0) if found is None else (found.data_ptr(), walk.outer * walk.inner * 8)
        _core.map_vjp(
            address(z), address(p), address(v), grad.data_ptr(), STORAGE[p.dtype], walk.outer, walk.n, walk.inner,
            *walk.strides, *m.code, r, address_or_none(radii), s, address_or_none(seconds), address_or_none(mask_rows),
            address_or_none(offsets), at, at + step, at + 2 * step, 0, address_or_none(to_radius),
            address_or_none(to_second), torch.get_num_threads(),
        )  # fmt: skip
    return grad, to_radius, to_second


_ENTMAX = MAPS["entmax"]


def entmax(x: Tensor, alpha: Control, dim: int, mask: Tensor | None) -> Tensor:
    """Entmax of rows along `dim` (negative) of a CPU tensor."""
    return map_rows(x, _ENTMAX, 1.0, alpha, dim, mask, False)[0]


def entmax_vjp(p: Tensor, v: Tensor, alpha: Control, dim: int, want: bool) -> tuple[Tensor, Tensor | None]:
    """Gradients of scores and, if wanted, of the alpha of each row (float64), given p and the upstream `v`."""
    grad, _, along = map_vjp(p, p, v, _ENTMAX, 1.0, alpha, None, dim, None, (False, want))
    return grad, along


WORDS_FROM = 64  # shortest row whose support is kept as bits
# Larger results, in bytes, may be written past the caches. To read the support of so short rows back costs more than it
# saves; that of longer ones is kept while they are written.
WORDS_UNTIL = _core.STREAM_FROM // 2


def keeps_words(x: Tensor, dim: int, mask: Tensor | None) -> bool:
    """Should a call with gradients keep the support for the way back? A 32nd of p is then read there instead of p."""
    if dim != -1 or mask is not None or x.size(-1) < WORDS_FROM or not x.is_contiguous():
        return False
    size = x.numel() * x.element_size()
    return size > 0 and (size < WORDS_UNTIL or x.size(-1) > WORDS_FROM or not _core.past_caches())


def project_words(x: Tensor, radius: float) -> tuple[Tensor, Tensor | None]:
    """Project rows along the last axis; also their support as bits, 32 entries a word, or None if a row is NaN."""
    x = settled(x)
    n, p = x.shape[-1], torch.empty_like(x)
    rows = x.numel() // n
    words = torch.empty(rows * ((n + 31) // 32), dtype=torch.int32)
    broken = _core.project_words(
        address(x), p.data_ptr(), words.data_ptr(), STORAGE[x.dtype], rows, n, radius, torch.get_num_threads()
    )
    return p, None if broken else words


def project_vjp_rows(p: Tensor, v: Tensor, radius: float, words: Tensor | None) -> Tensor:
    """Gradient of points along the last axis for one radius, given p and, if kept, its support."""
    quickly = _core.tensor_project_vjp(p, v, radius, words)
    if quickly is not None:
        return quickly
    p = settled(p.contiguous())  # as project() returned it, but for hooks on saved tensors
    grad, entries = torch.empty_like(p), p.numel()
    if entries:
        n, dtype = p.shape[-1], p.dtype
        if v.dtype is not dtype or not v.is_contiguous():
            v = v.to(dtype).contiguous()
        v = settled(v)
        work, support = (_core.project_vjp_rows, p) if words is None else (_core.project_vjp_words, words)
        work(
            address(support), address(v), grad.data_ptr(), STORAGE[dtype], entries // n, n, radius,
            torch.get_num_threads(),
        )  # fmt: skip
    return grad


def project_vjp(
    p: Tensor, v: Tensor, radius: Tensor | float, dim: int, want_radius: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of points and, if wanted, of the radius of each row (float64), given p and the upstream `v`."""
    p, v = settled(p.contiguous()), settled(v.to(p.dtype).contiguous())
    grad, entries = torch.empty_like(p), p.numel()
    lead = lead_shape(p, dim)
    along = torch.zeros(lead, dtype=torch.float64) if want_radius else None
    if entries:
        walk = contiguous(p.shape, dim + p.dim())
        r, per_row = _per_row(torch.as_tensor(radius, dtype=torch.float64), lead)
        _core.project_vjp(
            address(p), address(v), grad.data_ptr(), STORAGE[p.dtype], walk.outer, walk.n, walk.inner,
            address(r), per_row, address_or_none(along), torch.get_num_threads(),
        )  # fmt: skip
    return grad, along


def hinge(
    z: Tensor, radius: Tensor, indptr: Tensor, indices: Tensor, mask: Tensor | None, want_grad: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """F(z, radius) of the hinge losses along the last axis, its slope in the radius, its gradient in z if wanted."""
    lead = tuple(z.shape[:-1])
    value, slope = torch.zeros(lead, dtype=torch.float64), torch.zeros(lead, dtype=torch.float64)
    wide = torch.float64 if z.dtype == torch.float64 else torch.float32
    grad = torch.zeros(z.shape, dtype=wide) if want_grad else None
    if z.numel():
        z = settled(z.contiguous())
        r, per_row = _per_row(radius, lead)
        rows, offsets = _mask_rows(mask, z, -1)
        _core.hinge(
            address(z), STORAGE[z.dtype], value.numel(), z.shape[-1], address_or_none(rows), address_or_none(offsets),
            address(indptr), address(indices), address(r), per_row, 0.0, value.data_ptr(), slope.data_ptr(),
            address_or_none(grad), torch.get_num_threads(),
        )  # fmt: skip
    return value, slope, grad


def hinge_labels(z: Tensor, radius: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The same with gradient, of labels given as a boolean tensor."""
    at = labels.reshape(-1, labels.shape[-1]).nonzero()
    edges = torch.arange(labels.numel() // max(labels.shape[-1], 1) + 1)
    places = torch.searchsorted(at[:, 0].contiguous(), edges), at[:, 1].contiguous()
    value, slope, grad = hinge(z, radius, *places, mask, True)
    assert grad is not None  # asked for
    return value, slope, grad
