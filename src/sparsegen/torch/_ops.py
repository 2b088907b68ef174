"""`project` for torch: registered operators, their derivatives, and the way a call takes.

Three ways, one answer. A plain CPU tensor in eager mode goes straight to the kernel, with a small autograd Function if
gradients are wanted. Tracers (compile, export, fake and meta tensors) see the registered operators. Everything else
(other devices, torch.func, forward mode) gets its values from the operator and its derivatives from `_reference`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.compiler import is_compiling

from sparsegen._maps import MAPS, Map
from sparsegen.torch import _kernel, _reference

HOURGLASS = MAPS["sparsehourglass"].rule

# Asked in every call, so kept where one look finds them.
_dispatch_modes, _is_tracing = torch._C._len_torch_dispatch_stack, torch._C._is_tracing
_in_functorch, _is_batched = torch._C._are_functorch_transforms_active, torch._C._functorch.is_legacy_batchedtensor


@torch.library.custom_op("sparsegen::project", mutates_args=())
def project_op(x: Tensor, radius: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    if x.is_cpu:
        return _kernel.project(x, radius, dim, mask)
    return _reference.project_values(x, radius, dim, mask) if x.numel() else torch.empty_like(x)


@project_op.register_fake
def _(x: Tensor, radius: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("sparsegen::project_vjp", mutates_args=())
def project_vjp_op(p: Tensor, v: Tensor, radius: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    if p.is_cpu:
        grad, per_row = _kernel.project_vjp(p, v, radius, dim, want_radius=True)
        assert per_row is not None  # asked for
        return grad, per_row
    grad, along = _reference.vjp(p, v, radius, dim)
    return grad.contiguous(), along.to(_reference.wide(p))


@project_vjp_op.register_fake
def _(p: Tensor, v: Tensor, radius: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    grad = torch.empty_like(p, memory_format=torch.contiguous_format)
    return grad, p.new_empty(_kernel.lead_shape(p, dim), dtype=_reference.wide(p))


def _fit(along: Tensor, radius: Tensor) -> Tensor:
    return along.sum_to_size(radius.shape).to(radius.dtype)


def _project_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, radius, ctx.dim, _ = inputs
    ctx.save_for_backward(output, radius)


def _project_backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
    p, radius = ctx.saved_tensors
    grad, along = project_vjp_op(p, v, radius, ctx.dim)
    return grad, _fit(along, radius) if ctx.needs_input_grad[1] else None, None, None


project_op.register_autograd(_project_backward, setup_context=_project_setup)


def _vjp_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    p, v, radius, ctx.dim = inputs
    ctx.save_for_backward(p, v, radius)


def _vjp_backward(ctx: Any, grad_grad: Tensor, grad_along: Tensor) -> tuple[Any, ...]:
    # With w = P v:  grad = w/r, along = -(w.p)/r;  P is symmetric, and constant where p > 0 stays as it is.
    p, v, radius = ctx.saved_tensors
    dim = ctx.dim
    grad, along = _reference.vjp(p, v, radius, dim)
    r, moves = _reference.spread(radius, p, dim)
    c = torch.where(moves, grad_along.to(p.dtype).unsqueeze(dim) / r, 0.0)
    to_v, _ = _reference.vjp(p, grad_grad - c * r * p, radius, dim)
    to_r = -((grad_grad * grad).sum(dim) + (c * r).squeeze(dim) * along) / r.squeeze(dim)
    to_r = torch.where(moves.squeeze(dim), to_r, 0.0)
    return -c * r * grad, to_v, _fit(to_r, radius), None


project_vjp_op.register_autograd(_vjp_backward, setup_context=_vjp_setup)


def _batched(size: int, ndim: int, t: Tensor | None, at: int | None) -> Tensor | None:
    """`t` with the batch axis first, and ones between it and the rest so that it broadcasts to 1 + ndim axes."""
    if t is None or at is None:
        return t
    t = t.movedim(at, 0)
    return t.reshape(size, *(1,) * (ndim - t.dim() + 1), *t.shape[1:])


def _whole(size: int, t: Tensor, at: int | None) -> Tensor:
    return t.movedim(at, 0) if at is not None else t.expand(size, *t.shape)


@project_op.register_vmap
def _(info: Any, in_dims: Any, x: Tensor, radius: Tensor, dim: int, mask: Tensor | None) -> tuple[Tensor, int]:
    n = info.batch_size
    x = _whole(n, x, in_dims[0])
    ndim = x.dim() - 1
    batched = _batched(n, ndim - 1, radius, in_dims[1])
    return project_op(x, batched, dim, _batched(n, ndim, mask, in_dims[3])), 0


@project_vjp_op.register_vmap
def _(info: Any, in_dims: Any, p: Tensor, v: Tensor, radius: Tensor, dim: int) -> tuple[Any, Any]:
    n = info.batch_size
    p, v = _whole(n, p, in_dims[0]), _whole(n, v, in_dims[1])
    return project_vjp_op(p, v, _batched(n, p.dim() - 2, radius, in_dims[2]), dim), (0, 0)


class _Project(torch.autograd.Function):
    """The eager way with gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, radius: Tensor | float, dim: int, mask: Tensor | None) -> Tensor:
        if type(radius) is not float:
            p = _kernel.project(x, radius, dim, mask)
            ctx.given = dim, None
            ctx.save_for_backward(p, radius)
            return p
        ctx.given = dim, radius
        if _kernel.keeps_words(x, dim, mask):
            p, words = _kernel.project_words(x, radius)
            ctx.save_for_backward(*((p,) if words is None else (p, words)))
            return p
        p = _kernel.project(x, radius, dim, mask)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        (p, *rest), (dim, number) = ctx.saved_tensors, ctx.given
        if number is not None and dim == -1 and _once(v):
            return _kernel.project_vjp_rows(p, v, number, rest[0] if rest else None), None, None, None
        radius = rest[0] if number is None else torch.tensor(number, dtype=torch.float64)
        want = ctx.needs_input_grad[1]
        grad, per_row = _kernel.project_vjp(p, v, radius, dim, want) if _once(v) else _reference.vjp(p, v, radius, dim)
        return grad, _fit(per_row, radius) if want and per_row is not None else None, None, None


class _ProjectMean(torch.autograd.Function):
    """The eager way with gradients for a radius (h + q)/(1/n + q) of the row's mean: h is the mean, or its size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, q: Tensor | float, m: Map, dim: int, mask: Tensor | None) -> Tensor:
        p, found = _kernel.project_mean(x, q, m.rule, dim, mask, keep=True)
        ctx.map, ctx.dim, ctx.mask, ctx.q = m, dim, mask, None if isinstance(q, Tensor) else q
        ctx.save_for_backward(x, p, *found, *([q] if isinstance(q, Tensor) else []))
        return p

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        x, p, radius, mean, n, *given = ctx.saved_tensors
        q = given[0] if given else ctx.q
        if not _once(v):
            return *_again(ctx, x, q, p, v), None, None, None
        grad, along = _kernel.project_vjp(p, v, radius, ctx.dim, want_radius=True)
        assert along is not None  # asked for
        whole, n = bool((n == x.shape[ctx.dim]).all()), n.clamp(min=1)
        width = 1 / n + q
        sign = mean.sign() if ctx.map.rule == HOURGLASS else 1.0
        share = (along * sign / (width * n)).to(x.dtype).unsqueeze(ctx.dim)
        if whole:
            grad += share
        else:
            grad += torch.where(_reference.hide(x, ctx.mask) == -torch.inf, 0.0, share)
        if not ctx.needs_input_grad[1]:
            return grad, None, None, None, None
        height = mean.abs() if ctx.map.rule == HOURGLASS else mean
        return grad, _fit(along * (1 / n - height) / (width * width), q), None, None, None


def _again(ctx: Any, x: Tensor, q: Tensor | float, p: Tensor, v: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients in x and q of a mean-radius map by plain torch, differentiable again."""
    want = ctx.needs_input_grad[:2]
    with torch.enable_grad():
        radius = radius_of_mean(ctx.map, x, q, *_reference.row_means(x, ctx.dim, ctx.mask))
        again = _reference.project(x, radius, ctx.dim, p.detach())
        asked = [t for t, wanted in zip((x, q), want) if wanted and isinstance(t, Tensor)]
        found = iter(torch.autograd.grad(again, asked, v, create_graph=torch.is_grad_enabled(), allow_unused=True))
    return tuple(next(found) if wanted else None for wanted in want)


_PLAIN = (Tensor, torch.nn.Parameter)


def _untouched(t: Any) -> bool:
    return t is None or type(t) is float or (type(t) in _PLAIN and t.is_cpu)


def traced() -> bool:
    """Is this call being recorded, so that it must show as registered operators?"""
    return is_compiling() or _dispatch_modes() > 0 or _is_tracing()


def transformed() -> bool:
    """Is a transform of torch.func or forward-mode differentiation under way?"""
    return _in_functorch() or forward_ad._current_level >= 0


def all_plain(*given: Any) -> bool:
    """May the kernel read every tensor among `given`, here and now?"""
    untouched = all(_untouched(t) for t in given if isinstance(t, Tensor))
    return untouched and not traced() and not transformed()


def _once(v: Tensor) -> bool:
    """Are gradients wanted as plain numbers? Not with create_graph=True, which differentiates again, nor under vmap."""
    if torch.is_grad_enabled() or type(v) is not Tensor or not v.is_cpu or _is_batched(v):
        return False
    return not (_dispatch_modes() or _is_tracing() or _in_functorch()) and forward_ad._current_level < 0


def _eager(x: Tensor, radius: Any, mask: Tensor | None) -> bool:
    if type(x) not in _PLAIN or not x.is_cpu:
        return False
    # The usual call has a number and no mask: a function call less for each. traced() and transformed(), written out.
    plain = (type(radius) is float or _untouched(radius)) and (mask is None or _untouched(mask))
    if not plain or is_compiling() or _dispatch_modes() or _is_tracing() or _in_functorch():
        return False
    return forward_ad._current_level < 0


def project(x: Tensor, radius: Tensor | float, dim: int, mask: Tensor | None) -> Tensor:
    """Project rows along `dim` (negative), differentiable in `x` and `radius`."""
    if _eager(x, radius, mask):
        if (x.requires_grad or (isinstance(radius, Tensor) and radius.requires_grad)) and torch.is_grad_enabled():
            return _Project.apply(x, radius, dim, mask)
        return _kernel.project(x, radius, dim, mask)
    if not isinstance(radius, Tensor):
        radius = torch.full((), radius, dtype=_reference.wide(x), device=x.device)
    if (traced() or type(x) not in _PLAIN) and not transformed():
        return project_op(x, radius, dim, mask)
    values = project_op(x.detach(), radius.detach(), dim, mask)
    return _reference.project(x, radius, dim, values)


def radius_of_mean(m: Map, x: Tensor, q: Tensor | float, mean: Tensor, n: Tensor) -> Tensor:
    """Radius of a map that measures the row's mean; NaN outside its domain, 1 where nothing may be chosen."""
    assert callable(m.radius)  # maps of the mean have one
    if not isinstance(q, Tensor):
        q = torch.full((), q, dtype=mean.dtype, device=mean.device)
    r = m.radius(torch, mean, n.clamp(min=1), q)
    if m.domain:
        r = torch.where(r > 0, r, torch.nan)
    return torch.where(n > 0, r, 1.0)


def project_mean(x: Tensor, q: Tensor | float, m: Map, dim: int, mask: Tensor | None) -> Tensor:
    """Project onto the radius a map makes of each row's mean, differentiable in `x` and `q`."""
    if not _eager(x, q, mask):
        radius = radius_of_mean(m, x, q, *_reference.row_means(x, dim, mask))
        return project(x, radius, dim, mask)
    if torch.is_grad_enabled() and (x.requires_grad or (isinstance(q, Tensor) and q.requires_grad)):
        return _ProjectMean.apply(x, q, m, dim, mask)
    return _kernel.project_mean(x, q, m.rule, dim, mask, keep=False)[0]
