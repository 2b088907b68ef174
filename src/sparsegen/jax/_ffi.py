"""The kernel under XLA, on the CPU. Arrays come as they are: rows lie along an axis, vmap's axes stand in front."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsegen import _core


def _api() -> str:
    """The version of XLA's interface that this jaxlib has, as its headers say."""
    text = (Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h").read_text()
    return ".".join(re.findall(r"#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)", text))


def _registered() -> str:
    """Tell XLA of the handlers; why that could not be, or nothing."""
    try:
        from sparsegen import _jax_ffi
    except ImportError:
        return "this build of sparsegen has none, as jaxlib's headers were not there"
    # Handlers of another version would not fail here but later, and take JAX's whole CPU with them.
    if _api() != _jax_ffi.API:
        return f"they were built for version {_jax_ffi.API} of XLA's interface, and this jaxlib has {_api() or 'none'}"
    for name, handler in _jax_ffi.handlers(_core.engine_address()).items():
        jax.ffi.register_ffi_target(name, handler, platform="cpu")
    return ""


MISSING = _registered()
READY = not MISSING


@contextmanager
def left_out() -> Iterator[None]:
    """Within it functions are traced as where there are no handlers: to test and to measure what runs there."""
    global READY
    before, READY = READY, False
    try:
        yield
    finally:
        READY = before


def _call(name: str, *results: jax.ShapeDtypeStruct) -> Any:
    types = results[0] if len(results) == 1 else results
    return jax.ffi.ffi_call(f"sparsegen_{name}", types, vmap_method="broadcast_all")


def _like(x: jax.Array, dtype: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, dtype or x.dtype)


def _after(x: jax.Array, axis: int) -> np.int64:
    """How many axes stand behind that of the classes."""
    return np.int64(x.ndim - 1 - axis)


def project(x: jax.Array, radius: jax.Array, axis: int) -> jax.Array:
    """Project rows along `axis` onto one radius, or one per row, of x's shape but for a 1 at the axis."""
    return _call("project", _like(x))(x, radius, after=_after(x, axis))


def spread(p: jax.Array, v: jax.Array, radius: jax.Array, axis: int) -> jax.Array:
    """The derivative of a projection in its points, in the direction `v`; it is symmetric."""
    return _call("project_vjp", _like(p))(p, v.astype(p.dtype), radius, after=_after(p, axis))


def means(x: jax.Array, axis: int, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Mean and number of each row's entries above -inf, with a 1 at the axis."""
    rows = jax.ShapeDtypeStruct((*x.shape[:axis], 1, *x.shape[axis + 1 :]), dtype)
    return _call("row_means", rows, rows)(x, after=_after(x, axis))


def hinges(z: jax.Array, radius: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """F(z, radius) of the hinge losses, its slope in the radius and its gradient in z; classes last."""
    rows = jax.ShapeDtypeStruct(z.shape[:-1], radius.dtype)
    narrow = jnp.float64 if z.dtype == jnp.float64 else jnp.float32
    return _call("hinge", rows, rows, _like(z, narrow))(z, radius, labels)
