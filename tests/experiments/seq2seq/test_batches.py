"""Pairs of sentences as padded batches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from toy_models import (
    lively,
    pairs,
)

from sparsegen.experiments.seq2seq.batches import Batch, Pairs, pad
from sparsegen.experiments.seq2seq.training import evaluate
from sparsegen.experiments.seq2seq.vocabulary import BOS, EOS, PAD


def test_pairs_are_padded_marked_and_counted():
    found = Pairs([[4, 5], [6], [7, 7, 7], []], [[8], [8, 9], [9], [9]], max_words=2)
    assert (len(found), found.left_out) == (2, 2)
    batch = found.batch([0, 1])
    assert batch.source.tolist() == [[4, 5], [6, PAD]]
    assert batch.target.tolist() == [[BOS, 8, EOS, PAD], [BOS, 8, 9, EOS]]
    assert (len(batch), batch.lengths.tolist()) == (2, [2, 1])
    part = batch.rows(0, 1)
    assert isinstance(part, Batch)
    assert part.target.tolist() == [[BOS, 8, EOS]]
    assert batch.rows(1, 2).source.tolist() == [[6]]


def test_an_epoch_has_every_pair_once_in_an_order_of_its_own():
    data = pairs(30)
    first, again, other, seeded = (data.epoch(8, seed, epoch) for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0)))
    assert sorted(np.concatenate(first)) == list(range(30))
    assert sorted(map(len, first)) == [6, 8, 8, 8]
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    for differing in (other, seeded):
        assert np.concatenate(first).tolist() != np.concatenate(differing).tolist()
    sizes = [[len(data.sources[i]) for i in batch] for batch in first]
    assert all(row == sorted(row) for row in sizes)
    bounds = sorted((min(row), max(row)) for row in sizes)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(bounds))  # of like length in a batch


def test_validation_sees_every_pair_once():
    data = pairs(10)
    seen = [tuple(row[row != PAD].tolist()) for batch in data.in_order(4) for row in batch.target]
    assert sorted(seen) == sorted(map(tuple, data.targets))
    model = lively()
    once, alone = evaluate(model, data, 4), evaluate(model, data, 1)
    assert once["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert once["accuracy"] == alone["accuracy"]


def test_pairs_that_make_no_corpus_are_refused():
    with pytest.raises(ValueError, match="targets must be as many as sources, 2, got 1"):
        Pairs([[4], [5]], [[4]])
    for sources, targets, most in (([], [], None), ([[]], [[4]], None), ([[4] * 9], [[4]], 8), ([[4]], [[4] * 9], 8)):
        with pytest.raises(ValueError, match="the corpus must be at least one pair with words on both sides, none too"):
            Pairs(sources, targets, most)


def test_pad_fills_up():
    assert pad([[1], [2, 3]]).tolist() == [[1, PAD], [2, 3]]
