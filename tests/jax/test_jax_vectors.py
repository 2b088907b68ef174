"""The exact vectors of docs/math.md, section 6, through JAX: values and vector-Jacobian products under jit."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import exact_vectors
import sparsegen.jax as sgj
from sparsegen.jax import _ffi

pytestmark = pytest.mark.usefixtures("x64")
NEAR = {"rtol": 1e-10, "atol": 1e-10}
SIZE = 8


def _of(cases: list[dict], wanted=lambda entry: True):
    entries = [entry for entry in cases if wanted(entry)]
    names = [entry.get("name", f"{entry['function']}-{i}") for i, entry in enumerate(entries)]
    return pytest.mark.parametrize("entry", entries, ids=names)


def _numbers(values) -> np.ndarray:
    return np.array([float(value) for value in values])


def _framed(values) -> np.ndarray:
    return np.append(_numbers(values), np.full(SIZE - len(values), np.nan))


@functools.cache
def _compiled(name: str, kernel: bool):
    """Probabilities, and the products of `v` with their derivatives in scores and controls."""

    def f(z, n, controls, v):
        where = jnp.arange(SIZE) < n
        p, pull = jax.vjp(lambda z, c: getattr(sgj, name)(z, where=where, **c), z, controls)
        return p, pull(v)

    return jax.jit(f)


def _found(entry, v=()):
    given = {key: jnp.asarray(float(value)) for key, value in entry["params"].items()}
    n = len(entry["z"])
    upstream = np.append(_numbers(v), np.zeros(SIZE - len(v)))
    p, (grad, along) = _compiled(entry["function"], _ffi.READY)(_framed(entry["z"]), n, given, upstream)
    return np.asarray(p)[:n], np.asarray(grad), along


@_of(exact_vectors.MAPS)
def test_values_and_products_are_the_exact_ones(entry, way):
    given = entry["vjp"] or {"v": np.zeros(len(entry["z"]))}
    p, grad, along = _found(entry, given["v"])
    np.testing.assert_allclose(p, _numbers(entry["p"]), **NEAR)
    assert np.flatnonzero(p).tolist() == entry["support"]
    if entry["vjp"]:
        np.testing.assert_allclose(grad[: len(p)], _numbers(given["grad_z"]), **NEAR)
        assert (grad[len(p) :] == 0).all()
        for key, value in along.items():
            if f"grad_{key}" in given:
                np.testing.assert_allclose(value, given[f"grad_{key}"], **NEAR)


@_of(exact_vectors.EDGES, lambda entry: entry["p"] is not None)
def test_edges_are_as_the_vectors_say(entry, way):
    np.testing.assert_allclose(_found(entry)[0], _numbers(entry["p"]), **NEAR)


@_of(exact_vectors.EDGES, lambda entry: entry["p"] is None)
def test_what_numpy_refuses_is_a_nan_row_with_traced_controls(entry, way):
    assert np.isnan(_found(entry)[0]).all()
