"""A linear layer whose outputs are split over processes, and the label sets of what it scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsegen._table import checks
from sparsegen._table.controls import controls_of, mapping_name
from sparsegen._table.maps import MAPS
from sparsegen._table.radius import of_mean
from sparsegen.torch.distributed._apply import Given, exchange
from sparsegen.torch.distributed._exchange import Exchange
from sparsegen.torch.distributed._search import find

BLOCK = 4096  # rows of weights that are drawn together: the same rows whatever the number of ranks


def span(classes: int, ranks: int, rank: int) -> tuple[int, int]:
    """First class of a rank and the one behind its last, as torch.chunk and DTensor split them.

    >>> [span(10, 4, rank) for rank in range(4)]
    [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    step = -(-classes // ranks)
    return min(step * rank, classes), min(step * (rank + 1), classes)


class _Linear(torch.autograd.Function):
    """Hidden features (the same on every rank) to this rank's scores. Sparse gradients stay sparse."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, ex: Exchange) -> Tensor:
        ctx.ex, ctx.biased = ex, bias is not None
        ctx.save_for_backward(hidden, weight)
        return nn.functional.linear(hidden, weight, bias)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        hidden, weight = ctx.saved_tensors
        grads: list[Tensor] = []

        def back() -> Tensor:
            of_hidden, *rest = (_sparse_back if v.is_sparse else _dense_back)(hidden, weight, v)
            grads.extend(rest)
            return of_hidden

        of_hidden = ctx.ex.total(back, hidden.shape).to(hidden.dtype)
        return of_hidden, grads[0], grads[1] if ctx.biased else None, None


def _dense_back(hidden: Tensor, weight: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, h = v.reshape(-1, v.shape[-1]), hidden.reshape(-1, hidden.shape[-1])
    return v @ weight, rows.t() @ h, rows.sum(0)


def _sparse_back(hidden: Tensor, weight: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same where few scores have a gradient: only their rows of the weights are touched."""
    (rows, cols), values = v._indices(), v._values()
    touched, at = torch.unique(cols, return_inverse=True)
    of_hidden = torch.zeros_like(hidden).index_add_(0, rows, values.unsqueeze(-1) * weight[cols])
    block = hidden.new_zeros(len(touched), hidden.shape[1])
    block.index_add_(0, at, values.unsqueeze(-1) * hidden[rows])
    sums = hidden.new_zeros(len(touched)).index_add_(0, at, values)
    with torch.sparse.check_sparse_tensor_invariants(False):
        index = touched.unsqueeze(0)
        of_weight = torch.sparse_coo_tensor(index, block, tuple(weight.shape), is_coalesced=True)
        return of_hidden, of_weight, torch.sparse_coo_tensor(index, sums, (len(weight),), is_coalesced=True)


class ShardedLinear(nn.Module):
    """A linear layer that holds the weights of its rank's classes alone.

    Every rank gives the same hidden features and gets the scores of its own classes, for the losses and maps of this
    module. The weights drawn at the start do not depend on the number of ranks. With losses that have
    ``sparse_grad=True`` the gradients of the weights are sparse: only rows that a score of the batch moves.

    Parameters
    ----------
    in_features, out_features : int
        Hidden features; classes of all ranks together.
    bias : bool
        Add a number per class, 0 at the start.
    group : torch.distributed.ProcessGroup, optional
        The ranks that the classes are split over. None is the default group.
    seed : int
        Of the weights at the start, which are uniform as those of torch.nn.Linear.

    Examples
    --------
    >>> import torch, sparsegen.torch.distributed as sgd
    >>> with sgd.single_process():
    ...     layer = sgd.ShardedLinear(3, 5)
    ...     layer(torch.ones(2, 3)).shape, (layer.first, layer.last)
    (torch.Size([2, 5]), (0, 5))
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, group: Any = None, seed: int = 0
    ) -> None:
        super().__init__()
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if checks.integer(name, value) < 1:
                checks.fail(ValueError, name, "a positive integer", value)
        self.in_features, self.out_features, self.group, self.seed = in_features, out_features, group, seed
        ex = Exchange(group)
        self.first, self.last = span(out_features, ex.size, ex.rank)
        self.weight = nn.Parameter(torch.empty(self.last - self.first, in_features))
        self.bias = nn.Parameter(torch.zeros(self.last - self.first)) if bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights anew, block by block."""
        bound = 1 / math.sqrt(self.in_features)
        for block in range(self.first // BLOCK, -(-self.last // BLOCK)):
            start = block * BLOCK
            drawn = torch.rand(BLOCK, self.in_features, generator=torch.Generator().manual_seed(self.seed + block))
            a, b = max(self.first, start), min(self.last, start + BLOCK)
            self.weight[a - self.first : b - self.first] = (2 * drawn[a - start : b - start] - 1) * bound
        if self.bias is not None:
            self.bias.zero_()

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the scores of this rank's classes."""
        if hidden.shape[-1] != self.in_features:
            checks.fail(ValueError, "hidden", f"of {self.in_features} features", hidden.shape[-1])
        return _Linear.apply(hidden, self.weight, self.bias, Exchange(self.group, hidden.device))

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"in_features={self.in_features}, out_features={self.out_features}, here={self.first}:{self.last}"


def label_sets(
    scores: Tensor, *, mapping: str = "sparsemax", mask: Tensor | None = None, group: Any = None, **controls: Any
) -> Any:
    """The classes that a map gives a positive probability, of all ranks, as a sparse matrix.

    Nothing of the size of the scores is made but this rank's work, and nothing of that size is sent.

    Parameters
    ----------
    scores : Tensor (rows, classes of this rank)
        Scores of a batch.
    mapping : str
        A map of linear scores.
    mask : boolean Tensor, optional
        Broadcasts to the scores; True where an entry may be chosen.
    group : torch.distributed.ProcessGroup, optional
        The ranks that the classes are split over. None is the default group.
    **controls : number or Tensor
        Those of the map.

    Returns
    -------
    scipy.sparse.csr_array (rows, classes of all ranks)
        The probabilities, the same on every rank.

    Examples
    --------
    >>> import torch, sparsegen.torch.distributed as sgd
    >>> with sgd.single_process():
    ...     found = sgd.label_sets(torch.tensor([[0.25, 1.0, 0.5]]))
    >>> found.indices.tolist(), found.data.tolist()
    ([1, 2], [0.75, 0.25])
    """
    import scipy.sparse as sp

    m = MAPS[mapping_name(mapping, [name for name, m in MAPS.items() if m.linear])]
    ex = exchange(group, scores)
    given = Given(ex, f"label_sets {mapping}", scores, -1, mask, controls_of(mapping, m.controls, controls), "scores")
    z = given.scores.detach().float() if given.scores.dtype.itemsize == 2 else given.scores.detach()
    if z.dim() != 2:
        checks.fail(ValueError, "scores", "a matrix", f"{z.dim()} axes")
    if m.radius.of == "mean":
        q = given.controls.get("q", m.fixed.get("q"))
        radius = of_mean(torch, m.radius, *given.frame.means(z, -1, given.mask), q)
    else:
        radius = m.radius.value(torch, **given.controls)
    r = torch.as_tensor(radius, dtype=torch.float64, device=z.device).detach().expand(len(z))
    found = find(ex, z, r, None if given.mask is None else given.mask.expand(z.shape).contiguous())
    p = torch.where(found.broken, math.nan, 1.0)[found.rows] * found.p
    part = given.part.first
    told = ex.objects(
        lambda: (found.rows.numpy(force=True), (found.cols + part).numpy(force=True), p.numpy(force=True))
    )
    rows, cols, data = (np.concatenate([one[i] for one in told]) for i in range(3))
    return sp.csr_array((data, (rows, cols)), shape=(len(z), given.part.classes))
