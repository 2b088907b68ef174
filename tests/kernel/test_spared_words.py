"""Long rows with their support as bits: where they have none, nothing that its bits spare is read on the way back."""

import math

import numpy as np
import pytest
import torch

import buffers
import sparsegen.torch as sgt
from buffers import CONE, EPS, GIVEN, HOURGLASS, SQUARE

LIN, EXP, LOG, Q, RADIUS = 0, 1, 3, 0.3, 0.6
KINDS = {
    "cone": (LIN, CONE, False),
    "hourglass": (LIN, HOURGLASS, False),
    "root": (LIN, GIVEN, True),
    "exp": (EXP, GIVEN, False),
    "log": (LOG, GIVEN, False),
    "sq": (SQUARE, GIVEN, False),
}
BY_MEAN = ("cone", "hourglass")
# The derivatives of what is projected.
STEEP = {"exp": np.exp, "log": lambda z: 1 / z, "sq": lambda z: 2 * z}
# Words are kept from 8192 entries on, or from 2048; shorter rows take them as well. Nothing over; some of a vector, a
# word, a block.
SIZES = (1024, 1025, 1100, 2048, 8192, 8199, 8224, 9001)


def in_words(p):
    """The entries of words of 32 that have support, or are the last, of less than 32."""
    pad = -p.shape[1] % 32
    full = np.pad(p[:, :, 0], ((0, 0), (0, pad)), constant_values=1.0 if pad else 0.0).reshape(len(p), -1, 32)
    some = np.repeat((full > 0).any(2), 32, axis=1)[:, : p.shape[1]]
    return some[:, :, None] | np.isnan(p)


def spoilt(p):
    return np.where(in_words(p), p, 7.5)


def case(outer, n, storage, kind):
    """Rows with few, with many and with evenly spread entries that matter; dense upstreams."""
    rng = np.random.default_rng([outer, n])
    z = rng.standard_normal((outer, n, 1))
    z[::3] *= 1 if kind == "exp" else 30
    z[1::3] += 8.0 * (rng.random((len(z[1::3]), n, 1)) < 0.003)
    z[:2] = np.abs(z[:2]) + 0.1
    z = np.abs(z) + 0.01 if kind in ("cone", "log") else z
    return z.astype(storage), rng.standard_normal((outer, n, 1)).astype(storage)


def found(kind, z, v, storage, **options):
    control = Q if kind in BY_MEAN else RADIUS
    second = 1.5 if kind == "root" else 1.0
    return buffers.mapped(z, v, KINDS[kind], control, storage, second, along=kind in BY_MEAN, **options)


def closed_form(kind, z, p, v):
    """Gradients in long double, given p, and what rounding is in proportion to; v is read on the support alone."""
    z, p, on = z.astype(np.longdouble), p.astype(np.longdouble), p > 0
    v, n = np.where(on, v, 0).astype(np.longdouble), z.shape[1]
    size = np.abs(v).max(1, keepdims=True)
    if kind == "root":
        s = np.sqrt(p)
        return s * (v - (s * v).sum(1, keepdims=True) / s.sum(1, keepdims=True)), None, size
    w = np.where(on, v - v.sum(1, keepdims=True) / on.sum(1, keepdims=True), 0)
    if kind in STEEP:
        steep = STEEP[kind](z) / RADIUS
        return np.where(on, w * steep, 0), None, size * np.where(on, np.abs(steep), 0)
    mean, along = z.mean(1, keepdims=True), (w * p).sum(1, keepdims=True)
    height, sign = (mean, 1) if kind == "cone" else (np.abs(mean), np.sign(mean))
    width = 1 / np.longdouble(n) + Q
    r = (height + Q) / width
    to_q = -along / r * (1 / width - (height + Q) / width**2)
    return w / r - along / r * sign / n / width, to_q[:, 0], size


@pytest.mark.parametrize("storage", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_p_is_not_read_where_words_have_no_support(kind, storage, engine):
    for n in SIZES:
        z, v = case(7, n, storage, kind)
        p, grad, *to_control = found(kind, z, v, storage, words=True, spoil=spoilt)
        plain = found(kind, z, v, storage)
        np.testing.assert_array_equal(p, plain[0])
        assert not in_words(p).all(), "nothing was spoilt"
        want, wanted, size = closed_form(kind, z, p, v)
        tol = 64 * EPS[storage]
        assert (np.abs(grad - want) <= tol * size).all(), f"K = {n}"
        for got, right in zip(to_control, [wanted], strict=False):
            np.testing.assert_allclose(got, right.astype(float), rtol=0, atol=tol * np.abs(v).max(), err_msg=f"K = {n}")
        if kind in STEEP:  # kept of every long row, so no row's bits depend on others
            assert (np.abs(plain[1] - want) <= tol * size).all(), f"K = {n}"
            continue
        for ones, others in zip([grad, *to_control], plain[1:], strict=True):
            np.testing.assert_array_equal(ones, others, err_msg=f"K = {n}: other bits without words")


@pytest.mark.parametrize("storage", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_odd_rows_change_nothing_in_their_neighbours(kind, storage, engine):
    z, v = case(9, 8200, storage, kind)
    clean = found(kind, z, v, storage, words=True, spoil=spoilt)
    odd = np.isin(np.arange(9), (2, 4, 5, 7))
    z[2, 1:], z[4, 77], z[5], z[7, 3] = -math.inf, math.nan, -math.inf, math.inf
    got = found(kind, z, v, storage, words=True, spoil=lambda p: np.where(odd[:, None, None], p, spoilt(p)))
    for i in range(9):
        alone = found(kind, z[i : i + 1], v[i : i + 1], storage, words=True, spoil=lambda p: p)
        for ones, before, own in zip(got, clean, alone, strict=True):
            np.testing.assert_array_equal(ones[i], own[0])
            assert odd[i] or (ones[i] == before[i]).all()
    assert np.isnan(got[1][[4, 7]]).all()
    assert (got[1][5] == 0).all()


@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_results_past_the_caches_have_the_same_bits(kind, past, engine):
    z, v = case(40, 40_000, "float32", kind)
    assert z.nbytes >= 6e6
    with buffers.written_past_the_caches(not past):
        words = {"words": True, "spoil": lambda p: p} if kind in STEEP else {}
        other = found(kind, z, v, "float32", **words)
    with buffers.written_past_the_caches(past):
        got = found(kind, z, v, "float32", words=True, spoil=spoilt)
    for ones, others in zip(got, other, strict=True):
        np.testing.assert_array_equal(ones, others)


@pytest.mark.parametrize("kind", STEEP)
def test_the_way_back_reads_nothing_where_words_have_no_support(kind, engine):
    z, v = case(7, 8200, "float32", kind)
    p, clean = found(kind, z, v, "float32", words=True, spoil=spoilt)
    wild = np.where(in_words(p), v, np.float32(np.nan))
    np.testing.assert_array_equal(found(kind, z, wild, "float32", words=True, spoil=spoilt)[1], clean)


@pytest.mark.parametrize("name", ["sparsecone", "sparsehourglass", "sum_normalization_plus", "entmax15",
                                  "sparsegen_exp", "sparsegen_log", "sparsegen_sq"])  # fmt: skip
def test_torch_gradients_are_those_of_a_layout_that_keeps_no_words(name):
    q = {"q": Q} if name in ("sparsecone", "sparsehourglass") else {}
    x = torch.randn(5, 8192, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).abs() + 0.1
    v = torch.randn(5, 8192, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows, columns = x.clone().requires_grad_(), x.T.clone().requires_grad_()
    by_rows, by_columns = getattr(sgt, name)(rows, **q), getattr(sgt, name)(columns, dim=0, **q)
    grad, by_column = torch.autograd.grad(by_rows, rows, v), torch.autograd.grad(by_columns, columns, v.T)
    torch.testing.assert_close(by_rows, by_columns.T, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(grad[0], by_column[0].T, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["sparsegen_exp", "sparsegen_log", "sparsegen_sq"])
def test_a_row_alone_has_the_gradient_it_has_in_company(name):
    x = torch.randn(64, 2048, generator=torch.Generator().manual_seed(0)).abs() + 0.1
    v, f = torch.randn(64, 2048, generator=torch.Generator().manual_seed(1)), getattr(sgt, name)

    def gradient(x, v):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(f(x), x, v)[0]

    together = gradient(x, v)
    for i in (0, 31, 63):
        assert torch.equal(gradient(x[i : i + 1], v[i : i + 1])[0], together[i])
