"""Intervals of leads, BLEU from counts, and the paired test of sacrebleu."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.experiments.seq2seq.significance import bleu_counts, bleu_of, lead, randomised
from sparsegen.experiments.seq2seq.text_metrics import bleu

WORDS = list("abcdefgh")


def texts(error, seed, lines=200):
    """References of ten words, and hypotheses of which each word is redrawn with some probability."""
    random = np.random.default_rng(0)
    wanted = [[str(w) for w in random.choice(WORDS, 10)] for _ in range(lines)]
    random = np.random.default_rng(seed)
    wrong = [[str(random.choice(WORDS)) if random.random() < error else w for w in line] for line in wanted]
    return [" ".join(line) for line in wrong], [(" ".join(line),) for line in wanted]


@pytest.mark.parametrize("error", [0.0, 0.2, 0.5])
def test_bleu_of_counts_is_sacrebleus(error):
    written, references = texts(error, 1)
    written = [" ".join(line.split()[:9]) for line in written]  # shorter than the reference: brevity counts
    assert bleu_of(bleu_counts(written, references).sum(0)) == pytest.approx(bleu(written, references).score)


def test_bleu_without_a_match_is_nothing():
    assert bleu_of(bleu_counts(["x y"], [("a b",)]).sum(0)) == 0
    assert bleu_of(bleu_counts([""], [("a b",)]).sum(0)) == 0


def counted(error, seeds):
    return np.stack([bleu_counts(*texts(error, seed)) for seed in seeds])


def test_a_better_row_is_ahead_and_an_equal_one_is_not():
    good, other, bad = counted(0.2, (1, 2, 3)), counted(0.2, (4, 5, 6)), counted(0.3, (7, 8, 9))
    found = lead(good, bad, bleu_of)
    assert 0 < found["low"] < found["lead"] < found["high"]
    assert found["p"] < 0.01
    each = [bleu_of(side.sum(1)) for side in (good, bad)]
    assert found["lead"] == pytest.approx((each[0] - each[1]).mean())
    back = lead(bad, good, bleu_of)
    assert (back["lead"], back["low"], back["high"]) == pytest.approx((-found["lead"], -found["high"], -found["low"]))
    level = lead(good, other, bleu_of)
    assert level["low"] < 0 < level["high"]
    assert level["p"] > 0.05


def test_seeds_that_disagree_widen_the_interval():
    base = np.ones((3, 400, 1))
    noise = np.random.default_rng(0).normal(size=(1, 400, 1))
    steady = base + 0.1 + noise
    torn = steady + np.array([-0.5, 0.0, 0.5])[:, None, None]
    widths = []
    for side in (steady, torn):
        found = lead(side, base, lambda sums: sums[..., 0] / 400)
        widths.append(found["high"] - found["low"])
    assert widths[1] > 2 * widths[0]


def test_rows_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match="base must be of the shape of mine"):
        lead(np.ones((1, 2, 3)), np.ones((1, 3, 3)), bleu_of)


def test_sacrebleu_tells_better_from_equal():
    (good, wanted), (other, _), (bad, _) = texts(0.2, 1), texts(0.2, 2), texts(0.35, 3)
    assert randomised(good, bad, wanted) < 0.01
    assert randomised(good, other, wanted) > 0.05
