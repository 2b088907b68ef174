"""The engine of plain operations: any device, and the differentiable formula for every transform torch has.

The recipe of the table on tensors, along any axis. Where no kernel can go (other devices, functorch levels,
forward-mode duals, double backward) these functions give the same answers from torch's own operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen._table import forms, plain
from sparsegen._table.recipe import hide as hide_over


def wide(x: Tensor) -> torch.dtype:
    """float64 where the device has it, else float32."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def hide(x: Tensor, mask: Tensor | None) -> Tensor:
    """`x` with -inf where the mask is False."""
    return hide_over(torch, x, mask)


def surely(condition: Any) -> bool:
    """Does a condition on sizes hold for certain? Of a size it does not know, a tracer would stop at the question."""
    if isinstance(condition, bool) and not torch.compiler.is_compiling():
        return condition
    from torch.fx.experimental import symbolic_shapes

    return getattr(symbolic_shapes, "guard_or_false", bool)(condition)  # torch 2.5 and 2.6 can only ask


def untouched(value: Tensor, control: Any) -> Tensor:
    """`value`, in which a control had no part: its gradient is 0 and not None, as for all inputs that torch uses."""
    return value + control.flatten()[:0].sum().to(value.dtype) if isinstance(control, Tensor) else value


def beside(control: Any, x: Tensor) -> Tensor:
    """A control as a tensor on the device of `x`."""
    return control if isinstance(control, Tensor) else torch.full((), control, dtype=wide(x), device=x.device)


def _widened(x: Tensor, dim: int) -> Tensor:
    """In the widest type, classes last."""
    return x.to(wide(x)).movedim(dim, -1)


def _stored(p: Tensor, x: Tensor, dim: int) -> Tensor:
    """Probabilities in the type of `x`, rounded once, its classes where they were; a positive one stays positive."""
    stored = p.to(x.dtype)
    tiny = torch.finfo(x.dtype).smallest_normal * torch.finfo(x.dtype).eps
    return torch.where((p > 0) & (stored == 0), tiny, stored).movedim(-1, dim).contiguous()


def project(x: Tensor, radius: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    """Project by sorting; no derivative. `radius` broadcasts to the rows."""
    if not x.numel():
        return torch.empty_like(x)
    u = _widened(hide(x, mask), dim)
    return _stored(plain.project(torch, u, radius.to(u.dtype)), x, dim)


def moving(radius: Tensor, like: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The radius beside the rows, 1 where the map is constant (0 or inf), and where it is not."""
    r, moves = plain.moving(torch, radius.to(like.dtype), like.movedim(dim, -1))
    return r.movedim(-1, dim), moves.movedim(-1, dim)


def with_derivatives(x: Tensor, radius: Tensor, dim: int, values: Tensor) -> Tensor:
    """Give `values`, the projection of `x`, their derivatives of every order in x and radius."""
    if surely(x.shape[dim] == 0):
        return values + untouched(x, radius)
    w = _widened(x, dim)
    chosen = values.movedim(dim, -1) > 0
    top = torch.where(chosen, w.detach(), -torch.inf).amax(-1, keepdim=True)
    r = radius.to(w.dtype)
    formula = plain.formula(torch, w, r, chosen, top)
    change = torch.where(plain.moving(torch, r, w)[1], formula - formula.detach(), 0.0)
    # Where the formula is not finite (a NaN row) its difference is NaN, as the values are.
    return values + change.movedim(-1, dim).to(values.dtype)


def entmax(x: Tensor, alpha: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    """Entmax by a search; no derivative. `alpha` broadcasts to the rows."""
    if not x.numel():
        return torch.empty_like(x)
    u = _widened(hide(x, mask), dim)
    done = torch.all if x.is_cpu else lambda there: False  # elsewhere looking would wait for the device
    return _stored(plain.entmax(torch, u, alpha.to(u.dtype), plain.until(done)), x, dim)


def entmax_derivatives(x: Tensor, alpha: Tensor, dim: int, values: Tensor) -> Tensor:
    """Give `values`, the entmax of `x`, their derivatives in x and alpha."""
    if surely(x.shape[dim] == 0):
        return values + untouched(x, alpha)
    w, p = _widened(x, dim), _widened(values, dim)
    top = torch.where(p > 0, w.detach(), -torch.inf).amax(-1, keepdim=True)
    formula = plain.entmax_formula(torch, w, alpha.to(w.dtype), p, top, torch.Tensor.detach)
    change = torch.where(p > 0, formula - formula.detach(), p - p)  # NaN rows stay NaN
    return values + change.movedim(-1, dim).to(values.dtype)


def entmax_slopes(p: Tensor, v: Tensor, alpha: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Gradients of scores and alpha (one per row) of entmax, differentiable again in p, v and alpha."""
    w = _widened(p, dim)
    grad, along = plain.entmax_vjp(torch, w, _widened(v, dim), alpha.to(w.dtype))
    return grad.movedim(-1, dim).to(p.dtype), along


def entmax_vjp(p: Tensor, v: Tensor, alpha: Tensor, dim: int, want: bool) -> tuple[Tensor, Tensor]:
    """The same as an engine gives it: contiguous, and wide for alpha."""
    grad, along = entmax_slopes(p, v, alpha, dim)
    return grad.contiguous(), along


def vjp(p: Tensor, v: Tensor, radius: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Gradients of points and radius (one per row), differentiable again in p, v and radius."""
    grad, along = plain.vjp(torch, p.movedim(dim, -1), v.movedim(dim, -1), radius.to(p.dtype))
    return grad.movedim(-1, dim), along


def project_vjp(p: Tensor, v: Tensor, radius: Tensor, dim: int, want_radius: bool) -> tuple[Tensor, Tensor]:
    """The same as an engine gives it: contiguous, and wide for the radius."""
    grad, along = vjp(p, v, radius, dim)
    return grad.contiguous(), along.to(wide(p))


def row_means(x: Tensor, dim: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and number of each row's entries that may be chosen, differentiable."""
    hidden = (hide(x, mask) == -torch.inf).movedim(dim, -1)
    return plain.means(torch, _widened(x, dim), hidden)


def hinge_labels(z: Tensor, radius: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """F(z, radius) of the hinge losses, its slope in the radius and its gradient in z, by sorting; no derivative."""
    x = hide(z, mask).to(wide(z))

    def search(rows: Tensor, values: Tensor, side: str) -> Tensor:
        return torch.searchsorted(rows, values, side=side)

    def take(rows: Tensor, places: Tensor) -> Tensor:
        return rows.gather(-1, places)

    radius = radius.to(x.dtype).expand(x.shape[:-1])
    value, slope, grad = forms.hinge(torch, x, radius, labels, search, take)
    return value, slope, grad.to(torch.float64 if z.dtype == torch.float64 else torch.float32)
