"""Measures of generated text against references: BLEU by sacrebleu, ROUGE by rouge-score.

Text is words separated by spaces and is compared as it is. References are given as a tuple of lines for each
hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any

from sparsegen._table.checks import fail
from sparsegen._table.extras import missing

ROUGES = ("rouge1", "rouge2", "rougeL")


@dataclass(frozen=True)
class Bleu:
    """A corpus BLEU from 0 to 100, and sacrebleu's account of how it was computed."""

    score: float
    signature: str


def _check(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Refuse sides of different length, lines without reference and no lines at all."""
    if len(hypotheses) != len(references):
        fail(ValueError, "references", f"as many as the {len(hypotheses)} hypotheses", len(references))
    if not hypotheses:
        fail(ValueError, "hypotheses", "at least one line", "none")
    for i, lines in enumerate(references):
        if isinstance(lines, str) or not lines:
            fail(ValueError, f"references row {i}", "a tuple of at least one line", repr(lines))


def bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, tokenize: str = "none") -> Bleu:
    """Corpus BLEU.

    Parameters
    ----------
    hypotheses : sequence of str
    references : sequence of sequences of str
        Some lines may have more references than others.
    tokenize : str, default "none"
        A tokeniser of sacrebleu. The default splits at spaces, for text that is tokenised already; scores compare only
        where the signatures are the same.

    Examples
    --------
    >>> result = bleu(["the cat sat on the mat"], [("the cat sat on the mat",)])
    >>> round(result.score, 1), result.signature.split("|")[3]
    (100.0, 'tok:none')
    """
    _check(hypotheses, references)
    try:
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise missing("this measure", "sacrebleu", "experiments") from error
    metric = BLEU(tokenize=tokenize, force=True)  # force: tokenised text is what we mean to give
    streams = [list(stream) for stream in zip_longest(*references)]  # None where a line has fewer references
    result = metric.corpus_score(list(hypotheses), streams)
    return Bleu(result.score, str(metric.get_signature()))


class _Words:
    """Words at spaces: # and <unk>, which rouge-score's own tokeniser drops, are words like others."""

    def __init__(self, stem: bool):
        from nltk.stem import porter

        self._stem = porter.PorterStemmer().stem if stem else None

    def tokenize(self, text: str) -> list[str]:
        words = text.split()
        # As rouge-score and ROUGE-1.5.5 do, short words are left as they are.
        return [self._stem(word) if len(word) > 3 else word for word in words] if self._stem else words


@cache
def _scorer(stem: bool) -> Any:
    try:
        from rouge_score import rouge_scorer

        return rouge_scorer.RougeScorer(list(ROUGES), tokenizer=_Words(stem))
    except ImportError as error:
        raise missing("this measure", "rouge-score", "experiments") from error


def rouge(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, stem: bool = False) -> dict[str, float]:
    """F1 of ROUGE-1, ROUGE-2 and ROUGE-L, from 0 to 100, averaged over the lines.

    Of several references the one with the highest F1 counts, for each measure by itself.

    Parameters
    ----------
    hypotheses : sequence of str
    references : sequence of sequences of str
    stem : bool, default False
        Compare stems by Porter's rules.

    Examples
    --------
    >>> scores = rouge(["a big cat"], [("a cat", "one dog")])
    >>> {name: round(score, 1) for name, score in scores.items()}
    {'rouge1': 80.0, 'rouge2': 0.0, 'rougeL': 80.0}
    """
    _check(hypotheses, references)
    scorer = _scorer(bool(stem))
    rows = [scorer.score_multi(list(lines), line) for line, lines in zip(hypotheses, references)]
    return {name: 100 * sum(row[name].fmeasure for row in rows) / len(rows) for name in ROUGES}


def rouge_recall(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    limit_bytes: int = 75,
    stem: bool = False,
    several: str = "average",
) -> dict[str, float]:
    """Recall of ROUGE-1, ROUGE-2 and ROUGE-L with hypotheses of limited length, as in DUC 2003 and 2004.

    A hypothesis counts with its first 75 bytes in UTF-8, even if that cuts a word in two: the rest of the word counts
    as a word. A character of which only some bytes are left is dropped. References stay whole.

    Parameters
    ----------
    hypotheses : sequence of str
    references : sequence of sequences of str
    limit_bytes : int, default 75
    stem : bool, default False
        Compare stems by Porter's rules. DUC did.
    several : {"average", "best"}, default "average"
        What counts of several references. "average" is what ROUGE-1.5.5 does unless told otherwise: matches and words
        are summed over the references of a line before they are divided. "best" takes the highest recall, for each
        measure by itself. Neither leaves references out in turn (jackknifing).

    Examples
    --------
    >>> scores = rouge_recall(["a big cat"], [("a cat", "one dog sees a cat")])
    >>> {name: round(score, 1) for name, score in scores.items()}
    {'rouge1': 57.1, 'rouge2': 0.0, 'rougeL': 57.1}
    """
    _check(hypotheses, references)
    if not isinstance(limit_bytes, int) or limit_bytes < 1:
        fail(ValueError, "limit_bytes", "an integer at least 1", repr(limit_bytes))
    if several not in ("average", "best"):
        fail(ValueError, "several", "'average' or 'best'", repr(several))
    scorer = _scorer(bool(stem))
    sums = dict.fromkeys(ROUGES, 0.0)
    for line, lines in zip(hypotheses, references):
        short = line.encode()[:limit_bytes].decode(errors="ignore")
        rows = [scorer.score(reference, short) for reference in lines]
        sizes = [len(reference.split()) for reference in lines]
        for name in ROUGES:
            sums[name] += _recall([row[name].recall for row in rows], _weights(name, sizes), several)
    return {name: 100 * sums[name] / len(hypotheses) for name in ROUGES}


def _weights(name: str, sizes: Sequence[int]) -> list[int]:
    """How many words, or pairs of words, each reference has."""
    return [max(size - 1, 0) for size in sizes] if name == "rouge2" else list(sizes)


def _recall(recalls: Sequence[float], weights: Sequence[int], several: str) -> float:
    """The recall of one line over its references."""
    if several == "best":
        return max(recalls)
    total = sum(weights)
    return sum(r * w for r, w in zip(recalls, weights)) / total if total else 0.0


def exact_match(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Share of hypotheses that are the same words as one of their references.

    >>> exact_match(["a cat", "a dog"], [("a cat", "one cat"), ("a  big dog",)])
    0.5
    """
    _check(hypotheses, references)
    same = (any(line.split() == other.split() for other in lines) for line, lines in zip(hypotheses, references))
    return sum(same) / len(hypotheses)
