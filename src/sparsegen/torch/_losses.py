"""The losses on tensors: target, rows, reduction. Gradients by autograd, of every order that exists.

The hinge losses are one piecewise linear function F(z, r) at the radius of their map. Its value and slopes come from
the kernel (or, traced and on other devices, from a registered operator); being constant between kinks, the slopes make
all derivatives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsegen._table import checks, forms
from sparsegen._table.arrays import as_array
from sparsegen._table.controls import LOSS_CONDITIONS
from sparsegen._table.losses import LOSSES, Loss
from sparsegen._table.maps import HIDDEN
from sparsegen._table.radius import of_mean
from sparsegen._table.targets import Target, read
from sparsegen.torch import _autograd, _cpu, _operators, _plain, _route
from sparsegen.torch._apply import FRAME
from sparsegen.torch._inputs import check_control, check_dense, check_mask, check_scores


class Shares(NamedTuple):
    """A target beside its scores: dense, or as it was read on the CPU."""

    eta: Tensor | None
    """(..., K); None where `csr` says all."""
    csr: Target | None
    counted: Tensor | None
    """Rows that count for the loss; None: all."""

    def dense(self, z: Tensor) -> Tensor:
        """Return eta beside the scores."""
        if self.eta is not None:
            return self.eta
        assert self.csr is not None  # one of the two is there
        eta = torch.from_numpy(self.csr.dense(z.shape[-1], "float64"))
        return eta.reshape(z.shape).to(z.dtype if z.dtype.itemsize > 2 else torch.float32)


@torch.library.custom_op("sparsegen::hinge", mutates_args=())
def hinge_op(z: Tensor, radius: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return _route.engine(z).hinge_labels(z, radius, labels, mask)


@hinge_op.register_fake
def _(z: Tensor, radius: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    value = z.new_empty(z.shape[:-1], dtype=_plain.wide(z))
    grad = z.new_empty(z.shape, dtype=torch.float64 if z.dtype == torch.float64 else torch.float32)
    return value, torch.empty_like(value), grad


@hinge_op.register_vmap
def _(info: Any, in_dims: Any, z: Tensor, radius: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Any, Any]:
    n = info.batch_size
    z, labels = _operators.whole(n, z, in_dims[0]), _operators.whole(n, labels, in_dims[2])
    r = _operators.batched(n, z.dim() - 2, radius, in_dims[1])
    return hinge_op(z, r, labels, _operators.batched(n, z.dim() - 1, mask, in_dims[3])), (0, 0, 0)


class _Hinge(torch.autograd.Function):
    """F with its slopes, the eager way."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, radius: Tensor, target: Target, mask: Tensor | None) -> Tensor:
        labels = torch.from_numpy(target.indptr), torch.from_numpy(target.indices)
        value, slope, grad = _cpu.hinge(z, radius, *labels, mask, ctx.needs_input_grad[0])
        ctx.dtype, ctx.shape, ctx.radius_dtype = z.dtype, radius.shape, radius.dtype
        ctx.save_for_backward(slope, grad)
        return value

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        slope, grad = ctx.saved_tensors
        to_z = to_r = None
        if ctx.needs_input_grad[0]:
            to_z = (v.to(grad.dtype).unsqueeze(-1) * grad).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            to_r = (v * slope).sum_to_size(ctx.shape).to(ctx.radius_dtype)
        return to_z, to_r, None, None


def _hinges(z: Tensor, radius: Tensor, target: Shares, mask: Tensor | None) -> Tensor:
    """F(z, radius) of each row, differentiable in both."""
    if target.csr is not None:
        return _Hinge.apply(z, radius, target.csr, mask)
    assert target.eta is not None  # one of the two is there
    labels, broken = target.eta != 0, torch.isnan(target.eta).any(-1)
    value, slope, grad = hinge_op(z.detach(), radius.detach(), labels, mask)
    safe = torch.where(_plain.hide(z, mask) == HIDDEN, 0.0, z)
    change = ((safe - safe.detach()).to(grad.dtype) * grad).sum(-1) + slope * (radius - radius.detach())
    return torch.where(broken, torch.nan, value + change.to(value.dtype))


def _hidden(z: Tensor, mask: Tensor | None) -> Tensor:
    """Scores in the type that is computed in, -inf where they are hidden."""
    return _plain.hide(z if z.dtype.itemsize > 2 else z.float(), mask)


def _log(loss: Loss, z: Tensor, target: Shares, control: Any, mask: Tensor | None) -> Tensor:
    """KL divergence of softmax(z) from eta, row by row."""
    return forms.log(FRAME, _hidden(z, mask), target.dense(z))


def _huber(loss: Loss, z: Tensor, target: Shares, control: Tensor | float, mask: Tensor | None) -> Tensor:
    """(p - eta).(z - r (p + eta)/2) with p the map of z and r its radius, row by row."""
    radius = loss.map.radius.value(torch, control)
    p = _autograd.project(z if z.dtype.itemsize > 2 else z.float(), radius, -1, mask)
    if isinstance(radius, Tensor):
        radius = radius.to(p.dtype).expand(p.shape[:-1]).unsqueeze(-1)
    return forms.huber(FRAME, _hidden(z, mask), target.dense(z), p, radius)


def _tsallis(loss: Loss, z: Tensor, target: Shares, control: Tensor | float, mask: Tensor | None) -> Tensor:
    """(p - eta).z + Omega(eta) - Omega(p) with p the map of z, row by row."""
    p = _autograd.entmax(z if z.dtype.itemsize > 2 else z.float(), control, -1, mask)
    alpha = control if isinstance(control, Tensor) else p.new_full((), control)
    alpha = alpha.to(p.dtype).expand(p.shape[:-1]).unsqueeze(-1)
    return forms.tsallis(FRAME, _hidden(z, mask), target.dense(z), p, alpha)


def _hinge(loss: Loss, z: Tensor, target: Shares, control: Tensor | float, mask: Tensor | None) -> Tensor:
    """F at the radius of the map, over that radius where the loss is scaled, row by row."""
    rule = loss.map.radius
    if rule.of == "mean":
        radius = of_mean(torch, rule, *_autograd.row_means(z, -1, mask), control)
    else:
        if not isinstance(control, Tensor):
            control = torch.full((), control, dtype=_plain.wide(z), device=z.device)
        radius = rule.value(torch, control)
    value = _hinges(z, radius, target, mask)
    return value / radius if loss.scaled else value


FORMS = {"log": _log, "huber": _huber, "tsallis": _tsallis, "hinge": _hinge}


def on_cpu(target: Any) -> Any:
    """A target as NumPy or SciPy would have it, if its values can be looked at; else as it is."""
    if not isinstance(target, Tensor):
        return target
    if target.layout in (torch.sparse_coo, torch.sparse_csr):
        return _scipy(target.detach())
    return _cpu.as_array(target)


def _scipy(t: Tensor) -> Any:
    """A sparse tensor as SciPy has it; torch's own conversion between layouts would warn."""
    import scipy.sparse as sp

    array = _cpu.as_array
    if t.layout == torch.sparse_coo:
        t = t.coalesce()
        return sp.coo_array((array(t.values()), tuple(array(t.indices()))), shape=tuple(t.shape)).tocsr()
    return sp.csr_array((array(t.values()), array(t.col_indices()), array(t.crow_indices())), shape=tuple(t.shape))


def _by_formula(target: Tensor, z: Tensor, ignore_index: int, ignore_empty: bool) -> Shares:
    """A target whose values are not looked at: a row that is none becomes NaN, and so does its loss."""
    wide = z.dtype if z.dtype.itemsize > 2 else torch.float32
    whole, classes = not target.dtype.is_floating_point, torch.arange(z.shape[-1], device=z.device)
    given = whole, classes, lambda t: t.to(wide), ignore_index, ignore_empty
    eta, counted = forms.shares(torch, target, tuple(z.shape), *given)
    return Shares(eta, None, counted)


def read_target(
    target: Any, z: Tensor, mask: Any, ignore_index: int, ignore_empty: bool, even: str, plain: bool
) -> Shares:
    """The target beside its scores, its values checked where they can be looked at: where all tensors are plain."""
    if not plain:
        if not isinstance(target, Tensor):
            target = torch.as_tensor(target.toarray() if hasattr(target, "toarray") else target)
        target = target.to_dense() if target.layout != torch.strided else target
        shares = _by_formula(target.to(z.device), z, ignore_index, ignore_empty)
        assert shares.eta is not None  # made here
        return shares._replace(eta=forms.without_hidden(torch, shares.eta, _plain.hide(z, mask)))
    eps = torch.finfo(target.dtype).eps if isinstance(target, Tensor) and target.dtype.is_floating_point else None
    found = read(on_cpu(target), z.shape, ignore_index=ignore_index, ignore_empty=ignore_empty, even=even, eps=eps)
    check_labels(found, z.detach(), mask)
    counted = None if found.counted is None else torch.from_numpy(found.counted).reshape(z.shape[:-1])
    return Shares(None, found, counted)


def check_labels(target: Target, z: Tensor, mask: Tensor | None, first: int = 0) -> None:
    """Refuse a label that may not be chosen; classes are counted from `first` in the message."""
    rows, labels = torch.from_numpy(target.rows()), torch.from_numpy(target.indices)
    if len(rows) == 0:
        return
    hidden = z.reshape(-1, z.shape[-1])[rows, labels] == HIDDEN
    if mask is not None:
        hidden |= ~mask.expand(z.shape).reshape(-1, z.shape[-1])[rows, labels]
    if hidden.any():
        at = int(hidden.nonzero()[0])
        checks.hidden_label(int(rows[at]), int(labels[at]) + first)


def row_weights(weight: Any, z: Tensor, counted: Tensor | None) -> Tensor | None:
    """One weight a row, 0 where it does not count; None: all 1."""
    if weight is None:
        return None if counted is None else counted.to(_plain.wide(z))
    if not isinstance(weight, Tensor):
        weight = torch.from_numpy(checks.numbers("weight", as_array("weight", weight)))
    check_dense("weight", weight)
    w = weight.to(device=z.device, dtype=_plain.wide(z))
    checks.broadcasts("weight", w.shape, z.shape[:-1], "the scores' shape without the class axis")
    if _route.eager(w, None, None) and not bool(((w >= 0) & (w < torch.inf)).all()):
        checks.fail(ValueError, "weight", "finite and not negative", w[~((w >= 0) & (w < torch.inf))][0].item())
    w = w.expand(z.shape[:-1])
    return w if counted is None else torch.where(counted, w, 0.0)


def reduced(rows: Tensor, w: Tensor | None, reduction: str) -> Tensor:
    """The losses of rows, or their weighted sum or mean."""
    return forms.reduce(torch, rows, w, reduction)


def apply(
    name: str, scores: Any, target: Any, control: Any, mask: Any, weight: Any, reduction: str, ignore_index: Any,
    ignore_empty: bool,
) -> Tensor:  # fmt: skip
    """Apply the loss called `name`."""
    loss = LOSSES[name]
    z, _ = check_scores(scores, -1)
    mask = check_mask(mask, z)
    checks.reduction_name(reduction)
    ignore_index = checks.integer("ignore_index", ignore_index)
    if isinstance(target, Tensor) and target.is_nested:
        check_dense("target", target)
    if loss.control:
        control = check_control(loss.control, control, z, -1, LOSS_CONDITIONS)
    # Weight and control meet the scores further on: one tensor the kernel cannot read keeps all of them from it.
    plain = _route.all_plain(z, target, control, mask, weight)
    shares = read_target(target, z, mask, ignore_index, ignore_empty, f"{name}_loss" if loss.even else "", plain)
    w = row_weights(weight, z, shares.counted)
    if w is not None:  # a row that does not count has no gradient, whatever its scores
        z = torch.where((w > 0).unsqueeze(-1), z, 0.0)
    each = FORMS[loss.form](loss, z, shares, control, mask) if z.shape[-1] else _plain.untouched(z.sum(-1), control)
    found = reduced(each.to(_plain.wide(z)), w, reduction)
    return found.to(z.dtype if z.dtype.itemsize > 2 else torch.float32)
