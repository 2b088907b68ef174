"""Whole maps of the table as one operator, on devices whose engine knows transforms and radius rules by number.

One read and one write of the scores forwards, and one pass backwards that gives the gradients of the controls too.
Derivatives of derivatives come from the recipe, which such a device runs with the same projection.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen._table import recipe
from sparsegen._table.maps import MAPS, Map
from sparsegen.torch import _cpu, _plain
from sparsegen.torch._operators import fit
from sparsegen.torch._route import engine, knows_maps, transformed


def takes(m: Map, z: Tensor, dim: int) -> bool:
    """Is this map of these scores one call of the device's engine? Maps of linear scores onto a radius always are."""
    given = m.transform == "lin" and m.radius.of == "control"
    return not given and not m.power and knows_maps(z) and engine(z).takes(m, z.shape[dim], _plain.surely)


@torch.library.custom_op("sparsegen::map", mutates_args=())
def map_op(
    z: Tensor, control: Tensor, heat: Tensor | None, name: str, dim: int, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Probabilities, and three numbers of each row for the way back."""
    return engine(z).map_rows(z, control, heat, MAPS[name], dim, mask)


@map_op.register_fake
def _(
    z: Tensor, control: Tensor, heat: Tensor | None, name: str, dim: int, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    p = torch.empty_like(z, memory_format=torch.contiguous_format)
    return p, z.new_empty((3, *_cpu.lead_shape(z, dim)), dtype=torch.float64)


@torch.library.custom_op("sparsegen::map_vjp", mutates_args=())
def map_vjp_op(
    z: Tensor, p: Tensor, v: Tensor, control: Tensor, heat: Tensor | None, kept: Tensor, name: str, dim: int,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of scores, and of control and temperature of each row."""
    return engine(z).map_rows_vjp(z, p, v, control, heat, kept, MAPS[name], dim, mask)


@map_vjp_op.register_fake
def _(
    z: Tensor, p: Tensor, v: Tensor, control: Tensor, heat: Tensor | None, kept: Tensor, name: str, dim: int,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    along = z.new_empty(_cpu.lead_shape(z, dim), dtype=torch.float64)
    return torch.empty_like(p), along, torch.empty_like(along)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    z, control, heat, ctx.name, ctx.dim, mask = inputs
    ctx.save_for_backward(z, control, heat, mask, *output)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, v: Tensor | None, _: Any) -> tuple[Any, ...]:
    z, control, heat, mask, p, kept = ctx.saved_tensors
    if v is None:
        return (None,) * 6
    if torch.is_grad_enabled() or transformed():
        return *_again(ctx, z, control, heat, mask, v), None, None, None
    grad, along, warm = map_vjp_op(z, p, v, control, heat, kept, ctx.name, ctx.dim, mask)
    to_control = fit(along, control) if ctx.needs_input_grad[1] else None
    to_heat = fit(warm, heat) if heat is not None and ctx.needs_input_grad[2] else None
    return grad, to_control, to_heat, None, None, None


def _by_recipe(m: Map, z: Tensor, control: Tensor, heat: Tensor | None, dim: int, mask: Tensor | None) -> Tensor:
    from sparsegen.torch._apply import OPERATIONS  # which stands above: its maps come here first

    if m.radius.of == "mean":
        return recipe.apply(OPERATIONS, m, z, {"q": control}, dim, mask, False)
    return recipe.apply_radius(OPERATIONS, m, z, control, 1.0 if heat is None else heat, dim, mask, False)


def _again(
    ctx: Any, z: Tensor, control: Tensor, heat: Tensor | None, mask: Tensor | None, v: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of scores, control and temperature by the recipe, differentiable again."""
    want = ctx.needs_input_grad[:3]
    with torch.enable_grad():
        p = _by_recipe(MAPS[ctx.name], z, control, heat, ctx.dim, mask)
        asked = [t for t, wanted in zip((z, control, heat), want) if wanted and t is not None]
        found = iter(torch.autograd.grad(p, asked, v, create_graph=torch.is_grad_enabled(), allow_unused=True))
    return tuple(next(found) if wanted else None for wanted in want)


map_op.register_autograd(_backward, setup_context=_setup)


def _tensor(value: Any, z: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.full((), value, dtype=torch.float64, device=z.device)


def heat(m: Map, temperature: Any) -> Any:
    """The temperature of a map that has one in its kernel; else None."""
    return temperature if m.transform == "exp" and m.radius.of == "sum" else None


def apply(m: Map, z: Tensor, controls: dict[str, Any], dim: int, mask: Tensor | None) -> Tensor:
    """The map with its controls as callers give them."""
    given = {**m.fixed, **controls}
    if m.radius.of == "mean":
        return run(m, z, given["q"], None, dim, mask)
    return run(m, z, m.radius.value(torch, given["lam"]), heat(m, given.get("temperature", 1.0)), dim, mask)


def run(m: Map, z: Tensor, control: Any, heat: Any, dim: int, mask: Tensor | None) -> Tensor:
    """The map, given its radius, its q, or the share of its sum; and the temperature, where it has one."""
    return map_op(z, _tensor(control, z), None if heat is None else _tensor(heat, z), m.name, dim, mask)[0]
