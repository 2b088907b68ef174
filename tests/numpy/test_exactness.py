"""Inputs on which an exact answer is hard: heavy tails, extreme radii, large results, no memory."""

import functools
import math
import os
import subprocess
import sys
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
import pytest

import buffers
import sparsegen as sg
from sparsegen.numpy import _kernel


def powers(rng, k):
    return 2.0 ** -rng.permutation(k).astype(float)


def lognormal(rng, k):
    return np.minimum(np.exp(5 * rng.standard_normal(k)), 6e4)  # float16 ends there


def high_powers(rng, k):
    return rng.random(k) ** 20


HEAVY = [powers, lognormal, high_powers]


def exact_rows(x, r):
    """Rows (n, k) of stored numbers, in rational arithmetic by sorting; radii are Fractions."""
    return np.array([[float(v) for v in sorted_exact(row, q)] for row, q in zip(x.tolist(), r)])


def sorted_exact(row, r):
    u = [Fraction(v) for v in row]
    total, tau = Fraction(0), None
    for n, v in enumerate(sorted(u, reverse=True), 1):
        if tau is not None and v <= tau:
            break
        total += v
        tau = (total - r) / n
    return [max(v - tau, Fraction(0)) / r for v in u]


@functools.lru_cache(64)  # the engines ask one after the other
def exact_parts(rows, part):
    """Radii that are this part of the rows' sums, and the exact projections onto them."""
    r = [float(sum(map(Fraction, row)) * part) for row in rows]
    return r, exact_rows(np.array(rows), [Fraction(v) for v in r])


@pytest.mark.parametrize("storage", buffers.STORAGE)
@pytest.mark.parametrize("kind", HEAVY, ids=lambda kind: kind.__name__)
def test_heavy_tails_are_exact_in_every_layout(kind, storage, engine):
    rng = np.random.default_rng(17)
    for k in (9, 17, 24, 29, 40, 53, 64):
        bits = buffers.stored(np.stack([kind(rng, k) for _ in range(24)]), storage)
        x = buffers.floats(bits, storage)
        for part in (Fraction(1), Fraction(1, 2)):
            r, want = exact_parts(tuple(map(tuple, x.tolist())), part)
            for layout in (bits[:, :, None], bits.T[None], np.ascontiguousarray(bits.T)[None]):
                radii = np.array(r).reshape(layout.shape[0], layout.shape[2])
                p = buffers.floats(buffers.project_strided(layout, radii, storage)[0], storage)
                got = p[:, :, 0] if layout.shape[2] == 1 else p[0].T
                assert abs(got - want).max() <= 4 * buffers.EPS[storage]
                assert abs(got.sum(-1) - 1).max() <= (4 if storage.startswith("float3") else 64) * buffers.EPS[storage]


def test_a_tail_too_light_to_be_felt_does_not_spoil_a_column():
    x = (2.0 ** -np.arange(53)).astype("f4")
    p = sg.sum_normalization_plus(np.stack([x, x], 1), axis=0)
    np.testing.assert_allclose(p[:, 0], sg.sum_normalization_plus(x), rtol=0, atol=2**-22)
    assert abs(p[0, 0] - 0.5) <= 2**-22


def crashes(code, **environment):
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )
    return None if run.returncode == 0 else f"exit {run.returncode}: {run.stderr[-400:]}"


def test_rows_that_are_written_late_do_not_stream_into_scratch():
    code = """
import numpy as np, sparsegen as sg
for k in (1499, 1500, 1501, 1504, 1536, 2049, 5000):
    for dtype in ("f4", "f8"):
        z = np.random.default_rng(k).standard_normal((3 * 2**21 // k, k)).astype(dtype)
        for p in (sg.sparsegen_exp(z, lam=-500.0), sg.sparsegen_sq(z, lam=-30.0)):
            assert abs(p.sum(-1, dtype="f8") - 1).max() < 4 * np.finfo(dtype).eps
"""
    assert crashes(code, SPARSEGEN_NUM_THREADS="1") is None


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e30, 3e38, 1e300])
def test_radii_of_any_size_lose_no_digit(dtype, scale, engine):
    if dtype == "f4" and scale > 1e38:
        rows = [[3e38, -3e38], [1.0, 2.0], [3e38, 1e38, -1e38]]
    else:
        crowd = [scale * (0.01 + 1e-3 * i / 64) for i in range(64)]  # close above the threshold
        rows = [[scale, *crowd], [scale, -scale], [scale] * 5]
    for row in rows:
        x = np.array(row, dtype)
        for r in (scale / 2, scale, 2 * scale):
            want = np.array([float(v) for v in sorted_exact(x.tolist(), Fraction(r))])
            allowed = 4 * np.finfo(dtype).eps * (want + 1 / np.count_nonzero(want))
            assert (abs(sg.project(x, r) - want) <= allowed).all(), (row[:3], r)


def test_a_radius_beyond_the_scores_type_is_exact():
    p = sg.project(np.float32([3e38, -3e38]), 1e39)
    np.testing.assert_allclose(p, [0.8, 0.2], rtol=0, atol=4 * 2**-23)


def test_the_mean_of_the_largest_numbers_is_finite():
    z = np.full((1, 9), np.finfo(np.float64).max)
    np.testing.assert_allclose(_kernel.means(z, 1, None)[0], z[:, 0], rtol=1e-15)
    np.testing.assert_allclose(sg.sparsehourglass(z, q=1.0), 1 / 9, rtol=1e-15)


@pytest.mark.parametrize("storage", ["float32", "float64"])
def test_rows_of_equal_entries_sum_to_one(storage, engine):
    rng = np.random.default_rng(3)
    for k in (7, 48, 64, 100, 128, 500, 512, 1000, 1024, 2000, 3001):
        x = buffers.stored(np.repeat(rng.random((64, 1)) * 4 - 2, k, axis=1), storage)
        for r in (1.0, *rng.random(6) * 3):
            p = buffers.project(x, float(r), storage)
            sums = [math.fsum(row) for row in p.tolist()]
            assert max(abs(np.array(sums) - 1)) <= 4 * buffers.EPS[storage]


NO_MEMORY = """
import resource, sys
import numpy as np, sparsegen as sg
{front}
z = np.random.default_rng(0).standard_normal((4, 3_000_000)).astype("f4")
out = np.empty_like(z)
call = lambda threads: sg._core.project(z.ctypes.data, out.ctypes.data, 0, *z.shape, 1.0, threads)
call(2)  # OpenMP's own threads end the process if they cannot start
want = out.copy()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
seen = set()
for room in range(0, 200 << 20, 4 << 20):
    resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
    try:
        call(2)
        seen.add("done")
    except MemoryError:
        seen.add("MemoryError")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert seen == {{"done", "MemoryError"}}, seen
call(2)
assert (out == want).all()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux for its memory")
@pytest.mark.parametrize("front", ["", "import sparsegen.torch"], ids=["own threads", "borrowed threads"])
def test_no_memory_in_any_thread_is_a_memory_error(front):
    if front:
        pytest.importorskip("torch")
    # Memory that is given back goes to the system at once, so that every call has to ask for it.
    assert crashes(NO_MEMORY.format(front=front), MALLOC_MMAP_THRESHOLD_="65536") is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux for its memory")
def test_memory_for_long_rows_is_given_back():
    code = """
import numpy as np, sparsegen as sg
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
z = np.asfortranarray(np.random.default_rng(0).standard_normal((2, 2_000_000)).astype("f4"))
sg.set_num_threads(1)
sg.sparsemax(z[:, :1000])
before = resident()
del_me = sg.sparsemax(z), sg.sparsemax(z.astype("f2"))
kept = sum(p.nbytes for p in del_me)
assert resident() - before - kept < 16 << 20, (resident() - before - kept) >> 20
"""
    assert crashes(code) is None


@contextmanager
def flushing():
    """Subnormal numbers count as 0 in this thread, as torch.set_flush_denormal asks for."""
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such setting")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def subnormal(storage, k):
    tiny = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}[storage]
    return buffers.stored(np.random.default_rng(k).integers(-9, 9, (1, 40, k)) * tiny, storage)


@pytest.mark.parametrize("storage", buffers.STORAGE)
def test_flushing_subnormal_numbers_changes_no_bit(storage, engine):
    for k in (5, 8, 9, 20, 33, 100, 700):
        x, even = subnormal(storage, k), buffers.stored(np.full((1, k, 40), 1 / k), storage)
        v = np.ascontiguousarray(np.moveaxis(x, -1, 1))

        def answers(x=x, even=even, v=v):
            return buffers.project(x[0], 1e-7, storage), buffers.vjp(even, v, 1.0, storage)[0]

        want = answers()
        with flushing():
            got = answers()
        for one, other in zip(got, want):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=lambda t: t.__name__)
def test_a_lone_entry_may_be_the_lowest_number(dtype, engine):
    for n in (1, 2, 5, 17, 70, 300, 5000):
        x = np.full((3, n), -np.inf, dtype)
        x[:, n // 2] = np.finfo(dtype).min
        want = (x > -np.inf).astype(dtype)
        for p in (sg.sparsemax(x), sg.sparsegen_lin(x, lam=0.5), sg.project(x, 1e-3), sg.entmax(x, alpha=2.0)):
            np.testing.assert_array_equal(p, want)


def test_small_shares_of_a_large_alpha_have_their_digits():
    z = [0.00085721286003048, -0.00120097089828495, 0.00209018429934189, -0.0003005273327313, 0.00036918597421564]
    z += [-0.00052415543663939, 0.00038489677153618]
    # By bisection in 60 digits. A rounding of the scores moves an entry by p^(2 - alpha) of it: 1e7 eps of 0.002.
    want = [0.18345735780723776, 0.00029339554405058746, 0.2145309088977103, 0.13927053778439655, 0.1676311664978292]
    want += [0.12662822246298355, 0.1681884110057921]
    np.testing.assert_allclose(sg.entmax(z, alpha=4), want, rtol=0, atol=4e-12)
