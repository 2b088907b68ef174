"""What callers give, as tensors that can be trusted, or a refusal that names it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegen._table import checks
from sparsegen._table.controls import CONDITIONS, control_number
from sparsegen.torch import _plain
from sparsegen.torch._cpu import STORAGE, lead_shape


def check_dense(name: str, t: Tensor) -> None:
    """Refuse tensors that are not one block of numbers with strides."""
    if t.is_nested:
        checks.fail(TypeError, name, "a dense tensor (to_padded_tensor and a mask make one)", "a nested tensor")
    if t.layout is not torch.strided:
        checks.fail(TypeError, name, "a dense tensor (to_dense() makes one)", f"layout {t.layout}")


def check_scores(scores: Any, dim: Any, name: str = "scores") -> tuple[Tensor, int]:
    """The scores, cast as torch.softmax casts them under autocast, and `dim` counted from the end."""
    if not isinstance(scores, Tensor):
        checks.fail(TypeError, name, "a torch.Tensor", type(scores).__name__)
    check_dense(name, scores)
    if scores.dtype not in STORAGE:
        checks.fail(TypeError, name, "float16, bfloat16, float32 or float64", f"dtype {scores.dtype}")
    if dim != -1 or scores.dim() == 0:
        dim = checks.axis_index("dim", dim, scores.shape, name) - scores.dim()
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
        checks.fail(TypeError, "mask", "a boolean tensor (True = may be chosen)", kind)
    check_dense("mask", mask)
    if mask.device != scores.device:
        checks.fail(ValueError, "mask", f"on the scores' device {scores.device}", mask.device)
    checks.broadcasts("mask", mask.shape, scores.shape, checks.MASK_SHAPE)
    return mask


def check_control(
    name: str, value: Any, scores: Tensor, dim: int, conditions: checks.Conditions = CONDITIONS
) -> Tensor | float:
    """A number, or a wide tensor in which values out of range have become NaN (looking would wait for the device)."""
    condition, holds = conditions[name]
    if type(value) is float and holds(value):
        return value
    if isinstance(value, list | tuple | np.ndarray):
        checks.fail(TypeError, name, f"{condition}, or a torch.Tensor of them", repr(value))
    if not isinstance(value, Tensor):
        return control_number(name, value, conditions)
    check_dense(name, value)
    if not value.dtype.is_floating_point:
        checks.fail(TypeError, name, condition, f"dtype {value.dtype}")
    if value.device != scores.device and value.dim() > 0:
        checks.fail(ValueError, name, f"on the scores' device {scores.device}", value.device)
    checks.control_broadcasts(name, value.shape, lead_shape(scores, dim))
    value = value.to(device=scores.device, dtype=_plain.wide(scores))
    return torch.where(holds(value), value, torch.nan)
