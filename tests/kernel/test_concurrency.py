"""Callers at the same time, and children of a process that has already used its threads."""

import multiprocessing
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import sparsegen as sg

WAYS = [way for way in ("fork", "spawn") if way in multiprocessing.get_all_start_methods()]
SHAPES = [(2, 5), (64, 33), (3000, 40), (400, 300), (3, 50000)]


def fork(test):
    """Mark a test that forks: skipped where there is no fork, and allowed to fork beside threads."""
    quiet = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")(test)
    return pytest.mark.skipif("fork" not in WAYS, reason="this system has no fork")(quiet)


def inputs():
    rng = np.random.default_rng(11)
    return [rng.standard_normal(shape).astype(dtype) for shape in SHAPES for dtype in (np.float32, np.float64)]


def answers(arrays):
    return [(sg.sparsemax(z), sg.sparsehourglass(z, q=0.5), sg.sparsegen_exp(z, lam=-1.0)) for z in arrays]


def assert_same(got, want):
    for one, two in zip(got, want):
        for a, b in zip(one, two):
            np.testing.assert_array_equal(a, b)


def test_eight_callers_at_once_get_the_right_bits(threads):
    arrays = inputs()
    threads(1)
    want = answers(arrays)
    threads(4)
    orders = [np.random.default_rng(i).permutation(len(arrays)) for i in range(8)]

    def work(order):
        for _ in range(3):
            assert_same(answers([arrays[i] for i in order]), [want[i] for i in order])

    with ThreadPoolExecutor(8) as callers:
        for done in [callers.submit(work, order) for order in orders]:
            done.result(timeout=60)


def _child(want, threads_wanted):
    sg.set_num_threads(threads_wanted)
    assert_same(answers(inputs()), want)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("way", WAYS)
def test_children_of_a_threaded_parent_get_the_right_bits(way, threads):
    threads(3)
    want = answers(inputs())
    context = multiprocessing.get_context(way)
    children = [context.Process(target=_child, args=(want, n), daemon=True) for n in (1, 3)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    stuck = [child for child in children if child.is_alive()]
    for child in stuck:
        child.kill()
    assert not stuck, "a child did not end"
    assert [child.exitcode for child in children] == [0, 0]
    assert_same(answers(inputs()), want)


def _count_threads():
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else None


def _child_with_threads(want):
    before = _count_threads()
    _child(want, 3)
    if before is not None:
        assert _count_threads() == before + 2, "the child did not start threads of its own"


def _grandchild(want):
    inner = multiprocessing.get_context("fork").Process(target=_child_with_threads, args=(want,))
    inner.start()
    inner.join(30)
    assert inner.exitcode == 0


def _run_forked(target, want):
    child = multiprocessing.get_context("fork").Process(target=target, args=(want,))
    child.start()
    child.join(60)
    running = child.is_alive()
    child.kill()
    assert not running, "the child did not end"
    assert child.exitcode == 0


@fork
def test_a_fork_and_a_fork_of_a_fork_start_threads_of_their_own(threads):
    threads(3)
    want = answers(inputs())
    _run_forked(_child_with_threads, want)
    _run_forked(_grandchild, want)


@fork
def test_a_fork_while_other_callers_work_gets_the_right_bits(threads):
    threads(3)
    arrays, stop = inputs(), threading.Event()
    want = answers(arrays)

    def work():
        while not stop.is_set():
            answers(arrays[-4:])

    callers = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for caller in callers:
        caller.start()
    try:
        for _ in range(8):
            _run_forked(_child_with_threads, want)
    finally:
        stop.set()
        for caller in callers:
            caller.join(30)


ENDING = """
import threading, time
import numpy as np
import sparsegen as sg

sg.set_num_threads(2)
z = np.random.default_rng(0).standard_normal((300, 1000))
started = threading.Barrier(4)

def work():
    sg.sparsemax(z), started.wait()
    while True:
        sg.sparsemax(z), sg.sparsegen_exp(z, lam=0.5)

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
started.wait()
time.sleep(0.05)
"""


def test_a_process_ends_well_while_callers_work():
    """A thread that wants Python's lock back while Python ends must not take the process down."""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
