"""`project` and `entmax` for JAX: values by the kernel or by plain operations, derivatives of every order by one rule.

XLA chooses when it compiles for a platform: the kernel's handlers on the CPU, plain operations elsewhere. The rule
reads the support off the probabilities and is linear in the tangents, so that JAX makes forward mode, reverse mode and
derivatives of derivatives of it.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sparsegen._table import plain
from sparsegen._table.maps import HIDDEN
from sparsegen.jax import _ffi, _plain


def widest() -> Any:
    """The type that statistics of rows are kept in: float64 where JAX has it."""
    return jax.dtypes.canonicalize_dtype(jnp.float64)


def working(x: jax.Array) -> jax.Array:
    """In the type that is computed in: float32 for half precision."""
    return x.astype(jnp.float32) if x.dtype.itemsize == 2 else x


def by_platform(kernel: bool, cpu: Any, default: Any, *operands: jax.Array) -> Any:
    """The kernel's handler, if there is one, where XLA compiles for the CPU; plain operations elsewhere."""
    if not kernel or any(map(_is_split, operands)):
        return default(*operands)
    return lax.platform_dependent(*operands, cpu=cpu, default=default)


def _is_split(t: jax.Array) -> bool:
    """Does it vary over the devices of a shard_map? A handler's result would not be said to."""
    kind = jax.typeof(t)
    return bool(getattr(getattr(kind, "mat", None), "varying", None) or getattr(kind, "vma", None))


def _rows(x: jax.Array, control: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Points with their classes last, in the type that is computed in, and one control for each row."""
    x = jnp.moveaxis(working(x), axis, -1)
    c = jnp.moveaxis(control, axis, -1) if control.ndim else control
    return x, jnp.broadcast_to(c, (*x.shape[:-1], 1)).astype(x.dtype)


def narrow(p: jax.Array, dtype: Any) -> jax.Array:
    """Probabilities in a narrower type, in which a positive one stays positive."""
    if p.dtype == dtype:
        return p
    q = p.astype(dtype)
    lost = (p > 0) & (q == 0)
    return q + jnp.where(lost, jnp.finfo(dtype).smallest_subnormal, 0).astype(dtype)


def _plain_project(x: jax.Array, radius: jax.Array, axis: int) -> jax.Array:
    return narrow(jnp.moveaxis(_plain.project(*_rows(x, radius, axis)), -1, axis), x.dtype)


def _plain_spread(p: jax.Array, v: jax.Array, radius: jax.Array, axis: int) -> jax.Array:
    rows, r = _rows(p, radius, axis)
    grad, _ = plain.vjp(jnp, rows, jnp.moveaxis(v, axis, -1).astype(rows.dtype), r[..., 0])
    return jnp.moveaxis(grad, -1, axis).astype(p.dtype)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _values(x: jax.Array, radius: jax.Array, axis: int, kernel: bool) -> jax.Array:
    cpu, default = (functools.partial(f, axis=axis) for f in (_ffi.project, _plain_project))
    return by_platform(kernel, cpu, default, x, radius)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _spread(p: jax.Array, v: jax.Array, radius: jax.Array, axis: int, kernel: bool) -> jax.Array:
    """P v / r, linear in v and differentiable in the radius, with P the projector onto the support's directions.

    P / r is symmetric, and on its range the inverse of y -> r y: told so, JAX knows its transpose and derivatives.
    """
    p, fixed = lax.stop_gradient(p), lax.stop_gradient(radius)
    cpu, default = (functools.partial(f, axis=axis) for f in (_ffi.spread, _plain_spread))

    def solve(_: Any, b: jax.Array) -> jax.Array:
        return by_platform(kernel, cpu, default, p, b, fixed)

    return lax.custom_linear_solve(lambda y: y * radius.astype(y.dtype), v.astype(p.dtype), solve, symmetric=True)


def _lean(p: jax.Array, radius: jax.Array, axis: int) -> jax.Array:
    """Minus the derivative in the radius: (p - 1/k) / r on a support of k entries, 0 where the map is constant."""
    p = working(p)
    chosen = p > 0
    n = jnp.maximum(jnp.sum(chosen, axis=axis, keepdims=True), 1).astype(p.dtype)
    moves = (radius != 0) & (radius != math.inf)
    r = jnp.where(moves, radius, 1).astype(p.dtype)
    return jnp.where(jnp.isnan(p), math.nan, jnp.where(chosen & moves, (p - 1 / n) / r, 0))


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _project(x: jax.Array, radius: jax.Array, axis: int) -> jax.Array:
    return _values(x, radius, axis, _ffi.READY)


def _project_jvp(axis: int, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (x, radius), (dx, dr) = primals, tangents
    p = _project(x, radius, axis)
    change = jnp.zeros_like(p) if _is_zero(dx) else _spread(p, dx, radius, axis, _ffi.READY)
    if not _is_zero(dr):
        lean = _lean(p, radius, axis)
        change = (change - lean * dr.astype(lean.dtype)).astype(p.dtype)
    return p, change


_project.defjvp(_project_jvp, symbolic_zeros=True)


def _beside(control: Any, x: jax.Array, axis: int) -> jax.Array:
    """One number for all rows, or one for each, with a 1 at the axis of the classes."""
    c = jnp.asarray(control, widest())
    return jnp.expand_dims(jnp.broadcast_to(c, x.shape[:axis] + x.shape[axis + 1 :]), axis) if c.ndim else c


def project(x: jax.Array, radius: Any, axis: int) -> jax.Array:
    """Project rows along `axis` onto a radius that broadcasts to them; -inf is never chosen."""
    return _project(x, _beside(radius, x, axis), axis) if x.size else x


@functools.partial(jax.jit, static_argnums=2)
def _entmax_values(x: jax.Array, alpha: jax.Array, axis: int) -> jax.Array:
    return jnp.moveaxis(_plain.entmax(*_rows(x, alpha, axis)), -1, axis)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _entmax(x: jax.Array, alpha: jax.Array, axis: int) -> jax.Array:
    return _entmax_values(x, alpha, axis)


def _entmax_jvp(axis: int, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (x, alpha), (dx, da) = primals, tangents
    p = _entmax(x, alpha, axis)
    rows, a = _rows(p, alpha, axis)
    change = jnp.zeros_like(rows)
    if not _is_zero(dx):  # the derivative in the scores is symmetric: its product from either side is the same
        change += plain.entmax_vjp(jnp, rows, jnp.moveaxis(dx, axis, -1), a[..., 0])[0]
    if not _is_zero(da):
        log = jnp.log(jnp.where(rows > 0, rows, 1))
        along = jnp.where(rows > 0, plain.entmax_slope(jnp, rows, log, a - 1), 0)
        change += along * (jnp.moveaxis(da, axis, -1) if da.ndim else da).astype(rows.dtype)
    broken = jnp.where(jnp.isnan(rows), math.nan, 1)  # a factor: what is linear in the tangents survives transposing
    return p, jnp.moveaxis(change * broken, -1, axis)


_entmax.defjvp(_entmax_jvp, symbolic_zeros=True)


def entmax(x: jax.Array, alpha: Any, axis: int) -> jax.Array:
    """Entmax of rows along `axis`, of at least float32, with an alpha that broadcasts to them; -inf is never chosen."""
    return _entmax(x, _beside(alpha, x, axis), axis) if x.size else x


@functools.partial(jax.jit, static_argnums=(1, 2))
def _row_means(x: jax.Array, axis: int, kernel: bool) -> tuple[jax.Array, jax.Array]:
    cpu = functools.partial(_ffi.means, axis=axis, dtype=widest())
    return by_platform(kernel, cpu, functools.partial(_plain_means, axis=axis, hidden=None), x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _means(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    return _row_means(x, axis, _ffi.READY)


def _plain_means(x: jax.Array, axis: int, hidden: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    rows = jnp.moveaxis(x, axis, -1).astype(widest())
    hidden = rows == HIDDEN if hidden is None else jnp.moveaxis(hidden, axis, -1)
    mean, n = plain.means(jnp, rows, hidden)
    return jnp.expand_dims(mean, axis), jnp.expand_dims(n, axis)


@_means.defjvp
def _means_jvp(axis: int, primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    mean, n = _means(x, axis)
    change, _ = _plain_means(dx, axis, x == HIDDEN)
    return (mean, n), (change, jnp.zeros_like(n))


def means(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """Mean and number of each row's entries above -inf, in the widest type."""
    mean, n = _means(x, axis) if x.size else _plain_means(x, axis, None)
    return jnp.squeeze(mean, axis), jnp.squeeze(n, axis)
