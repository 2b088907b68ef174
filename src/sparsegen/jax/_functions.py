"""Functions made from rows of the tables: a signature with the row's controls, and what the row says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import Parameter, Signature
from typing import Any


def keyword(name: str, default: Any = Parameter.empty) -> Parameter:
    """A parameter that is given by name; one without a default has to be."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default)


def made(
    name: str, doc: str, first: Iterable[str], options: Iterable[Parameter], call: Callable[[dict[str, Any]], Any]
) -> Any:
    """A function of that name and signature that hands its arguments, all of them by name, to `call`."""
    leading = [Parameter(word, Parameter.POSITIONAL_OR_KEYWORD) for word in first]
    signature = Signature([*leading, *options])

    def f(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:  # as Python itself would say it
            raise TypeError(f"{name}() {error}") from None
        given.apply_defaults()
        return call(given.arguments)

    f.__name__ = f.__qualname__ = name
    f.__doc__, f.__signature__ = doc, signature  # type: ignore[attr-defined]
    return f
