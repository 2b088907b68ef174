"""`project`, `entmax` and whole maps for torch, with gradients: the eager ways, and which way a call takes.

:mod:`_route` is asked; :mod:`_operators` has what tracers and other devices see.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen._table.maps import Map
from sparsegen._table.radius import of_mean
from sparsegen.torch import _cpu, _plain
from sparsegen.torch._cpu import Control
from sparsegen.torch._operators import entmax_op, fit, project_op
from sparsegen.torch._route import all_plain, by_operator, eager, once, readable, to_onnx


class _Project(torch.autograd.Function):
    """The eager way with gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, radius: Tensor | float, dim: int, mask: Tensor | None) -> Tensor:
        if type(radius) is not float:
            p = _cpu.project(x, radius, dim, mask)
            ctx.given = dim, None
            ctx.save_for_backward(p, radius)
            return p
        ctx.given = dim, radius
        if _cpu.keeps_words(x, dim, mask):
            p, words = _cpu.project_words(x, radius)
            ctx.save_for_backward(*((p,) if words is None else (p, words)))
            return p
        p = _cpu.project(x, radius, dim, mask)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        (p, *rest), (dim, number) = ctx.saved_tensors, ctx.given
        if number is not None and dim == -1 and once(v):
            return _cpu.project_vjp_rows(p, v, number, rest[0] if rest else None), None, None, None
        radius = rest[0] if number is None else torch.tensor(number, dtype=torch.float64)
        want = ctx.needs_input_grad[1]
        grad, per_row = _cpu.project_vjp(p, v, radius, dim, want) if once(v) else _plain.vjp(p, v, radius, dim)
        return grad, fit(per_row, radius) if want and per_row is not None else None, None, None


class _Map(torch.autograd.Function):
    """The eager way with gradients for a map that is not the projection of its scores onto a given radius.

    `again` makes the same of scores and controls by operations that torch can differentiate twice.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, radius: Control, second: Control, m: Map, dim: int, mask: Tensor | None,
        again: Any,
    ) -> Tensor:  # fmt: skip
        p, found = _cpu.map_rows(z, m, radius, second, dim, mask, True)
        tensors = [t for t in (radius, second) if isinstance(t, Tensor)]
        ctx.given = m, dim, mask, again, *(None if isinstance(t, Tensor) else t for t in (radius, second))
        ctx.save_for_backward(z, p, found, *tensors)
        return p

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        z, p, found, *tensors = ctx.saved_tensors
        m, dim, mask, again, *numbers = ctx.given
        rest = iter(tensors)
        radius, second = (next(rest) if number is None else number for number in numbers)
        if not once(v):
            return *_differentiated(again, (z, radius, second), ctx.needs_input_grad[:3], v), None, None, None, None
        grad, *along = _cpu.map_vjp(z, p, v, m, radius, second, found, dim, mask, ctx.needs_input_grad[1:3])
        controls = (None if t is None else fit(t, control) for t, control in zip(along, (radius, second)))
        return grad, *controls, None, None, None, None


class _Learned(torch.autograd.Function):
    """The same for one control kept as exp(theta): one step of the graph, where operations on theta would be five."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, theta: Tensor, kept: float, told: tuple[float, float], m: Map, dim: int,
        mask: Tensor | None, again: Any,
    ) -> Tensor:  # fmt: skip
        p, found = _cpu.map_rows(z, m, *told, dim, mask, True)
        ctx.given = kept, told, m, dim, mask, again
        ctx.save_for_backward(z, theta, p, found)
        return p

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        (z, theta, p, found), (kept, told, m, dim, mask, again) = ctx.saved_tensors, ctx.given
        nothing = (None,) * 6
        if not once(v):
            return *_differentiated(again, (z, theta), ctx.needs_input_grad[:2], v), *nothing
        first = m.controls[0] in ("lam", "q")
        radius, second = told
        grad, *along = _cpu.map_vjp(z, p, v, m, radius, second, found, dim, mask, (first, not first))
        rows = along[0] if first else along[1]
        assert rows is not None  # asked for
        return grad, (rows.sum() * kept).to(theta.dtype), *nothing


def learned(
    z: Tensor, theta: Tensor, kept: float, told: tuple[float, float], m: Map, dim: int, mask: Tensor | None, again: Any
) -> Tensor | None:
    """A map whose control exp(theta) is the number `kept`, differentiable in both; None where there is no kernel."""
    return _Learned.apply(z, theta, kept, told, m, dim, mask, again) if eager(z, theta, mask) else None


def _differentiated(f: Any, given: tuple[Any, ...], want: Any, v: Tensor) -> list[Tensor | None]:
    """Gradients of f in those that are wanted, differentiable again."""
    create = torch.is_grad_enabled()
    with torch.enable_grad():
        asked = [t for t, wanted in zip(given, want) if wanted]
        found = iter(torch.autograd.grad(f(*given), asked, v, create_graph=create, allow_unused=True))
    return [next(found) if wanted else None for wanted in want]


def map_rows(
    z: Tensor, radius: Control, second: Control, m: Map, dim: int, mask: Tensor | None, again: Any
) -> Tensor | None:
    """A map by one call of the kernel, differentiable in scores and controls; None where that cannot be."""
    if not (eager(z, radius, mask) and (type(second) is float or readable(second))):
        return None
    if torch.is_grad_enabled() and (z.requires_grad or _asks(radius) or _asks(second)):
        return _Map.apply(z, radius, second, m, dim, mask, again)
    return _cpu.map_rows(z, m, radius, second, dim, mask, False)[0]


def row_means(z: Tensor, dim: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and number of each row's entries that may be chosen, differentiable.

    A mean next to 0 has a sign on which gradients turn: where the kernel can read the scores, it has the digits that a
    plain sum would lose.
    """
    if not all_plain(z, mask):
        return _plain.row_means(z, dim, mask)
    exact, n = _cpu.row_means(z.detach(), dim, mask)
    if not (z.requires_grad and torch.is_grad_enabled()):
        return exact, n
    mean, _ = _plain.row_means(z, dim, mask)  # for its derivatives
    lost = exact - mean.detach()
    return mean + torch.where(lost.isfinite(), lost, 0.0), n


def _asks(control: Control) -> bool:
    return isinstance(control, Tensor) and control.requires_grad


def project(x: Tensor, radius: Tensor | float, dim: int, mask: Tensor | None) -> Tensor:
    """Project rows along `dim` (negative), differentiable in `x` and `radius`."""
    if eager(x, radius, mask):
        if (x.requires_grad or (isinstance(radius, Tensor) and radius.requires_grad)) and torch.is_grad_enabled():
            return _Project.apply(x, radius, dim, mask)
        return _cpu.project(x, radius, dim, mask)
    radius = _plain.beside(radius, x)
    if to_onnx():
        return _plain.project(x, radius, dim, mask)
    if by_operator(x):
        return project_op(x, radius, dim, mask)
    values = project_op(x.detach(), radius.detach(), dim, mask)
    return _plain.with_derivatives(x, radius, dim, values)


def project_mean(x: Tensor, q: Control, m: Map, dim: int, mask: Tensor | None) -> Tensor:
    """Project onto the radius a map makes of each row's mean, differentiable in `x` and `q`."""

    def by_radius(x: Tensor, q: Control, _: Any = None) -> Tensor:
        return project(x, of_mean(torch, m.radius, *row_means(x, dim, mask), q), dim, mask)

    p = map_rows(x, q, 1.0, m, dim, mask, by_radius)
    return by_radius(x, q) if p is None else p


class _Entmax(torch.autograd.Function):
    """The eager way with gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Control, dim: int, mask: Tensor | None) -> Tensor:
        p = _cpu.entmax(x, alpha, dim, mask)
        ctx.dim, ctx.alpha = dim, None if isinstance(alpha, Tensor) else alpha
        ctx.save_for_backward(*((p, alpha) if isinstance(alpha, Tensor) else (p,)))
        return p

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        p, *given = ctx.saved_tensors
        alpha, want = (given[0], ctx.needs_input_grad[1]) if given else (ctx.alpha, False)
        if once(v):
            grad, along = _cpu.entmax_vjp(p, v, alpha, ctx.dim, want)
        else:
            grad, along = _plain.entmax_slopes(p, v, _plain.beside(alpha, p), ctx.dim)
        return grad, fit(along, alpha) if want and along is not None else None, None, None


def entmax(x: Tensor, alpha: Control, dim: int, mask: Tensor | None) -> Tensor:
    """Entmax along `dim` (negative), differentiable in `x` and `alpha`."""
    if eager(x, alpha, mask):
        if (x.requires_grad or _asks(alpha)) and torch.is_grad_enabled():
            return _Entmax.apply(x, alpha, dim, mask)
        return _cpu.entmax(x, alpha, dim, mask)
    alpha = _plain.beside(alpha, x)
    if by_operator(x):
        return entmax_op(x, alpha, dim, mask)
    values = entmax_op(x.detach(), alpha.detach(), dim, mask)
    return _plain.entmax_derivatives(x, alpha, dim, values)
