"""How tensors of any shape become rows for a kernel: sizes and strides, and as few copies as can be."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sparsegen._table.rows import contiguous, layout

REGISTERS = 16384  # entries of a row that stay in registers
BACK = 8192  # the same on the way back, and for transforms: more live at once there


class Tile(NamedTuple):
    """What one program takes: rows, entries of each (a power of two), and the warps to do it with."""

    rows: int
    block: int
    warps: int


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def tile(n: int, rows_b: int) -> Tile:
    """About 2048 entries for each program, 16 for each thread; 32 for the longest rows."""
    block = max(power_of_two(n), 16)
    rows = min(max(1, 2048 // block), 128, power_of_two(rows_b))
    return Tile(rows, block, min(max(rows * block // 512, 1), 16))


class Rows(NamedTuple):
    """Rows (a, b) of n entries, and where they stand: a * steps[0] + b * steps[1] + k * steps[2]."""

    a: int
    b: int
    n: int
    steps: tuple[int, int, int]
    strided: bool

    @property
    def number(self) -> int:
        """Number of rows."""
        return self.a * self.b


def _walk(outer: int, n: int, inner: int, strides: tuple[int, int, int]) -> Rows:
    if inner == 1:
        return Rows(1, outer, n, (0, strides[0], strides[1]), strides[1] != 1)
    return Rows(outer, inner, n, (strides[0], strides[2], strides[1]), True)


def rows_of(x: Tensor, dim: int) -> tuple[Tensor, Rows]:
    """`x`, copied if its rows have no single stride, and how to walk it along `dim` (negative)."""
    found = layout(x.shape, x.stride(), dim + x.dim())
    if found is None:
        x = x.contiguous()
        found = contiguous(x.shape, dim + x.dim())
    return x, _walk(*found)


def result_rows(shape: torch.Size, dim: int) -> Rows:
    """How to walk a contiguous result."""
    return _walk(*contiguous(shape, dim + len(shape)))


class Lines(NamedTuple):
    """A mask's lines: row i has the one at (i // sizes[0]) s0 + (i // sizes[1] % ...) s1 + (i % sizes[1]) s2."""

    given: bool
    mask: Tensor  # without one, any tensor in its place
    sizes: tuple[int, int]
    steps: tuple[int, int, int, int]


def _merged(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[list[int]]:
    """Axes as [size, stride], neighbours that one stride walks through taken together."""
    axes: list[list[int]] = []
    for size, stride in zip(shape, strides):
        if size == 1:
            continue
        if axes and axes[-1][1] == size * stride:
            axes[-1] = [axes[-1][0] * size, stride]
        else:
            axes.append([size, stride])
    return axes


def mask_lines(mask: Tensor | None, x: Tensor, dim: int) -> Lines:
    """A boolean mask that broadcasts to `x`, as bytes."""
    if mask is None:
        return Lines(False, x, (1, 1), (0, 0, 0, 0))
    full = mask.view(torch.uint8).expand(x.shape).movedim(dim, -1)
    axes = _merged(tuple(full.shape[:-1]), full.stride()[:-1])
    if len(axes) > 3:
        full = full.contiguous()
        axes = _merged(tuple(full.shape[:-1]), full.stride()[:-1])
    (_, s0), (b, s1), (c, s2) = [[1, 0]] * (3 - len(axes)) + axes
    return Lines(True, full, (b * c, c), (s0, s1, s2, full.stride(-1)))


def moved(mask: Tensor | None, x: Tensor, dim: int) -> Tensor | None:
    """The mask of `x` with its class axis last."""
    return None if mask is None else mask.expand(x.shape).movedim(dim, -1)


def per_row(control: Tensor, lead: tuple[int, ...]) -> tuple[Tensor, int]:
    """One number for each row, or one for all: the tensor and the step from row to row."""
    if control.numel() == 1:
        return control, 0
    return control.expand(lead).contiguous(), 1


def programs(rows: Rows, tile: Tile) -> tuple[int, int]:
    """Number of programs, and of those for one `a`."""
    blocks = math.ceil(rows.b / tile.rows)
    return rows.a * blocks, blocks
