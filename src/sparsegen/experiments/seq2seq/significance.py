"""Whether one row of a table is ahead of another: intervals over seeds and sentences, and sacrebleu's paired test.

Two models of one seed write the same sentences, so their scores are compared sentence by sentence. A seed is a model
and a sentence a case: both are drawn again, with replacement, to see how else the difference could have come out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparsegen._table.checks import fail
from sparsegen._table.extras import missing

DRAWS = 2000
LEVEL = 0.95
ORDERS = 4  # of the n-grams of BLEU

Combine = Callable[[np.ndarray], np.ndarray]


def lead(
    mine: np.ndarray, base: np.ndarray, combine: Combine, *, draws: int = DRAWS, seed: int = 0
) -> dict[str, float]:
    """Return by how much one row is ahead of another, with an interval from drawing seeds and sentences again.

    Parameters
    ----------
    mine, base : array of shape (seeds, lines, statistics)
        What is added up over lines, of both rows, for the same seeds and lines.
    combine : callable
        From sums (..., statistics) to the measure.
    draws : int
    seed : int
        Of the draws.

    Returns
    -------
    dict
        The mean difference "lead", the ends "low" and "high" of its interval, and "p", the share of draws on the other
        side of 0, both sides counted. With one seed nothing is known of others, and only sentences are drawn.

    Examples
    --------
    >>> right = np.ones((2, 50, 1))
    >>> lead(right, 0 * right, lambda sums: sums[..., 0])
    {'lead': 50.0, 'low': 50.0, 'high': 50.0, 'p': 0.0}
    """
    if mine.shape != base.shape:
        fail(ValueError, "base", f"of the shape of mine, {mine.shape}", base.shape)
    random, (seeds, lines, _) = np.random.default_rng(seed), mine.shape
    times = random.multinomial(lines, np.full(lines, 1 / lines), size=draws).astype(float)  # (draws, lines)
    shares = random.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws) / seeds  # (draws, seeds)
    drawn = [combine(np.einsum("dl,slk->dsk", times, side, optimize=True)) for side in (mine, base)]  # (draws, seeds)
    differences = ((drawn[0] - drawn[1]) * shares).sum(1)
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    tail = min((differences <= 0).mean(), (differences >= 0).mean())
    found = (combine(mine.sum(1)) - combine(base.sum(1))).mean()
    return {"lead": float(found), "low": float(low), "high": float(high), "p": float(min(1.0, 2 * tail))}


def bleu_counts(written: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """Return what BLEU adds up over lines: (lines, 10), right and all n-grams of each order, words, reference words."""
    metric = _metric()
    scores = [metric.corpus_score([line], [[each] for each in wanted]) for line, wanted in zip(written, references)]
    return np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores], dtype=float)


def bleu_of(sums: np.ndarray) -> np.ndarray:
    """Return BLEU of summed counts (..., 10), as sacrebleu has it without smoothing; 0 where an order has no match.

    >>> bleu_of(bleu_counts(["a b c d e"], [("a b c d e",)]).sum(0)).round(1)
    np.float64(100.0)
    """
    right, every = sums[..., :ORDERS], sums[..., ORDERS : 2 * ORDERS]
    words, wanted = sums[..., -2], sums[..., -1]
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.exp(np.log(right / every).mean(-1))
        brevity = np.exp(np.minimum(0, 1 - wanted / words))
    return np.nan_to_num(100 * brevity * precision)


def randomised(written: Sequence[str], base: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the p-value of sacrebleu's paired approximate randomisation between two translations of the same lines."""
    metric = _metric()
    from sacrebleu.significance import PairedTest

    named: list[tuple[str, Sequence[str]]] = [("base", list(base)), ("mine", list(written))]
    streams = [[lines[0] for lines in references]]
    _, scores = PairedTest(named, {"BLEU": metric}, streams, test_type="ar", n_samples=DRAWS)()
    found: Any = scores["BLEU"][1]
    return float(found.p_value)


def _metric() -> Any:
    try:
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise missing("this measure", "sacrebleu", "experiments") from error
    return BLEU(tokenize="none", force=True)  # force: the text is tokenised
