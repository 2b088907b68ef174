"""Attention in JAX: beside jax.nn's with softmax, and beside NumPy's maps with a loop over heads."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sparsegen as sg
import sparsegen.jax as sgj

pytestmark = pytest.mark.usefixtures("x64")
RNG = np.random.default_rng(2)
Q, K, V = (RNG.standard_normal(shape) for shape in ((2, 5, 4, 3), (2, 6, 2, 3), (2, 6, 2, 3)))
MASK = RNG.random((2, 1, 5, 6)) < 0.7
MASK[..., 0] = True
LENGTHS = {"query_seq_lengths": np.array([5, 3], np.int32), "key_value_seq_lengths": np.array([6, 4], np.int32)}


def by_loops(mapping, allowed, bias=0.0, scale=3**-0.5, **controls):
    """Output and weights, head by head, query by query."""
    out, weights = np.zeros((2, 5, 4, 3)), np.zeros((2, 4, 5, 6))
    for b, h in np.ndindex(2, 4):
        scores = Q[b, :, h] @ K[b, :, h // 2].T * scale + np.broadcast_to(bias, weights.shape)[b, h]
        own = {key: np.broadcast_to(value, (2, 4, 5))[b, h] for key, value in controls.items()}
        weights[b, h] = getattr(sg, mapping)(scores, mask=np.broadcast_to(allowed, weights.shape)[b, h], **own)
        out[b, :, h] = weights[b, h] @ V[b, :, h // 2]
    return out, weights


@pytest.mark.parametrize("mapping", ["sparsemax", "sparsehourglass", "sparsegen_exp"])
def test_grouped_heads_with_mask_and_bias_are_those_of_loops(mapping):
    controls = {"sparsehourglass": {"q": 0.5}, "sparsegen_exp": {"lam": -0.5}}.get(mapping, {})
    bias = RNG.standard_normal((4, 5, 6))
    f = jax.jit(lambda *given: sgj.sparse_attention(*given, mapping=mapping, return_weights=True, **controls))
    for found, want in zip(f(Q, K, V, bias, MASK), by_loops(mapping, MASK, bias, **controls)):
        np.testing.assert_allclose(found, want, atol=1e-14)


def test_a_dial_for_each_head_has_gradients():
    lam = np.array([[-1.0], [0.0], [0.25], [0.5]])
    out = jax.jit(lambda lam: sgj.sparse_attention(Q, K, V, mapping="sparsegen_lin", lam=lam))(lam)
    np.testing.assert_allclose(out, by_loops("sparsegen_lin", True, lam=lam)[0], atol=1e-14)
    grad = jax.jit(jax.grad(lambda lam: jnp.sum(sgj.sparse_attention(Q, K, V, mapping="sparsegen_lin", lam=lam) ** 2)))
    h = 1e-6 * np.eye(4)[1][:, None]
    up, down = ((by_loops("sparsegen_lin", True, lam=lam + s * h)[0] ** 2).sum() for s in (1, -1))
    assert grad(lam)[1, 0] == pytest.approx((up - down) / 2e-6, rel=1e-6)


@pytest.mark.parametrize(
    "how", [{}, {"is_causal": True}, {"local_window_size": (1, 2)}, {"local_window_size": 1, "scale": 0.5}, LENGTHS],
    ids=lambda how: "-".join(how) or "plain",
)  # fmt: skip
def test_with_softmax_it_is_jaxs_own_attention(how):
    mask = MASK if not how else None
    found, want = jax.jit(
        lambda *given: (
            sgj.sparse_attention(*given, mask=mask, mapping="softmax", **how),
            jax.nn.dot_product_attention(*given, mask=mask, **how),
        )
    )(Q, K, V)
    np.testing.assert_allclose(found, want, atol=1e-6)  # theirs is computed in float32


def test_a_query_without_keys_gets_zeros_and_no_gradient():
    mask = np.ones((5, 6), bool)
    mask[2] = False

    def f(q):
        return sgj.sparse_attention(q, K, V, mask=mask)

    out, grad = jax.jit(lambda q: (f(q), jax.grad(lambda q: f(q).sum())(q)))(Q)
    assert not out[:, 2].any()
    assert not grad[:, 2].any()
    assert np.isfinite(grad).all()


def test_the_batch_axis_may_be_left_out():
    one = jax.jit(lambda q, k, v: sgj.sparse_attention(q, k, v, is_causal=True, return_weights=True))(Q[0], K[0], V[0])
    want = by_loops("sparsemax", np.tri(5, 6, dtype=bool))
    for found, each in zip(one, want):
        np.testing.assert_allclose(found, each[0], atol=1e-14)


def test_halves_come_back_as_halves():
    q, k, v = (jnp.asarray(t, jnp.bfloat16) for t in (Q, K, V))
    out, weights = jax.jit(lambda *given: sgj.sparse_attention(*given, return_weights=True))(q, k, v)
    assert out.dtype == weights.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float64), by_loops("sparsemax", True)[0], atol=0.1)
