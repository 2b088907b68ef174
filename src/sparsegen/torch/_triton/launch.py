"""From tensors to launches of the row kernels. Nothing here waits for the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from sparsegen.torch._cpu import lead_shape
from sparsegen.torch._triton import long_rows, powers, rows
from sparsegen.torch._triton.layout import (
    BACK,
    REGISTERS,
    Lines,
    Rows,
    Tile,
    mask_lines,
    moved,
    per_row,
    programs,
    result_rows,
    rows_of,
    tile,
)  # fmt: skip

# Without fusing, a product that is rounded before it is added gives the same bits on every device.
OPTIONS: dict[str, Any] = {"enable_fp_fusion": False}


class Numbers(NamedTuple):
    """A map as the kernels know it."""

    transform: int = 0
    rule: int = 0


LINEAR = Numbers()
POWER = Numbers(rule=-1)  # entmax, whose control is alpha
POWERS = 4096  # entries of a row that it keeps in registers


def warps_for(which: Numbers, size: Tile) -> int:
    """Powers have more live at once: twice the threads, so that nothing spills."""
    return min(2 * size.warps, 16) if which == POWER else size.warps


def wide_of(x: Tensor) -> Any:
    """The type a kernel computes in."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def _masks(lines: Lines) -> tuple[int, ...]:
    return (*lines.sizes, *lines.steps)


def forward(
    x: Tensor, control: Tensor, heat: Tensor | None, which: Numbers, dim: int, mask: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor]:
    """Probabilities, and what the way back needs of each row if to `keep`: (3, rows) in float64."""
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    limit = REGISTERS if which == LINEAR else BACK
    if x.shape[dim] > limit and dim != -1:
        found, kept = forward(x.movedim(dim, -1).contiguous(), control, heat, which, -1, moved(mask, x, dim), keep)
        return p.copy_(found.movedim(-1, dim)), kept
    lead = lead_shape(x, dim)
    x, walk = rows_of(x, dim)
    kept = torch.empty((3, walk.number) if keep else (0,), dtype=torch.float64, device=x.device)
    if not p.numel():
        return p, kept
    lines, (control, step) = mask_lines(mask, x, dim), per_row(control, lead)
    if walk.n > limit:
        return _long(x, walk, lines, control, step, p, kept, which.rule), kept
    heat, heat_step = per_row(control if heat is None else heat, lead)
    out = result_rows(p.shape, dim)
    size = tile(walk.n, walk.b)
    number, blocks = programs(walk, size)
    kernel = powers.power_kernel if which == POWER else rows.project_kernel
    kernel[(number,)](
        x, lines.mask, control, heat, p, kept, walk.number, walk.b, blocks, walk.n, *walk.steps, *out.steps,
        *_masks(lines), step, heat_step,
        TRANSFORM=which.transform, RULE=which.rule, HAS_MASK=lines.given, KEEP=keep,
        STRIDED=walk.strided or out.strided, WIDE=wide_of(x), ROWS=size.rows, BLOCK=size.block,
        num_warps=warps_for(which, size), **OPTIONS,
    )  # fmt: skip
    return p, kept


class Grads(NamedTuple):
    """Gradients of scores, of the control of each row, and of its temperature (float64)."""

    scores: Tensor
    control: Tensor
    heat: Tensor


def backward(
    p: Tensor, v: Tensor, z: Tensor | None, control: Tensor, heat: Tensor | None, kept: Tensor | None, which: Numbers,
    dim: int, mask: Tensor | None,
) -> Grads:  # fmt: skip
    """Gradients for an upstream `v`. Scores `z` are read where a transform or a mean needs them."""
    if p.shape[dim] > BACK and dim != -1:
        p_, v_, z_ = (t.movedim(dim, -1).contiguous() for t in (p, v, p if z is None else z))
        found = backward(p_, v_, z_, control, heat, kept, which, -1, moved(mask, p, dim))
        return found._replace(scores=found.scores.movedim(-1, dim).contiguous())
    lead = lead_shape(p, dim)
    p = p.contiguous()
    grad = torch.empty_like(p)
    along = torch.zeros(lead, dtype=torch.float64, device=p.device)
    warm = torch.zeros_like(along)
    if not p.numel():
        return Grads(grad, along, warm)
    v, v_walk = rows_of(v.to(p.dtype), dim)
    walk = result_rows(p.shape, dim)
    z, z_walk = rows_of(p if z is None else z, dim)
    lines, (control, step) = mask_lines(mask, p, dim), per_row(control, lead)
    heat, heat_step = per_row(control if heat is None else heat, lead)
    kept = control if kept is None else kept
    if walk.n > BACK:
        _long_vjp(p, v, z, walk, v_walk, z_walk, lines, control, step, kept, grad, along, which.rule)
        return Grads(grad, along, warm)
    size = tile(walk.n, walk.b)
    number, blocks = programs(walk, size)
    kernel = powers.power_vjp_kernel if which == POWER else rows.vjp_kernel
    kernel[(number,)](
        p, v, z, lines.mask, control, heat, kept, grad, along, warm, walk.number, walk.b, blocks, walk.n, *walk.steps,
        *v_walk.steps, *z_walk.steps, *_masks(lines), step, heat_step,
        TRANSFORM=which.transform, RULE=which.rule, HAS_MASK=lines.given,
        STRIDED=any(w.strided for w in (walk, v_walk, z_walk)), WIDE=wide_of(p), ROWS=size.rows, BLOCK=size.block,
        num_warps=warps_for(which, size), **OPTIONS,
    )  # fmt: skip
    return Grads(grad, along, warm)


GROUP, GROUPS = 32, 256  # neighbours whose maximum is kept, and how many such groups a program has
PART = 8192  # entries of a long row that a program has on the way back


def _long(
    x: Tensor, walk: Rows, lines: Lines, control: Tensor, step: int, p: Tensor, kept: Tensor, rule: int
) -> Tensor:
    x_row = walk.steps[1]
    if walk.strided:
        x, x_row = x.contiguous(), walk.n
    groups = -(-walk.n // GROUP)
    parts = -(-groups // GROUPS)
    tops = x.new_empty((walk.number, groups), dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
    sums = x.new_empty((walk.number, parts, 2) if rule else (0,), dtype=torch.float64)
    found = x.new_empty((walk.number, 6), dtype=torch.float64)
    how = {"HAS_MASK": lines.given, "WIDE": wide_of(x), "GROUPS": GROUPS, "E": GROUP, "num_warps": 8, **OPTIONS}
    where = (x_row, *_masks(lines))
    long_rows.groups_kernel[(walk.number * parts,)](
        x, lines.mask, tops, sums, walk.n, groups, parts, *where, MEAN=bool(rule), **how
    )
    long_rows.threshold_kernel[(walk.number,)](
        x, lines.mask, tops, sums, control, found, kept, walk.number, walk.n, groups, parts, *where, step,
        RULE=rule, KEEP=bool(kept.numel()), **how,
    )  # fmt: skip
    long_rows.write_kernel[(walk.number * parts,)](x, lines.mask, tops, found, p, walk.n, groups, parts, *where, **how)
    return p


def _long_vjp(
    p: Tensor, v: Tensor, z: Tensor, walk: Rows, v_walk: Rows, z_walk: Rows, lines: Lines, control: Tensor, step: int,
    kept: Tensor, grad: Tensor, along: Tensor, rule: int,
) -> None:  # fmt: skip
    parts = -(-walk.n // PART)
    sums = torch.empty((walk.number, parts, 4), dtype=torch.float64, device=p.device)
    how = {"WIDE": wide_of(p), "BLOCK": PART, "num_warps": 8, **OPTIONS}
    v_steps, z_steps = v_walk.steps[1:], z_walk.steps[1:]
    long_rows.sums_kernel[(walk.number * parts,)](p, v, sums, walk.n, parts, *v_steps, **how)
    long_rows.grad_kernel[(walk.number * parts,)](
        p, v, z, lines.mask, sums, control, kept, grad, along, walk.number, walk.n, parts, *v_steps, *z_steps,
        *_masks(lines), step, RULE=rule, HAS_MASK=lines.given, **how,
    )  # fmt: skip
