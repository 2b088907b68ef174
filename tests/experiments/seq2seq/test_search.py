"""From a model to text: greedy and beam search."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_models import (
    SOURCE,
    TARGET,
    config,
    lines,
    lively,
    trainer,
)

from sparsegen.experiments.seq2seq import search
from sparsegen.experiments.seq2seq.batches import Pairs
from sparsegen.experiments.seq2seq.model import ModelConfig, Seq2Seq
from sparsegen.experiments.seq2seq.training import BEST, TrainConfig, Trainer, load_model
from sparsegen.experiments.seq2seq.vocabulary import BOS, EOS, PAD, UNK, SentencePieceVocabulary


def greedy(model, line, limit):
    """The likeliest word at each step, by hand."""
    ids = SOURCE.encode(line)
    words, score = [], 0.0
    with torch.no_grad():
        memory, state = model.read(torch.tensor([ids]), torch.tensor([len(ids)]))
        word = BOS
        while len(words) < limit:
            out, _, state = model.decoder.step(model.decoder.embedding(torch.tensor([word])), state, memory)
            logits = model.generator(out)[0]
            logits[[PAD, BOS]] = -torch.inf
            log_p = torch.log_softmax(logits, 0)
            word = int(log_p.argmax())
            score += float(log_p[word])
            if word == EOS:
                break
            words.append(word)
    return words, score / (len(words) + 1)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """A model that has learnt something, but not all."""
    run = trainer(tmp_path_factory.mktemp("learnt"), model=config(hidden=16), n=60, epochs=4, lr=0.03)
    run.run()
    return run.model


def test_a_beam_of_one_is_greedy_search(learnt):
    sources, _ = lines(12, seed=7)
    found = search.translate(learnt, SOURCE, TARGET, sources, beam=1, replace_unknown=False)
    for line, translation in zip(sources, found):
        words, score = greedy(learnt, line, 2 * len(line.split()) + 10)
        assert list(translation.words) == TARGET.tokens_of(words)
        assert translation.score == pytest.approx(score, abs=1e-5)


def test_a_wider_beam_finds_better_scores_on_average(learnt):
    sources, _ = lines(20, seed=8)
    means = []
    for beam in (1, 2, 5):
        means.append(np.mean([t.score for t in search.translate(learnt, SOURCE, TARGET, sources, beam=beam)]))
    assert means[0] < means[2]
    assert means[0] <= means[1] + 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_a_beam_wide_enough_finds_the_best_of_all(seed):
    """All sentences of up to two words, each with its end mark, are tried by hand."""
    torch.manual_seed(seed)
    tiny = replace(config(), target_words=7)
    model = Seq2Seq(tiny).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.uniform_(-1.5, 1.5)
        model.generator.bias[EOS] -= 1.0
    source, lengths = torch.tensor([[4, 5, 6]]), torch.tensor([3])
    (found,) = search.search(model, source, lengths, beam=500, max_words=3)
    allowed = [UNK, 4, 5, 6]
    every = [list(ids) for n in range(3) for ids in itertools.product(allowed, repeat=n)]
    scores = [by_hand(model, source, lengths, ids) for ids in every]
    best = int(np.argmax(scores))
    assert found.ids == every[best]
    assert found.score == pytest.approx(scores[best], abs=1e-5)


@torch.no_grad()
def by_hand(model, source, lengths, ids):
    """Log-probability a word of a sentence with its end mark."""
    memory, state = model.read(source, lengths)
    total = 0.0
    for word, following in itertools.pairwise([BOS, *ids, EOS]):
        out, _, state = model.decoder.step(model.decoder.embedding(torch.tensor([word])), state, memory)
        logits = model.generator(out)[0]
        logits[[PAD, BOS]] = -torch.inf
        total += float(torch.log_softmax(logits, 0)[following])
    return total / (len(ids) + 1)


def always(model, word, *others):
    """Make a model write one word, whatever it reads; the others come next."""
    with torch.no_grad():
        model.generator.weight.zero_()
        model.generator.bias.zero_()
        for at, number in enumerate((word, *others)):
            model.generator.bias[number] = 20 - at
    return model


def test_an_unknown_word_becomes_the_source_word_it_attends_to():
    model = always(lively(scale=2.0), UNK)
    (kept,) = search.translate(model, SOURCE, TARGET, ["xylo a yak b"], beam=2, max_words=4, replace_unknown=False)
    assert kept.words == ("<unk>",) * 4
    (found,) = search.translate(model, SOURCE, TARGET, ["xylo a yak b"], beam=2, max_words=4)
    assert found.words == tuple(["xylo", "a", "yak", "b"][i] for i in kept.weights.argmax(1))
    assert found.text == " ".join(found.words)
    assert found.source == ("xylo", "a", "yak", "b")


def test_padding_and_beginning_are_never_written():
    for beam in (1, 3):
        (found,) = search.translate(always(lively(), BOS, PAD, 6), SOURCE, TARGET, ["a b"], beam=beam, max_words=3)
        assert found.words == ("C", "C", "C")


def test_an_end_at_once_gives_no_words():
    (found,) = search.translate(always(lively(), EOS), SOURCE, TARGET, ["a b"], beam=3)
    assert (found.text, found.words, found.weights.shape) == ("", (), (0, 2))
    assert np.isnan(search.mean_support([found]))


def test_order_is_kept_and_an_empty_line_stays_empty(learnt):
    sources, _ = lines(7, seed=9)
    given = ["", *sources[:3], "   ", *sources[3:], "zzz yyy"]
    seen = []
    found = search.translate(learnt, SOURCE, TARGET, given, batch_size=3, progress=seen.append)
    assert [t.source for t in found] == [tuple(line.split()) for line in given]
    assert [given[i] for i, t in enumerate(found) if not t.source] == ["", "   "]
    assert found[0].text == found[4].text == ""
    assert seen == [3, 3, 2]
    for i in (1, 5, 8):
        assert found[i].text == search.translate(learnt, SOURCE, TARGET, [given[i]])[0].text
    assert search.translate(learnt, SOURCE, TARGET, []) == []


def test_a_sentence_of_two_thousand_words_is_translated(learnt):
    line = " ".join("abcdefgh"[i % 8] for i in range(2000))
    (found,) = search.translate(learnt, SOURCE, TARGET, [line], beam=2, max_words=20)
    assert len(found.words) <= 20
    assert found.weights.shape == (len(found.words), 2000)
    np.testing.assert_allclose(found.weights.sum(1), 1, atol=1e-4)
    (found,) = search.translate(always(lively(), 5), SOURCE, TARGET, [line], beam=1)
    assert len(found.words) == search.LONGEST


def test_support_counts_the_words_with_weight():
    weights = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    found = search.Translation("A B", ("A", "B"), ("a", "b", "c"), weights, -1.0)
    assert found.support.tolist() == [2, 1]
    assert search.mean_support([found, search.Translation("", (), (), np.zeros((0, 0)), 0.0)]) == 1.5


def test_words_in_place_of_unknown_ones_are_counted_and_looked_up_in_the_references():
    (found,) = search.translate(always(lively(), UNK), SOURCE, TARGET, ["a b"], beam=1, max_words=3)
    assert found.copied == (True,) * 3
    assert set(found.words) <= {"a", "b"}
    (kept,) = search.translate(
        always(lively(), UNK), SOURCE, TARGET, ["a b"], beam=1, max_words=3, replace_unknown=False
    )
    assert kept.copied == (False,) * 3
    (known,) = search.translate(always(lively(), 5), SOURCE, TARGET, ["a b"], beam=1, max_words=3)
    assert known.copied == (False,) * 3
    made = search.Translation("A b c", ("A", "b", "c"), ("b", "c"), np.ones((3, 2)), -1.0, (False, True, True))
    older = search.Translation("A", ("A",), ("b",), np.ones((1, 1)), -1.0)
    counts = search.copied_words([made, older], [("A x", "x b"), ("A",)])
    assert counts == {"words": 4, "copied": 2, "copied_right": 1}


def test_a_beam_of_none_is_refused():
    with pytest.raises(ValueError, match="beam must be a positive integer, got 0"):
        search.translate(lively(), SOURCE, TARGET, ["a"], beam=0)


def test_a_model_whose_numbers_are_lost_says_so():
    model = lively()
    model.generator.bias.data[5] = torch.nan
    with pytest.raises(ValueError, match="the model's scores must be numbers"):
        search.translate(model, SOURCE, TARGET, ["a", "b c"], beam=2)


def test_pieces_of_words_are_trained_on_and_written(tmp_path):
    text = ["low lower lowest", "new newer newest", "lower newer", "low new", "lowest newest"]
    vocabulary = SentencePieceVocabulary.build(text, vocab_size=18)
    numbers = [vocabulary.encode(line) for line in text]
    data = Pairs(numbers, numbers)
    sizes = ModelConfig(18, 18, 16, 32, 1, 0.0, mapping="sparsemax")
    state = vocabulary.state()
    settings = TrainConfig(epochs=80, batch_size=5, lr=0.03, decay_from=80)
    run = Trainer(sizes, settings, data, data, {"source": state, "target": state}, tmp_path)
    run.run()
    model, source, target = load_model(tmp_path / BEST)
    assert isinstance(source, SentencePieceVocabulary)
    found = search.translate(model, source, target, ["lowest newest", "new lower"], beam=2)
    assert found[0].text == "lowest newest"
    assert found[0].source == tuple(source.tokens("lowest newest"))
    assert found[0].weights.shape == (len(found[0].words), len(found[0].source))
    unknown = search.translate(always(model, UNK), source, target, ["low %%%"], beam=1, max_words=2)[0]
    assert set(unknown.words) <= set(source.tokens("low %%%"))
