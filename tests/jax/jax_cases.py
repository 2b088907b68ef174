"""What the JAX tests share: maps of arrays of any shape by one compiled function each.

XLA compiles a function for each shape, and that takes longer than everything else here. So rows are put into an array
of one shape, where the entries around them are NaN and hidden by `where`.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

import sparsegen.jax as sgj
from laws import inside
from sparsegen._table.maps import MAPS
from sparsegen.jax import _ffi

NAMES = tuple(MAPS)
CONTROLS = {"lam": 0.25, "q": 0.5, "temperature": 0.75, "alpha": 1.75}
SHAPE = 6, 16


def controls(name: str) -> dict[str, float]:
    return {key: CONTROLS[key] for key in MAPS[name].controls}


def scores(name: str, *shape: int, dtype=np.float64, seed: int = 0) -> np.ndarray:
    """Random scores in the map's domain."""
    return inside(MAPS[name], np.random.default_rng(seed).standard_normal(shape).astype(dtype))


@functools.cache
def compiled(name: str, kernel: bool, x64: bool, numbers: tuple[tuple[str, float], ...]):
    """The map under jit; `numbers` are controls known to the compiler, others are traced."""
    return jax.jit(lambda z, where, given: getattr(sgj, name)(z, where=where, **dict(numbers), **given))


def _framed(array: np.ndarray, fill) -> np.ndarray:
    """Rows in a corner of an array of the one shape."""
    rows = array.reshape(-1, array.shape[-1])
    whole = np.full(SHAPE, fill, array.dtype)
    whole[: len(rows), : rows.shape[1]] = rows
    return whole


def mapped(name: str, z: np.ndarray, mask=None, traced: bool = True, **given) -> np.ndarray:
    """The map called `name` of rows of at most 16 entries."""
    mask = np.ones(z.shape, bool) if mask is None else np.broadcast_to(mask, z.shape)
    given = {**controls(name), **given}
    numbers = () if traced else tuple(given.items())
    f = compiled(name, _ffi.READY, bool(jax.config.jax_enable_x64), numbers)
    arrays = {key: jnp.asarray(value) for key, value in given.items()} if traced else {}
    p = np.asarray(f(_framed(z, np.nan), _framed(mask, False), arrays))
    assert not np.any(p[~_framed(mask, False)] > 0)  # in a row that is NaN they are NaN too
    n = z.size // z.shape[-1]
    return p[:n, : z.shape[-1]].reshape(z.shape)
