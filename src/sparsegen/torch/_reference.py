"""Projection in plain torch: any device, and the differentiable formula for every transform torch has.

Where the kernel cannot go (other devices, functorch levels, forward-mode duals, double backward) these functions give
the same answers from torch's own operations.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def wide(x: Tensor) -> torch.dtype:
    """float64 where the device has it, else float32."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def hide(x: Tensor, mask: Tensor | None) -> Tensor:
    """`x` with -inf where the mask is False."""
    return x if mask is None else torch.where(mask, x, torch.full((), -torch.inf, dtype=x.dtype, device=x.device))


def surely(condition: Any) -> bool:
    """Does a condition on sizes hold for certain? Of a size it does not know, a tracer would stop at the question."""
    if isinstance(condition, bool) and not torch.compiler.is_compiling():
        return condition
    from torch.fx.experimental import symbolic_shapes

    return getattr(symbolic_shapes, "guard_or_false", bool)(condition)  # torch 2.5 and 2.6 can only ask


def untouched(value: Tensor, control: Any) -> Tensor:
    """`value`, in which a control had no part: its gradient is 0 and not None, as for all inputs that torch uses."""
    return value + control.flatten()[:0].sum().to(value.dtype) if isinstance(control, Tensor) else value


def _uniform(chosen: Tensor, dim: int) -> Tensor:
    return chosen / chosen.sum(dim, keepdim=True).clamp(min=1)


def _column(radius: Tensor, like: Tensor, dim: int) -> Tensor:
    """One radius a row, with an axis of size 1 where `like` has its classes."""
    shape = list(like.shape)
    del shape[dim]
    return radius.to(like.dtype).expand(shape).unsqueeze(dim)


def project_values(x: Tensor, radius: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    """Project by sorting; no derivative. `radius` broadcasts to the rows."""
    u = hide(x, mask).to(wide(x))
    r = _column(radius, u, dim)
    top = u.amax(dim, keepdim=True)
    empty = top == -torch.inf
    broken = torch.isnan(top) | (top == torch.inf) | torch.isnan(r) | (r < 0)
    u = torch.where(empty, 0.0, u - top)
    plain = (r > 0) & (r < torch.inf)
    s = torch.where(plain, r, 1.0)
    ordered = (u / s).clamp(min=-1).sort(dim, descending=True).values
    sums = ordered.cumsum(dim)
    n = torch.ones_like(sums).cumsum(dim)
    k = (1 + n * ordered > sums).sum(dim, keepdim=True).clamp(min=1)  # none is in a row with NaN
    tau = (sums.gather(dim, k - 1) - 1) / k
    t = u / s - tau
    chosen = t > 0
    left = (torch.where(chosen, t, 0.0).sum(dim, keepdim=True) - 1) / chosen.sum(dim, keepdim=True).clamp(min=1)
    p = torch.where(chosen, (t - left).clamp(min=0), 0.0)
    p = torch.where(r == 0, _uniform((u == 0).to(u.dtype), dim), p)
    p = torch.where(r == torch.inf, _uniform((u > -torch.inf).to(u.dtype), dim), p)
    p = torch.where(empty, 0.0, p)
    return torch.where(broken, torch.nan, p).to(x.dtype)


def spread(radius: Tensor, like: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The radius as a column beside the rows, 1 where the map is constant (0 or inf), and where it is not."""
    r = _column(radius, like, dim)
    moves = (r != 0) & (r != torch.inf)
    return torch.where(moves, r, 1.0), moves


def project(x: Tensor, radius: Tensor, dim: int, values: Tensor) -> Tensor:
    """Give `values`, the projection of `x`, their derivatives of every order in x and radius.

    On the support the projection is (x - mean x)/r + 1/n, means over its n entries: a formula torch can differentiate.
    """
    if surely(x.shape[dim] == 0):
        return values + x
    chosen = values > 0
    n = chosen.sum(dim, keepdim=True).clamp(min=1)
    top = torch.where(chosen, x.detach(), -torch.inf).amax(dim, keepdim=True)  # differences keep their digits
    w = torch.where(chosen, x - torch.where(top > -torch.inf, top, 0.0), 0.0).to(wide(x))
    r, moves = spread(radius, w, dim)
    formula = torch.where(chosen, (w - w.sum(dim, keepdim=True) / n) / r, 0.0)
    change = torch.where(moves, formula - formula.detach(), 0.0)
    # Where the formula is not finite (a NaN row) its difference is NaN, as the values are.
    return values + change.to(values.dtype)


def vjp(p: Tensor, v: Tensor, radius: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Gradients of points and radius (one a row), differentiable again in p, v and radius."""
    chosen = p > 0
    n = chosen.sum(dim, keepdim=True).clamp(min=1)
    v = torch.where(chosen, v, 0.0)
    w = torch.where(chosen, v - v.sum(dim, keepdim=True) / n, 0.0)
    r, moves = spread(radius, p, dim)
    grad = torch.where(moves, w / r, 0.0)
    along = torch.where(moves, -(w * p).sum(dim, keepdim=True) / r, 0.0)
    broken = torch.isnan(p).any(dim, keepdim=True)
    return torch.where(broken, torch.nan, grad), torch.where(broken, torch.nan, along).squeeze(dim)


def row_means(x: Tensor, dim: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and number of each row's entries that may be chosen, differentiable."""
    hidden = hide(x, mask) == -torch.inf
    count = (~hidden).sum(dim).to(wide(x))
    # Scaled by a power of two the sum cannot overflow, and scores that add up to 0 still do.
    size = x.shape[dim]
    scale = 2.0 ** -(math.ceil(math.log2(max(size, 1))) if isinstance(size, int) else 31)
    z = torch.where(hidden, 0.0, x).to(wide(x))
    return (z * scale).sum(dim) / (count.clamp(min=1) * scale), count


def hinge_values(z: Tensor, radius: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """F(z, radius) of the hinge losses, its slope in the radius and its gradient in z, by sorting; no derivative."""
    hidden = hide(z, mask) == -torch.inf
    broken = (labels & hidden).any(-1) | ((torch.isnan(z) | (z == torch.inf)) & ~hidden).any(-1)
    broken = broken | ~torch.isfinite(radius.expand(broken.shape))
    x = torch.where(hidden, 0.0, z).to(wide(z))
    base = torch.where(labels, x, torch.inf).amin(-1, keepdim=True)
    x = x - torch.where(torch.isfinite(base), base, 0.0)
    size = labels.sum(-1, keepdim=True)
    margin = radius.to(x.dtype).expand(broken.shape).unsqueeze(-1) / size.clamp(min=1)
    u = torch.where(labels, x, torch.inf).sort(-1).values  # labels first
    found = torch.arange(u.shape[-1], device=u.device) < size
    total = torch.nn.functional.pad(torch.where(found, u, 0.0).cumsum(-1), (1, 0))
    gap, rank = torch.where(found[..., 1:], u.diff(dim=-1), 0.0), torch.arange(1, u.shape[-1], device=u.device)
    pairs = 2 * (rank * (size - rank) * gap).sum(-1)
    rest = torch.where(labels | hidden, -torch.inf, x)
    n = torch.searchsorted(u - margin, rest)
    hinges = torch.where(n > 0, n * (rest + margin) - total.gather(-1, n), 0.0).sum(-1)
    below, above = torch.searchsorted(u, x), size - torch.searchsorted(u, x, right=True)
    active = x.shape[-1] - torch.searchsorted(rest.sort(-1).values, x - margin, right=True)
    grad = torch.where(labels, 2 * (below - above) - active, n).to(x.dtype)
    slope = torch.where(labels, active, 0).sum(-1).to(x.dtype) / size.squeeze(-1).clamp(min=1)
    value = torch.where(broken, torch.nan, pairs + hinges)
    narrow = torch.float64 if z.dtype == torch.float64 else torch.float32
    grad = torch.where(broken.unsqueeze(-1), torch.nan, grad).to(narrow)
    return value, torch.where(broken, torch.nan, slope), grad
