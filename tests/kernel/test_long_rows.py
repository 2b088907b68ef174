"""Long rows few of whose entries matter; results past the caches and into them; halves of every length."""

import numpy as np
import pytest

import buffers
from oracle import project_bisect
from sparsegen import _core

K = 4 * 2048 + 37  # looked at by blocks, with a part of a block at the end
HUGE = 3e4


def rows_of(dtype):
    """Rows whose few large entries stand where a lane, a block, a vector or the last entries have all of them."""
    rng = np.random.default_rng(7)
    base = rng.standard_normal(K)
    rows = {"normal": base, "equal tops": np.where(np.arange(K) % 1000 == 3, 5.0, base)}
    for step in (2, 4, 8, 16, 64):
        rows[f"one lane of {step}"] = base + np.where(np.arange(K) % step == 1, 9.0, 0.0)
        rows[f"a few in one lane of {step}"] = base + np.where((np.arange(K) % (61 * step) == 0), 9.0, 0.0)
    rows["a vector"] = base + np.where(np.arange(K) // 16 == 77, 9.0, 0.0)
    rows["the end"] = base + np.where(np.arange(K) > K - 9, 9.0, 0.0)
    rows["steps"] = base + 3.0 * (np.arange(K) % 997 == 0) + 2.0 * (np.arange(K) % 31 == 0)
    rows["far from 0"] = base + HUGE
    rows["one left open"] = np.where(np.arange(K) == 4111, 1.0, -np.inf)
    rows["one lane left open"] = np.where(np.arange(K) % 16 == 5, base, -np.inf)
    rows["geometric"] = -np.geomspace(1e-30, 1e30, K)[rng.permutation(K)]
    return {name: np.asarray(row, dtype) for name, row in rows.items()}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_few_entries_matter_wherever_they_stand(dtype, engine):
    rows = rows_of(dtype)
    x, eps = np.stack(list(rows.values())), buffers.EPS[dtype]
    for r in (1e-3, 0.3, 1.0, 4.0, 40.0):
        got = buffers.project(x, r, dtype)
        want = project_bisect(x.astype(np.float64), np.full(len(x), r))
        for name, p, right in zip(rows, got, want, strict=True):
            np.testing.assert_allclose(p, right, rtol=0, atol=8 * eps, err_msg=f"{name}, r = {r}")
            assert abs(p.sum(dtype=np.float64) - 1) <= 4 * eps, (name, r)


def large(n: int, dtype: str = "float32"):
    """Rows of n entries, of so many bytes that a processor may write their results past its caches."""
    rng = np.random.default_rng(n)
    rows = _core.STREAM_FROM // 2 // np.dtype(dtype).itemsize // n + 3
    pool = rng.standard_normal(1 << 16).astype(dtype)
    return pool[rng.integers(0, len(pool), rows * n)].reshape(rows, n)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [50, 80, 100, 128, 130, 512, 1100, 2048, 8200, 40_000])
def test_past_the_caches_or_into_them_the_bits_are_the_same(n, dtype, engine):
    x = large(n, dtype)
    v = x[::-1].copy()
    for r in (1.0, n / 2):
        both = []
        for past in (True, False):
            with buffers.written_past_the_caches(past):
                p = buffers.project(x, r, dtype)
                grad, _ = buffers.vjp(p[:, :, None], v[:, :, None], r, dtype)
                words = buffers.project_words(x, r, dtype)[1]
                both.append([p, grad, buffers.vjp_words(words, v, r, dtype)])
        for ones, others in zip(*both, strict=True):
            np.testing.assert_array_equal(ones, others)
        assert (np.abs(both[0][0].sum(1, dtype=np.float64) - 1) <= 4 * buffers.EPS[dtype]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [130, 2048, 40_000])
@pytest.mark.parametrize(("rule", "radius"), [(buffers.GIVEN, 1.0), (buffers.TOTAL, 1.0), (buffers.TOTAL, 0.9)])
def test_so_are_those_of_squares(rule, radius, n, dtype, engine):
    z = large(n, dtype)[:, :, None]
    both = []
    for past in (True, False):
        with buffers.written_past_the_caches(past):
            both.append(buffers.squares(z, z[::-1].copy(), radius, rule, dtype))
    for ones, others in zip(*both, strict=True):
        np.testing.assert_array_equal(ones, others)


@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
def test_halves_of_every_length_are_floats_rounded_once(storage, engine):
    """Whole vectors, the last of which may overlap the one before, and rows that are less than one."""
    rng = np.random.default_rng(3)
    for n in range(1, 70):
        scores = rng.standard_normal((6, n)) * 8
        scores[1, n // 2], scores[2], scores[3, -1] = -np.inf, -np.inf, np.nan
        x, v = (buffers.stored(each, storage) for each in (scores, rng.standard_normal((6, n))))
        wide = [buffers.floats(each, storage).astype(np.float32) for each in (x, v)]
        p, right = buffers.project(x, 2.0, storage), buffers.project(wide[0], 2.0, "float32")
        np.testing.assert_array_equal(p, buffers.stored(right, storage), err_msg=f"K = {n}")
        grad, _ = buffers.vjp(p[:, :, None], v[:, :, None], 2.0, storage)
        given = buffers.floats(p, storage).astype(np.float32)[:, :, None]
        right, _ = buffers.vjp(given, wide[1][:, :, None], 2.0, "float32")
        close = buffers.EPS[storage] * 2  # the sums of either are of vectors of different lengths
        np.testing.assert_allclose(buffers.floats(grad, storage), right, rtol=close, atol=1e-6, err_msg=f"K = {n}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [64, 72, 80, 100, 112, 128, 144, 208, 520, 1024, 1040, 2048, 2320, 8256, 40_000])
@pytest.mark.parametrize("past", [True, False])
def test_the_support_that_is_kept_while_rows_are_written_is_theirs(past, n, dtype, engine):
    x = large(n, dtype)
    x[1], x[2, n // 2], x[3, ::2], x[4] = 0.5, np.nan, -np.inf, -np.inf
    x[5, n - 1] = x[6, 0] = HUGE
    x[7] = -np.geomspace(1e-30, 1e30, n)
    for r in (1.0, n / 2):
        with buffers.written_past_the_caches(past):
            p, words, broken = buffers.project_words(x, r, dtype)
        assert broken
        np.testing.assert_array_equal(p, buffers.project(x, r, dtype))
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        np.testing.assert_array_equal(bits[:, :n], p > 0)
        assert not bits[:, n:].any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [130, 512, 2048, 8200])
def test_what_is_asked_for_in_advance_changes_no_bit(n, dtype, engine):
    x = large(n, dtype)
    z, v = np.abs(x)[:, :, None], x[::-1].copy()[:, :, None]
    both = []
    for does in (True, False):
        with buffers.foreseeing(does):
            p = buffers.project(x, 1.0, dtype)[:, :, None]
            alike = [p, *buffers.vjp(p, v, 1.0, dtype), buffers.root_vjp(p, v, dtype)]
            alike += buffers.squares(z, v, 0.9, buffers.TOTAL, dtype, words=True)
            both.append([*alike, *buffers.squares(z, v, 1.0, buffers.GIVEN, dtype, along=True)])
    for ones, others in zip(*both, strict=True):
        np.testing.assert_array_equal(ones, others)
