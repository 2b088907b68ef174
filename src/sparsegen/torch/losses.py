"""The losses on torch tensors, differentiable in scores and controls, and as modules.

Arguments and edge cases are those of :mod:`sparsegen`. Targets are tensors (dense or sparse) or SciPy sparse matrices.
Their values are checked for plain CPU tensors; on other devices and inside compiled code looking would make torch wait,
so a row whose target is none (no label, a label on a hidden entry) gives a NaN loss. The loss has the scores' dtype,
and is float32 for float16 and bfloat16.

Functions and modules are made from the table, one for each row. Those named here are known to editors; a row without a
line is a function all the same.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from sparsegen._table import checks
from sparsegen._table.controls import LOSS_CONDITIONS, control_number
from sparsegen._table.losses import LOSSES, Loss
from sparsegen._table.prose import TORCH, loss_doc, loss_module_doc
from sparsegen.torch._losses import apply

Control = float | Tensor


class Uncontrolled(Protocol):
    """A loss without a control."""

    def __call__(
        self, scores: Tensor, target: Any, *, mask: Tensor | None = ..., weight: Any = ..., reduction: str = ...,
        ignore_index: int = ..., ignore_empty: bool = ...,
    ) -> Tensor:  # fmt: skip
        """Return the loss."""
        ...


class WithLam(Protocol):
    """A loss with the control lam."""

    def __call__(
        self, scores: Tensor, target: Any, *, lam: Control = ..., mask: Tensor | None = ..., weight: Any = ...,
        reduction: str = ..., ignore_index: int = ..., ignore_empty: bool = ...,
    ) -> Tensor:  # fmt: skip
        """Return the loss."""
        ...


class WithQ(Protocol):
    """A loss with the control q."""

    def __call__(
        self, scores: Tensor, target: Any, *, q: Control = ..., mask: Tensor | None = ..., weight: Any = ...,
        reduction: str = ..., ignore_index: int = ..., ignore_empty: bool = ...,
    ) -> Tensor:  # fmt: skip
        """Return the loss."""
        ...


class WithAlpha(Protocol):
    """A loss with the control alpha."""

    def __call__(
        self, scores: Tensor, target: Any, *, alpha: Control = ..., mask: Tensor | None = ..., weight: Any = ...,
        reduction: str = ..., ignore_index: int = ..., ignore_empty: bool = ...,
    ) -> Tensor:  # fmt: skip
        """Return the loss."""
        ...


def _uncontrolled(row: Loss) -> Any:
    def f(
        scores: Tensor, target: Any, *, mask: Tensor | None = None, weight: Any = None, reduction: str = "mean",
        ignore_index: int = -100, ignore_empty: bool = False,
    ) -> Tensor:  # fmt: skip
        return apply(row.name, scores, target, None, mask, weight, reduction, ignore_index, ignore_empty)

    return f


def _with_lam(row: Loss) -> Any:
    def f(
        scores: Tensor, target: Any, *, lam: Any = row.default, mask: Tensor | None = None, weight: Any = None,
        reduction: str = "mean", ignore_index: int = -100, ignore_empty: bool = False,
    ) -> Tensor:  # fmt: skip
        return apply(row.name, scores, target, lam, mask, weight, reduction, ignore_index, ignore_empty)

    return f


def _with_q(row: Loss) -> Any:
    def f(
        scores: Tensor, target: Any, *, q: Any = row.default, mask: Tensor | None = None, weight: Any = None,
        reduction: str = "mean", ignore_index: int = -100, ignore_empty: bool = False,
    ) -> Tensor:  # fmt: skip
        return apply(row.name, scores, target, q, mask, weight, reduction, ignore_index, ignore_empty)

    return f


def _with_alpha(row: Loss) -> Any:
    def f(
        scores: Tensor, target: Any, *, alpha: Any = row.default, mask: Tensor | None = None, weight: Any = None,
        reduction: str = "mean", ignore_index: int = -100, ignore_empty: bool = False,
    ) -> Tensor:  # fmt: skip
        return apply(row.name, scores, target, alpha, mask, weight, reduction, ignore_index, ignore_empty)

    return f


_MAKERS = {"": _uncontrolled, "lam": _with_lam, "q": _with_q, "alpha": _with_alpha}


def _made(name: str) -> Any:
    """The function of a row, with what the row says of it."""
    row = LOSSES[name]
    f = _MAKERS[row.control](row)
    f.__name__ = f.__qualname__ = f"{name}_loss"
    f.__doc__ = loss_doc(row, TORCH)
    return f


def __getattr__(name: str) -> Any:
    if name.removesuffix("_loss") not in LOSSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _made(name.removesuffix("_loss"))


softmax_log_loss: Uncontrolled = _made("softmax_log")
sparsemax_huber_loss: WithLam = _made("sparsemax_huber")
entmax_loss: WithAlpha = _made("entmax")
sparsegen_hinge_loss: WithLam = _made("sparsegen_hinge")
sparsehourglass_hinge_loss: WithQ = _made("sparsehourglass_hinge")


class LossModule(nn.Module):
    """A loss with its options; the control, if it has one, is kept as it is given, and moves with the module."""

    row: Loss

    def __init__(
        self, *, reduction: str = "mean", ignore_index: int = -100, ignore_empty: bool = False, **control: Any
    ) -> None:
        super().__init__()
        checks.reduction_name(reduction)
        self.reduction, self.ignore_index, self.ignore_empty = reduction, ignore_index, ignore_empty
        key = self.row.control
        given = control.pop(key, self.row.default)
        if control:
            raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {next(iter(control))!r}")
        if isinstance(given, Tensor) and not isinstance(given, nn.Parameter):
            self.register_buffer(key, given)
        elif key:
            number = given if isinstance(given, nn.Parameter) else control_number(key, given, LOSS_CONDITIONS)
            setattr(self, key, number)

    def forward(self, scores: Tensor, target: Any, mask: Tensor | None = None, weight: Any = None) -> Tensor:
        """Return the loss of the scores."""
        control = getattr(self, self.row.control) if self.row.control else None
        options = self.reduction, self.ignore_index, self.ignore_empty
        return apply(self.row.name, scores, target, control, mask, weight, *options)

    def extra_repr(self) -> str:
        """Show the arguments."""
        control = getattr(self, self.row.control) if self.row.control else None
        shown = f"tensor{tuple(control.shape)}" if isinstance(control, Tensor) else control
        first = f"{self.row.control}={shown}, " if self.row.control else ""
        return f"{first}reduction={self.reduction!r}"


def _module(name: str) -> Any:
    """The module of a row."""
    row = LOSSES[name]
    title = "".join(word.title() for word in name.split("_")) + "Loss"
    doc = loss_module_doc(row, title)
    return type(title, (LossModule,), {"row": row, "__doc__": doc, "__module__": __name__})


SoftmaxLogLoss: type[LossModule] = _module("softmax_log")
SparsemaxHuberLoss: type[LossModule] = _module("sparsemax_huber")
EntmaxLoss: type[LossModule] = _module("entmax")
SparsegenHingeLoss: type[LossModule] = _module("sparsegen_hinge")
SparsehourglassHingeLoss: type[LossModule] = _module("sparsehourglass_hinge")
