"""The losses of rows whose classes lie on several ranks: the forms of the table, on parts.

Targets are small beside the scores: every rank has the labels of all classes, and works on its own classes alone.
"""

from __future__ import annotations

import math
import zlib
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsegen._table import checks, plain, targets
from sparsegen._table.controls import LOSS_CONDITIONS
from sparsegen._table.losses import LOSSES, Loss
from sparsegen._table.radius import of_mean
from sparsegen._table.targets import Target
from sparsegen.torch import _cpu, _plain
from sparsegen.torch._inputs import check_control, check_mask, check_scores
from sparsegen.torch._losses import check_labels, on_cpu, reduced, row_weights
from sparsegen.torch._route import engine, once
from sparsegen.torch.distributed._apply import exchange, row_sums
from sparsegen.torch.distributed._exchange import Call, Exchange, Part, agree
from sparsegen.torch.distributed._project import as_rows, project
from sparsegen.torch.distributed._search import find
from sparsegen.torch.distributed._sums import Shards, enter, known_sum, whole_sum

# Gradients with more than this share of nonzero entries are given dense, whatever was asked for.
SPARSE_BELOW = 1 / 16


class Labels(NamedTuple):
    """The labels of all classes, and those of this rank's."""

    indptr: Tensor
    indices: Tensor
    rows: Tensor  # of each label here
    cols: Tensor
    eta: Tensor
    here: Tensor  # which of `indices` these are

    @classmethod
    def of(cls, whole: Target, local: Target, part: Part, n: int, device: torch.device) -> Labels:
        here = (whole.indices >= part.first) & (whole.indices < part.first + n)
        arrays = whole.indptr, whole.indices, local.rows(), local.indices, local.eta, here
        return cls(*(torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in arrays))


class _Rows(NamedTuple):
    """What a form works on: parts of rows, their labels and how ranks talk."""

    z: Tensor  # (rows, classes here)
    mask: Tensor | None
    labels: Labels
    control: Tensor | float | None
    ex: Exchange
    part: Part
    sparse: bool

    def per_row(self, value: Tensor | float) -> Tensor:
        """One number per row, in float64."""
        value = torch.as_tensor(value, dtype=torch.float64, device=self.z.device)
        return value.reshape(-1).expand(len(self.z)) if value.dim() else value.expand(len(self.z))


def _sparse(rows: Tensor, cols: Tensor, values: Tensor, shape: torch.Size) -> Tensor:
    with torch.sparse.check_sparse_tensor_invariants(False):
        return torch.sparse_coo_tensor(torch.stack([rows, cols]), values, tuple(shape))


class _Huber(torch.autograd.Function):
    """(p - eta).(z - r (p + eta)/2) over support and labels alone. Backward sends nothing."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, r: Tensor, given: _Rows) -> Tensor:
        ex, labels, n = given.ex, given.labels, len(z)
        found = find(ex, z, r, given.mask)
        places: list[Tensor] = []

        def sums() -> Tensor:
            mark = found.empty
            mark[labels.rows, labels.cols] = -1.0
            other = mark[found.rows, found.cols] >= 0  # in the support, and no label
            mark[found.rows, found.cols] = found.p.to(mark.dtype)
            at_labels = mark[labels.rows, labels.cols].double().clamp(min=0)
            rows = torch.cat([found.rows[other], labels.rows])
            x = torch.cat([found.shifted[other], z[labels.rows, labels.cols].double() - found.base[labels.rows]])
            p, eta = torch.cat([found.p[other], at_labels]), torch.cat([found.p[other] * 0, labels.eta])
            places.extend((rows, torch.cat([found.cols[other], labels.cols]), (p - eta)))
            value = (p - eta) * (x - r[rows] * (p + eta) / 2)
            out = torch.zeros(n, 2, dtype=torch.float64, device=z.device)
            return out.index_add_(0, rows, torch.stack([value, (eta - p) * (eta + p) / 2], -1))

        value, slope = ex.total(sums, (n, 2)).unbind(-1)
        ctx.given, ctx.mask = given._replace(z=z.new_empty(0)), given.mask
        ctx.save_for_backward(z, r, *places, torch.where(found.broken, math.nan, slope), found.broken)
        return torch.where(found.broken, math.nan, value)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        z, r, rows, cols, values, slope, broken = ctx.saved_tensors
        if not once(v):
            return *_huber_again(ctx.given, z, r, v), None
        values = (values * v[rows]).to(z.dtype)
        if ctx.given.sparse and len(values) < SPARSE_BELOW * z.numel() and not broken.any():
            return _sparse(rows, cols, values, z.shape), v * slope, None
        grad = torch.zeros_like(z)
        grad[rows, cols] = values
        grad[broken] = math.nan
        return grad, v * slope, None


def _huber_again(given: _Rows, z: Tensor, r: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the same, differentiable again."""
    ex, labels = given.ex, given.labels
    p = project(ex, z, enter(r, ex), -1, given.mask)
    eta = torch.zeros_like(z).index_put((labels.rows, labels.cols), labels.eta.to(z.dtype))
    squares = whole_sum((p * p - eta * eta).sum(-1).double(), ex)
    return enter(v, ex).unsqueeze(-1).to(z.dtype) * (p - eta), -v * squares / 2


class _Hinge(torch.autograd.Function):
    """F(z, r) given the scores of all labels: each rank has them before its own classes. Backward sends nothing."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, r: Tensor, scores: Tensor, given: _Rows) -> Tensor:
        labels, n, size = given.labels, len(z), given.labels.indptr.diff()
        most = max(int(size.max()) if n else 0, 1)
        rows = torch.repeat_interleave(torch.arange(n, device=z.device), size)
        slot = torch.arange(len(rows), device=z.device) - labels.indptr[rows]
        grads: list[Tensor] = []

        def local() -> Tensor:
            own = z.new_full((n, most + z.shape[1]), -math.inf)
            own[:, most:] = _plain.hide(z, given.mask)
            own[labels.rows, most + labels.cols] = -math.inf
            own[rows, slot] = scores.to(z.dtype)
            value, slope, grad = _hinges(own, r, labels.indptr, slot, size)
            pairs, _, pair_grad = _hinges(own[:, :most].contiguous(), r, labels.indptr, slot, size)
            own_pairs = pair_grad[rows, slot].double()
            active = own_pairs - grad[rows, slot].double()  # classes here that a label is too close to
            grads.extend((grad[:, most:], own_pairs, pairs))
            return torch.cat([value - pairs, slope, active])

        all_ = given.ex.total(local, (2 * n + len(rows),))
        grad, own_pairs, pairs = grads
        value, slope, active = pairs + all_[:n], all_[n : 2 * n], all_[2 * n :]
        grad[labels.rows, labels.cols] = (own_pairs - active)[labels.here].to(grad.dtype)
        broken = torch.isnan(value)
        grad[broken] = math.nan
        ctx.dtype, ctx.sparse = z.dtype, given.sparse
        ctx.save_for_backward(grad, torch.where(broken, math.nan, slope))
        return value

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        grad, slope = ctx.saved_tensors
        if once(v) and ctx.sparse and int((grad != 0).sum()) < SPARSE_BELOW * grad.numel():
            rows, cols = grad.nonzero(as_tuple=True)
            values = (grad[rows, cols] * v[rows].to(grad.dtype)).to(ctx.dtype)
            return _sparse(rows, cols, values, grad.shape), v * slope, None, None
        return (v.to(grad.dtype).unsqueeze(-1) * grad).to(ctx.dtype), v * slope, None, None


def _hinges(own: Tensor, r: Tensor, indptr: Tensor, slot: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """F with its slopes, of rows that begin with their labels."""
    if own.is_cpu:
        value, slope, grad = _cpu.hinge(own, r.contiguous(), indptr, slot, None, True)
        assert grad is not None  # asked for
        return value, slope, grad
    labels = torch.arange(own.shape[1], device=own.device) < size.unsqueeze(-1)
    return engine(own).hinge_labels(own, r, labels, None)


def _log(loss: Loss, given: _Rows) -> Tensor:
    """KL divergence of softmax(z) from eta."""
    labels, ex = given.labels, given.ex
    x = _plain.hide(given.z, given.mask)
    top = Shards(ex).amax(x.detach(), -1, keepdims=True)
    x = torch.where(x == -torch.inf, x, x - torch.where(top == -torch.inf, 0.0, top))  # NaN beside +inf
    each = labels.eta * (labels.eta.log() - x[labels.rows, labels.cols].double())
    each = torch.zeros(len(x), dtype=torch.float64, device=x.device).index_add(0, labels.rows, each)
    shares, linear = whole_sum(torch.stack([torch.exp(x).sum(-1).double(), each]), ex).unbind(0)
    return torch.log(shares) + linear


def _huber(loss: Loss, given: _Rows) -> Tensor:
    return _Huber.apply(given.z, given.per_row(loss.map.radius.value(torch, given.control)), given)


def _hinge(loss: Loss, given: _Rows) -> Tensor:
    """F at the radius of the map, over that radius where the loss is scaled."""
    rule, mean = loss.map.radius, loss.map.radius.of == "mean"
    scores, radius = _label_scores(given, mean)
    if mean:
        mean_of, n = radius
        radius = of_mean(torch, rule, mean_of, n, given.control)
    else:
        radius = rule.value(torch, given.control)
    r = given.per_row(radius)
    value = _Hinge.apply(given.z, r, scores, given)
    return value / r if loss.scaled else value


def _label_scores(given: _Rows, mean: bool) -> tuple[Tensor, Any]:
    """The scores of all labels, and mean and number of each row's classes if wanted: one round."""
    z, labels, ex = given.z, given.labels, given.ex
    n, s, scale = row_sums(given.part, z, -1, given.mask) if mean else (z.new_zeros(0), z.new_zeros(0), 1.0)

    def local() -> Tensor:
        mine = torch.zeros(len(labels.indices), dtype=torch.float64, device=z.device)
        mine[labels.here] = z.detach()[labels.rows, labels.cols].double()
        return torch.cat([mine, n.double(), s.detach().double()])

    k = len(labels.indices)
    all_ = ex.total(local, (k + 2 * len(n),))
    count, total = all_[k : k + len(n)], all_[k + len(n) :]
    return all_[:k], (plain.mean_of(torch, count, known_sum(s, total, ex), scale), count) if mean else None


FORMS = {"log": _log, "huber": _huber, "hinge": _hinge}

# The forms of a target: all classes on every rank, class indices, or the classes of each rank on that rank.
_ALL, _INDEX, _PART = 1, 2, 3


def _form(target: Any, z: Tensor) -> tuple[int, int]:
    """Which form of a target, and a sum over what it holds where all ranks must hold the same."""
    if hasattr(target, "tocsr"):
        csr = target.tocsr()
        return _ALL, zlib.crc32(csr.indices.astype(np.int64).tobytes(), zlib.crc32(csr.indptr.astype(np.int64)))
    y = np.asarray(target)
    if y.shape == tuple(z.shape[:-1]) and y.dtype.kind in "iu":
        return _INDEX, zlib.crc32(y.astype(np.int64).tobytes())
    if y.shape != tuple(z.shape):
        wanted = (
            f"{tuple(z.shape)} (multi-hot, of this rank's classes), {tuple(z.shape[:-1])} (class indices) or sparse"
        )
        checks.fail(ValueError, "the shape of target", wanted, f"{y.shape} of dtype {y.dtype}")
    return _PART, 0


def _merged(parts: list[Any], n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The entries of all ranks as one CSR; classes of a later rank come later."""
    rows = np.concatenate([np.repeat(np.arange(n), np.diff(indptr)) for indptr, _, _ in parts])
    order = np.argsort(rows, kind="stable")
    indices, data = (np.concatenate([part[i] for part in parts])[order] for i in (1, 2))
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))]), indices, data


class Options(NamedTuple):
    """How a loss is asked for, beside scores, target, control and mask."""

    weight: Any = None
    reduction: Any = "mean"
    ignore_index: Any = -100
    ignore_empty: bool = False
    sparse_grad: bool = False

    def checked(self) -> Options:
        """The same, or a refusal."""
        checks.reduction_name(self.reduction)
        return self._replace(ignore_index=checks.integer("ignore_index", self.ignore_index))


class _Given:
    """Arguments that were checked on every rank."""

    z: Tensor
    mask: Tensor | None
    control: Tensor | float | None
    options: Options
    target: Any
    form: tuple[int, int]

    def __init__(
        self, ex: Exchange, name: str, scores: Any, target: Any, control: Any, mask: Any, options: Options
    ) -> None:
        loss = LOSSES[name]

        def check() -> Call:
            self.z, _ = check_scores(scores, -1)
            self.mask = check_mask(mask, self.z)
            self.control = check_control(loss.control, control, self.z, -1, LOSS_CONDITIONS) if loss.control else None
            self.options, self.target = options.checked(), on_cpu(target)
            self.form = _form(self.target, self.z)
            called = f"{name} {self.options._replace(weight=None)}"
            return Call(called, self.z, -1, (self.control,) if loss.control else (), self.form)

        self.part = agree(ex, check)
        self.even = f"{name}_loss" if loss.even else ""
        self.parts = ex.objects(self._entries) if self.form[0] == _PART else []
        self.whole, self.local, self.weights = ex.together(self._read)

    def _read(self) -> tuple[Target, Target, Tensor | None]:
        """The target of all classes, that of this rank's, and one weight per row."""
        lead, how = tuple(self.z.shape[:-1]), self.options
        if self.parts:
            eps = [float(np.finfo(data.dtype).eps) for _, _, data in self.parts if data.dtype.kind == "f"]
            merged = _merged(self.parts, math.prod(lead))
            whole = targets.shares(*merged, ignore_empty=how.ignore_empty, even=self.even, eps=max(eps, default=0.0))
        else:
            whole = targets.read(
                self.target, (*lead, self.part.classes), ignore_index=how.ignore_index, ignore_empty=how.ignore_empty,
                even=self.even,
            )  # fmt: skip
        local = whole.part(self.part.first, self.z.shape[-1])
        check_labels(local, self.z.detach(), self.mask, self.part.first)
        counted = None if whole.counted is None else torch.from_numpy(whole.counted).to(self.z.device).reshape(lead)
        return whole, local, row_weights(how.weight, self.z, counted)

    def _entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        y = np.asarray(self.target)
        if y.dtype.kind not in "biuf":
            checks.fail(TypeError, "target", "numbers or booleans", f"dtype {y.dtype}")
        indptr, indices, data = targets.dense_entries(y.reshape(math.prod(self.z.shape[:-1]), self.z.shape[-1]))
        return indptr, indices + self.part.first, data

    def rows(self, ex: Exchange) -> _Rows:
        """What the forms work on."""
        z, w, control = self.z, self.weights, self.control
        wide = z.float() if z.dtype.itemsize == 2 else z
        if w is not None:  # a row that does not count has no gradient, whatever its scores
            wide = torch.where((w > 0).unsqueeze(-1), wide, 0.0)
        hidden = None if self.mask is None else as_rows(self.mask.expand(z.shape), -1).contiguous()
        labels = Labels.of(self.whole, self.local, self.part, z.shape[-1], z.device)
        if isinstance(control, Tensor):
            control = control.expand(z.shape[:-1]).reshape(-1)
        rows = wide if wide.dim() == 2 else as_rows(wide, -1)
        sparse = self.options.sparse_grad and rows is z  # nothing stands between, which would want it dense
        return _Rows(rows, hidden, labels, control, ex, self.part, sparse)


def apply(name: str, scores: Any, target: Any, control: Any, mask: Any, options: Options, group: Any) -> Tensor:
    """Apply the loss called `name` in the table."""
    loss, ex = LOSSES[name], exchange(group, scores)
    given = _Given(ex, name, scores, target, control, mask, options)
    rows, z = given.rows(ex), given.z
    if given.part.classes:
        each = FORMS[loss.form](loss, rows)
    else:
        each = _plain.untouched(rows.z.sum(-1).double(), rows.control)
    found = reduced(each.reshape(z.shape[:-1]), given.weights, given.options.reduction)
    return found.to(z.dtype if z.dtype.itemsize > 2 else torch.float32)
