"""Argument checks and every error message, in one grammar: "sparsegen: NAME must be CONDITION, got VALUE."

Front ends check once, at the border; below it types and shapes are trusted. Nothing here imports a framework: values
are looked at through the few attributes NumPy arrays and torch tensors share.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, SupportsIndex, TypeVar

_Error = TypeVar("_Error", bound=Exception)


def fail(error: type[_Error], name: str, condition: str, value: object) -> NoReturn:
    """Raise `error` in the house grammar.

    >>> fail(ValueError, "lam", "a number below 1", 1.5)
    Traceback (most recent call last):
        ...
    ValueError: sparsegen: lam must be a number below 1, got 1.5.
    """
    raise error(f"sparsegen: {name} must be {condition}, got {value}.")


def one_of(names: Iterable[object]) -> str:
    """The condition of a value that must be among `names`.

    >>> one_of(["mean", "sum"])
    "one of 'mean', 'sum'"
    """
    return "one of " + ", ".join(map(repr, names))


def axis_index(name: str, value: object, shape: Sequence[int], of: str = "scores") -> int:
    """Return the non-negative index of axis `value` of the array `of` of that shape."""
    ndim = len(shape)
    if ndim == 0:
        fail(ValueError, of, "an array with at least one axis", "a single number")
    if type(value) is not int and not isinstance(value, SupportsIndex):  # the protocol is slow to ask
        fail(TypeError, name, "an integer", repr(value))
    index = operator.index(value)
    if not -ndim <= index < ndim:
        fail(ValueError, name, f"between {-ndim} and {ndim - 1} for {of} of shape {tuple(shape)}", index)
    return index % ndim


def integer(name: str, value: Any) -> int:
    """Return an integer given as one: Python's, NumPy's, or an array or a tensor of no axes."""
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        fail(TypeError, name, "an integer", repr(value))


def broadcasts(name: str, shape: Sequence[int], target: Sequence[int], meaning: str) -> None:
    """Refuse a `shape` that does not broadcast to `target`, described to the reader as `meaning`."""
    short = len(shape) <= len(target)
    if short and all(a in (b, 1) for a, b in zip(reversed(shape), reversed(target))):
        return
    fail(ValueError, f"the shape of {name}", f"broadcastable to {tuple(target)}, {meaning}", tuple(shape))


MASK_SHAPE = "the scores' shape"


def control_broadcasts(name: str, shape: Sequence[int], lead: Sequence[int]) -> None:
    """Refuse a control that does not fit the rows."""
    of = "points" if name == "radius" else "scores"
    broadcasts(name, shape, lead, f"the {of}' shape without the class axis")


# What a number may be: the condition as text and as a test (NaN fails every one of them).
Conditions = dict[str, tuple[str, Callable[[Any], Any]]]


def number(name: str, value: object, conditions: Conditions) -> float:
    """Return a number that meets the condition of that name, or refuse it."""
    condition, holds = conditions[name]
    if type(value) is not float:
        if isinstance(value, (str, bytes, complex)) or not hasattr(type(value), "__float__"):
            fail(TypeError, name, condition, repr(value))
        try:
            value = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):  # an array of several numbers, say
            fail(TypeError, name, condition, repr(value))
    if not holds(value):
        fail(ValueError, name, condition, value)
    return value


def transform_name(value: object, known: Sequence[str]) -> None:
    """Refuse a transform that is neither a known name nor callable."""
    if isinstance(value, str) and value in known:
        return
    fail(ValueError, "transform", f"{one_of(known)}, or a callable", repr(value))


def transform_shape(got: Sequence[int], expected: Sequence[int]) -> None:
    """Refuse what a caller's own transform returned when its shape is not that of the scores."""
    if tuple(got) != tuple(expected):
        fail(ValueError, "the result of transform", f"of the scores' shape {tuple(expected)}", f"shape {tuple(got)}")


def outside_domain(name: str, condition: str, row: Sequence[int], value: object) -> NoReturn:
    """Refuse the first row on which a map is not defined."""
    where = "the scores" if len(row) == 0 else f"scores row {tuple(int(i) for i in row)}"
    fail(ValueError, f"{where} of {name}", condition, value)


REDUCTIONS = ("none", "mean", "sum")


def numbers(name: str, array: Any) -> Any:
    """Return a NumPy array in float64, or refuse what is not numbers."""
    if array.dtype.kind not in "biuf":
        fail(TypeError, name, "numbers", f"dtype {array.dtype}")
    return array.astype("float64")


def reduction_name(value: object) -> None:
    """Refuse an unknown reduction."""
    if value not in REDUCTIONS:
        fail(ValueError, "reduction", one_of(REDUCTIONS), repr(value))


def uneven_target(loss: str, value: object) -> NoReturn:
    """Refuse shares that differ for a loss that cannot learn them."""
    reason = "a loss of 0 would not mean that the map returns the target"
    fail(ValueError, f"the target of {loss}", f"0 or 1, or the same share for all labels of a row ({reason})", value)


def hidden_label(row: int, label: int) -> NoReturn:
    """Refuse a label on an entry that may not be chosen."""
    condition = "a set of labels that may be chosen (mask True, score above -inf)"
    fail(ValueError, f"target row {row}", condition, f"label {label}")
