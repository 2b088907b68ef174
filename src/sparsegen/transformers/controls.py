"""What an attention module of transformers carries once it is sparse: a map and its control for each head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sparsegen._table import checks
from sparsegen._table.controls import controls_of, mapping_name
from sparsegen._table.maps import MAPS
from sparsegen.torch._mapping import Mapping, control_values
from sparsegen.torch.attention.probes import Probed
from sparsegen.torch.modules import make_map

CHILD = "sparsegen"  # the name under which a carrier hangs on its attention module


class SparseControls(Probed):
    """A map and its controls, hung on an attention module; probes and the density scheduler find it there.

    Fixed controls are plain numbers: they are saved in the model's config and survive the meta device. A learnable one
    is a parameter, saved with the weights. It is called ``bias.theta`` because trainers leave biases out of weight
    decay, which would pull the control to where theta is 0.

    Parameters
    ----------
    heads : int
        Query heads of the module.
    mapping : str
        A name of the table of maps.
    learnable : bool
        Is the first control of the map a parameter, one for each head?
    **given
        The controls: a number, or one for each head.

    Examples
    --------
    >>> from sparsegen.transformers import SparseControls
    >>> SparseControls(2, "sparsegen_lin", lam=[0.5, 0.0]).description()
    {'mapping': 'sparsegen_lin', 'learnable': False, 'lam': [0.5, 0.0]}
    """

    watch: Callable[..., None] | None = None  # called with the arguments of each call, while somebody calibrates

    def __init__(self, heads: int, mapping: str, learnable: bool = False, **given: Any) -> None:
        super().__init__()
        self.name, self.heads, self.learnable = mapping_name(mapping, MAPS), heads, bool(learnable)
        own = controls_of(mapping, MAPS[mapping].controls, given)
        values: dict[str, Any] = {name: self._checked(name, value) for name, value in own.items()}
        if learnable:
            first = next(iter(values), None)
            made = make_map(mapping, learnable=True, shape=(heads, 1), **values)
            self.bias: nn.Module | None = made
            values = {name: value for name, value in values.items() if name != first}
        else:
            self.bias = None
        self.controls: dict[str, Any] = values

    def _checked(self, name: str, given: Any) -> float | Tensor:
        value = control_values(name, given)
        if value.dim() == 0:
            return value.item()
        if value.numel() != self.heads:
            checks.fail(ValueError, name, f"one number, or one for each of the {self.heads} heads", value.numel())
        return value.reshape(self.heads, 1)

    @property
    def mapping(self) -> str | Mapping:
        """What `sparse_attention` is told: the name, or the module with the learnable control."""
        return self.name if self.bias is None else self.bias  # type: ignore[return-value]

    def arguments(self, like: Tensor) -> dict[str, Any]:
        """The controls beside `mapping`, on the device of `like`."""
        if self.bias is not None:
            return {}
        return {n: v.to(like.device) if isinstance(v, Tensor) else v for n, v in self.controls.items()}

    def value(self, name: str) -> Tensor:
        """The control as it is now, one number for each head (float64, on the CPU)."""
        if self.bias is not None and name not in self.controls:
            found = self.bias.value().detach().double().cpu()  # type: ignore[operator]
        else:
            found = torch.as_tensor(self.controls[name], dtype=torch.float64)
        return found.flatten().expand(self.heads) if found.numel() == 1 else found.flatten()

    def set_value(self, name: str, value: Any) -> None:
        """Set a control: one number, or one for each head."""
        found = self._checked(name, value)
        if self.bias is not None and name not in self.controls:
            self.bias.set_value(found)  # type: ignore[operator]
        else:
            self.controls[name] = found

    def description(self) -> dict[str, Any]:
        """The carrier as its config tells it, with the controls as they are now."""
        found: dict[str, Any] = {"mapping": self.name, "learnable": self.learnable}
        for name in MAPS[self.name].controls:
            fixed = self.controls.get(name)
            found[name] = fixed if isinstance(fixed, float) else self.value(name).tolist()
        return found

    def extra_repr(self) -> str:
        """Show the map."""
        return ", ".join(f"{name}={value!r}" for name, value in self.description().items())


def carriers(model: nn.Module) -> dict[str, SparseControls]:
    """The carriers of a model by the names of their attention modules."""
    named = {name: module._modules.get(CHILD) for name, module in model.named_modules()}
    return {name: found for name, found in named.items() if isinstance(found, SparseControls)}
