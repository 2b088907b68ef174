"""The maps as modules. Learnable controls are stored so that no optimiser step can take them out of their range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sparsegen import _checks
from sparsegen._maps import MAPS, TRANSFORMS
from sparsegen.torch import _apply, maps


def _exp(theta: Tensor) -> Tensor:
    """exp(theta), in float32 at least, where it and division by its square are finite.

    The gradient passes as if theta were not moved.
    """
    theta = theta.float() if theta.dtype.itemsize == 2 else theta
    reach = 0.45 * math.log(torch.finfo(theta.dtype).max)
    return (theta + (theta.clamp(-reach, reach) - theta).detach()).exp()


def as_kept(control: str, value: Any) -> Any:
    """The positive form in which a control is kept and saved, from its value; or back."""
    return 1 - value if control == "lam" else value


def take_control(state: dict[str, Any], prefix: str) -> Tensor | None:
    """Take the control out of a saved state, in its positive form, however the module that saved it kept it."""
    control, theta = (state.pop(f"{prefix}{name}", None) for name in ("control", "theta"))
    return control if theta is None else _exp(theta.detach())


class _Mapping(nn.Module):
    """A map along `dim` with at most one control.

    The control is kept in a positive form: as a buffer, or, if learnable, as exp(theta) of a parameter. Whatever an
    optimiser does to theta, 1 - lam, q and the temperature stay positive and finite. Either form loads the other's
    state. A buffer is not cast with the module: it keeps its float64, and its value through the meta device.
    """

    control: Tensor
    _name = ""  # of the control
    _given: Tensor | None = None  # its positive form when the module was made

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.learnable = False

    def _keep(self, control: str, given: Any, learnable: bool, shape: Sequence[int]) -> None:
        """Check a control and store it, of the given shape."""
        value = _values(control, given)
        if shape:
            _checks.broadcasts(control, value.shape, shape, "the shape asked for")
            value = value.expand(tuple(shape))
        positive = as_kept(control, value).clone()
        if learnable and not bool(_is_inside(positive).all()):
            limit = value[~_is_inside(positive)].flatten()[0].item()
            _checks.fail(ValueError, f"a learnable {control}", INSIDE, limit)
        self.learnable, self._name, self._given = learnable, control, positive
        device = given.device if isinstance(given, Tensor) else torch.get_default_device()
        if learnable:
            self.theta = nn.Parameter(positive.log().to(device, torch.get_default_dtype()))
        else:
            self.register_buffer("control", positive.to(device, _wide(device), copy=True))

    def _kept(self) -> Tensor:
        return _exp(self.theta) if self.learnable else self.control

    def reset_parameters(self) -> None:
        """Set the control to what the module was made with."""
        if self._given is not None:
            with torch.no_grad():
                if self.learnable:
                    self.theta.copy_(self._given.log())
                else:
                    self.control.copy_(self._given)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move a fixed control with the module, but do not cast it."""
        control = self._buffers.get("control")
        if control is None:
            return super()._apply(fn, recurse)
        self._buffers["control"] = None
        try:
            super()._apply(fn, recurse)
            control = self._moved(control, fn)
        finally:
            self._buffers["control"] = control
        return self

    def _moved(self, control: Tensor, fn: Any) -> Tensor:
        there = fn(torch.empty(0, device=control.device)).device
        source = self._given if control.is_meta and self._given is not None else control
        moved = fn(control.to(_wide(there)))
        # A cast loses digits and a stay on the meta device all of them: then from where they still are.
        kept = moved.dtype == _wide(there) and (moved.is_meta or not control.is_meta)
        return moved if kept else source.to(there, _wide(there), copy=True)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: list[str],
        unexpected: list[str], errors: list[str],
    ) -> None:  # fmt: skip
        """Load a control in either form, one number also for all of a shape."""
        positive = take_control(state_dict, prefix) if self._given is not None else None
        if positive is not None and self._given is not None:
            shaped = positive.expand(self._given.shape) if positive.dim() == 0 else positive
            if self.learnable and not positive.is_meta and not bool(_is_inside(positive).all()):
                value = as_kept(self._name, positive[~_is_inside(positive)].flatten()[0].item())
                errors.append(f"sparsegen: a learnable {self._name} must be {INSIDE}, got {value}.")
            state_dict[prefix + ("theta" if self.learnable else "control")] = shaped.log() if self.learnable else shaped
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)

    def _describe(self, name: str, value: Tensor) -> str:
        if value.is_meta:
            return f"{name}=meta"
        shown = f"{value.item():.4g}" if value.dim() == 0 else f"tensor{tuple(value.shape)}"
        return f"{name}={shown}"


INSIDE = "inside its range, not at a limit of it"


def _is_inside(positive: Tensor) -> Tensor:
    return (positive > 0) & (positive < math.inf)


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _values(control: str, given: Any) -> Tensor:
    """A control given as a number, a list or a tensor, each number checked; on the CPU, wherever modules are made."""
    if isinstance(given, Tensor):
        if given.is_meta:
            _checks.fail(ValueError, control, "numbers, also on the meta device", "a meta tensor")
        given = given.detach().cpu()
    elif not isinstance(given, Sequence) or isinstance(given, str):
        given = _checks.control_number(control, given)
    value = torch.as_tensor(given, dtype=torch.float64, device="cpu")
    for number in value.flatten().tolist():
        _checks.control_number(control, number)
    return value


class Sparsemax(_Mapping):
    """See :func:`sparsegen.torch.sparsemax`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.Sparsemax()(torch.tensor([0.25, 1.0, 0.5]))
    tensor([0.0000, 0.7500, 0.2500])
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map the scores along the module's `dim`."""
        return maps.sparsemax(scores, dim=self.dim, mask=mask)

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"dim={self.dim}"


class Sparsegen(_Mapping):
    """Sparsegen with a fixed or learnable dial. See :func:`sparsegen.torch.sparsegen`.

    ``shape`` gives one control for each row or head: it broadcasts against the scores without the class axis. A
    learnable ``lam`` is kept as ``theta = log(1 - lam)``.

    >>> import torch, sparsegen.torch as sgt
    >>> heads = sgt.Sparsegen(lam=0.5, learnable=True, shape=(8, 1))  # scores: (batch, 8, queries, keys)
    >>> heads
    Sparsegen(lam=tensor(8, 1), transform='lin', learnable=True, dim=-1)
    >>> heads(torch.zeros(2, 8, 5, 4)).shape
    torch.Size([2, 8, 5, 4])
    """

    def __init__(
        self, lam: Any = 0.0, transform: Any = "lin", learnable: bool = False, shape: Sequence[int] = (), dim: int = -1
    ) -> None:
        super().__init__(dim)
        if not callable(transform):
            _checks.transform_name(transform, tuple(TRANSFORMS))
        self.transform = transform
        self._keep("lam", lam, learnable, shape)

    @property
    def lam(self) -> Tensor:
        """The control as it is now."""
        return 1 - self._kept()

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map the scores along the module's `dim`."""
        # By radius, not by lam: near 1, lam has no digits left for 1 - lam.
        return _apply.apply_radius(scores, self._kept(), self.transform, self.dim, mask)

    def extra_repr(self) -> str:
        """Show the arguments."""
        name = self.transform if isinstance(self.transform, str) else getattr(self.transform, "__name__", "callable")
        lam = self._describe("lam", self.lam.detach())
        return f"{lam}, transform={name!r}, learnable={self.learnable}, dim={self.dim}"


class _WithQ(_Mapping):
    @property
    def q(self) -> Tensor:
        """The control as it is now."""
        return self._kept()

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"{self._describe('q', self.q.detach())}, learnable={self.learnable}, dim={self.dim}"


class Sparsecone(_WithQ):
    """See :func:`sparsegen.torch.sparsecone`.

    >>> import torch, sparsegen.torch as sgt
    >>> sgt.Sparsecone(q=0.0)(torch.tensor([1.0, 3.0, 4.0]))
    tensor([0.1250, 0.3750, 0.5000])
    """

    def __init__(self, q: Any, learnable: bool = False, shape: Sequence[int] = (), dim: int = -1) -> None:
        super().__init__(dim)
        self._keep("q", q, learnable, shape)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map the scores along the module's `dim`."""
        return maps.sparsecone(scores, q=self.q, dim=self.dim, mask=mask)


class Sparsehourglass(_WithQ):
    """See :func:`sparsegen.torch.sparsehourglass`.

    >>> import sparsegen.torch as sgt
    >>> sgt.Sparsehourglass(q=0.5, learnable=True)
    Sparsehourglass(q=0.5, learnable=True, dim=-1)
    """

    def __init__(self, q: Any, learnable: bool = False, shape: Sequence[int] = (), dim: int = -1) -> None:
        super().__init__(dim)
        self._keep("q", q, learnable, shape)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map the scores along the module's `dim`."""
        return maps.sparsehourglass(scores, q=self.q, dim=self.dim, mask=mask)


class Softmax(_Mapping):
    """Softmax with a fixed or learnable temperature. See :func:`sparsegen.torch.softmax`.

    >>> import sparsegen.torch as sgt
    >>> sgt.Softmax(temperature=2.0)
    Softmax(temperature=2, learnable=False, dim=-1)
    """

    def __init__(
        self, temperature: Any = 1.0, learnable: bool = False, shape: Sequence[int] = (), dim: int = -1
    ) -> None:
        super().__init__(dim)
        self._keep("temperature", temperature, learnable, shape)

    @property
    def temperature(self) -> Tensor:
        """The control as it is now."""
        return self._kept()

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map the scores along the module's `dim`."""
        return maps.softmax(scores, temperature=self.temperature, dim=self.dim, mask=mask)

    def extra_repr(self) -> str:
        """Show the arguments."""
        shown = self._describe("temperature", self.temperature.detach())
        return f"{shown}, learnable={self.learnable}, dim={self.dim}"


class _Uncontrolled(_Mapping):
    """A map of the table that has no control and no module of its own."""

    def __init__(self, name: str, dim: int = -1) -> None:
        super().__init__(dim)
        self.name = name

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map the scores along the module's `dim`."""
        return _apply.apply(self.name, scores, {}, self.dim, mask, False)

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"{self.name!r}, dim={self.dim}"


_OF_NAME: dict[str, Any] = {
    "sparsemax": Sparsemax,
    "sparsecone": Sparsecone,
    "sparsehourglass": Sparsehourglass,
    "softmax": Softmax,
    **{f"sparsegen_{g}": partial(Sparsegen, transform=g) for g in TRANSFORMS},
}


def make_map(
    mapping: str | nn.Module, *, lam: Any = None, q: Any = None, temperature: Any = None, learnable: bool = False,
    shape: Sequence[int] = (), dim: int = -1,
) -> nn.Module:  # fmt: skip
    """Make the module of a map from its name and control; a module is returned as it is.

    Parameters
    ----------
    mapping : str or module
        A name of the table, e.g. ``"sparsegen_lin"``, or a module called with scores and a mask.
    lam, q, temperature : number, sequence or tensor, optional
        The control of that map, none other.
    learnable, shape, dim
        As for the modules, e.g. ``shape=(n_heads, 1)`` for a control of each head.

    Examples
    --------
    >>> import sparsegen.torch as sgt
    >>> sgt.make_map("sparsegen_lin", lam=0.5)
    Sparsegen(lam=0.5, transform='lin', learnable=False, dim=-1)
    >>> sgt.make_map("sparsemax", q=1.0)
    Traceback (most recent call last):
    ...
    ValueError: sparsegen: q must be absent for mapping 'sparsemax', which has no such control, got 1.0.
    """
    given = {name: value for name, value in (("lam", lam), ("q", q), ("temperature", temperature)) if value is not None}
    if isinstance(mapping, nn.Module):
        for name, value in given.items():
            _checks.fail(ValueError, name, "absent where mapping is a module, which has its own control", value)
        if learnable:
            _checks.fail(ValueError, "learnable", "False where mapping is a module: make that one learnable", learnable)
        return mapping
    if not isinstance(mapping, str) or mapping not in MAPS:
        _checks.fail(ValueError, "mapping", "a module or one of " + ", ".join(map(repr, MAPS)), repr(mapping))
    controls = MAPS[mapping].controls
    for name, value in given.items():
        if name not in controls:
            _checks.fail(ValueError, name, f"absent for mapping {mapping!r}, which has no such control", value)
    if "q" in controls and q is None:
        _checks.fail(ValueError, "q", f"given for mapping {mapping!r}", None)
    if not controls:
        if learnable:
            _checks.fail(ValueError, "learnable", f"False for mapping {mapping!r}, which has no control", learnable)
        return _OF_NAME[mapping](dim=dim) if mapping in _OF_NAME else _Uncontrolled(mapping, dim)
    return _OF_NAME[mapping](**given, learnable=learnable, shape=shape, dim=dim)
