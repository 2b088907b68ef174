"""Attention whose weights are one of the maps: jax.nn.dot_product_attention with weights that can be exactly 0."""

from __future__ import annotations

import functools
import math
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp

from sparsegen._table import checks
from sparsegen._table.controls import controls_of, mapping_name
from sparsegen._table.maps import MAPS
from sparsegen.jax._apply import apply
from sparsegen.jax._inputs import check_scores, check_where, is_array
from sparsegen.jax._project import working

WEIGHTS = "(batch, heads, queries, keys), the shape of the weights"


def _check_arrays(query: Any, key: Any, value: Any) -> tuple[jax.Array, ...]:
    """The three with four axes, of one dtype and of shapes that go together."""
    given: list[jax.Array] = []
    for name, array in (("query", query), ("key", key), ("value", value)):
        t, _ = check_scores(array, -1, name)
        if t.ndim not in (3, 4):
            checks.fail(ValueError, name, "of shape (batch, length, heads, features), batch optional", t.shape)
        if given and t.dtype != given[0].dtype:
            checks.fail(TypeError, name, f"of the query's dtype {given[0].dtype}", f"dtype {t.dtype}")
        given.append(t if t.ndim == 4 else t[None])
    q, k, v = given
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        condition = f"of {q.shape[0]} batch entries and {q.shape[3]} features, as the query"
        checks.fail(ValueError, "key", condition, f"shape {k.shape}")
    if v.shape[:3] != k.shape[:3]:
        checks.fail(ValueError, "value", f"of the key's batch, length and heads {k.shape[:3]}", f"shape {v.shape}")
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        checks.fail(ValueError, "the number of heads of key", f"a divisor of the query's {q.shape[2]}", k.shape[2])
    return q, k, v


def _lengths(name: str, lengths: Any, batch: int) -> jax.Array:
    if not is_array(lengths) or not jnp.issubdtype(lengths.dtype, jnp.integer) or lengths.shape != (batch,):
        got = f"shape {lengths.shape} of dtype {lengths.dtype}" if is_array(lengths) else type(lengths).__name__
        checks.fail(ValueError, name, f"an integer array of shape ({batch},)", got)
    return jnp.asarray(lengths)[:, None, None, None]


def _window(size: Any) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else size
    if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(n, int) for n in pair):
        checks.fail(TypeError, "local_window_size", "an integer or a pair of integers", repr(size))
    return pair


def _allowed(
    shape: tuple[int, ...], mask: jax.Array | None, is_causal: bool, query_lengths: Any, key_lengths: Any, window: Any
) -> jax.Array | None:
    """Which keys each query may choose, of four axes that broadcast to the weights; None: all."""
    batch, _, queries, keys = shape
    i, j = jnp.arange(queries)[:, None], jnp.arange(keys)
    parts = [] if mask is None else [mask]
    if is_causal:
        parts.append(i >= j)
    if window is not None:
        left, right = _window(window)
        parts.append((i <= j + left) & (i >= j - right))
    if query_lengths is not None:
        parts.append(i < _lengths("query_seq_lengths", query_lengths, batch))
    if key_lengths is not None:
        parts.append(j < _lengths("key_value_seq_lengths", key_lengths, batch))
    return functools.reduce(jnp.logical_and, parts) if parts else None


def _beside(name: str, array: Any, shape: tuple[int, ...]) -> Any:
    """A mask or a bias that broadcasts to the weights."""
    if name == "mask" or array is None:
        return check_where(array, shape, name, WEIGHTS)
    bias, _ = check_scores(array, -1, name)
    checks.broadcasts(name, bias.shape, shape, WEIGHTS)
    return bias


@overload
def sparse_attention(
    query: Any, key: Any, value: Any, bias: Any = ..., mask: Any = ..., *, mapping: str = ...,
    scale: float | None = ..., is_causal: bool = ..., query_seq_lengths: Any = ..., key_value_seq_lengths: Any = ...,
    local_window_size: int | tuple[int, int] | None = ..., return_weights: Literal[False] = ..., **controls: Any,
) -> jax.Array: ...  # fmt: skip
@overload
def sparse_attention(
    query: Any, key: Any, value: Any, bias: Any = ..., mask: Any = ..., *, mapping: str = ...,
    scale: float | None = ..., is_causal: bool = ..., query_seq_lengths: Any = ..., key_value_seq_lengths: Any = ...,
    local_window_size: int | tuple[int, int] | None = ..., return_weights: Literal[True], **controls: Any,
) -> tuple[jax.Array, jax.Array]: ...  # fmt: skip
def sparse_attention(
    query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *, mapping: str = "sparsemax",
    scale: float | None = None, is_causal: bool = False, query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None, local_window_size: int | tuple[int, int] | None = None,
    return_weights: bool = False, **controls: Any,
) -> Any:  # fmt: skip
    """Attention with sparse weights: jax.nn.dot_product_attention with one of the maps for softmax.

    Composed of matrix products and the map; the weights are held in memory. A query that may attend to nothing gets
    zeros, where softmax would spread over what is hidden.

    Parameters
    ----------
    query : Array (batch, queries, heads, features)
        The batch axis may be left out of all arrays.
    key, value : Array (batch, keys, heads, features)
        Of the query's dtype. With fewer heads than the query, as many neighbouring heads of it as fit share one.
    bias : Array, optional
        Added to the scores; broadcasts to the weights (batch, heads, queries, keys). -inf hides a key.
    mask : boolean Array, optional
        Broadcasts to the weights; True may attend.
    mapping : str
        A name of the table of maps.
    scale : float, optional
        Of the scores; 1/sqrt(features) if left out.
    is_causal : bool
        Query i attends to the keys 0 to i.
    query_seq_lengths, key_value_seq_lengths : integer Array (batch,), optional
        Queries and keys beyond these lengths take no part.
    local_window_size : int or (int, int), optional
        How far to the left and to the right of its own place a query may attend.
    return_weights : bool
        Also return the weights.
    **controls : number or Array
        The controls of the map (``lam``, ``q``, ``temperature``, ``alpha``). An array broadcasts to the weights without
        the axis of keys, as one of shape (heads, 1) does.

    Returns
    -------
    out : Array (batch, queries, heads, features)
        The mean of the values under the weights, of the query's dtype.
    weights : Array (batch, heads, queries, keys)
        Only with ``return_weights=True``.

    Examples
    --------
    >>> import jax.numpy as jnp, sparsegen.jax as sgj
    >>> query, key = jnp.array([[[2.0]]]), jnp.array([[[1.0]], [[0.75]], [[-1.0]]])
    >>> out, weights = sgj.sparse_attention(query, key, key, return_weights=True)
    >>> weights.tolist()
    [[[0.75, 0.25, 0.0]]]
    """
    own = controls_of(mapping_name(mapping, MAPS), MAPS[mapping].controls, controls)
    q, k, v = _check_arrays(query, key, value)
    (batch, queries, heads, features), (keys, groups) = q.shape, k.shape[1:3]
    shape = batch, heads, queries, keys
    mask, bias = _beside("mask", mask, shape), _beside("bias", bias, shape)
    q, k, v = working(q), working(k), working(v)
    factor = 1 / math.sqrt(max(features, 1)) if scale is None else scale
    grouped = q.reshape(batch, queries, groups, -1, features)
    scores = jnp.einsum("btghf,bsgf->bghts", grouped, k).reshape(shape) * factor
    scores = scores if bias is None else scores + working(bias).astype(scores.dtype)
    allowed = _allowed(shape, mask, is_causal, query_seq_lengths, key_value_seq_lengths, local_window_size)
    weights = apply(mapping, scores, own, -1, allowed, False)
    out = jnp.einsum("bghts,bsgf->btghf", weights.reshape(batch, groups, -1, queries, keys), v)
    dtype, single = jnp.asarray(query).dtype, jnp.ndim(query) == 3
    out, weights = out.reshape(batch, queries, heads, -1).astype(dtype), weights.astype(dtype)
    out, weights = (out[0], weights[0]) if single else (out, weights)
    return (out, weights) if return_weights else out
