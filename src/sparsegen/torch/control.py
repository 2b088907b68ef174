"""The controls of :mod:`sparsegen` for tensors, and a scheduler that moves lam towards a wished support in training.

Controls are numbers that are looked up, not differentiated: they are found in float64 on the CPU and carry no gradient.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from sparsegen._table import checks
from sparsegen._table.controls import control_number, renamed
from sparsegen._table.maps import MAPS
from sparsegen._table.prose import retold
from sparsegen.numpy import calibration as _calibration
from sparsegen.numpy import control as _control
from sparsegen.numpy import distance as _distance
from sparsegen.numpy import explain as _explain
from sparsegen.torch._cpu import as_array
from sparsegen.torch._inputs import check_dense
from sparsegen.torch.attention.probes import Probed
from sparsegen.torch.modules import Sparsegen

F = TypeVar("F", bound=Callable[..., Any])
WORDS = {
    "axis :": "dim :", "float or array": "Tensor (float64)", "number or array": "number or Tensor",
    "boolean array": "boolean Tensor", "of arrays": "of Tensor", "array of numbers": "Tensor", "array of int": "Tensor",
    "scores : array": "scores : Tensor", "an array": "a tensor",
}  # fmt: skip


def _array(scores: Any, name: str = "scores") -> Any:
    if not isinstance(scores, Tensor):
        checks.fail(TypeError, name, "a torch.Tensor", type(scores).__name__)
    if not scores.dtype.is_floating_point:
        checks.fail(TypeError, name, "of a floating-point type", f"dtype {scores.dtype}")
    return _plain(scores, name)


def _plain(value: Any, name: str) -> Any:
    """A tensor as an array, if its numbers are there to be read; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    check_dense(name, value)
    try:
        return as_array(value.detach().cpu())
    except RuntimeError:  # on the meta device, under torch.func, in a subclass that computes elsewhere
        kind = "a meta tensor" if value.is_meta else f"a {type(value).__name__} without them"
        checks.fail(ValueError, name, "a tensor whose numbers can be read", kind)


def _documented(numpy_function: Callable[..., Any]) -> Callable[[F], F]:
    """Give a function the Parameters and Returns of NumPy's, in torch's words."""

    def add(f: F) -> F:
        f.__doc__ = retold(f, numpy_function, WORDS)
        return f

    return add


def _tensor(value: Any, scores: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=scores.device)


@_documented(_control.lam_for_support)
def lam_for_support(
    scores: Tensor, k: Any, *, mapping: str = "sparsegen_lin", dim: int = -1, mask: Tensor | None = None,
    ties: Literal["raise", "below", "above"] = "raise", temperature: Any = None,
) -> Tensor:  # fmt: skip
    """Return the lam (float64) that gives a map exactly `k` nonzeros.

    >>> import torch, sparsegen.torch as sgt
    >>> z = torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.25, 0.0]])
    >>> lam = sgt.lam_for_support(z, 2)
    >>> (sgt.sparsegen_lin(z, lam=lam) > 0).sum(-1)
    tensor([2, 2])
    """
    found = _control.lam_for_support(
        _array(scores), _plain(k, "k"), mapping=mapping, axis=dim, mask=_plain(mask, "mask"), ties=ties,
        temperature=_plain(temperature, "temperature"),
    )  # fmt: skip
    return _tensor(found, scores)


@_documented(_distance.lam_for_distance)
def lam_for_distance(
    scores: Tensor, distance: Any, *, mapping: str = "sparsegen_softmax", dim: int = -1, mask: Tensor | None = None,
    temperature: Any = None,
) -> Tensor:  # fmt: skip
    """Return the largest lam (float64) whose probabilities stay within a total variation distance of lam = 0.

    >>> import torch, sparsegen.torch as sgt
    >>> z = torch.tensor([2.0, 1.0, 0.0, -1.0], dtype=torch.float64)
    >>> p = sgt.sparsegen_softmax(z, lam=sgt.lam_for_distance(z, 0.05))
    >>> round(float((p - z.softmax(-1)).abs().sum() / 2), 6)
    0.05
    """
    found = _distance.lam_for_distance(
        _array(scores), _plain(distance, "distance"), mapping=mapping, axis=dim, mask=_plain(mask, "mask"),
        temperature=_plain(temperature, "temperature"),
    )  # fmt: skip
    return _tensor(found, scores)


@_documented(_control.lam_for_mean_support)
def lam_for_mean_support(
    scores: Tensor, m: float, *, mapping: str = "sparsegen_lin", dim: int = -1, mask: Tensor | None = None,
    temperature: Any = None,
) -> float:  # fmt: skip
    """Return the one lam with which rows have `m` nonzeros on average.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.lam_for_mean_support(torch.tensor([[2.0, 1.0, 0.0], [0.5, 0.25, 0.0]]), 2)
    0.125
    """
    return _control.lam_for_mean_support(
        _array(scores), m, mapping=mapping, axis=dim, mask=_plain(mask, "mask"),
        temperature=_plain(temperature, "temperature"),
    )  # fmt: skip


@_documented(_control.lam_for_peak)
def lam_for_peak(scores: Tensor, p_max: Any, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Return the lam (float64) with which the largest probability is `p_max`.

    >>> import torch, sparsegen.torch as sgt
    >>> z = torch.tensor([1.0, 0.5, 0.0])
    >>> sgt.sparsegen_lin(z, lam=sgt.lam_for_peak(z, 0.75))
    tensor([0.7500, 0.2500, 0.0000])
    """
    return _tensor(
        _control.lam_for_peak(_array(scores), _plain(p_max, "p_max"), axis=dim, mask=_plain(mask, "mask")), scores
    )


@_documented(_control.q_for_support)
def q_for_support(scores: Tensor, k: Any, *, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Return a q (float64) with which sparsehourglass has exactly `k` nonzeros.

    >>> import torch, sparsegen.torch as sgt
    >>> z = torch.tensor([1.8, 0.6, 0.2])
    >>> sgt.sparsehourglass(z, q=sgt.q_for_support(z, 3)) > 0
    tensor([True, True, True])
    """
    return _tensor(_control.q_for_support(_array(scores), _plain(k, "k"), axis=dim, mask=_plain(mask, "mask")), scores)


@_documented(_calibration.calibrate)
def calibrate(
    scores_iterable: Iterable[Tensor], *, mean_support: float | None = None, density: float | None = None, dim: int = -1
) -> float:
    """Return the one lam with which all batches have a wished mean support or density.

    >>> import torch, sparsegen.torch as sgt
    >>> batches = [torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([[0.5, 0.25, 0.0]])]
    >>> lam = sgt.calibrate(batches, mean_support=2)
    >>> [int((sgt.sparsegen_lin(z, lam=lam) > 0).sum()) for z in batches]
    [1, 3]
    """
    arrays = (_array(scores, "each of scores_iterable") for scores in scores_iterable)
    return _calibration.calibrate(arrays, mean_support=mean_support, density=density, axis=dim)


@_documented(_explain.explain)
def explain(
    scores: Tensor, mapping: str = "sparsemax", *, dim: int = -1, mask: Tensor | None = None, map: str | None = None,
    **controls: Any,
) -> _explain.Explanation:  # fmt: skip
    """Return what a map did with the scores, as NumPy arrays.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.explain(torch.tensor([[0.9, 0.5, 0.1], [3.0, 0.0, 0.0]])).no_gradient
    0.5
    """
    plain = {name: _plain(value, name) for name, value in controls.items()}
    return _explain.explain(_array(scores), renamed(mapping, map), axis=dim, mask=_plain(mask, "mask"), **plain)


class _Seen:
    """Rows and nonzeros seen in training, of modules and of attention: both show what they return."""

    def __init__(self) -> None:
        self.sums = torch.zeros(2, dtype=torch.float64)

    def hook(self, module: Any, inputs: Any, p: Tensor) -> None:
        """Look at what a mapping module returned."""
        if module.training:
            on = (p.detach() > 0).sum(module.dim)
            self.sums += (
                torch.stack([on.sum(), (on > 0).sum()]).double().cpu()
            )  # rows with nothing to choose say nothing

    def add(self, found: Tensor) -> None:
        """Take the statistics of attention: rows, keys allowed, keys used of each head."""
        self.sums += torch.stack([found[2].sum(), found[0].sum()]).double().cpu()


def _over_all_processes(sums: Tensor) -> Tensor:
    """The sums of all processes that train one model: each must turn its dials by the same factor."""
    group = torch.distributed
    if not (group.is_available() and group.is_initialized()):
        return sums
    there = torch.device("cuda", torch.cuda.current_device()) if group.get_backend() == "nccl" else sums.device
    total = sums.to(there, copy=True)
    group.all_reduce(total)
    return total.cpu()


class _WhileTraining:
    """A probe of attention that looks away in evaluation."""

    def __init__(self, seen: _Seen, module: nn.Module) -> None:
        self.seen, self.module = seen, module

    def add(self, found: Tensor) -> None:
        if self.module.training:
            self.seen.add(found)


def _turn(dial: nn.Module, factor: float) -> None:
    """Multiply the radius of a mapping module, or of attention whose map is given by name."""
    if isinstance(dial, Sparsegen):
        dial.control.mul_(factor)
    else:
        controls: Any = dial.controls
        controls["lam"] = 1 - (1 - controls.get("lam", 0.0)) * factor


class DensityScheduler:
    """Moves the lam of sparsegen in a model towards a wished mean number of nonzeros during training.

    It watches what :class:`Sparsegen` modules and :class:`MultiheadAttention` with sparsegen return; :meth:`step`,
    called after each step of the optimizer, multiplies their radius 1 - lam by (wished / seen) ** rate. A support that
    is too large shrinks the radius, one that is too small widens it. Where torch.distributed is initialized, the
    processes pool what they saw, so each of them must call :meth:`step`.

    Parameters
    ----------
    model : nn.Module
        Contains the modules, or is one; their lam must not be learnable.
    support : float
        The wished mean number of nonzeros.
    rate : float
        How fast, above 0 and at most 1.
    warmup : int
        Steps in which `support` is approached from what was seen in the first one, in equal ratios.

    Examples
    --------
    >>> import torch, sparsegen.torch as sgt
    >>> _ = torch.manual_seed(0)
    >>> attend = sgt.Sparsegen(lam=0.0)
    >>> scheduler = sgt.DensityScheduler(attend, support=8)
    >>> for _ in range(60):
    ...     _ = attend(torch.randn(64, 100))
    ...     scheduler.step()
    >>> round(scheduler.seen)
    8
    """

    def __init__(self, model: nn.Module, support: float, *, rate: float = 0.5, warmup: int = 0) -> None:
        limits: checks.Conditions = {
            "support": ("a number at least 1", lambda v: v >= 1),
            "rate": ("above 0 and at most 1", lambda v: 0 < v <= 1),
        }
        self.support = control_number("support", support, limits)
        self.rate = control_number("rate", rate, limits)
        if not isinstance(warmup, int) or warmup < 0:
            checks.fail(ValueError, "warmup", "an integer of at least 0", repr(warmup))
        self.warmup, self.steps = warmup, 0
        self.first: float | None = None
        self.seen = math.nan
        """The mean number of nonzeros before the last step."""
        self._looked = _Seen()
        self._dials: list[nn.Module] = []
        self._stops: list[Callable[[], None]] = []
        self._watch(model)

    def _watch(self, model: nn.Module) -> None:
        # Attention that can be watched and keeps a map: of this package, or hung on a model of another.
        heads: list[Any] = [
            m for m in model.modules() if isinstance(m, Probed) and _has_lam(getattr(m, "mapping", None))
        ]
        inside = {id(m.mapping) for m in heads}
        alone = [m for m in model.modules() if isinstance(m, Sparsegen) and id(m) not in inside]
        dials: list[nn.Module] = [*alone, *(m.mapping if isinstance(m.mapping, Sparsegen) else m for m in heads)]
        if not dials or any(getattr(dial, "learnable", False) for dial in dials):
            found = "a learnable one" if dials else "none"
            condition = "one with Sparsegen modules, or attention with sparsegen, whose lam is not learnable"
            checks.fail(ValueError, "model", condition, found)
        self._dials = dials
        self._stops = [m.register_forward_hook(self._looked.hook).remove for m in alone]
        for m in heads:
            probe = _WhileTraining(self._looked, m)
            m._probes = (*m._probes, probe)
            self._stops.append(partial(_unwatch, m, probe))

    def wished(self) -> float:
        """Return the support aimed at now."""
        if self.first is None or self.steps >= self.warmup:
            return self.support
        return self.first * (self.support / self.first) ** (self.steps / self.warmup)

    def step(self) -> None:
        """Move the radius by what was seen since the last call, or warn that there was nothing."""
        total, rows = _over_all_processes(self._looked.sums).tolist()
        if rows == 0:
            warnings.warn(
                "DensityScheduler.step saw no forward pass in training mode since the last one.", stacklevel=2
            )
            return
        self._looked.sums.zero_()
        self.seen = total / rows
        self.first = self.seen if self.first is None else self.first
        self.steps += 1
        factor = (self.wished() / self.seen) ** self.rate
        with torch.no_grad():
            for dial in self._dials:
                _turn(dial, factor)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside the model's own state."""
        return {"steps": self.steps, "first": self.first, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.steps, self.first, self.seen = state["steps"], state["first"], state["seen"]

    def remove(self) -> None:
        """Stop watching."""
        while self._stops:
            self._stops.pop()()


def _has_lam(mapping: Any) -> bool:
    return isinstance(mapping, Sparsegen) or (isinstance(mapping, str) and "lam" in MAPS[mapping].controls)


def _unwatch(module: Any, probe: Any) -> None:
    module._probes = tuple(other for other in module._probes if other is not probe)
