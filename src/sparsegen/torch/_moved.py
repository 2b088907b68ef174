"""Names that stood elsewhere in version 0.1."""

import warnings
from types import ModuleType
from typing import Any


def get(old: str, new: ModuleType, name: str) -> Any:
    """A name of the module `new`, asked for in the module `old`."""
    if name.startswith("__"):  # asked by Python itself
        raise AttributeError(f"module {old!r} has no attribute {name!r}")
    found = getattr(new, name)
    text = f"sparsegen: {old}.{name} is now {new.__name__}.{name}; the old place goes in version 0.4."
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return found
