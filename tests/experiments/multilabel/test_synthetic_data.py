"""The paper's synthetic documents: the laws they are drawn from, sizes, determinism, bad arguments."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from sklearn.datasets import make_multilabel_classification

from sparsegen.experiments.multilabel.synthetic_data import label_count_law, make_documents, split


def chi_square(seen, expected):
    """Pearson's statistic divided by its degrees of freedom: near 1 when the law is right."""
    seen, expected = np.asarray(seen, dtype=float), np.asarray(expected, dtype=float)
    possible = expected > 0
    assert (seen[~possible] == 0).all()
    return ((seen - expected)[possible] ** 2 / expected[possible]).sum() / max(1, possible.sum() - 1)


def counts_of(documents, k=10):
    return np.bincount(documents.Y.sum(axis=1), minlength=k + 1)[1:]


# Laws of N written out one by one.


@pytest.mark.parametrize("mu", range(2, 10))
def test_the_mean_setting_draws_n_uniformly_from_three_numbers(mu):
    law = label_count_law("mean", mu)
    assert law[[mu - 2, mu - 1, mu]].tolist() == [1 / 3] * 3
    assert law.sum() == pytest.approx(1)
    seen = counts_of(make_documents(20000, labels="mean", value=mu, length=1, seed=mu))
    assert chi_square(seen, 20000 * law) < 5


@pytest.mark.parametrize("r", range(5))
def test_the_range_setting_draws_n_uniformly_around_5(r):
    law = label_count_law("range", r)
    expected = [1 / (2 * r + 1) if 5 - r <= n <= 5 + r else 0 for n in range(1, 11)]
    np.testing.assert_allclose(law, expected)
    seen = counts_of(make_documents(20000, labels="range", value=r, length=1, seed=r))
    assert chi_square(seen, 20000 * np.array(expected)) < 5


def test_a_range_beyond_the_labels_is_drawn_again():
    np.testing.assert_allclose(label_count_law("range", 7), np.full(10, 0.1))
    np.testing.assert_allclose(label_count_law("range", 2, n_labels=4), [0, 0, 0.5, 0.5])


def test_the_length_setting_draws_n_from_poisson_and_again_when_out_of_range():
    rejected = np.random.default_rng(0).poisson(5, 400000)
    rejected = rejected[(rejected >= 1) & (rejected <= 10)]
    law = label_count_law("poisson", 5)
    assert chi_square(np.bincount(rejected, minlength=11)[1:], len(rejected) * law) < 3
    assert law[4] / law[3] == pytest.approx(5 / 5)
    assert law[5] / law[4] == pytest.approx(5 / 6)
    seen = counts_of(make_documents(20000, labels="poisson", value=5, length=1, seed=1))
    assert chi_square(seen, 20000 * law) < 3


def test_a_poisson_mean_far_beyond_the_labels_does_not_underflow():
    law = label_count_law("poisson", 1e6)
    assert law.sum() == pytest.approx(1)
    assert law[-1] > 0.99999


# Which labels


def test_label_sets_are_equally_likely_by_default():
    documents = make_documents(30000, labels="range", value=0, n_labels=6, length=1, seed=0)
    sets = Counter(tuple(np.flatnonzero(y)) for y in documents.Y)
    expected = {pick: 30000 / math.comb(6, 5) for pick in combinations(range(6), 5)}
    assert set(sets) == set(expected)
    assert chi_square([sets[p] for p in expected], list(expected.values())) < 4
    assert documents.label_prior.tolist() == [1 / 6] * 6


def test_drawn_priors_take_labels_one_after_the_other_as_scikit_learn_does():
    documents = make_documents(40000, labels="mean", value=2, n_labels=4, length=1, prior="drawn", seed=5)
    p = documents.label_prior
    assert p.std() > 0.05
    assert p.sum() == pytest.approx(1)
    pairs = documents.Y[documents.Y.sum(axis=1) == 2]
    sets = Counter(tuple(np.flatnonzero(y)) for y in pairs)
    expected = Counter()
    for a, b in permutations(range(4), 2):
        expected[min(a, b), max(a, b)] += len(pairs) * p[a] * p[b] / (1 - p[a])
    assert chi_square([sets[s] for s in expected], list(expected.values())) < 4


# Words


def test_words_come_from_the_equal_mixture_of_the_labels_distributions():
    documents = make_documents(400, labels="mean", value=3, length=50000, seed=2)
    words = documents.word_distributions
    np.testing.assert_allclose(words.sum(axis=1), 1)
    for x, y in zip(documents.X, documents.Y):
        mixture = sum(words[c] for c in np.flatnonzero(y)) / y.sum()
        assert chi_square(x, 50000 * mixture) < 5  # 9 degrees of freedom, 400 documents
    statistics = [
        chi_square(x, 50000 * words[y == 1].mean(axis=0)) for x, y in zip(documents.X, documents.Y.astype(int))
    ]
    assert 0.9 < np.mean(statistics) < 1.1  # a multinomial spread: neither fixed counts nor a wider law


def test_word_distributions_have_scikit_learns_law():
    theirs = np.concatenate(
        [
            make_multilabel_classification(
                1, 10, n_classes=10, n_labels=5, length=5, return_distributions=True, random_state=s
            )[3].T
            for s in range(200)
        ]
    )  # (2000 labels, 10 words)
    ours = np.concatenate([make_documents(1, value=5, length=1, seed=s).word_distributions for s in range(200)])
    assert ours.shape == theirs.shape
    places = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(np.quantile(ours, places), np.quantile(theirs, places), atol=0.003)


def test_every_document_has_exactly_the_length():
    for length in (1, 200, 2000):
        assert (make_documents(50, value=5, length=length, seed=0).X.sum(axis=1) == length).all()


# Sizes, seeds, parts


def test_the_defaults_are_the_papers():
    documents = make_documents(labels="poisson", value=5, seed=0)
    assert documents.X.shape == documents.Y.shape == (5000, 10)
    assert (documents.X.sum(axis=1) == 2000).all()
    assert [len(part) for part in split(documents, seed=0)] == [2500, 1000, 1500]
    assert documents.Y.dtype == np.int64


def test_sizes_are_free():
    documents = make_documents(7, labels="range", value=4, length=3, n_labels=12, vocabulary=5, seed=0)
    assert documents.X.shape == (7, 5)
    assert documents.Y.shape == (7, 12)
    assert documents.word_distributions.shape == (12, 5)


def test_a_seed_gives_the_same_documents_and_another_seed_others():
    first, again, other = (make_documents(50, value=4, seed=s) for s in (3, 3, 4))
    np.testing.assert_array_equal(first.X, again.X)
    np.testing.assert_array_equal(first.Y, again.Y)
    assert not np.array_equal(first.X, other.X)


@pytest.mark.parametrize(
    "other",
    [{"value": 9}, {"labels": "poisson", "value": 5}, {"value": 3, "length": 20}, {"value": 3, "prior": "drawn"}],
)
def test_settings_of_one_seed_share_the_word_distributions(other):
    first = make_documents(5, value=3, seed=11)
    np.testing.assert_array_equal(make_documents(8, seed=11, **other).word_distributions, first.word_distributions)


def test_parts_are_all_the_documents_once_each_with_their_labels():
    documents = make_documents(1001, value=4, seed=0)
    marked = replace(documents, X=np.column_stack([np.arange(1001), documents.X]))
    parts = split(marked, seed=6)
    assert sum(map(len, parts)) == 1001
    ids = np.concatenate([part.X[:, 0] for part in parts])
    assert sorted(ids) == list(range(1001))
    assert not np.array_equal(ids, np.arange(1001))
    for part in parts:
        np.testing.assert_array_equal(part.Y, documents.Y[part.X[:, 0]])
        np.testing.assert_array_equal(part.X[:, 1:], documents.X[part.X[:, 0]])


def test_parts_depend_on_their_seed_alone():
    documents = make_documents(100, value=4, seed=0)
    first, again, other = (split(documents, seed=s)[0] for s in (1, 1, 2))
    np.testing.assert_array_equal(first.X, again.X)
    assert not np.array_equal(first.X, other.X)


def test_any_number_of_parts():
    documents = make_documents(10, value=4, seed=0)
    assert [len(part) for part in split(documents, (1.0,))] == [10]
    assert [len(part) for part in split(documents, [0.25, 0.25, 0.25, 0.25])] == [2, 3, 3, 2]


BAD = [
    ({"labels": "median", "value": 3}, ValueError, "labels must be one of"),
    ({"value": 1}, ValueError, "value must be an integer from 2 to 9, got 1"),
    ({"value": 10}, ValueError, "value must be an integer from 2 to 9, got 10"),
    ({"value": 2.5}, TypeError, "value must be an integer from 2 to 9, got 2.5"),
    ({"labels": "range", "value": -1}, ValueError, "value must be an integer at least 0"),
    ({"labels": "range", "value": 1, "n_labels": 3}, ValueError, "n_labels must be at least 4, got 3"),
    ({"labels": "poisson", "value": 0}, ValueError, "value must be a positive number"),
    ({"labels": "poisson", "value": math.nan}, ValueError, "value must be a positive number"),
    ({"labels": "poisson", "value": math.inf}, ValueError, "value must be a positive number"),
    ({"labels": "poisson", "value": "5"}, ValueError, "value must be a positive number"),
    ({"value": 3, "prior": "flat"}, ValueError, "prior must be 'uniform' or 'drawn', got 'flat'"),
    ({"value": 3, "length": 0}, ValueError, "length must be an integer at least 1"),
    ({"value": 3, "vocabulary": 0}, ValueError, "vocabulary must be an integer at least 1"),
    ({"value": 3, "n_labels": 0}, ValueError, "n_labels must be an integer at least 1"),
    ({"value": 3, "n_documents": -1}, ValueError, "n_documents must be an integer at least 1"),
    ({"value": 3, "n_documents": 1.5}, TypeError, "n_documents must be an integer at least 1"),
    ({"value": 3, "n_documents": True}, TypeError, "n_documents must be an integer at least 1"),
    ({"value": 3, "seed": -1}, ValueError, "seed must be an integer at least 0"),
    ({"value": 3, "seed": None}, TypeError, "seed must be an integer at least 0, got None"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD)
def test_bad_arguments_are_refused_by_name(arguments, error, message):
    with pytest.raises(error, match=f"sparsegen: {message}"):
        make_documents(**{"n_documents": 5, "seed": 0, **arguments})


@pytest.mark.parametrize("fractions", [(), (0.5, 0.4), (1.2, -0.2), (0.5, 0.5, 0.0), (math.nan, 1.0)])
def test_fractions_that_are_not_parts_of_one_are_refused(fractions):
    with pytest.raises(ValueError, match="fractions must be positive numbers that sum to 1"):
        split(make_documents(5, value=3, seed=0), fractions)
