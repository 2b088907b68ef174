import pytest
from hypothesis import settings

import sparsegen as sg
from sparsegen import _core

settings.register_profile("sparsegen", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("sparsegen")


@pytest.fixture(params=_core.engines())
def engine(request):
    before = _core.engine()
    _core.use_engine(request.param)
    yield request.param
    _core.use_engine(before)


@pytest.fixture
def threads():
    before = sg.get_num_threads()
    yield sg.set_num_threads
    sg.set_num_threads(before)


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """Two processes with a process group, started once."""
    from ranks import Ranks

    group = Ranks(2, tmp_path_factory.mktemp("group"))
    yield group
    group.close()
