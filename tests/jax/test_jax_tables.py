"""A new row of a table is a function in JAX without another edit."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import sparsegen.jax as sgj
from sparsegen._table.losses import LOSSES
from sparsegen._table.maps import MAPS

Z = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


def test_a_new_map_is_a_function_with_its_documentation_and_in_attention(monkeypatch):
    monkeypatch.setitem(MAPS, "toymax", replace(MAPS["sparsegen_lin"], name="toymax", summary="A row of a test."))
    np.testing.assert_array_equal(sgj.toymax(Z, lam=0.5), sgj.sparsegen_lin(Z, lam=0.5))
    assert "A row of a test." in sgj.toymax.__doc__
    with pytest.raises(ValueError, match=r"lam must be a number below 1, got 2\.0"):
        sgj.toymax(Z, lam=2.0)
    q = jnp.asarray(Z).reshape(4, 2, 3)
    out = sgj.sparse_attention(q, q, q, mapping="toymax", lam=0.5)
    np.testing.assert_array_equal(out, sgj.sparse_attention(q, q, q, mapping="sparsegen_lin", lam=0.5))


def test_a_new_loss_is_a_function(monkeypatch):
    monkeypatch.setitem(LOSSES, "toymax_hinge", replace(LOSSES["sparsegen_hinge"], name="toymax_hinge"))
    target = np.array([0, 1, 2, 3])
    assert sgj.toymax_hinge_loss(Z, target, lam=0.25) == sgj.sparsegen_hinge_loss(Z, target, lam=0.25)
