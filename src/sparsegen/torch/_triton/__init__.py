"""The engine of GPUs: exact kernels in Triton. Imported when the first tensor of a GPU arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsegen._table.maps import Map
from sparsegen.torch import _plain
from sparsegen.torch._cpu import lead_shape
from sparsegen.torch._triton import attention_launch as tiled
from sparsegen.torch._triton.launch import LINEAR, POWER, POWERS, Numbers, backward, forward
from sparsegen.torch._triton.layout import BACK

# By sorting, which torch does well on every device; K log K, and nothing of size K x K.
hinge_labels = _plain.hinge_labels


def project(x: Tensor, radius: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    """Project rows along `dim`; `radius` broadcasts to the rows."""
    return forward(x, radius, None, LINEAR, dim, mask, keep=False)[0]


def project_vjp(p: Tensor, v: Tensor, radius: Tensor, dim: int, want_radius: bool) -> tuple[Tensor, Tensor]:
    """Gradients of points and of the radius of each row (float64), given p and the upstream `v`."""
    found = backward(p, v, None, radius.to(torch.float64), None, None, LINEAR, dim, None)
    return found.scores, found.control


def entmax(x: Tensor, alpha: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    """Entmax along `dim`; `alpha` broadcasts to the rows. Rows that registers do not hold take plain operations."""
    if x.shape[dim] > POWERS:
        return _plain.entmax(x, alpha, dim, mask)
    return forward(x, alpha.to(torch.float64), None, POWER, dim, mask, keep=False)[0]


def entmax_vjp(p: Tensor, v: Tensor, alpha: Tensor, dim: int, want: bool) -> tuple[Tensor, Tensor]:
    """Gradients of scores and of the alpha of each row, given p and the upstream `v`."""
    if p.shape[dim] > POWERS:
        return _plain.entmax_vjp(p, v, alpha, dim, want)
    found = backward(p, v, None, alpha.to(torch.float64), None, None, POWER, dim, None)
    return found.scores, found.control


_TRANSFORMS = {"lin": 0, "exp": 1, "sq": 2, "log": 3}
_TOTAL = 3


def numbers_of(m: Map) -> Numbers:
    """A row of the table as the kernels know it."""
    return Numbers(_TRANSFORMS[m.transform], _TOTAL if m.radius.of == "sum" else m.radius.number)


def takes(m: Map, n: int, surely: Callable[[Any], bool]) -> bool:
    """Is a map of rows of n entries one call? Long rows are, where their scores are projected as they are."""
    return m.transform in _TRANSFORMS and (m.linear or surely(n <= BACK))


def map_rows(
    z: Tensor, control: Tensor, heat: Tensor | None, m: Map, dim: int, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A whole map: probabilities, and three numbers of each row for the way back."""
    p, kept = forward(z, control, heat, numbers_of(m), dim, mask, keep=True)
    return p, kept.reshape(3, *lead_shape(z, dim))


def map_rows_vjp(
    z: Tensor, p: Tensor, v: Tensor, control: Tensor, heat: Tensor | None, kept: Tensor, m: Map, dim: int,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of scores, and of control and temperature of each row."""
    found = backward(p, v, z, control, heat, kept, numbers_of(m), dim, mask)
    return found.scores, found.control, found.heat


def attends(q: Tensor, k: Tensor, v: Tensor, surely: Callable[[Any], bool]) -> bool:
    """Are these tensors ones that the attention kernels take? Empty ones and float64 are not."""
    sizes = [surely(size > 0) for t in (q, k, v) for size in t.shape]
    heads = q.shape[:-2].numel()
    small = surely(max(q.shape[-1], v.shape[-1]) <= tiled.LARGEST) and surely(heads <= tiled.HEADS)
    return q.dtype in tiled.DTYPES and all(sizes) and small


class Setting(NamedTuple):
    """What a call of attention has besides its tensors."""

    causal: bool
    scale: float
    temperature: float
    dropout: float

    def given(self, m: Map, mask: Tensor | None, seed: Tensor | None) -> tiled.Given:
        """The same as the launches take it."""
        rule = m.radius.number if m.radius.of == "mean" else 0
        weigh = m.weighing or 0
        return tiled.Given(mask, self.causal, self.scale, rule, weigh, self.temperature, self.dropout, seed)


def attention(
    q: Tensor, k: Tensor, v: Tensor, control: Tensor, mask: Tensor | None, seed: Tensor | None, m: Map, *how: Any
) -> tuple[Tensor, ...]:
    """Output of (batch, heads, length, size) tensors, and what the way back needs. `how` makes a Setting."""
    out, kept = tiled.forward(q, k, v, control, Setting(*how).given(m, mask, seed))
    return out, *kept


def attention_like(q: Tensor, k: Tensor, v: Tensor, m: Map) -> tuple[Tensor, ...]:
    """Empty tensors of the shapes that :func:`attention` gives."""
    return q.new_empty((*q.shape[:-1], v.shape[-1])), *tiled.empty_kept(q, k, v, m.weighing or 0, m.radius.of == "mean")


def attention_vjp(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, seed: Tensor | None, kept: tuple[Tensor, ...],
    out_grad: Tensor, m: Map, *how: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of query, key and value, and of the control of each row."""
    return tuple(tiled.backward(q, k, v, Setting(*how).given(m, mask, seed), tiled.Kept(*kept), out_grad))


split_scores, split_values = tiled.split_scores, tiled.split_values


def splits(m: Map, q: Tensor, k: Tensor, surely: Callable[[Any], bool]) -> bool:
    """Are these few queries against many keys, and rows that the map's own kernels search to the end?"""
    rows, keys = tiled.few_rows(q, k)[0], k.shape[2]
    return surely(rows <= tiled.FEW) and surely(keys >= tiled.LONG) and (not m.power or surely(keys <= POWERS))
