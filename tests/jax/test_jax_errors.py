"""Every error a user of JAX can reach, by its full text."""

from __future__ import annotations

import math
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import sparsegen.jax as sgj

Z = jnp.array([[1.0, 2.0, 3.0], [0.5, 0.25, 0.125]])
DTYPES = "float16, bfloat16, float32 or float64"
MASK = "a boolean array (True = may be chosen)"
LEAD = "the scores' shape without the class axis"
WEIGHTS = "(batch, heads, queries, keys), the shape of the weights"
A = jnp.zeros((1, 2, 4, 3))
ON = jnp.ones(3, bool)

CASES = [
    (lambda: sgj.sparsemax([1.0, 2.0]), TypeError, "scores must be a jax.Array or a NumPy array, got list."),
    (lambda: sgj.project("ab"), TypeError, "points must be a jax.Array or a NumPy array, got str."),
    (lambda: sgj.sparsemax(Z.astype(int)), TypeError, f"scores must be {DTYPES}, got dtype int32."),
    (lambda: sgj.hardmax(np.ones(3, complex)), TypeError, f"scores must be {DTYPES}, got dtype complex128."),
    (lambda: sgj.softmax(Z > 0), TypeError, f"scores must be {DTYPES}, got dtype bool."),
    (
        lambda: sgj.sparsemax(jnp.asarray(1.0)),
        ValueError,
        "scores must be an array with at least one axis, got a single number.",
    ),
    (lambda: sgj.sparsemax(1.0), ValueError, "scores must be an array with at least one axis, got a single number."),
    (lambda: sgj.sparsemax(Z, axis=1.0), TypeError, "axis must be an integer, got 1.0."),
    (lambda: sgj.sparsemax(Z, axis=2), ValueError, "axis must be between -2 and 1 for scores of shape (2, 3), got 2."),
    (lambda: sgj.sparsemax(Z, where=[True] * 3), TypeError, f"where must be {MASK}, got list."),
    (lambda: sgj.sparsemax(Z, where=Z), TypeError, f"where must be {MASK}, got dtype float32."),
    (
        lambda: sgj.sparsemax(Z, where=ON[:2]),
        ValueError,
        "the shape of where must be broadcastable to (2, 3), the scores' shape, got (2,).",
    ),
    (
        lambda: sgj.sparsegen_lin(Z, lam=jnp.zeros(3)),
        ValueError,
        f"the shape of lam must be broadcastable to (2,), {LEAD}, got (3,).",
    ),
    (lambda: sgj.sparsegen_lin(Z, lam=1), ValueError, "lam must be a number below 1, got 1.0."),
    (lambda: sgj.sparsegen_exp(Z, lam=math.nan), ValueError, "lam must be a number below 1, got nan."),
    (lambda: sgj.sparsegen_sq(Z, lam="0"), TypeError, "lam must be a number below 1, got '0'."),
    (lambda: sgj.sparsegen_lin(Z, lam=[0.5]), TypeError, "lam must be a number below 1, got [0.5]."),
    (lambda: sgj.sparsegen_lin(Z, lam=Z > 0), TypeError, "lam must be a number below 1, got dtype bool."),
    (lambda: sgj.sparsecone(Z, q=-1), ValueError, "q must be a number at least 0, got -1.0."),
    (lambda: sgj.softmax(Z, temperature=0), ValueError, "temperature must be a positive number, got 0.0."),
    (lambda: sgj.project(Z, -1.0), ValueError, "radius must be a number at least 0, got -1.0."),
    (
        lambda: sgj.sparsegen(Z, transform="cube"),
        ValueError,
        "transform must be one of 'lin', 'exp', 'sq', 'log', or a callable, got 'cube'.",
    ),
    (
        lambda: sgj.sparsegen(Z, transform=jnp.sum),
        ValueError,
        "the result of transform must be of the scores' shape (2, 3), got shape ().",
    ),
    (
        lambda: sgj.sparsegen(Z, transform=lambda z: 1.0),
        TypeError,
        "the result of transform must be a jax.Array, got float.",
    ),
    (lambda: sgj.sparsegen_hinge_loss(Z, ON[:2], lam=-math.inf), ValueError,
     "lam must be a finite number below 1, got -inf."),
    (lambda: sgj.sparsehourglass_hinge_loss(Z, Z, q=0), ValueError, "q must be a positive number, got 0.0."),
    (lambda: sgj.softmax_log_loss(Z, Z, reduction="max"), ValueError,
     "reduction must be one of 'none', 'mean', 'sum', got 'max'."),
    (lambda: sgj.softmax_log_loss(Z, Z, ignore_index=0.5), TypeError, "ignore_index must be an integer, got 0.5."),
    (
        lambda: sgj.softmax_log_loss(Z, jnp.zeros(3)),
        ValueError,
        "the shape of target must be (2, 3) (multi-hot) or (2,) (class indices, integers), got (3,) of dtype float32.",
    ),
    (lambda: sgj.softmax_log_loss(Z, np.array([0, 3])), ValueError,
     "target must be class indices from 0 to 2, or ignore_index = -100, got 3 in row 1."),
    (lambda: sgj.softmax_log_loss(Z, sp.csr_array(np.ones((3, 3)))), ValueError,
     "the shape of target must be (2, 3) for a sparse matrix, got (3, 3)."),
    (lambda: sgj.softmax_log_loss(Z, np.eye(3)[:2], weight=[1.0, -1.0]), ValueError,
     "weight must be finite and not negative, got -1.0."),
    (lambda: sgj.softmax_log_loss(Z, np.eye(3)[:2], weight=jnp.ones(3)), ValueError,
     f"the shape of weight must be broadcastable to (2,), {LEAD}, got (3,)."),
    (lambda: sgj.sparse_attention(Z, A, A), ValueError,
     "query must be of shape (batch, length, heads, features), batch optional, got (2, 3)."),
    (lambda: sgj.sparse_attention(A, A.astype(jnp.float16), A), TypeError,
     "key must be of the query's dtype float32, got dtype float16."),
    (lambda: sgj.sparse_attention(A, A[..., :2], A), ValueError,
     "key must be of 1 batch entries and 3 features, as the query, got shape (1, 2, 4, 2)."),
    (lambda: sgj.sparse_attention(A, A, A[:, :1]), ValueError,
     "value must be of the key's batch, length and heads (1, 2, 4), got shape (1, 1, 4, 3)."),
    (lambda: sgj.sparse_attention(A, A[:, :, :3], A[:, :, :3]), ValueError,
     "the number of heads of key must be a divisor of the query's 4, got 3."),
    (lambda: sgj.sparse_attention(A, A, A, mask=ON), ValueError,
     f"the shape of mask must be broadcastable to (1, 4, 2, 2), {WEIGHTS}, got (3,)."),
    (lambda: sgj.sparse_attention(A, A, A, mask=A), TypeError, f"mask must be {MASK}, got dtype float32."),
    (lambda: sgj.sparse_attention(A, A, A, bias=ON), TypeError, f"bias must be {DTYPES}, got dtype bool."),
    (lambda: sgj.sparse_attention(A, A, A, query_seq_lengths=[2]), ValueError,
     "query_seq_lengths must be an integer array of shape (1,), got list."),
    (lambda: sgj.sparse_attention(A, A, A, local_window_size=0.5), TypeError,
     "local_window_size must be an integer or a pair of integers, got 0.5."),
    (lambda: sgj.sparse_attention(A, A, A, q=1.0), ValueError,
     "q must be left out for mapping 'sparsemax', which has no control, got 1.0."),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[text[:50] for _, _, text in CASES])
def test_message_names_argument_condition_and_value(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert str(caught.value) == f"sparsegen: {text}"


def test_arguments_are_refused_as_python_does():
    with pytest.raises(TypeError, match=r"sparsecone\(\) missing 1 required keyword-only argument: 'q'"):
        sgj.sparsecone(Z)
    with pytest.raises(TypeError, match=r"sparsemax\(\) got an unexpected keyword argument 'lam'"):
        sgj.sparsemax(Z, lam=0.5)
    with pytest.raises(TypeError, match=r"softmax\(\) too many positional arguments"):
        sgj.softmax(Z, 1)


def test_names_that_are_in_no_table_are_missing():
    for name in ("toymin", "toymin_loss"):
        with pytest.raises(AttributeError, match=name):
            getattr(sgj, name)


def test_without_jax_the_import_says_what_to_install():
    code = (
        "import sys; sys.modules['jax'] = None\ntry:\n    import sparsegen.jax\nexcept ImportError as e:\n    print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == (
        "sparsegen: sparsegen.jax needs jax, which is not installed: pip install 'sparsegen[jax]'."
    )
