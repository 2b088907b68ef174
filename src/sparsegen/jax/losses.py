"""The losses on JAX arrays, differentiable in scores and controls.

Arguments and edge cases are those of :mod:`sparsegen`, with ``where`` for the mask. Targets of NumPy and SciPy are
checked; the values of one in an array of JAX's are not looked at, so a row whose target is none (no label, a label on a
hidden entry) gives a NaN loss. The loss has the scores' dtype, and is float32 for float16 and bfloat16.

The functions are made from the table, one for each row. Those named here are known to editors; a row without a line is
a function all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jax

from sparsegen._table.functions import made
from sparsegen._table.losses import LOSSES
from sparsegen._table.prose import JAX, loss_doc
from sparsegen.jax._losses import apply

Control = float | jax.Array


class Uncontrolled(Protocol):
    """A loss without a control."""

    def __call__(
        self, scores: Any, target: Any, *, where: Any = ..., weight: Any = ..., reduction: str = ...,
        ignore_index: int = ..., ignore_empty: bool = ...,
    ) -> jax.Array:  # fmt: skip
        """Return the loss."""
        ...


class WithLam(Protocol):
    """A loss with the control lam."""

    def __call__(
        self, scores: Any, target: Any, *, lam: Control = ..., where: Any = ..., weight: Any = ...,
        reduction: str = ..., ignore_index: int = ..., ignore_empty: bool = ...,
    ) -> jax.Array:  # fmt: skip
        """Return the loss."""
        ...


class WithQ(Protocol):
    """A loss with the control q."""

    def __call__(
        self, scores: Any, target: Any, *, q: Control = ..., where: Any = ..., weight: Any = ...,
        reduction: str = ..., ignore_index: int = ..., ignore_empty: bool = ...,
    ) -> jax.Array:  # fmt: skip
        """Return the loss."""
        ...


class WithAlpha(Protocol):
    """A loss with the control alpha."""

    def __call__(
        self, scores: Any, target: Any, *, alpha: Control = ..., where: Any = ..., weight: Any = ...,
        reduction: str = ..., ignore_index: int = ..., ignore_empty: bool = ...,
    ) -> jax.Array:  # fmt: skip
        """Return the loss."""
        ...


OPTIONS = {"where": None, "weight": None, "reduction": "mean", "ignore_index": -100, "ignore_empty": False}


def _made(name: str) -> Any:
    """The function of a row."""
    row = LOSSES[name]
    own = {row.control: row.default} if row.control else {}

    def call(given: Mapping[str, Any]) -> jax.Array:
        control = given[row.control] if row.control else None
        return apply(name, given["scores"], given["target"], control, *(given[option] for option in OPTIONS))

    return made(f"{name}_loss", loss_doc(row, JAX), ["scores", "target"], {**own, **OPTIONS}, call)


def __getattr__(name: str) -> Any:
    if name.removesuffix("_loss") not in LOSSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _made(name.removesuffix("_loss"))


softmax_log_loss: Uncontrolled = _made("softmax_log")
sparsemax_huber_loss: WithLam = _made("sparsemax_huber")
sparsegen_hinge_loss: WithLam = _made("sparsegen_hinge")
sparsehourglass_hinge_loss: WithQ = _made("sparsehourglass_hinge")
entmax_loss: WithAlpha = _made("entmax")
