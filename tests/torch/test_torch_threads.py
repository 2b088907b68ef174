"""Threads, forked workers and concurrent callers: the same bits, and nobody waits for ever."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import sparsegen.torch as sgt
from test_torch_cases import NAMES, control_tensors, controls, scores, torch_map

SHAPES = ((4000, 30), (300, 1000), (3, 60000))


@pytest.fixture
def num_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def _value_and_gradients(name, shape, dtype=torch.float32):
    z = scores(name, *shape, dtype=dtype).requires_grad_()
    given = {key: value.requires_grad_() for key, value in control_tensors(name, shape[:1]).items()}
    p = torch_map(name)(z, **given)
    v = scores("sparsemax", *shape, dtype=dtype, seed=1)
    return [p.detach(), *torch.autograd.grad(p, [z, *given.values()], v)]


def _same_bits(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["sparsemax", "sparsegen_exp", "sparsecone", "sparsehourglass", "hardmax"])
def test_one_thread_and_two_give_the_same_bits(name, shape, num_threads):
    num_threads(1)
    alone = _value_and_gradients(name, shape)
    num_threads(2)
    assert _same_bits(_value_and_gradients(name, shape), alone)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_threads_do_not_matter_in_any_dtype(dtype, num_threads):
    num_threads(1)
    alone = _value_and_gradients("sparsehourglass", (4000, 30), dtype)
    num_threads(2)
    assert _same_bits(_value_and_gradients("sparsehourglass", (4000, 30), dtype), alone)


def test_threads_do_not_matter_along_another_dim_with_a_mask(num_threads):
    z, mask = scores("sparsemax", 40, 50, 60), scores("sparsemax", 50, 60, seed=2) > -1
    num_threads(1)
    alone = sgt.sparsehourglass(z, q=0.5, dim=1, mask=mask)
    num_threads(2)
    assert torch.equal(sgt.sparsehourglass(z, q=0.5, dim=1, mask=mask), alone)


def test_repeated_calls_give_the_same_bits(num_threads):
    num_threads(2)
    first = _value_and_gradients("sparsegen_lin", (4000, 30))
    assert all(_same_bits(_value_and_gradients("sparsegen_lin", (4000, 30)), first) for _ in range(5))


def test_eight_callers_at_once_all_get_their_own_answer(num_threads):
    num_threads(2)
    jobs = [(name, (50 + 40 * i, 37 + i)) for i in range(4) for name in NAMES]
    want = [_value_and_gradients(*job) for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            got = list(pool.map(lambda job: _value_and_gradients(*job), jobs, timeout=60))
            assert all(_same_bits(a, b) for a, b in zip(got, want))


def test_eight_callers_with_rows_of_the_same_shape_do_not_share_results():
    rows = [scores("sparsemax", 300, 40, seed=i) for i in range(8)]
    want = [sgt.sparsemax(z) for z in rows]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda z: [sgt.sparsemax(z) for _ in range(20)], rows, timeout=60))
    assert all(torch.equal(p, mine) for mine, several in zip(want, got) for p in several)
    assert not torch.equal(want[0], want[1])


def test_eight_callers_of_one_module_add_up_their_gradients():
    module = sgt.Sparsegen(0.25, learnable=True).double()
    z, v = scores("sparsemax", 200, 20), scores("sparsemax", 200, 20, seed=1)

    def gradient(_=None):
        return torch.autograd.grad(module(z), module.parameters(), v)[0]

    with ThreadPoolExecutor(8) as pool:
        assert all(torch.equal(g, gradient()) for g in pool.map(gradient, range(32), timeout=60))


class Mapped(Dataset):
    """Rows mapped inside the worker, forward and backward."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        z = scores("sparsemax", 2000, 40, dtype=torch.float32, seed=i).requires_grad_()
        p = sgt.sparsehourglass(z, q=0.5)
        p.square().sum().backward()
        return p.detach(), z.grad


class Digests(Dataset):
    """The bits of rows mapped inside the worker. Nothing here makes torch start threads: after a fork it would hang."""

    def __init__(self):
        self.scores = [scores("sparsemax", 2000, 40, dtype=torch.float32, seed=i) for i in range(8)]

    def __len__(self):
        return 8

    def __getitem__(self, i):
        made = (sgt.sparsemax(self.scores[i]), sgt.sparsegen_lin(self.scores[i], lam=-2.0, dim=0))
        return [hashlib.sha256(p.numpy().tobytes()).hexdigest() for p in made]


def _loaded(data, in_worker):
    return list(
        DataLoader(
            data, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=30,
            worker_init_fn=lambda _: torch.set_num_threads(in_worker),
        )
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers_of_a_threaded_parent_map_and_differentiate(num_threads):
    num_threads(2)
    want = [Mapped()[i] for i in range(8)]  # the parent has used its threads
    assert all(_same_bits(a, b) for a, b in zip(_loaded(Mapped(), 1), want))
    assert _same_bits(Mapped()[0], want[0])  # and the parent still can


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers_may_use_threads_of_their_own(num_threads):
    num_threads(2)
    data = Digests()
    want = [data[i] for i in range(8)]
    assert _loaded(data, 2) == want
    assert data[0] == want[0]


def test_the_number_of_threads_is_left_as_it_was(num_threads):
    num_threads(2)
    for name in NAMES:
        torch_map(name)(scores(name, 1000, 30), **controls(name))
    assert torch.get_num_threads() == 2


FIRST_IMPORT = """
import os, sys
import torch

torch.set_num_threads(2)
torch.softmax(torch.randn(2000, 500), -1)  # the parent's OpenMP threads are there now
z = torch.randn(4000, 100)


def child():
    import sparsegen.torch as sgt

    p = sgt.sparsemax(z)
    q = sgt.sparsegen_lin(z, lam=0.5)
    assert abs(p.numpy().sum() - 4000) < 1e-2 and abs(q.numpy().sum() - 4000) < 1e-2


if sys.argv[1] == "os":
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
import multiprocessing

process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
sys.exit(process.exitcode)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("way", ["os", "multiprocessing"])
def test_the_first_import_in_a_forked_child_waits_for_no_ones_threads(way):
    code = [sys.executable, "-W", "ignore", "-c", FIRST_IMPORT, way]
    with subprocess.Popen(code, stderr=subprocess.PIPE, text=True, start_new_session=True) as run:
        try:
            _, errors = run.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)  # the child that waits, too
            pytest.fail("the child waits for ever")
    assert run.returncode == 0, errors
