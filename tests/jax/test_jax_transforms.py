"""What JAX does with functions: derivatives of every kind and order, vmap, scan, shards."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads

import sparsegen as sg
import sparsegen.jax as sgj
from jax_cases import NAMES, controls, scores

pytestmark = pytest.mark.usefixtures("x64")
RNG = np.random.default_rng(5)
X, V, R = RNG.standard_normal((3, 6)), RNG.standard_normal((3, 6)), np.array([0.3, 0.9, 2.0])


def _differences(f, at, h=1e-6):
    """Central differences of a function of numbers, one entry at a time."""
    grad = np.zeros(np.shape(at))
    for i in np.ndindex(grad.shape):
        step = np.zeros(grad.shape)
        step[i] = h
        grad[i] = (f(at + step) - f(at - step)) / (2 * h)
    return grad


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_scores_and_controls_are_numpys_differences(name, way):
    z, given = scores(name, 2, 5), controls(name)
    mask = np.array([[True, True, False, True, True], [True, True, True, True, False]])

    def value(z, given):
        return jnp.sum(V[:2, :5] * getattr(sgj, name)(z, where=mask, **given))

    def numpy_value(z, **changed):
        return float((V[:2, :5] * getattr(sg, name)(z, mask=mask, **{**given, **changed})).sum())

    arrays = {key: jnp.asarray(v) for key, v in given.items()}
    grad, along = jax.jit(jax.grad(value, argnums=(0, 1)))(z, arrays)
    assert (np.asarray(grad)[~mask] == 0).all()
    np.testing.assert_allclose(grad, _differences(numpy_value, z), atol=1e-8)
    for key, slope in along.items():
        want = _differences(lambda v, key=key: numpy_value(z, **{key: float(v)}), np.asarray(given[key]))
        np.testing.assert_allclose(slope, want, atol=1e-8)


@pytest.mark.slow
def test_derivatives_are_right_to_the_third_order(way):
    f = jax.jit(lambda x, r: jnp.sin(3 * sgj.project(x, r)))
    check_grads(f, (X[:1], R[1:2]), order=3, modes=("fwd", "rev"), atol=1e-4, rtol=1e-4, eps=1e-5)


@pytest.mark.parametrize("name", ["sparsehourglass", pytest.param("sparsegen_exp", marks=pytest.mark.slow)])
def test_forward_and_reverse_mode_agree_twice(name, way):
    z = scores(name, 5)
    f = functools.partial(getattr(sgj, name), **controls(name))
    first = jax.jit(lambda z: (jax.jacfwd(f)(z), jax.jacrev(f)(z)))(z)
    np.testing.assert_allclose(*first, atol=1e-14)
    second = jax.jit(lambda z: (jax.jacfwd(jax.jacrev(f))(z), jax.jacrev(jax.jacfwd(f))(z), jax.hessian(f)(z)))(z)
    np.testing.assert_allclose(second[0], second[1], atol=1e-12)
    np.testing.assert_allclose(second[0], second[2], atol=1e-12)
    jacobian = jax.jit(jax.jacfwd(f))
    h = 1e-6
    for i, step in enumerate(h * np.eye(5)):
        np.testing.assert_allclose(second[0][..., i], (jacobian(z + step) - jacobian(z - step)) / (2 * h), atol=1e-7)


def test_vmap_over_points_radii_both_and_gradients(way):
    @jax.jit
    def found(x, r):
        return (
            jax.vmap(sgj.sparsemax, in_axes=1, out_axes=1)(x),
            jax.vmap(lambda r: sgj.project(x, r))(r),
            jax.vmap(jax.vmap(sgj.project, (0, None)), (None, 0))(x, r),
            jax.vmap(jax.grad(lambda x, r: jnp.sum(sgj.project(x, r) ** 2), argnums=(0, 1)))(x, r),
            jax.vmap(lambda x, q: sgj.sparsehourglass(x, q=q))(x, r),
        )

    columns, radii, twice, (grad, along), hourglass = found(X, R)
    np.testing.assert_allclose(columns, sg.sparsemax(X, axis=0), atol=1e-15)
    each = np.stack([sg.project(X, r) for r in R])
    np.testing.assert_allclose(radii, each, atol=1e-15)
    np.testing.assert_allclose(twice, each, atol=1e-15)
    np.testing.assert_allclose(hourglass, sg.sparsehourglass(X, q=R), atol=1e-15)
    p = sg.project(X, R)
    on = p > 0
    w = np.where(on, 2 * p - (2 * p * on).sum(-1, keepdims=True) / on.sum(-1, keepdims=True), 0)
    np.testing.assert_allclose(grad, w / R[:, None], atol=1e-14)
    np.testing.assert_allclose(along, -(w * p).sum(-1) / R, atol=1e-14)


def test_constant_maps_and_broken_rows_have_the_derivatives_of_the_contract(way):
    x = np.array([[1.0, 0.5, -np.inf], [-np.inf] * 3, [np.nan, 1, 0], [1, np.inf, 0], [0.5, 0.25, 0], [0.5, 0.25, 0]])
    r = np.array([1.0, 1.0, 1.0, 1.0, 0.0, np.inf])
    grad, along = jax.jit(jax.grad(lambda x, r: jnp.sum(V[:1, :3] * sgj.project(x, r)), argnums=(0, 1)))(x, r)
    assert np.isnan(grad[2:4]).all()
    assert np.isnan(along[2:4]).all()
    for zero in (grad[0, 2], grad[1], grad[4:], along[1], along[4:]):
        assert not np.any(zero)
    assert np.isfinite(grad[0]).all()
    assert np.any(grad[0])


def test_loops_and_rematerialisation_take_it(way):
    def body(c, _):
        return jax.checkpoint(sgj.sparsegen_lin)(1.1 * c, lam=-1.0), None

    grad = jax.jit(jax.grad(lambda x: jax.lax.scan(body, x, None, length=3)[0][0, 0]))(X)
    h = 1e-6 * np.eye(6)[0]

    def unrolled(x):
        for _ in range(3):
            x = sg.sparsegen_lin(1.1 * x, lam=-1.0)
        return x[0]

    assert grad[0, 0] == pytest.approx((unrolled(X[0] + h) - unrolled(X[0] - h)) / 2e-6, abs=1e-8)


@pytest.mark.parametrize(
    "dtype", [jnp.float16, jnp.bfloat16, pytest.param(jnp.float32, marks=pytest.mark.slow)], ids=lambda t: t.__name__
)
def test_gradients_in_narrow_types_are_those_of_float64_rounded(dtype, way):
    z = jnp.asarray(X, dtype)
    for name in ("sparsemax", "sparsehourglass"):
        f = functools.partial(getattr(sgj, name), **controls(name))
        narrow, wide = jax.jit(jax.grad(lambda z, f=f: jnp.sum(V.astype(z.dtype) * f(z)))), V.astype(dtype)
        want = jax.jit(jax.grad(lambda z, f=f, v=wide: jnp.sum(v.astype(z.dtype) * f(z))))(z.astype(jnp.float64))
        grad = narrow(z)
        assert grad.dtype == dtype
        np.testing.assert_allclose(grad.astype(jnp.float64), want, atol=8 * float(jnp.finfo(dtype).eps))


MESHES = pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])


def test_shard_map_takes_it(way):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    x, spec = RNG.standard_normal((8, 12)), PartitionSpec("d")
    here = jax.jit(jax.shard_map(sgj.sparsemax, mesh=mesh, in_specs=spec, out_specs=spec))(x)
    np.testing.assert_allclose(here, sg.sparsemax(x), atol=1e-15)


@MESHES
def test_rows_on_several_devices_give_the_same_answer_and_plain_ones_stay_there(way, kind):
    x, v = RNG.standard_normal((8, 12)), RNG.standard_normal((8, 12))
    split = NamedSharding(jax.make_mesh((2,), ("d",), axis_types=(kind,)), PartitionSpec("d"))
    grad = jax.grad(lambda x, v: jnp.sum(v * sgj.sparsehourglass(x, q=0.5)))
    placed = [jax.device_put(t, split) for t in (x, v)]
    compiled = jax.jit(grad).lower(*placed).compile()
    found = compiled(*placed)
    np.testing.assert_allclose(found, jax.jit(grad)(x, v), atol=1e-14)
    assert found.sharding.is_equivalent_to(split, 2)
    assert way == "kernel" or "all-gather" not in compiled.as_text()  # handlers get whole arrays outside of shard_map


@MESHES
def test_classes_on_several_devices_give_the_same_answer(way, kind):
    split = NamedSharding(jax.make_mesh((2,), ("d",), axis_types=(kind,)), PartitionSpec(None, "d"))
    x = RNG.standard_normal((3, 256))
    np.testing.assert_allclose(jax.jit(sgj.sparsemax)(jax.device_put(x, split)), sg.sparsemax(x), atol=1e-15)


def test_concurrent_callers_and_many_rows_give_the_same_bits():
    x = RNG.standard_normal((3000, 40)).astype(np.float32)
    f = jax.jit(sgj.sparsemax)
    want = sg.sparsemax(x)
    for found in [f(x) for _ in range(4)]:  # dispatched before any is waited for
        np.testing.assert_array_equal(found, want)


def test_new_controls_do_not_compile_anew():
    f = jax.jit(lambda z, lam: sgj.sparsegen_lin(z, lam=lam))
    for lam in (0.0, 0.25, 0.5):
        f(X, jnp.asarray(lam))
    assert f._cache_size() == 1
