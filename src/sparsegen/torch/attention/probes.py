"""Looking at attention while a model runs: how many keys each head uses, and how evenly."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from sparsegen._table import checks


class Probed(nn.Module):
    """An attention module that can be watched: its forward calls ``self._observe(weights, allowed)``.

    The call costs nothing while no probe is active. If the weights are at hand only at a price, ask ``self._probes``
    first: it is empty then.
    """

    # On the class, so that a module at rest carries nothing: no state, nothing to copy or to pickle.
    _probes: tuple[_Sums, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle without the probes, which watch this module alone."""
        state = super().__getstate__()
        state.pop("_probes", None)
        return state

    def _observe(self, weights: Tensor, allowed: Tensor | None = None) -> None:
        """Show weights to the active probes.

        ``weights`` are (..., heads, queries, keys) with four axes or more, and (..., queries, keys) of one head with
        fewer. ``allowed`` is True for keys that may be attended to. It broadcasts against the weights; of two axes
        beside weights of more, it is (batch, keys).
        """
        if not self._probes:
            return
        with torch.no_grad():
            found = _statistics(weights.detach(), allowed)
            for probe in self._probes:
                probe.add(found)


class _Sums:
    """Sums over calls, one column for each head: rows, keys allowed, keys used, zeros, entropy."""

    def __init__(self) -> None:
        self.total: Tensor | None = None

    def add(self, found: Tensor) -> None:
        self.total = found if self.total is None else self.total + found.to(self.total.device)


def _statistics(weights: Tensor, allowed: Tensor | None) -> Tensor:
    """What `_Sums` holds, of one call, as (5, heads)."""
    p = weights if weights.dim() >= 4 else weights.unsqueeze(-3)
    may = torch.ones_like(p, dtype=torch.bool) if allowed is None else _spread(allowed, weights).reshape(p.shape)
    # Counts are exact in float64; not every device has it.
    wide = torch.float32 if p.device.type == "mps" else torch.float64
    p = p.float() if p.dtype.itemsize == 2 else p
    entries = torch.stack((may, may & (p != 0), may & (p == 0))).sum(-1)
    entropy = torch.special.entr(torch.where(may, p, 0.0)).sum(-1, dtype=wide)
    rows = torch.stack((may.any(-1), *entries, entropy)).to(wide)
    heads = rows.movedim(-2, 1)  # (5, heads, ..., queries)
    return heads.reshape(5, heads.shape[1], -1).sum(-1)


def _spread(allowed: Tensor, weights: Tensor) -> Tensor:
    """`allowed` of the shape of the weights; (batch, keys) says the same of every query."""
    if allowed.dim() == 2 and weights.dim() > 2:
        allowed = allowed.reshape(allowed.shape[0], *[1] * (weights.dim() - 2), allowed.shape[1])
    return allowed.expand(weights.shape)


class AttentionProbe:
    """Collects statistics of every attention module of this library inside a model, without changing its outputs.

    Per head, over all calls inside the context: the mean number of keys used by a query (``support``), the mean
    entropy of its weights in nats (``entropy``), the share of exact zeros among the keys that could have been used
    (``zeros``) and the number of queries (``rows``). Queries that may attend to nothing are not counted, and dropout
    is not seen. Entering the context again starts anew.

    Parameters
    ----------
    model : nn.Module
        With attention of this library in it.

    Examples
    --------
    >>> import torch, sparsegen.torch as sgt
    >>> attention = sgt.MultiheadAttention(2, num_heads=2, mapping="hardmax", batch_first=True)
    >>> x = torch.tensor([[[1.0, 0.5], [0.0, 2.0], [-1.0, 0.0], [0.5, 0.25]]])
    >>> with sgt.AttentionProbe(attention) as probe:
    ...     _ = attention(x, x, x, need_weights=False)
    >>> for row in probe.table():
    ...     print(row)
    {'module': '', 'head': 0, 'support': 1.0, 'entropy': 0.0, 'zeros': 0.75, 'rows': 4}
    {'module': '', 'head': 1, 'support': 1.0, 'entropy': 0.0, 'zeros': 0.75, 'rows': 4}
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            checks.fail(TypeError, "model", "a torch.nn.Module", type(model).__name__)
        self.model = model
        self._watched: dict[str, tuple[Probed, _Sums]] = {}
        self._active = False

    def __enter__(self) -> AttentionProbe:
        """Start watching, with empty sums."""
        if self._active:
            checks.fail(RuntimeError, "a probe", "entered once at a time", "a second entry")
        found = {name: m for name, m in self.model.named_modules() if isinstance(m, Probed)}
        if not found:  # an empty table would read like attention that was never called
            checks.fail(ValueError, "model", "a module with attention of sparsegen in it", type(self.model).__name__)
        self._watched = {name: (m, _Sums()) for name, m in found.items()}
        for module, sums in self._watched.values():
            module._probes = (*module._probes, sums)
        self._active = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching; the sums stay."""
        self._active = False
        for module, sums in self._watched.values():
            rest = tuple(other for other in module._probes if other is not sums)
            if rest:
                module._probes = rest
            else:
                del module._probes

    def table(self) -> list[dict[str, Any]]:
        """One entry for each head of each module that was called; means over no rows are NaN."""
        return [row for name, (_, sums) in self._watched.items() for row in _rows(name, sums)]


def _rows(name: str, sums: _Sums) -> list[dict[str, Any]]:
    if sums.total is None:
        return []
    total = sums.total.cpu().double()
    rows, may, used, zeros, entropy = total
    columns = zip((used / rows).tolist(), (entropy / rows).tolist(), (zeros / may).tolist(), rows.tolist())
    return [
        {"module": name, "head": head, "support": s, "entropy": e, "zeros": z, "rows": int(n)}
        for head, (s, e, z, n) in enumerate(columns)
    ]
