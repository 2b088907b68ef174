"""Entmax and the dial that begins at softmax: what is theirs alone. What all maps share is in the other files."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import sparsegen.torch as sgt
from sparsegen.torch import _operators, _plain
from test_torch_cases import HALVES, close, scores, some_mask


def _sample(dtype=torch.float64, shape=(3, 4, 5), dim=-1, masked=False, rows=(), wants=True):
    z = scores("entmax", *shape, dtype=dtype).requires_grad_(wants)
    alpha = (1.25 + torch.rand(rows, dtype=torch.float64)).requires_grad_(wants)
    return z, alpha, dim, some_mask(*shape) if masked else None


SAMPLES = {
    "float64": {},
    "float32": {"dtype": torch.float32},
    "bfloat16": {"dtype": torch.bfloat16},
    "dim-2, an alpha a row": {"dim": -2, "rows": (3, 5)},
    "masked, an alpha a head": {"rows": (3, 1), "masked": True},
    "no rows": {"shape": (0, 5)},
    "no entries": {"shape": (3, 0)},
    "no gradient": {"wants": False},
}


def _vjp_sample(z, alpha, dim, mask):
    p = _operators.entmax_op(z, alpha, dim, mask).detach().requires_grad_(z.requires_grad)
    v = scores("entmax", *z.shape, dtype=z.dtype, seed=1).requires_grad_(z.requires_grad)
    return p, v, alpha, dim


# torch's own checks trace and compile: types that only differ in their digits, and no rows beside no entries, are left
# to `make test-slow`.
REPEATED = ("float32", "bfloat16", "no rows")
CHECKED = [pytest.param(s, marks=pytest.mark.slow) if s in REPEATED else s for s in SAMPLES]


@pytest.mark.parametrize("sample", CHECKED)
def test_opcheck_of_entmax_and_its_vjp(sample):
    given = _sample(**SAMPLES[sample])
    torch.library.opcheck(_operators.entmax_op, given)
    torch.library.opcheck(_operators.entmax_vjp_op, _vjp_sample(*given))


@pytest.mark.parametrize("sample", ["float64", "dim-2, an alpha a row", "masked, an alpha a head"])
def test_the_operators_own_derivatives_pass_gradcheck_and_gradgradcheck(sample):
    z, alpha, dim, mask = _sample(**SAMPLES[sample])

    def f(z, alpha):
        return _operators.entmax_op(z, alpha, dim, mask)

    assert gradcheck(f, (z, alpha))
    assert gradgradcheck(f, (z, alpha))
    close(f(z, alpha), sgt.entmax(z, alpha=alpha, dim=dim, mask=mask))


@pytest.mark.parametrize("at", [(0, None, None), (None, 0, None), (2, 1, 0)])
def test_the_operators_are_batched_by_vmap(at):
    def some(make, axis, *shape):
        return make(*shape) if axis is None else make(*shape[:axis], 3, *shape[axis:])

    z = some(lambda *s: scores("entmax", *s), at[0], 4, 5)
    alpha = some(lambda *s: 1.25 + torch.rand(*s, dtype=torch.float64), at[1], 4)
    mask = some(some_mask, at[2], 4, 5)
    got = torch.vmap(lambda *given: _operators.entmax_op(given[0], given[1], -1, given[2]), in_dims=at)(z, alpha, mask)
    for i in range(3):
        own = [t if axis is None else t.select(axis, i) for t, axis in zip((z, alpha, mask), at)]
        close(got[i], _operators.entmax_op(own[0], own[1], -1, own[2]))


@pytest.mark.parametrize("dtype", HALVES)
def test_a_positive_probability_stays_positive_in_halves_without_a_kernel(dtype):
    z, alpha = torch.tensor([[0.0, -17.5, -100.0]], dtype=dtype), torch.tensor(1.0, dtype=torch.float64)
    exact = _plain.entmax(z.double(), alpha, -1, None)
    assert exact[0, 2] < torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2
    assert (_plain.entmax(z, alpha, -1, None) > 0).all()
    tiny = torch.tensor([[1.0, 1e-45, 0.0]], dtype=torch.float64)
    assert (_plain._stored(tiny, z, -1) > 0).tolist() == [[True, True, False]]


def _root_gradient(z, v):
    leaf = z.clone().requires_grad_()
    p = sgt.entmax15(leaf)
    return p.detach().double(), torch.autograd.grad(p, leaf, v)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [0.02, 1.0])
def test_gradients_of_long_rows_with_roots_for_weights(engine, spread, dtype):
    for k in (1024, 1100, 2083):
        z, v = spread * scores("entmax", 5, k, dtype=dtype), scores("entmax", 5, k, dtype=dtype, seed=1)
        p, got = _root_gradient(z, v)
        weight = p.sqrt()
        want = weight * (v.double() - (weight * v).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True))
        torch.testing.assert_close(got.double(), want, rtol=0, atol=16 * torch.finfo(dtype).eps)
        assert (got[p == 0] == 0).all()
        torch.testing.assert_close(_root_gradient(z, torch.where(p > 0, v, torch.nan))[1], got, rtol=0, atol=0)


def test_large_gradients_with_roots_for_weights_are_those_of_small_calls(engine):
    z, v = scores("entmax", 420, 2048, dtype=torch.float32), scores("entmax", 420, 2048, dtype=torch.float32, seed=1)
    torch.testing.assert_close(_root_gradient(z, v)[1][::50], _root_gradient(z[::50], v[::50])[1], rtol=0, atol=0)


@pytest.mark.parametrize(("k", "spread"), [(256, 1.0), (2048, 0.1), (2048, 1.0)])
def test_large_results_with_roots_for_weights_are_those_of_small_calls(engine, k, spread):
    """They are written past the caches, by rows that are together, alone, and few of whose entries matter."""
    z = spread * scores("entmax", 2**21 // k, k, dtype=torch.float32)
    some = slice(None, None, len(z) // 40)
    torch.testing.assert_close(sgt.entmax15(z)[some], sgt.entmax15(z[some].clone()), rtol=0, atol=0)


def test_entmax_goes_from_softmax_to_sparsemax():
    z = scores("entmax", 20, 7, seed=5)
    close(sgt.entmax(z, alpha=1.0), torch.softmax(z, -1))
    close(sgt.entmax(z, alpha=2.0), sgt.sparsemax(z))
    assert torch.equal(sgt.entmax15(z), sgt.entmax(z, alpha=1.5))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_dial_begins_at_softmax_bit_for_bit(dtype):
    z, mask = scores("softmax", 5, 9, dtype=dtype), some_mask(5, 9)
    for t in (1.0, 0.3):
        assert torch.equal(
            sgt.sparsegen_softmax(z, lam=0.0, temperature=t, mask=mask), sgt.softmax(z, temperature=t, mask=mask)
        )
    assert torch.equal(sgt.SparsegenSoftmax()(z), sgt.softmax(z))


@pytest.mark.parametrize("lam", [0.25, -1.0])
def test_the_dial_is_sparsegen_of_softmax(lam):
    z = scores("softmax", 5, 9)
    want = sgt.sparsegen(z, lam=lam, transform=lambda x: torch.softmax(x / 0.75, -1))
    close(sgt.sparsegen_softmax(z, lam=lam, temperature=0.75), want)


def test_a_learnable_dial_leaves_softmax():
    module = sgt.SparsegenSoftmax(0.0, learnable=True)
    module(scores("softmax", 4, 6)).square().sum().backward()
    assert module.theta.grad.isfinite()
    assert module.theta.grad != 0


def test_a_learnable_alpha_stays_between_1_and_2():
    module = sgt.Entmax(1.5, learnable=True)
    for theta, alpha in ((50.0, 2.0), (-1e9, 1.0)):
        module.theta.data.fill_(theta)
        assert module.alpha.item() == pytest.approx(alpha)
        module.zero_grad()
        module(scores("entmax", 4, 6)).square().sum().backward()
        assert module.theta.grad.isfinite()
    with pytest.raises(ValueError, match="a learnable alpha must be inside its range"):
        sgt.Entmax(2.5, learnable=True)
    assert sgt.Entmax(2.5).alpha == 2.5


NAMED = [("entmax", {"alpha": 1.75}), ("entmax15", {}), ("sparsegen_softmax", {"lam": 0.25, "temperature": 0.5})]


@pytest.mark.parametrize(("name", "controls"), NAMED)
def test_attention_by_name_is_the_map_of_the_scores(name, controls):
    q, k, v = scores("entmax", 3, 2, 5, 8).unbind()
    want = getattr(sgt, name)(q @ k.mT / 8**0.5, **controls) @ v
    close(sgt.sparse_attention(q, k, v, mapping=name, **controls), want)
    module = sgt.make_map(name, **controls)
    close(sgt.sparse_attention(q, k, v, mapping=module), want)
    out, weights = sgt.sparse_attention(q, k, v, mapping=name, return_weights="csr", **controls)
    close(out, want)
    close(weights.to_dense() @ v, want)


@pytest.mark.parametrize(("name", "controls"), NAMED)
def test_multihead_attention_by_name_keeps_its_controls(name, controls):
    x = scores("entmax", 2, 5, 8, dtype=torch.float32)
    attend = sgt.MultiheadAttention(8, 2, batch_first=True, mapping=name, **controls)
    for key, value in controls.items():
        assert getattr(attend, key) == pytest.approx(value)
    other = sgt.MultiheadAttention(8, 2, batch_first=True, mapping=name, **dict.fromkeys(list(controls)[1:], 0.5))
    other.load_state_dict(copy.deepcopy(attend.state_dict()))
    torch.testing.assert_close(other(x, x, x)[0], attend(x, x, x)[0])


def test_multihead_attention_has_an_alpha_and_a_temperature_that_may_be_set():
    attend = sgt.MultiheadAttention(8, 2, mapping="entmax", alpha=[1.25, 1.75])
    assert attend.alpha.flatten().tolist() == [1.25, 1.75]
    attend.alpha = 1.5
    assert attend.alpha.flatten().tolist() == [1.5, 1.5]
    attend = sgt.MultiheadAttention(8, 2, mapping="sparsegen_softmax", lam=[0.25, 0.5], temperature=2.0)
    attend.temperature = 0.5
    assert attend.temperature == 0.5
    assert attend.lam.flatten().tolist() == [0.25, 0.5]
    with pytest.raises(AttributeError, match="alpha"):
        _ = attend.alpha
    with pytest.raises(ValueError, match=r"temperature must be a positive number, got -1\.0"):
        attend.temperature = -1.0
