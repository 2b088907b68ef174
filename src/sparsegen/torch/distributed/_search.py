"""The threshold of rows whose classes lie on several ranks: three rounds, or a few more where a row's support is wide.

The projection of a part of a row has a threshold that is a lower bound on the whole row's, so the support of the whole
lies in the supports of the parts. Round one finds the largest of these bounds (and, with a share of the radius for each
part, an upper bound). What lies above it is little, and is
gathered in round two: every rank then knows the row's support, with the same bits. Rows with more than fits are
searched by brackets: each round counts and sums what lies above several points at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sparsegen.torch._route import engine
from sparsegen.torch.distributed._exchange import Exchange

# What a message has room for: entries of one row on all ranks together, and of one rank at most and at least.
ROOM, MOST, LEAST = 1024, 64, 4
POINTS = 32  # thresholds tried in one round for rows that do not fit
_EPS = torch.finfo(torch.float64).eps


class Found(NamedTuple):
    """This rank's part of the support of each row, and what all ranks know of the rows."""

    rows: Tensor
    cols: Tensor
    p: Tensor  # probabilities there, float64
    shifted: Tensor  # scores there minus the row's base, float64
    base: Tensor  # (rows,) the largest score of each row, or 0 where that keeps more digits
    broken: Tensor  # (rows,) rows that have no projection
    empty: Tensor  # (rows, classes) zeros to write on


class _Local(NamedTuple):
    """The support of this part alone."""

    rows: Tensor
    cols: Tensor
    x: Tensor
    bounds: Tensor  # (rows, 4): largest entry, lower and upper bound of the threshold, is it broken?
    empty: Tensor


def room(ranks: int) -> int:
    """How many entries of a row one rank may send."""
    return max(LEAST, min(MOST, ROOM // ranks))


def _per_row(rows: Tensor, values: Tensor, n: int, largest: bool = False) -> Tensor:
    """Sum or largest of the values of each row."""
    if largest:
        start = torch.full((n,), -math.inf, dtype=torch.float64, device=rows.device)
        return start.scatter_reduce_(0, rows, values, "amax")
    return torch.zeros(n, dtype=torch.float64, device=rows.device).index_add_(0, rows, values)


def _counts(rows: Tensor, n: int) -> Tensor:
    return torch.bincount(rows, minlength=n)


def _local(x: Tensor, r: Tensor, mask: Tensor | None, ranks: int) -> _Local:
    n = len(x)
    p = engine(x).project(x, r, -1, mask)
    rows, cols = (p > 0).nonzero(as_tuple=True)
    broken = torch.isnan(p[:, 0]) if x.shape[1] else torch.zeros(n, dtype=torch.bool, device=x.device)
    values = x[rows, cols].double()
    top, size, tau, slack = _threshold(rows, values, r)
    high, long = top.clone(), (size > room(ranks)) & (r > 0) & (r < math.inf)
    if bool(long.any()):  # were all parts alike, each would have its share of the radius
        share, some = r[long] / ranks, x[long]
        at, where = (engine(x).project(some, share, -1, mask if mask is None else mask[long]) > 0).nonzero(
            as_tuple=True
        )
        _, _, above, wide = _threshold(at, some[at, where].double(), share)
        high[long] = above + wide
    return _Local(rows, cols, values, torch.stack([top, tau - slack, high, broken.double()], -1), p.zero_())


def _threshold(rows: Tensor, values: Tensor, r: Tensor) -> tuple[Tensor, ...]:
    """Largest entry, size and threshold of supports with these values, and how far rounding may have moved that."""
    n = len(r)
    top, size = _per_row(rows, values, n, largest=True), _counts(rows, n)
    tau = top + (_per_row(rows, values - top[rows], n) - r) / size.clamp(min=1)
    slack = (size + 8) * _EPS * (abs(top) + r)
    none = (size == 0) | torch.isinf(r)
    return top, size, torch.where(none, -math.inf, tau), torch.where(none, 0.0, slack)


def _power(e: Tensor) -> Tensor:
    """Two to a power between -1022 and 1023, exactly."""
    return ((e.long() + 1023) << 52).view(torch.float64)


class _Scale(NamedTuple):
    """Rows measured from a base, in units of a power of two near the radius: nothing overflows, little is rounded."""

    base: Tensor
    half: Tensor  # the exponent in two parts, for each alone is a number
    rest: Tensor
    radius: Tensor  # from 1/2 to 1

    @classmethod
    def of(cls, top: Tensor, r: Tensor, ordinary: Tensor) -> _Scale:
        mantissa, e = torch.frexp(torch.where(ordinary, r, 1.0))
        base = torch.where(ordinary & (abs(top) >= 2 * r), top, 0.0)
        return cls(base, _power(-(e // 2)), _power(-(e - e // 2)), mantissa)

    def __call__(self, x: Tensor, rows: Tensor) -> Tensor:
        return (x - self.base[rows]) * self.half[rows] * self.rest[rows]


def find(ex: Exchange, x: Tensor, r: Tensor, mask: Tensor | None) -> Found:
    """Find the support of rows whose parts `x` (rows, classes here) lie on the ranks, for one radius per row."""
    n = len(x)
    here: list[_Local] = []

    def bounds() -> Tensor:
        here.append(_local(x, r, mask, ex.size))
        return here[0].bounds

    top, low, high, bad = ex.largest(bounds, (n, 4)).unbind(-1)
    rows, cols, values, _, empty = here[0]
    broken, even = bad > 0, (r == 0) | (r == math.inf)
    ordinary = ~broken & ~even & (top > -math.inf)
    low = torch.maximum(low, top - r - 2 * _EPS * (abs(top) + r))
    above = torch.where((r == 0)[rows], values == top[rows], values > low[rows]) & ~broken[rows]
    rows, cols, values = rows[above], cols[above], values[above]
    scale = _Scale.of(top, r, ordinary)
    u = scale(values, rows)
    size, fits, sent = _gather(ex, x.dtype, rows, values, n)
    tau, rest, count = _of_gathered(scale, sent, x.dtype)
    long = (ordinary & ~fits).nonzero().squeeze(-1)
    if len(long):
        all_rows = torch.arange(n, device=rows.device)
        low, high = scale(low, all_rows), scale(torch.minimum(high, top), all_rows)
        tau[long], rest[long], count[long] = _brackets(ex, long, rows, u, scale.radius, low, high)
    t = (u - tau[rows]) - rest[rows]
    p = torch.where(even[rows], 1 / size.clamp(min=1).double()[rows], t / scale.radius[rows])
    # As the kernel has it: what lies within its rounding error of the threshold is on it, and not in the support.
    blur = torch.where(even, 0.0, 2 * torch.finfo(x.dtype).eps / count.clamp(min=1))
    chosen = p > blur[rows]
    base = scale.base
    return Found(rows[chosen], cols[chosen], p[chosen], (values - base[rows])[chosen], base, broken, empty)


def _gather(ex: Exchange, dtype: torch.dtype, rows: Tensor, values: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Number of candidates of each row, do they fit, and those that do: (n, ranks * room), -inf where there is none."""
    most = room(ex.size)
    width = 8 + most * dtype.itemsize

    def message() -> Tensor:
        size = _counts(rows, n)
        slot = torch.arange(len(rows), device=rows.device) - (torch.cumsum(size, 0) - size)[rows]
        kept = (size <= most)[rows]
        entries = torch.full((n, most), -math.inf, dtype=dtype, device=rows.device)
        entries[rows[kept], slot[kept]] = values[kept].to(dtype)
        return torch.cat([size.unsqueeze(-1).view(torch.uint8), entries.view(torch.uint8)], -1)

    got = ex.gathered(message, (n, width), torch.uint8)
    sizes = got[..., :8].contiguous().view(torch.int64).squeeze(-1)  # (ranks, n)
    entries = got[..., 8:].contiguous().view(dtype)  # (ranks, n, most)
    return sizes.sum(0), (sizes <= most).all(0), entries.permute(1, 0, 2).reshape(n, ex.size * most).double()


def _of_gathered(scale: _Scale, sent: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Threshold, its remainder and the size of the support of rows that every rank has in full."""
    n, width = sent.shape
    rows = torch.arange(n, device=sent.device).unsqueeze(-1).expand(n, width)
    u, r = scale(sent, rows), scale.radius
    chosen = engine(u).project(u, r, -1, None) > 0
    count = chosen.sum(-1).clamp(min=1)
    tau = (torch.where(chosen, u, 0.0).sum(-1) - r) / count
    rest = (torch.where(chosen, u - tau.unsqueeze(-1), 0.0).sum(-1) - r) / count
    return tau, rest, count


def _above(rows: Tensor, u: Tensor, points: Tensor) -> Tensor:
    """Number and excess of the entries above each of a row's points: (rows, points, 2)."""
    n, m = points.shape
    found = torch.zeros(n, m, 2, dtype=torch.float64, device=u.device)
    for j in range(m):
        excess = u - points[rows, j]
        on = excess > 0
        found[:, j, 0] = _counts(rows[on], n)
        found[:, j, 1] = _per_row(rows[on], excess[on], n)
    return found


def _brackets(
    ex: Exchange, long: Tensor, rows: Tensor, u: Tensor, r: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Threshold, remainder and size of the support of the rows `long`, from brackets around their thresholds.

    The excess over a point falls with the point and is convex: Newton's step from below the threshold stays below it,
    the chord between two points ends above it. It is found where no entry lies between the two points around it, or
    where the set above a step is the one that the step was computed from.
    """
    index = torch.full_like(r, -1, dtype=torch.int64)
    index[long] = torch.arange(len(long), device=long.device)
    rows = index[rows]
    rows, u = rows[rows >= 0], u[rows >= 0]
    r, low, high = r[long], low[long], high[long]
    steps = torch.arange(POINTS, device=u.device) / POINTS
    tau, rest, size, last = low, torch.zeros_like(r), torch.zeros_like(r), torch.full_like(r, math.inf)
    done = torch.zeros_like(r, dtype=torch.bool)
    while not bool(done.all()):
        points = low.unsqueeze(-1) + (high - low).clamp(min=0).unsqueeze(-1) * steps
        kept = u > low[rows]
        rows, u = rows[kept], u[kept]
        count, excess = ex.total(lambda: _above(rows, u, points), (*points.shape, 2)).unbind(-1)  # noqa: B023
        settled = count[:, 0] >= last
        at = torch.where(settled, 0, (excess >= r.unsqueeze(-1)).sum(-1) - 1).clamp(min=0).unsqueeze(-1)
        (t, t_next), (f, f_next), (n, n_next) = (_around(table, at) for table in (points, excess, count))
        step, new = (f - r) / n.clamp(min=1), ~done
        tau, rest, size, last = (torch.where(new, b, a) for a, b in ((tau, t), (rest, step), (size, n), (last, n)))
        done = done | settled | ((n == n_next) & (t < t_next))
        falls = f - f_next
        chord = t + (f - r) * (t_next - t) / torch.where(falls > 0, falls, 1.0)
        low, high = torch.maximum(low, t + step), torch.where(falls > 0, torch.minimum(chord, t_next), high)
    return tau, rest, size.long()


def _around(table: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """A row's entry at a place, and the one after it."""
    after = (at + 1).clamp(max=table.shape[-1] - 1)
    return table.gather(-1, at).squeeze(-1), table.gather(-1, after).squeeze(-1)
