"""The support as bits, 32 entries a word: what the forward pass keeps of it, and gradients made of that alone."""

import math

import numpy as np
import pytest

import buffers
from sparsegen import _core
from test_vjp import closed_form

torch = pytest.importorskip("torch")
sgt = pytest.importorskip("sparsegen.torch")

SIZES = [1, 5, 31, 32, 33, 63, 64, 65, 81, 100, 128, 512, 513, 1000, 4097]


def case(rows, k, storage, seed=0):
    """Stored scores and upstream gradients."""
    rng = np.random.default_rng(seed + k)
    return [buffers.stored(rng.standard_normal((rows, k)), storage) for _ in range(2)]


def unpacked(words, k):
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :k].astype(bool)


@pytest.mark.parametrize("storage", buffers.STORAGE)
@pytest.mark.parametrize("r", [0.05, 1.0, 300.0])
def test_words_are_the_support_and_change_nothing_else(storage, r, engine):
    for k in SIZES:
        x, _ = case(19, k, storage)
        p, words, broken = buffers.project_words(x, r, storage)
        assert not broken
        np.testing.assert_array_equal(p, buffers.project(x, r, storage))
        np.testing.assert_array_equal(unpacked(words, k), buffers.floats(p, storage) > 0)
        assert (words[:, -1] >> np.uint32((k - 1) % 32) <= 1).all(), "bits past the end of a row"


@pytest.mark.parametrize("storage", buffers.STORAGE)
def test_a_row_of_nan_is_told(storage, engine):
    for k in (5, 64, 600, 3000):
        x = buffers.floats(case(9, k, storage)[0], storage)
        x[7, k // 2] = math.nan
        p, words, broken = buffers.project_words(buffers.stored(x, storage), 1.0, storage)
        assert broken
        assert np.isnan(buffers.floats(p, storage)[7]).all()
        assert not words[7].any()


@pytest.mark.parametrize("storage", buffers.STORAGE)
@pytest.mark.parametrize("r", [0.5, 40.0])
def test_gradients_from_words_equal_the_closed_form(storage, r, engine):
    for k in SIZES:
        x, v = case(19, k, storage)
        p, words, _ = buffers.project_words(x, r, storage)
        got = buffers.floats(buffers.vjp_words(words, v, r, storage), storage)
        p, v = buffers.floats(p, storage), buffers.floats(v, storage)
        want, _ = closed_form(p[:, :, None], v[:, :, None], np.full((19, 1), r))
        single = 2.0**-52 if storage == "float64" else 2.0**-23
        np.testing.assert_allclose(got, want[:, :, 0], rtol=buffers.EPS[storage], atol=64 / r * single)
        assert (got[p == 0] == 0).all()


@pytest.mark.parametrize("storage", buffers.STORAGE)
@pytest.mark.parametrize("junk", [math.nan, math.inf])
def test_upstream_outside_the_support_is_not_read(storage, junk, engine):
    for k in SIZES:
        x, v = case(5, k, storage)
        _, words, _ = buffers.project_words(x, 0.5, storage)
        spoilt = np.where(unpacked(words, k), v, buffers.stored(np.full(v.shape, junk), storage))
        clean = buffers.vjp_words(words, v, 0.5, storage)
        np.testing.assert_array_equal(buffers.vjp_words(words, spoilt, 0.5, storage), clean)


@pytest.mark.parametrize("storage", buffers.STORAGE)
def test_the_same_bits_in_any_batch_and_with_any_threads(storage, engine):
    for k in (64, 100, 512, 5000):
        x, v = case(40, k, storage)
        p, words, _ = buffers.project_words(x, 2.0, storage)
        grad = buffers.vjp_words(words, v, 2.0, storage)
        for count in (2, 3):
            again = buffers.project_words(x, 2.0, storage, threads=count)
            np.testing.assert_array_equal(again[0], p)
            np.testing.assert_array_equal(again[1], words)
            np.testing.assert_array_equal(buffers.vjp_words(words, v, 2.0, storage, threads=count), grad)
        for i in (0, 13, 39):
            alone = buffers.vjp_words(words[i : i + 1].copy(), v[i : i + 1].copy(), 2.0, storage)
            np.testing.assert_array_equal(alone[0], grad[i])


HALVES = ["float16", "bfloat16"]
LENGTHS = [*range(1, 132), 511, 992, 1023, 1024, 1055, 2079]  # words, and parts of them


@pytest.mark.parametrize("storage", HALVES)
def test_gradients_of_halves_are_rounded_once_at_every_length(storage, engine):
    for k in LENGTHS:
        x, v = case(6, k, storage)
        _, words, _ = buffers.project_words(x, k / 8, storage)
        on, wide = unpacked(words, k), buffers.floats(v, storage)
        mean = np.where(on, wide, 0).sum(1, keepdims=True) / on.sum(1, keepdims=True)
        want = np.where(on, wide - mean, 0) / (k / 8)
        grad = buffers.vjp_words(words, v, k / 8, storage)
        unit = buffers.EPS[storage] * 2.0 ** np.floor(np.log2(np.abs(want) + 1e-300))
        least = 2.0**-25 if storage == "float16" else 0.0  # half of the smallest float16
        off = np.abs(buffers.floats(grad, storage) - want)
        assert (off <= np.maximum(unit / 2 * 1.01, least) + 2.0**-22 / k).all(), k
        place, code = v.ctypes.data, buffers.STORAGE[storage]
        _core.project_vjp_words(words.ctypes.data, place, place, code, *v.shape, k / 8, 1)
        np.testing.assert_array_equal(v, grad, err_msg=f"in the place of what it is made of, K = {k}")


@pytest.mark.parametrize("storage", HALVES)
def test_a_nan_upstream_is_a_nan_of_its_row_whatever_its_bits(storage, engine):
    first = {"float16": 0x7C01, "bfloat16": 0x7F81}[storage]
    of = [first, first | 0x200, 0x7FFF, first | 0x8000, 0xFFFF]
    for k in (5, 32, 33, 70, 1024, 1100):
        x, v = case(len(of) + 1, k, storage)
        _, words, _ = buffers.project_words(x, k / 8, storage)
        on, clean = unpacked(words, k), buffers.vjp_words(words, v, k / 8, storage)
        for i, bits in enumerate(of):
            v.view(np.uint16)[i, np.flatnonzero(on[i])[-1]] = bits
        got = buffers.floats(buffers.vjp_words(words, v, k / 8, storage), storage)
        np.testing.assert_array_equal(np.isnan(got[:-1]), on[:-1])
        np.testing.assert_array_equal(got[-1], buffers.floats(clean, storage)[-1])
        assert (got[:-1][~on[:-1]] == 0).all()


def test_a_support_of_nothing_has_no_gradient(engine):
    v = np.ones((3, 70), np.float32)
    grad = buffers.vjp_words(np.zeros((3, 3), np.uint32), v, 1.0, "float32")
    assert (grad == 0).all()


@pytest.fixture
def scores():
    return torch.randn(9, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def kept(p):
    """The tensors the way back has kept."""
    return p.grad_fn.saved_tensors


def test_torch_keeps_the_support_where_it_pays(scores):
    long, short = (sgt.sparsegen_lin(x.clone().requires_grad_(), lam=0.5) for x in (scores, scores[:, :63]))
    assert [t.dtype for t in kept(long)] == [torch.float64, torch.int32]
    assert kept(long)[1].numel() == 9 * 7
    assert len(kept(short)) == 1


@pytest.mark.parametrize("past", [True, False])
@pytest.mark.parametrize("k", [64, 1024])
def test_torch_keeps_words_of_results_that_bypass_the_caches_but_for_the_shortest_rows(k, past):
    entries = _core.STREAM_FROM // 2 // 4
    below, at = (torch.zeros(rows, k, requires_grad=True) for rows in (entries // k - 1, entries // k))
    with buffers.written_past_the_caches(past):
        assert [len(kept(sgt.sparsemax(x))) for x in (below, at)] == ([2, 1] if past and k == 64 else [2, 2])


def test_torch_takes_a_saved_result_of_another_layout(scores):
    x, v = scores.clone().requires_grad_(), scores.flip(0)
    (plain,) = torch.autograd.grad(sgt.sparsegen_lin(x, lam=0.5), x, v)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.mT.clone().mT if t.dim() == 2 else t):
        p = sgt.sparsegen_lin(x, lam=0.5)
    (turned,) = torch.autograd.grad(p, x, v)
    torch.testing.assert_close(turned, plain, rtol=0, atol=0)


def test_torch_gradients_are_those_of_a_layout_that_keeps_no_words(scores):
    v = scores.flip(0)
    rows, columns = scores.clone().requires_grad_(), scores.T.clone().requires_grad_()
    by_rows, by_columns = sgt.sparsegen_lin(rows, lam=-3.0), sgt.sparsegen_lin(columns, lam=-3.0, dim=0)
    assert len(kept(by_columns)) == 1
    torch.testing.assert_close(by_rows, by_columns.T, rtol=0, atol=0)
    grad, by_column = torch.autograd.grad(by_rows, rows, v), torch.autograd.grad(by_columns, columns, v.T)
    torch.testing.assert_close(grad[0], by_column[0].T, rtol=1e-14, atol=1e-15)


def test_torch_keeps_no_words_of_nan_rows(scores):
    scores[4, 7] = math.nan
    scores.requires_grad_()
    p = sgt.sparsemax(scores)
    assert len(kept(p)) == 1
    (grad,) = torch.autograd.grad(p, scores, torch.ones_like(p))
    assert grad.isnan().all(-1).tolist() == [row == 4 for row in range(9)]


def test_torch_gradients_of_gradients_need_no_words(scores):
    x = scores[:2, :70].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: sgt.sparsegen_lin(z, lam=0.5), x)
    assert torch.autograd.gradgradcheck(lambda z: sgt.sparsegen_lin(z, lam=0.5), x)


def test_torch_notices_a_result_that_was_written_over(scores):
    p = sgt.sparsemax(scores.requires_grad_())
    with torch.no_grad():
        p.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        p.sum().backward()


def test_torch_takes_upstream_of_another_layout_or_type(scores):
    x = scores.float().requires_grad_()
    p = sgt.sparsemax(x)
    v = torch.randn(200, 9)
    (across,) = torch.autograd.grad(p, x, v.T, retain_graph=True)
    (along,) = torch.autograd.grad(p, x, v.T.contiguous())
    torch.testing.assert_close(across, along, rtol=0, atol=0)
