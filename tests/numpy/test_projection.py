"""The kernel's answer against two oracles of another kind, on every engine this machine has."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import buffers
import laws
import oracle
import sparsegen as sg
import strategies
from sparsegen import _core
from sparsegen.numpy import _kernel

ENGINES = _core.engines()
SIZES = [*range(1, 41), 63, 64, 65, 128, 255, 256, 257, 511, 512, 513, 4095, 4096, 4097, 20000, 131072]


def exact(x, mask, r):
    rows = []
    for i, row in enumerate(x.astype(np.float64)):
        hidden = row if mask is None else np.where(mask[i], row, -math.inf)
        rows.append([float(v) for v in oracle.project_exact(hidden.tolist(), r)[0]])
    return np.array(rows)


def assert_right(p, want, blur=0.0):
    laws.assert_near(p, want, blur=2.0**-24 if p.dtype == np.float16 else blur)
    busy = want.sum(-1) > 0
    laws.assert_on_simplex(p[busy])
    assert (p[~busy] == 0).all()


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=lambda t: t.__name__)
@given(data=st.data())
def test_short_rows_equal_the_exact_projection(name, dtype, data):
    x = data.draw(strategies.rows(dtype))
    mask, r = data.draw(strategies.masks(x.shape)), data.draw(strategies.radii)
    with buffers.using_engine(name):
        assert_right(sg.project(x, r, mask=mask), exact(x, mask, r))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
@given(eighths=st.lists(st.integers(-8, 8), min_size=1, max_size=7), offset=st.sampled_from([0, 100, -1000]))
@example(eighths=[4, 2, 2, 0], offset=0)
@example(eighths=[8, 0], offset=0)
def test_support_is_exact_where_entries_stand_at_the_threshold(name, dtype, eighths, offset):
    x = (np.array([eighths]) / 8 + offset).astype(dtype)
    for r in (0.125, 0.5, 1.0, 4.0):
        want, tau = oracle.project_exact(x[0].tolist(), r)
        with buffers.using_engine(name):
            p, info = sg.project(x, r, return_info=True)
        assert [v > 0 for v in p[0]] == [v > 0 for v in want]
        assert info.support_size[0] == sum(v > 0 for v in want)
        assert abs(info.threshold[0] - float(tau)) <= 4 * np.finfo(dtype).eps * (1 + abs(offset))


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=lambda t: t.__name__)
@given(data=st.data())
def test_any_axis_and_mask_equal_the_rows_moved_last(dtype, data):
    x, axis, mask = data.draw(strategies.shaped(dtype))
    p = sg.project(x, 0.75, axis=axis, mask=mask)
    full = np.moveaxis(np.broadcast_to(True if mask is None else mask, x.shape), axis, -1)
    moved = np.moveaxis(x, axis, -1)
    want = exact(moved.reshape(-1, moved.shape[-1]), full.reshape(-1, moved.shape[-1]), 0.75)
    assert_right(np.moveaxis(p, axis, -1).reshape(want.shape), want)


@given(data=st.data())
def test_one_radius_a_row_equals_a_call_a_row(data):
    x = data.draw(strategies.rows(np.float32))
    r = np.array(data.draw(st.lists(strategies.radii, min_size=len(x), max_size=len(x))))
    p = sg.project(x, r)
    for i in range(len(x)):
        np.testing.assert_array_equal(p[i], sg.project(x[i], r[i]))


def normal(rng, k):
    return rng.standard_normal(k)


def dense(rng, k):
    return rng.random(k) / k


def narrow(rng, k):
    return rng.standard_normal(k) * 1e-3


def far_below(rng, k):
    return rng.standard_normal(k) * 1e-3 - 1e8


def geometric(rng, k):
    return 2.0 ** -np.minimum(np.arange(k), 120)


def equal(rng, k):
    return np.full(k, 0.3)


def one_huge(rng, k):
    return np.where(np.arange(k) == k // 2, 1e30, rng.standard_normal(k))


def alternating(rng, k):
    return np.where(np.arange(k) % 2, 0.5, -0.5) / k


def rising(rng, k):
    return np.linspace(-1, 1, k)


def falling(rng, k):
    return np.linspace(1, -1, k)


def denormal(rng, k):
    return rng.integers(-9, 9, k) * 1e-42


def crowd_near_the_threshold(rng, k):
    return np.where(np.arange(k) == 0, 0, -0.9)


def crowd_at_the_threshold(rng, k):
    return np.where(np.arange(k) == 0, 0, -1.0)


def crowd_around_the_threshold(rng, k):
    return np.where(np.arange(k) == 0, 0, -1.0 + rng.integers(-4, 5, k) * 2.0**-23)


def half_hidden(rng, k):
    return np.where(np.arange(k) % 2, rng.standard_normal(k), -math.inf)


KINDS = [
    normal, dense, narrow, far_below, geometric, equal, one_huge, alternating, rising, falling, denormal,
    crowd_near_the_threshold, crowd_at_the_threshold, crowd_around_the_threshold, half_hidden,
]  # fmt: skip


def rows_of(kind, k, n):
    rng = np.random.default_rng(k)
    return np.stack([kind(rng, k) for _ in range(n)])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
def test_rows_of_every_size_equal_the_bisection(kind, dtype, engine):
    for k in SIZES:
        x = rows_of(kind, k, 3 if k < 300 else 1).astype(dtype)
        for r in (1.0, 0.01) if k < 4000 else (1.0, 0.01, 6.0) if k < 5000 else (1.0,):
            assert_right(sg.project(x, r), oracle.project_bisect(x, r))


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
def test_tops_of_long_rows_share_equally_wherever_they_stand(dtype, engine):
    for k in (2047, 2048, 2049, 2063, 4096, 5001):
        x = rows_of(normal, k, 12).astype(dtype)
        for row, tops in zip(x, ([0], [k - 1], [0, k - 1], [k // 2, k // 2 + 1], range(0, k, 7), range(k))):
            row[list(tops)] = 9
        x[6, 3] = x[7, k - 1] = math.nan
        x[8, k // 2], x[9], x[10, ::2] = math.inf, -math.inf, -math.inf
        x[11] = np.where(np.arange(k) % 2, 1, -1) * np.finfo(dtype).max  # no sum of it is a number
        p, top = sg.project(x, 0), x.max(-1, keepdims=True)
        want = (x == top) / np.maximum((x == top).sum(-1, keepdims=True), 1)
        want[6:9], want[9] = math.nan, 0
        np.testing.assert_array_equal(p, want.astype(dtype))


@pytest.mark.parametrize("k", [5, 8, 10, 16, 17, 50, 64, 65, 130, 256, 257, 512, 513, 1000, 2500])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
def test_rows_that_are_worked_together_are_told_apart(k, dtype, engine):
    rng = np.random.default_rng(k)
    x = np.stack(
        [kind(rng, k) for kind in (*KINDS, normal) for _ in range(3)] + [rng.normal(size=k) for _ in range(40)]
    )
    x = rng.permutation(x).astype(dtype)
    x[3, 0], x[11, k - 1] = np.nan, np.inf
    for r in (0.02, 1.0, 0.4 * k):  # one entry, a few, half of them
        p, info = sg.project(x, r, return_info=True)
        good = np.isfinite(p).all(-1)
        assert (~good).nonzero()[0].tolist() == [3, 11]
        assert_right(p[good], oracle.project_bisect(x[good], r))
        for i in range(len(x)):
            alone, found = sg.project(x[i], r, return_info=True)
            np.testing.assert_array_equal(alone, p[i])
            np.testing.assert_array_equal(found, (info.support_size[i], info.threshold[i]))


@pytest.mark.parametrize("k", [3, 10, 12, 16, 17, 21, 50, 64, 65, 130, 256, 530, 1100, 2051, 8256])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
def test_rows_behind_masks_equal_rows_with_minus_inf(k, dtype, engine):
    rng = np.random.default_rng(k)
    x, mask = rng.normal(size=(41, k)).astype(dtype), rng.random((41, k)) < 0.8
    mask[5], mask[6], mask[7] = False, True, np.arange(k) == k - 1
    x[~mask] = rng.choice([np.nan, np.inf, 9.0], (~mask).sum())  # nothing of it may be seen
    x[9:12, ::3] = -np.inf  # some rows hide more by themselves,
    x[20, mask[20].argmax()] = np.nan  # and one is broken
    hidden, each = np.where(mask, x, -np.inf).astype(dtype), rng.choice([0.0, 0.02, 1.0, 0.4 * k, 1e30], 41)
    for r in (0.02, 1.0, 0.4 * k, each):
        p, info = sg.project(x, r, mask=mask, return_info=True)
        want, found = sg.project(hidden, r, return_info=True)
        np.testing.assert_array_equal(p, want)
        np.testing.assert_array_equal(info, found)
        good = np.arange(41) != 20
        if np.isscalar(r):
            assert_right(p[good], oracle.project_bisect(hidden[good], r))
        for i in (0, 5, 9, 20, 40):
            np.testing.assert_array_equal(sg.project(x[i], r if np.isscalar(r) else r[i], mask=mask[i]), p[i])
    np.testing.assert_array_equal(sg.project(x[:9], 1.0, mask=mask[6]), sg.project(x[:9], 1.0))
    over = x.copy()
    np.testing.assert_array_equal(_kernel.project(over, 1.0, 1, mask, out=over), sg.project(x, 1.0, mask=mask))


@pytest.mark.parametrize("k", [10, 50, 300, 600, 5000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
@pytest.mark.parametrize("huge", [1e9, 1e18, 1e30])
def test_an_entry_that_is_out_of_reach_of_all_others_takes_everything(k, dtype, huge, engine):
    x = np.random.default_rng(k).normal(size=(20, k)).astype(dtype)
    x[:, k // 3] = huge
    p, info = sg.project(x, 1.0, return_info=True)
    np.testing.assert_array_equal(p, np.tile(np.arange(k) == k // 3, (20, 1)))
    np.testing.assert_array_equal(info.threshold, np.full(20, np.float64(dtype(huge)) - 1.0))


@pytest.mark.parametrize("k", [7, 300, 5000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
@pytest.mark.parametrize("r", [0.0, 1e-40, 1e-30, 1e-10, 1e10, 1e18, 1e19, 1e30, 1e40, math.inf])
def test_radii_of_every_magnitude_equal_the_bisection(k, dtype, r, engine):
    for kind in (normal, rising, equal, one_huge, half_hidden):
        x = rows_of(kind, k, 2).astype(dtype)
        for scale in (1, min(max(r, 1e-30), 1e30)):
            with np.errstate(over="ignore"):
                scaled = np.clip(x * dtype(scale), -np.finfo(dtype).max, np.finfo(dtype).max)
            scaled[x == -math.inf] = -math.inf
            want = oracle.project_bisect(scaled, r)
            # Radii near the ends of the exponent range are reached by x - max, which rounds at the size of the spread.
            assert_right(sg.project(scaled, r), want, blur=np.finfo(dtype).eps * want.max())


@pytest.mark.parametrize("k", [1, 5, 33, 256, 257, 4097])
@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
def test_half_precision_is_float32_rounded_once(k, storage, engine):
    for kind in (normal, dense, rising, equal, half_hidden):
        bits = buffers.stored(rows_of(kind, k, 5), storage)
        x = buffers.floats(bits, storage).astype(np.float32)
        p = buffers.floats(buffers.project(bits, 1.0, storage), storage)
        single = buffers.project(x, 1.0, "float32")
        want = buffers.floats(buffers.stored(single, storage), storage)
        lost = (single > 0) & (want == 0)
        np.testing.assert_array_equal(p[~lost], want[~lost])
        assert (p[lost] > 0).all(), "an entry of the support rounded to 0"


@pytest.mark.parametrize("k", [65, 80, 256, 300, 5000])
def test_float16_keeps_the_support_where_a_probability_rounds_to_0(k, engine):
    x = np.full((3, k), -4, np.float16)
    x[:, :64], x[:, 64] = 0.125, 2.0**-24
    single = sg.project(x.astype(np.float32), 8.0)[:, 64]
    assert ((single > 0) & (single < 2.0**-25)).all()
    for scores in (x, np.asfortranarray(x)):
        p, info = sg.project(scores, 8.0, return_info=True)
        np.testing.assert_array_equal(p[:, 64], 2.0**-24)
        np.testing.assert_array_equal(info.support_size, 65)
