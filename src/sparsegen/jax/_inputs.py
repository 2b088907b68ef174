"""What callers give, as arrays that can be trusted, or a refusal that names it. Values are not looked at."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsegen._table import checks
from sparsegen._table.controls import CONDITIONS, control_number
from sparsegen.jax._project import widest

DTYPES = tuple(jnp.dtype(name) for name in ("float16", "bfloat16", "float32", "float64"))


def is_array(value: Any) -> bool:
    """Is it an array of JAX's or NumPy's, or one in a wrapper that JAX knows to open?"""
    return isinstance(value, (jax.Array, np.ndarray)) or hasattr(value, "__jax_array__")


def _floats(name: str, value: Any) -> jax.Array:
    if not is_array(value) and not isinstance(value, (float, np.generic)):
        checks.fail(TypeError, name, "a jax.Array or a NumPy array", type(value).__name__)
    given = value if isinstance(value, (jax.Array, np.ndarray)) else jnp.asarray(value)
    if given.dtype not in DTYPES:
        checks.fail(TypeError, name, "float16, bfloat16, float32 or float64", f"dtype {given.dtype}")
    return jnp.asarray(given)


def check_scores(scores: Any, axis: Any, name: str = "scores") -> tuple[jax.Array, int]:
    """The scores, and the axis counted from the first."""
    z = _floats(name, scores)
    return z, checks.axis_index("axis", axis, z.shape, name)


def check_where(where: Any, shape: tuple[int, ...], name: str = "where", of: str = checks.MASK_SHAPE) -> Any:
    """The mask, or a refusal."""
    if where is None:
        return None
    kind = f"dtype {where.dtype}" if is_array(where) else type(where).__name__
    if kind != "dtype bool":
        checks.fail(TypeError, name, "a boolean array (True = may be chosen)", kind)
    where = jnp.asarray(where)
    checks.broadcasts(name, where.shape, shape, of)
    return where


def check_control(name: str, value: Any, lead: tuple[int, ...], conditions: checks.Conditions = CONDITIONS) -> Any:
    """A number, or an array in which values out of range have become NaN: looking would wait for the device."""
    condition, holds = conditions[name]
    if not is_array(value):
        return control_number(name, value, conditions)
    control = jnp.asarray(value)
    if not jnp.issubdtype(control.dtype, jnp.floating):
        checks.fail(TypeError, name, condition, f"dtype {control.dtype}")
    checks.control_broadcasts(name, control.shape, lead)
    control = control.astype(widest())
    return jnp.where(holds(control), control, jnp.nan)
