import importlib.util
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import settings

import sparsegen as sg
from sparsegen import _core
from sparsegen._table.maps import MAPS

# A folder of tests is not the package of that name: where that is missing, importing it must fail.
for _name in ("torch", "jax", "transformers"):
    _found = importlib.util.find_spec(_name)
    if _found is not None and _found.origin is None:
        sys.modules[_name] = None

settings.register_profile("sparsegen", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("thorough", parent=settings.get_profile("sparsegen"), max_examples=500)  # make test-slow
settings.load_profile("sparsegen")


# Where every case is compiled or interpreted, one map of each kind stands for the others, which `make test-slow` runs:
# linear, with a transform, with a radius of the mean, with shares, with powers.
KINDS = ("sparsemax", "sparsegen_exp", "sparsehourglass", "sparsegen_softmax", "entmax")
COMPILED = ("jax", "torch/_triton", "torch/test_torch_compile.py", "torch/test_onnx.py")
assert set(KINDS) <= set(MAPS)


COVERED, COVERED_COMPILED = 8, 4  # cases of a test that are watched for coverage, which makes Python half as fast
# Tests that mostly run the Python of others: compilers, checkers of operators, browsers, Hypothesis. Watched, they took
# 400 of 1700 seconds, and of 25 363 branches saw 53 that no other test sees.
OTHERS = (
    "opcheck", "operators_pass", "well_behaved", "compiled", "compiles", "export", "onnx", "gradcheck", "make_fx",
    "_axe_", "random_cases", "killed_run", "exact_arithmetic", "test_examples.py", "test_fuzz.py",
    "test_jax_transforms.py", "test_torch_compile.py", "test_gpu_dropout.py",
)  # fmt: skip
# A tracer keeps a lock: a child that was forked while another thread held it waits for ever. Seen once in 300 forks.
FORKING = ("test_concurrency.py",)
UNWATCHED = pytest.StashKey()


def pytest_collection_modifyitems(items):
    items[:] = _engines_side_by_side(items)
    folders = tuple(str(Path(__file__).parent / part) for part in COMPILED)
    for item in items:
        given = item.callspec.params.values() if hasattr(item, "callspec") else ()
        maps = [value for value in given if isinstance(value, str) and value in MAPS]
        if str(item.path).startswith(folders) and maps and not set(maps) & set(KINDS):
            item.add_marker(pytest.mark.slow)
    for cases in _by_test(items).values():
        step = -(-len(cases) // (COVERED_COMPILED if str(cases[0].path).startswith(folders) else COVERED))
        for i, item in enumerate(cases):
            item.stash[UNWATCHED] = i % step > 0  # those that are watched are spread over all
    for item in items:
        if any(word in item.nodeid for word in OTHERS + FORKING) or item.get_closest_marker("hypothesis"):
            item.stash[UNWATCHED] = True


def _engines_side_by_side(items):
    """The cases of each test, those that differ in the engine alone after one another: oracles remember a little."""
    found = {}
    for item in items:
        case = ()
        if hasattr(item, "callspec"):
            case = tuple((name, id(value)) for name, value in item.callspec.params.items() if name != "engine")
        test = (item.path, getattr(item, "cls", None), getattr(item, "originalname", item.nodeid))
        found.setdefault(test, {}).setdefault(case, []).append(item)
    return [item for cases in found.values() for same in cases.values() for item in same]


def _by_test(items):
    """The cases of each test that has several."""
    found = {}
    for item in items:
        if hasattr(item, "callspec"):
            slow = item.get_closest_marker("slow") is not None
            found.setdefault((item.path, item.cls, item.originalname, slow), []).append(item)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Take the tracer away from what is not watched. (Pausing pytest-cov's is not enough: workers have another.)"""
    tracer = sys.gettrace() if item.config.pluginmanager.hasplugin("_cov") else None
    if tracer is None or not item.stash.get(UNWATCHED, False):
        return (yield)
    of_threads = threading.gettrace()
    sys.settrace(None), threading.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(tracer), threading.settrace(of_threads)


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
