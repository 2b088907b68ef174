"""Where rows stand in memory, who else is in the batch and how many threads work never changes a bit."""

import functools
import math
import multiprocessing

import numpy as np
import pytest

import buffers
import laws
import sparsegen as sg
from sparsegen import _core
from sparsegen._table.maps import MAPS

CONTROLS = {"lam": -0.5, "q": 0.5, "temperature": 0.75, "alpha": 1.25}
SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 255, 256, 257, 511, 1000, 4095, 4096, 4097, 5000]


def rows(n, k, seed=0):
    return np.random.default_rng(seed).standard_normal((n, k)) * 0.5


def unlucky(n, k):
    """Rows of every fate beside each other."""
    x = rows(n, k)
    x[1::7, 0] = math.nan
    x[2::7] = -math.inf
    x[3::7] = 0.25
    x[4::7, -1] = 1e30
    x[5::7] *= 1e-30
    return x


@pytest.mark.parametrize("storage", buffers.STORAGE)
def test_every_cell_is_written_and_no_other(storage, engine):
    for k in SIZES:
        for n in (1, 3, 17):
            x = buffers.stored(rows(n, k), storage)
            p = buffers.floats(buffers.project(x, 1.0, storage), storage)
            assert np.isfinite(p).all()
            assert (abs(p.sum(-1) - 1) < 4 * buffers.EPS[storage]).all()


@pytest.mark.parametrize("storage", buffers.STORAGE)
def test_every_strided_cell_is_written_and_no_other(storage, engine):
    for k in [1, 3, 8, 40, 257, 4097]:
        for outer, inner in ((1, 5), (3, 1), (2, 19)):
            bits = buffers.stored(rows(outer * inner, k), storage).reshape(outer, inner, k)
            want = np.stack([buffers.project(b, 1.0, storage) for b in bits])
            for x in (np.moveaxis(bits, -1, 1), np.ascontiguousarray(np.moveaxis(bits, -1, 1))):
                p, support, tau = buffers.project_strided(x, 1.0, storage)
                np.testing.assert_array_equal(np.moveaxis(p, 1, -1), want)
                np.testing.assert_array_equal(support, np.count_nonzero(want, axis=-1))
                assert np.isfinite(tau).all()


@pytest.mark.parametrize("storage", ["float32", "float64"])
def test_projecting_in_place_changes_no_bit(storage, engine):
    for k in SIZES:
        x = buffers.stored(unlucky(33, k), storage)
        want = buffers.project(x, 1.0, storage)
        _core.project(x.ctypes.data, x.ctypes.data, buffers.STORAGE[storage], *x.shape, 1.0, 1)
        np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("storage", buffers.STORAGE)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(storage, engine):
    for k in [1, 5, 17, 64, 256, 257, 5000]:
        with np.errstate(over="ignore"):
            x = buffers.stored(unlucky(37, k), storage)
        together = buffers.project(x, 1.0, storage)
        backwards = buffers.project(x[::-1].copy(), 1.0, storage)[::-1]
        alone = np.concatenate([buffers.project(x[i : i + 1], 1.0, storage) for i in range(len(x))])
        np.testing.assert_array_equal(together, alone)
        np.testing.assert_array_equal(together, backwards)


@pytest.mark.parametrize(("n", "k"), [(3000, 7), (700, 100), (300, 256), (300, 257), (50, 4097), (9, 20000)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=lambda t: t.__name__)
def test_any_number_of_threads_gives_the_same_bits(n, k, dtype, engine, threads):
    with np.errstate(over="ignore"):
        x = unlucky(n, k).astype(dtype)
    mask = rows(n, k, 1) < 0.5
    results = []
    for count in (1, 2, 3, 8):
        threads(count)
        assert sg.get_num_threads() == count
        results.append((sg.sparsemax(x), sg.sparsehourglass(x, q=1.0, mask=mask), sg.sparsemax(x.T, axis=0).T))
    for other in results[1:]:
        for one, two in zip(results[0], other):
            np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(results[0][0], results[0][2])


def _unaligned(x):
    raw = np.empty(x.nbytes + 1, np.uint8)
    shifted = raw[1:].view(x.dtype).reshape(x.shape)
    shifted[...] = x
    return shifted


def _every_other(x):
    wide = np.full(tuple(2 * n for n in x.shape), math.nan, x.dtype)
    wide[::2, ::2, ::2] = x
    return wide[::2, ::2, ::2]


def _read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "fortran": np.asfortranarray,
    "strided": _every_other,
    "read_only": _read_only,
    "reversed": lambda x: x[::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1],
    "byte_swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "unaligned": _unaligned,
    "transposed": lambda x: np.ascontiguousarray(x.transpose(1, 2, 0)).transpose(2, 0, 1),
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MAPS)
def test_any_layout_maps_like_the_contiguous_copy(name, layout):
    f = functools.partial(getattr(sg, name), **{c: CONTROLS[c] for c in MAPS[name].controls})
    for dtype in (np.float16, np.float32, np.float64):
        x = LAYOUTS[layout](laws.inside(MAPS[name], rows(3 * 4, 5).astype(dtype).reshape(3, 4, 5)))
        plain = np.ascontiguousarray(x.astype(dtype))
        mask = np.asfortranarray(plain < 0.8)
        for axis in range(3):
            laws.assert_near(f(x, axis=axis), f(plain, axis=axis).astype(np.float64))
            laws.assert_near(f(x, axis=axis, mask=mask), f(plain, axis=axis, mask=mask.copy("C")).astype(np.float64))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_suits_a_transform_of_ones_own(layout):
    plain = np.ascontiguousarray(LAYOUTS[layout](rows(12, 5).reshape(3, 4, 5)))
    want = sg.sparsemax(np.tanh(plain), axis=1)
    got = sg.sparsegen(LAYOUTS[layout](plain), transform=np.tanh, axis=1)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", MAPS)
def test_callers_arrays_are_never_written(name):
    z = laws.inside(MAPS[name], rows(4, 300))
    mask = z > -0.2
    controls = {c: np.full(4, CONTROLS[c]) for c in MAPS[name].controls}
    arrays = [z, mask, *controls.values()]
    copies = [a.copy() for a in arrays]
    for a in arrays:
        a.flags.writeable = False
    p = getattr(sg, name)(z, mask=mask, **controls)
    assert not np.shares_memory(p, z)
    assert p.flags.writeable
    for a, b in zip(arrays, copies):
        np.testing.assert_array_equal(a, b)


def test_a_transform_that_writes_its_argument_does_not_reach_the_caller():
    def double(z):
        z *= 2
        return z

    z = rows(2, 5)
    kept = z.copy()
    np.testing.assert_array_equal(sg.sparsegen(z, transform=double), sg.sparsemax(2 * kept))
    np.testing.assert_array_equal(z, kept)


def _random_bits(rng, dtype, n, k):
    whole = rng.integers(0, 256, n * k * dtype.itemsize, dtype=np.uint8)
    return whole.view(dtype).reshape(n, k)


def _project_nasty_rows():
    rng = np.random.default_rng(3)
    for dtype in (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)):
        for k in (1, 2, 3, 8, 17, 64, 255, 300, 1000, 4200):
            for r in (1.0, 1e-30, 1e30, float(_random_bits(rng, np.dtype(np.float64), 1, 1)[0, 0])):
                x = _random_bits(rng, dtype, 20 + 4000 // k, k)
                tame = np.where(np.isnan(x) | (x == math.inf), dtype.type(-1), x)
                for name in _core.engines():
                    with buffers.using_engine(name):
                        _check_nasty(x, tame, abs(r) if r == r else 0.0)


def _check_nasty(x, tame, r):
    p = sg.project(x, r)
    bad = (np.isnan(x) | (x == math.inf)).any(-1)
    assert np.isnan(p[bad]).all()
    laws.assert_on_simplex(_with_a_choice(p[~bad], x[~bad]))
    laws.assert_on_simplex(_with_a_choice(sg.project(tame, r), tame))


def _with_a_choice(p, x):
    none = (x == -math.inf).all(-1)
    assert (p[none] == 0).all()
    return p[~none]


def test_random_bits_end_as_nan_zeros_or_a_distribution():
    child = multiprocessing.get_context("spawn").Process(target=_project_nasty_rows, daemon=True)
    child.start()
    child.join(60)
    running = child.is_alive()
    child.kill()
    assert not running, "a projection did not end"
    assert child.exitcode == 0
