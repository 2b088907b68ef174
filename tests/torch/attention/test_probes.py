"""Probes: what they count, and that they leave no trace."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import sparsegen.torch as sgt
from sparsegen.torch.attention import AttentionProbe, MultiheadAttention, Probed, replace_attention

E, H, N, L = 8, 4, 3, 5


class Given(Probed):
    """Attention whose weights are its input."""

    def forward(self, weights, allowed=None):
        self._observe(weights, allowed)
        return weights


def seen(weights, allowed=None, *more):
    module = Given()
    with AttentionProbe(module) as probe:
        module(weights, allowed)
        for call in more:
            module(*call)
    return probe.table()


def row(head, support, entropy, zeros, rows, module=""):
    expected = {"support": support, "entropy": entropy, "zeros": zeros}
    return {"module": module, "head": head, "rows": rows} | {k: pytest.approx(v) for k, v in expected.items()}


HALF = [[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
EVEN = [[0.25] * 4, [0.25] * 4]


def test_support_entropy_zeros_and_rows_of_each_head():
    weights = torch.tensor([[HALF, EVEN]])  # one sequence, two heads, two queries, four keys
    assert seen(weights) == [row(0, 1.5, math.log(2) / 2, 5 / 8, 2), row(1, 4.0, math.log(4), 0.0, 2)]


def test_weights_without_heads_are_one_head():
    both = torch.tensor([HALF, EVEN])  # two sequences
    assert seen(both) == [row(0, 2.75, (math.log(2) / 2 + math.log(4)) / 2, 5 / 16, 4)]
    assert seen(both[0]) == [row(0, 1.5, math.log(2) / 2, 5 / 8, 2)]


def test_calls_add_up_by_rows_and_keys_not_by_calls():
    one, long = torch.tensor([[1.0, 0.0]]), torch.full((3, 6), 1 / 6)
    assert seen(one, None, (long,)) == [row(0, 19 / 4, 3 * math.log(6) / 4, 1 / 20, 4)]


def test_keys_that_are_hidden_are_not_zeros_and_rows_without_keys_are_not_rows():
    weights = torch.tensor([[HALF, EVEN]])
    weights[0, 1, 1] = 0.0
    allowed = torch.ones(1, 2, 2, 4, dtype=torch.bool)
    allowed[0, 0, :, 3] = False
    allowed[0, 1, 1] = False
    assert seen(weights, allowed) == [row(0, 1.5, math.log(2) / 2, 3 / 6, 2), row(1, 4.0, math.log(4), 0.0, 1)]


def test_a_mask_of_two_axes_says_which_keys_of_each_sequence():
    weights = torch.tensor([HALF, EVEN])
    allowed = torch.tensor([[True, True, True, False], [True] * 4])
    per_query = allowed[:, None, :].expand(2, 2, 4)
    assert (
        seen(weights, allowed)
        == seen(weights, per_query)
        == [row(0, 2.75, (math.log(2) / 2 + math.log(4)) / 2, 3 / 14, 4)]
    )
    with_heads = weights[:, None].expand(2, 3, 2, 4)
    assert seen(with_heads, allowed) == [{**seen(weights, allowed)[0], "head": head} for head in range(3)]


def test_weights_of_nothing_are_no_rows_and_no_means():
    (only,) = seen(torch.zeros(2, 3, 4), torch.zeros(2, 4, dtype=torch.bool))
    assert only["rows"] == 0
    assert all(math.isnan(only[name]) for name in ("support", "entropy", "zeros"))


def test_half_precision_is_counted_exactly():
    weights = torch.full((1, 1, 1, 4096), 1 / 4096, dtype=torch.float16)
    assert seen(weights) == [row(0, 4096.0, math.log(4096), 0.0, 1)]


# In models


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def encoder(mapping="sparsegen_lin", dropout=0.0, **controls):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 16, dropout=dropout, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    replace_attention(model, mapping, **controls)
    return model


def test_what_a_probe_sees_are_the_weights_returned():
    module = MultiheadAttention(E, H, batch_first=True)
    nn.init.normal_(module.in_proj_weight)
    x = normal(N, L, E)
    padding = torch.arange(L) >= torch.tensor([5, 3, 1])[:, None]
    numbers = normal(L, L, seed=1).masked_fill(torch.ones(L, L).triu(1) > 0, -math.inf)
    causal = torch.ones(L, L, dtype=torch.bool).triu(1)
    calls = (
        {},
        {"key_padding_mask": padding},
        {"attn_mask": numbers},
        {"attn_mask": causal, "key_padding_mask": padding},
        {"attn_mask": causal, "is_causal": True},
    )
    for call in calls:
        _, weights = module(x, x, x, average_attn_weights=False, **call)
        allowed = torch.ones(N, H, L, L, dtype=torch.bool)
        if "attn_mask" in call:
            allowed &= ~causal
        if "key_padding_mask" in call:
            allowed &= ~padding[:, None, None]
        for need in (True, False):
            with AttentionProbe(module) as probe:
                module(x, x, x, need_weights=need, **call)
            assert probe.table() == seen(weights, allowed)
            assert probe.table()[0]["rows"] == N * L


def test_a_probe_sees_the_keys_of_bias_and_zero():
    module = MultiheadAttention(E, H, mapping="softmax", add_bias_kv=True, add_zero_attn=True)
    x = normal(L, E)
    with AttentionProbe(module) as probe:
        module(x, x, x, attn_mask=torch.ones(L, L, dtype=torch.bool))
    assert [(entry["support"], entry["zeros"], entry["rows"]) for entry in probe.table()] == [(2.0, 0.0, L)] * H


def test_modules_are_told_by_their_names_and_those_not_called_are_absent():
    model = encoder(lam=0.5)
    model.unused = MultiheadAttention(E, H)
    with AttentionProbe(model) as probe:
        assert probe.table() == []
        model(normal(N, L, E))
    names = [entry["module"] for entry in probe.table()]
    assert names == ["layers.0.self_attn"] * H + ["layers.1.self_attn"] * H
    assert [entry["head"] for entry in probe.table()] == [*range(H), *range(H)]
    assert {entry["rows"] for entry in probe.table()} == {N * L}


def test_a_sparser_control_shows_in_the_table():
    means = {}
    for lam in (-9.0, 0.99):
        model = encoder(lam=lam)
        with AttentionProbe(model) as probe:
            model(normal(N, L, E))
        means[lam] = probe.table()
    for dense, sparse in zip(means[-9.0], means[0.99]):
        assert sparse["support"] < dense["support"]
        assert sparse["entropy"] < dense["entropy"]
        assert sparse["zeros"] > dense["zeros"]


@pytest.mark.parametrize("training", [True, False])
def test_outputs_gradients_and_random_numbers_are_the_same_to_the_bit(training):
    x, results = normal(N, L, E), []
    for watched in (False, True):
        model = encoder("softmax", dropout=0.5, learnable=True).train(training)
        torch.manual_seed(5)
        if watched:
            with AttentionProbe(model):
                output = model(x)
        else:
            output = model(x)
        output.square().sum().backward()
        results.append((output, torch.rand(1), *(p.grad for p in model.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_dropout_is_not_seen():
    model = encoder("softmax", dropout=0.9).train()
    with AttentionProbe(model) as probe:
        model(normal(N, L, E))
    assert all((entry["support"], entry["zeros"]) == (L, 0.0) for entry in probe.table())


def everything(model):
    return [(name, sorted(vars(m)), len(m._forward_hooks)) for name, m in model.named_modules()]


def test_nothing_remains_afterwards():
    model = encoder(lam=0.5)
    before = everything(model)
    with AttentionProbe(model):
        model(normal(N, L, E))
        assert everything(model) != before
    assert everything(model) == before
    with pytest.raises(ValueError, match="last axis"), AttentionProbe(model):
        model(normal(N, L, E + 1))
    assert everything(model) == before


def test_probes_nest_and_leave_in_any_order():
    model, x = encoder(lam=0.5), normal(N, L, E)
    before = everything(model)
    outer, inner = AttentionProbe(model), AttentionProbe(model.layers[0])
    outer.__enter__()
    model(x)
    inner.__enter__()
    model(x)
    outer.__exit__(None, None, None)
    model(x)
    inner.__exit__(None, None, None)
    assert {entry["rows"] for entry in outer.table()} == {2 * N * L}
    assert {entry["rows"] for entry in inner.table()} == {2 * N * L}
    assert {entry["module"] for entry in inner.table()} == {"self_attn"}
    assert everything(model) == before


def test_a_probe_starts_anew_and_is_entered_once_at_a_time():
    model, x = encoder(lam=0.5), normal(N, L, E)
    probe = AttentionProbe(model)
    for _ in range(2):
        with probe:
            model(x)
            with pytest.raises(RuntimeError, match="sparsegen: a probe must be entered once at a time"):
                probe.__enter__()
    assert {entry["rows"] for entry in probe.table()} == {N * L}


def test_copies_made_while_a_probe_watches_are_models_like_others():
    model, x = encoder(lam=0.5), normal(N, L, E)
    with AttentionProbe(model) as probe:
        copies = (copy.deepcopy(model), pickle.loads(pickle.dumps(model)))
        for other in copies:
            other(x)
        assert probe.table() == []
    for other in copies:
        assert everything(other) == everything(model)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_packed_sequences_have_no_rows_of_padding():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, H, 16, batch_first=True), 1).eval()
    replace_attention(model, "softmax")
    with AttentionProbe(model) as probe, torch.no_grad():
        model(normal(N, L, E), src_key_padding_mask=torch.arange(L) >= torch.tensor([5, 3, 1])[:, None])
    assert [entry["rows"] for entry in probe.table()] == [9] * H
    assert [entry["support"] for entry in probe.table()] == [pytest.approx(35 / 9)] * H


def test_a_compiled_model_can_be_watched():
    torch._dynamo.reset()
    module, x = MultiheadAttention(E, H, batch_first=True), normal(N, L, E)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    compiled(x, x, x)
    with AttentionProbe(module) as plain:
        module(x, x, x)
        module(x, x, x)
    with AttentionProbe(module) as probe:
        compiled(x, x, x)
        compiled(x, x, x)
    compiled(x, x, x)
    assert probe.table() == [{k: pytest.approx(v) for k, v in entry.items()} for entry in plain.table()]


def test_other_attention_of_the_library_is_watched_too():
    attention = pytest.importorskip("sparsegen.torch.attention")
    module = attention.DotAttention(E, E, mapping="sparsemax")
    x, mask = normal(N, L, E), torch.arange(L) < torch.tensor([5, 3, 1])[:, None]
    with AttentionProbe(module) as probe:
        _, weights = module(x, x, mask=mask)
    assert probe.table() == seen(weights, mask)
    assert probe.table()[0]["rows"] == N * L


def test_a_model_without_our_attention_is_refused():
    with (
        pytest.raises(ValueError, match="sparsegen: model must be a module with attention of sparsegen in it"),
        AttentionProbe(nn.MultiheadAttention(E, H)),
    ):
        pass
    with pytest.raises(TypeError, match=r"sparsegen: model must be a torch\.nn\.Module, got type"):
        AttentionProbe(sgt.Softmax)
