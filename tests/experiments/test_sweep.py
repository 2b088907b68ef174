"""Sweeps give a plain loop's numbers on every engine, and go on where they were after failures, kills and Ctrl-C."""

import contextlib
import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cells import die, grow, looks, measure, measured, not_json, nothing, threads, witness

from sparsegen.experiments import folders, sweep
from sparsegen.experiments.store import from_json
from sparsegen.experiments.sweep import SweepError, cell_key, run

posix = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")


def as_read(outputs):
    """Text of outputs as they are read from JSON, by Python's own reader: NaN is a literal there."""
    numpy = {np.ndarray: np.ndarray.tolist, np.int64: int, np.float64: float}
    return [json.dumps(out, sort_keys=True, default=lambda v: numpy[type(v)](v)) for out in outputs]


def calls(log):
    return [int(line.split()[0]) for line in Path(log).read_text().splitlines()] if Path(log).exists() else []


def alive(pid):
    """Whether a process runs; one that has ended but was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    assert condition()


@pytest.fixture(scope="module")
def cluster():
    """A Dask cluster of two processes that someone else started."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", silence_logs=50
    ) as cluster:
        yield cluster


CELLS = [{"seed": seed, "q": q} for seed in range(4) for q in (0.5, 2.0)]
LOOP = as_read(measure(**cell) for cell in CELLS)


@pytest.mark.parametrize("how", [{}, {"jobs": 2}, {"engine": "dask", "jobs": 2}], ids=["here", "joblib", "dask"])
def test_an_engine_gives_the_numbers_of_a_loop_fresh_and_from_disk_and_is_quiet(tmp_path, capfd, how):
    environment = dict(os.environ)
    fresh = run(measure, CELLS, store=tmp_path, **how)
    assert as_read(fresh) == LOOP
    assert [list(out) for out in fresh] == [["bad", "mean", "seed", "support"]] * len(CELLS)
    assert repr(run(measure, CELLS, store=tmp_path, **how)) == repr(fresh)
    assert capfd.readouterr() == ("", "")
    changed = {name for name, value in os.environ.items() if environment.get(name) != value}
    assert changed <= {"KMP_INIT_AT_FORK"}  # joblib's own


def test_dask_by_address_gives_the_numbers_of_a_loop_and_leaves_the_cluster_running(cluster, capfd):
    address = cluster.scheduler_address
    assert address.startswith("tcp://")
    assert as_read(run(measure, CELLS, engine="dask", address=address)) == LOOP
    pids = {out["pid"] for out in run(threads, [{"place": i} for i in range(20)], engine="dask", address=address)}
    assert pids == {worker.process.pid for worker in cluster.workers.values()}
    assert cluster.status.name == "running"
    assert not cluster.scheduler.tasks
    assert capfd.readouterr() == ("", "")


def test_cells_of_a_stopped_sweep_leave_the_dask_cluster(cluster, tmp_path):
    def stop(done, total, cell, seconds):
        if done:
            raise KeyboardInterrupt

    cells = [{"seed": i, "log": str(tmp_path / "log"), "wait": 0.2} for i in range(50)]
    with pytest.raises(KeyboardInterrupt):
        run(measured, cells, engine="dask", address=cluster.scheduler_address, progress=stop)
    wait_until(lambda: not cluster.scheduler.tasks)
    assert len(calls(tmp_path / "log")) < 10
    assert as_read(run(measure, CELLS, engine="dask", address=cluster.scheduler_address)) == LOOP


@pytest.fixture
def ray_settings(monkeypatch):
    """A password of our own, or Ray would leave one in the home folder; and what Ray changes in a process is undone."""
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(16))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # its workers look where it was started, not here
    handler, environment = signal.getsignal(signal.SIGTERM), dict(os.environ)
    yield
    signal.signal(signal.SIGTERM, handler)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]


@pytest.mark.slow
def test_ray_gives_the_numbers_of_a_loop_and_is_quiet(tmp_path, capfd, ray_settings):
    import ray

    log = str(tmp_path / "log")
    cells = [*({"seed": seed, "log": log} for seed in range(6)), {"seed": 6, "log": log, "fail": True}]
    with pytest.raises(SweepError, match="seed 6 is broken") as caught:
        run(measured, cells, store=tmp_path, jobs=2, engine="ray")
    assert as_read(caught.value.outputs[:-1]) == as_read(map(measure, range(6)))
    assert not ray.is_initialized()
    assert capfd.readouterr() == ("", "")


def test_outputs_come_in_the_order_of_the_cells(tmp_path):
    cells = [{"seed": i, "log": str(tmp_path / "log"), "wait": 0.3 * (i == 0)} for i in range(5)]
    ends = []
    outputs = run(measured, cells, jobs=2, progress=lambda done, total, cell, seconds: ends.append(cell))
    assert [out["seed"] for out in outputs] == list(range(5))
    assert ends[1] != cells[0]  # or nothing was out of order


def test_joblib_holds_no_finished_cell_back(tmp_path):
    cells = [{"place": i, "store": str(tmp_path)} for i in range(150)]
    assert all(out["seen"] for out in run(witness, cells, store=tmp_path, jobs=2))


@pytest.mark.parametrize("jobs", [1, 2])
def test_finished_cells_are_not_run_again(tmp_path, jobs):
    log = str(tmp_path / "log")
    cells = [{"seed": i, "log": log} for i in range(6)]
    run(measured, cells[:4], store=tmp_path / "store", jobs=jobs)
    outputs = run(measured, cells[::-1], store=tmp_path / "store", jobs=jobs)
    assert sorted(calls(log)) == list(range(6))
    assert as_read(outputs) == as_read(measure(i) for i in range(5, -1, -1))


def test_equal_cells_are_run_once(tmp_path):
    cell = {"seed": 1, "log": str(tmp_path / "log")}
    a, b = run(measured, [cell, dict(reversed(cell.items()))])
    assert as_read([a]) == as_read([b]) == as_read([measure(1)])
    assert a is not b
    assert a["support"] is not b["support"]
    assert calls(tmp_path / "log") == [1]


def test_another_version_function_or_cell_is_run(tmp_path):
    assert run(dict, [{"x": 1}], store=tmp_path) == [{"x": 1}]
    assert run(dict, [{"x": 1.0}], store=tmp_path) == [{"x": 1.0}]
    assert run(grow, [{"items": []}], store=tmp_path) == [{"items": [4]}]
    assert run(dict, [{"items": []}], store=tmp_path) == [{"items": []}]
    assert run(dict, [{"x": 1}], store=tmp_path, version="2") == [{"x": 1}]
    assert len((tmp_path / "cells.jsonl").read_bytes().splitlines()) == 5


def test_the_key_is_a_hash_of_name_cell_and_version_alone():
    text = json.dumps(["cells.measure", {"q": 0.5, "seed": 1}, "v"])
    expected = hashlib.sha256(text.encode()).hexdigest()[:32]
    assert cell_key(measure, {"seed": np.int32(1), "q": 0.5}, "v") == expected


def test_a_function_that_changes_its_arguments_changes_no_cell(tmp_path):
    cells = [{"items": [1]}]
    assert run(grow, cells, store=tmp_path) == [{"items": [1, 4]}]
    assert cells == [{"items": [1]}]
    assert from_json((tmp_path / "cells.jsonl").read_bytes())["cell"] == {"items": [1]}
    assert run(grow, cells, store=tmp_path) == [{"items": [1, 4]}]


@pytest.mark.parametrize("how", [{}, {"jobs": 2}, {"engine": "dask"}], ids=["here", "joblib", "dask"])
def test_a_failing_cell_is_named_and_the_others_are_kept(tmp_path, cluster, how):
    if "engine" in how:
        how = {**how, "address": cluster.scheduler_address}
    log = str(tmp_path / "log")
    cells = [{"seed": i, "log": log, "fail": i in (1, 3)} for i in range(6)]
    with pytest.raises(SweepError) as caught:
        run(measured, cells, store=tmp_path, **how)
    error = caught.value
    assert str(error) == (
        f"sparsegen: the cell {json.dumps(cells[1], sort_keys=True)} must be one that runs without an error, got "
        "Unpicklable: seed 1 is broken (2 of 6 cells failed, the others are done)."
    )
    assert error.failures == [(cells[i], f"Unpicklable: seed {i} is broken") for i in (1, 3)]
    assert [out is None for out in error.outputs] == [False, True, False, True, False, False]
    assert "in measured" in str(error.__cause__)
    with pytest.raises(SweepError):
        run(measured, cells, store=tmp_path, **how)
    assert sorted(calls(log)) == [0, 1, 1, 2, 3, 3, 4, 5]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (nothing, "TypeError: sparsegen: the output of function must be a dict, got None"),
        (not_json, r"TypeError: sparsegen: output\['x'\] must be None, a bool"),
        (measure, "TypeError: .*unexpected keyword argument 'x'"),
    ],
)
def test_an_output_that_cannot_be_kept_is_the_failure_of_its_cell(tmp_path, function, message):
    with pytest.raises(SweepError, match=f'^sparsegen: the cell {{"x": 1}} must be .*{message}'):
        run(function, [{"x": 1}], store=tmp_path)
    assert (tmp_path / "cells.jsonl").read_bytes() == b""


def test_a_worker_that_dies_loses_no_stored_cell(tmp_path):
    cells = [{"x": 0, "wait": 0.0}, {"x": 1, "wait": 1.0}]
    with pytest.raises(RuntimeError, match="worker process"):
        run(die, cells, store=tmp_path, jobs=2)
    assert run(die, cells[:1], store=tmp_path, progress=lambda done, *_: stop_if(done == 0)) == [{"x": 0}]


def stop_if(condition):
    if condition:
        raise AssertionError("not found in the store")


def test_progress_tells_what_is_done(tmp_path):
    told = []
    cells = [{"seed": i, "log": str(tmp_path / "log"), "wait": 0.05, "fail": i == 2} for i in range(4)]
    run(measured, cells[:1], store=tmp_path)
    with pytest.raises(SweepError):
        run(measured, cells, store=tmp_path, progress=lambda *a: told.append(a))
    assert [t[:3] for t in told] == [(1, 4, None), *((i + 1, 4, cells[i]) for i in (1, 2, 3))]
    assert told[0][3] == 0
    assert all(0.05 <= t[3] < 5 for t in told[1:])


def test_progress_that_raises_ends_joblibs_workers_without_a_word(tmp_path, capfd):
    def stop(done, total, cell, seconds):
        if done:
            raise ZeroDivisionError

    log = tmp_path / "log"
    cells = [{"seed": i, "log": str(log), "wait": 0.1 if i == 0 else 30.0} for i in range(4)]
    with pytest.raises(ZeroDivisionError):
        run(measured, cells, store=tmp_path, jobs=2, progress=stop)
    wait_until(lambda: not any(alive(line.split()[1]) for line in log.read_text().splitlines()))
    assert len((tmp_path / "cells.jsonl").read_bytes().splitlines()) == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("engine", ["joblib", "dask"])
def test_each_of_several_workers_uses_one_thread(monkeypatch, engine):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "SPARSEGEN_NUM_THREADS"):
        monkeypatch.setenv(name, "2")
    with socket.socket() as taken, contextlib.suppress(OSError):
        taken.bind(("", 8787))  # Dask's port for its dashboard; we want none
        taken.listen()
        outputs = run(threads, [{"place": i} for i in range(4)], jobs=2, engine=engine)
    assert {(out["kernel"], *out["blas"]) for out in outputs} == {(1, 1)}
    assert os.getpid() not in {out["pid"] for out in outputs}
    assert os.environ["SPARSEGEN_NUM_THREADS"] == os.environ["OMP_NUM_THREADS"] == "2"
    assert run(threads, [{"place": 0}])[0]["pid"] == os.getpid()


CHILD = """
import signal, sys
import test_sweep
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits that it is ignored
folder, jobs = sys.argv[1:]
test_sweep.run(test_sweep.measured, test_sweep.held(folder), store=folder, jobs=int(jobs))
"""


def held(folder):
    """Eight cells, of which the first four end at once and the others when there is no file `hold`."""
    return [{"seed": i, "log": f"{folder}/log", "hold": f"{folder}/hold" if i > 3 else None} for i in range(8)]


def stopped(folder, jobs, send):
    """Start a sweep in another process, stop it by a signal in the middle, and return the ids of its processes."""
    (folder / "hold").touch()
    command = [sys.executable, "-c", CHILD, str(folder), str(jobs)]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, env=environment, start_new_session=True) as child:
        try:
            wait_until(lambda: len(calls(folder / "log")) == 4 + jobs, 60)
            wait_until(lambda: stored(folder) == 4)
            send(child.pid)
            assert child.wait(timeout=20) != 0
        finally:
            child.kill()
    return {int(line.split()[1]) for line in (folder / "log").read_text().splitlines()}


def stored(folder):
    return (folder / "cells.jsonl").read_bytes().count(b"\n")


@posix
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_sweep_ends_its_workers_and_goes_on_where_it_was(tmp_path, jobs):
    pids = stopped(tmp_path, jobs, lambda pid: os.kill(pid, signal.SIGKILL))
    wait_until(lambda: not any(map(alive, pids)))
    assert stored(tmp_path) == 4
    (tmp_path / "hold").unlink()
    assert as_read(run(measured, held(tmp_path), store=tmp_path)) == as_read(map(measure, range(8)))
    assert sorted(calls(tmp_path / "log")) == sorted([*range(8), *range(4, 4 + jobs)])


@posix
@pytest.mark.parametrize("to", [os.kill, os.killpg])
def test_ctrl_c_keeps_stored_cells_and_ends_the_workers(tmp_path, capfd, to):
    pids = stopped(tmp_path, 2, lambda pid: to(pid, signal.SIGINT))
    wait_until(lambda: not any(map(alive, pids)))
    assert len(pids) == 2
    assert stored(tmp_path) == 4
    assert capfd.readouterr().err.count("Traceback") == 1


def test_a_cell_torn_at_any_byte_is_run_again_and_no_other(tmp_path):
    log = tmp_path / "log"
    cells = [{"seed": i, "log": str(log)} for i in range(3)]
    expected = run(measured, cells, store=tmp_path)
    path = tmp_path / "cells.jsonl"
    whole = path.read_bytes()
    for size in range(whole.rfind(b"\n", 0, -1) + 1, len(whole)):
        path.write_bytes(whole[:size])
        log.unlink(missing_ok=True)
        assert repr(run(measured, cells, store=tmp_path)) == repr(expected)
        assert calls(log) == [2]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"engine": "spark"}, ValueError, "engine must be one of 'joblib', 'dask', 'ray', got 'spark'"),
        ({"jobs": 0}, ValueError, "jobs must be a positive integer, got 0"),
        ({"jobs": 1.5}, ValueError, "jobs must be a positive integer, got 1.5"),
        ({"address": "tcp://a:1"}, ValueError, "address must be None with engine 'joblib', .*, got 'tcp://a:1'"),
        ({"function": lambda x: {}}, TypeError, "function must be a module-level function, .*, got <function"),
        ({"cells": [{"x": 1}, 2]}, TypeError, r"cells\[1\] must be a dict of keyword arguments, got 2"),
        ({"cells": [{"x": object()}]}, TypeError, r"cells\[0\]\['x'\] must be None, a bool"),
        ({"engine": "dask", "address": "tcp://127.0.0.1:1"}, ConnectionError, "address must be that of a running"),
        ({"engine": "ray", "address": "127.0.0.1:1"}, ConnectionError, "address must be that of a running"),
        ({"engine": "dask", "address": "here:there"}, ConnectionError, "address must be .*, got 'here:there'"),
    ],
)
def test_bad_arguments_are_refused(options, error, message):
    options = {"function": dict, "cells": [{"x": 1}], **options}
    with pytest.raises(error, match=f"^sparsegen: {message}.*\\.$"):
        run(options.pop("function"), options.pop("cells"), **options)


@pytest.mark.parametrize("engine", ["joblib", "dask"])
def test_workers_look_where_the_sweep_of_the_moment_does(monkeypatch, engine):
    """joblib keeps its workers for the next sweep: the folders of the first must not stay with them."""
    seen = []
    for place in ("first", "second", None):
        for name in (folders.DATA_VARIABLE, folders.RUNS_VARIABLE):
            monkeypatch.delenv(name, raising=False)
            if place is not None:
                monkeypatch.setenv(name, place)
        found = run(looks, [{"seed": i} for i in range(4)], jobs=2, engine=engine)
        assert {(row[folders.DATA_VARIABLE], row[folders.RUNS_VARIABLE]) for row in found} == {(place, place)}
        seen.append({row["worker"] for row in found})
    if engine == "joblib":
        assert len(set.union(*seen)) <= 2  # so one of them worked for two sweeps; else nothing was tried
    assert os.getpid() not in set.union(*seen)


@pytest.mark.parametrize(
    ("engine", "package", "extra"),
    [("joblib", "joblib", "sklearn"), ("dask", "distributed", "cluster"), ("ray", "ray", "cluster")],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, engine, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs {package}, which .* pip install 'sparsegen\[{extra}\]'"):
        run(dict, [{"x": 1}], jobs=2, engine=engine)


def test_importing_sweeps_loads_no_engine():
    code = "import sys, sparsegen.experiments.sweep; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"joblib", "dask", "distributed", "ray"} & set(done.stdout.split())


def test_no_cells_start_no_engine(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run(dict, [], engine="ray", address="127.0.0.1:1") == []
    assert set(sweep.ONE_THREAD.values()) == {"1"}
