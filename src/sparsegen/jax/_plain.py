"""The projection in plain operations, classes last: what runs on GPUs and TPUs, and on a CPU without the handlers.

Newton's method from the left, all rows together, on the maxima of blocks first: any subset of the entries gives a lower
bound on the threshold. No derivative is asked of it.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sparsegen._table import plain

BLOCK = 32
# Beyond what the bound of docs/math.md allows for rows of 2^53 entries: only rounding could go round in circles.
MOST = 64


def _total(x: jax.Array) -> jax.Array:
    """Sums over the last axis, which stays with size 1, as products with ones: XLA adds a row up in one chain."""
    return jnp.matmul(x, jnp.ones((x.shape[-1], 1), x.dtype), precision="highest")


def _blocks(t: jax.Array) -> jax.Array:
    """Rows cut into blocks of a length that divides theirs."""
    k = t.shape[-1]
    return t.reshape(*t.shape[:-1], -1, BLOCK if k % BLOCK == 0 else k)


def _newton(t: jax.Array, r: jax.Array, tau: jax.Array) -> jax.Array:
    """The tau with which sum [t - tau]_+ is r, or a little below it, from one that is not above it."""

    def step(state: Any) -> Any:
        i, tau, n, _ = state
        above = t - tau
        count = _total((above > 0).astype(t.dtype))
        found = tau + (_total(jnp.maximum(above, 0)) - r) / jnp.maximum(count, 1)
        return i + 1, jnp.maximum(tau, found), count, jnp.any(count < n)

    # All is made of the data: in shard_map a constant would have another type than what the body returns.
    tau = tau + 0 * jnp.max(jnp.where(t == t, 0 * jnp.maximum(t, -1), 0), axis=-1, keepdims=True)
    start = jnp.int32(0), tau, tau + math.inf, jnp.any(tau < math.inf)
    return lax.while_loop(lambda state: state[3] & (state[0] < MOST), step, start)[1]


def _solve(t: jax.Array, r: jax.Array) -> jax.Array:
    """[t - tau]_+ / r with the sum 1, of rows whose largest entry is 0."""
    k, tau = t.shape[-1], -r
    if k >= 4 * BLOCK:
        pad = [(0, 0)] * (t.ndim - 1) + [(0, -k % BLOCK)]
        t = jnp.pad(t, pad, constant_values=-math.inf)  # which is never chosen
        tau = _newton(jnp.max(_blocks(t), axis=-1), r, tau)
    above = t - _newton(t, r, tau)
    chosen = above > 0
    # What rounding left over of the sum, added up in short chains, is taken off once more.
    total = jnp.sum(_total(_blocks(jnp.where(chosen, above, 0)))[..., 0], axis=-1, keepdims=True)
    left = (total - r) / jnp.maximum(_total(chosen.astype(t.dtype)), 1)
    return jnp.where(chosen, jnp.maximum(above - left, 0) / r, 0)[..., :k]


def _comfort(radius: jax.Array) -> jax.Array:
    """A power of two that brings a radius out of the range where sums overflow or vanish: scaling by it is exact."""
    far = 2.0 ** (jnp.finfo(radius.dtype).maxexp // 2)
    return jnp.where(radius > far, 1 / far, jnp.where(radius < 1 / far, far, 1)).astype(radius.dtype)


def project(x: jax.Array, radius: jax.Array) -> jax.Array:
    """[x - tau]_+ / r with tau such that it sums to 1, one radius per row: (..., 1)."""
    top = jnp.max(x, axis=-1, keepdims=True)
    empty = top == -math.inf
    # XLA's maximum of a long row may lose a NaN on the CPU: it is asked for by name.
    broken = ~(top < math.inf) | ~(radius >= 0) | jnp.any(jnp.isnan(x), axis=-1, keepdims=True)
    usual = (radius > 0) & (radius < math.inf)
    u = jnp.where(empty | broken, 0, x - top)
    r = jnp.where(usual, radius, 1)
    scale = _comfort(r)
    p = _solve(u * scale, r * scale)  # no division: XLA would multiply by 1/r, and entries at the threshold come in
    p = jnp.where(usual, p, plain.even(jnp, jnp.where(radius == 0, u == 0, u > -math.inf), u))
    return jnp.where(broken, math.nan, jnp.where(empty, 0, p))


def _repeat(turn: Any, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """The loop of a search, as XLA has it: until all rows rest."""

    def step(now: Any) -> Any:
        i, state = now
        return i + 1, turn(i, state)

    def more(now: Any) -> Any:
        return ~jnp.all(now[1][-1]) & (now[0] < plain.TURNS)

    return lax.while_loop(more, step, (jnp.int32(0), state))[1]


def entmax(x: jax.Array, alpha: jax.Array) -> jax.Array:
    """Entmax, one alpha per row: (..., 1)."""
    p = plain.entmax(jnp, x, alpha[..., 0], _repeat)
    return jnp.where(jnp.any(jnp.isnan(x), axis=-1, keepdims=True), math.nan, p)
