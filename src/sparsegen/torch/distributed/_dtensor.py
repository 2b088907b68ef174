"""DTensors in and out: the part of this rank, the group of the ranks that have the others, and the result put back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sparsegen._table import checks
from sparsegen.torch._apply import Info

try:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
except ImportError:  # torch built without torch.distributed
    DTensor = None  # type: ignore[assignment, misc]


def is_dtensor(value: Any) -> bool:
    """Is this a tensor that says itself how it is split?"""
    return DTensor is not None and isinstance(value, DTensor)


class Split:
    """How scores are split: the mesh, the dimension of it that has the classes, and what the others have."""

    def __init__(self, scores: Any, dim: Any, of: str) -> None:
        self.mesh, self.placements, self.shape, self.stride = (
            scores.device_mesh, tuple(scores.placements), scores.shape, scores.stride(),
        )  # fmt: skip
        self.dim = checks.axis_index("dim", dim, scores.shape, of)
        by_class = [i for i, p in enumerate(self.placements) if isinstance(p, Shard) and p.dim == self.dim]
        wrong = [p for p in self.placements if not isinstance(p, (Shard, Replicate))]
        if len(by_class) != 1 or wrong:
            condition = f"a DTensor sharded along dim {self.dim}, the classes, by one dimension of its mesh"
            checks.fail(ValueError, of, condition, f"placements {self.placements}")
        self.at = by_class[0]

    @property
    def group(self) -> Any:
        """The ranks that have the other classes of this rank's rows."""
        return self.mesh.get_group(self.at)

    @property
    def batch(self) -> list[int]:
        """The dimensions of the mesh that split the rows."""
        return [i for i, p in enumerate(self.placements) if isinstance(p, Shard) and i != self.at]

    def control(self, name: str, value: Any) -> Any:
        """A control, the same on every rank; its gradient is summed over the ranks that have other rows."""
        if not is_dtensor(value):
            return value
        if self.batch and value.dim():
            checks.fail(ValueError, name, "a single number where rows are split too", f"shape {tuple(value.shape)}")
        whole = value.redistribute(self.mesh, [Replicate()] * self.mesh.ndim)
        return whole.to_local(
            grad_placements=[Partial() if i in self.batch else Replicate() for i in range(self.mesh.ndim)]
        )

    def mask(self, value: Any) -> Any:
        """This rank's part of a mask."""
        if is_dtensor(value):
            checks.broadcasts("mask", value.shape, self.shape, checks.MASK_SHAPE)
            return value.expand(self.shape).redistribute(self.mesh, self.placements).to_local()
        if isinstance(value, Tensor) and value.dim() and value.numel() > 1:
            checks.fail(TypeError, "mask", "a DTensor, as the scores are", f"a Tensor of shape {tuple(value.shape)}")
        return value

    def like_scores(self, local: Tensor) -> Any:
        """Probabilities."""
        return DTensor.from_local(
            local, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride
        )

    def of_rows(self, local: Tensor) -> Any:
        """One number per row."""
        lead = torch.Size([n for i, n in enumerate(self.shape) if i != self.dim])
        moved = [
            Shard(p.dim - (p.dim > self.dim)) if i != self.at and isinstance(p, Shard) else Replicate()
            for i, p in enumerate(self.placements)
        ]
        stride = torch.empty(lead, device="meta").stride()
        return DTensor.from_local(local, self.mesh, moved, run_check=False, shape=lead, stride=stride)


def map_call(call: Callable[[Mapping[str, Any]], Any], controls: tuple[str, ...], of: str = "scores") -> Any:
    """A call of a map by its arguments that takes DTensors too."""

    def f(given: Mapping[str, Any]) -> Any:
        if not is_dtensor(given[of]):
            return call(given)
        _no_group(given)
        split = Split(given[of], given["dim"], of)
        own = {key: split.control(key, given[key]) for key in controls}
        local = {of: given[of].to_local(), "mask": split.mask(given["mask"]), "group": split.group}
        found = call({**given, **own, **local})
        if not given["return_info"]:
            return split.like_scores(found)
        p, info = found
        return split.like_scores(p), Info(*(split.of_rows(t) for t in info))

    return f


def loss_call(call: Callable[[Mapping[str, Any]], Any], control: str | None) -> Any:
    """The same of a loss: rows are not split, or every rank would have another loss."""

    def f(given: Mapping[str, Any]) -> Any:
        if not is_dtensor(given["scores"]):
            return call(given)
        _no_group(given)
        split = Split(given["scores"], -1, "scores")
        if split.batch:
            checks.fail(ValueError, "scores", "a DTensor whose rows are whole on every rank", f"{split.placements}")
        target = given["target"]
        if is_dtensor(target):  # dense targets are split as the scores are, class indices are the same everywhere
            dense = target.dim() == len(split.shape)
            kept = split.placements if dense else [Replicate()] * split.mesh.ndim
            target = target.redistribute(split.mesh, kept).to_local()
        own = {control: split.control(control, given[control])} if control else {}
        local = {"scores": given["scores"].to_local(), "target": target, "mask": split.mask(given["mask"])}
        found = call({**given, **own, **local, "group": split.group})
        placements = [Replicate()] * split.mesh.ndim
        return DTensor.from_local(found, split.mesh, placements, run_check=False)

    return f


def _no_group(given: Mapping[str, Any]) -> None:
    if given["group"] is not None:
        checks.fail(ValueError, "group", "None with a DTensor, which has its own", repr(given["group"]))
