"""The recipe on JAX arrays: check, then project. Rows on which a map is not defined become NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sparsegen._table import checks, recipe
from sparsegen._table.maps import MAPS, TRANSFORMS, Map
from sparsegen._table.radius import DIAL
from sparsegen.jax import _project
from sparsegen.jax._inputs import check_control, check_scores, check_where, is_array


class Info(NamedTuple):
    """What a projection found, one entry per row; without gradients.

    >>> import jax.numpy as jnp, sparsegen.jax as sgj
    >>> p, info = sgj.sparsemax(jnp.array([0.5, 0.5, 0.0]), return_info=True)
    >>> int(info.support_size)
    2
    """

    support_size: jax.Array
    """Number of entries with positive probability."""
    threshold: jax.Array
    """The tau of the map's equation: entries whose transformed score exceeds it are the support."""


class Frame:
    """JAX as the recipe asks for it."""

    xp: Any = jnp

    def nothing(self, z: jax.Array, axis: int) -> bool:
        return z.shape[axis] == 0

    def unmoved(self, x: jax.Array, control: Any) -> jax.Array:
        return x

    def wide(self, x: jax.Array) -> jax.Array:
        return x.astype(_project.widest())

    def working(self, z: jax.Array) -> jax.Array:
        return _project.working(z)

    def like(self, x: jax.Array, z: jax.Array) -> jax.Array:
        return x.astype(z.dtype)

    def still(self, x: jax.Array) -> jax.Array:
        return lax.stop_gradient(x)

    def number(self, value: Any, like: jax.Array) -> jax.Array:
        return jnp.asarray(value, like.dtype)

    def total(self, w: jax.Array, axis: int) -> jax.Array:
        return jnp.sum(w, axis, keepdims=True)

    def project(self, x: jax.Array, radius: Any, axis: int, mask: jax.Array | None, own: bool) -> jax.Array:
        return _project.project(recipe.hide(jnp, x, mask), radius, axis)

    def means(self, z: jax.Array, axis: int, mask: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        return _project.means(recipe.hide(jnp, z, mask), axis)

    def project_mean(self, m: Map, z: jax.Array, q: Any, axis: int, mask: jax.Array | None) -> jax.Array:
        # Two parts make the gradient, and each may be too large for halves: they meet in float32.
        x = recipe.hide(jnp, self.working(z), mask)
        p = _project.project(x, recipe.mean_radius(self, m, x, q, axis, None), axis)
        return _project.narrow(p, z.dtype)

    def whole(self, *given: Any) -> None:
        """No handler does a map with its transform: the recipe's operations do, and XLA fuses them."""

    def exp_shares(self, x: jax.Array, axis: int) -> jax.Array:
        return jax.nn.softmax(x, axis)

    def entmax(self, z: jax.Array, alpha: Any, axis: int, mask: jax.Array | None) -> jax.Array:
        return _project.narrow(_project.entmax(recipe.hide(jnp, self.working(z), mask), alpha, axis), z.dtype)

    def refuse(self, m: Map, wrong: jax.Array, condition: str, values: Any, x: jax.Array, axis: int) -> jax.Array:
        return jnp.where(wrong, jnp.nan, x)


FRAME = Frame()


def lead_of(z: jax.Array, axis: int) -> tuple[int, ...]:
    """The shape of the rows: without the class axis."""
    return z.shape[:axis] + z.shape[axis + 1 :]


def _finish(found: Any, return_info: bool) -> Any:
    return (found[0], Info(*found[1])) if return_info else found


def apply(name: str, scores: Any, controls: dict[str, Any], axis: Any, where: Any, return_info: bool) -> Any:
    """Apply the map called `name` in the table."""
    z, axis = check_scores(scores, axis)
    where = check_where(where, z.shape)
    checked = {key: check_control(key, value, lead_of(z, axis)) for key, value in controls.items()}
    return _finish(recipe.apply(FRAME, MAPS[name], z, checked, axis, where, return_info), return_info)


def apply_project(points: Any, radius: Any, axis: Any, where: Any, return_info: bool) -> Any:
    """Apply the primitive itself."""
    z, axis = check_scores(points, axis, "points")
    where, r = check_where(where, z.shape), check_control("radius", radius, lead_of(z, axis))
    return _finish(recipe.project(FRAME, z, r, axis, where, return_info), return_info)


def _checked(transform: Callable[[jax.Array], Any]) -> Callable[[jax.Array], jax.Array]:
    """A caller's own transform whose result is looked at."""

    def g(z: jax.Array) -> jax.Array:
        x = transform(z)
        if not is_array(x):
            checks.fail(TypeError, "the result of transform", "a jax.Array", type(x).__name__)
        checks.transform_shape(x.shape, z.shape)
        return jnp.asarray(x)

    return g


def apply_sparsegen(scores: Any, lam: Any, transform: Any, axis: Any, where: Any, return_info: bool) -> Any:
    """Apply sparsegen with a named transform or the caller's own."""
    if not callable(transform):
        checks.transform_name(transform, tuple(TRANSFORMS))
        return apply(f"sparsegen_{transform}", scores, {"lam": lam}, axis, where, return_info)
    z, at = check_scores(scores, axis)
    where, r = check_where(where, z.shape), DIAL.value(jnp, check_control("lam", lam, lead_of(z, at)))
    own = _checked(transform)
    found = recipe.project(FRAME, z, r, at, where, return_info, lambda x: recipe.own_points(FRAME, own, x, at))
    return _finish(found, return_info)
