"""Attention of one query at a time: the formulas, the mask, gradients and errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

import sparsegen as sg
import sparsegen.torch as sgt
from sparsegen._table.maps import MAPS
from sparsegen.torch.attention import AttentionProbe

B, Q, K, S, H = 2, 3, 5, 4, 6  # batch, queries, keys, sizes of a query and of a key
# The maps of the paper's table, with NumPy's function beside.
TABLE = {
    "softmax": ({}, sg.softmax),
    "softmax (with temp.)": ({"temperature": 0.5}, lambda z: sg.softmax(z, temperature=0.5)),
    "sparsemax": ({}, sg.sparsemax),
    "sparsegen_lin": ({"lam": 0.75}, lambda z: sg.sparsegen_lin(z, lam=0.75)),
    "sparsehourglass": ({"q": 0.1}, lambda z: sg.sparsehourglass(z, q=0.1)),
}
KINDS = {
    "additive": lambda **o: sgt.AdditiveAttention(S, H, 7, **o),
    "general": lambda **o: sgt.DotAttention(S, H, **o),
    "dot": lambda **o: sgt.DotAttention(H, H, general=False, **o),
}


def made(kind, **options):
    """An attention in float64 whose scores are some way apart."""
    torch.manual_seed(3)
    attention = KINDS[kind](**options).double()
    with torch.no_grad():
        for name, parameter in attention.named_parameters():
            if not name.startswith("map"):
                parameter.uniform_(-1.5, 1.5)
    return attention


def tensors(attention, seed=0):
    random = torch.Generator().manual_seed(seed)
    shapes = (B, Q, attention.query_size), (B, K, attention.key_size), (B, K, 3)
    return [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]


def scores(attention, query, key):
    """The scores, written out."""
    query, key = query.numpy(), key.numpy()
    z = np.zeros((len(query), query.shape[1], key.shape[1]))
    part = {name: value.detach().numpy() for name, value in attention.state_dict().items()}
    for b, i, j in np.ndindex(z.shape):
        s, h = query[b, i], key[b, j]
        if "v" in part:
            z[b, i, j] = part["v"] @ np.tanh(part["W_s.weight"] @ s + part["W_s.bias"] + part["W_h.weight"] @ h)
        else:
            z[b, i, j] = s @ (part["W.weight"] @ h if "W.weight" in part else h)
    return z


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_weights_and_means_are_those_of_the_formula(kind, name):
    controls, function = TABLE[name]
    attention = made(kind, mapping=name.partition(" ")[0], **controls)
    query, key, value = tensors(attention)
    weights = function(scores(attention, query, key))
    found, p = attention(query, key, value)
    np.testing.assert_allclose(p.detach().numpy(), weights, atol=1e-12)
    np.testing.assert_allclose(found.detach().numpy(), weights @ value.numpy(), atol=1e-12)
    np.testing.assert_allclose(attention(query, key)[0].detach().numpy(), weights @ key.numpy(), atol=1e-12)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_key_gets_exactly_no_weight_and_changes_nothing(kind, name):
    attention = made(kind, mapping=name.partition(" ")[0], **TABLE[name][0])
    query, key, value = tensors(attention)
    mask = torch.ones(B, K, dtype=torch.bool)
    mask[0, 3:] = mask[1, 0] = False
    out, p = attention(query, key, value, mask=mask)
    assert (p[~mask[:, None].expand_as(p)] == 0).all()
    torch.testing.assert_close(p.sum(-1), torch.ones(B, Q, dtype=torch.float64))
    alone, p_alone = attention(query[:1], key[:1, :3], value[:1, :3])
    torch.testing.assert_close(p[:1, :, :3], p_alone)
    torch.testing.assert_close(out[:1], alone)
    each = mask[:, None].expand(B, Q, K)
    for same in (each, mask[:, None]):
        torch.testing.assert_close(attention(query, key, value, mask=same)[1], p, rtol=0, atol=0)


def test_each_query_may_have_its_own_mask():
    attention = made("additive", mapping="sparsemax")
    query, key, _ = tensors(attention)
    mask = torch.eye(Q, K, dtype=torch.bool).expand(B, Q, K)
    torch.testing.assert_close(attention(query, key, mask=mask)[1], mask.double())


@pytest.mark.parametrize("name", TABLE)
def test_a_query_with_no_key_to_choose_gets_zeros_and_finite_gradients(name):
    attention = made("additive", mapping=name.partition(" ")[0], **TABLE[name][0])
    query, key, value = tensors(attention)
    mask = torch.ones(B, K, dtype=torch.bool)
    mask[1] = False
    out, p = attention(query.requires_grad_(), key, value, mask=mask)
    assert (p[1] == 0).all()
    assert (out[1] == 0).all()
    out.sum().backward()
    assert torch.isfinite(attention.v.grad).all()
    assert (query.grad[1] == 0).all()


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_differences(kind, name):
    attention = made(kind, mapping=name.partition(" ")[0], **TABLE[name][0])
    names = [n for n, _ in attention.named_parameters()]
    mask = torch.ones(B, K, dtype=torch.bool)
    mask[0, -1] = False

    def run(query, key, value, *parameters):
        return functional_call(attention, dict(zip(names, parameters)), (query, key, value), {"mask": mask})

    inputs = [t.requires_grad_() for t in (*tensors(attention), *(p.detach() for p in attention.parameters()))]
    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize(
    ("mapping", "control"),
    [("softmax", {"temperature": 0.5}), ("sparsegen_lin", {"lam": 0.3}), ("sparsehourglass", {"q": 0.4})],
)
def test_a_learnable_control_gets_a_gradient_and_is_learnt(mapping, control):
    attention = made("additive", mapping=mapping, learnable=True, **control)
    query, key, value = tensors(attention)
    ((name, expected),) = control.items()
    assert getattr(attention.map, name).item() == pytest.approx(expected)
    out, p = attention(query, key, value)
    (out**2).sum().backward()
    assert attention.map.theta.grad.abs() > 1e-6
    torch.optim.SGD(attention.parameters(), lr=0.1).step()
    assert getattr(attention.map, name).item() != pytest.approx(expected)
    assert not torch.equal(attention(query, key, value)[1], p)


def test_the_projection_of_the_keys_can_be_had_once():
    for kind in KINDS:
        attention = made(kind, mapping="sparsemax")
        query, key, value = tensors(attention)
        projected = attention.project_keys(key)
        torch.testing.assert_close(attention(query, key, value, projected=projected), attention(query, key, value))


def test_the_paper_s_v_has_the_size_of_the_query_unless_told():
    assert sgt.AdditiveAttention(3, 4).v.shape == (3,)
    assert sgt.AdditiveAttention(3, 4, 9).v.shape == (9,)
    assert sgt.AdditiveAttention(3, 4).W_h.bias is None


def test_a_module_serves_as_the_map():
    attention = sgt.AdditiveAttention(S, H, mapping=sgt.Sparsegen(0.5, learnable=True))
    assert attention.map.lam.item() == pytest.approx(0.5)
    assert "map.theta" in dict(attention.named_parameters())


def test_probes_see_the_weights_and_what_was_allowed():
    attention = made("additive", mapping="sparsegen_lin", lam=0.75)
    query, key, value = tensors(attention)
    mask = torch.ones(B, K, dtype=torch.bool)
    mask[0, 3:] = False
    with AttentionProbe(attention) as probe:
        p = attention(query, key, value, mask=mask)[1].detach()
    (row,) = probe.table()
    allowed = Q * int(mask.sum())
    assert row["rows"] == B * Q
    assert row["support"] == pytest.approx((p > 0).sum().item() / (B * Q))
    assert row["zeros"] == pytest.approx((allowed - (p > 0).sum().item()) / allowed)
    assert row["entropy"] == pytest.approx(torch.special.entr(p).sum().item() / (B * Q))


def message(action):
    with pytest.raises(ValueError) as error:
        action()
    return str(error.value)


def test_wrong_sizes_are_refused_by_name():
    assert message(lambda: sgt.AdditiveAttention(0, 4)) == ("sparsegen: query_size must be a positive integer, got 0.")
    assert message(lambda: sgt.AdditiveAttention(4, 2.5)) == (
        "sparsegen: key_size must be a positive integer, got 2.5."
    )
    assert "hidden_size must be a positive integer, got -1" in message(lambda: sgt.AdditiveAttention(4, 4, -1))
    assert message(lambda: sgt.DotAttention(3, 4, general=False)) == (
        "sparsegen: key_size must be the query's size 3 where general=False, got 4."
    )


def test_wrong_shapes_are_refused_by_name():
    attention = sgt.AdditiveAttention(S, H)
    query, key = torch.zeros(B, Q, S), torch.zeros(B, K, H)
    text = message(lambda: attention(query[0], key))
    assert text == "sparsegen: query must be of shape (batch, length, 4), got (3, 4)."
    assert "key must be of shape (batch, length, 6), got (2, 3, 4)" in message(lambda: attention(query, query))
    assert "query must be of as many rows as key, 2, got 1" in message(lambda: attention(query[:1], key))
    mask = torch.ones(B, K + 1, dtype=torch.bool)
    assert message(lambda: attention(query, key, mask=mask)) == (
        "sparsegen: mask must be of shape (2, 5) or (2, 3, 5), got (2, 6)."
    )
    text = message(lambda: attention(query, key, torch.zeros(B, K - 1, 2)))
    assert text == "sparsegen: value must be of shape (2, 5, any), got (2, 4, 2)."
    assert "value must be of shape (2, 5, any), got (1, 5, 2)" in message(
        lambda: attention(query, key, torch.zeros(1, K, 2))
    )


@pytest.mark.parametrize("mapping", MAPS)
def test_every_map_of_the_table_can_be_made_by_name(mapping):
    control = {key: 1.5 if key == "alpha" else 0.5 for key in MAPS[mapping].controls}
    module = sgt.make_map(mapping, **control)
    z = torch.tensor([[0.1, 0.9, 0.5], [1.5, 1.0, 0.3]], dtype=torch.float64)
    if mapping == "sparsegen_log":
        z = z.exp()
    expected = getattr(sg, mapping)(z.numpy(), **control)
    np.testing.assert_allclose(module.double()(z).numpy(), expected, atol=1e-12)
    first = sgt.make_map(mapping, dim=0, **control).double()(z)
    np.testing.assert_allclose(first.numpy(), getattr(sg, mapping)(z.numpy(), axis=0, **control), atol=1e-12)


def test_a_map_is_refused_with_another_s_control():
    assert message(lambda: sgt.make_map("sparsemax", lam=0.5)) == (
        "sparsegen: lam must be left out for mapping 'sparsemax', which has no control, got 0.5."
    )
    assert "temperature must be left out for mapping 'sparsegen_lin'" in message(
        lambda: sgt.make_map("sparsegen_lin", temperature=0.5)
    )
    assert "q must be given for mapping 'sparsehourglass', got None" in message(lambda: sgt.make_map("sparsehourglass"))
    assert "learnable must be False for mapping 'sparsemax', which has no control" in message(
        lambda: sgt.make_map("sparsemax", learnable=True)
    )
    assert "mapping must be one of 'sparsemax'" in message(lambda: sgt.make_map("nonsense"))
    assert "got 3" in message(lambda: sgt.make_map(3))
    assert "lam must be left out where mapping is a module" in message(lambda: sgt.make_map(sgt.Sparsemax(), lam=0.5))
    module = nn.Identity()
    assert sgt.make_map(module) is module
