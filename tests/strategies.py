"""Random rows that look for trouble: ties, all magnitudes, far offsets, hidden entries, every dtype."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

DTYPES = [np.float16, np.float32, np.float64]

_plain = st.floats(-4, 4, allow_subnormal=False, width=32)
_tied = st.integers(-8, 8).map(lambda n: n / 8)
_scale = {np.float16: [1e-4, 0.01, 1.0, 1e3], np.float32: [1e-30, 1e-6, 1e-3, 1.0, 1e3, 1e30]}
_scale[np.float64] = _scale[np.float32]
_offset = {np.float16: [0.0, 100.0, -1e4], np.float32: [0.0, 1e3, 1e8, -1e8]}
_offset[np.float64] = _offset[np.float32]

radii = st.one_of(
    st.sampled_from([0.0, math.inf, 1e-30, 1e-10, 0.5, 1.0, 2.0, 1e10, 1e30]),
    st.floats(1e-3, 1e3),
)


@st.composite
def rows(draw, dtype, most: int = 6, shape=None):
    """An array of finite scores (rows, K)."""
    n, k = shape or (draw(st.integers(1, 5)), draw(st.integers(1, most)))
    entry = draw(st.sampled_from([_plain, _tied]))
    values = np.array(draw(st.lists(entry, min_size=n * k, max_size=n * k)), np.float64).reshape(n, k)
    scale, offset = draw(st.sampled_from(_scale[dtype])), draw(st.sampled_from(_offset[dtype]))
    return (values * scale + offset).astype(dtype)


@st.composite
def masks(draw, shape):
    """True where an entry may be chosen, or None for no mask at all."""
    if draw(st.booleans()):
        return None
    size = int(np.prod(shape))
    return np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool).reshape(shape)


@st.composite
def shaped(draw, dtype):
    """An array of up to three axes, one of them to map along, and a mask that broadcasts to it."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    size = int(np.prod(shape))
    values = draw(rows(dtype, shape=(1, size))).reshape(shape)
    thin = tuple(draw(st.sampled_from([1, n])) for n in shape)
    return values, axis, draw(masks(thin))
