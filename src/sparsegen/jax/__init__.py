"""The maps on JAX arrays: traced, differentiated, mapped and sharded like jax.nn.softmax.

>>> import jax, jax.numpy as jnp, sparsegen.jax as sgj
>>> z = jnp.array([0.5, 0.25, 0.0])
>>> sgj.sparsegen_lin(z, lam=0.5).tolist()
[0.75, 0.25, 0.0]
>>> jax.jit(jax.grad(lambda z: sgj.sparsegen_lin(z, lam=0.5)[0]))(z).tolist()
[1.0, -1.0, 0.0]
"""

from typing import Any

from sparsegen._table.extras import front_end as _front_end

with _front_end("jax"):
    import jax as _jax  # noqa: F401

from sparsegen.jax._apply import Info
from sparsegen.jax.attention import sparse_attention
from sparsegen.jax.losses import (
    entmax_loss,
    softmax_log_loss,
    sparsegen_hinge_loss,
    sparsehourglass_hinge_loss,
    sparsemax_huber_loss,
)
from sparsegen.jax.maps import (
    entmax,
    entmax15,
    hardmax,
    project,
    softmax,
    sparsecone,
    sparsegen,
    sparsegen_exp,
    sparsegen_lin,
    sparsegen_log,
    sparsegen_softmax,
    sparsegen_sq,
    sparsehourglass,
    sparsemax,
    spherical_softmax,
    sum_normalization,
    sum_normalization_plus,
)

__all__ = [
    "Info",
    "entmax",
    "entmax15",
    "entmax_loss",
    "hardmax",
    "project",
    "softmax",
    "softmax_log_loss",
    "sparse_attention",
    "sparsecone",
    "sparsegen",
    "sparsegen_exp",
    "sparsegen_hinge_loss",
    "sparsegen_lin",
    "sparsegen_log",
    "sparsegen_softmax",
    "sparsegen_sq",
    "sparsehourglass",
    "sparsehourglass_hinge_loss",
    "sparsemax",
    "sparsemax_huber_loss",
    "spherical_softmax",
    "sum_normalization",
    "sum_normalization_plus",
]


def __getattr__(name: str) -> Any:
    """Functions of rows that the tables have beyond the names above."""
    from sparsegen._table.functions import row_of
    from sparsegen.jax import losses, maps

    return row_of(__name__, losses if name.endswith("_loss") else maps, name)
