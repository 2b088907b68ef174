"""The maps and losses on rows whose classes are split over processes. Made from the tables, one for each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, overload

from torch import Tensor

from sparsegen._table.functions import control_options, made
from sparsegen._table.losses import LOSSES
from sparsegen._table.maps import MAPS
from sparsegen._table.prose import SHARDED, loss_doc, map_doc
from sparsegen.torch._apply import Info
from sparsegen.torch.distributed import _apply, _losses
from sparsegen.torch.distributed._dtensor import loss_call, map_call

Both = tuple[Tensor, Info]
Control = float | Tensor


class ShardedMap(Protocol):
    """A map, with the controls it has."""

    @overload
    def __call__(
        self, scores: Tensor, *, dim: int = ..., mask: Tensor | None = ..., return_info: Literal[False] = ...,
        group: Any = ..., **controls: Control,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def __call__(
        self, scores: Tensor, *, dim: int = ..., mask: Tensor | None = ..., return_info: Literal[True],
        group: Any = ..., **controls: Control,
    ) -> Both: ...  # fmt: skip


class ShardedLoss(Protocol):
    """A loss, with the control it has."""

    def __call__(
        self, scores: Tensor, target: Any, *, mask: Tensor | None = ..., weight: Any = ..., reduction: str = ...,
        ignore_index: int = ..., ignore_empty: bool = ..., sparse_grad: bool = ..., group: Any = ...,
        **control: Control,
    ) -> Tensor:  # fmt: skip
        """Return the loss."""
        ...


OPTIONS = {"dim": -1, "mask": None, "return_info": False, "group": None}
LOSS_OPTIONS = {"mask": None, **_losses.Options._field_defaults, "group": None}


def _map(name: str) -> Any:
    row = MAPS[name]

    def call(given: Mapping[str, Any]) -> Any:
        own = {key: given[key] for key in row.controls}
        return _apply.apply(name, given["scores"], own, *(given[option] for option in OPTIONS))

    options = {**control_options(row.controls), **OPTIONS}
    return made(name, map_doc(row, SHARDED), ["scores"], options, map_call(call, row.controls))


def _loss(name: str) -> Any:
    row = LOSSES[name]
    own = {row.control: row.default} if row.control else {}

    def call(given: Mapping[str, Any]) -> Any:
        how = _losses.Options(*(given[key] for key in _losses.Options._fields))
        control = given[row.control] if row.control else None
        return _losses.apply(name, given["scores"], given["target"], control, given["mask"], how, given["group"])

    options = {**own, **LOSS_OPTIONS}
    return made(f"{name}_loss", loss_doc(row, SHARDED), ["scores", "target"], options, loss_call(call, row.control))


def __getattr__(name: str) -> Any:
    if name in MAPS and not MAPS[name].power:  # entmax is a search of many rounds
        return _map(name)
    row = LOSSES.get(name.removesuffix("_loss"))
    if row is not None and row.form in _losses.FORMS:
        return _loss(name.removesuffix("_loss"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


sparsemax: ShardedMap = _map("sparsemax")
sparsegen_lin: ShardedMap = _map("sparsegen_lin")
sparsegen_exp: ShardedMap = _map("sparsegen_exp")
sparsegen_sq: ShardedMap = _map("sparsegen_sq")
sparsegen_log: ShardedMap = _map("sparsegen_log")
sparsecone: ShardedMap = _map("sparsecone")
sparsehourglass: ShardedMap = _map("sparsehourglass")
sum_normalization_plus: ShardedMap = _map("sum_normalization_plus")
sum_normalization: ShardedMap = _map("sum_normalization")
spherical_softmax: ShardedMap = _map("spherical_softmax")
softmax: ShardedMap = _map("softmax")
sparsegen_softmax: ShardedMap = _map("sparsegen_softmax")
hardmax: ShardedMap = _map("hardmax")
softmax_log_loss: ShardedLoss = _loss("softmax_log")
sparsemax_huber_loss: ShardedLoss = _loss("sparsemax_huber")
sparsegen_hinge_loss: ShardedLoss = _loss("sparsegen_hinge")
sparsehourglass_hinge_loss: ShardedLoss = _loss("sparsehourglass_hinge")


def project(
    points: Tensor, radius: Control = 1.0, *, dim: int = -1, mask: Tensor | None = None, return_info: bool = False,
    group: Any = None,
) -> Any:  # fmt: skip
    r"""Project rows whose classes are split over processes: the primitive behind every map.

    Parameters
    ----------
    points : Tensor
        This rank's part of the points x.
    radius : number or Tensor, at least 0
        The same on every rank; see :func:`sparsegen.torch.project`.
    dim : int
        The axis of the classes.
    mask : boolean Tensor, optional
        Broadcasts to the points; True where an entry may be chosen.
    return_info : bool
        Also return support size and threshold of each row.
    group : torch.distributed.ProcessGroup, optional
        The ranks that the classes are split over. None is the default group.

    Returns
    -------
    p : Tensor
        This rank's part of the probabilities.
    info : Info
        Only with ``return_info=True``; the same on every rank.

    Examples
    --------
    >>> import torch, sparsegen.torch.distributed as sgd
    >>> with sgd.single_process():  # torchrun starts several
    ...     sgd.project(torch.tensor([0.5, 0.25, 0.0]), 0.5)
    tensor([0.7500, 0.2500, 0.0000])
    """
    given = {"points": points, "radius": radius, "dim": dim, "mask": mask, "return_info": return_info, "group": group}
    return map_call(lambda g: _apply.apply_project(*g.values()), ("radius",), "points")(given)


def sparsegen(
    scores: Tensor, *, lam: Control = 0.0, transform: Any = "lin", dim: int = -1, mask: Tensor | None = None,
    return_info: bool = False, group: Any = None,
) -> Any:  # fmt: skip
    """Sparsemax of transformed scores with a dial, classes split over processes.

    Parameters
    ----------
    scores : Tensor
        This rank's part of the scores.
    lam : number or Tensor, below 1
        The same on every rank; see :func:`sparsegen.torch.sparsegen`.
    transform : "lin", "exp", "sq", "log" or a callable
        A callable is given this rank's part, and works on each score by itself.
    dim : int
        The axis of the classes.
    mask : boolean Tensor, optional
        Broadcasts to the scores; True where an entry may be chosen.
    return_info : bool
        Also return support size and threshold of each row.
    group : torch.distributed.ProcessGroup, optional
        The ranks that the classes are split over. None is the default group.

    Returns
    -------
    p : Tensor
        This rank's part of the probabilities.
    info : Info
        Only with ``return_info=True``; the same on every rank.

    Examples
    --------
    >>> import torch, sparsegen.torch.distributed as sgd
    >>> with sgd.single_process():  # torchrun starts several
    ...     sgd.sparsegen(torch.tensor([0.5, -0.5, 0.25]), transform=torch.abs)
    tensor([0.4167, 0.4167, 0.1667])
    """
    given = {
        "scores": scores, "lam": lam, "transform": transform, "dim": dim, "mask": mask, "return_info": return_info,
        "group": group,
    }  # fmt: skip
    return map_call(lambda g: _apply.apply_sparsegen(*g.values()), ("lam",))(given)
