"""Every family of models against its own eager code: with softmax, and with a dense sparsemax in its place."""

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from families import DEAF, DECODERS, MODELS, inputs, logits, made
from sparsegen.transformers import attention_modules, sparsify, unsparsify

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:torch"
)


def dense_sparsemax(z, dim=-1, dtype=None, **_):
    """By sorting, in float64; rows that see nothing are zeros. Transformers hides by the lowest number."""
    z = z.double()
    z = z.masked_fill(z < -1e30, -torch.inf)
    top = z.sort(-1, descending=True).values
    sums = top.clamp(min=-1e9).cumsum(-1) - 1
    k = (top * torch.arange(1, z.shape[-1] + 1) > sums).sum(-1, keepdim=True)
    tau = sums.gather(-1, (k - 1).clamp(min=0)) / k.clamp(min=1)
    return torch.where(top[..., :1] > -1e30, (z - tau).clamp(min=0), 0.0).float()


def differ(a, b, real):
    if real is not None and a.shape[:2] == real.shape:
        a, b = a[real], b[real]
    return ((a - b).abs().max() / b.abs().max()).item()


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_family_with_the_map_in_softmaxs_place(name, monkeypatch):
    model = made(name)
    paddings = (None, "left") if name in DECODERS else (None, "right")
    eager, sparse = [], []
    for padding in paddings:
        given, real = inputs(name, padding)
        eager.append(logits(model, given))
        with monkeypatch.context() as patch:
            patch.setattr(nn.functional, "softmax", dense_sparsemax)
            patch.setattr(torch, "softmax", dense_sparsemax)
            sparse.append(logits(model, given))
    assert differ(eager[0], sparse[0], None) > 1e-3  # else the test could not fail
    for mapping, want in (("softmax", eager), ("sparsemax", sparse)):
        names = sparsify(model, mapping)
        assert names == list(attention_modules(model)[0])
        for padding, expected in zip(paddings, want):
            given, real = inputs(name, padding)
            if name == "clip" and padding:
                continue  # its text pools where nothing is seen: uniform there, zeros here
            assert differ(logits(model, given), expected, real) < 2e-5, (mapping, padding)
    unsparsify(model)
    assert torch.equal(logits(model, inputs(name)[0]), eager[0])


@pytest.mark.parametrize("name", DEAF)
def test_modules_with_attention_of_their_own_are_named(name):
    model = made(name)
    found, deaf = attention_modules(model)
    assert deaf
    assert not found
    with pytest.raises(ValueError, match="sparsegen: model must be one whose attention can be switched") as error:
        sparsify(model, "sparsemax")
    assert deaf[0] in str(error.value)


@pytest.mark.parametrize("name", DECODERS)
def test_generation_is_the_same_with_and_without_a_cache(name):
    model = made(name)
    sparsify(model, "sparsegen_softmax", lam=0.2)
    given, _ = inputs(name, "left")
    how = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        cached, plain = (model.generate(**given, **how, use_cache=cache) for cache in (True, False))
        assert torch.equal(cached, plain)
        if name == "llama":
            beams = [model.generate(**given, **how, use_cache=cache, num_beams=3) for cache in (True, False)]
            assert torch.equal(*beams)
            static = model.generate(**given, **how, cache_implementation="static", disable_compile=True)
            assert torch.equal(static, plain)
