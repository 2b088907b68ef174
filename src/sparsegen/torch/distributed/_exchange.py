"""What the processes tell each other: a few collectives that count themselves, and fail on all ranks or on none.

A process that raised an error while the others wait for its numbers would leave them waiting. So the work between two
collectives is handed to the collective as a function: where it fails, the rank sends a mark instead of numbers, and
every rank raises the same error.
"""

from __future__ import annotations

import math
import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from sparsegen._table import checks
from sparsegen.torch._cpu import STORAGE

_T = TypeVar("_T")


@dataclass
class Traffic:
    """What this process has sent into collectives.

    >>> Traffic(rounds=3, bytes=1920).rounds
    3
    """

    rounds: int = 0
    """Collectives this rank took part in."""
    bytes: int = 0
    """Bytes this rank gave to them."""


_open: list[Traffic] = []


@contextmanager
def traffic() -> Iterator[Traffic]:
    """Count the rounds and bytes that the calls within it send, on this rank.

    Returns
    -------
    context manager of a Traffic
        With ``rounds`` and ``bytes``, which grow as calls are made.

    Examples
    --------
    >>> import sparsegen.torch.distributed as sgd
    >>> with sgd.traffic() as sent:
    ...     pass
    >>> sent.rounds, sent.bytes
    (0, 0)
    """
    seen = Traffic()
    _open.append(seen)
    try:
        yield seen
    finally:
        _open.remove(seen)


def _count(sent: Tensor) -> None:
    for seen in _open:
        seen.rounds += 1
        seen.bytes += sent.numel() * sent.element_size()


@contextmanager
def single_process() -> Iterator[None]:
    """Make this process a group of its own, where there is none: to try things, and for tests.

    Returns
    -------
    context manager
        Within it there is a default process group.

    Examples
    --------
    >>> import torch.distributed as dist, sparsegen.torch.distributed as sgd
    >>> with sgd.single_process():
    ...     dist.get_world_size()
    1
    """
    if dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def check_group(group: Any) -> None:
    """Refuse what is no process group that this process is in."""
    if not (dist.is_available() and dist.is_initialized()):
        condition = "a process group, or None after torch.distributed.init_process_group has made the default one"
        checks.fail(ValueError, "group", condition, f"{group} where none was made")
    if group is not None and not isinstance(group, dist.ProcessGroup):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            checks.fail(TypeError, "group", "a torch.distributed.ProcessGroup or None", type(group).__name__)
        checks.fail(ValueError, "group", "one that this process belongs to", "one of other processes")


class Exchange:
    """The collectives of one call among the ranks of a group."""

    def __init__(self, group: Any, device: torch.device | str = "cpu") -> None:
        check_group(group)
        self.group, self.device = group, torch.device(device)
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def total(self, work: Callable[[], Tensor], shape: Sequence[int]) -> Tensor:
        """The sum over all ranks of what `work` makes, in float64: the same bits on every rank."""
        return self._reduced(work, shape, dist.ReduceOp.SUM)

    def largest(self, work: Callable[[], Tensor], shape: Sequence[int]) -> Tensor:
        """The largest over all ranks of what `work` makes, which has no NaN."""
        return self._reduced(work, shape, dist.ReduceOp.MAX)

    def _reduced(self, work: Callable[[], Tensor], shape: Sequence[int], op: Any) -> Tensor:
        sent = torch.zeros(math.prod(shape) + 1, dtype=torch.float64, device=self.device)  # the last: did it fail?
        failure = self._fill(sent[:-1], work)
        sent[-1] = failure is not None
        _count(sent)
        dist.all_reduce(sent, op, group=self.group)
        self._raise_together(failure, bool(sent[-1] > 0))
        return sent[:-1].reshape(tuple(shape))

    def gathered(self, work: Callable[[], Tensor], shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """What `work` makes on each rank, (ranks, *shape), in the order of ranks."""
        sent = torch.zeros(math.prod(shape) + 1, dtype=dtype, device=self.device)
        failure = self._fill(sent[:-1], work)
        sent[-1] = failure is not None
        _count(sent)
        got = sent.new_empty(self.size, sent.numel())
        dist.all_gather(list(got.unbind(0)), sent, group=self.group)
        self._raise_together(failure, bool((got[:, -1] > 0).any()))
        return got[:, :-1].reshape(self.size, *shape)

    def together(self, work: Callable[[], _T]) -> _T:
        """What `work` makes on this rank, once it has been made on all."""
        made: list[_T] = []

        def run() -> Tensor:
            made.append(work())
            return torch.zeros(0)

        self.total(run, (0,))
        return made[0]

    def objects(self, work: Callable[[], _T]) -> list[_T]:
        """What `work` makes on each rank, pickled: for what is small and of another size on each."""
        mine, found = self.together(work), [None] * self.size
        dist.all_gather_object(found, mine, group=self.group)
        _count(torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8))
        return found  # type: ignore[return-value]

    @staticmethod
    def _fill(sent: Tensor, work: Callable[[], Tensor]) -> Exception | None:
        try:
            sent.copy_(work().detach().reshape(-1))
        except Exception as error:  # told to the others, and raised there
            return error
        return None

    def _raise_together(self, failure: Exception | None, somewhere: bool) -> None:
        if not somewhere:
            return
        told: list[Any] = [None] * self.size
        mine = None if failure is None else (type(failure).__name__, str(failure))
        dist.all_gather_object(told, mine, group=self.group)
        if failure is not None:
            raise failure
        rank = next(i for i, what in enumerate(told) if what is not None)
        _raise_as_told(rank, *told[rank])


def _raise_as_told(rank: int, kind: str, text: str) -> NoReturn:
    """Raise what another rank has raised."""
    known = {"ValueError": ValueError, "TypeError": TypeError}.get(kind)
    if known is not None and text.startswith("sparsegen:"):
        raise known(f"{text.removesuffix('.')} on rank {rank}.")
    checks.fail(RuntimeError, "every rank", "able to finish its part", f"{kind} on rank {rank}: {text}")


# What every rank must have alike, as numbers that are compared: (what it is called, how a number is shown).
_DTYPES = {number: dtype for dtype, number in STORAGE.items()}
_MOST_AXES = 8


class Part(NamedTuple):
    """Where the classes of this rank stand among all."""

    sizes: tuple[int, ...]
    """Number of classes of each rank."""
    first: int
    """Index of this rank's first class."""

    @property
    def classes(self) -> int:
        """Number of classes of all ranks together."""
        return sum(self.sizes)


class Call(NamedTuple):
    """What a rank was called with, as far as all ranks must be called with the same."""

    name: str
    scores: Tensor
    dim: int
    controls: tuple[Any, ...] = ()
    target: tuple[int, int] = (0, 0)
    """Which form of a target, and a sum over what it holds."""

    def numbers(self) -> list[int]:
        """As numbers; the last is the number of classes."""
        z = self.scores
        lead = [n for i, n in enumerate(z.shape) if i != self.dim % z.dim()]
        if len(lead) > _MOST_AXES:
            checks.fail(ValueError, "scores", f"of at most {_MOST_AXES + 1} axes", tuple(z.shape))
        wants = [t.requires_grad for t in (z, *self.controls) if isinstance(t, Tensor)]
        grads = sum(2**i for i, wanted in enumerate(wants) if wanted and torch.is_grad_enabled())
        control = sum(float(c.detach().double().sum()) if isinstance(c, Tensor) else c or 0.0 for c in self.controls)
        return [
            zlib.crc32(self.name.encode()), STORAGE[z.dtype], len(lead), *lead, *[1] * (_MOST_AXES - len(lead)), grads,
            torch.tensor(control, dtype=torch.float64).view(torch.int64).item(), *self.target, z.shape[self.dim],
        ]  # fmt: skip


def agree(ex: Exchange, check: Callable[[], Call]) -> Part:
    """One round in which every rank says what it was called with; what differs, or fails on one, fails on all."""
    told = ex.gathered(lambda: torch.tensor(check().numbers()), (8 + _MOST_AXES,), torch.int64).tolist()
    for rank, other in enumerate(told):
        if other[:-1] != told[0][:-1]:
            _refuse(rank, told[0], other)
    sizes = tuple(int(numbers[-1]) for numbers in told)
    return Part(sizes, sum(sizes[: ex.rank]))


def _refuse(rank: int, first: list[int], other: list[int]) -> NoReturn:
    """Name the first thing in which two ranks differ."""

    def lead(numbers: list[int]) -> tuple[int, ...]:
        return tuple(numbers[3 : 3 + numbers[2]])

    at, rest = 3 + _MOST_AXES, "the same on every rank"
    differs = [a != b for a, b in zip(first, other)]
    if differs[0]:
        checks.fail(ValueError, "the call", rest, f"another function or other options on rank {rank} than on rank 0")
    if differs[1]:
        shown = _DTYPES[first[1]], _DTYPES[other[1]]
        checks.fail(ValueError, "the dtype of scores", rest, f"{shown[0]} on rank 0 and {shown[1]} on rank {rank}")
    if any(differs[2:at]):
        got = f"{lead(first)} on rank 0 and {lead(other)} on rank {rank}"
        checks.fail(ValueError, "the shape of scores without the class axis", rest, got)
    if differs[at]:
        checks.fail(ValueError, "requires_grad", rest, f"another on rank {rank} than on rank 0")
    if differs[at + 1]:
        checks.fail(ValueError, "the control", rest, f"another on rank {rank} than on rank 0")
    checks.fail(ValueError, "the target", rest, f"another on rank {rank} than on rank 0")
