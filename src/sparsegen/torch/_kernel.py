"""Tensors on the CPU to the kernel and back: addresses, sizes and strides, nothing of autograd."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

import sparsegen._core as _core
from sparsegen._rows import Layout, contiguous, layout


def _borrow_openmp() -> None:
    """Let the kernel use torch's OpenMP threads where they are GCC's runtime; it has threads of its own if not."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        entry = ctypes.CDLL(str(library)).GOMP_parallel
    except (OSError, AttributeError):
        return
    _core.borrow_openmp(ctypes.cast(entry, ctypes.c_void_p).value or 0)


_borrow_openmp()

STORAGE = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}


def lead_shape(x: Tensor, dim: int) -> tuple[int, ...]:
    """Shape of `x` without its class axis `dim` (negative)."""
    shape = tuple(x.shape)
    axis = dim + len(shape)
    return shape[:axis] + shape[axis + 1 :]


def _walk(x: Tensor, dim: int) -> tuple[Tensor, Layout]:
    walk = layout(x.shape, x.stride(), dim + x.dim())
    if walk is not None:
        return x, walk
    return x.contiguous(), contiguous(x.shape, dim + x.dim())


def _address(t: Tensor | None) -> int:
    return 0 if t is None else t.data_ptr()


def _mask_rows(mask: Tensor | None, x: Tensor, dim: int) -> tuple[Tensor | None, Tensor | None]:
    """A mask as rows along the class axis and, where rows share it, the offset of each row's mask."""
    if mask is None:
        return None, None
    n, lead = x.shape[dim], lead_shape(x, dim)
    rows = mask.reshape((1,) * (x.dim() - mask.dim()) + tuple(mask.shape)).movedim(dim, -1)
    rows = rows.expand(*rows.shape[:-1], n).contiguous()
    if rows.shape[:-1] == lead:
        return rows, None
    index = torch.arange(rows.numel() // n, dtype=torch.int64).reshape(rows.shape[:-1]) * n
    return rows, index.expand(lead).contiguous()


def _per_row(radius: Tensor, lead: tuple[int, ...]) -> tuple[Tensor, bool]:
    if radius.dim() == 0:
        return radius.double(), False
    return radius.double().expand(lead).contiguous(), True


def project(x: Tensor, radius: Tensor | float, dim: int, mask: Tensor | None) -> Tensor:
    """Project rows along `dim` (negative) of a CPU tensor."""
    entries = x.numel()
    if dim == -1 and mask is None and type(radius) is float and entries and x.is_contiguous():
        n, p = x.size(-1), torch.empty_like(x)
        _core.project(x.data_ptr(), p.data_ptr(), STORAGE[x.dtype], entries // n, n, radius, torch.get_num_threads())
        return p
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    if entries == 0:
        return p
    x, walk = _walk(x, dim)
    r, per_row = _per_row(torch.as_tensor(radius, dtype=torch.float64), lead_shape(x, dim))
    rows, offsets = _mask_rows(mask, x, dim)
    _core.project_strided(
        x.data_ptr(), p.data_ptr(), STORAGE[x.dtype], walk.outer, walk.n, walk.inner, *walk.strides,
        r.data_ptr(), per_row, _address(rows), _address(offsets), 0, 0, torch.get_num_threads(),
    )  # fmt: skip
    return p


def project_mean(
    x: Tensor, q: Tensor | float, rule: int, dim: int, mask: Tensor | None, keep: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Project onto a radius made of each row's mean; also radius, mean and count of each row if to `keep`."""
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    lead = lead_shape(x, dim)
    found = tuple(torch.ones(lead, dtype=torch.float64) for _ in range(3)) if keep else ()
    if x.numel():
        x, walk = _walk(x, dim)
        rows, offsets = _mask_rows(mask, x, dim)
        per_row = q.double().expand(lead).contiguous() if isinstance(q, Tensor) else None
        number = 0.0 if isinstance(q, Tensor) else q
        radius, mean, count = (t.data_ptr() for t in found) if keep else (0, 0, 0)
        _core.project_mean(
            x.data_ptr(), p.data_ptr(), STORAGE[x.dtype], walk.outer, walk.n, walk.inner, *walk.strides, rule, number,
            _address(per_row), _address(rows), _address(offsets), radius, mean, count, torch.get_num_threads(),
        )  # fmt: skip
    return p, found


WORDS_FROM = 64  # shortest row whose support is kept as bits
# Larger results, in bytes, are written past the caches, and to read their support back costs more than it saves.
WORDS_UNTIL = _core.STREAM_FROM // 2


def keeps_words(x: Tensor, dim: int, mask: Tensor | None) -> bool:
    """Should a call with gradients keep the support for the way back? A 32nd of p is then read there instead of p."""
    if dim != -1 or mask is not None or x.size(-1) < WORDS_FROM or not x.is_contiguous():
        return False
    return 0 < x.numel() * x.element_size() < WORDS_UNTIL


def project_words(x: Tensor, radius: float) -> tuple[Tensor, Tensor | None]:
    """Project rows along the last axis; also their support as bits, 32 entries a word, or None if a row is NaN."""
    n, p = x.size(-1), torch.empty_like(x)
    rows = x.numel() // n
    words = torch.empty(rows * ((n + 31) // 32), dtype=torch.int32)
    broken = _core.project_words(
        x.data_ptr(), p.data_ptr(), words.data_ptr(), STORAGE[x.dtype], rows, n, radius, torch.get_num_threads()
    )
    return p, None if broken else words


def project_vjp_rows(p: Tensor, v: Tensor, radius: float, words: Tensor | None) -> Tensor:
    """Gradient of points along the last axis for one radius, given p and, if kept, its support."""
    p = p.contiguous()  # as project() returned it, but for hooks on saved tensors
    grad, entries = torch.empty_like(p), p.numel()
    if entries:
        n, dtype = p.size(-1), p.dtype
        if v.dtype is not dtype or not v.is_contiguous():
            v = v.to(dtype).contiguous()
        work, support = (_core.project_vjp_rows, p) if words is None else (_core.project_vjp_words, words)
        work(
            support.data_ptr(), v.data_ptr(), grad.data_ptr(), STORAGE[dtype], entries // n, n, radius,
            torch.get_num_threads(),
        )  # fmt: skip
    return grad


def project_vjp(
    p: Tensor, v: Tensor, radius: Tensor | float, dim: int, want_radius: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of points and, if wanted, of the radius of each row (float64), given p and the upstream `v`."""
    p, v = p.contiguous(), v.to(p.dtype).contiguous()
    grad, entries = torch.empty_like(p), p.numel()
    lead = lead_shape(p, dim)
    along = torch.zeros(lead, dtype=torch.float64) if want_radius else None
    if entries:
        walk = contiguous(p.shape, dim + p.dim())
        r, per_row = _per_row(torch.as_tensor(radius, dtype=torch.float64), lead)
        _core.project_vjp(
            p.data_ptr(), v.data_ptr(), grad.data_ptr(), STORAGE[p.dtype], walk.outer, walk.n, walk.inner,
            r.data_ptr(), per_row, _address(along), torch.get_num_threads(),
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
        z = z.contiguous()
        r, per_row = _per_row(radius, lead)
        rows, offsets = _mask_rows(mask, z, -1)
        _core.hinge(
            z.data_ptr(), STORAGE[z.dtype], value.numel(), z.shape[-1], _address(rows), _address(offsets),
            indptr.data_ptr(), indices.data_ptr(), r.data_ptr(), per_row, 0.0, value.data_ptr(), slope.data_ptr(),
            _address(grad), torch.get_num_threads(),
        )  # fmt: skip
    return value, slope, grad
