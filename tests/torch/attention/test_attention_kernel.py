"""The fused attention against its definition composed from torch's operations, and the laws it keeps on the way."""

import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F

import sparsegen._core as _core
import sparsegen.torch as sgt
from sparsegen.torch.attention import plain

MAPS = {
    "sparsemax": {},
    "sparsegen_lin": {"lam": 0.5},
    "hardmax": {},
    "sparsecone": {"q": 4.0},
    "sparsehourglass": {"q": 0.5},
    "sum_normalization_plus": {},
}
MASKS = ["none", "causal", "bool", "broadcast", "column", "additive"]


def sample(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def inputs(lead=(2, 3), queries=7, keys=33, width=5, value_width=4, dtype=torch.float32):
    return (
        sample(*lead, queries, width, seed=1, dtype=dtype),
        sample(*lead, keys, width, seed=2, dtype=dtype),
        sample(*lead, keys, value_width, seed=3, dtype=dtype),
    )


def options(kind, queries, keys, heads=3, dtype=torch.float32):
    """Keyword arguments of one kind of mask."""
    if kind == "none":
        return {}
    if kind == "causal":
        return {"is_causal": True}
    if kind == "bool":
        mask = sample(2, heads, queries, keys, seed=4) > 0
        mask[0, 0, 0] = False
        return {"attn_mask": mask}
    if kind == "broadcast":
        return {"attn_mask": sample(2, 1, 1, keys, seed=4) > -1}
    if kind == "column":
        return {"attn_mask": sample(queries, 1, seed=4) > 0}
    bias = sample(heads, queries, keys, seed=5, dtype=dtype)
    return {"attn_mask": bias.masked_fill(sample(keys, seed=6) > 0.5, -torch.inf)}


def allowed(scores, mask):
    queries, keys = scores.shape[-2:]
    if mask.get("is_causal"):
        return scores, torch.ones(queries, keys, dtype=torch.bool).tril()
    given = mask.get("attn_mask")
    if given is not None and given.dtype != torch.bool:
        return scores + given, None
    return scores, given


def defined(query, k, v, mapping, mask, scale=None, **controls):
    """Output and weights as they are defined."""
    # `q` is a control, too.
    group = query.shape[-3] // k.shape[-3] if query.dim() > 2 else 1
    if group > 1:
        k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    scores = query @ k.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores, mask = allowed(scores, mask)
    weights = getattr(sgt, mapping)(scores, mask=mask, **controls)
    return weights @ v, weights


def close(a, b, tol=1e-5):
    torch.testing.assert_close(a, b, rtol=tol, atol=tol, equal_nan=True)


@pytest.fixture(autouse=True)
def only_the_kernel(monkeypatch, request):
    """Results come from the kernel, not from the plain way, unless a test says so."""
    if "plain" not in request.node.originalname:

        def refuse(*_):
            raise AssertionError("the plain way was taken")

        monkeypatch.setattr(plain, "attend", refuse)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("mapping", MAPS)
def test_output_weights_and_gradients_are_those_of_the_definition(mapping, kind):
    for queries, keys in ((1, 7), (7, 33), (33, 130), (130, 1), (50, 20)):
        mask = options(kind, queries, keys)
        ours = [t.requires_grad_() for t in inputs((2, 3), queries, keys)]
        theirs = [t.detach().double().requires_grad_() for t in ours]
        wide = {n: m.double() if torch.is_tensor(m) and m.is_floating_point() else m for n, m in mask.items()}
        out, weights = sgt.sparse_attention(*ours, mapping=mapping, return_weights=True, **mask, **MAPS[mapping])
        exact, exact_weights = defined(*theirs, mapping, wide, **MAPS[mapping])
        close(out, exact.float())
        close(weights, exact_weights.float())
        grad, weight_grad = torch.randn_like(out), torch.randn_like(weights)
        loss = (out * grad).sum() + (weights * weight_grad).sum()
        found = torch.autograd.grad(loss, ours)
        loss = (exact * grad).sum() + (exact_weights * weight_grad).sum()
        for a, b in zip(found, torch.autograd.grad(loss, theirs)):
            close(a, b.float(), 1e-4)


@pytest.mark.parametrize("width", [1, 5, 8, 64, 67])
@pytest.mark.parametrize("value_width", [1, 3, 8, 70])
def test_any_width(width, value_width):
    q, k, v = inputs((1, 2), 13, 130, width, value_width)
    close(sgt.sparse_attention(q, k, v), defined(q, k, v, "sparsemax", {})[0])


@pytest.mark.parametrize("lam", [0.9999, 0.0, -1000.0])
def test_long_rows_from_one_entry_to_all(lam):
    q, k, v = (t.requires_grad_() for t in inputs((2,), 70, 2500, 16, 16, torch.float64))
    out, weights = sgt.sparse_attention(q, k, v, mapping="sparsegen_lin", lam=lam, return_weights="csr")
    exact, dense = defined(q, k, v, "sparsegen_lin", {}, lam=lam)
    close(out, exact, 1e-10)
    assert len(weights.values) == int((dense > 0).sum())
    g = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, (q, k, v), g), torch.autograd.grad(exact, (q, k, v), g)):
        close(a, b, 1e-9)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 2, 3)])
def test_any_number_of_leading_axes(lead):
    q, k, v = inputs(lead)
    close(sgt.sparse_attention(q, k, v), defined(q, k, v, "sparsemax", {})[0])


def test_leading_axes_broadcast_and_their_gradients_add_up():
    q, k, v = sample(2, 1, 7, 5, seed=1), sample(3, 9, 5, seed=2), sample(4, 1, 3, 9, 2, seed=3)
    q, k, v = (t.double().requires_grad_() for t in (q, k, v))
    out, exact = sgt.sparse_attention(q, k, v, scale=2.0), defined(q, k, v, "sparsemax", {}, scale=2.0)[0]
    assert out.shape == (4, 2, 3, 7, 2)
    close(out, exact)
    for a, b in zip(torch.autograd.grad(out.sin().sum(), (q, k, v)), torch.autograd.grad(exact.sin().sum(), (q, k, v))):
        close(a, b)


@pytest.mark.parametrize("mapping", ["sparsemax", "sparsehourglass"])
@pytest.mark.parametrize("kind", ["none", "causal", "bool"])
def test_grouped_heads_share_keys_and_values(mapping, kind):
    q, _, _ = inputs((2, 6), 9, 20, 5, 4, torch.float64)
    _, k, v = inputs((2, 2), 9, 20, 5, 4, torch.float64)
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    mask = options(kind, 9, 20, heads=6)
    out = sgt.sparse_attention(q, k, v, mapping=mapping, enable_gqa=True, **mask, **MAPS[mapping])
    exact = defined(q, k, v, mapping, mask, **MAPS[mapping])[0]
    close(out, exact, 1e-12)
    for a, b in zip(torch.autograd.grad(out.sin().sum(), (q, k, v)), torch.autograd.grad(exact.sin().sum(), (q, k, v))):
        close(a, b, 1e-10)


def test_inputs_need_not_be_contiguous():
    q, k, v = (sample(2, n, 3, 8, seed=n).transpose(1, 2).requires_grad_() for n in (7, 20, 20))
    out, exact = sgt.sparse_attention(q, k, v), defined(q, k, v, "sparsemax", {})[0]
    close(out, exact)
    for a, b in zip(torch.autograd.grad(out.sin().sum(), (q, k, v)), torch.autograd.grad(exact.sin().sum(), (q, k, v))):
        close(a, b)
    close(sgt.sparse_attention(*(t.mT.contiguous().mT for t in (q, k, v))), exact)
    mask = (sample(20, 7) > 0).T
    close(sgt.sparse_attention(q, k, v, attn_mask=mask), defined(q, k, v, "sparsemax", {"attn_mask": mask})[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_rounded_once(dtype):
    q, k, v = (t.to(dtype).requires_grad_() for t in inputs())
    out, weights = sgt.sparse_attention(q, k, v, return_weights=True)
    exact = sgt.sparse_attention(q.float(), k.float(), v.float())
    assert out.dtype == weights.dtype == dtype
    assert torch.equal(out, exact.to(dtype))
    assert all(g.dtype == dtype for g in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries", [1, 16])
@pytest.mark.parametrize(("query", "key", "scale"), [(2e38, 2e-39, 4.0), (1e30, 1e9, 1e-38), (-1e30, 1e9, -1e-38)])
def test_a_score_that_is_a_number_does_not_overflow_on_its_way(dtype, queries, query, key, scale):
    keys = torch.tensor([[0.5, 1], [-1, 0], [0.25, 0.75], [1, 0.5]]).to(dtype)
    q, k, v = torch.full((queries, 2), query).to(dtype), keys * key, torch.eye(4).to(dtype)
    exact = q.double() @ k.double().mT * scale
    assert exact.abs().max() < 1e3
    found = sgt.sparse_attention(q, k, v, scale=scale)
    close(found.double(), sgt.sparsemax(exact), 1e-5 if dtype.itemsize > 2 else 4e-3)
    close(plain.scores(q.float(), k.float(), None, scale).double(), exact)


@pytest.mark.parametrize("mapping", MAPS)
def test_a_query_that_may_attend_to_nothing_gets_zeros_and_zero_gradients(mapping):
    q, k, v = (t.requires_grad_() for t in inputs((), 4, 9))
    mask = torch.ones(4, 9, dtype=torch.bool)
    mask[2] = False
    for given in (mask, torch.zeros(4, 9).masked_fill(~mask, -torch.inf)):
        out, weights = sgt.sparse_attention(
            q, k, v, mapping=mapping, attn_mask=given, return_weights=True, **MAPS[mapping]
        )
        assert not out[2].any()
        assert not weights[2].any()
        grads = torch.autograd.grad(out.sum(), (q, k, v))
        assert not grads[0][2].any()
        assert all(torch.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("mapping", MAPS)
def test_a_query_that_is_not_a_number_spoils_its_own_row_only(mapping):
    q, k, v = inputs((1, 2), 8, 40)
    clean = sgt.sparse_attention(q, k, v, mapping=mapping, **MAPS[mapping])
    q = q.clone()
    q[0, 1, 3, 0] = torch.nan
    out, weights = sgt.sparse_attention(q, k, v, mapping=mapping, return_weights=True, **MAPS[mapping])
    assert out[0, 1, 3].isnan().all()
    assert weights[0, 1, 3].isnan().all()
    assert int(out.isnan().any(-1).sum()) == 1
    keep = ~out.isnan()
    assert torch.equal(out[keep], clean[keep])
    q.requires_grad_()
    grad = torch.autograd.grad(sgt.sparse_attention(q, k, v, mapping=mapping, **MAPS[mapping]).sum(), q)[0]
    assert int(grad.isnan().any(-1).sum()) == 1


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_key_that_is_not_finite_reaches_the_rows_that_may_choose_it(value):
    q, k, v = inputs((2,), 30, 30)
    k = k.clone()
    k[0, 20, 0] = value
    out, weights = sgt.sparse_attention(q, k, v, is_causal=True, return_weights=True)
    _, exact = defined(q, k, v, "sparsemax", {"is_causal": True})
    close(weights, exact.tril())  # what a row may not choose is 0 even in a row of NaN
    assert torch.isfinite(out[0, :20]).all()
    assert torch.isfinite(out[1]).all()


def test_a_hidden_key_may_hold_anything():
    q, k, v = inputs((1, 2), 8, 40)
    clean = sgt.sparse_attention(q, k[..., :-1, :], v[..., :-1, :])
    k, v = k.clone(), v.clone()
    k[..., -1, :], v[..., -1, :] = torch.nan, torch.nan
    close(sgt.sparse_attention(q, k, v, attn_mask=torch.arange(40) < 39), clean)
    close(sgt.sparse_attention(q, k, v, attn_mask=torch.zeros(40).index_fill(0, torch.tensor(39), -torch.inf)), clean)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_plain_no_queries_or_no_keys(shape):
    q, k, v = (t.requires_grad_() for t in inputs((2, 3), *shape))
    out, weights = sgt.sparse_attention(q, k, v, return_weights=True)
    assert out.shape == (2, 3, shape[0], 4)
    assert weights.shape == (2, 3, *shape)
    assert not out.any()
    assert not any(g.any() for g in torch.autograd.grad(out.sum(), (q, k, v)))


def test_dropout_takes_a_share_of_the_support_and_scales_the_rest():
    q, k, v = inputs((4, 4), 60, 90, dtype=torch.float64)
    arguments = {"mapping": "sparsegen_lin", "lam": -4.0, "return_weights": True}
    _, weights = sgt.sparse_attention(q, k, v, **arguments)
    torch.manual_seed(0)
    out, dropped = sgt.sparse_attention(q, k, v, dropout_p=0.25, **arguments)
    kept = dropped > 0
    assert not (kept & (weights == 0)).any()
    close(dropped[kept], weights[kept] / 0.75, 1e-12)
    assert abs(kept.sum() / (weights > 0).sum() - 0.75) < 0.02
    close(out, dropped @ v, 1e-12)
    assert not sgt.sparse_attention(q, k, v, dropout_p=1.0).any()


def test_dropout_repeats_with_the_seed_and_has_the_gradient_of_what_was_kept():
    q, k, v = (t.requires_grad_() for t in inputs((2,), 6, 20, dtype=torch.float64))

    def attend(q, k, v):
        torch.manual_seed(3)
        return sgt.sparse_attention(q, k, v, mapping="sparsegen_lin", lam=-2.0, dropout_p=0.5)

    assert torch.equal(attend(q, k, v), attend(q, k, v))
    assert torch.autograd.gradcheck(attend, (q, k, v))


def test_weights_come_dense_or_compressed():
    q, k, v = inputs()
    out, dense = sgt.sparse_attention(q, k, v, return_weights=True)
    same, rows = sgt.sparse_attention(q, k, v, return_weights="csr")
    assert torch.equal(out, same)
    assert torch.equal(rows.to_dense(), dense)
    assert rows.shape == dense.shape
    assert torch.equal(rows.indptr.diff(), (dense > 0).sum(-1).flatten())
    assert (rows.indices.dtype, rows.indptr.dtype) == (torch.int32, torch.int64)


def test_plain_weights_come_compressed_too():
    q, k, v = inputs()
    out, rows = sgt.sparse_attention(q, k, v, mapping="sparsegen_exp", lam=0.5, return_weights="csr")
    dense = sgt.sparse_attention(q, k, v, mapping="sparsegen_exp", lam=0.5, return_weights=True)[1]
    assert torch.equal(rows.to_dense(), dense)
    close(out, dense @ v)


@pytest.mark.parametrize("kind", ["none", "causal", "bool", "additive"])
@pytest.mark.parametrize(
    ("mapping", "control"), [("sparsegen_lin", "lam"), ("sparsecone", "q"), ("sparsehourglass", "q")]
)
def test_gradcheck_with_a_control_for_each_head(mapping, control, kind):
    q, k, v = (t.requires_grad_() for t in inputs((2, 3), 5, 6, 2, 3, torch.float64))
    start = {"sparsegen_lin": [0.5, 0.0, -2.0], "sparsecone": [3.0, 4.0, 5.0], "sparsehourglass": [0.3, 1.0, 4.0]}
    given = torch.tensor(start[mapping], dtype=torch.float64).reshape(3, 1).requires_grad_()
    mask = options(kind, 5, 6, dtype=torch.float64)

    def attend(q, k, v, given):
        return sgt.sparse_attention(q, k, v, mapping=mapping, **{control: given}, **mask)

    assert torch.autograd.gradcheck(attend, (q, k, v, given))


@pytest.mark.parametrize("mapping", ["sparsegen_lin", "sparsehourglass"])
def test_gradients_can_be_differentiated_again(mapping):
    q, k, v = (t.requires_grad_() for t in inputs((1,), 2, 4, 1, 2, torch.float64))
    given = torch.full((1, 1), 0.5, dtype=torch.float64, requires_grad=True)
    control = "lam" if mapping == "sparsegen_lin" else "q"

    def attend(q, k, v, given):
        torch.manual_seed(0)
        out, weights = sgt.sparse_attention(
            q, k, v, mapping=mapping, **{control: given}, return_weights=True, dropout_p=0.3
        )
        return out, weights

    assert torch.autograd.gradgradcheck(attend, (q, k, v, given))
    out = attend(q, k, v, given)[0]
    basis = torch.eye(out.numel(), dtype=torch.float64).reshape(-1, *out.shape)
    batched = torch.autograd.grad(out, q, basis, is_grads_batched=True, retain_graph=True)[0]
    close(batched, torch.stack([torch.autograd.grad(out, q, row, retain_graph=True)[0] for row in basis]), 1e-12)


def test_modules_are_mappings():
    q, k, v = inputs()
    heads = sgt.Sparsegen(lam=0.5, learnable=True, shape=(3, 1))
    out = sgt.sparse_attention(q, k, v, mapping=heads)
    close(out, sgt.sparse_attention(q, k, v, mapping="sparsegen_lin", lam=0.5))
    assert torch.autograd.grad(out.sin().sum(), heads.theta)[0].shape == (3, 1)
    close(sgt.sparse_attention(q, k, v, mapping=sgt.Sparsemax()), sgt.sparse_attention(q, k, v))
    for kind, name in ((sgt.Sparsecone, "sparsecone"), (sgt.Sparsehourglass, "sparsehourglass")):
        close(sgt.sparse_attention(q, k, v, mapping=kind(q=3.0)), sgt.sparse_attention(q, k, v, mapping=name, q=3.0))


def test_plain_modules_are_mappings_too():
    q, k, v = inputs()
    for module in (sgt.Softmax(2.0), sgt.Sparsegen(0.5, "exp"), sgt.Sparsegen(0.5, torch.abs)):
        close(sgt.sparse_attention(q, k, v, mapping=module), module(q @ k.mT / math.sqrt(5)) @ v)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("mapping", ["softmax", "sparsegen_exp", "sparsegen_sq", "spherical_softmax"])
def test_plain_maps_of_other_scores(mapping, kind):
    q, k, v = inputs()
    mask = options(kind, 7, 33)
    close(sgt.sparse_attention(q, k, v, mapping=mapping, **mask), defined(q, k, v, mapping, mask)[0])


def test_plain_softmax_is_torch_attention():
    q, k, v = inputs()
    close(sgt.sparse_attention(q, k, v, mapping="softmax"), F.scaled_dot_product_attention(q, k, v))
    hot = sgt.sparse_attention(q, k, v, mapping="softmax", temperature=2.0, is_causal=True)
    close(hot, F.scaled_dot_product_attention(q / 2, k, v, is_causal=True))
    each = torch.tensor([1.0, 2.0, 4.0]).reshape(3, 1)
    close(sgt.sparse_attention(q, k, v, mapping="softmax", temperature=each)[:, 1],
          F.scaled_dot_product_attention(q / 2, k, v)[:, 1])  # fmt: skip


def test_plain_learnt_mask_transforms_and_tracers():
    q, k, v = inputs()
    bias = sample(7, 33, seed=9).requires_grad_()
    out = sgt.sparse_attention(q, k, v, attn_mask=bias)
    close(out, sgt.sparse_attention(q, k, v, attn_mask=bias.detach()))
    assert torch.autograd.grad(out.sin().sum(), bias)[0].any()
    close(torch.func.vmap(lambda q, k, v: sgt.sparse_attention(q, k, v))(q, k, v), sgt.sparse_attention(q, k, v))
    q.requires_grad_()
    exact = torch.autograd.grad(sgt.sparse_attention(q, k, v).sin().sum(), q)[0]
    close(torch.func.grad(lambda q: sgt.sparse_attention(q, k, v).sin().sum())(q.detach()), exact)
    compiled = torch.compile(lambda q, k, v: sgt.sparse_attention(q, k, v, is_causal=True), backend="aot_eager")
    close(compiled(q, k, v), sgt.sparse_attention(q, k, v, is_causal=True))


@pytest.mark.parametrize("lead", [(1, 1), (2, 6)])
@pytest.mark.parametrize("mapping", ["sparsegen_lin", "sparsehourglass"])
def test_one_thread_or_two_give_the_same_bits(mapping, lead):
    q, k, v = (t.requires_grad_() for t in inputs(lead, 150, 170, 16, 16))
    control = {"lam": -3.0} if mapping == "sparsegen_lin" else {"q": 0.5}
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        out, rows = sgt.sparse_attention(q, k, v, mapping=mapping, dropout_p=0.1, return_weights="csr", **control)
        loss = (out * torch.arange(out.numel()).reshape(out.shape).sin()).sum()
        # Sums that torch itself takes are not ours to answer for.
        extra = torch.autograd.grad(loss, (q, k, v)) if mapping == "sparsegen_lin" else ()
        results.append((out, rows.indptr, rows.indices, rows.values, *extra))
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


@pytest.mark.parametrize("name", _core.engines())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_engine_gives_the_same_answer(name, dtype):
    q, k, v = (t.requires_grad_() for t in inputs((2, 2), 33, 130, 9, 11, dtype))
    before = _core.engine()
    _core.use_engine(name)
    try:
        out = sgt.sparse_attention(q, k, v, is_causal=True)
        found = torch.autograd.grad(out.sin().sum(), (q, k, v))
    finally:
        _core.use_engine(before)
    exact = defined(q, k, v, "sparsemax", {"is_causal": True})[0]
    close(out, exact)
    for a, b in zip(found, torch.autograd.grad(exact.sin().sum(), (q, k, v))):
        close(a, b, 1e-4)


ERRORS = [
    ({"mapping": "sharpmax"}, "mapping must be one of 'sparsemax'"),
    ({"lam": 0.5}, "lam must be left out for mapping 'sparsemax', which has no control, got 0.5"),
    (
        {"mapping": "sparsegen_lin", "q": 0.5},
        "q must be left out for mapping 'sparsegen_lin', which has",
    ),
    ({"mapping": "sparsehourglass"}, "q must be given for mapping 'sparsehourglass', got None"),
    ({"mapping": "sparsegen_lin", "lam": 1.5}, "lam must be a number below 1, got 1.5"),
    ({"mapping": "sparsegen_lin", "lam": torch.zeros(4, 1)}, "the shape of lam must be broadcastable to (2, 3, 7)"),
    (
        {"mapping": sgt.Sparsemax(), "lam": 0.5},
        "lam must be left out where mapping is a module, which has",
    ),
    ({"mapping": sgt.Sparsemax(dim=1)}, "the dim of mapping must be -1, the keys, got 1"),
    (
        {"is_causal": True, "attn_mask": torch.ones(7, 33, dtype=torch.bool)},
        "attn_mask must be None where is_causal=True",
    ),
    ({"attn_mask": torch.ones(7, 33, dtype=torch.long)}, "attn_mask must be a boolean (True = may attend) or floating"),
    ({"attn_mask": torch.ones(7, 32)}, "the shape of attn_mask must be broadcastable to (2, 3, 7, 33)"),
    ({"dropout_p": 1.5}, "dropout_p must be between 0 and 1, got 1.5"),
    ({"return_weights": "coo"}, "return_weights must be False, True or 'csr', got 'coo'"),
]


@pytest.mark.parametrize(("wrong", "text"), ERRORS, ids=[text[:30] for _, text in ERRORS])
def test_arguments_that_cannot_be_are_refused(wrong, text):
    with pytest.raises((TypeError, ValueError)) as error:
        sgt.sparse_attention(*inputs(), **wrong)
    assert str(error.value).startswith("sparsegen: " + text)


SHAPES = [
    ((2, 3, 7, 5), (2, 3, 9, 4), (2, 3, 9, 4), {}, "key must be of 5 features, as the query"),
    ((2, 3, 7, 5), (2, 3, 9, 5), (2, 3, 8, 5), {}, "value must be of 9 rows, one for each key"),
    ((2, 4, 7, 5), (2, 2, 9, 5), (2, 2, 9, 5), {}, "the axes before the last two must be broadcastable"),
    (
        (2, 4, 7, 5),
        (2, 3, 9, 5),
        (2, 3, 9, 5),
        {"enable_gqa": True},
        "the number of heads must be equal in key and value",
    ),
    ((5,), (9, 5), (9, 5), {}, "query must be of at least two axes"),
]


@pytest.mark.parametrize(("q", "k", "v", "more", "text"), SHAPES, ids=[text[:30] for *_, text in SHAPES])
def test_shapes_that_do_not_fit_are_refused(q, k, v, more, text):
    with pytest.raises(ValueError) as error:
        sgt.sparse_attention(sample(*q), sample(*k), sample(*v), **more)
    assert str(error.value).startswith("sparsegen: " + text)


def test_types_that_do_not_fit_are_refused():
    q, k, v = inputs()
    with pytest.raises(TypeError, match="key must be of the query's dtype"):
        sgt.sparse_attention(q, k.double(), v)
    with pytest.raises(TypeError, match=r"query must be a torch\.Tensor"):
        sgt.sparse_attention(q.numpy(), k, v)


def _autocast_dtypes(attend, *dtypes):
    xs = [sample(2, 3, 4, seed=i).to(dtype) for i, dtype in enumerate(dtypes)]
    with torch.autocast("cpu", torch.bfloat16):
        return attend(*xs)


@pytest.mark.parametrize("mapping", ["sparsemax", "softmax", "sparsegen_lin"])
@pytest.mark.parametrize("dtypes", [
    (torch.bfloat16, torch.float32, torch.float32), (torch.float32,) * 3, (torch.float64,) * 3,
    (torch.float32, torch.bfloat16, torch.float16),
])  # fmt: skip
def test_autocast_casts_as_torchs_attention_does(dtypes, mapping):
    theirs = _autocast_dtypes(torch.nn.functional.scaled_dot_product_attention, *dtypes)
    ours = _autocast_dtypes(partial(sgt.sparse_attention, mapping=mapping), *dtypes)
    assert ours.dtype == theirs.dtype
    if mapping == "softmax":
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)
    cast = [sample(2, 3, 4, seed=i).to(dtype).to(ours.dtype) for i, dtype in enumerate(dtypes)]
    torch.testing.assert_close(ours, sgt.sparse_attention(*cast, mapping=mapping), rtol=0.05, atol=0.05)


def test_without_autocast_the_dtypes_must_agree():
    with pytest.raises(TypeError, match=r"^sparsegen: key must be of the query's dtype torch.bfloat16"):
        sgt.sparse_attention(sample(2, 3, 4).bfloat16(), sample(2, 3, 4).float(), sample(2, 3, 4).float())


def test_arguments_may_stand_where_torch_has_them_also_on_the_plain_way():
    q, k, v = inputs((2,), 5, 7)
    mask = torch.arange(7) < 4
    theirs = F.scaled_dot_product_attention(q, k, v, mask, 0.0, False)
    torch.testing.assert_close(sgt.sparse_attention(q, k, v, mask, 0.0, False, mapping="softmax"), theirs)
    assert torch.equal(sgt.sparse_attention(q, k, v, mask), sgt.sparse_attention(q, k, v, attn_mask=mask))
    causal = sgt.sparse_attention(q, k, v, None, 0.0, True)
    assert torch.equal(causal, sgt.sparse_attention(q, k, v, is_causal=True))
