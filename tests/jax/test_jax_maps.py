"""The maps in JAX beside NumPy's: shapes, axes, masks, dtypes, controls and what is known of each row."""

from __future__ import annotations

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import laws
import oracle
import sparsegen as sg
import sparsegen.jax as sgj
import strategies
from jax_cases import NAMES, controls, mapped, scores
from sparsegen._table.maps import MAPS
from sparsegen.jax import _ffi

names = pytest.mark.parametrize("name", NAMES)
HALVES = (jnp.float16, jnp.bfloat16)


def both(name, z, **how):
    """The map of JAX, traced, and NumPy's."""
    masked = {"mask": how.pop("where")} if "where" in how else {}
    given = {**controls(name), **how}
    want = getattr(sg, name)(z, **given, **masked)
    given |= {"where": masked["mask"]} if masked else {}
    return jax.jit(functools.partial(getattr(sgj, name), **given))(z), want


def same(found, want, eps=2.0**-52):
    """Equal to four units in the last place of 1."""
    for got, expected in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(got), expected, rtol=8 * eps, atol=4 * eps)


@names
def test_any_axis_with_a_mask_gives_numpys_answer(name, way, x64):
    z, mask = scores(name, 3, 4, 5), np.random.default_rng(1).random((4, 1)) < 0.7
    found, want = both(name, z, axis=1, where=mask, return_info=True)
    assert found[1].support_size.shape == (3, 5)
    same(found, tuple(want))


@names
def test_without_float64_the_answer_is_numpys_in_float32(name, way):
    z = scores(name, 2, 301, dtype=np.float32)
    found, want = both(name, z)
    assert found.dtype == jnp.float32
    laws.assert_near(np.asarray(found), want, slack=8)


@names
@pytest.mark.parametrize("dtype", HALVES, ids=lambda t: t.__name__)
def test_halves_are_computed_in_float32_and_rounded_once(name, dtype):
    z = jnp.asarray(scores(name, 3, 40), dtype)
    f = functools.partial(getattr(sgj, name), **controls(name))
    p, single = jax.jit(lambda z: (f(z), f(z.astype(jnp.float32))))(z)
    rounded = single.astype(dtype)
    lost = (single > 0) & (rounded == 0)
    assert p.dtype == dtype
    np.testing.assert_array_equal(np.asarray(jnp.where(lost, 0, p)), np.asarray(jnp.where(lost, 0, rounded)))


@pytest.mark.parametrize("name", [name for name in NAMES if MAPS[name].linear])
def test_a_positive_probability_stays_positive_in_halves(name, way):
    z = laws.inside(MAPS[name], np.array([1.0, 1.0 - 2**-11, 1 - 2**-9, 0.5])).astype(np.float16)
    wide = mapped(name, z.astype(np.float32), traced=False)
    p = jax.jit(functools.partial(getattr(sgj, name), **controls(name)))(z)
    assert ((np.asarray(p) > 0) == (wide > 0)).all()


@pytest.mark.parametrize("name", [name for name in NAMES if MAPS[name].controls])
def test_a_control_per_row_is_a_call_per_row(name, way, x64):
    z = scores(name, 4, 7)
    for key, value in controls(name).items():
        values = value * np.array([0.5, 0.75, 1.0, 1.25])
        values = 1 + values / 2 if key == "alpha" else values
        found = jax.jit(lambda z, c, key=key: getattr(sgj, name)(z, **{key: c}))(z, values)
        same(found, getattr(sg, name)(z, **{key: values}))


@names
def test_nothing_and_one_class_are_as_in_numpy(name):
    f = functools.partial(getattr(sgj, name), **controls(name), return_info=True)
    shapes = {(3, 0): -1, (0, 3): -1, (2, 0, 3): 1}
    found = jax.jit(lambda zs: [f(z, axis=axis) for z, axis in zip(zs, shapes.values())])(list(map(jnp.zeros, shapes)))
    for (shape, axis), (p, info) in zip(shapes.items(), found):
        assert p.shape == shape
        assert info.support_size.shape == info.threshold.shape == tuple(np.delete(shape, axis))
        assert not info.support_size.any()
    np.testing.assert_array_equal(mapped(name, np.full((3, 1), 0.125), traced=False), np.ones((3, 1)))


@names
def test_every_row_of_the_table_is_a_function_with_its_controls(name):
    f = getattr(sgj, name)
    options = inspect.signature(f).parameters
    assert list(options) == ["scores", *MAPS[name].controls, "axis", "where", "return_info"]
    assert name in sgj.__all__
    for part in (MAPS[name].summary, "Parameters", "where : boolean Array", "Returns", "Examples"):
        assert part in inspect.getdoc(f)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
def test_projections_of_random_rows_are_the_exact_ones(dtype, way):
    f = jax.jit(lambda x, where, r: sgj.project(x, r, where=where))

    @settings(max_examples=50)
    @given(strategies.rows(dtype, shape=(3, 6)), strategies.masks((3, 6)), st.tuples(*[strategies.radii] * 3))
    def check(x, mask, radii):
        r = np.array(radii, dtype)
        mask = np.ones(x.shape, bool) if mask is None else mask
        p = np.asarray(f(x, mask, r))
        hidden = np.where(mask, x.astype(np.float64), -math.inf)
        laws.assert_near(p, oracle.project_bisect(hidden, r.astype(np.float64)))
        assert (p[~mask] == 0).all()

    with jax.enable_x64(dtype == np.float64):
        check()


def test_callers_own_transforms_are_projected(way, x64):
    z = np.random.default_rng(0).standard_normal((3, 6))
    z[0, 1], z[1] = -math.inf, -math.inf
    for transform in (jnp.tanh, "exp"):
        own = np.tanh if callable(transform) else transform
        found = jax.jit(functools.partial(sgj.sparsegen, lam=0.5, transform=transform))(z)
        same(found, sg.sparsegen(z, lam=0.5, transform=own))


def test_wrapped_arrays_are_opened():
    class Wrapped:
        shape, dtype = (3,), jnp.dtype("float32")

        def __jax_array__(self):
            return jnp.array([0.5, 0.25, 0.0])

    assert sgj.sparsegen_lin(Wrapped(), lam=0.5).tolist() == [0.75, 0.25, 0.0]


def test_scores_of_numpy_are_left_alone():
    z = np.array([0.5, 0.25, 0.0], np.float32)
    sgj.sparsemax(z)
    np.testing.assert_array_equal(z, [0.5, 0.25, 0.0])


def test_the_handlers_are_there_in_a_build_from_the_makefile():
    assert _ffi.READY, _ffi.MISSING
