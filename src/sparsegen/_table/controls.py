"""The controls: what each may be, how it is explained, and whether a map has it. Every front end asks here."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sparsegen._table import checks


@dataclass(frozen=True)
class Control:
    """One control: its range, what it is left at, and the positive number a module keeps it as."""

    name: str
    condition: str
    holds: Callable[[Any], Any]  # on a number or an array; NaN fails it
    text: str  # for Parameters sections
    default: float | None = None  # None: it has to be given
    most: float = math.inf  # of the positive form of a learnable one
    kept: Callable[[Any], Any] = lambda value: value
    value: Callable[[Any], Any] = lambda kept: kept

    @property
    def limits(self) -> checks.Conditions:
        """The range as the checks take it."""
        return {self.name: (self.condition, self.holds)}


CONTROLS: dict[str, Control] = {
    c.name: c
    for c in (
        Control(
            "lam", "a number below 1", lambda v: v < 1,
            "Towards 1 sparser, down to one nonzero entry; towards -infinity denser, up to uniform. (The paper's "
            "Section 3 states these limits the other way round.)",
            0.0, kept=lambda lam: 1 - lam, value=lambda radius: 1 - radius,
        ),
        Control(
            "q", "a number at least 0", lambda v: v >= 0,
            "Trades scale invariance (towards 0) for translation invariance (towards infinity, where the map is "
            "sparsemax).",
        ),
        Control(
            "temperature", "a positive number", lambda v: v > 0,
            "Towards 0 all probability is on the largest score, towards infinity it is spread evenly.", 1.0,
        ),
        Control(
            "alpha", "a finite number at least 1", lambda v: (v >= 1) & (v < math.inf),
            "1 is softmax, 2 is sparsemax; the larger, the sparser.", 1.5, 1.0,
            kept=lambda alpha: alpha - 1, value=lambda gap: 1 + gap,
        ),
        Control(
            "radius", "a number at least 0", lambda v: v >= 0,
            "0 gives the limit: uniform on the maximal entries. Infinity gives uniform on all entries.", 1.0,
        ),
    )
}  # fmt: skip

CONDITIONS: checks.Conditions = {name: (c.condition, c.holds) for name, c in CONTROLS.items()}

# What the losses ask of their controls: the limits of a map are no limits of its loss.
LOSS_CONDITIONS: checks.Conditions = {
    "lam": ("a finite number below 1", lambda v: (v < 1) & (v > -math.inf)),
    "q": ("a positive number", lambda v: v > 0),
    "alpha": CONDITIONS["alpha"],
}


def control_number(name: str, value: object, conditions: checks.Conditions = CONDITIONS) -> float:
    """Return a control given as one number, or refuse it.

    >>> control_number("lam", 1.5)
    Traceback (most recent call last):
        ...
    ValueError: sparsegen: lam must be a number below 1, got 1.5.
    """
    return checks.number(name, value, conditions)


def mapping_name(value: object, names: Collection[str], also: str = "") -> str:
    """Return the name of a map, or refuse what is none of `names`.

    >>> mapping_name("softmin", ["softmax", "sparsemax"])
    Traceback (most recent call last):
        ...
    ValueError: sparsegen: mapping must be one of 'softmax', 'sparsemax', got 'softmin'.
    """
    if not isinstance(value, str) or value not in names:
        checks.fail(ValueError, "mapping", checks.one_of(names) + also, repr(value))
    return value


def renamed(mapping: Any, old: Any) -> Any:
    """The name of a map that may have been given as `map`, its keyword in version 0.1."""
    if old is None:
        return mapping
    text = "sparsegen: the argument map is now called mapping; map goes in version 0.4."
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return old


def controls_of(mapping: str, has: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the controls of a map: those given that are not None, and what the others are left at.

    Refuses a control that the map does not have, and asks for one that has no default.

    >>> controls_of("sparsegen_lin", ("lam",), {"lam": None})
    {'lam': 0.0}
    >>> controls_of("sparsemax", (), {"q": 1.0})
    Traceback (most recent call last):
        ...
    ValueError: sparsegen: q must be left out for mapping 'sparsemax', which has no control, got 1.0.
    """
    found = {name: value for name, value in given.items() if value is not None}
    for name, value in found.items():
        if name not in has:
            own = f"has the control {' and '.join(map(repr, has))}" if has else "has no control"
            checks.fail(ValueError, name, f"left out for mapping {mapping!r}, which {own}", value)
    for name in has:
        default = CONTROLS[name].default
        if name not in found and default is None:
            checks.fail(ValueError, name, f"given for mapping {mapping!r}", None)
        found.setdefault(name, default)
    return found
