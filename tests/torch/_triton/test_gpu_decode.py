"""Few queries against many keys: programs that share the keys of a row, beside the CPU's kernel in float64."""

import math

import pytest
import torch

import sparsegen.torch as sgt
from gpu_attention import both, draw, masked, sample
from sparsegen.torch import _triton
from sparsegen.torch._triton import attention_launch
from sparsegen.torch.attention import tiled

INF = math.inf


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Keys that the interpreter can do count as many, in several parts."""
    for name, value in (("LONG", 40), ("SCORED", 32), ("SPLIT", 32), ("SUMMED", 16)):
        monkeypatch.setattr(attention_launch, name, value)


@pytest.fixture
def calls(monkeypatch):
    """How often keys were split."""
    made, plain = [], _triton.split_scores
    monkeypatch.setattr(_triton, "split_scores", lambda *given: made.append(given) or plain(*given))
    return made


CASES = [  # query heads, shared heads, queries, keys, sizes, causal, mask, scale
    (4, 2, 1, 100, 16, 12, False, None, None),
    (1, 1, 3, 70, 20, 16, True, None, 0.05),
    (2, 1, 8, 64, 16, 16, False, "bool", -1.0),
    (2, 2, 1, 100, 16, 16, False, "bias", 0.02),
    (1, 1, 16, 45, 16, 20, False, "keys", 3.0),
]
NAMES = ["sparsegen_lin", "sparsehourglass", "sparsegen_softmax", "entmax15", "hardmax"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs(case, name, gpu, calls):
    heads, shared, lq, lk, d, dv, causal, kind, scale = case
    spread = torch.rand(1, heads, lq, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    key = {"sparsehourglass": "q", "entmax15": None, "hardmax": None}.get(name, "lam")
    controls = {key: 0.9 - spread if key == "lam" else 0.5 + spread} if key else {}
    mask = masked(kind, heads, lq, lk)
    got, want = both(gpu, sample(heads, shared, lq, lk, d, dv), mask, causal, scale, name, controls, wants=False)
    assert len(calls) == 1
    assert (got[0] - want[0]).abs().max() <= 1e-5


def test_rows_longer_than_registers(gpu, calls, monkeypatch):
    monkeypatch.setattr(attention_launch, "SCORED", 512)
    monkeypatch.setattr(attention_launch, "SPLIT", 8192)
    monkeypatch.setattr(attention_launch, "SUMMED", 512)
    q, k, v = sample(1, 1, 1, 20000, 16, 16)
    for name, controls in (("sparsemax", {}), ("sparsegen_softmax", {"lam": torch.tensor(0.2, dtype=torch.float64)})):
        got, want = both(gpu, (q, k, v), None, False, 0.5, name, controls, wants=False)
        assert (got[0] - want[0]).abs().max() <= 1e-5
    assert len(calls) == 2


def test_values_are_read_where_there_is_support(gpu, calls):
    q, k, v = sample(1, 1, 1, 100, 16, 16)
    bias = torch.where(torch.arange(100) // 16 == 3, 0.0, -1e4)
    v[..., 64:, :], v[..., :48, :] = math.nan, math.nan
    assert torch.isfinite(sgt.sparse_attention(*(t.to(gpu) for t in (q, k, v, bias)))).all()
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves(dtype, gpu, calls):
    got, want = both(gpu, sample(2, 1, 1, 100, 16, 16, dtype), None, False, None, "sparsemax", {}, wants=False)
    assert (got[0] - want[0]).abs().max() <= 4 * torch.finfo(dtype).eps * max(1.0, float(want[0].abs().max()))
    assert len(calls) == 1


def test_nan_stays_in_its_row_and_rows_without_keys_are_zero(gpu, calls):
    q, k, v = sample(1, 1, 4, 100, 16, 16)
    q[0, 0, 2, 3] = math.nan
    mask = torch.ones(4, 100, dtype=torch.bool)
    mask[1] = False
    out = sgt.sparse_attention(*(t.to(gpu) for t in (q, k, v, mask))).cpu()[0, 0]
    assert torch.isnan(out).any(-1).tolist() == [False, False, True, False]
    assert (out[1] == 0).all()
    assert len(calls) == 1


def test_gradients_dropout_and_many_rows_take_tiles(gpu, calls, small_tiles):
    q, k, v = (t.to(gpu) for t in sample(1, 1, 1, 64, 16, 16))
    sgt.sparse_attention(q.requires_grad_(), k, v).sum().backward()
    sgt.sparse_attention(q.detach(), k, v, dropout_p=0.5)
    sgt.sparse_attention(draw(1, 1, 17, 16).to(gpu), k, v)
    assert not calls


def test_the_operators_are_well_behaved(gpu):
    q, k, v = (t.to(gpu) for t in sample(2, 1, 1, 50, 16, 16))
    mask = (draw(1, 1, 1, 50) > 0).to(gpu)
    torch.library.opcheck(tiled.scores_op, (q, k, mask, False, 0.25))
    torch.library.opcheck(tiled.values_op, (torch.rand(1, 2, 1, 50, device=gpu), v))


def test_a_model_compiles(gpu, calls):
    q, k, v = (t.to(gpu) for t in sample(2, 1, 1, 50, 16, 16))
    step = torch.compile(sgt.sparse_attention, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(step(q, k, v, enable_gqa=True), sgt.sparse_attention(q, k, v, enable_gqa=True))
    assert len(calls) == 2
