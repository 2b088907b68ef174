"""Dropout in attention's tiles: the weights that the CPU's kernel takes, the same forwards and backwards."""

import pytest
import torch

import sparsegen.torch as sgt
from gpu_attention import draw, sample
from sparsegen.torch.attention import fused, plain, tiled

pytestmark = pytest.mark.usefixtures("small_tiles")
SEED = 0x7EDCBA9876543210  # its low and its high bits matter
MAPS = [("sparsemax", {}), ("sparsegen_softmax", {"lam": 0.1}), ("entmax15", {})]


@pytest.fixture
def seeded(monkeypatch):
    """Every call draws this seed."""
    monkeypatch.setattr(fused, "draw_seed", lambda like: torch.tensor(SEED, device=like.device))


def found(device, dtype, tensors, dropout, mapping, controls, **more):
    """Output and gradients of query, key and value."""
    given = [t.to(device, dtype).requires_grad_() for t in tensors]
    more = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in more.items()}
    out = sgt.sparse_attention(*given, dropout_p=dropout, mapping=mapping, enable_gqa=True, **controls, **more)
    grads = torch.autograd.grad(out, given, draw(*out.shape, seed=9).to(out))
    return [t.detach().cpu().double() for t in (out, *grads)]


@pytest.mark.parametrize("dropout", [0.0, 0.3, 1.0])
def test_the_plain_mask_is_the_cpu_kernels(dropout):
    q, k = draw(2, 3, 5, 4), draw(2, 3, 7, 4)
    call = fused.Call(sgt.modules.Sparsemax().row, None, None, False, 0.01, dropout, 1, seed=SEED)
    kept = fused.forward(q, k, k, 1.0, call, keep=True)  # all of a row is in its support: the scores are close
    assert torch.equal(
        kept.values.reshape(2, 3, 5, 7) > 0, plain.spared(torch.tensor(SEED), torch.Size((2, 3, 5, 7)), dropout)
    )


@pytest.mark.parametrize(("mapping", "controls"), MAPS)
@pytest.mark.parametrize("more", [{}, {"is_causal": True}, {"attn_mask": draw(20, 33, seed=5) > 0}], ids=["", "c", "m"])
def test_outputs_and_gradients(mapping, controls, more, gpu, seeded):
    """Beside the definition in float64: the map's dense weights, those that the seed spares, and torch's gradients."""
    tensors = sample(2, 1, 20, 33, 16, 8)
    got = found(gpu, torch.float32, tensors, 0.4, mapping, controls, **more)
    q, k, v = given = [t.double().requires_grad_() for t in tensors]
    mask = plain.allowed("is_causal" in more, more.get("attn_mask"), q, 33)
    weights = getattr(sgt, mapping)(q @ k.mT / 4, mask=mask, **controls)
    out = (weights * plain.spared(torch.tensor(SEED), weights.shape, 0.4) / 0.6) @ v
    want = [out.detach(), *torch.autograd.grad(out, given, draw(*out.shape, seed=9).double())]
    for a, b in zip(got, want):
        assert (a - b).abs().max() <= 1e-5 * max(1.0, float(b.abs().max()))


def test_it_takes_what_the_cpu_takes(gpu, seeded, monkeypatch):
    tensors = sample(2, 1, 20, 33, 16, 8)
    got = found(gpu, torch.float32, tensors, 0.4, "sparsemax", {})
    monkeypatch.setattr(fused, "run", lambda *given: pytest.fail("not the CPU's way"))
    again = found(gpu, torch.float32, tensors, 0.4, "sparsemax", {})
    assert all(torch.equal(a, b) for a, b in zip(got, again))
    monkeypatch.undo()
    monkeypatch.setattr(fused, "draw_seed", lambda like: torch.tensor(SEED))
    want = found("cpu", torch.float64, tensors, 0.4, "sparsemax", {})
    for a, b in zip(got, want):
        assert (a - b).abs().max() <= 1e-5 * max(1.0, float(b.abs().max()))


def test_another_seed_takes_others_and_all_is_nothing(gpu):
    q, k, v = (t.to(gpu) for t in sample(1, 1, 20, 33, 16, 8))
    one, other = (sgt.sparse_attention(q, k, v, dropout_p=0.5) for _ in range(2))
    assert not torch.equal(one, other)
    torch.manual_seed(3)
    one = sgt.sparse_attention(q, k, v, dropout_p=0.5)
    torch.manual_seed(3)
    assert torch.equal(sgt.sparse_attention(q, k, v, dropout_p=0.5), one)
    assert not sgt.sparse_attention(q, k, v, dropout_p=1.0).any()


def test_the_share_that_is_taken():
    taken = ~plain.spared(torch.tensor(5), torch.Size((400, 500)), 0.3)
    assert abs(float(taken.double().mean()) - 0.3) < 0.003
    assert abs(float(taken.double().mean(0).std()) - (0.21 / 400) ** 0.5) < 0.003


def test_derivatives_of_derivatives_have_the_same_dropout(gpu, seeded):
    q, k, v = (t.to(gpu).requires_grad_() for t in sample(1, 1, 3, 4, 16, 2))

    def penalty(attend):
        (grad,) = torch.autograd.grad(attend(q, k, v).square().sum(), q, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), (q, k, v))

    spared = plain.spared(torch.tensor(SEED), torch.Size((1, 1, 3, 4)), 0.4).to(gpu) / 0.6
    dense = penalty(lambda q, k, v: (sgt.sparsemax(q @ k.mT / 4) * spared) @ v)
    for a, b in zip(penalty(lambda *given: sgt.sparse_attention(*given, dropout_p=0.4)), dense):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_the_seed_is_an_input_of_the_operator(gpu):
    q, k, v = (t.to(gpu).requires_grad_() for t in sample(1, 1, 17, 18, 16, 16))
    control, seed = (torch.tensor(value, device=gpu) for value in (1.0, SEED))
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    given = (q, k, v, control.double(), None, seed, "sparsemax", True, 0.25, 1.0, 0.4)
    torch.library.opcheck(tiled.attention_op, given, test_utils=tests)
