"""The recipe on parts of rows: the front end of torch, with reductions over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsegen._table import checks, plain, recipe
from sparsegen._table.maps import HIDDEN, MAPS, TRANSFORMS, Map
from sparsegen._table.radius import DIAL, of_mean
from sparsegen.torch import _plain
from sparsegen.torch._apply import Operations, checked_transform, finish
from sparsegen.torch._inputs import check_control, check_mask, check_scores
from sparsegen.torch.distributed import _project
from sparsegen.torch.distributed._exchange import Call, Exchange, Part, agree
from sparsegen.torch.distributed._sums import Shards, enter, whole_sum


class ShardFrame(Operations):
    """Torch as the recipe asks for it, classes split over ranks."""

    def __init__(self, ex: Exchange, part: Part) -> None:
        self.ex, self.part, self.xp = ex, part, Shards(ex)

    def nothing(self, z: Tensor, axis: int) -> bool:
        return self.part.classes == 0

    def total(self, w: Tensor, axis: int) -> Tensor:
        return self.xp.sum(w, axis, keepdims=True)

    def project(self, x: Tensor, radius: Any, axis: int, mask: Tensor | None, own: bool) -> Tensor:
        return _project.project(self.ex, x, radius, axis, mask)

    def means(self, z: Tensor, axis: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return means(self.ex, self.part, z, axis, mask)

    def project_mean(self, m: Map, z: Tensor, q: Any, axis: int, mask: Tensor | None) -> Tensor:
        wide = self.working(z)
        radius = of_mean(torch, m.radius, *self.means(wide, axis, mask), q)
        return _project.project(self.ex, wide, radius, axis, mask, z.dtype)

    def exp_shares(self, x: Tensor, axis: int) -> Tensor:
        weights = torch.exp(x)
        return weights / self.total(weights, axis)


def row_sums(part: Part, z: Tensor, axis: int, mask: Tensor | None) -> tuple[Tensor, Tensor, float]:
    """Number and scaled sum of this part's entries that may be chosen, and the scale."""
    x = z.double().movedim(axis, -1)
    hidden = (_plain.hide(z, mask) == HIDDEN).movedim(axis, -1)
    scale = plain.scale_of(part.classes)
    return *plain.sums(torch, x, hidden, scale), scale


def means(ex: Exchange, part: Part, z: Tensor, axis: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and number of each row's entries that may be chosen, on all ranks: one round."""
    n, s, scale = row_sums(part, z, axis, mask)
    n, s = enter(whole_sum(torch.stack([n, s]), ex), ex).unbind(0)
    n = n.detach()
    return plain.mean_of(torch, n, s, scale), n


class Given:
    """Arguments that were checked on every rank."""

    scores: Tensor
    dim: int
    mask: Tensor | None
    controls: dict[str, Any]

    def __init__(self, ex: Exchange, call: str, scores: Any, dim: Any, mask: Any, controls: dict[str, Any], of: str):
        def check() -> Call:
            self.scores, self.dim = check_scores(scores, dim, of)
            self.mask = check_mask(mask, self.scores)
            self.controls = {k: check_control(k, v, self.scores, self.dim) for k, v in controls.items()}
            return Call(f"{call} {self.dim}", self.scores, self.dim, tuple(self.controls.values()))

        self.part = agree(ex, check)
        self.controls = {k: enter(c, ex) if isinstance(c, Tensor) else c for k, c in self.controls.items()}
        self.frame = ShardFrame(ex, self.part)


def exchange(group: Any, scores: Any) -> Exchange:
    """The exchange for scores on their device; what is no tensor is refused once all ranks can hear of it."""
    return Exchange(group, scores.device if isinstance(scores, Tensor) else "cpu")


def apply(name: str, scores: Any, controls: dict[str, Any], dim: Any, mask: Any, return_info: bool, group: Any) -> Any:
    """Apply the map called `name` in the table."""
    m, ex = MAPS[name], exchange(group, scores)
    given = Given(ex, f"{name} {return_info}", scores, dim, mask, controls, "scores")
    found = recipe.apply(given.frame, m, given.scores, given.controls, given.dim, given.mask, return_info)
    return finish(found, return_info)


def apply_project(points: Any, radius: Any, dim: Any, mask: Any, return_info: bool, group: Any) -> Any:
    """Apply the primitive itself."""
    ex = exchange(group, points)
    given = Given(ex, f"project {return_info}", points, dim, mask, {"radius": radius}, "points")
    r = given.controls["radius"]
    found = recipe.project(given.frame, given.scores, r, given.dim, given.mask, return_info)
    return finish(found, return_info)


def apply_sparsegen(scores: Any, lam: Any, transform: Any, dim: Any, mask: Any, return_info: bool, group: Any) -> Any:
    """Apply sparsegen with a named transform or the caller's own, which sees the classes of this rank."""
    if not callable(transform):
        checks.transform_name(transform, tuple(TRANSFORMS))
        return apply(f"sparsegen_{transform}", scores, {"lam": lam}, dim, mask, return_info, group)
    own: Callable[[Tensor], Tensor] = checked_transform(transform)
    ex = exchange(group, scores)
    given = Given(ex, f"sparsegen {return_info}", scores, dim, mask, {"lam": lam}, "scores")
    f, at = given.frame, given.dim
    radius = DIAL.value(torch, given.controls["lam"])
    found = recipe.project(
        f, given.scores, radius, at, given.mask, return_info, lambda hidden: recipe.own_points(f, own, hidden, at)
    )
    return finish(found, return_info)
