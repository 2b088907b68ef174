"""Attention by shares of exponentials and by entmax in tiles: weights beside bisection, gradients beside float64."""

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import oracle
import sparsegen.torch as sgt
from gpu_attention import CASES, both, draw, forward, masked, sample, size_of_scores
from sparsegen.torch._triton.settle import root_step
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
@pytest.mark.parametrize("kind", ["normal", "tail", "ties", "one above"])
def test_entmax_beside_bisection(kind, spread, gpu):
    z = draw(8, 72, seed=len(kind)).float()
    z = {"normal": z, "tail": z.sigmoid().log(), "ties": z.round(), "one above": (z > 2.3) * 10.0}[kind] * spread
    want = oracle.apply("entmax15", z.double().numpy())
    got = weights_of(gpu, z, "entmax15")
    # A threshold that is off by a rounding moves a weight by its root; what is not in the support has none of it.
    assert (abs(got - want) <= 2e-7 * np.sqrt(want) + 1e-13).all()
    assert abs(got.sum(-1) - 1).max() <= 5e-7


def test_a_step_solves_the_set_above_it_and_does_not_fall_below_the_floor(device):
    x = torch.tensor([0.0, -0.1, -0.2, -5.0])
    left, right = -0.9, -0.3  # of the threshold: all three are above both
    found = stepped(device, x, [left, right, right], [-INF, -INF, -0.35])
    closed = torch.tensor(-0.1 - math.sqrt((1 - 0.02) / 3))
    torch.testing.assert_close(found[0].cpu(), torch.stack([closed, closed, torch.tensor(-0.35)]))
    assert found[1].tolist() == [3, 3, 0]  # the floor solves nothing
    assert left < found[2][0] <= closed  # what Newton's method gives from the left
    assert found[2].tolist()[1:] == [-INF, pytest.approx(-0.35)]


def stepped(device, x, at, floor):
    """A step of three rows of the same entries: thresholds, the size of the sets they solve, and floors."""
    at, floor = torch.tensor([*at, 0.0]), torch.tensor([*floor, 0.0])
    d = (x - at[:, None]).clamp(min=0)
    given = [t.float().to(device) for t in ((d > 0).sum(-1), d.sum(-1), d.square().sum(-1), at, floor)]
    out = torch.empty(3, 4, device=device)
    step_of_rows[(1,)](*given, out, N=4)
    return out[:, :3]


@triton.jit
def step_of_rows(SIZE, SUM, SQUARES, AT, FLOOR, OUT, N: tl.constexpr):
    i = tl.arange(0, N)
    size, total, squares = tl.load(SIZE + i), tl.load(SUM + i), tl.load(SQUARES + i)
    high, floor = tl.load(AT + i), tl.load(FLOOR + i)
    high, low, kept, floor, floor_low, _ = root_step(
        size.to(tl.int32), total, squares, high, high * 0.0, tl.full([N], 1, tl.int32), floor, high * 0.0
    )
    tl.store(OUT + i, high + low)
    tl.store(OUT + N + i, kept.to(tl.float32))
    tl.store(OUT + 2 * N + i, floor + floor_low)


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


def test_the_slope_at_softmax_counts_shares_too_small_for_a_number(gpu):
    """At lam = 0 every key is in the support, also one whose share float32 rounds to 0."""
    z = torch.tensor([[0.0, -1.0, -200.0, -200.0, -300.0]]).repeat(2, 1)
    q, k, v = torch.zeros(2, 16), torch.zeros(5, 16), draw(5, 16)
    found = []
    for device, dtype in ((gpu, torch.float32), ("cpu", torch.float64)):
        lam = torch.zeros((), dtype=torch.float64, device=device).requires_grad_()
        given = (t.to(device, dtype) for t in (q, k, v, z))
        out = sgt.sparse_attention(*given, mapping="sparsegen_softmax", lam=lam)
        found.append(torch.autograd.grad(out, lam, draw(2, 16, seed=1).to(out))[0].cpu())
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)
