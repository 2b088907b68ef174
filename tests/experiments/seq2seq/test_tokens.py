"""The tokeniser sets words apart as the published corpora do."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsegen.experiments.seq2seq.tokens import gigaword_form, tokenise


@pytest.mark.parametrize(
    ("line", "language", "tokens"),
    [
        ("Can't we? They'll won't!", "en", "ca n't we ? they 'll wo n't !"),
        ("It\u2019s 5 o'clock, Mr. D'Amato...", "en", "it 's 5 o'clock , mr. d'amato ..."),
        ("The U.S. paid $1,234.50 (50%).", "en", "the u.s. paid $ 1,234.50 ( 50 % ) ."),
        ("A 12-year-old's AT&T phone -- “new”", "en", 'a 12-year-old \'s at&t phone -- " new "'),
        ("<unk> rose #.## percent", "en", "<unk> rose #.## percent"),
        ("snake_case 3.5b", "en", "snake_case 3 . 5b"),
        ("L'homme qu'on n'a pas vu aujourd'hui", "fr", "l' homme qu' on n' a pas vu aujourd'hui"),
        ("Est-ce qu\u2019il va-t'en ?\u202f«\u00a0Oui\u00a0»", "fr", "est-ce qu' il va-t' en ? \" oui \""),
        ("E\u0301te\u0301 \u0130zmir", "fr", "été i\u0307zmir"),
    ],
)
def test_lines_are_tokenised_in_the_manner_of_the_corpora(line, language, tokens):
    assert tokenise(line, language) == tokens


def test_an_unknown_language_is_refused():
    with pytest.raises(ValueError, match="language must be one of 'en', 'fr', got 'de'"):
        tokenise("ein Hund", "de")


@given(st.text(alphabet=st.sampled_from("abnt'é-_.,;$#&1 290\"()<>\u2019"), max_size=30), st.sampled_from(["en", "fr"]))
def test_tokenising_only_moves_spaces(line, language):
    plain = line.replace("\u2019", "'")
    assert tokenise(line, language).replace(" ", "") == plain.replace(" ", "")
    assert "  " not in tokenise(line, language)


@given(st.lists(st.sampled_from(["UNK", "<unk>", '"', "(", ")", "a1", "23.4", "word", "'s"])))
def test_gigawords_form_keeps_the_count_of_words_and_is_reached_at_once(words):
    once = gigaword_form(" ".join(words))
    assert len(once.split()) == len(words)
    assert gigaword_form(once) == once
    assert not set('()"') & set(once)
    assert not re.search(r"\d|UNK", once)
