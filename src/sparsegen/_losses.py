"""The losses on NumPy arrays: values, gradients in scores and controls, and what a solver needs.

Every loss is a function of rows; check, rows, reduction and shape are the same for all. The two hinge losses are one
piecewise linear function F(z, r) of the kernel (hinge.hpp) at the radius of their map.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sparsegen import _checks, _core
from sparsegen._arrays import as_array
from sparsegen._maps import HIDDEN, MAPS
from sparsegen._numpy import (
    STORAGE,
    _address,
    _control,
    _mask_rows,
    _means,
    _project,
    _scores,
    get_num_threads,
)
from sparsegen._targets import Target, read

hourglass_radius: Any = MAPS["sparsehourglass"].radius


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


def softmax_log(rows: Rows, target: Target, control: Any, smoothing: float, want_grad: bool) -> Evaluation:
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


def sparsemax_huber(rows: Rows, target: Target, lam: np.ndarray, smoothing: float, want_grad: bool) -> Evaluation:
    """(p - eta).(z - T (p + eta)/2) with p = sparsegen_lin(z, lam) and T = 1 - lam."""
    z, hidden = _wide(rows)
    radius = np.broadcast_to(1 - lam, len(z))
    p, _, _ = _project(np.where(hidden, HIDDEN, z), radius, 1, None, False)
    grad, squares = p.copy(), (p * p).sum(axis=1)
    grad[target.rows(), target.indices] -= target.eta
    value = (grad * (z - radius[:, None] * (p - grad / 2))).sum(axis=1)
    along = (squares - np.bincount(target.rows(), target.eta**2, len(z))) / 2
    return Evaluation(np.maximum(value, 0.0), grad, along, _tangent(value, grad, rows))


def hinge(rows: Rows, target: Target, radius: np.ndarray, smoothing: float, want_grad: bool) -> tuple[Any, Any, Any]:
    """F(z, radius) of each row, its slope in the radius, and its gradient in z (or None)."""
    z = rows.z
    n, k = z.shape
    value, slope = np.zeros(n), np.zeros(n)
    grad = np.zeros(z.shape, np.float64 if z.dtype == np.float64 else np.float32) if want_grad else None
    per_row, radius = np.ndim(radius) > 0, np.ascontiguousarray(radius, np.float64)
    if z.size:
        _core.hinge(
            _address(z), STORAGE[z.dtype], n, k, _address(rows.mask), _address(rows.offsets), _address(target.indptr),
            _address(target.indices), _address(radius), per_row, smoothing, _address(value), _address(slope),
            _address(grad), get_num_threads(),
        )  # fmt: skip
    return value, slope, grad


def sparsegen_hinge(rows: Rows, target: Target, lam: np.ndarray, smoothing: float, want_grad: bool) -> Evaluation:
    """F(z, T)/T with T = 1 - lam."""
    radius = 1 - lam
    value, slope, grad = hinge(rows, target, radius, smoothing, want_grad)
    value /= radius
    if grad is not None:
        grad /= np.reshape(radius, (-1, 1)).astype(grad.dtype)
    return Evaluation(value, grad, (value - slope) / radius, slope)


def sparsehourglass_hinge(rows: Rows, target: Target, q: np.ndarray, smoothing: float, want_grad: bool) -> Evaluation:
    """F(z, r(z)) with the radius of sparsehourglass, which a smoothing makes smooth where the sum is 0."""
    mean, count = _means(rows.z, 1, None if rows.mask is None else ~_hidden(rows))
    n = np.maximum(count, 1)
    with np.errstate(all="ignore"):
        total = mean * n
        sign = np.clip(total / smoothing, -1, 1) if smoothing > 0 else np.sign(total)
        height = (sign * total - smoothing * sign * sign / 2) / n  # |S|, smoothed, over n
        radius = hourglass_radius(np, height, n, np.broadcast_to(q, n.shape))
        lift, width = np.where(q == np.inf, 0.0, 1 / (1 + n * q)), 1 / n + q  # dr/d|S|
        bend = np.where(q == np.inf, 0.0, (1 / n - height) / (width * width))  # dr/dq
        flat = np.where(q == np.inf, 1.0, q / width)  # r where the sum is 0
    value, slope, grad = hinge(rows, target, radius, smoothing, want_grad)
    if grad is not None:
        with np.errstate(invalid="ignore"):
            push = (slope * sign * lift)[:, None].astype(grad.dtype)
            grad += np.where(_hidden(rows), grad.dtype.type(0), push)
    return Evaluation(value, grad, slope * bend, slope * flat)


@dataclass(frozen=True)
class Loss:
    """A row of the table of losses."""

    rows: Callable[[Rows, Target, np.ndarray, float, bool], Evaluation]
    mapping: str
    control: str = ""
    even: bool = False  # asks for equal shares of a row's labels
    smooth: bool = True


LOSSES: dict[str, Loss] = {
    "softmax_log": Loss(softmax_log, "softmax"),
    "sparsemax_huber": Loss(sparsemax_huber, "sparsegen_lin", "lam"),
    "sparsegen_hinge": Loss(sparsegen_hinge, "sparsegen_lin", "lam", even=True, smooth=False),
    "sparsehourglass_hinge": Loss(sparsehourglass_hinge, "sparsehourglass", "q", even=True, smooth=False),
}


def evaluate(
    loss: str, z: np.ndarray, target: Target, control: float = 0.0, smoothing: float = 0.0, want_grad: bool = True
) -> Evaluation:
    """Evaluate a loss on trusted rows: contiguous scores (N, K) and a target that was read."""
    return LOSSES[loss].rows(Rows(z, None, None), target, np.asarray(control, np.float64), smoothing, want_grad)


def _check_labels(target: Target, rows: Rows) -> None:
    at = target.rows(), target.indices
    hidden = _hidden(rows)[at]
    if hidden.any():
        _checks.hidden_label(int(at[0][hidden][0]), int(at[1][hidden][0]))


def _weights(weight: Any, lead: tuple[int, ...], counted: np.ndarray | None) -> np.ndarray:
    w = np.ones(lead) if weight is None else _checks.numbers("weight", as_array("weight", weight))
    _checks.broadcasts("weight", w.shape, lead, "the scores' shape without the class axis")
    wrong = ~((w >= 0) & (w < math.inf))
    if wrong.any():
        _checks.fail(ValueError, "weight", "finite and not negative", w[wrong].flat[0])
    w = np.broadcast_to(w, lead).reshape(-1)
    return w if counted is None else np.where(counted, w, 0.0)


def _sum_to(values: np.ndarray, given: Any, lead: tuple[int, ...]) -> Any:
    """Sum what was broadcast, so that the result has the shape of what was given."""
    shape = np.shape(given)
    values = values.reshape(lead)
    extra = tuple(range(len(lead) - len(shape)))
    ones = tuple(len(extra) + i for i, n in enumerate(shape) if n == 1)
    return values.sum(axis=extra + ones).reshape(shape) if lead else values[()]


def apply(
    name: str, scores: Any, target: Any, given: Any, mask: Any, weight: Any, reduction: str, ignore_index: int,
    ignore_empty: bool, return_grad: bool,
) -> Any:  # fmt: skip
    """Apply the loss called `name` in the table; `given` is its control."""
    loss, (z, mask) = LOSSES[name], _scores(scores, mask)
    _checks.axis_index("axis", -1, z.shape)
    _checks.reduction_name(reduction)
    shape, lead = z.shape, z.shape[:-1]
    control = _control(loss.control, given, lead, _checks.LOSS_CONDITIONS) if loss.control else np.zeros(())
    if control.ndim:
        control = np.broadcast_to(control, lead).reshape(-1)
    mask_rows, offsets = _mask_rows(mask if shape[-1] else None, shape, len(shape) - 1)
    rows = Rows(np.ascontiguousarray(z).reshape(math.prod(lead), shape[-1]), mask_rows, offsets)
    even = f"{name}_loss" if loss.even else ""
    y = read(target, shape, ignore_index=ignore_index, ignore_empty=ignore_empty, even=even)
    _check_labels(y, rows)
    w = _weights(weight, lead, y.counted)
    found = loss.rows(rows, y, control, 0.0, return_grad)
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
    return value, Gradients(grad.astype(z.dtype), **controls)
