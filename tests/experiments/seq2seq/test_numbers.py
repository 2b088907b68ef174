"""Numbers and dates in words mean one thing in both languages."""

from __future__ import annotations

import random
import re
import sys

import pytest

from sparsegen.experiments.seq2seq import numbers
from sparsegen.experiments.seq2seq.corpora import load_corpus
from sparsegen.experiments.seq2seq.numbers import numbers_and_dates


@pytest.fixture(scope="module")
def many():
    return numbers_and_dates(30000, seed=3)


def test_numbers_and_dates_mean_one_thing_in_both_directions(many):
    assert len(many) == len(set(many.sources)) == len(set(many.targets)) == 30000
    assert all(len(lines) == 1 for lines in many.references)


def test_numbers_and_dates_are_lower_case_words(many):
    for line in (*many.sources, *many.targets):
        assert re.fullmatch(r"[^\W\d_]+'?(clock)?( [^\W\d_]+'?(clock)?)*", line), line
        assert line == line.lower()


def test_sentences_are_of_the_length_asked_for(many):
    words = [len(line.split()) for line in many.sources]
    assert 8 <= sum(words) / len(words) <= 9
    assert max(words) <= 20


def test_numbers_and_dates_depend_on_the_seed_alone():
    first, again, other = (numbers_and_dates(200, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert len(set(first.sources) & set(other.sources)) < 20
    back = numbers_and_dates(200, seed=1, pair="en-fr")
    assert (back.sources, back.targets) == (first.targets, first.sources)


@pytest.mark.parametrize("name", ["numbers-fr-en", "numbers-en-fr"])
def test_the_parts_of_the_generated_corpus_share_no_line(name):
    corpus = load_corpus(name, "nowhere")
    parts = [corpus.train, corpus.valid, corpus.tests["numbers"]]
    assert [len(part) for part in parts] == [20000, 500, 1000]
    assert len({line for part in parts for line in part.sources}) == 21500
    assert len({line for part in parts for line in part.targets}) == 21500
    cut = load_corpus(name, limit=7)
    assert cut.train.sources == corpus.train.sources[:7]
    assert cut.valid == corpus.valid


def test_composed_numbers_are_those_of_num2words():
    num2words = pytest.importorskip("num2words").num2words
    rng = random.Random(0)
    known = [*range(0, 1000, 7), 1000, 1001, 1100, 80000, 80080, 200000, 10**6, 80 * 10**6, 10**9 - 1]
    for n in known + [int(10 ** rng.uniform(3, 9)) for _ in range(300)]:
        assert numbers._fr(n) == numbers._words(num2words(n, lang="fr"))
        assert numbers._en(n) == numbers._words(num2words(n, lang="en"))
        assert numbers._en_ordinal(n) == numbers._words(num2words(n, lang="en", to="ordinal"))
    for year in range(*numbers.YEARS):
        assert numbers._en_year(year) == numbers._words(num2words(year, lang="en", to="year"))


@pytest.mark.parametrize(
    ("n", "words"),
    [
        (1, "premier"),
        (21, "vingt et unième"),
        (80, "quatre vingtième"),
        (83, "quatre vingt troisième"),
        (300, "trois centième"),
        (906, "neuf cent sixième"),
        (1001, "mille unième"),
        (2000, "deux millième"),
        (1080, "mille quatre vingtième"),
    ],
)
def test_french_ordinals(n, words):
    assert numbers._fr_ordinal(n) == words


@pytest.mark.parametrize(
    ("hour", "minute", "french", "english"),
    [
        (6, 25, "six heures vingt cinq du matin", "twenty five past six in the morning"),
        (13, 1, "une heure une de l' après midi", "one minute past one in the afternoon"),
        (12, 57, "une heure moins trois de l' après midi", "three minutes to one in the afternoon"),
        (18, 0, "six heures du soir", "six o'clock in the evening"),
        (19, 30, "sept heures et demie du soir", "half past seven in the evening"),
        (12, 30, "midi et demi", "half past noon"),
        (23, 45, "minuit moins le quart", "a quarter to midnight"),
        (24, 39, "une heure moins vingt et une du matin", "twenty one minutes to one in the morning"),
        (24, 0, "minuit", "midnight"),
    ],
)
def test_times_on_the_clock(hour, minute, french, english):
    assert numbers._clock(hour, minute) == (french, english)


def test_every_minute_of_the_day_has_words_of_its_own():
    times = [numbers._clock(hour, minute) for hour in range(1, 25) for minute in range(60)]
    assert len({french for french, _ in times}) == len({english for _, english in times}) == 1440


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n must be an integer at least 1"),
        ({"n": 10**6}, "n must be at most 200000"),
        ({"n": 1, "seed": -1}, "seed must be an integer at least 0"),
        ({"n": 1, "pair": "de-en"}, "pair must be 'fr-en' or 'en-fr', got 'de-en'"),
    ],
)
def test_what_cannot_be_generated_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        numbers_and_dates(**options)


@pytest.mark.parametrize("module", ["num2words", "babel"])
def test_generating_without_its_modules_names_the_extra(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    for memory in (numbers._spoken, numbers._calendar):
        memory.cache_clear()
    with pytest.raises(ImportError, match=rf"needs {module}, .* pip install 'sparsegen\[experiments\]'"):
        numbers_and_dates(100)
