"""How many threads large arrays get."""

from __future__ import annotations

import os

import numpy as np

from sparsegen._table import checks

_threads: int | None = None


def get_num_threads() -> int:
    """Return the number of threads used for large arrays.

    It is what :func:`set_num_threads` was given, or else the environment's ``SPARSEGEN_NUM_THREADS`` or
    ``OMP_NUM_THREADS``, or else the number of cores this process may use.

    Returns
    -------
    n : int

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.get_num_threads() >= 1
    True
    """
    if _threads is not None:
        return _threads
    asked = os.environ.get("SPARSEGEN_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_num_threads(n: int) -> None:
    """Set the number of threads for large arrays. Results do not depend on it.

    Parameters
    ----------
    n : int
        At least 1.

    Examples
    --------
    >>> import sparsegen as sg
    >>> sg.set_num_threads(2)
    >>> sg.get_num_threads()
    2
    """
    global _threads
    if not isinstance(n, (int, np.integer)) or n < 1:
        checks.fail(ValueError, "n", "a positive integer", repr(n))
    _threads = int(n)
