"""Measures of text against values computed by hand."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsegen.experiments.seq2seq import text_metrics
from sparsegen.experiments.seq2seq.text_metrics import ROUGES, bleu, exact_match, rouge, rouge_recall


def of(scores):
    return [scores[name] for name in ROUGES]


# BLEU


def test_bleu_of_one_line_by_hand():
    # Precisions 5/6, 3/5, 2/4, 1/3 of the orders 1 to 4; hypothesis and reference have six words each.
    result = bleu(["the cat sat on a mat"], [("the cat sat on the mat",)])
    assert result.score == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_bleu_pools_lines_and_punishes_shortness():
    # 4 of 4 words, all matches; the references have 4 + 4 words, the hypotheses 4 + 0.
    result = bleu(["a b c d", ""], [("a b c d",), ("e f g h",)])
    assert result.score == pytest.approx(100 * math.exp(1 - 8 / 4))


def test_bleu_takes_matches_from_any_reference_and_lines_may_have_more_or_fewer():
    lines = ["a b c d e", "f g h i"]
    many = [("a b c x x", "x x c d e", "z"), ("f g h i",)]
    # Words 9/9; pairs 4 + 3 of 4 + 3; triples 2 of 3 and 2 of 2; fours 0 of 2 and 1 of 1.
    assert bleu(lines, many).score == pytest.approx(100 * (1 * 1 * 4 / 5 * 1 / 3) ** 0.25)


def test_bleu_says_how_it_was_computed_and_takes_words_as_they_are(caplog):
    result = bleu(["It 's 3.5 %-ish , n't .", "a ."], [("it 's 3.5 %-ish , n't .",), ("a .",)])
    assert {"tok:none", "case:mixed"} <= set(result.signature.split("|"))
    assert result.score < 100  # It and it differ
    assert "tok:13a" in bleu(["a"], [("a",)], tokenize="13a").signature
    assert not caplog.records


# ROUGE


def test_rouge_by_hand():
    # Words: 3 of 4 and 3 of 5. Pairs: "a b" of 3 and 4. Longest common subsequence: a b d.
    scores = rouge(["a b c d"], [("a b x d y",)])
    assert of(scores) == pytest.approx([100 * 6 / 9, 100 * 2 / 7, 100 * 6 / 9])


def test_rouge_of_another_order_differs_in_the_longest_subsequence():
    assert of(rouge(["c b a"], [("a b c",)])) == pytest.approx([100, 0, 100 / 3])


def test_rouge_takes_the_best_reference_and_averages_lines():
    scores = rouge(["a b", "a b"], [("x y", "a b"), ("x y",)])
    assert of(scores) == pytest.approx([50, 50, 50])


def test_hashes_and_unknown_words_count_as_words():
    # rouge-score's own tokeniser would see only "rose" and "unk".
    assert of(rouge(["#.# % rose <unk>"], [("## % rose <unk>",)])) == pytest.approx([75, 200 / 3, 75])


def test_stems_are_compared_only_if_asked_for():
    lines, references = ["dogs running"], [("dog runs",)]
    assert of(rouge(lines, references)) == [0, 0, 0]
    assert of(rouge(lines, references, stem=True)) == pytest.approx([100, 100, 100])
    assert rouge_recall(lines, references)["rouge1"] == 0
    assert rouge_recall(lines, references, stem=True)["rouge1"] == pytest.approx(100)


def test_recall_does_not_punish_length():
    assert of(rouge_recall(["a b x x x x"], [("a b c d",)])) == pytest.approx([50, 100 / 3, 50])


def test_recall_over_several_references_pools_matches_or_takes_the_best():
    lines, references = ["a b c"], [("a b", "c x y z w v")]
    assert of(rouge_recall(lines, references)) == pytest.approx([100 * 3 / 8, 100 * 1 / 6, 100 * 3 / 8])
    assert of(rouge_recall(lines, references, several="best")) == pytest.approx([100, 100, 100])


def test_recall_counts_the_first_bytes_only_and_cuts_words():
    line = "a" * 70 + " bcde fgh"  # byte 75 ends after bcde
    reference = [("bcde fgh bcd",)]
    assert rouge_recall([line], reference)["rouge1"] == pytest.approx(100 / 3)
    assert rouge_recall([line], reference, limit_bytes=74)["rouge1"] == pytest.approx(100 / 3)  # now it is bcd
    assert rouge_recall([line], reference, limit_bytes=73)["rouge1"] == 0
    assert rouge_recall([line], reference, limit_bytes=100)["rouge1"] == pytest.approx(200 / 3)


def test_a_character_cut_in_its_bytes_is_dropped():
    line = "x" * 70 + " abcé"  # é is bytes 75 and 76
    assert rouge_recall([line], [("abc",)])["rouge1"] == pytest.approx(100)
    assert rouge_recall([line], [("abcé",)])["rouge1"] == 0
    assert rouge_recall([line], [("abcé",)], limit_bytes=76)["rouge1"] == pytest.approx(100)


def test_lines_too_short_for_pairs_score_no_pairs():
    assert of(rouge_recall(["a"], [("a", "b")])) == pytest.approx([50, 0, 50])
    assert of(rouge([""], [("a",)])) == [0, 0, 0]


# All of them


@given(st.lists(st.lists(st.sampled_from("abc#"), min_size=4, max_size=8).map(" ".join), min_size=1, max_size=4))
def test_a_line_that_is_its_reference_is_perfect(lines):
    references = [(line, "x") for line in lines]
    assert exact_match(lines, references) == 1
    assert bleu(lines, references).score == pytest.approx(100)
    assert of(rouge(lines, references)) == pytest.approx([100] * 3)
    assert of(rouge_recall(lines, references, several="best")) == pytest.approx([100] * 3)


def test_exact_match_is_a_share_over_any_reference():
    assert exact_match(["a b", "a", "b  a", "c"], [("x", "a b"), ("b",), ("b a",), ("c c",)]) == 0.5


@pytest.mark.parametrize("measure", [bleu, rouge, rouge_recall, exact_match])
def test_lines_that_do_not_fit_together_are_refused(measure):
    with pytest.raises(ValueError, match="references must be as many as the 2 hypotheses, got 1"):
        measure(["a", "b"], [("a",)])
    with pytest.raises(ValueError, match="hypotheses must be at least one line, got none"):
        measure([], [])
    with pytest.raises(ValueError, match=r"references row 1 must be a tuple of at least one line, got \(\)"):
        measure(["a", "b"], [("a",), ()])
    with pytest.raises(ValueError, match="references row 0 must be a tuple of at least one line, got 'ab'"):
        measure(["ab"], ["ab"])  # a string would be taken as a reference for each letter


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="limit_bytes must be an integer at least 1, got 0"):
        rouge_recall(["a"], [("a",)], limit_bytes=0)
    with pytest.raises(ValueError, match="several must be 'average' or 'best', got 'sum'"):
        rouge_recall(["a"], [("a",)], several="sum")


@pytest.mark.parametrize(
    ("measure", "hidden", "named"),
    [(bleu, "sacrebleu.metrics", "sacrebleu"), (rouge, "rouge_score", "rouge-score")],
)
def test_measures_without_their_modules_name_the_extra(monkeypatch, measure, hidden, named):
    text_metrics._scorer.cache_clear()
    monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(ImportError, match=rf"needs {named}, .* pip install 'sparsegen\[experiments\]'"):
        measure(["a"], [("a",)])
