"""The place of :mod:`sparsegen.torch.attention.multihead` in version 0.1: it warns, and goes in version 0.4."""

from typing import Any

from sparsegen.torch import _moved
from sparsegen.torch.attention import multihead


def __getattr__(attribute: str) -> Any:
    return _moved.get(__name__, multihead, attribute)
