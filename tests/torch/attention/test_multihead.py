"""Multi-head attention beside torch's own: equal with softmax, never bypassed with anything else."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle

import pytest
import torch
from torch import nn

import sparsegen.torch as sgt
from sparsegen._table.maps import MAPS
from sparsegen.torch.attention import MultiheadAttention, multihead, replace_attention

E, H, N, L, S = 8, 4, 3, 5, 6
NESTED = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def some(*shape, seed=1):
    """A mask, True for about a third, and never for the first key."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.35
    mask[..., 0] = False
    return mask


def pair(dtype=torch.float64, mapping="softmax", **options):
    """Torch's attention and ours, with the same weights, biases not zero."""
    theirs = nn.MultiheadAttention(E, H, dtype=dtype, **options)
    ours = MultiheadAttention(E, H, dtype=dtype, mapping=mapping, **options)
    with torch.no_grad():
        for i, p in enumerate(theirs.parameters()):
            p.copy_(normal(*p.shape, seed=100 + i))
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours


def inputs(kdim=E, vdim=E, batched=True, batch_first=False, length=L, dtype=torch.float64):
    """A query, a key and a value in the layout asked for, that want gradients."""
    xs = [normal(n, N, e, seed=i, dtype=dtype) for i, (n, e) in enumerate(((length, E), (S, kdim), (S, vdim)))]
    if not batched:
        xs = [x[:, 0] for x in xs]
    elif batch_first:
        xs = [x.transpose(0, 1).contiguous() for x in xs]
    return [x.requires_grad_() for x in xs]


def run(module, xs, **call):
    """Output, weights, and the gradients of everything by both."""
    xs = [x.detach().clone().requires_grad_() for x in xs]
    output, weights = module(*xs, **call)
    loss = (output * normal(*output.shape, seed=50, dtype=output.dtype)).sum()
    if weights is not None:
        loss = loss + (weights * normal(*weights.shape, seed=51, dtype=weights.dtype)).sum()
    names, parameters = zip(*((name, p) for name, p in module.named_parameters()))
    gradients = torch.autograd.grad(loss, (*xs, *parameters), allow_unused=True)
    return output, weights, dict(zip(("query", "key", "value", *names), gradients))


def assert_same(theirs, ours, xs, **call):
    expected, got = run(theirs, xs, **call), run(ours, xs, **call)
    assert (expected[1] is None) == (got[1] is None)
    assert expected[2].keys() == got[2].keys()
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    assert all(g is None or g.isfinite().all() for g in got[2].values())


OPTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True},
    "kdim and vdim": {"kdim": 6, "vdim": 10},
    "everything": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 6, "vdim": 10, "bias": False},
}


def masks(kind, batch):
    """`attn_mask` and `key_padding_mask` of a kind; `batch` is None for a single sequence."""
    n = 1 if batch is None else batch
    padding = some(n, S, seed=2) if batch else some(S, seed=2)
    numbers = normal(L, S, seed=3).masked_fill(some(L, S), -math.inf)
    return {
        "none": {},
        "bool": {"attn_mask": some(L, S)},
        "bool, a head": {"attn_mask": some(n * H, L, S)},
        "float": {"attn_mask": numbers},
        "float, a head": {"attn_mask": normal(n * H, L, S, seed=4)},
        "padding": {"key_padding_mask": padding},
        "padding by numbers": {"key_padding_mask": normal(*padding.shape, seed=5)},
        "bool and padding": {"attn_mask": some(L, S), "key_padding_mask": padding},
        "both, a head": {"attn_mask": some(n * H, L, S), "key_padding_mask": padding},
        "float and padding by numbers": {
            "attn_mask": numbers,
            "key_padding_mask": torch.zeros(padding.shape, dtype=torch.float64).masked_fill(padding, -math.inf),
        },
    }[kind]


KINDS = (
    "none", "bool", "bool, a head", "float", "float, a head", "padding", "padding by numbers", "bool and padding",
    "both, a head", "float and padding by numbers",
)  # fmt: skip
LAYOUTS = {"alone": (False, False), "batch first": (True, True), "length first": (True, False)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS)
def test_with_softmax_it_is_torchs_module(options, kind, layout):
    batched, batch_first = LAYOUTS[layout]
    chosen = OPTIONS[options]
    theirs, ours = pair(batch_first=batch_first, **chosen)
    xs = inputs(chosen.get("kdim", E), chosen.get("vdim", E), batched, batch_first)
    for need, average in ((True, True), (True, False), (False, True)):
        call = {**masks(kind, N if batched else None), "need_weights": need, "average_attn_weights": average}
        assert_same(theirs, ours, xs, **call)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("same", ["query, key and value", "key and value"])
def test_the_same_tensor_given_twice_is_projected_as_torch_does(same, batch_first):
    theirs, ours = pair(batch_first=batch_first)
    x, other = normal(N, L, E, seed=6), normal(N, L, E, seed=7)
    results = []
    for module in (theirs, ours):
        a, b = x.clone().requires_grad_(), other.clone().requires_grad_()
        output, _ = module(a, a, a) if same.startswith("query") else module(b, a, a)
        results.append((output, torch.autograd.grad(output.square().sum(), (a, *module.parameters()))))
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", ["bool", "float"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_right_causal_hint_changes_nothing(options, form):
    chosen = OPTIONS[options]
    theirs, ours = pair(**chosen)
    xs = inputs(chosen.get("kdim", E), chosen.get("vdim", E), length=S)
    mask = torch.ones(S, S, dtype=torch.bool).triu(1)
    mask = mask if form == "bool" else torch.zeros(S, S, dtype=torch.float64).masked_fill(mask, -math.inf)
    plain = theirs(*xs, attn_mask=mask)[0]
    padding = masks("padding", N)
    for more in ({}, {"need_weights": False}, padding, {"need_weights": False, **padding}):
        if form == "float" and "key_padding_mask" in more:
            continue
        # Torch's own, where it takes the hint, hides bias_k and the zero key, as keys that come later.
        takes = "need_weights" in more and "key_padding_mask" not in more
        if not takes or not {"add_bias_kv", "add_zero_attn"} & chosen.keys():
            assert_same(theirs, ours, xs, attn_mask=mask, is_causal=True, **more)
        if "key_padding_mask" not in more:
            torch.testing.assert_close(ours(*xs, attn_mask=mask, is_causal=True, **more)[0], plain)


def test_a_causal_hint_beside_more_queries_than_keys_leaves_the_mask_in_charge():
    _, ours = pair(add_bias_kv=True)
    xs, mask = inputs(length=S + 1), some(S + 1, S)
    hinted, _ = ours(*xs, attn_mask=mask, is_causal=True, need_weights=False)
    torch.testing.assert_close(hinted, ours(*xs, attn_mask=mask)[0])


@pytest.mark.parametrize("options", OPTIONS)
def test_the_same_seed_gives_torchs_parameters(options):
    torch.manual_seed(7)
    theirs = nn.MultiheadAttention(E, H, **OPTIONS[options])
    after = torch.rand(1)
    torch.manual_seed(7)
    ours = MultiheadAttention(E, H, mapping="sparsegen_lin", lam=[0.1, 0.2, 0.3, 0.4], **OPTIONS[options])
    assert torch.equal(torch.rand(1), after)
    assert list(ours.state_dict()) == [*theirs.state_dict(), "mapping.control"]
    for name, p in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], p), name


FIXED = {
    "a name": {},
    "a number": {"mapping": "sparsehourglass", "q": 0.5},
    "a number a head": {"mapping": "softmax", "temperature": [0.5, 1.0, 2.0, 4.0]},
    "a module": {"mapping": sgt.Sparsegen(0.5)},
    "a module a head": {"mapping": sgt.Softmax([[0.5], [1.0], [2.0], [4.0]])},
}


@pytest.mark.parametrize("kind", FIXED)
def test_torchs_state_loads_strictly_beside_every_fixed_control(kind):
    theirs, ours = nn.MultiheadAttention(E, H), MultiheadAttention(E, H, **FIXED[kind])
    before = copy.deepcopy(ours)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    outer = nn.ModuleDict({"a": nn.ModuleDict({"b": copy.deepcopy(before)})})
    outer.load_state_dict({f"a.b.{k}": v for k, v in theirs.state_dict().items()}, strict=True)
    for loaded in (ours, outer["a"]["b"]):
        assert torch.equal(loaded.in_proj_weight, theirs.in_proj_weight)
        before.load_state_dict(theirs.state_dict())
        x = normal(L, E, dtype=torch.float32)
        assert torch.equal(loaded(x, x, x)[0], before(x, x, x)[0])


def test_torchs_state_does_not_load_strictly_beside_a_learnable_control():
    ours = MultiheadAttention(E, H, mapping="softmax", learnable=True)
    with pytest.raises(RuntimeError, match=r"mapping\.theta"):
        ours.load_state_dict(nn.MultiheadAttention(E, H).state_dict(), strict=True)


def test_our_state_loads_into_torchs_module_but_for_the_control():
    nn.MultiheadAttention(E, H).load_state_dict(MultiheadAttention(E, H).state_dict(), strict=True)
    for lam in (0.5, [0.1, 0.2, 0.3, 0.4]):
        state = MultiheadAttention(E, H, mapping="sparsegen_exp", lam=lam).state_dict()
        found = nn.MultiheadAttention(E, H).load_state_dict(state, strict=False)
        assert (found.missing_keys, found.unexpected_keys) == ([], ["mapping.control"])


FORMS = {
    "a number": {"lam": 0.75},
    "no number": {},
    "a number a head": {"lam": [0.5, 0.25, 0.0, -1.0]},
    "learnable": {"lam": [0.75, 0.25, 0.0, -1.0], "learnable": True},
    "learnable, all equal": {"lam": 0.25, "learnable": True},
}


@pytest.mark.parametrize("kept", FORMS)
@pytest.mark.parametrize("saved", FORMS)
def test_a_control_is_saved_and_loads_into_every_form(saved, kept):
    source = MultiheadAttention(E, H, mapping="sparsegen_lin", **FORMS[saved])
    other = MultiheadAttention(E, H, mapping="sparsegen_lin", **FORMS[kept])
    outer = nn.ModuleDict({"a": other})
    outer.load_state_dict({f"a.{name}": t for name, t in source.state_dict().items()}, strict=True)
    x = normal(L, E, dtype=torch.float32)
    torch.testing.assert_close(other(x, x, x), source(x, x, x), rtol=1e-5, atol=1e-5)
    again = MultiheadAttention(E, H, mapping="sparsegen_lin", **FORMS[saved])
    again.load_state_dict(other.state_dict(), strict=True)
    torch.testing.assert_close(again(x, x, x), source(x, x, x), rtol=1e-5, atol=1e-5)


def test_a_control_that_a_scheduler_moved_is_saved():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 16, batch_first=True)
    replace_attention(layer, "sparsegen_lin")
    scheduler = sgt.DensityScheduler(layer, 2)
    for _ in range(3):
        layer(torch.randn(4, 9, E))
        scheduler.step()
    scheduler.remove()
    moved = layer.self_attn.controls["lam"]
    assert moved != 0
    fresh = nn.TransformerEncoderLayer(E, H, 16, batch_first=True)
    replace_attention(fresh, "sparsegen_lin")
    fresh.load_state_dict(layer.state_dict(), strict=True)
    assert fresh.self_attn.controls["lam"] == moved
    x = torch.randn(4, 9, E)
    assert torch.equal(fresh.eval()(x), layer.eval()(x))


@pytest.mark.parametrize("kind", FORMS)
def test_it_is_built_on_the_meta_device(kind):
    given = {"mapping": "sparsegen_lin", **FORMS[kind]}
    real = MultiheadAttention(E, H, **given)
    with torch.device("meta"):
        meta = MultiheadAttention(E, H, **given)
    assert all(t.is_meta for t in (*meta.parameters(), *meta.buffers()))
    assert repr(meta)
    meta.to_empty(device="cpu").load_state_dict(real.state_dict(), strict=True)
    x = normal(L, E, dtype=torch.float32)
    assert torch.equal(meta(x, x, x)[0], real(x, x, x)[0])


@pytest.mark.parametrize("kind", [kind for kind in FORMS if "learnable" not in kind])
def test_attention_is_replaced_on_the_meta_device(kind):
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(E, H, 16, batch_first=True).eval()
    state = theirs.state_dict()
    with torch.device("meta"):
        meta = nn.TransformerEncoderLayer(E, H, 16, batch_first=True).eval()
        assert replace_attention(meta, "sparsegen_lin", **FORMS[kind]) == 1
    meta.to_empty(device="cpu").load_state_dict(state, strict=True)
    replace_attention(theirs, "sparsegen_lin", **FORMS[kind])
    x = normal(N, L, E, dtype=torch.float32)
    assert torch.equal(meta(x), theirs(x))


def test_fixed_controls_survive_the_meta_device():
    given = {"mapping": "sparsegen_lin", "lam": [0.5, 0.25, 0.0, -1.0]}
    real, meta = MultiheadAttention(E, H, **given), MultiheadAttention(E, H, device="meta", **given)
    assert meta.mapping.control.is_meta
    meta.to_empty(device="cpu")
    meta.mapping.control.fill_(math.nan)
    meta.load_state_dict(real.state_dict())
    x = normal(L, E, dtype=torch.float32)
    assert torch.equal(meta(x, x, x)[0], real(x, x, x)[0])


def test_a_control_a_head_next_to_its_limit_survives_half_precision():
    ours = MultiheadAttention(E, H, mapping="sparsegen_lin", lam=[0.99999] * H).half()
    x = normal(L, E, dtype=torch.float16)
    assert ours(x, x, x)[0].isfinite().all()


# Every map and every way to give a control


def reference(module, x, mapping, hidden=None):
    """Attention written out, for one sequence; mapping(scores of a head, head, mask)."""
    w, b = module.in_proj_weight, module.in_proj_bias
    q, k, v = (x @ w.T + b).reshape(len(x), 3, H, E // H).permute(1, 2, 0, 3)
    scores = q @ k.transpose(1, 2) / math.sqrt(E // H)
    mask = None if hidden is None else ~hidden
    weights = torch.stack([mapping(s, head, mask) for head, s in enumerate(scores)])
    joined = (weights @ v).transpose(0, 1).reshape(len(x), E)
    return joined @ module.out_proj.weight.T + module.out_proj.bias, weights


GIVEN = {
    "lam": [0.5, 0.25, 0.0, -1.0],
    "q": [0.5, 1.0, 2.0, 4.0],
    "temperature": [0.5, 1.0, 2.0, 4.0],
    "alpha": [1.25, 1.5, 1.75, 2.0][:H],
}
# The others are not defined for scores of both signs, or step.
SMOOTH = [name for name, m in MAPS.items() if (not m.domain or name == "spherical_softmax") and name != "hardmax"]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", SMOOTH)
def test_every_map_with_one_control_for_all_or_one_for_each_head(name, masked):
    x, hidden = normal(L, E), some(L, L) if masked else None
    function = getattr(sgt, name)
    for values in ([GIVEN[c] for c in MAPS[name].controls] or [[None] * H])[0], None:
        if values is None and not MAPS[name].controls:
            continue
        control = MAPS[name].controls[0] if MAPS[name].controls else None
        one = 1.25 if control == "alpha" else 0.25
        each = [one] * H if values is None else values
        given = {} if control is None else {control: one if values is None else values}
        ours = MultiheadAttention(E, H, dtype=torch.float64, mapping=name, **given)

        def own(s, head, mask, each=each, control=control):
            return function(s, mask=mask, **({} if control is None else {control: each[head]}))

        output, weights = ours(x, x, x, attn_mask=hidden, average_attn_weights=False)
        # A control for each head is kept in the default dtype.
        torch.testing.assert_close((output, weights), reference(ours, x, own, hidden), rtol=1e-6, atol=1e-6)
        if masked:
            assert (weights[:, hidden] == 0).all()


@pytest.mark.parametrize("form", ["tuple", "tensor", "column"])
def test_a_control_for_each_head_is_a_sequence_or_a_tensor(form):
    lam = GIVEN["lam"]
    forms = {"tuple": tuple(lam), "tensor": torch.tensor(lam), "column": torch.tensor(lam)[:, None]}
    torch.manual_seed(0)
    ours = MultiheadAttention(E, H, mapping="sparsegen_lin", lam=forms[form])
    torch.manual_seed(0)
    listed = MultiheadAttention(E, H, mapping="sparsegen_lin", lam=lam)
    x = normal(L, E, dtype=torch.float32)
    assert torch.equal(ours(x, x, x)[1], listed(x, x, x)[1])
    assert not list(ours.mapping.parameters())


def test_a_tensor_of_one_number_is_a_number():
    ours = MultiheadAttention(E, H, mapping="sparsegen_lin", lam=torch.tensor(0.5))
    assert ours.mapping == "sparsegen_lin"
    assert ours.controls == {"lam": 0.5}


def test_sparsemax_is_the_default_and_gives_exact_zeros():
    _, ours = pair(mapping="sparsemax")
    x = normal(L, N, E)
    assert MultiheadAttention(E, H).mapping == "sparsemax"
    weights = ours(x, x, x, average_attn_weights=False)[1]
    assert (weights == 0).sum() > weights.numel() / 4
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@pytest.mark.parametrize("name", ["sparsegen_lin", "sparsegen_exp", "sparsehourglass", "softmax"])
def test_a_learnable_control_is_one_parameter_a_head_with_a_gradient(name):
    control = MAPS[name].controls[0]
    start = {"q": 0.5} if control == "q" else {}
    _, ours = pair(mapping="sparsemax")
    learned = MultiheadAttention(E, H, mapping=name, learnable=True, dtype=torch.float64, **start)
    assert learned.mapping.theta.shape == (H, 1)
    assert learned.mapping.theta.dtype == torch.float64
    learned.load_state_dict({**ours.state_dict(), "mapping.theta": learned.mapping.theta})
    x = normal(L, N, E) / 4  # scores so small that no row of any head has a single key
    learned(x, x, x)[0].square().sum().backward()
    assert (learned.mapping.theta.grad != 0).all()
    neutral = {"lam": 0.0, "q": 0.5, "temperature": 1.0}[control]
    fixed = MultiheadAttention(E, H, mapping=name, dtype=torch.float64, **{control: neutral})
    fixed.load_state_dict(ours.state_dict())
    torch.testing.assert_close(learned(x, x, x), fixed(x, x, x), rtol=1e-6, atol=1e-6)


def test_a_mapping_module_is_used_as_it_is():
    mapping = sgt.Sparsegen(0.5, torch.tanh, learnable=True, shape=(H, 1))
    ours = MultiheadAttention(E, H, mapping=mapping, dtype=torch.float64)
    assert ours.mapping is mapping
    x = normal(L, E)
    expected = reference(ours, x, lambda s, _h, _m: sgt.sparsegen(s, lam=0.5, transform=torch.tanh))
    torch.testing.assert_close(ours(x, x, x, average_attn_weights=False), expected, rtol=1e-6, atol=1e-6)


# Rows with nothing to attend to, dropout, copies


@pytest.mark.parametrize("kind", ["bool", "float", "padding"])
@pytest.mark.parametrize("mapping", ["softmax", "sparsemax"])
def test_a_query_that_may_attend_to_nothing_gets_zeros_and_finite_gradients(mapping, kind):
    _, ours = pair(mapping=mapping)
    xs = inputs()
    nothing = torch.zeros(L, S, dtype=torch.bool)
    nothing[2] = True
    call = {"attn_mask": nothing}
    if kind == "float":
        call = {"attn_mask": torch.zeros(L, S, dtype=torch.float64).masked_fill(nothing, -math.inf)}
    elif kind == "padding":
        call = {"key_padding_mask": torch.tensor([False, True, False])[:, None].expand(N, S)}
    empty = (slice(None), 1) if kind == "padding" else (2,)
    for need in (True, False):
        output, weights, gradients = run(ours, xs, need_weights=need, **call)
        torch.testing.assert_close(output[empty], ours.out_proj.bias.expand_as(output[empty]))
        assert output.isfinite().all()
        assert all(g.isfinite().all() for g in gradients.values())
        if need:
            rows = weights[1] if kind == "padding" else weights[:, 2]
            assert (rows == 0).all()


def test_dropout_is_for_training_only():
    ours = MultiheadAttention(E, H, dropout=0.5)
    ours.load_state_dict(pair(torch.float32, mapping="sparsemax")[1].state_dict())
    x = normal(L, N, E, dtype=torch.float32)
    assert not torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])
    still = ours.eval()(x, x, x)[0]
    assert torch.equal(still, ours(x, x, x)[0])
    ours.dropout = 0.0
    assert torch.equal(still, ours.train()(x, x, x)[0])


KEPT = {
    **FIXED,
    "learnable": {"mapping": "sparsegen_lin", "lam": 0.25, "learnable": True},
    "bias_kv and sizes": {"add_bias_kv": True, "kdim": E, "vdim": 10, "mapping": "hardmax"},
}


@pytest.mark.parametrize("kind", KEPT)
def test_copies_pickles_and_states_attend_the_same(kind):
    ours = MultiheadAttention(E, H, **KEPT[kind])
    x = normal(L, E, dtype=torch.float32)
    value = normal(L, ours.vdim, dtype=torch.float32)
    whole, state = io.BytesIO(), io.BytesIO()
    torch.save(ours, whole)
    torch.save(ours.state_dict(), state)
    whole.seek(0), state.seek(0)
    fresh = MultiheadAttention(E, H, **KEPT[kind])
    if kind == "learnable":
        fresh.mapping.theta.data.fill_(5.0)
    fresh.load_state_dict(torch.load(state, weights_only=True), strict=True)
    others = (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), torch.load(whole, weights_only=False), fresh)
    for other in others:
        assert repr(other) == repr(ours)
        assert torch.equal(other(x, x, value)[0], ours(x, x, value)[0])
        assert other.out_proj.weight.data_ptr() != ours.out_proj.weight.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_results_have_the_dtype_of_the_inputs(dtype):
    _, ours = pair(mapping="sparsemax")
    x, padding = normal(L, N, E), some(N, L)
    expected = ours(x, x, x, padding)
    output, weights = ours.to(dtype)(x.to(dtype), x.to(dtype), x.to(dtype), padding)
    assert output.dtype == weights.dtype == dtype
    # bfloat16 rounds the scores by up to 1/16 here, which the map does not amplify.
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 0.5}[dtype]
    assert (output.double() - expected[0]).abs().max() < tolerance * expected[0].abs().max()


def test_a_mask_of_another_precision_is_taken_in_that_of_the_inputs():
    _, ours = pair(torch.float32, mapping="sparsemax")
    x, mask = normal(L, N, E, dtype=torch.float32), normal(L, L)
    output, weights = ours(x, x, x, attn_mask=mask)
    assert output.dtype == weights.dtype == torch.float32
    torch.testing.assert_close(ours(x, x, x, attn_mask=mask.float()), (output, weights))


def test_autocast_attends_in_the_lower_precision(monkeypatch):
    seen, attend = [], multihead.sparse_attention

    def spy(q, k, v, *, attn_mask, **rest):
        seen.extend(x.dtype for x in (q, k, v, attn_mask))
        return attend(q, k, v, attn_mask=attn_mask, **rest)

    monkeypatch.setattr(multihead, "sparse_attention", spy)
    ours = MultiheadAttention(E, H, add_bias_kv=True, add_zero_attn=True)
    x = normal(L, N, E, dtype=torch.float32)
    mask = torch.zeros(L, L).masked_fill(some(L, L), -math.inf)
    with torch.autocast("cpu", torch.bfloat16):
        output, weights = ours(x, x, x, attn_mask=mask)
    assert output.dtype == torch.bfloat16
    assert seen == [torch.bfloat16] * 4
    assert (weights[..., :L][:, some(L, L)] == 0).all()


@pytest.mark.parametrize("learnable", [pytest.param(False, marks=pytest.mark.slow), True])
def test_it_compiles_into_one_graph(learnable):
    torch._dynamo.reset()
    ours = MultiheadAttention(E, H, mapping="sparsegen_lin", learnable=learnable, dtype=torch.float64)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    x, padding = normal(L, N, E), some(N, L)
    for call in ({"key_padding_mask": padding}, {"need_weights": False}, {"attn_mask": normal(L, L)}):
        torch.testing.assert_close(compiled(x, x, x, **call), ours(x, x, x, **call))
    results = []
    for module in (ours, compiled):
        ours.zero_grad()
        module(x, x, x, padding)[0].square().sum().backward()
        results.append([p.grad.clone() for p in ours.parameters()])
    torch.testing.assert_close(*results)


# Inside torch's transformers


def layer(kind=nn.TransformerEncoderLayer, **options):
    torch.manual_seed(3)
    options = {"dropout": 0.0, "batch_first": True, "dtype": torch.float64, **options}
    return kind(E, H, 16, **options)


def by_hand(layer, attention, x, call):
    """An encoder layer after its equations, so that no fast path can be taken."""
    attended = attention(layer.norm1(x), layer.norm1(x), layer.norm1(x), need_weights=False, **call)[0]
    if layer.norm_first:
        x = x + attended
        return x + layer.linear2(layer.activation(layer.linear1(layer.norm2(x))))
    x = layer.norm1(x + attention(x, x, x, need_weights=False, **call)[0])
    return layer.norm2(x + layer.linear2(layer.activation(layer.linear1(x))))


MODES = ("train", "eval", "eval, no_grad", "inference_mode")


def in_mode(mode, module, *args, **kwargs):
    module.train(mode == "train")
    context = {"eval, no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.get(mode, torch.enable_grad)
    with context():
        return module(*args, **kwargs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("mapping", ["softmax", "sparsemax"])
def test_an_encoder_layer_calls_it_in_every_mode(mapping, norm_first, mode):
    x, padding, mask = normal(N, L, E), some(N, L), some(L, L)
    own = layer(norm_first=norm_first)
    plain = copy.deepcopy(own)
    own.self_attn = MultiheadAttention.from_torch(own.self_attn, mapping=mapping)
    for attn_mask, pad in itertools.product((None, mask), (None, padding)):
        got = in_mode(mode, own, x, src_mask=attn_mask, src_key_padding_mask=pad)
        expected = by_hand(own, own.self_attn, x, {"attn_mask": attn_mask, "key_padding_mask": pad})
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
        softmax = in_mode(mode, plain, x, src_mask=attn_mask, src_key_padding_mask=pad)
        assert torch.allclose(got, softmax, rtol=1e-6, atol=1e-6) == (mapping == "softmax")


def test_the_fast_path_would_have_been_taken_but_for_our_attribute(monkeypatch):
    """The test above can fail: with the attribute torch looks at set, our module is bypassed."""
    own = layer().eval()
    own.self_attn = MultiheadAttention.from_torch(own.self_attn)
    plain, x = layer().eval(), normal(N, L, E)
    with torch.no_grad():
        honest, softmax = own(x), plain(x)
        monkeypatch.setattr(MultiheadAttention, "_qkv_same_embed_dim", True)
        monkeypatch.setattr(MultiheadAttention, "merge_masks", lambda self, *given: (None, None), raising=False)
        torch.testing.assert_close(own(x), softmax)
        assert not torch.allclose(honest, softmax, atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_a_decoder_layer_calls_both_in_every_mode(mode):
    own, plain = layer(nn.TransformerDecoderLayer), layer(nn.TransformerDecoderLayer)
    x, memory = normal(N, L, E), normal(N, S, E, seed=1)
    call = {
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64), "tgt_is_causal": True,
        "memory_key_padding_mask": some(N, S), "memory_mask": some(L, S, seed=5),
    }  # fmt: skip
    expected = in_mode(mode, plain, x, memory, **call)
    assert replace_attention(own, "softmax") == 2
    torch.testing.assert_close(in_mode(mode, own, x, memory, **call), expected, rtol=1e-6, atol=1e-6)
    own = layer(nn.TransformerDecoderLayer)
    assert replace_attention(own) == 2
    assert not torch.allclose(in_mode(mode, own, x, memory, **call), expected, atol=1e-3)


def ragged(*lengths):
    return torch.arange(L) >= torch.tensor(lengths)[:, None]


@NESTED
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mapping", ["softmax", "sparsemax"])
def test_an_encoder_that_packs_its_batch_calls_it_and_leaves_padding_zero(mapping, mode):
    """Torch decides on packing when the encoder is made, before our module is put in."""
    encoder = nn.TransformerEncoder(layer(), 2)
    assert encoder.use_nested_tensor
    plain = copy.deepcopy(encoder)
    assert replace_attention(encoder, mapping) == 2
    x, padding = normal(N, L, E), ragged(5, 3, 1)
    got = in_mode(mode, encoder, x, src_key_padding_mask=padding)
    expected = x
    for own in encoder.layers:
        expected = by_hand(own, own.self_attn, expected, {"key_padding_mask": padding})
    torch.testing.assert_close(got[~padding], expected[~padding], rtol=1e-6, atol=1e-6)
    softmax = in_mode(mode, plain, x, src_key_padding_mask=padding)
    same = torch.allclose(got[~padding], softmax[~padding], rtol=1e-6, atol=1e-6)
    assert same == (mapping == "softmax")
    assert got[padding].any() == softmax[padding].any()  # packed or not, as torch's


def test_an_encoder_made_of_our_layer_does_not_pack():
    own = layer()
    replace_attention(own, "sparsegen_lin", lam=0.5)
    with pytest.warns(UserWarning, match="_qkv_same_embed_dim was not True"):
        encoder = nn.TransformerEncoder(own, 2)
    x, padding = normal(N, L, E), ragged(5, 3, 1)
    got = in_mode("eval, no_grad", encoder, x, src_key_padding_mask=padding)
    expected = in_mode("train", encoder, x, src_key_padding_mask=padding)
    torch.testing.assert_close(got, expected)


@NESTED
def test_packed_sequences_attend_as_each_alone():
    _, ours = pair(mapping="sparsemax", batch_first=True)
    parts = [normal(n, E, seed=n) for n in (5, 2, 3)]
    leaves = [p.clone().requires_grad_() for p in parts]
    packed = torch.nested.as_nested_tensor(leaves)
    output, weights = ours(packed, packed, packed, average_attn_weights=False)
    assert output.is_nested
    for one, got, w, leaf in zip(parts, output.unbind(), weights, leaves):
        alone = one.clone().requires_grad_()
        expected = ours(alone, alone, alone, average_attn_weights=False)
        torch.testing.assert_close((got, w[:, : len(one), : len(one)]), expected)
        assert w.sum() == w[:, : len(one), : len(one)].sum()
        (own,) = torch.autograd.grad(expected[0].square().sum(), alone)
        torch.testing.assert_close(torch.autograd.grad(got.square().sum(), leaf, retain_graph=True)[0], own)
    assert ours(packed, packed, packed, need_weights=False)[1] is None


@NESTED
@pytest.mark.parametrize("lengths", [(), (0,), (0, 0)])
def test_packed_sequences_without_entries_attend_to_nothing(lengths):
    _, ours = pair(mapping="sparsemax", batch_first=True)
    packed = torch.nested.nested_tensor([torch.zeros(n, E) for n in lengths], dtype=torch.float64)
    output, weights = ours(packed, packed, packed, average_attn_weights=False)
    assert output.is_nested
    assert output.dtype == torch.float64
    assert [tuple(part.shape) for part in output.unbind()] == [(n, E) for n in lengths]
    assert weights.shape == (len(lengths), H, 0, 0)
    assert ours(packed, packed, packed, need_weights=False)[1] is None


# replace_attention


def test_replacing_keeps_parameters_modes_and_random_numbers():
    model = nn.Transformer(E, H, 1, 1, 16, batch_first=True).eval()
    before = dict(model.named_parameters())
    state = torch.get_rng_state()
    assert replace_attention(model, "sparsegen_lin", lam=[0.5, 0.25, 0.0, -1.0]) == 3
    assert torch.equal(torch.get_rng_state(), state)
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
    assert not any(m.training for m in model.modules())
    assert not any(isinstance(m, nn.MultiheadAttention) for m in model.modules())
    with pytest.warns(UserWarning, match="has no torch.nn.MultiheadAttention in it, so nothing is replaced"):
        assert replace_attention(model) == 0


def test_an_attention_in_two_places_stays_one():
    shared = nn.MultiheadAttention(E, H)
    model = nn.ModuleList([shared, nn.ModuleList([shared]), nn.MultiheadAttention(E, H)])
    assert replace_attention(model) == 2
    assert model[0] is model[1][0]
    assert model[0] is not model[2]


def test_each_attention_gets_its_own_learnable_control():
    for given in ({"mapping": "softmax", "learnable": True}, {"mapping": sgt.Softmax(learnable=True)}):
        model = nn.TransformerDecoderLayer(E, H)
        replace_attention(model, **given)
        assert model.self_attn.mapping.theta is not model.multihead_attn.mapping.theta


def test_a_replacement_that_fails_replaces_nothing():
    model = nn.ModuleList([nn.MultiheadAttention(E, 4), nn.MultiheadAttention(E, 2)])
    with pytest.raises(ValueError, match="each of the 2 heads"):
        replace_attention(model, "sparsegen_lin", lam=[0.1, 0.2, 0.3, 0.4])
    assert all(type(m) is nn.MultiheadAttention for m in model)


def test_a_subclass_of_torchs_attention_is_left_alone():
    class Own(nn.MultiheadAttention):
        pass

    with pytest.warns(UserWarning, match="ModuleList has no torch.nn.MultiheadAttention"):
        assert replace_attention(nn.ModuleList([Own(E, H)])) == 0


@pytest.mark.parametrize("options", OPTIONS)
def test_from_torch_takes_every_option(options):
    theirs, _ = pair(batch_first=True, dropout=0.25, **OPTIONS[options])
    ours = MultiheadAttention.from_torch(theirs.eval(), mapping="softmax")
    assert (ours.dropout, ours.batch_first, ours.training) == (0.25, True, False)
    xs = inputs(theirs.kdim, theirs.vdim, batch_first=True)
    assert_same(theirs, ours, xs)


def test_what_it_shows():
    assert repr(MultiheadAttention(8, 2, mapping="softmax", temperature=0.5)).splitlines()[1:3] == [
        "  8, num_heads=2, batch_first=False, mapping='softmax', temperature=0.5",
        "  (out_proj): Linear(in_features=8, out_features=8, bias=True)",
    ]
    learned = repr(MultiheadAttention(8, 2, mapping="softmax", learnable=True))
    assert "(mapping): Softmax(temperature=tensor(2, 1), learnable=True, dim=-1)" in learned


# Errors

CONSTRUCTION = {
    "embed_dim must be divisible by num_heads 3, got 8.": {"num_heads": 3},
    "num_heads must be positive, got 0.": {"num_heads": 0},
    "embed_dim must be positive, got -8.": {"embed_dim": -8},
    "mapping must be .* 'sparsemax'.*, got 'relu'.": {"mapping": "relu"},
    "mapping must be a name of a map or a mapping module of sparsegen, got ReLU.": {"mapping": nn.ReLU()},
    "lam must be .* 'sparsemax'.*, got 0.5.": {"lam": 0.5},
    "lam must be a number below 1, got 1.0.": {"mapping": "sparsegen_lin", "lam": [0.5, 1.0]},
    "temperature must be a positive number, got 0.0.": {"mapping": "softmax", "temperature": 0},
    "q must be .* 'sparsecone'.*, got None.": {"mapping": "sparsecone"},
    "q must be one number, or one for each of the 2 heads, got shape .3,..": {"mapping": "sparsecone", "q": [1, 2, 3]},
    "learnable must be False .* 'hardmax', which has no control, got True.": {"mapping": "hardmax", "learnable": True},
    "lam must be left out where mapping is a module.*, got 0.5.": {"mapping": sgt.Sparsegen(), "lam": 0.5},
    "learnable must be False where mapping is a module.*, got True.": {"mapping": sgt.Sparsegen(), "learnable": True},
    "the dim of mapping must be -1, the keys, got 1.": {"mapping": sgt.Sparsemax(dim=1)},
}
CALLS = {
    "query must be of two axes, or three with a batch, got shape (8,).": (ValueError, [(8,), (8,), (8,)], {}),
    "key must be of 3 axes, as query, got shape (6, 8).": (ValueError, [(5, 3, 8), (6, 8), (6, 8)], {}),
    "the last axis of value must be of size 8, got 7.": (ValueError, [(5, 8), (6, 8), (6, 7)], {}),
    "the batch of key must be of size 3, as query's, got 2.": (ValueError, [(5, 3, 8), (6, 2, 8), (6, 2, 8)], {}),
    "value must be as long as key, 6, got 4.": (ValueError, [(5, 8), (6, 8), (4, 8)], {}),
    "attn_mask must be given with is_causal": (ValueError, [(5, 8), (5, 8), (5, 8)], {"is_causal": True}),
    "key_padding_mask must be of shape (3, 6), got shape (6, 3).": (
        ValueError, [(5, 3, 8), (6, 3, 8), (6, 3, 8)], {"key_padding_mask": torch.zeros(6, 3)}),
    "attn_mask must be of shape (5, 6) or (12, 5, 6), got shape (4, 5, 6).": (
        ValueError, [(5, 3, 8), (6, 3, 8), (6, 3, 8)], {"attn_mask": torch.zeros(4, 5, 6)}),
    "attn_mask must be boolean (True = hidden) or floating point, got dtype torch.int64.": (
        TypeError, [(5, 8), (6, 8), (6, 8)], {"attn_mask": torch.zeros(5, 6, dtype=torch.int64)}),
}  # fmt: skip


@pytest.mark.parametrize("text", CONSTRUCTION)
def test_arguments_are_refused(text):
    given = {"embed_dim": 8, "num_heads": 2, **CONSTRUCTION[text]}
    with pytest.raises((TypeError, ValueError), match=f"^sparsegen: {text}$"):
        MultiheadAttention(**given)


@pytest.mark.parametrize("text", CALLS)
def test_inputs_are_refused(text):
    error, shapes, call = CALLS[text]
    with pytest.raises(error) as caught:
        MultiheadAttention(E, H)(*(torch.zeros(shape) for shape in shapes), **call)
    assert f"sparsegen: {text}" in str(caught.value)


@NESTED
def test_packed_sequences_are_refused_beside_masks_or_other_keys():
    ours = MultiheadAttention(E, H, batch_first=True)
    x = torch.nested.nested_tensor([torch.zeros(2, E), torch.zeros(3, E)])
    jagged = torch.nested.nested_tensor([torch.zeros(2, E), torch.zeros(3, E)], layout=torch.jagged)
    for call in ((x, x, x, torch.zeros(2, 3)), (x, x.clone(), x), (torch.zeros(2, 3, E), x, x), (jagged,) * 3):
        with pytest.raises(ValueError, match=r"sparsegen: .* nested query"):
            ours(*call)


def test_only_a_module_around_attention_has_some_to_replace():
    with pytest.raises(ValueError, match="sparsegen: model must be a module with attention inside it"):
        replace_attention(nn.MultiheadAttention(E, H))
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got list"):
        replace_attention([nn.MultiheadAttention(E, H)])


def test_a_control_that_wants_gradients_is_not_frozen_in_silence():
    text = "sparsegen: lam must be without gradients; with learnable=True the module trains a control of its own"
    with pytest.raises(ValueError, match=text):
        sgt.MultiheadAttention(8, 2, mapping="sparsegen_lin", lam=torch.nn.Parameter(torch.zeros(2, 1)))
