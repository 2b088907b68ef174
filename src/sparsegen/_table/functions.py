"""Functions made from rows of the tables: a signature with the row's controls, and what the row says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, Signature
from typing import Any

from sparsegen._table.controls import CONTROLS

NEEDED = Parameter.empty  # the default of an option that has to be given


def row_of(package: str, module: Any, name: str) -> Any:
    """The function of a row by its name; the package that was asked has no such attribute if the tables have no row."""
    try:
        return getattr(module, name)
    except AttributeError:
        raise AttributeError(f"module {package!r} has no attribute {name!r}") from None


def control_options(names: Iterable[str]) -> dict[str, Any]:
    """The controls of a map and their defaults."""
    return {name: NEEDED if CONTROLS[name].default is None else CONTROLS[name].default for name in names}


def made(
    name: str, doc: str, first: Iterable[str], options: Mapping[str, Any], call: Callable[[Mapping[str, Any]], Any]
) -> Any:
    """Make a function of that name whose options are given by name; all its arguments go to `call`, by name."""
    leading = tuple(first)
    signature = Signature([
        *(Parameter(word, Parameter.POSITIONAL_OR_KEYWORD) for word in leading),
        *(Parameter(word, Parameter.KEYWORD_ONLY, default=value) for word, value in options.items()),
    ])  # fmt: skip
    defaults = {word: value for word, value in options.items() if value is not NEEDED}
    needed = options.keys() - defaults.keys()
    known = options.keys()

    def f(*args: Any, **given: Any) -> Any:
        if len(args) == len(leading) and given.keys() <= known:  # a tenth of bind's time
            missing = needed - given.keys()
            if not missing:
                return call({**dict(zip(leading, args)), **defaults, **given})
            names = " and ".join(repr(word) for word in sorted(missing))
            several = "s" if len(missing) > 1 else ""
            raise TypeError(f"{name}() missing {len(missing)} required keyword-only argument{several}: {names}")
        try:
            bound = signature.bind(*args, **given)
        except TypeError as error:  # as Python itself would say it
            raise TypeError(f"{name}() {error}") from None
        bound.apply_defaults()
        return call(bound.arguments)

    f.__name__ = f.__qualname__ = name
    f.__doc__, f.__signature__ = doc, signature  # type: ignore[attr-defined]
    return f
