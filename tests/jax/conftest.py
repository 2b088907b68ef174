from contextlib import nullcontext

import jax
import pytest

from sparsegen.jax import _ffi

jax.config.update("jax_num_cpu_devices", 2)  # for the tests that shard; before JAX looks for devices

WAYS = ("kernel", "plain")


@pytest.fixture(params=WAYS)
def way(request):
    """The kernel's handlers, and what runs where there are none."""
    with _ffi.left_out() if request.param == "plain" else nullcontext():
        yield request.param


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield
