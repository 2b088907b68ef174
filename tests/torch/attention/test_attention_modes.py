"""The fused kernel's other ways: few queries, halves, spans of masks, shares of exponentials and entmax."""

import pytest
import torch
from test_attention_kernel import close, defined, inputs, sample

import sparsegen._core as _core
import sparsegen.torch as sgt
from sparsegen.torch.attention import plain

MAPS = {"sparsemax": {}, "sparsehourglass": {"q": 0.5}, "entmax": {"alpha": 1.5}, "sparsegen_softmax": {"lam": 0.1}}


@pytest.fixture(autouse=True)
def only_the_kernel(monkeypatch, request):
    if "plain" not in request.node.originalname:

        def refuse(*_):
            raise AssertionError("the plain way was taken")

        monkeypatch.setattr(plain, "attend", refuse)


@pytest.mark.parametrize("name", _core.engines())
@pytest.mark.parametrize("mapping", MAPS)
def test_few_queries_are_those_of_the_definition(mapping, name):
    before = _core.engine()
    _core.use_engine(name)
    try:
        for heads, queries, keys, width in (
            (6, 1, 1, 5),
            (6, 1, 100, 64),
            (2, 4, 33, 7),
            (6, 2, 300, 16),
            (2, 5, 40, 8),
        ):
            q = sample(2, heads, queries, width, seed=1)
            k, v = (sample(2, 2, keys, width, seed=seed) for seed in (2, 3))
            mask = sample(2, 1, 1, keys, seed=4) > -1
            for how in ({}, {"attn_mask": mask}):
                out = sgt.sparse_attention(q, k, v, mapping=mapping, enable_gqa=True, **how, **MAPS[mapping])
                close(out, defined(q, k, v, mapping, how, **MAPS[mapping])[0])
    finally:
        _core.use_engine(before)


@pytest.mark.parametrize("queries", [1, 3, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mapping", MAPS)
def test_halves_are_computed_in_float32_and_rounded_once(mapping, dtype, queries):
    for width in (7, 8, 64):
        q, k, v = (t.to(dtype) for t in inputs((2, 3), queries, 70, width, width))
        out = sgt.sparse_attention(q, k, v, mapping=mapping, **MAPS[mapping])
        exact = defined(q.double(), k.double(), v.double(), mapping, {}, **MAPS[mapping])[0]
        assert out.dtype == dtype
        step = torch.finfo(dtype).eps * exact.abs().clamp(
            min=torch.finfo(dtype).tiny
        )  # the distance to the next number
        assert ((out.double() - exact).abs() <= 0.51 * step + 1e-5).all()


@pytest.mark.parametrize("mapping", ["sparsemax", "entmax"])
def test_halves_have_the_gradients_of_float32(mapping):
    tensors = [t.bfloat16().requires_grad_() for t in inputs((2, 3), 9, 21)]
    wide = [t.detach().float().requires_grad_() for t in tensors]
    grad = sample(2, 3, 9, 4, seed=7).bfloat16()
    found = torch.autograd.grad(sgt.sparse_attention(*tensors, mapping=mapping), tensors, grad)
    exact = torch.autograd.grad(sgt.sparse_attention(*wide, mapping=mapping), wide, grad.float())
    for a, b in zip(found, exact):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a, b.bfloat16())


def test_numbers_too_small_for_pairs_are_not_lost():
    q, k, v = (t.bfloat16() for t in inputs((1, 1), 12, 40, 8, 8))
    k[..., 3, :] = 1e-39  # subnormal, and 1 when multiplied by the query
    q[..., 5, :] = 1e38
    exact = defined(q.double(), k.double(), v.double(), "sparsemax", {}, scale=1e-6)[0]
    close(sgt.sparse_attention(q, k, v, scale=1e-6).double(), exact, 0.01)


@pytest.mark.parametrize("mapping", MAPS)
@pytest.mark.parametrize("kind", ["window", "causal", "none open", "late", "additive"])
def test_masks_as_models_make_them(mapping, kind):
    place = torch.arange(70)
    masks = {
        "window": (place[:, None] >= place) & (place[:, None] - place < 9),
        "causal": place[:, None] >= place,
        "none open": (place[:, None] >= place) & (place[:, None] % 3 > 0),
        "late": (place >= 65).expand(70, 70),
    }
    masks["additive"] = torch.where(masks["window"], sample(70, 70, seed=5), -torch.inf)
    q, k, v = inputs((2, 3), 70, 70, 8, 8)
    how = {"attn_mask": masks[kind]}
    out = sgt.sparse_attention(q, k, v, mapping=mapping, **how, **MAPS[mapping])
    close(out, defined(q, k, v, mapping, how, **MAPS[mapping])[0])


@pytest.mark.parametrize("kind", [{}, {"is_causal": True}])
@pytest.mark.parametrize("lam", [0.0, 0.05, 0.5, 0.99, -0.5])
def test_the_dial_of_softmax_by_the_kernel(lam, kind):
    q, k, v = inputs((2, 3), 40, 200 if not kind else 40, 16, 16)
    each = torch.tensor([lam, lam / 2, 0.0]).reshape(3, 1)
    for given, temperature in ((lam, 1.0), (lam, 0.3), (each, 1.0)):
        how = {"mapping": "sparsegen_softmax", "lam": given, "temperature": temperature}
        out, weights = sgt.sparse_attention(q, k, v, return_weights=True, **how, **kind)
        exact = defined(q.double(), k.double(), v.double(), mask=kind, **how)
        tol = 1e-5 if lam < 0.9 else 1e-4  # errors of scores count 1/(1 - lam) times
        close(out, exact[0].float(), tol)
        close(weights, exact[1].float(), tol)
    soft = sgt.sparse_attention(q, k, v, mapping="sparsegen_softmax", lam=0.0, **kind)
    close(soft, torch.nn.functional.scaled_dot_product_attention(q, k, v, **kind), 1e-6)


@pytest.mark.parametrize("name", _core.engines())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_rows_summed_as_they_stand_have_the_bits_of_those_gathered(dtype, name):
    """Weights asked for are listed, and their values gathered; those of most keys are else left in their place."""
    before = _core.engine()
    _core.use_engine(name)
    try:
        masks = {"all": {}, "causal": {"is_causal": True}, "mask": {"attn_mask": sample(75, 150, seed=6) > -1}}
        for lam, width, queries in ((0.0, 64, 75), (0.05, 20, 75), (0.3, 5, 75), (0.05, 130, 3), (0.05, 64, 1)):
            q = sample(2, 4, queries, 8, seed=1).to(dtype)
            k, v = sample(2, 2, 150, 8, seed=2).to(dtype), sample(2, 2, 150, width, seed=3).to(dtype)
            for mask in masks.values() if queries == 75 else ({},):
                how = {"mapping": "sparsegen_softmax", "lam": lam, "enable_gqa": True, **mask}
                gathered, _ = sgt.sparse_attention(q, k, v, return_weights="csr", **how)
                assert torch.equal(sgt.sparse_attention(q, k, v, **how), gathered)
    finally:
        _core.use_engine(before)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("queries", [1, 50])
def test_values_without_weight_do_not_count_whatever_they_are(queries, bad):
    q, k, v = inputs((2,), queries, 120, 16, 16)
    how = {"mapping": "sparsegen_softmax", "lam": 0.05}
    seen = (torch.arange(120) != 7).expand(queries, 120)
    q[..., 0], k[..., 7, :], k[..., 7, 0] = 1.0, 0.0, -100.0  # the map leaves this key out by itself, too
    clean = sgt.sparse_attention(q, k, v, **how)
    v[..., 7, :] = bad
    for mask in (None, seen):
        assert torch.equal(sgt.sparse_attention(q, k, v, mask, **how), clean)


def test_plain_gradients_of_the_dial_of_softmax():
    q, k, v = (t.requires_grad_() for t in inputs((1, 2), 4, 6, 3, 3, torch.float64))
    lam = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)

    def f(q, k, v, lam):
        return sgt.sparse_attention(q, k, v, mapping="sparsegen_softmax", lam=lam)

    assert torch.autograd.gradcheck(f, (q, k, v, lam))
    with torch.no_grad():
        close(f(q, k, v, lam), defined(q, k, v, "sparsegen_softmax", {}, lam=lam)[0], 1e-12)


@pytest.mark.parametrize("kind", [pytest.param("none", marks=pytest.mark.slow), "causal", "bool"])
def test_entmax_has_its_gradients(kind):
    q, k, v = (t.requires_grad_() for t in inputs((1, 2), 3, 4, 2, 2, torch.float64))
    mask = {"none": {}, "causal": {"is_causal": True}, "bool": {"attn_mask": sample(3, 4, seed=3) > -0.5}}[kind]

    def f(q, k, v):
        return sgt.sparse_attention(q, k, v, mapping="entmax", **mask)

    assert torch.autograd.gradcheck(f, (q, k, v))
    assert torch.autograd.gradgradcheck(f, (q, k, v))


@pytest.mark.parametrize("mapping", MAPS)
def test_rows_that_are_not_numbers_or_see_nothing(mapping):
    for queries in (1, 20):
        q, k, v = inputs((1, 2), queries, 40, 8, 8)
        mask = torch.ones(queries, 40, dtype=torch.bool)
        mask[0] = False
        out = sgt.sparse_attention(q, k, v, attn_mask=mask, mapping=mapping, **MAPS[mapping])
        assert not out[:, :, 0].any()
        q[0, 0, -1, 0] = torch.nan
        out, weights = sgt.sparse_attention(q, k, v, mapping=mapping, return_weights=True, **MAPS[mapping])
        assert out[0, 0, -1].isnan().all()
        assert weights[0, 0, -1].isnan().all()
        assert int(out.isnan().any(-1).sum()) == 1
