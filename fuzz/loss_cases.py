"""The losses through the public functions of both front ends, against double sums in long double and in fractions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import long_double
import loss_oracle
import sparsegen as sg
import sparsegen.torch as sgt
from long_double import Real
from map_cases import tensor
from scores import EPS, computed_in, literal, parts, rounded, simpler
from scores import rows as random_rows


@dataclass(frozen=True)
class Case:
    """Rows (N, K) with the labels of each."""

    name: str  # of the function
    front: str
    storage: str
    z: np.ndarray
    labels: np.ndarray
    control: np.ndarray | None
    mask: np.ndarray | None = None
    threads: int = 1

    @property
    def rows(self) -> int:
        return len(self.z)

    def label(self) -> str:
        return self.name

    def short(self) -> str:
        return self.name.removesuffix("_loss")

    def shown(self) -> np.ndarray:
        return np.ones(self.z.shape, bool) if self.mask is None else self.mask


def make(rng: np.random.Generator, name: str) -> Case:
    front = "torch" if rng.random() < 0.5 else "numpy"
    storage = str(rng.choice(["float32", "float64", "float16", *(["bfloat16"] if front == "torch" else [])]))
    k = int(rng.integers(1, 20)) if rng.random() < 0.8 else int(rng.integers(20, 60))
    n = int(rng.integers(1, max(2, 4000 // (k * k))))
    z = np.clip(random_rows(rng, n, k, storage), -1e3, 1e3)
    labels = rng.random((n, k)) < rng.choice([0.1, 0.3, 0.7, 1.0])
    labels[np.arange(n), rng.integers(k, size=n)] = True
    mask = (rng.random((n, k)) < 0.7) | labels if rng.random() < 0.3 else None
    control = None
    rows = n if rng.random() < 0.4 else 1
    if loss_oracle.LOSSES[name.removesuffix("_loss")] == "lam":
        control = rng.choice([0.0, 0.5, -1.0, 1 - 10.0 ** rng.uniform(-2, 3)], rows)
    elif loss_oracle.LOSSES[name.removesuffix("_loss")] == "q":
        control = rng.choice([0.5, 1.0, 10.0 ** rng.uniform(-3, 3), math.inf], rows)
    return Case(name, front, storage, rounded(z, storage), labels, control, mask, int(rng.integers(1, 3)))


def _call(c: Case) -> tuple[np.ndarray, np.ndarray]:
    """Losses, one a row, and the gradient of their sum."""
    how: dict[str, Any] = {"reduction": "none"}
    key = loss_oracle.LOSSES[c.short()]
    if c.front == "numpy":
        if c.control is not None:
            how[key] = float(c.control[0]) if len(c.control) == 1 else c.control
        value, grad = getattr(sg, c.name)(
            c.z.astype(c.storage), c.labels.astype(int), mask=c.mask, return_grad=True, **how
        )
        return value.astype(np.float64), grad.scores.astype(np.float64)
    if c.control is not None:
        how[key] = float(c.control[0]) if len(c.control) == 1 else torch.tensor(c.control)
    z = tensor(c.z, c.storage).requires_grad_()
    mask = None if c.mask is None else torch.from_numpy(c.mask)
    value = getattr(sgt, c.name)(z, torch.from_numpy(c.labels.astype(np.int64)), mask=mask, **how)
    (grad,) = torch.autograd.grad(value.sum(), z)
    return value.detach().double().numpy(), grad.double().numpy()


def _hourglass(c: Case, q: np.ndarray) -> np.ndarray:
    shown = c.shown()
    n = shown.sum(1).astype(Real)
    height = abs(np.where(shown, c.z, 0).astype(Real).sum(1))
    far = q == np.inf
    q = np.where(far, Real(1), q)
    return np.where(far, Real(1), (height + n * q) / (1 + n * q))


def _values(c: Case) -> tuple[np.ndarray, np.ndarray]:
    """The losses in long double, and what their rounding errors are measured by: the terms they are made of."""
    shown, z = c.shown(), c.z.astype(Real)
    control = np.broadcast_to(np.zeros(1) if c.control is None else c.control, c.rows).astype(Real)
    eta = c.labels / c.labels.sum(1, keepdims=True).astype(Real)
    spread = np.where(shown, z, Real(-np.inf)).max(1) - np.where(shown, z, Real(np.inf)).min(1)
    pairs = c.labels.sum(1) * shown.sum(1) * (spread + 1)
    if c.short() == "sparsegen_hinge":
        t = 1 - control
        return long_double.hinge_sums(z, c.labels, shown, t) / t, pairs / t + pairs
    if c.short() == "sparsehourglass_hinge":
        r = _hourglass(c, control)
        return long_double.hinge_sums(z, c.labels, shown, r), pairs * (1 + r)
    top = np.where(shown, z, Real(-np.inf)).max(1, keepdims=True)
    u = np.where(shown, z - top, Real(0))
    if c.short() == "softmax_log":
        total = np.where(shown, np.exp(u), Real(0)).sum(1)
        entropy = np.where(eta > 0, eta * np.log(np.where(eta > 0, eta, Real(1))), Real(0)).sum(1)
        return np.log(total) - (eta * u).sum(1) + entropy, spread + 1 + abs(np.log(eta.max(1)))
    t = 1 - control
    p = long_double.project(np.where(shown, z, Real(-np.inf)), t)
    return ((p - eta) * (u - t[:, None] * (p + eta) / 2)).sum(1), spread + t


def check(c: Case, sabotage: bool = False) -> str:
    sg.set_num_threads(c.threads)
    value, grad = _call(c)
    if sabotage:
        value = value + 0.25
    with np.errstate(all="ignore"):
        want, size = _values(c)
    # The sums are made in float64; torch gives them in the scores' type, float32 for halves.
    stored = EPS[computed_in(c.storage)] if c.front == "torch" else EPS["float64"]
    allowed = 16 * EPS["float64"] * c.z.shape[1] * size + stored * (
        abs(want) + (size if c.short() == "softmax_log" else 0)
    )
    if c.front == "torch" and c.short() in ("softmax_log", "sparsemax_huber"):
        allowed = allowed + 32 * stored * size
    wrong = ~(abs(value - want) <= allowed)
    if wrong.any():
        at = int(np.argmax(wrong))
        return f"the loss of row {at} is {value[at]!r}, not {float(want[at])!r}"
    return _exact_wrong(c, value, grad, allowed)


def _exact_wrong(c: Case, value: np.ndarray, grad: np.ndarray, allowed: np.ndarray) -> str:
    """The first row as the paper writes it, in fractions, with its gradient where no pair stands on a kink."""
    if c.z.shape[1] > (8 if c.short() == "sparsemax_huber" else 16):
        return ""
    control = 0.0 if c.control is None else float(c.control[0])
    mask = None if c.mask is None else c.mask[0]
    want = loss_oracle.row(c.short(), c.z[0], loss_oracle.shares(c.labels[0]), control, mask)
    if not abs(value[0] - want.value) <= 2 * allowed[0] + 1e-300:
        return f"the loss of row 0 is {value[0]!r}, exactly {want.value!r}"
    if c.short() in loss_oracle.HINGES and want.nearest < 1e-9 * (1 + abs(c.z[0]).max()):
        return ""
    eps = max(EPS[c.storage], 2.0**-23 if c.storage != "float64" else 0)
    near = abs(grad[0] - want.grad) <= 64 * eps * (1 + abs(want.grad).max()) * c.z.shape[1]
    if near.all():
        return ""
    at = int(np.argmin(near))
    return f"the gradient of entry {at} of row 0 is {grad[0][at]!r}, exactly {want.grad[at]!r}"


def simplified(c: Case) -> Iterator[Case]:
    for part in parts(c.rows):
        keep = np.ones(c.rows, bool)
        keep[part] = False
        own = c.control is not None and len(c.control) > 1
        control = c.control[keep] if own and c.control is not None else c.control
        yield replace(
            c, z=c.z[keep], labels=c.labels[keep], mask=None if c.mask is None else c.mask[keep], control=control
        )
    for part in parts(c.z.shape[1]):
        keep = np.ones(c.z.shape[1], bool)
        keep[part] = False
        if c.labels[:, keep].any(1).all():
            mask = None if c.mask is None else c.mask[:, keep]
            yield replace(c, z=c.z[:, keep], labels=c.labels[:, keep], mask=mask)
    if c.mask is not None:
        yield replace(c, mask=None)
    if c.control is not None and len(c.control) > 1:
        yield replace(c, control=c.control[:1])
    for at in np.ndindex(c.z.shape if c.z.size < 65 else (0,)):
        for number in simpler(float(c.z[at])):
            z = c.z.copy()
            z[at] = rounded(np.array(number), c.storage)
            if z[at] != c.z[at]:
                yield replace(c, z=z)


def line(c: Case, engine: str) -> str:
    control = (
        ""
        if c.control is None
        else f", {loss_oracle.LOSSES[c.short()]}={literal(c.control if len(c.control) > 1 else c.control[0])}"
    )
    start = f"import numpy as np, sparsegen as sg; from numpy import nan, inf; sg._core.use_engine({engine!r}); "
    if c.front == "numpy":
        mask = "" if c.mask is None else f", mask={literal(c.mask)}"
        return (
            f"{start}print(sg.{c.name}(np.array({literal(c.z)}, {c.storage!r}), {literal(c.labels.astype(int))}"
            f"{control}{mask}, reduction='none', return_grad=True))"
        )
    mask = "" if c.mask is None else f", mask=torch.tensor({literal(c.mask)})"
    if c.control is not None and len(c.control) > 1:
        control = f", {loss_oracle.LOSSES[c.short()]}=torch.tensor({literal(c.control)}, dtype=torch.float64)"
    return (
        f"{start}import torch, sparsegen.torch as sgt; "
        f"z = torch.tensor({literal(c.z)}, dtype=torch.{c.storage}, requires_grad=True); "
        f"L = sgt.{c.name}(z, torch.tensor({literal(c.labels.astype(int))}){control}{mask}, reduction='none'); "
        f"L.sum().backward(); print(L, z.grad)"
    )
