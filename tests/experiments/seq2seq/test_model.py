"""The encoder-decoder: padding changes nothing, the loss is the cross-entropy, settings are checked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from toy_models import (
    SOURCE,
    TARGET,
    batch_of,
    config,
    lines,
    lively,
    of_row,
    pairs,
)

from sparsegen.experiments.seq2seq import search
from sparsegen.experiments.seq2seq.generation import ROWS
from sparsegen.experiments.seq2seq.model import Seq2Seq
from sparsegen.experiments.seq2seq.vocabulary import PAD


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("layers", [1, 2])
def test_padding_changes_neither_loss_nor_gradient(name, layers):
    model, data = of_row(name, layers=layers, dropout=0.5), pairs(5)
    together = model(*batch_of(data, range(5)))
    together[0].backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    alone = [model(*batch_of(data, [i])) for i in range(5)]
    sum(loss for loss, _, _ in alone).backward()
    assert together[0].item() == pytest.approx(sum(loss.item() for loss, _, _ in alone), rel=1e-5)
    assert together[1] == sum(words for _, words, _ in alone) == sum(len(t) - 1 for t in data.targets)
    assert together[2] == sum(right for _, _, right in alone)
    for n, p in model.named_parameters():
        torch.testing.assert_close(p.grad, gradients[n], rtol=1e-3, atol=1e-4, msg=n)
    for embedding in (model.encoder.embedding, model.decoder.embedding):
        assert (embedding.weight.grad[PAD] == 0).all()


@pytest.mark.parametrize("layers", [1, 2])
def test_the_encoder_is_torchs_lstm_over_packed_sentences(layers):
    encoder, lengths = lively(layers=layers).encoder, torch.tensor([5, 2, 7, 1])
    source = torch.randint(4, len(SOURCE), (4, 7), generator=torch.Generator().manual_seed(0))
    source = torch.where(torch.arange(7) < lengths[:, None], source, PAD)
    packed = pack_padded_sequence(encoder.embedding(source), lengths, batch_first=True, enforce_sorted=False)
    expected, last = encoder.lstm(packed)
    expected, _ = pad_packed_sequence(expected, batch_first=True)
    states, *ends = encoder(source, lengths)
    words, weights = source != PAD, list(encoder.parameters())
    torch.testing.assert_close(states[words], expected[words])
    for found, wanted in zip(ends, last):
        torch.testing.assert_close(torch.cat(found, dim=1), torch.cat(list(wanted), dim=1))
    sums = states[words].square().sum() + ends[0][0].sum() + ends[1][-1].sum()
    theirs = expected[words].square().sum() + last[0][:2].sum() + last[1][-2:].sum()
    for found, wanted in zip(torch.autograd.grad(sums, weights), torch.autograd.grad(theirs, weights)):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ["additive", "general", "dot"])
@pytest.mark.parametrize("name", ROWS)
def test_padding_gets_exactly_no_weight_and_the_words_keep_theirs(name, attention):
    model, data = of_row(name, attention=attention), pairs(5)
    source, lengths, target = batch_of(data, range(5))
    assert len(set(lengths.tolist())) > 2
    with torch.no_grad():
        memory, state = model.read(source, lengths)
        out, weights, _ = model.decoder.step(model.decoder.embedding(target[:, 0]), state, memory)
        for i, n in enumerate(lengths):
            memory, state = model.read(source[i : i + 1, :n], lengths[i : i + 1])
            alone, expected, _ = model.decoder.step(model.decoder.embedding(target[i : i + 1, 0]), state, memory)
            assert (weights[i, n:] == 0).all()
            torch.testing.assert_close(weights[i, :n], expected[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(out[i], alone[0], atol=1e-5, rtol=1e-5)
    if attention == "additive" and not name.startswith(("softmax", "entmax")):  # some word has no weight either
        assert (weights == 0).sum() > (source == PAD).sum()


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("beam", [1, 3])
def test_padding_changes_no_translation(name, beam):
    model, (sources, _) = of_row(name), lines(6, seed=3)
    together = search.translate(model, SOURCE, TARGET, sources, beam=beam)
    for line, found in zip(sources, together):
        (alone,) = search.translate(model, SOURCE, TARGET, [line], beam=beam)
        assert found.words == alone.words
        assert found.source == tuple(line.split())
        assert found.weights.shape == (len(found.words), len(found.source))
        np.testing.assert_allclose(found.weights, alone.weights, atol=1e-5)
        np.testing.assert_allclose(found.weights.sum(1), 1, atol=1e-5)
        assert found.score == pytest.approx(alone.score, abs=1e-5)


def test_the_loss_is_the_cross_entropy_of_each_word():
    model, data = lively(), pairs(1, seed=5)
    source, lengths, target = batch_of(data, [0])
    memory, state = model.read(source, lengths)
    expected, right = 0.0, 0
    for word, following in itertools.pairwise(target[0]):
        out, _, state = model.decoder.step(model.decoder.embedding(word[None]), state, memory)
        log_p = torch.log_softmax(model.generator(out)[0], 0)
        expected -= log_p[following].item()
        right += int(log_p.argmax() == following)
    loss, words, found = model(source, lengths, target)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert (int(words), int(found)) == (len(target[0]) - 1, right)


def test_the_attentional_vector_is_fed_to_the_next_step():
    model, data = lively(), pairs(1)
    source, lengths, target = batch_of(data, [0])
    memory, state = model.read(source, lengths)
    assert (state.feed == 0).all()
    word = model.decoder.embedding(target[:, 0])
    out, _, following = model.decoder.step(word, state, memory)
    assert torch.equal(following.feed, out)
    changed = model.decoder.step(word, state._replace(feed=torch.ones_like(state.feed)), memory)[0]
    assert not torch.allclose(changed, out)


def test_a_new_model_starts_as_said():
    torch.manual_seed(0)
    model = Seq2Seq(config(mapping="sparsegen_lin", control=0.5, learnable=True))
    assert model.decoder.attention.map.lam.item() == pytest.approx(0.5)
    for name, weight in model.named_parameters():
        assert ".map." in name or weight.abs().max() <= 0.1
    for embedding in (model.encoder.embedding, model.decoder.embedding):
        assert (embedding.weight[PAD] == 0).all()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"embedding": 0}, "embedding must be a positive integer, got 0"),
        ({"hidden": 7}, "hidden must be even, as two directions share it, got 7"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"attention": "loud"}, "attention must be one of 'additive', 'general', 'dot', got 'loud'"),
        ({"mapping": "loud"}, "mapping must be one of 'sparsemax', .* got 'loud'"),
        ({"control": 0.5}, "control must be absent for mapping 'sparsemax', which has none, got 0.5"),
        ({"mapping": "sparsegen_lin", "control": 1.5}, "lam must be .*, got 1.5"),
        ({"mapping": "sparsehourglass"}, "q must be given for mapping 'sparsehourglass', got None"),
        ({"learnable": True}, "learnable must be False for mapping 'sparsemax'"),
    ],
)
def test_settings_of_a_model_are_checked(changes, text):
    with pytest.raises(ValueError, match=f"^sparsegen: {text}"):
        Seq2Seq(config(**changes))
