"""Attention by shares of exponentials and by entmax in tiles: weights beside bisection, gradients beside float64."""

import math

import numpy as np
import pytest
import torch

import oracle
import sparsegen.torch as sgt
from gpu_attention import CASES, both, draw, forward, masked, sample, size_of_scores
from sparsegen.torch.attention import tiled

pytestmark = pytest.mark.usefixtures("small_tiles")
INF = math.inf


def controls_of(mapping, heads, lq):
    """A lam for each head and row, above and below 0; entmax with alpha = 1.5 has none."""
    if mapping == "entmax15":
        return {}
    spread = torch.rand(1, heads, lq, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return {"lam": 0.9 - 1.2 * spread}


@pytest.mark.parametrize("mapping", ["sparsegen_softmax", "entmax15"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_gradients(case, mapping, gpu):
    heads, shared, lq, lk, d, dv, causal, kind, scale = case
    tensors = sample(heads, shared, lq, lk, d, dv)
    controls = controls_of(mapping, heads, lq)
    got, want = both(gpu, tensors, masked(kind, heads, lq, lk), causal, scale, mapping, controls)
    size = size_of_scores(tensors, scale)
    for a, b in zip(got, want):
        assert (a - b).abs().max() <= 3e-6 * size * max(1.0, float(b.abs().max()))


def weights_of(gpu, z, mapping, **controls):
    """Weights of scores (queries, keys), which an additive mask makes: the values are a unit matrix."""
    q, k, v = torch.zeros(len(z), 16), torch.zeros(z.shape[1], 16), torch.eye(z.shape[1])
    out = sgt.sparse_attention(*(t.to(gpu) for t in (q, k, v, z.float())), mapping=mapping, **controls)
    return out.cpu().double().numpy()


@pytest.mark.parametrize("spread", [1e-4, 0.02, 0.3, 3.0, 100.0])
@pytest.mark.parametrize("kind", ["normal", "uniform", "ties", "one above"])
def test_entmax_beside_bisection(kind, spread, gpu):
    z = draw(8, 72, seed=len(kind)).float()
    z = {"normal": z, "uniform": z.sigmoid(), "ties": z.round(), "one above": (z > 2.3) * 10.0}[kind] * spread
    want = oracle.apply("entmax15", z.double().numpy())
    got = weights_of(gpu, z, "entmax15")
    assert abs(got - want).max() <= 2e-6 * want.max()
    assert abs(got.sum(-1) - 1).max() <= 1e-6
    # No entry that is clearly in the support is missing, and none that is clearly outside is there.
    assert ((got > 0) | (want < 1e-10)).all()
    assert ((got < 1e-10) | (want > 0)).all()


@pytest.mark.parametrize("lam", [0.02, 0.3, 0.97, 0.0, -3.0])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0])
def test_shares_beside_bisection(spread, lam, gpu):
    z = draw(8, 72).float() * spread
    want = oracle.apply("sparsegen_softmax", z.double().numpy(), lam=lam, temperature=1.0)
    got = weights_of(gpu, z, "sparsegen_softmax", lam=lam)
    step = 1 / (1 - lam)  # a share that is rounded moves a weight by so much
    assert abs(got - want).max() <= 2e-6 * max(step, 1.0) * max(1.0, spread / 4)
    assert abs(got.sum(-1) - 1).max() <= 2e-6
    if lam == 0:
        np.testing.assert_allclose(got, torch.softmax(z.double(), -1).numpy(), rtol=3e-6 * max(1, spread), atol=1e-30)


def test_a_temperature_divides_the_scores(gpu):
    z = draw(4, 40)
    cold = weights_of(gpu, z, "sparsegen_softmax", lam=0.2, temperature=0.25)
    want = oracle.apply("sparsegen_softmax", z.double().numpy(), lam=0.2, temperature=0.25)
    assert abs(cold - want).max() <= 3e-6
    assert abs(weights_of(gpu, z, "sparsegen_softmax", lam=0.2, temperature=1e-40)).sum() == 4


def test_at_the_threshold_is_outside(gpu):
    z = torch.full((2, 40), -5.0)
    z[0, 7], z[0, 20], z[0, 33] = 1.0, -1.0, -1.0
    z[1, 0], z[1, 39] = 0.0, 2**-20 - 2.0
    got = weights_of(gpu, z, "entmax15")
    assert (got[0] > 0).nonzero()[0].tolist() == [7]
    assert (got[1] > 0).nonzero()[0].tolist() == [0, 39]


@pytest.mark.parametrize(("mapping", "control"), [("sparsegen_softmax", 0.9), ("entmax15", 1.0)])
def test_wide_supports_are_refined(mapping, control, gpu):
    q, k, v = sample(1, 1, 17, 200, 16, 16)
    controls = {"lam": torch.tensor(1 - control, dtype=torch.float64)} if mapping != "entmax15" else {}
    got, want = both(gpu, (q, k, v), None, False, 0.05, mapping, controls, wants=False)
    assert (got[0] - want[0]).abs().max() <= 1e-6
    _, kept = forward(gpu, q, k, v, control, mapping, scale=0.05)
    assert kept.numbers[..., 1].all()


def test_narrow_supports_are_not(gpu):
    q, k, v = sample(1, 1, 17, 40, 16, 16)
    for mapping, control in (("entmax15", 1.0), ("sparsegen_softmax", 0.05), ("sparsegen_softmax", 1.5)):
        _, kept = forward(gpu, q, k, v, control, mapping, scale=8.0)
        assert not kept.numbers[..., 1].any()


@pytest.mark.parametrize("lam", [-INF, -1e300, -1e6, 1 - 1e-12])
def test_limits_of_the_share(lam, gpu):
    z = draw(4, 40)
    z[:, 3] = z[:, 30]
    want = oracle.apply("sparsegen_softmax", z.double().numpy(), lam=lam, temperature=1.0)
    assert abs(weights_of(gpu, z, "sparsegen_softmax", lam=lam) - want).max() <= 1e-6


@pytest.mark.parametrize("mapping", ["sparsegen_softmax", "entmax15"])
def test_nan_stays_in_its_row_and_rows_without_keys_are_zero(mapping, gpu):
    q, k, v = sample(1, 1, 20, 40, 16, 16)
    q[0, 0, 7, 3], q[0, 0, 9, 3] = math.nan, INF
    mask = torch.ones(20, 40, dtype=torch.bool)
    mask[11] = False
    given = [t.to(gpu).requires_grad_() for t in (q, k, v)]
    out = sgt.sparse_attention(*given, mask.to(gpu), mapping=mapping, **({"lam": 0.1} if mapping[0] == "s" else {}))
    bad = torch.isnan(out).any(-1)[0, 0]
    assert bad.nonzero().flatten().tolist() == [7, 9]
    assert torch.isnan(out[0, 0, 7]).all()
    assert (out[0, 0, 11] == 0).all()
    (grad,) = torch.autograd.grad(out[0, 0, 11:].sum(), given[0])
    assert (grad[0, 0, 11] == 0).all()


@pytest.mark.parametrize("mapping", ["sparsegen_softmax", "entmax15"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves(dtype, mapping, gpu):
    controls = controls_of(mapping, 1, 17)
    got, want = both(gpu, sample(1, 1, 17, 33, 16, 16, dtype), None, False, None, mapping, controls)
    for a, b in zip(got, want):
        assert (a - b).abs().max() <= 6 * torch.finfo(dtype).eps * max(1.0, float(b.abs().max()))


def test_softmax_with_a_mask_has_gradients_in_tiles(gpu):
    got, want = both(gpu, sample(2, 1, 18, 40, 16, 16), masked("bool", 2, 18, 40), False, None, "softmax", {})
    for a, b in zip(got, want):
        assert (a - b).abs().max() <= 3e-6 * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("name", ["sparsegen_softmax", "entmax15"])
def test_it_is_one_operator_that_tracers_record(name, gpu):
    q, k, v = (t.to(gpu).requires_grad_() for t in sample(1, 1, 17, 18, 16, 16))
    control = torch.tensor(0.8, dtype=torch.float64, device=gpu).requires_grad_()
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    given = (q, k, v, control, None, None, name, True, 0.25, 1.0, 0.0)
    torch.library.opcheck(tiled.attention_op, given, test_utils=tests)


@pytest.mark.parametrize("mapping", ["sparsegen_softmax", "entmax15"])
def test_derivatives_of_derivatives(mapping, gpu):
    q, k, v = (t.to(gpu).requires_grad_() for t in sample(1, 1, 3, 4, 16, 2))
    controls = {"lam": 0.2} if mapping == "sparsegen_softmax" else {}

    def penalty(attend):
        (grad,) = torch.autograd.grad(attend(q, k, v).square().sum(), q, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), (q, k, v))

    dense = penalty(lambda q, k, v: getattr(sgt, mapping)(q @ k.mT / 4, **controls) @ v)
    for a, b in zip(penalty(lambda *given: sgt.sparse_attention(*given, mapping=mapping, **controls)), dense):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
