"""From a row of the table of maps to tensors: check, transform and radius, project."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsegen import _checks
from sparsegen._maps import HIDDEN, MAPS, TRANSFORMS, Map, Points, sparsegen_radius
from sparsegen.torch import _ops, _reference
from sparsegen.torch._kernel import STORAGE, lead_shape

_STRIDED = torch.strided


class Info(NamedTuple):
    """What a projection found, one entry a row; without gradients.

    >>> import torch, sparsegen.torch as sgt
    >>> p, info = sgt.sparsemax(torch.tensor([0.5, 0.5, 0.0]), return_info=True)
    >>> info.support_size
    tensor(2)
    """

    support_size: Tensor
    """Number of entries with positive probability."""
    threshold: Tensor
    """The tau of the map's equation: entries whose transformed score exceeds it are the support."""


def check_dense(name: str, t: Tensor) -> None:
    """Refuse tensors that are not one block of numbers with strides."""
    if t.is_nested:
        _checks.fail(TypeError, name, "a dense tensor (to_padded_tensor and a mask make one)", "a nested tensor")
    if t.layout is not torch.strided:
        _checks.fail(TypeError, name, "a dense tensor (to_dense() makes one)", f"layout {t.layout}")


def check_scores(scores: Any, dim: Any, name: str = "scores") -> tuple[Tensor, int]:
    """The scores, cast as torch.softmax casts them under autocast, and `dim` counted from the end."""
    if not isinstance(scores, Tensor):
        _checks.fail(TypeError, name, "a torch.Tensor", type(scores).__name__)
    check_dense(name, scores)
    if scores.dtype not in STORAGE:
        _checks.fail(TypeError, name, "float16, bfloat16, float32 or float64", f"dtype {scores.dtype}")
    if dim != -1 or scores.dim() == 0:
        dim = _checks.axis_index("dim", dim, scores.shape, name) - scores.dim()
    if not scores.is_cpu and scores.dtype.itemsize == 2 and autocasts(scores.device.type):
        scores = scores.float()
    return scores, dim


def autocasts(device: str) -> bool:
    """Is autocast on for this kind of device?"""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def check_mask(mask: Any, scores: Tensor) -> Tensor | None:
    """The mask, or a refusal."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = f"dtype {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        _checks.fail(TypeError, "mask", "a boolean tensor (True = may be chosen)", kind)
    check_dense("mask", mask)
    if mask.device != scores.device:
        _checks.fail(ValueError, "mask", f"on the scores' device {scores.device}", mask.device)
    _checks.broadcasts("mask", mask.shape, scores.shape, _checks.MASK_SHAPE)
    return mask


def check_control(
    name: str, value: Any, scores: Tensor, dim: int, conditions: _checks.Conditions = _checks.CONDITIONS
) -> Tensor | float:
    """A number, or a wide tensor in which values out of range have become NaN (looking would wait for the device)."""
    condition, holds = conditions[name]
    if type(value) is float and holds(value):
        return value
    if not isinstance(value, Tensor):
        return _checks.control_number(name, value, conditions)
    check_dense(name, value)
    if not value.dtype.is_floating_point:
        _checks.fail(TypeError, name, condition, f"dtype {value.dtype}")
    if value.device != scores.device and value.dim() > 0:
        _checks.fail(ValueError, name, f"on the scores' device {scores.device}", value.device)
    _checks.control_broadcasts(name, value.shape, lead_shape(scores, dim))
    value = value.to(device=scores.device, dtype=_reference.wide(scores))
    return torch.where(holds(value), value, torch.nan)


def _top(z: Tensor, dim: int) -> Tensor:
    top = z.detach().amax(dim, keepdim=True)
    return torch.where(top == HIDDEN, 0.0, top)


def _points(m: Map, z: Tensor, dim: int) -> Points:
    """g(z) with hidden entries as -inf; NaN where the map is not defined."""
    g, hidden = TRANSFORMS[m.transform], z == HIDDEN
    safe = torch.where(hidden, 1.0, z)
    top = _top(torch.where(hidden, HIDDEN, g.top_of(safe)), dim) if g.top_of else z.new_zeros(())
    points = g.points(torch, safe, top, top.to(_reference.wide(z)))
    x = points.x if m.outside is None else torch.where(m.outside(safe), torch.nan, points.x)
    return Points(torch.where(hidden, HIDDEN, x), points.unit)


def _own_points(transform: Callable[[Tensor], Tensor], z: Tensor, dim: int) -> Points:
    """A caller's own transform; it sees the row's maximum where an entry is hidden."""
    hidden = z == HIDDEN
    x = transform(torch.where(hidden, _top(z, dim), z))
    if not isinstance(x, Tensor):
        _checks.fail(TypeError, "the result of transform", "a torch.Tensor", type(x).__name__)
    _checks.transform_shape(x.shape, z.shape)
    x = torch.where(torch.isnan(z) | (z == torch.inf), torch.nan, x)
    return Points(torch.where(hidden, HIDDEN, x))


def _lead(value: Any, dim: int) -> Any:
    return value.squeeze(dim) if isinstance(value, Tensor) and value.dim() else value


def _widen(z: Tensor) -> Tensor:
    return z.float() if z.dtype.itemsize == 2 else z


def _info(x: Tensor, p: Tensor, radius: Any, dim: int) -> Info:
    """Support size and threshold read off the result."""
    x, p = x.detach(), p.detach()
    chosen = p > 0
    n = chosen.sum(dim)
    radius = radius.detach() if isinstance(radius, Tensor) else radius
    tau = (torch.where(chosen, x, 0.0).to(_reference.wide(x)).sum(dim) - radius) / n
    broken = torch.isnan(p).any(dim) | (n == 0)
    return Info(n, torch.where(broken, torch.nan, tau))


def _scaled(radius: Tensor | float, unit: Any) -> Any:
    """radius * unit; an infinite radius stays infinite in any unit."""
    if not isinstance(unit, Tensor):
        return radius * unit
    if not isinstance(radius, Tensor):
        return torch.full_like(unit, radius) if radius == math.inf else radius * unit
    return torch.where(torch.isinf(radius), radius, radius * unit)


def run(
    z: Tensor, radius: Tensor | float, dim: int, mask: Tensor | None, info: bool,
    points: Callable[[Tensor], Points] | None = None, g: Callable[[Tensor], Tensor] | None = None,
) -> Any:  # fmt: skip
    """Project `z`, or the points made of it, onto `radius`. `g` gives the scale thresholds are reported on."""
    if points is None or _reference.surely(z.shape[dim] == 0):
        p = _ops.project(z, radius, dim, mask)
        return (p, _info(_reference.hide(z, mask), p, radius, dim)) if info else p
    scores = _reference.hide(_widen(z), mask)
    made = points(scores)
    p = _ops.project(made.x, _scaled(radius, _lead(made.unit, dim)), dim, None)
    if not info:
        return p.to(z.dtype)
    found = _info(made.x if g is None else g(scores.detach().to(_reference.wide(z))), p, radius, dim)
    return p.to(z.dtype), found


def _run_map(m: Map, z: Tensor, radius: Tensor | float, dim: int, mask: Tensor | None, info: bool) -> Any:
    if m.transform == "lin":
        return run(z, radius, dim, mask, info)
    g = TRANSFORMS[m.transform].g
    return run(z, radius, dim, mask, info, lambda x: _points(m, x, dim), lambda x: g(torch, x))


def _run_mean(m: Map, z: Tensor, q: Tensor | float, dim: int, mask: Tensor | None, info: bool) -> Any:
    """Maps whose radius is made of the row's mean."""
    p = _ops.project_mean(z, q, m, dim, mask)
    if not info:
        return p
    radius = _ops.radius_of_mean(m, z, q, *_reference.row_means(z.detach(), dim, mask))
    return p, _info(_reference.hide(z, mask), p, radius, dim)


def _normalize(m: Map, z: Tensor, temperature: Any, dim: int, mask: Tensor | None, info: bool) -> Any:
    """Maps whose threshold is 0: weights over their sum. NaN rows outside the domain."""
    x = _reference.hide(_widen(z), mask)
    none = _reference.surely(x.shape[dim] == 0)
    p = _reference.untouched(x, temperature) if none else _shares(m, x, temperature, dim)
    p = p.to(z.dtype)
    if not info:
        return p
    n = (p.detach() > 0).sum(dim)
    return p, Info(n, torch.where(n > 0, 0.0, torch.nan).to(_reference.wide(z)))


def _shares(m: Map, z: Tensor, temperature: Any, dim: int) -> Tensor:
    hidden = z == HIDDEN
    empty = hidden.all(dim, keepdim=True)
    safe = torch.where(hidden, 0.0, z)
    if m.transform == "exp":
        t = temperature
        if isinstance(t, Tensor):
            t = t.expand(lead_shape(z, dim)).unsqueeze(dim)
            # A temperature below the smallest number is that number: the limit is the same.
            t = torch.where(t < torch.finfo(z.dtype).tiny, torch.finfo(z.dtype).tiny, t).to(z.dtype)
        else:
            t = max(t, torch.finfo(z.dtype).tiny)
        shifted = torch.where(hidden, HIDDEN, (safe - _top(z, dim)) / t)
        return torch.where(empty, 0.0, torch.softmax(torch.where(empty, 0.0, shifted), dim))
    size = abs(safe) if m.transform == "sq" else safe
    top = size.detach().amax(dim, keepdim=True)
    w = size / torch.where(top > 0, top, 1.0)
    w = w * w if m.transform == "sq" else w
    if m.outside is not None:
        w = torch.where(m.outside(safe), torch.nan, w)
    total = w.sum(dim, keepdim=True)
    return torch.where(empty, 0.0, w / torch.where(empty, 1.0, total))


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
        if type(value) is not float or not _checks.CONDITIONS[key][1](value):  # a good number needs no call
            controls[key] = check_control(key, value, z, dim)
    if m.radius is None:
        return _normalize(m, z, controls.get("temperature", 1.0), dim, mask, return_info)
    if m.rule:
        return _run_mean(m, z, controls["q"] if controls else m.fixed["q"], dim, mask, return_info)
    radius = m.radius(torch, **controls) if callable(m.radius) else m.radius
    if m.transform == "lin" and not return_info:
        return _ops.project(z, radius, dim, mask)  # as _run_map would, with fewer calls
    return _run_map(m, z, radius, dim, mask, return_info)


def apply_project(points: Any, radius: Any, dim: Any, mask: Any, return_info: bool) -> Any:
    """Apply the primitive itself."""
    z, dim = check_scores(points, dim, "points")
    return run(z, check_control("radius", radius, z, dim), dim, check_mask(mask, z), return_info)


def apply_radius(scores: Any, radius: Any, transform: Any, dim: Any, mask: Any, return_info: bool = False) -> Any:
    """Apply sparsegen by its radius 1 - lam."""
    z, dim = check_scores(scores, dim)
    radius, mask = check_control("radius", radius, z, dim), check_mask(mask, z)
    if callable(transform):
        return run(z, radius, dim, mask, return_info, lambda hidden: _own_points(transform, hidden, dim))
    return _run_map(MAPS[f"sparsegen_{transform}"], z, radius, dim, mask, return_info)


def apply_sparsegen(scores: Any, lam: Any, transform: Any, dim: Any, mask: Any, return_info: bool) -> Any:
    """Apply sparsegen with a named transform or the caller's own."""
    if not callable(transform):
        _checks.transform_name(transform, tuple(TRANSFORMS))
    z, at = check_scores(scores, dim)
    return apply_radius(z, sparsegen_radius(torch, check_control("lam", lam, z, at)), transform, at, mask, return_info)
