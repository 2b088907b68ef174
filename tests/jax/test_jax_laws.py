"""The laws of laws.py over the JAX front end: each map, with the kernel and without, with float64 and without."""

import functools

import jax
import numpy as np
import pytest

from jax_cases import NAMES, mapped
from laws import LAWS, has_the_limits_of_its_control, inside
from sparsegen._table.maps import MAPS


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
def test_the_laws_hold_in_jax(name, way, dtype):
    m = MAPS[name]
    with jax.enable_x64(dtype == np.float64):
        for k in (1, 8):
            z = inside(m, np.random.default_rng(k).standard_normal((6, k)).astype(dtype))
            for law in LAWS:
                # Without float64 at hand, a traced lam would not come close enough to 1.
                traced = law is not has_the_limits_of_its_control or dtype == np.float64
                law(functools.partial(mapped, name, traced=traced), m, z)
