"""A map as a module, and how it keeps its control: no optimiser step can take a learnable one out of its range."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from sparsegen._table import checks
from sparsegen._table.controls import CONTROLS, control_number
from sparsegen._table.maps import Map
from sparsegen.torch import _apply
from sparsegen.torch._route import know_forward, one_number, quick, quick_module

# How far theta may go: exp(theta), and division by its square, are finite, in float32 at least.
_FAR, _FARTHER = (0.45 * math.log(torch.finfo(dtype).max) for dtype in (torch.float32, torch.float64))


def _reach(dtype: torch.dtype, most: float) -> tuple[float, float]:
    """Between what theta is kept, with exp(theta) at most `most`."""
    reach = _FARTHER if dtype == torch.float64 else _FAR
    return -reach, min(reach, math.log(most))


def _exp(theta: Tensor, most: float = math.inf) -> Tensor:
    """exp(theta), at most `most`, in float32 at least. The gradient passes as if theta were not moved."""
    theta = theta.float() if theta.dtype.itemsize == 2 else theta
    return (theta + (theta.clamp(*_reach(theta.dtype, most)) - theta).detach()).exp()


@functools.lru_cache(64)
def _exp_number(theta: float, dtype: torch.dtype, most: float) -> float:
    """The same of a number that was read off a tensor of this type."""
    low, high = _reach(dtype, most)
    exact = math.exp(min(max(theta, low), high))
    return exact if dtype == torch.float64 else float(np.float32(exact))


def as_kept(control: str, value: Any) -> Any:
    """The positive form in which a control is kept and saved, from its value."""
    return CONTROLS[control].kept(value)


def as_value(control: str, kept: Any) -> Any:
    """The value of a control, from its positive form."""
    return CONTROLS[control].value(kept)


def take_control(state: dict[str, Any], prefix: str) -> Tensor | None:
    """Take the control out of a saved state, in its positive form, however the module that saved it kept it."""
    control, theta = (state.pop(f"{prefix}{name}", None) for name in ("control", "theta"))
    return control if theta is None else _exp(theta.detach())


class Mapping(nn.Module):
    """A map along `dim` with at most one control.

    The control is kept in a positive form: as a buffer, or, if learnable, as exp(theta) of a parameter. Whatever an
    optimiser does to theta, 1 - lam, q and the temperature stay positive and finite. Either form loads the other's
    state. A buffer is not cast with the module: it keeps its float64, and its value through the meta device.
    """

    row: Map | None = None  # of the table; None for a transform of the caller's own
    control: Tensor
    control_name = ""
    temperature: Any = 1.0  # of maps that have one beside their dial
    given: Tensor | None = None  # its positive form when the module was made
    _plan: tuple[Any, ...] | None = None  # how the kernel calls it by itself

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.learnable = False

    def _keep(self, control: str, given: Any, learnable: bool, shape: Sequence[int]) -> None:
        """Check a control and store it, of the given shape."""
        value = control_values(control, given)
        if not isinstance(shape, Sequence):
            checks.fail(TypeError, "shape", "a sequence of integers, such as (8, 1)", repr(shape))
        if shape:
            checks.broadcasts(control, value.shape, shape, "the shape asked for")
            value = value.expand(tuple(shape))
        positive = as_kept(control, value).clone()
        inside = _is_inside(positive, control)
        if learnable and not bool(inside.all()):
            checks.fail(ValueError, f"a learnable {control}", INSIDE, value[~inside].flatten()[0].item())
        self.learnable, self.control_name, self.given = learnable, control, positive
        device = given.device if isinstance(given, Tensor) else torch.get_default_device()
        if learnable:
            self.theta = nn.Parameter(positive.log().to(device, torch.get_default_dtype()))
        else:
            self.register_buffer("control", positive.to(device, _wide(device), copy=True))
        self._plan = self._planned()

    def _planned(self) -> tuple[Any, ...] | None:
        """How the kernel calls the map by itself (_kernel/modules.hpp); None where it has no row.

        The transform it is for; the map; which number is the control (none, the first, the second); both numbers where
        they are not; by how much the second differs from the form it is kept in; the reach of theta in float32 and 64.
        """
        row = self.row
        if row is None:
            return None
        transform, radius = getattr(self, "transform", None), row.fixed.get("q", row.radius.fixed)
        if not self.control_name:
            return (transform, row.kind, 0, radius, row.fixed.get("alpha", 1.0), *(0.0,) * 5)
        first, most = self.control_name in ("lam", "q"), CONTROLS[self.control_name].most
        reach = (*_reach(torch.float32, most), *_reach(torch.float64, most))
        second = self.temperature if first else 1.0
        return (transform, row.kind, 1 if first else 2, 1.0, second, 0.0 if first else self._value(0.0), *reach)

    def __call__(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map the scores as :meth:`forward` does; hooks and whatever else torch does around it are seen to."""
        p = None if mask is not None or is_dynamo_compiling() else quick_module(self, scores)
        return super().__call__(scores, mask) if p is None else p

    def kept(self) -> Tensor:
        return _exp(self.theta, CONTROLS[self.control_name].most) if self.learnable else self.control

    def control_names(self) -> tuple[str, ...]:
        """The controls, by which a module has them as attributes."""
        return (self.control_name,) if self.row is None else self.row.controls

    def value(self) -> Tensor:
        """The control as it is now."""
        return as_value(self.control_name, self.kept())

    def set_value(self, value: Any) -> None:
        """Set the control, to one number for all or to numbers of its shape."""
        positive = as_kept(self.control_name, control_values(self.control_name, value))
        if self.learnable and not bool(_is_inside(positive, self.control_name).all()):
            checks.fail(ValueError, f"a learnable {self.control_name}", INSIDE, value)
        with torch.no_grad():
            if self.learnable:
                self.theta.copy_(positive.log().expand(self.theta.shape))
            else:
                self.control.copy_(positive.expand(self.control.shape))

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map the scores along the module's `dim`; True in the mask may be chosen."""
        row, theta = self.row, self._parameters.get("theta")
        if row is None:
            return self._by_own(scores, mask)
        if theta is None and self.learnable:  # made of other parameters: torch.nn.utils.parametrize
            theta = self.theta
        kept = self._buffers.get("control") if theta is None else theta
        number = None if kept is None else one_number(kept)
        if number is None:
            return self._by_tensor(scores, mask, row, theta)
        if theta is None:
            return self._by_number(scores, mask, row, number)
        number = _exp_number(number, theta.dtype, CONTROLS[self.control_name].most)
        if torch.is_grad_enabled() and theta.requires_grad:
            return self._learned(scores, mask, row, theta, number)
        return self._by_number(scores, mask, row, number)

    def _by_own(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """The same for modules without a row."""
        raise NotImplementedError

    def _by_number(self, scores: Tensor, mask: Tensor | None, row: Map, kept: float) -> Tensor:
        """The same in few calls, of one control that has no gradient."""
        radius, second = self._told(kept)
        quickly = mask is None and self.dim == -1 and not is_dynamo_compiling()
        p = quick(scores, row.kind, radius, second) if quickly else None
        if p is not None:
            return p
        if self.control_name == "lam":  # by radius: near 1, lam has no digits left for 1 - lam
            return _apply.apply_radius(scores, radius, row, self.dim, mask, temperature=self.temperature)
        return _apply.apply(row.name, scores, {self.control_name: self._value(kept)}, self.dim, mask, False)

    def _learned(self, scores: Tensor, mask: Tensor | None, row: Map, theta: Tensor, kept: float) -> Tensor:
        """The same in few calls, of one control that has a gradient."""

        def again(z: Tensor, theta: Tensor) -> Tensor:
            return self._by_tensor(z, mask, row, theta)

        p = _apply.apply_learned(scores, theta, kept, self._told(kept), row, self.dim, mask, again)
        return again(scores, theta) if p is None else p

    def _told(self, kept: float) -> tuple[float, float]:
        """What a kernel is told: the radius or its control, and temperature or alpha."""
        if self.control_name in ("lam", "q"):
            return kept, self.temperature
        return 1.0, self._value(kept)

    def _value(self, kept: Any) -> Any:
        return as_value(self.control_name, kept)

    def _by_tensor(self, scores: Tensor, mask: Tensor | None, row: Map, theta: Tensor | None) -> Tensor:
        """The same of controls for each row, on other devices and in graphs."""
        if not self.control_name:
            return _apply.apply(row.name, scores, {}, self.dim, mask, False)
        kept = self.control if theta is None else _exp(theta, CONTROLS[self.control_name].most)
        if self.control_name == "lam":
            return _apply.apply_radius(scores, kept, row, self.dim, mask, temperature=self.temperature)
        return _apply.apply(row.name, scores, {self.control_name: self._value(kept)}, self.dim, mask, False)

    def kernel_control(self) -> Tensor | float:
        """What a kernel for maps of linear scores is told: the radius, or the control its rule makes the radius of."""
        assert self.row is not None  # asked of rows only
        if self.control_name:
            return self.kept()
        fixed = self.row.radius.fixed
        return self.row.fixed.get("q", 0.0) if fixed is None else fixed

    def extra_repr(self) -> str:
        """Show the arguments."""
        return ", ".join([*self._options(), f"dim={self.dim}"])

    def _options(self) -> list[str]:
        if not self.control_name:
            return []
        return [self._describe(self.control_name, self.value().detach()), f"learnable={self.learnable}"]

    def reset_parameters(self) -> None:
        """Set the control to what the module was made with."""
        if self.given is not None:
            with torch.no_grad():
                if self.learnable:
                    self.theta.copy_(self.given.log())
                else:
                    self.control.copy_(self.given)

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
        source = self.given if control.is_meta and self.given is not None else control
        moved = fn(control.to(_wide(there)))
        # A cast loses digits and a stay on the meta device all of them: then from where they still are.
        kept = moved.dtype == _wide(there) and (moved.is_meta or not control.is_meta)
        return moved if kept else source.to(there, _wide(there), copy=True)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: list[str],
        unexpected: list[str], errors: list[str],
    ) -> None:  # fmt: skip
        """Load a control in either form, one number also for all of a shape."""
        own = prefix + ("theta" if self.learnable else "control")
        saved = state_dict.get(own)
        if saved is None or self.given is None or saved.shape != self.given.shape:
            self._convert(state_dict, prefix, own, errors)
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)

    def _convert(self, state_dict: dict[str, Any], prefix: str, own: str, errors: list[str]) -> None:
        """Bring a control that was saved in another form or shape into the module's own."""
        positive = take_control(state_dict, prefix) if self.given is not None else None
        if positive is not None and self.given is not None:
            shaped = positive.expand(self.given.shape) if positive.dim() == 0 else positive
            inside = _is_inside(positive, self.control_name)
            if self.learnable and not positive.is_meta and not bool(inside.all()):
                value = as_value(self.control_name, positive[~inside].flatten()[0].item())
                errors.append(f"sparsegen: a learnable {self.control_name} must be {INSIDE}, got {value}.")
            state_dict[own] = shaped.log() if self.learnable else shaped

    def _describe(self, name: str, value: Tensor) -> str:
        if value.is_meta:
            return f"{name}=meta"
        shown = f"{value.item():.4g}" if value.dim() == 0 else f"tensor{tuple(value.shape)}"
        return f"{name}={shown}"


know_forward(Mapping.forward)

INSIDE = "inside its range, not at a limit of it"


def _is_inside(positive: Tensor, control: str) -> Tensor:
    return (positive > 0) & (positive < math.inf) & (positive <= CONTROLS[control].most)


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def control_values(control: str, given: Any) -> Tensor:
    """A control given as a number, a list or a tensor, each number checked; on the CPU, wherever modules are made."""
    if isinstance(given, Tensor):
        if given.is_meta:
            checks.fail(ValueError, control, "numbers, also on the meta device", "a meta tensor")
        given = given.detach().cpu()
    elif not isinstance(given, Sequence) or isinstance(given, str):
        given = control_number(control, given)
    value = torch.as_tensor(given, dtype=torch.float64, device="cpu")
    for number in value.flatten().tolist():
        control_number(control, number)
    return value
