"""What callers give, as arrays that can be trusted, or a refusal that names it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsegen._table import checks
from sparsegen._table.arrays import as_array, as_array_and_hidden
from sparsegen._table.controls import CONDITIONS, control_number
from sparsegen.numpy._kernel import STORAGE


def _floats(z: np.ndarray, name: str) -> np.ndarray:
    """An array in a float type of native byte order; the caller's own where possible."""
    if z.dtype.kind in "biu":
        return z.astype(np.float64)
    if z.dtype.newbyteorder("=") not in STORAGE:
        got = "None" if z.ndim == 0 and z.dtype == object and z.item() is None else f"dtype {z.dtype}"
        checks.fail(TypeError, name, "float16, float32, float64, integers or booleans", got)
    return z.astype(z.dtype.newbyteorder("="), copy=False)


def read_scores(scores: Any, mask: Any, name: str = "scores") -> tuple[np.ndarray, np.ndarray | None]:
    """The caller's scores, and which of them may be chosen: neither hidden by the mask nor by one of their own."""
    z, hidden = as_array_and_hidden(name, scores)
    z, allowed = _floats(z, name), _mask(mask, z.shape)
    if hidden is None or not hidden.any():
        return z, allowed
    return z, ~hidden if allowed is None else ~hidden & allowed


def _mask(mask: Any, shape: Sequence[int]) -> np.ndarray | None:
    if mask is None:
        return None
    m = as_array("mask", mask)
    if m.dtype != np.bool_:
        checks.fail(TypeError, "mask", "boolean (True = may be chosen)", f"dtype {m.dtype}")
    checks.broadcasts("mask", m.shape, shape, checks.MASK_SHAPE)
    return m


def read_control(name: str, value: Any, lead: tuple[int, ...], conditions: checks.Conditions = CONDITIONS) -> Any:
    """A control: a number, or float64 numbers that broadcast to the rows."""
    if type(value) is float:
        return control_number(name, value, conditions)
    c = as_array(name, value)
    if c.ndim == 0 and not isinstance(value, np.ndarray):
        return control_number(name, value, conditions)
    condition, holds = conditions[name]
    if c.dtype.kind not in "biuf":
        checks.fail(TypeError, name, condition, f"dtype {c.dtype}")
    c = c.astype(np.float64)
    checks.control_broadcasts(name, c.shape, lead)
    wrong = ~holds(c)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        checks.fail(ValueError, f"{name}{list(at)}" if at else name, condition, c[at])
    return c
