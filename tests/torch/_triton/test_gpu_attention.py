"""Attention in tiles beside the CPU's in float64: outputs, gradients, edges, and what it keeps."""

import math

import pytest
import torch

import sparsegen.torch as sgt
from gpu_attention import CASES, both, draw, forward, masked, sample, size_of_scores
from sparsegen.torch.attention import tiled

pytestmark = pytest.mark.usefixtures("small_tiles")
INF = math.inf


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_gradients(case, gpu):
    heads, shared, lq, lk, d, dv, causal, kind, scale = case
    lam = 0.5 - torch.rand(1, heads, lq, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    tensors = sample(heads, shared, lq, lk, d, dv)
    got, want = both(gpu, tensors, masked(kind, heads, lq, lk), causal, scale, "sparsegen_lin", {"lam": lam})
    size = size_of_scores(tensors, scale)
    for a, b in zip(got, want):
        assert (a - b).abs().max() <= 2e-6 * size * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("mapping", ["sparsecone", "sparsehourglass"])
@pytest.mark.parametrize("causal", [False, True])
def test_maps_of_the_mean(mapping, causal, gpu):
    mask = None if causal else draw(20, 30, seed=5) > -1
    q = torch.full((2, 1), 3.0, dtype=torch.float64)
    got, want = both(gpu, sample(2, 1, 20, 30, 16, 16), mask, causal, 0.1, mapping, {"q": q})
    for a, b in zip(got, want):
        assert (a - b).abs().max() <= 4e-6 * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves(dtype, gpu):
    got, want = both(gpu, sample(1, 1, 17, 33, 16, 16, dtype), None, False, None, "sparsemax", {})
    for a, b in zip(got, want):
        assert (a - b).abs().max() <= 4 * torch.finfo(dtype).eps * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("scale", [1e-4, 0.01])
def test_wide_supports_are_refined(scale, gpu):
    """Lanes hold many of the support, so that the bound is not the threshold."""
    q, k, v = sample(1, 1, 17, 200, 16, 16)
    got, want = both(gpu, (q, k, v), None, False, scale, "sparsemax", {}, wants=False)
    assert (got[0] - want[0]).abs().max() <= 1e-6
    _, kept = forward(gpu, q, k, v, 1.0, scale=scale)
    assert kept.numbers[..., 1].all()


def test_tiles_without_support_are_skipped(gpu):
    q, k, v = (t.to(gpu) for t in sample(1, 1, 32, 64, 16, 16))
    near = torch.where(torch.arange(64) // 16 == 2, 0.0, -100.0).to(gpu)
    _, kept = forward(gpu, q, k, v, 1.0, mask=near.expand(1, 1, 32, 64))
    assert kept.active.tolist() == [[[0, 0, 1, 0]] * 2]
    assert kept.numbers[..., 0].tolist() == [[1, 1]]


@pytest.mark.parametrize("mapping", ["hardmax", "sparsegen_lin"])
def test_limits_of_the_radius(mapping, gpu):
    controls = {} if mapping == "hardmax" else {"lam": torch.tensor(-INF, dtype=torch.float64)}
    q, k, v = sample(1, 1, 16, 40, 16, 16)
    k[..., 7, :] = k[..., 30, :]
    got, want = both(gpu, (q, k, v), draw(16, 40, seed=5) > 0, False, 1.0, mapping, controls, wants=False)
    assert (got[0] - want[0]).abs().max() <= 1e-6


def test_nan_stays_in_its_row_and_rows_without_keys_are_zero(gpu):
    q, k, v = sample(1, 1, 20, 40, 16, 16)
    q[0, 0, 7, 3], q[0, 0, 9, 3] = math.nan, INF
    mask = torch.ones(20, 40, dtype=torch.bool)
    mask[11] = False
    out = sgt.sparse_attention(q.to(gpu), k.to(gpu), v.to(gpu), mask.to(gpu)).cpu()
    bad = torch.isnan(out).any(-1)[0, 0]
    assert bad.nonzero().flatten().tolist() == [7, 9]
    assert torch.isnan(out[0, 0, 7]).all()
    assert (out[0, 0, 11] == 0).all()


def test_what_is_hidden_may_hold_anything(gpu):
    q, k, v = sample(1, 1, 20, 40, 16, 16)
    bias = torch.zeros(20, 40)
    bias[:, 5] = -INF
    want = sgt.sparse_attention(*(t.to(gpu) for t in (q, k, v, bias)))
    k[..., 5, :] = math.nan
    assert torch.equal(sgt.sparse_attention(*(t.to(gpu) for t in (q, k, v, bias))), want)


def test_it_is_one_operator_that_tracers_record(gpu):
    q, k, v = (t.to(gpu).requires_grad_() for t in sample(1, 1, 17, 18, 16, 16))
    control = torch.tensor(1.0, dtype=torch.float64, device=gpu).requires_grad_()
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(
        tiled.attention_op, (q, k, v, control, None, None, "sparsemax", True, 0.25, 1.0, 0.0), test_utils=tests
    )


def test_derivatives_of_derivatives(gpu):
    q, k, v = (t.to(gpu).requires_grad_() for t in sample(1, 1, 3, 4, 16, 2))

    def penalty(attend):
        (grad,) = torch.autograd.grad(attend(q, k, v).square().sum(), q, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), (q, k, v))

    dense = penalty(lambda q, k, v: sgt.sparsemax(q @ k.mT / 4) @ v)
    for a, b in zip(penalty(sgt.sparse_attention), dense):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
