"""The losses on torch tensors, differentiable in scores and controls, and as modules.

Arguments and edge cases are those of :mod:`sparsegen`. Targets are tensors (dense or sparse) or SciPy sparse matrices.
Their values are checked for plain CPU tensors; on other devices and inside compiled code looking would make torch wait,
so a row whose target is none (no label, a label on a hidden entry) gives a NaN loss. The loss has the scores' dtype,
and is float32 for float16 and bfloat16.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sparsegen import _checks
from sparsegen.torch._losses import apply


def softmax_log_loss(
    scores: Tensor, target: Any, *, mask: Tensor | None = None, weight: Any = None, reduction: str = "mean",
    ignore_index: int = -100, ignore_empty: bool = False,
) -> Tensor:  # fmt: skip
    """Kullback-Leibler divergence of softmax from the target. See :func:`sparsegen.softmax_log_loss`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.softmax_log_loss(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([[1, 1, 0, 0]]))
    tensor(0.3133)
    """
    return apply("softmax_log", scores, target, None, mask, weight, reduction, ignore_index, ignore_empty)


def sparsemax_huber_loss(
    scores: Tensor, target: Any, *, lam: Any = 0.0, mask: Tensor | None = None, weight: Any = None,
    reduction: str = "mean", ignore_index: int = -100, ignore_empty: bool = False,
) -> Tensor:  # fmt: skip
    """Loss whose gradient is sparsegen_lin(z, lam) - eta. See :func:`sparsegen.sparsemax_huber_loss`.

    >>> import torch, sparsegen.torch as sgt
    >>> z = torch.tensor([0.25, 1.0, 0.5], requires_grad=True)
    >>> sgt.sparsemax_huber_loss(z, torch.tensor(1)).backward()
    >>> z.grad
    tensor([ 0.0000, -0.2500,  0.2500])
    """
    return apply("sparsemax_huber", scores, target, lam, mask, weight, reduction, ignore_index, ignore_empty)


def sparsegen_hinge_loss(
    scores: Tensor, target: Any, *, lam: Any = 0.0, mask: Tensor | None = None, weight: Any = None,
    reduction: str = "mean", ignore_index: int = -100, ignore_empty: bool = False,
) -> Tensor:  # fmt: skip
    """Loss that is 0 exactly where sparsegen_lin(z, lam) is uniform on the labels.

    See :func:`sparsegen.sparsegen_hinge_loss`.

    >>> import torch, sparsegen.torch as sgt
    >>> z = torch.tensor([[0.5, 0.5, 0.25]], requires_grad=True)
    >>> sgt.sparsegen_hinge_loss(z, torch.tensor([[1, 1, 0]])).backward()
    >>> z.grad
    tensor([[-1., -1.,  2.]])
    """
    return apply("sparsegen_hinge", scores, target, lam, mask, weight, reduction, ignore_index, ignore_empty)


def sparsehourglass_hinge_loss(
    scores: Tensor, target: Any, *, q: Any = 1.0, mask: Tensor | None = None, weight: Any = None,
    reduction: str = "mean", ignore_index: int = -100, ignore_empty: bool = False,
) -> Tensor:  # fmt: skip
    """Loss that is 0 exactly where sparsehourglass(z, q) is uniform on the labels.

    See :func:`sparsegen.sparsehourglass_hinge_loss`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.sparsehourglass_hinge_loss(torch.tensor([0.5, 1.0, -0.25, 0.75]), torch.tensor([1, 0, 0, 1]))
    tensor(2.4500)
    """
    return apply("sparsehourglass_hinge", scores, target, q, mask, weight, reduction, ignore_index, ignore_empty)


class _Loss(nn.Module):
    """A loss with its options; the control, if it has one, is kept as it is given, and moves with the module."""

    name = ""
    key = ""

    def __init__(self, control: Any, reduction: str, ignore_index: int, ignore_empty: bool) -> None:
        super().__init__()
        _checks.reduction_name(reduction)
        self.reduction, self.ignore_index, self.ignore_empty = reduction, ignore_index, ignore_empty
        if isinstance(control, Tensor) and not isinstance(control, nn.Parameter):
            self.register_buffer(self.key, control)
        elif self.key:
            given = isinstance(control, nn.Parameter)
            number = control if given else _checks.control_number(self.key, control, _checks.LOSS_CONDITIONS)
            setattr(self, self.key, number)

    def forward(self, scores: Tensor, target: Any, mask: Tensor | None = None, weight: Any = None) -> Tensor:
        """Return the loss of the scores."""
        control = getattr(self, self.key) if self.key else None
        options = self.reduction, self.ignore_index, self.ignore_empty
        return apply(self.name, scores, target, control, mask, weight, *options)

    def extra_repr(self) -> str:
        """Show the arguments."""
        control = getattr(self, self.key) if self.key else None
        shown = f"tensor{tuple(control.shape)}" if isinstance(control, Tensor) else control
        first = f"{self.key}={shown}, " if self.key else ""
        return f"{first}reduction={self.reduction!r}"


class SoftmaxLogLoss(_Loss):
    """See :func:`sparsegen.torch.softmax_log_loss`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.SoftmaxLogLoss(reduction="sum")(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([[1, 1, 0, 0]]))
    tensor(0.3133)
    """

    name = "softmax_log"

    def __init__(self, *, reduction: str = "mean", ignore_index: int = -100, ignore_empty: bool = False) -> None:
        super().__init__(None, reduction, ignore_index, ignore_empty)


class SparsemaxHuberLoss(_Loss):
    """See :func:`sparsegen.torch.sparsemax_huber_loss`.

    >>> import sparsegen.torch as sgt
    >>> sgt.SparsemaxHuberLoss(lam=0.5)
    SparsemaxHuberLoss(lam=0.5, reduction='mean')
    """

    name, key = "sparsemax_huber", "lam"

    def __init__(
        self, *, lam: Any = 0.0, reduction: str = "mean", ignore_index: int = -100, ignore_empty: bool = False
    ) -> None:
        super().__init__(lam, reduction, ignore_index, ignore_empty)


class SparsegenHingeLoss(_Loss):
    """See :func:`sparsegen.torch.sparsegen_hinge_loss`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.SparsegenHingeLoss()(torch.tensor([[0.5, 0.5, 0.25]]), torch.tensor([[1, 1, 0]]))
    tensor(0.5000)
    """

    name, key = "sparsegen_hinge", "lam"

    def __init__(
        self, *, lam: Any = 0.0, reduction: str = "mean", ignore_index: int = -100, ignore_empty: bool = False
    ) -> None:
        super().__init__(lam, reduction, ignore_index, ignore_empty)


class SparsehourglassHingeLoss(_Loss):
    """See :func:`sparsegen.torch.sparsehourglass_hinge_loss`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.SparsehourglassHingeLoss(q=1.0)(torch.tensor([0.5, 1.0, -0.25, 0.75]), torch.tensor([1, 0, 0, 1]))
    tensor(2.4500)
    """

    name, key = "sparsehourglass_hinge", "q"

    def __init__(
        self, *, q: Any = 1.0, reduction: str = "mean", ignore_index: int = -100, ignore_empty: bool = False
    ) -> None:
        super().__init__(q, reduction, ignore_index, ignore_empty)
