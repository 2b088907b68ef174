"""How much memory this process has needed."""

from __future__ import annotations

import sys


def peak_mib() -> float | None:
    """Return the most memory the process has had so far, in MiB; None where the system does not say.

    Examples
    --------
    >>> import sys
    >>> sys.platform == "win32" or peak_mib() > 1
    True
    """
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, KiB elsewhere
