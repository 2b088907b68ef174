"""What callers give, as arrays: the one place where NumPy reads it, and refuses by name what it cannot read."""

from __future__ import annotations

import sys
from numbers import Real
from typing import Any

import numpy as np

from sparsegen._table import checks


def _is_masked(value: Any) -> bool:
    ma = sys.modules.get("numpy.ma")  # not loaded: nobody has a masked array
    return ma is not None and isinstance(value, ma.MaskedArray)


def as_array(name: str, value: Any) -> np.ndarray:
    """Return `value` as a plain array, the caller's own where it is one; masked entries are refused.

    >>> as_array("k", [1, 2])
    array([1, 2])
    """
    array, hidden = as_array_and_hidden(name, value)
    if hidden is not None and hidden.any():
        checks.fail(ValueError, name, "without masked entries", f"{hidden.sum()} of {hidden.size} masked")
    return array


def as_array_and_hidden(name: str, value: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return `value` as a plain array and, of a masked array, what its mask hides."""
    if type(value) is np.ndarray:
        return value, None
    if hasattr(value, "tocsr"):
        checks.fail(TypeError, name, "a dense array (toarray() makes one)", type(value).__name__)
    if isinstance(value, (list, tuple)) and any(map(_is_masked, value)):
        value = np.ma.array(value)  # else NumPy would forget the masks
    if _is_masked(value):
        return np.ma.getdata(value, subok=False), np.ma.getmaskarray(value)
    try:
        array = np.asarray(value)
        return (_unboxed(array) if hasattr(value, "to_numpy") else array), None
    except (TypeError, ValueError, RuntimeError) as error:
        if "inhomogeneous" in str(error):
            checks.fail(ValueError, name, "an array, rows of one length", "rows of several")
        checks.fail(TypeError, name, "an array, or what NumPy makes one of", type(value).__name__)


def _unboxed(array: np.ndarray) -> np.ndarray:
    """The numbers of a data frame whose columns differ in type, which NumPy reads as objects."""
    if array.dtype == object and all(isinstance(entry, Real) for entry in array.flat):
        return np.array(array.tolist())
    return array
