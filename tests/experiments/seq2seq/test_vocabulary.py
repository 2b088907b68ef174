"""Vocabularies by words and by pieces."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsegen.experiments.seq2seq.vocabulary import (
    BOS,
    EOS,
    PAD,
    UNK,
    SentencePieceVocabulary,
    WordVocabulary,
    vocabulary_from_state,
)

LINES = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog", "été à paris , l' hiver <unk>"]
SIZE = 30  # more than the characters of these lines; sentencepiece 0.2.3 finds no more pieces in them
WORDS = sorted({word for line in LINES for word in line.split()})


@pytest.fixture(scope="module", params=["word", "unigram", "bpe"])
def vocabulary(request):
    if request.param == "word":
        return WordVocabulary.build(LINES)
    pytest.importorskip("sentencepiece")
    return SentencePieceVocabulary.build(LINES, vocab_size=SIZE, model_type=request.param)


def test_the_special_numbers_are_the_first():
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)


def test_words_are_ordered_by_count_then_alphabet():
    words = ["z z z b", "a b c"]
    assert WordVocabulary.build(words).state()["words"] == ["z", "b", "a", "c"]
    assert WordVocabulary.build(words, min_count=2).state()["words"] == ["z", "b"]
    cut = WordVocabulary.build(words, max_size=7)
    assert cut.state()["words"] == ["z", "b", "a"]
    assert len(cut) == 7


def test_unknown_words_and_special_words_in_a_text_are_unknown():
    vocabulary = WordVocabulary.build(["a <unk> <unk> </s> <pad> <s>"])
    assert vocabulary.encode("a b <unk> </s> <pad> <s>") == [4, UNK, UNK, UNK, UNK, UNK]
    assert len(vocabulary) == 5
    assert vocabulary.decode([4, UNK]) == "a <unk>"
    assert vocabulary.tokens("a b <unk>") == ["a", "b", "<unk>"]


@given(st.lists(st.sampled_from(WORDS), max_size=12))
def test_lines_of_known_words_survive_the_round_trip(vocabulary, words):
    line = " ".join(words)
    ids = vocabulary.encode(line)
    assert vocabulary.decode(ids) == line
    assert vocabulary.decode([BOS, *ids, EOS, *ids, PAD]) == line
    assert len(vocabulary.tokens(line)) == len(ids)
    assert vocabulary.decode_tokens(vocabulary.tokens(line)) == line
    assert vocabulary.decode_tokens(vocabulary.tokens_of([BOS, *ids, PAD, EOS, 5])) == line
    assert all(UNK <= i < len(vocabulary) and i not in (BOS, EOS) for i in ids)


@given(st.lists(st.text(alphabet="cat dog<unk>/sŽ", min_size=1, max_size=6), max_size=6))
def test_tokens_keep_the_surface_of_any_line_one_for_each_number(vocabulary, words):
    line = " ".join(" ".join(words).split())
    special = {"<unk>", "<s>", "</s>"}
    ids, tokens = vocabulary.encode(line), vocabulary.tokens(line)
    assert len(tokens) == len(ids)
    if not special & set(line.split()):
        assert vocabulary.decode_tokens(tokens) == line


def test_the_unknown_word_is_one_number_in_pieces_too(vocabulary):
    ids = vocabulary.encode("the <unk> cat")
    assert ids == [*vocabulary.encode("the"), UNK, *vocabulary.encode("cat")]
    assert vocabulary.decode(ids) == "the <unk> cat"


def test_what_is_between_the_special_numbers_is_shown(vocabulary):
    cat = vocabulary.encode("cat")
    assert vocabulary.decode([PAD, BOS, *cat, PAD, *cat, EOS, *cat]) == "cat cat"
    assert vocabulary.decode([]) == vocabulary.decode([EOS]) == vocabulary.decode(vocabulary.encode("")) == ""


def test_numbers_outside_the_vocabulary_are_refused(vocabulary):
    for bad in (-1, len(vocabulary)):
        with pytest.raises(ValueError, match=rf"ids must be between 0 and {len(vocabulary) - 1}, got {bad}"):
            vocabulary.decode([bad])


def test_the_state_goes_through_json(vocabulary):
    again = vocabulary_from_state(json.loads(json.dumps(vocabulary.state())))
    assert type(again) is type(vocabulary)
    assert len(again) == len(vocabulary)
    for line in LINES:
        assert again.encode(line) == vocabulary.encode(line)
        assert again.tokens(line) == vocabulary.tokens(line)


def test_a_state_of_no_known_kind_is_refused():
    with pytest.raises(ValueError, match="must be one of 'word', 'sentencepiece', got 'char'"):
        vocabulary_from_state({"kind": "char"})


def test_words_given_twice_are_refused():
    with pytest.raises(ValueError, match=r"words must be different .* got 'a' twice"):
        WordVocabulary(["a", "b", "a"])
    with pytest.raises(ValueError, match="got '<s>' twice"):
        WordVocabulary(["<s>"])


def test_a_size_without_room_for_words_is_refused():
    with pytest.raises(ValueError, match="max_size must be at least 5, got 4"):
        WordVocabulary.build(LINES, max_size=4)


# Pieces


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize("vocab_size", [5, 5000])
def test_a_size_the_text_does_not_allow_is_refused_by_name(model_type, vocab_size):
    with pytest.raises(ValueError, match=rf"sparsegen: vocab_size must be one this text allows, got {vocab_size}: "):
        SentencePieceVocabulary.build(LINES, vocab_size=vocab_size, model_type=model_type)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_pieces_are_learnt_the_same_each_time_and_in_silence(model_type, capfd):
    first, again = (SentencePieceVocabulary.build(LINES, vocab_size=SIZE, model_type=model_type) for _ in range(2))
    assert first.state() == again.state()
    assert len(first) == SIZE
    assert capfd.readouterr() == ("", "")


def test_unknown_characters_are_unknown_pieces_with_their_surface():
    pieces = SentencePieceVocabulary.build(LINES, vocab_size=SIZE)
    assert UNK in pieces.encode("cat Ž")
    assert "".join(pieces.tokens("cat Ž")) == "\u2581cat\u2581Ž"
    assert pieces.decode(pieces.encode("cat Ž")) == "cat <unk>"


def test_long_lines_are_learnt_from_as_well():
    # SentencePiece leaves lines of more than 4192 bytes out unless told otherwise.
    long = " ".join("xyz"[: 1 + i % 3] * (1 + i % 7) for i in range(800))
    assert len(long) > 4192
    pieces = SentencePieceVocabulary.build([long, "ab"], vocab_size=12, model_type="bpe")
    assert UNK not in pieces.encode("xyz")


def test_what_pieces_cannot_be_learnt_from_is_refused():
    with pytest.raises(ValueError, match="model_type must be 'unigram' or 'bpe', got 'char'"):
        SentencePieceVocabulary.build(LINES, vocab_size=30, model_type="char")
    with pytest.raises(ValueError, match="lines must be lines with words, got none"):
        SentencePieceVocabulary.build(["", " <unk> "], vocab_size=30)


def test_pieces_without_sentencepiece_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ImportError, match=r"sentencepiece, .* pip install 'sparsegen\[experiments\]'"):
        SentencePieceVocabulary.build(LINES, vocab_size=30)
