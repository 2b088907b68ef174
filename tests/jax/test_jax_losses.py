"""The losses in JAX beside NumPy's and the literal double sums: values, gradients, targets, and rows without one."""

from __future__ import annotations

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import loss_oracle
import sparsegen as sg
import sparsegen.jax as sgj
from loss_oracle import LOSSES
from sparsegen._table.losses import LOSSES as TABLE
from sparsegen.jax import _ffi

pytestmark = pytest.mark.usefixtures("x64")
NUMBERS = {"lam": -0.5, "q": 0.75}
ROWS, K = 4, 4  # means over 4 entries are exact, so kinks are where they are


@pytest.fixture(params=LOSSES)
def name(request):
    return request.param


def sample(seed=0, dyadic=False):
    """Scores, multi-hot labels, a mask that shows them, and weights."""
    rng = np.random.default_rng(seed)
    z, y = rng.standard_normal((ROWS, K)), rng.random((ROWS, K)) < 0.35
    y[np.arange(ROWS), rng.integers(0, K, ROWS)] = True
    z = np.round(2 * z) / 2 if dyadic else z
    return z, y, (rng.random((ROWS, K)) < 0.7) | y, rng.random(ROWS)


def given(name, values=None):
    key = LOSSES[name]
    return {key: NUMBERS[key] if values is None else values} if key else {}


@functools.cache
def compiled(name, kernel, reduction="mean", ignore_empty=False):
    """Loss and gradients in scores and control."""

    def f(z, target, where, weight, control):
        how = {"where": where, "weight": weight, "reduction": reduction, "ignore_empty": ignore_empty}
        loss = getattr(sgj, f"{name}_loss")(z, target, **given(name, control), **how)
        return jnp.sum(loss), loss

    return jax.jit(jax.value_and_grad(f, argnums=(0, 4), has_aux=True))


def found(name, z, target, where=None, weight=None, reduction="mean", control=None, **how):
    control = np.full(ROWS, NUMBERS.get(LOSSES[name], 0.0)) if control is None else control
    f = compiled(name, _ffi.READY, reduction, **how)
    where = np.ones((ROWS, K), bool) if where is None else where
    (_, loss), (grad, along) = f(z, jnp.asarray(target), where, np.ones(ROWS) if weight is None else weight, control)
    return np.asarray(loss), np.asarray(grad), np.asarray(along)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_values_and_gradients_are_numpys(name, way, reduction):
    z, y, mask, weight = sample()
    controls = np.array([0.25, 0.5, 0.375, 0.75])
    loss, grad, along = found(name, z, y, mask, weight, reduction, controls)
    want, slopes = getattr(sg, f"{name}_loss")(
        z, y, **given(name, controls), mask=mask, weight=weight, reduction=reduction, return_grad=True
    )
    np.testing.assert_allclose(loss, want, atol=1e-13)
    np.testing.assert_allclose(grad, slopes.scores, atol=1e-13)
    if LOSSES[name]:
        np.testing.assert_allclose(along, getattr(slopes, LOSSES[name]), atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_kinks_count_as_in_the_double_sums(name, way, seed):
    z, y, _, _ = sample(seed, dyadic=True)
    controls = np.full(ROWS, 0.5)
    loss, grad, along = found(name, z, y, reduction="none", control=controls)
    for i in range(ROWS):
        want = loss_oracle.row(name, z[i].tolist(), loss_oracle.shares(y[i]), 0.5 if LOSSES[name] else 0.0)
        np.testing.assert_allclose(loss[i], want.value, atol=1e-13)
        np.testing.assert_allclose(grad[i], want.grad, atol=1e-12)
        if LOSSES[name]:
            np.testing.assert_allclose(along[i], want.along, atol=1e-12)


def test_targets_of_every_form_are_the_same(name):
    z, _, _, _ = sample()
    labels = np.array([0, 3, 2, 1])
    hot = np.eye(K)[labels]
    f = functools.partial(getattr(sgj, f"{name}_loss"), **given(name))
    values = jax.jit(lambda z, t, h: [f(z, t), f(z, h), f(z, labels), f(z, sp.csr_array(hot)), f(z, hot.tolist())])(
        z, jnp.asarray(labels), jnp.asarray(hot)
    )
    want = getattr(sg, f"{name}_loss")(z, labels, **given(name))
    np.testing.assert_allclose(values, np.full(5, want), atol=1e-14)


def test_rows_that_do_not_count_have_no_part(name, way):
    z, y, _, _ = sample()
    z[1], y[2] = math.nan, False
    weight = np.array([1.0, 0.0, 1.0, 2.0])
    loss, grad, _ = found(name, z, y, weight=weight, ignore_empty=True)
    want = getattr(sg, f"{name}_loss")(z, y, **given(name), weight=weight, ignore_empty=True)
    np.testing.assert_allclose(loss, want, atol=1e-14)
    assert not grad[1:3].any()
    assert grad[3].any()


def test_rows_whose_target_is_none_are_nan(name, way):
    z, y, mask, _ = sample()
    y[0], mask[1] = False, ~y[1]
    loss, grad, _ = found(name, z, y, mask, reduction="none")
    assert np.isnan(loss[:2]).all()
    assert np.isfinite(loss[2:]).all()
    assert np.isfinite(grad[2:]).all()


def test_index_targets_ignore_and_refuse_by_nan(name):
    z, _, _, _ = sample()
    f = jax.jit(functools.partial(getattr(sgj, f"{name}_loss"), reduction="none", ignore_index=-1, **given(name)))
    loss = f(z, jnp.array([-1, 0, K, 2]))
    want = getattr(sg, f"{name}_loss")(z[[1, 3]], np.array([0, 2]), reduction="none", **given(name))
    assert loss[0] == 0
    assert np.isnan(loss[2])
    np.testing.assert_allclose(loss[jnp.array([1, 3])], want, atol=1e-14)


def test_vmap_and_second_derivatives(way):
    z, y, _, _ = sample()
    labels = jnp.asarray(y)
    rows = jax.jit(jax.vmap(lambda z, y: sgj.sparsegen_hinge_loss(z, y, lam=0.25)))(z, labels)
    np.testing.assert_allclose(rows, sg.sparsegen_hinge_loss(z, y, lam=0.25, reduction="none"), atol=1e-14)
    hessian = jax.jit(jax.hessian(lambda z: sgj.softmax_log_loss(z, labels[0])))(z[0])
    p = sg.softmax(z[0])
    np.testing.assert_allclose(hessian, np.diag(p) - np.outer(p, p), atol=1e-14)
    huber = jax.jit(jax.hessian(lambda z: sgj.sparsemax_huber_loss(z, labels[0])))(z[0])
    on = (sg.sparsemax(z[0]) > 0).astype(float)
    np.testing.assert_allclose(huber, np.diag(on) - np.outer(on, on) / on.sum(), atol=1e-14)


def test_halves_give_a_loss_in_float32(name):
    z, y, _, _ = sample()
    narrow = jnp.asarray(z, jnp.bfloat16)
    f = jax.jit(jax.value_and_grad(lambda z: getattr(sgj, f"{name}_loss")(z, jnp.asarray(y), **given(name))))
    loss, grad = f(narrow)
    want = getattr(sg, f"{name}_loss")(np.asarray(narrow, np.float64), y, **given(name))
    assert loss.dtype == jnp.float32
    assert grad.dtype == jnp.bfloat16
    np.testing.assert_allclose(loss, want, rtol=1e-5)


def test_every_row_of_the_table_is_a_function(name):
    f = getattr(sgj, f"{name}_loss")
    own = [TABLE[name].control] if TABLE[name].control else []
    options = ["scores", "target", *own, "where", "weight", "reduction", "ignore_index", "ignore_empty"]
    assert list(inspect.signature(f).parameters) == options
    assert f"{name}_loss" in sgj.__all__
    assert TABLE[name].summary in f.__doc__


def test_the_loss_of_entmax_is_numpys():
    z, y, mask, weight = sample()
    how = {"weight": weight, "reduction": "mean"}

    def f(z, alpha):
        return sgj.entmax_loss(z, jnp.asarray(y), alpha=alpha, where=mask, **how)

    alpha = np.array([1.0, 1.25, 1.5, 2.0])
    loss, (grad, along) = jax.jit(jax.value_and_grad(f, argnums=(0, 1)))(z, alpha)
    want, slopes = sg.entmax_loss(z, y, alpha=alpha, mask=mask, return_grad=True, **how)
    np.testing.assert_allclose(loss, want, atol=1e-13)
    np.testing.assert_allclose(grad, slopes.scores, atol=1e-13)
    np.testing.assert_allclose(along, slopes.alpha, atol=1e-12)
