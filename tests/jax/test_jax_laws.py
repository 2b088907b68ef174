"""The laws of laws.py over the JAX front end: each map, with the kernel and without, with float64 and without."""

import functools

import jax
import numpy as np
import pytest

from jax_cases import NAMES, mapped
from laws import LAWS, inside
from sparsegen._table.maps import MAPS


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
def test_the_law_holds_in_jax(name, law, way, dtype):
    """In float32 with numbers for controls and no float64 at hand, in float64 with traced controls."""
    m = MAPS[name]
    with jax.enable_x64(dtype == np.float64):
        for k in (1, 5, 8):
            z = inside(m, np.random.default_rng(k).standard_normal((6, k)).astype(dtype))
            law(functools.partial(mapped, name, traced=dtype == np.float64), m, z)
