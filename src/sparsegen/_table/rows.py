"""How an array of any shape is walked as rows: (outer, K, inner), with one stride for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Layout(NamedTuple):
    """Rows (o, i) of K entries; entry k stands at o * strides[0] + k * strides[1] + i * strides[2]."""

    outer: int
    n: int
    inner: int
    strides: tuple[int, int, int]


def one_stride(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return the stride that walks through all axes in order, or None if there is no single one.

    >>> one_stride((2, 3), (3, 1)), one_stride((2, 3), (8, 1)), one_stride((), ())
    (1, None, 0)
    """
    axes = [(n, s) for n, s in zip(shape, strides) if n != 1]
    for (_, outer), (n, inner) in pairwise(axes):
        if outer != n * inner:
            return None
    return axes[-1][1] if axes else 0


def layout(shape: Sequence[int], strides: Sequence[int], axis: int) -> Layout | None:
    """Return how to walk rows along `axis`, or None if the array has to be copied first."""
    outer = one_stride(shape[:axis], strides[:axis])
    inner = one_stride(shape[axis + 1 :], strides[axis + 1 :])
    if outer is None or inner is None:
        return None
    sizes = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    return Layout(*sizes, (outer, strides[axis], inner))


def contiguous(shape: Sequence[int], axis: int) -> Layout:
    """Return the layout of a C-contiguous array."""
    n, inner = shape[axis], math.prod(shape[axis + 1 :])
    return Layout(math.prod(shape[:axis]), n, inner, (n * inner, inner, 1))
