"""The losses on NumPy arrays: values, gradients in scores and controls, and what a solver needs.

Every loss is a function of rows; check, rows, reduction and shape are the same for all. The hinge losses are one
piecewise linear function F(z, r) of the kernel (hinge.hpp) at the radius of their map.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike

from sparsegen import _core
from sparsegen._table import checks
from sparsegen._table.arrays import as_array
from sparsegen._table.controls import LOSS_CONDITIONS
from sparsegen._table.losses import LOSSES, Loss
from sparsegen._table.maps import HIDDEN
from sparsegen._table.plain import tsallis
from sparsegen._table.prose import NUMPY, loss_doc
from sparsegen._table.radius import HOURGLASS, blend, blend_slopes
from sparsegen._table.targets import Target, read
from sparsegen.numpy import _kernel
from sparsegen.numpy._inputs import read_control, read_scores
from sparsegen.numpy._kernel import address
from sparsegen.numpy.threads import get_num_threads

Value = np.float64 | np.ndarray


class Gradients(NamedTuple):
    """Derivatives of a loss; those of controls have the controls' shape.

    >>> import sparsegen as sg
    >>> loss, grad = sg.sparsegen_hinge_loss([0.5, 0.25, -0.25], 0, return_grad=True)
    >>> loss, grad.scores, grad.lam
    (np.float64(1.0), array([-2.,  1.,  1.]), np.float64(-1.0))
    """

    scores: np.ndarray
    """In the scores, of their shape."""
    lam: Any = None
    """In lam, for losses that have it."""
    q: Any = None
    """In q, for losses that have it."""
    alpha: Any = None
    """In alpha, for losses that have it."""


class Rows(NamedTuple):
    """Scores (N, K) ready to be scored: contiguous, with a mask for each row."""

    z: np.ndarray
    mask: np.ndarray | None
    offsets: np.ndarray | None


class Evaluation(NamedTuple):
    """One loss of each row with its derivatives there; the convex solver's view of a loss."""

    value: np.ndarray
    grad: np.ndarray | None
    along: np.ndarray
    """Derivative in the control."""
    dual: np.ndarray
    """d such that L(z') >= grad . z' + d for all z': minus (a bound on) the conjugate at grad."""


def _hidden(rows: Rows) -> np.ndarray:
    hidden = rows.z == HIDDEN
    if rows.mask is None:
        return hidden
    if rows.offsets is None:
        return hidden | ~rows.mask.reshape(rows.z.shape)
    n = rows.z.shape[1]
    return hidden | ~rows.mask.reshape(-1, n)[rows.offsets.reshape(-1) // n]


def _wide(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Scores in float64 above the row's largest, 0 where hidden; and what is hidden."""
    hidden = _hidden(rows)
    z = np.where(hidden, HIDDEN, rows.z.astype(np.float64))
    top = np.max(z, axis=1, keepdims=True, initial=HIDDEN)
    with np.errstate(invalid="ignore"):
        return np.where(hidden, 0.0, z - np.where(top == HIDDEN, 0.0, top)), hidden


def _tangent(value: np.ndarray, grad: np.ndarray, rows: Rows) -> np.ndarray:
    """What is left of a convex loss below its tangent at 0; exact where value and gradient belong together."""
    with np.errstate(invalid="ignore"):
        return value - (grad * np.where(_hidden(rows), 0.0, rows.z)).sum(axis=1)


def _log(loss: Loss, rows: Rows, target: Target, control: Any, smoothing: float, want_grad: bool) -> Evaluation:
    """KL divergence of softmax(z) from eta: logsumexp(z) - eta.z + sum eta log eta."""
    z, hidden = _wide(rows)
    with np.errstate(invalid="ignore"):
        p = np.where(hidden, 0.0, np.exp(z))
        total = p.sum(axis=1)
        each = target.eta * (np.log(target.eta) - z[target.rows(), target.indices])
    value = np.bincount(target.rows(), each, len(z)) + np.log(np.where(total == 0, 1.0, total))
    p /= np.where(total == 0, 1.0, total)[:, None]
    p[target.rows(), target.indices] -= target.eta
    return Evaluation(np.maximum(value, 0.0), p, np.zeros(len(z)), _tangent(value, p, rows))


def _huber(loss: Loss, rows: Rows, target: Target, control: Any, smoothing: float, want_grad: bool) -> Evaluation:
    """(p - eta).(z - r (p + eta)/2) with p the map of z."""
    z, hidden = _wide(rows)
    rule = loss.map.radius
    radius = np.broadcast_to(rule.value(np, control), len(z))
    p = _kernel.project(np.where(hidden, HIDDEN, z), radius, 1, None)
    grad, squares = p.copy(), (p * p).sum(axis=1)
    grad[target.rows(), target.indices] -= target.eta
    value = (grad * (z - radius[:, None] * (p - grad / 2))).sum(axis=1)
    along = rule.slope * (np.bincount(target.rows(), target.eta**2, len(z)) - squares) / 2
    return Evaluation(np.maximum(value, 0.0), grad, along, _tangent(value, grad, rows))


def _tsallis(loss: Loss, rows: Rows, target: Target, control: Any, smoothing: float, want_grad: bool) -> Evaluation:
    """(p - eta).z + Omega(eta) - Omega(p) with p the map of z; in alpha, only Omega moves."""
    z, hidden = _wide(rows)
    alpha = np.broadcast_to(control, len(z))
    p, _ = _kernel.map_rows(np.where(hidden, HIDDEN, z), loss.map.code, 1.0, alpha, 1, None)
    grad = p.copy()
    grad[target.rows(), target.indices] -= target.eta
    with np.errstate(all="ignore"):
        here, here_along = (each.sum(axis=1) for each in tsallis(np, p, alpha[:, None]))
        there, there_along = tsallis(np, target.eta, alpha[target.rows()])
        value = (grad * z).sum(axis=1) + np.bincount(target.rows(), there, len(z)) - here
        along = np.bincount(target.rows(), there_along, len(z)) - here_along
    return Evaluation(np.maximum(value, 0.0), grad, along, _tangent(value, grad, rows))


def _hinges(rows: Rows, target: Target, radius: Any, smoothing: float, want_grad: bool) -> tuple[Any, Any, Any]:
    """F(z, radius) of each row, its slope in the radius, and its gradient in z (or None)."""
    z = rows.z
    n, k = z.shape
    value, slope = np.zeros(n), np.zeros(n)
    grad = np.zeros(z.shape, np.float64 if z.dtype == np.float64 else np.float32) if want_grad else None
    per_row, radius = np.ndim(radius) > 0, np.ascontiguousarray(radius, np.float64)
    if z.size:
        _core.hinge(
            address(z), _kernel.STORAGE[z.dtype], n, k, address(rows.mask), address(rows.offsets),
            address(target.indptr), address(target.indices), address(radius), per_row, smoothing, address(value),
            address(slope), address(grad), get_num_threads(),
        )  # fmt: skip
    return value, slope, grad


def _hinge(loss: Loss, rows: Rows, target: Target, control: Any, smoothing: float, want_grad: bool) -> Evaluation:
    """F at the radius of the map, over that radius where the loss is scaled."""
    rule = loss.map.radius
    if rule.of == "mean":
        return _hinge_of_mean(loss, rows, target, control, smoothing, want_grad)
    radius = np.asarray(rule.value(np, control), np.float64)
    value, slope, grad = _hinges(rows, target, radius, smoothing, want_grad)
    by = radius if loss.scaled else np.ones(())
    value /= by
    if grad is not None:
        grad /= np.reshape(by, (-1, 1)).astype(grad.dtype)
    along = slope / by - (value / radius if loss.scaled else 0.0)
    return Evaluation(value, grad, rule.slope * along, slope * radius / by)


def _hinge_of_mean(loss: Loss, rows: Rows, target: Target, q: Any, smoothing: float, want_grad: bool) -> Evaluation:
    """F(z, r(z)) with a radius of the row's mean, which a smoothing makes smooth where that has a kink."""
    mean, count = _kernel.means(rows.z, 1, None if rows.mask is None else ~_hidden(rows))
    n, q = np.maximum(count, 1), np.asarray(q, np.float64)
    assert loss.map.radius.height is not None  # rules of the mean have one
    with np.errstate(all="ignore"):
        height, turn = loss.map.radius.height(np, mean)
        if smoothing > 0 and loss.map.radius is HOURGLASS:  # |S|, smoothed, over n
            turn = np.clip(mean * n / smoothing, -1, 1)
            height = (turn * mean * n - smoothing * turn * turn / 2) / n
        radius = blend(np, height, n, np.broadcast_to(q, n.shape))
        lift, bend = blend_slopes(np, height, n, q)
        flat = blend(np, np.zeros_like(height), n, np.broadcast_to(q, n.shape))  # the radius where the mean is 0
    value, slope, grad = _hinges(rows, target, radius, smoothing, want_grad)
    if grad is not None:
        with np.errstate(invalid="ignore"):
            push = (slope * turn * lift / n)[:, None].astype(grad.dtype)
            grad += np.where(_hidden(rows), grad.dtype.type(0), push)
    return Evaluation(value, grad, slope * bend, slope * flat)


FORMS = {"log": _log, "huber": _huber, "tsallis": _tsallis, "hinge": _hinge}


def evaluate(
    loss: str, z: np.ndarray, target: Target, control: float = 0.0, smoothing: float = 0.0, want_grad: bool = True
) -> Evaluation:
    """Evaluate a loss on trusted rows: contiguous scores (N, K) and a target that was read."""
    row = LOSSES[loss]
    rows = Rows(z, None, None)
    return FORMS[row.form](row, rows, target, np.asarray(control, np.float64), smoothing, want_grad)


def _check_labels(target: Target, rows: Rows) -> None:
    at = target.rows(), target.indices
    hidden = _hidden(rows)[at]
    if hidden.any():
        checks.hidden_label(int(at[0][hidden][0]), int(at[1][hidden][0]))


def _weights(weight: Any, lead: tuple[int, ...], counted: np.ndarray | None) -> np.ndarray:
    w = np.ones(lead) if weight is None else checks.numbers("weight", as_array("weight", weight))
    checks.broadcasts("weight", w.shape, lead, "the scores' shape without the class axis")
    wrong = ~((w >= 0) & (w < math.inf))
    if wrong.any():
        checks.fail(ValueError, "weight", "finite and not negative", w[wrong].flat[0])
    w = np.broadcast_to(w, lead).reshape(-1)
    return w if counted is None else np.where(counted, w, 0.0)


def _sum_to(values: np.ndarray, given: Any, lead: tuple[int, ...]) -> Any:
    """Sum what was broadcast, so that the result has the shape of what was given."""
    shape = np.shape(given)
    values = values.reshape(lead)
    extra = tuple(range(len(lead) - len(shape)))
    ones = tuple(len(extra) + i for i, n in enumerate(shape) if n == 1)
    return values.sum(axis=extra + ones).reshape(shape) if lead else values[()]


def _rows(scores: Any, mask: Any) -> tuple[Rows, tuple[int, ...]]:
    """The caller's scores as rows, and their shape."""
    z, mask = read_scores(scores, mask)
    checks.axis_index("axis", -1, z.shape)
    shape = z.shape
    mask_rows, offsets = _kernel.mask_rows(mask if shape[-1] else None, shape, len(shape) - 1)
    return Rows(np.ascontiguousarray(z).reshape(math.prod(shape[:-1]), shape[-1]), mask_rows, offsets), shape


def apply(
    name: str, scores: Any, target: Any, given: Any, mask: Any, weight: Any, reduction: str, ignore_index: int,
    ignore_empty: bool, return_grad: bool,
) -> Any:  # fmt: skip
    """Apply the loss called `name` in the table; `given` is its control."""
    loss = LOSSES[name]
    checks.reduction_name(reduction)
    rows, shape = _rows(scores, mask)
    lead = shape[:-1]
    control = np.asarray(read_control(loss.control, given, lead, LOSS_CONDITIONS)) if loss.control else np.zeros(())
    if control.ndim:
        control = np.broadcast_to(control, lead).reshape(-1)
    even = f"{name}_loss" if loss.even else ""
    y = read(target, shape, ignore_index=ignore_index, ignore_empty=ignore_empty, even=even)
    _check_labels(y, rows)
    w = _weights(weight, lead, y.counted)
    found = FORMS[loss.form](loss, rows, y, control, 0.0, return_grad)
    total = w.sum() if reduction == "mean" else 1.0
    w = w / (total if total > 0 else 1.0)
    value = np.where(w > 0, found.value, 0.0) * w
    value = value.reshape(lead)[()] if reduction == "none" else value.sum()
    if not return_grad:
        return value
    assert found.grad is not None  # asked for
    with np.errstate(invalid="ignore"):
        grad = np.where(w[:, None] > 0, found.grad * w[:, None], 0.0).reshape(shape)
        along = np.where(w > 0, found.along * w, 0.0)
    controls = {loss.control: _sum_to(along, given, lead)} if loss.control else {}
    return value, Gradients(grad.astype(rows.z.dtype), **controls)


class Uncontrolled(Protocol):
    """A loss without a control."""

    @overload
    def __call__(
        self, scores: ArrayLike, target: Any, *, mask: ArrayLike | None = ..., weight: ArrayLike | None = ...,
        reduction: str = ..., ignore_index: int = ..., ignore_empty: bool = ..., return_grad: Literal[False] = ...,
    ) -> Value: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: ArrayLike, target: Any, *, mask: ArrayLike | None = ..., weight: ArrayLike | None = ...,
        reduction: str = ..., ignore_index: int = ..., ignore_empty: bool = ..., return_grad: Literal[True],
    ) -> tuple[Value, Gradients]: ...  # fmt: skip


class WithLam(Protocol):
    """A loss with the control lam."""

    @overload
    def __call__(
        self, scores: ArrayLike, target: Any, *, lam: ArrayLike = ..., mask: ArrayLike | None = ...,
        weight: ArrayLike | None = ..., reduction: str = ..., ignore_index: int = ..., ignore_empty: bool = ...,
        return_grad: Literal[False] = ...,
    ) -> Value: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: ArrayLike, target: Any, *, lam: ArrayLike = ..., mask: ArrayLike | None = ...,
        weight: ArrayLike | None = ..., reduction: str = ..., ignore_index: int = ..., ignore_empty: bool = ...,
        return_grad: Literal[True],
    ) -> tuple[Value, Gradients]: ...  # fmt: skip


class WithQ(Protocol):
    """A loss with the control q."""

    @overload
    def __call__(
        self, scores: ArrayLike, target: Any, *, q: ArrayLike = ..., mask: ArrayLike | None = ...,
        weight: ArrayLike | None = ..., reduction: str = ..., ignore_index: int = ..., ignore_empty: bool = ...,
        return_grad: Literal[False] = ...,
    ) -> Value: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: ArrayLike, target: Any, *, q: ArrayLike = ..., mask: ArrayLike | None = ...,
        weight: ArrayLike | None = ..., reduction: str = ..., ignore_index: int = ..., ignore_empty: bool = ...,
        return_grad: Literal[True],
    ) -> tuple[Value, Gradients]: ...  # fmt: skip


class WithAlpha(Protocol):
    """A loss with the control alpha."""

    @overload
    def __call__(
        self, scores: ArrayLike, target: Any, *, alpha: ArrayLike = ..., mask: ArrayLike | None = ...,
        weight: ArrayLike | None = ..., reduction: str = ..., ignore_index: int = ..., ignore_empty: bool = ...,
        return_grad: Literal[False] = ...,
    ) -> Value: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: ArrayLike, target: Any, *, alpha: ArrayLike = ..., mask: ArrayLike | None = ...,
        weight: ArrayLike | None = ..., reduction: str = ..., ignore_index: int = ..., ignore_empty: bool = ...,
        return_grad: Literal[True],
    ) -> tuple[Value, Gradients]: ...  # fmt: skip


def _uncontrolled(row: Loss) -> Any:
    def f(
        scores: Any, target: Any, *, mask: Any = None, weight: Any = None, reduction: str = "mean",
        ignore_index: int = -100, ignore_empty: bool = False, return_grad: bool = False,
    ) -> Any:  # fmt: skip
        return apply(row.name, scores, target, None, mask, weight, reduction, ignore_index, ignore_empty, return_grad)

    return f


def _with_lam(row: Loss) -> Any:
    def f(
        scores: Any, target: Any, *, lam: Any = row.default, mask: Any = None, weight: Any = None,
        reduction: str = "mean", ignore_index: int = -100, ignore_empty: bool = False, return_grad: bool = False,
    ) -> Any:  # fmt: skip
        return apply(row.name, scores, target, lam, mask, weight, reduction, ignore_index, ignore_empty, return_grad)

    return f


def _with_q(row: Loss) -> Any:
    def f(
        scores: Any, target: Any, *, q: Any = row.default, mask: Any = None, weight: Any = None,
        reduction: str = "mean", ignore_index: int = -100, ignore_empty: bool = False, return_grad: bool = False,
    ) -> Any:  # fmt: skip
        return apply(row.name, scores, target, q, mask, weight, reduction, ignore_index, ignore_empty, return_grad)

    return f


def _with_alpha(row: Loss) -> Any:
    def f(
        scores: Any, target: Any, *, alpha: Any = row.default, mask: Any = None, weight: Any = None,
        reduction: str = "mean", ignore_index: int = -100, ignore_empty: bool = False, return_grad: bool = False,
    ) -> Any:  # fmt: skip
        return apply(row.name, scores, target, alpha, mask, weight, reduction, ignore_index, ignore_empty, return_grad)

    return f


_MAKERS = {"": _uncontrolled, "lam": _with_lam, "q": _with_q, "alpha": _with_alpha}


def _made(name: str) -> Any:
    """The function of a row, with what the row says of it."""
    row = LOSSES[name]
    f = _MAKERS[row.control](row)
    f.__name__ = f.__qualname__ = f"{name}_loss"
    f.__doc__ = loss_doc(row, NUMPY)
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
