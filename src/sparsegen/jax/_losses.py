"""The losses on JAX arrays: target, rows, reduction; derivatives of every order that exists.

Targets and weights that NumPy or SciPy hold are checked; those that JAX holds may be traced and are not looked at: a
row whose target is none (no label, a label on a hidden entry) gives a NaN loss.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sparsegen._table import checks, forms, recipe
from sparsegen._table.arrays import as_array
from sparsegen._table.controls import LOSS_CONDITIONS
from sparsegen._table.losses import LOSSES, Loss
from sparsegen._table.maps import HIDDEN
from sparsegen._table.targets import read
from sparsegen.jax import _ffi, _project
from sparsegen.jax._apply import FRAME
from sparsegen.jax._inputs import check_control, check_scores, check_where


def _search(rows: jax.Array, values: jax.Array, side: str) -> jax.Array:
    find = functools.partial(jnp.searchsorted, side=side)
    for _ in range(rows.ndim - 1):
        find = jax.vmap(find)
    return find(rows, values)


def _take(rows: jax.Array, places: jax.Array) -> jax.Array:
    return jnp.take_along_axis(rows, places, -1)


def _plain_hinges(z: jax.Array, radius: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x = z.astype(radius.dtype)
    r = jnp.broadcast_to(radius, z.shape[:-1])
    value, slope, grad = forms.hinge(jnp, x, r, labels, _search, _take)
    return value, slope, grad.astype(_project.working(z).dtype)


@functools.partial(jax.jit, static_argnums=3)
def _parts(z: jax.Array, radius: jax.Array, labels: jax.Array, kernel: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """F(z, radius), its slope in the radius and its gradient in z."""
    return _project.by_platform(kernel, _ffi.hinges, _plain_hinges, z, radius, labels)


@jax.custom_jvp
def _hinges(z: jax.Array, radius: jax.Array, labels: jax.Array) -> jax.Array:
    """F(z, radius) of each row. Being constant between kinks, its slopes make all derivatives."""
    return _parts(z, radius, labels, _ffi.READY)[0]


@_hinges.defjvp
def _hinges_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (z, radius, labels), (dz, dr, _) = primals, tangents
    value, slope, grad = map(lax.stop_gradient, _parts(z, radius, labels, _ffi.READY))
    along = jnp.sum(grad * jnp.where(z == HIDDEN, 0, dz).astype(grad.dtype), -1)
    return value, along.astype(value.dtype) + slope * dr


def _log(loss: Loss, x: jax.Array, eta: jax.Array, control: Any) -> jax.Array:
    return forms.log(FRAME, x, eta)


def _huber(loss: Loss, x: jax.Array, eta: jax.Array, control: Any) -> jax.Array:
    radius = loss.map.radius.value(jnp, control)
    p = _project.project(x, radius, x.ndim - 1)
    beside = jnp.broadcast_to(jnp.asarray(radius, x.dtype), x.shape[:-1])[..., None]
    return forms.huber(FRAME, x, eta, p, beside)


def _tsallis(loss: Loss, x: jax.Array, eta: jax.Array, control: Any) -> jax.Array:
    p = _project.entmax(x, control, x.ndim - 1)
    beside = jnp.broadcast_to(jnp.asarray(control, x.dtype), x.shape[:-1])[..., None]
    return forms.tsallis(FRAME, x, eta, p, beside)


def _hinge(loss: Loss, x: jax.Array, eta: jax.Array, control: Any) -> jax.Array:
    rule = loss.map.radius
    if rule.of == "mean":
        radius = recipe.mean_radius(FRAME, loss.map, x, control, x.ndim - 1, None)
    else:
        radius = jnp.asarray(rule.value(jnp, control), _project.widest())
    value = _hinges(x, jnp.broadcast_to(radius, x.shape[:-1]), eta != 0)
    value = jnp.where(jnp.any(jnp.isnan(eta), -1), jnp.nan, value)
    return value / radius if loss.scaled else value


FORMS = {"log": _log, "huber": _huber, "tsallis": _tsallis, "hinge": _hinge}


def _eta(target: Any, z: jax.Array, ignore_index: int, ignore_empty: bool, even: str) -> tuple[jax.Array, Any]:
    """The target as shares beside the scores, and the rows that count."""
    dtype = _project.working(z).dtype
    if not isinstance(target, jax.Array) and hasattr(target, "__jax_array__"):
        target = jnp.asarray(target)
    if isinstance(target, jax.Array):
        whole, classes = not jnp.issubdtype(target.dtype, jnp.floating), jnp.arange(z.shape[-1])
        given = whole, classes, lambda t: t.astype(dtype), ignore_index, ignore_empty
        return forms.shares(jnp, target, z.shape, *given)
    found = read(target, z.shape, ignore_index=ignore_index, ignore_empty=ignore_empty, even=even)
    counted = None if found.counted is None else jnp.asarray(found.counted.reshape(z.shape[:-1]))
    return jnp.asarray(found.dense(z.shape[-1], dtype).reshape(z.shape)), counted


def _weights(weight: Any, lead: tuple[int, ...], counted: jax.Array | None) -> jax.Array | None:
    """One weight per row, 0 where it does not count; None: all 1."""
    if weight is None:
        return None if counted is None else counted.astype(_project.widest())
    if not isinstance(weight, jax.Array):
        weight = checks.numbers("weight", as_array("weight", weight))
        wrong = ~((weight >= 0) & (weight < math.inf))
        if wrong.any():
            checks.fail(ValueError, "weight", "finite and not negative", weight[wrong].flat[0])
    checks.broadcasts("weight", weight.shape, lead, "the scores' shape without the class axis")
    w = jnp.broadcast_to(jnp.asarray(weight, _project.widest()), lead)
    return w if counted is None else jnp.where(counted, w, 0)


def apply(
    name: str, scores: Any, target: Any, control: Any, where: Any, weight: Any, reduction: str, ignore_index: Any,
    ignore_empty: bool,
) -> jax.Array:  # fmt: skip
    """Apply the loss called `name`."""
    loss = LOSSES[name]
    z, _ = check_scores(scores, -1)
    where = check_where(where, z.shape)
    checks.reduction_name(reduction)
    ignore_index = checks.integer("ignore_index", ignore_index)
    if loss.control:
        control = check_control(loss.control, control, z.shape[:-1], LOSS_CONDITIONS)
    eta, counted = _eta(target, z, ignore_index, ignore_empty, f"{name}_loss" if loss.even else "")
    w = _weights(weight, z.shape[:-1], counted)
    x = recipe.hide(jnp, _project.working(z), where)
    if w is not None:  # a row that does not count has no gradient, whatever its scores
        x = jnp.where((w > 0)[..., None], x, 0)
    each = FORMS[loss.form](loss, x, forms.without_hidden(jnp, eta, x), control) if z.shape[-1] else x.sum(-1)
    return forms.reduce(jnp, each.astype(_project.widest()), w, reduction).astype(x.dtype)
