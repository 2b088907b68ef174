"""Attention of one query at a time over the states of an encoder, with any map, as in the paper's experiments."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from sparsegen._table.checks import fail
from sparsegen.torch.attention.probes import Probed
from sparsegen.torch.modules import make_map


def _sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            fail(ValueError, name, "a positive integer", size)


class _Attention(Probed):
    """Scores of keys, a map, and the mean of the values under it."""

    def __init__(self, query_size: int, key_size: int, mapping: str | nn.Module, learnable: bool, **control: Any):
        super().__init__()
        _sizes(query_size=query_size, key_size=key_size)
        self.query_size, self.key_size = query_size, key_size
        self.map = make_map(mapping, learnable=learnable, **control)

    def project_keys(self, key: Tensor) -> Tensor:
        """Return what the scores need of the keys: the same for every query, so a decoder asks for it once."""
        raise NotImplementedError

    def scores(self, query: Tensor, projected: Tensor) -> Tensor:
        """Return the scores (batch, queries, keys)."""
        raise NotImplementedError

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor | None = None, *, mask: Tensor | None = None,
        projected: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return the mean of the values for each query, and the weights.

        Parameters
        ----------
        query : Tensor of shape (batch, queries, query_size)
        key : Tensor of shape (batch, keys, key_size)
        value : Tensor of shape (batch, keys, any), optional
            The keys themselves if not given.
        mask : boolean Tensor of shape (batch, keys) or (batch, queries, keys), optional
            True where a key may be chosen. A query with no key to choose gets zeros.
        projected : Tensor, optional
            What :meth:`project_keys` returned for these keys.

        Returns
        -------
        context : Tensor of shape (batch, queries, size of a value)
        weights : Tensor of shape (batch, queries, keys)
        """
        self._check(query, key, value, mask)
        if mask is not None and mask.dim() == 2:
            mask = mask.unsqueeze(1)
        scores = self.scores(query, self.project_keys(key) if projected is None else projected)
        weights = self.map(scores, mask)
        self._observe(weights, mask)
        return weights @ (key if value is None else value), weights

    def _check(self, query: Tensor, key: Tensor, value: Tensor | None, mask: Tensor | None) -> None:
        for name, given, size in (("query", query, self.query_size), ("key", key, self.key_size)):
            if given.dim() != 3 or given.shape[-1] != size:
                fail(ValueError, name, f"of shape (batch, length, {size})", tuple(given.shape))
        batch, keys = key.shape[:2]
        if query.shape[0] != batch:
            fail(ValueError, "query", f"of as many rows as key, {batch}", query.shape[0])
        if value is not None and (value.dim() != 3 or value.shape[:2] != (batch, keys)):
            fail(ValueError, "value", f"of shape ({batch}, {keys}, any)", tuple(value.shape))
        if mask is not None and mask.shape not in ((batch, keys), (batch, query.shape[1], keys), (batch, 1, keys)):
            fail(ValueError, "mask", f"of shape {(batch, keys)} or {(batch, query.shape[1], keys)}", tuple(mask.shape))


class AdditiveAttention(_Attention):
    """Attention by z = v' tanh(W_s s + W_h h), as the paper writes it, and any map of z.

    Parameters
    ----------
    query_size, key_size : int
        Sizes of a query s and of a key h.
    hidden_size : int, optional
        Size of v; that of a query if not given.
    mapping : str or module
        A name of the table of maps, or a module such as ``Sparsegen(0.5, learnable=True)``.
    lam, q, temperature, alpha : number, optional
        The controls of a map given by name.
    learnable : bool
        Whether that control is trained.

    Examples
    --------
    >>> import torch, sparsegen.torch as sgt
    >>> attention = sgt.AdditiveAttention(3, 4, mapping="sparsegen_lin", lam=0.75)
    >>> mask = torch.tensor([[True, True, True, True, False]])
    >>> context, weights = attention(torch.randn(1, 2, 3), torch.randn(1, 5, 4), mask=mask)
    >>> context.shape, weights.shape, weights[..., 4]
    (torch.Size([1, 2, 4]), torch.Size([1, 2, 5]), tensor([[0., 0.]], grad_fn=<SelectBackward0>))
    """

    def __init__(
        self, query_size: int, key_size: int, hidden_size: int | None = None, *, mapping: str | nn.Module = "sparsemax",
        learnable: bool = False, **control: Any,
    ) -> None:  # fmt: skip
        super().__init__(query_size, key_size, mapping, learnable, **control)
        hidden_size = query_size if hidden_size is None else hidden_size
        _sizes(hidden_size=hidden_size)
        self.W_s = nn.Linear(query_size, hidden_size)
        self.W_h = nn.Linear(key_size, hidden_size, bias=False)
        self.v = nn.Parameter(torch.empty(hidden_size).uniform_(-1, 1) / math.sqrt(hidden_size))

    def project_keys(self, key: Tensor) -> Tensor:
        """Return 2 W_h h."""
        return 2 * self.W_h(key)

    def scores(self, query: Tensor, projected: Tensor) -> Tensor:
        """Return v' tanh(W_s s + W_h h) of each query and key."""
        # tanh x = 2 sigmoid(2 x) - 1, and torch's sigmoid takes a sixth of the time of its tanh.
        halves = torch.sigmoid((2 * self.W_s(query)).unsqueeze(2) + projected.unsqueeze(1))
        return 2 * (halves @ self.v) - self.v.sum()


class DotAttention(_Attention):
    """Attention by z = s' W h ("general"), or by z = s' h with ``general=False``, and any map of z.

    Parameters
    ----------
    query_size, key_size : int
        Sizes of a query s and of a key h; equal without W.
    general : bool
        Whether there is a W.
    mapping, lam, q, temperature, learnable
        As for :class:`AdditiveAttention`.

    Examples
    --------
    >>> import torch, sparsegen.torch as sgt
    >>> attention = sgt.DotAttention(4, 4, mapping="sparsemax", general=False)
    >>> keys = torch.eye(4)[None]
    >>> attention(10 * keys[:, :1], keys)[1]
    tensor([[[1., 0., 0., 0.]]])
    """

    def __init__(
        self, query_size: int, key_size: int, *, mapping: str | nn.Module = "sparsemax", general: bool = True,
        learnable: bool = False, **control: Any,
    ) -> None:  # fmt: skip
        super().__init__(query_size, key_size, mapping, learnable, **control)
        if not general and query_size != key_size:
            fail(ValueError, "key_size", f"the query's size {query_size} where general=False", key_size)
        self.W = nn.Linear(key_size, query_size, bias=False) if general else None

    def project_keys(self, key: Tensor) -> Tensor:
        """Return W h."""
        return key if self.W is None else self.W(key)

    def scores(self, query: Tensor, projected: Tensor) -> Tensor:
        """Return s' W h of each query and key."""
        return query @ projected.transpose(1, 2)
