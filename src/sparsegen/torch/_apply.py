"""The recipe on tensors: check, then the way that the route finds. Rows on which a map is not defined become NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsegen._table import checks, recipe
from sparsegen._table.controls import CONDITIONS
from sparsegen._table.maps import MAPS, TRANSFORMS, Map
from sparsegen._table.radius import DIAL
from sparsegen.torch import _autograd, _fused, _plain
from sparsegen.torch._cpu import STORAGE
from sparsegen.torch._inputs import check_control, check_mask, check_scores

_STRIDED = torch.strided
_RADIUS = {"lam": CONDITIONS["radius"]}  # 1 - lam, under the name that callers know


class Info(NamedTuple):
    """What a projection found, one entry per row; without gradients.

    >>> import torch, sparsegen.torch as sgt
    >>> p, info = sgt.sparsemax(torch.tensor([0.5, 0.5, 0.0]), return_info=True)
    >>> info.support_size
    tensor(2)
    """

    support_size: Tensor
    """Number of entries with positive probability."""
    threshold: Tensor
    """The tau of the map's equation: entries whose transformed score exceeds it are the support."""


class Frame:
    """Torch as the recipe asks for it."""

    xp: Any = torch

    def nothing(self, z: Tensor, axis: int) -> bool:
        return _plain.surely(z.shape[axis] == 0)

    def wide(self, x: Tensor) -> Tensor:
        return x.to(_plain.wide(x))

    def working(self, z: Tensor) -> Tensor:
        return z.float() if z.dtype.itemsize == 2 else z

    def like(self, x: Tensor, z: Tensor) -> Tensor:
        return x.to(z.dtype)

    def still(self, x: Tensor) -> Tensor:
        return x.detach()

    def number(self, value: Any, like: Tensor) -> Tensor:
        return value if isinstance(value, Tensor) else torch.full((), value, dtype=like.dtype, device=like.device)

    def total(self, w: Tensor, axis: int) -> Tensor:
        return w.sum(axis, keepdim=True)

    def project(self, x: Tensor, radius: Any, axis: int, mask: Tensor | None, own: bool) -> Tensor:
        return _autograd.project(x, radius, axis, mask)

    def means(self, z: Tensor, axis: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return _autograd.row_means(z, axis, mask)

    def project_mean(self, m: Map, z: Tensor, q: Any, axis: int, mask: Tensor | None) -> Tensor:
        return _autograd.project_mean(z, q, m, axis, mask)

    def exp_shares(self, x: Tensor, axis: int) -> Tensor:
        return torch.softmax(x, axis)

    def unmoved(self, x: Tensor, control: Any) -> Tensor:
        return _plain.untouched(x, control)

    def entmax(self, z: Tensor, alpha: Any, axis: int, mask: Tensor | None) -> Tensor:
        return _autograd.entmax(z, alpha, axis, mask)

    def whole(self, m: Map, z: Tensor, radius: Any, temperature: Any, axis: int, mask: Tensor | None) -> Tensor | None:
        return _by_kernel(m, z, radius, temperature, axis, mask)

    def refuse(self, m: Map, wrong: Tensor, condition: str, values: Any, x: Tensor, axis: int) -> Tensor:
        return torch.where(wrong, torch.nan, x)


class Operations(Frame):
    """The same without the kernels of whole maps: derivatives of any order."""

    def whole(self, *given: Any) -> None:
        return None


FRAME, OPERATIONS = Frame(), Operations()


def _by_kernel(m: Map, z: Tensor, radius: Any, temperature: Any, dim: int, mask: Tensor | None) -> Tensor | None:
    """A map with a dial by one call of the kernel, or None."""

    def again(z: Tensor, radius: Any, temperature: Any) -> Any:
        return recipe.apply_radius(OPERATIONS, m, z, radius, temperature, dim, mask, False)

    return _autograd.map_rows(z, radius, temperature, m, dim, mask, again)


def finish(found: Any, return_info: bool) -> Any:
    """What a function returns: the info as a tuple with names."""
    return (found[0], Info(*found[1])) if return_info else found


def apply(name: str, scores: Any, controls: dict[str, Any], dim: Any, mask: Any, return_info: bool) -> Any:
    """Apply the map called `name` in the table."""
    m, z = MAPS[name], scores
    # What check_scores would find in order here needs no call.
    plain = type(z) is Tensor and z.is_cpu and z.layout is _STRIDED and not z.is_nested
    if not plain or dim != -1 or z.dtype not in STORAGE or z.ndim == 0:
        z, dim = check_scores(scores, dim)
    if mask is not None:
        mask = check_mask(mask, z)
    for key, value in controls.items():
        if type(value) is not float or not CONDITIONS[key][1](value):  # a good number needs no call
            controls[key] = check_control(key, value, z, dim)
    radius = m.radius
    if m.linear and not radius.number and not return_info:  # as the recipe would, with fewer calls
        return _autograd.project(z, radius.value(torch, **controls), dim, mask)
    if not return_info and _fused.takes(m, z, dim):
        return _fused.apply(m, z, controls, dim, mask)
    if m.linear and not return_info:
        return _autograd.project_mean(z, controls["q"] if controls else m.fixed["q"], m, dim, mask)
    return finish(recipe.apply(FRAME, m, z, controls, dim, mask, return_info), return_info)


def apply_project(points: Any, radius: Any, dim: Any, mask: Any, return_info: bool) -> Any:
    """Apply the primitive itself."""
    z, dim = check_scores(points, dim, "points")
    r = check_control("radius", radius, z, dim)
    return finish(recipe.project(FRAME, z, r, dim, check_mask(mask, z), return_info), return_info)


def checked_transform(transform: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A caller's own transform whose result is looked at."""

    def g(z: Tensor) -> Tensor:
        x = transform(z)
        if not isinstance(x, Tensor):
            checks.fail(TypeError, "the result of transform", "a torch.Tensor", type(x).__name__)
        checks.transform_shape(x.shape, z.shape)
        return x

    return g


def apply_radius(
    scores: Any, radius: Any, m: Map, dim: Any, mask: Any, return_info: bool = False, temperature: float = 1.0
) -> Any:
    """Apply a map with a dial by its radius 1 - lam."""
    z, dim = check_scores(scores, dim)
    radius, mask = check_control("lam", radius, z, dim, _RADIUS), check_mask(mask, z)
    if not return_info and _fused.takes(m, z, dim):
        return _fused.run(m, z, radius, _fused.heat(m, temperature), dim, mask)
    return finish(recipe.apply_radius(FRAME, m, z, radius, temperature, dim, mask, return_info), return_info)


def apply_learned(
    scores: Any, theta: Tensor, kept: float, told: tuple[float, float], m: Map, dim: Any, mask: Any, again: Any
) -> Tensor | None:
    """Apply a map whose control exp(theta) is the number `kept`, with gradients; None where no kernel can.

    `told` is what the kernel is told, and `again` makes the same of scores and theta by operations.
    """
    z, dim = check_scores(scores, dim)
    return _autograd.learned(z, theta, kept, told, m, dim, check_mask(mask, z), again)


def apply_own(scores: Any, radius: Any, transform: Any, dim: Any, mask: Any, return_info: bool = False) -> Any:
    """Apply sparsegen with the caller's own transform by its radius 1 - lam."""
    z, dim = check_scores(scores, dim)
    radius, mask = check_control("lam", radius, z, dim, _RADIUS), check_mask(mask, z)
    own = checked_transform(transform)
    found = recipe.project(
        FRAME, z, radius, dim, mask, return_info, lambda hidden: recipe.own_points(FRAME, own, hidden, dim)
    )
    return finish(found, return_info)


def apply_sparsegen(scores: Any, lam: Any, transform: Any, dim: Any, mask: Any, return_info: bool) -> Any:
    """Apply sparsegen with a named transform or the caller's own."""
    if not callable(transform):
        checks.transform_name(transform, tuple(TRANSFORMS))
        return apply(f"sparsegen_{transform}", scores, {"lam": lam}, dim, mask, return_info)
    z, at = check_scores(scores, dim)
    radius = DIAL.value(torch, check_control("lam", lam, z, at))
    return apply_own(z, radius, transform, at, mask, return_info)
