"""Names that stood elsewhere in version 0.1."""

import warnings
from types import ModuleType
from typing import Any


def get(old: str, new: ModuleType, name: str) -> Any:
    """A name of the module `new`, asked for in the module `old`."""
    if name.startswith("__"):  # asked by Python itself
        raise AttributeError(f"module {old!r} has no attribute {name!r}")
    found = getattr(new, name)
    warnings.warn(f"sparsegen: {old}.{name} is now {new.__name__}.{name}.", DeprecationWarning, stacklevel=3)
    return found
