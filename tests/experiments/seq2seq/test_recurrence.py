"""The pieces of a recurrent step, against torch's own and against autograd's sums."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsegen.experiments.seq2seq import word_loss as losses
from sparsegen.experiments.seq2seq.recurrence import SharedLinear, dropped, linear, lstm_cell, tanh
from sparsegen.experiments.seq2seq.word_loss import word_loss

BATCH, STEPS, INPUTS, OUTPUTS = 3, 4, 5, 6


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def unrolled(weight, offsets, shared):
    """A recurrence by a shared linear map, or by one that autograd adds up step by step."""
    maps = SharedLinear(weight, offsets, weight.dtype) if shared else None
    x, found = torch.full((BATCH, INPUTS), 0.5, dtype=weight.dtype), []
    for t in range(STEPS):
        y = maps(x) if maps else x @ weight.t() + offsets[t]
        x = torch.sin(y[:, :INPUTS])
        found.append(y)
    return torch.stack(found)


def test_a_shared_linear_map_has_the_gradients_of_its_steps():
    given = drawn(OUTPUTS, INPUTS), drawn(STEPS, BATCH, OUTPUTS, seed=1)
    once, stepwise = (unrolled(*given, shared) for shared in (True, False))
    torch.testing.assert_close(once, stepwise)
    scale = torch.randn_like(once)
    for found, expected in zip(*(torch.autograd.grad((y * scale).sum(), given) for y in (once, stepwise))):
        torch.testing.assert_close(found, expected)


def test_an_lstm_cell_is_torchs():
    torch.manual_seed(0)
    cell = nn.LSTMCell(INPUTS, OUTPUTS).double()
    x, h, c = drawn(BATCH, INPUTS), drawn(BATCH, OUTPUTS, seed=1), drawn(BATCH, OUTPUTS, seed=2)
    gates = x @ cell.weight_ih.t() + cell.bias_ih + h @ cell.weight_hh.t() + cell.bias_hh
    for found, expected in zip(lstm_cell(gates, c), cell(x, (h, c))):
        torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(lstm_cell, (drawn(BATCH, 4 * OUTPUTS), c))


def test_tanh_and_products_are_right_to_their_rounding():
    x = torch.linspace(-30, 30, 601, dtype=torch.float32)
    torch.testing.assert_close(tanh(x), torch.tanh(x), atol=3e-7, rtol=0)
    x, weight = drawn(BATCH, STEPS, INPUTS), drawn(OUTPUTS, INPUTS, seed=1)
    exact = x @ weight.t()
    torch.testing.assert_close(linear(x, weight, torch.float64), exact)
    rounded = linear(x, weight, torch.bfloat16)
    assert (rounded.dtype, rounded.shape) == (torch.float64, exact.shape)
    torch.testing.assert_close(rounded, exact, atol=0.05, rtol=0.05)
    assert not torch.equal(rounded, exact)
    for found, expected in zip(*(torch.autograd.grad(y.sin().sum(), (x, weight)) for y in (rounded, exact))):
        torch.testing.assert_close(found, expected, atol=0.2, rtol=0.05)


def test_dropout_keeps_the_mean_and_hangs_on_the_seed():
    x = torch.ones(400, 500)
    torch.manual_seed(3)
    first, second = (dropped(x, 0.3, training=True) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(dropped(x, 0.3, training=True), first)
    assert not torch.equal(first, second)
    assert set(first.unique().tolist()) == {0.0, torch.tensor(1 / 0.7).item()}
    assert (first == 0).float().mean().item() == pytest.approx(0.3, abs=0.005)
    assert dropped(x, 0.3, training=False) is x
    assert dropped(x, 0.0, training=True) is x


@pytest.mark.parametrize("words", [1, 7, 64, 150])
def test_the_word_loss_is_the_cross_entropy_of_the_last_layer(words, monkeypatch):
    monkeypatch.setattr(losses, "ROWS", 64)
    x, weight, bias = drawn(words, INPUTS), drawn(OUTPUTS, INPUTS, seed=1), drawn(OUTPUTS, seed=2)
    wanted = torch.arange(words) % OUTPUTS
    scores = x @ weight.t() + bias
    expected = nn.functional.cross_entropy(scores, wanted, reduction="sum")
    loss, _ = word_loss(x, weight, bias, wanted, torch.float64)
    torch.testing.assert_close(loss, expected)
    for found, slope in zip(*(torch.autograd.grad(3 * y, (x, weight, bias)) for y in (loss, expected))):
        torch.testing.assert_close(found, slope)
    with torch.no_grad():
        same, right = word_loss(x, weight, bias, wanted, torch.float64)
    torch.testing.assert_close(same, expected)
    assert int(right) == int((scores.argmax(1) == wanted).sum())


def test_a_rounded_word_loss_is_near():
    x, weight, bias = (part.float().detach().requires_grad_() for part in (drawn(9, 8), drawn(20, 8), drawn(20)))
    wanted = torch.arange(9)
    near, exact = (word_loss(x, weight, bias, wanted, precision)[0] for precision in (torch.bfloat16, torch.float32))
    assert near.item() == pytest.approx(exact.item(), rel=0.01)
    for found, slope in zip(*(torch.autograd.grad(y, (x, weight, bias)) for y in (near, exact))):
        torch.testing.assert_close(found, slope, atol=0.05, rtol=0.05)
