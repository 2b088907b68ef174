"""Pairs of sentences as padded batches, in an order that depends on seed and epoch alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegen._table.checks import fail
from sparsegen.experiments.seq2seq.vocabulary import BOS, EOS, PAD

POOL = 100  # batches whose sentences are sorted by length together


@dataclass(frozen=True)
class Batch:
    """Padded word numbers; the target stands between BOS and EOS."""

    source: Tensor  # (batch, source)
    lengths: Tensor  # (batch,), on the CPU as packing wants it
    target: Tensor  # (batch, target)

    def __len__(self) -> int:
        return self.source.shape[0]

    def rows(self, begin: int, end: int) -> Batch:
        """Return some of the pairs, padded no more than they need."""
        lengths, target = self.lengths[begin:end], self.target[begin:end]
        words = int((target != PAD).sum(1).max()) if len(target) else 0
        return Batch(self.source[begin:end, : int(lengths.max()) if len(lengths) else 0], lengths, target[:, :words])


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return rows of numbers as one tensor, filled up with PAD.

    Examples
    --------
    >>> pad([[4, 5], [6]])
    tensor([[4, 5],
            [6, 0]])
    """
    out = torch.full((len(rows), max(map(len, rows))), PAD, dtype=torch.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row, dtype=torch.int64)
    return out


class Pairs:
    """Encoded sentence pairs; longer ones than `max_words` are left out and counted.

    Examples
    --------
    >>> pairs = Pairs([[4, 5], [6]], [[7], [8, 9]])
    >>> [len(batch) for batch in pairs.in_order(1)]
    [1, 1]
    """

    def __init__(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], max_words: int | None = None
    ) -> None:
        if len(sources) != len(targets):
            fail(ValueError, "targets", f"as many as sources, {len(sources)}", len(targets))
        kept = [i for i, (s, t) in enumerate(zip(sources, targets)) if s and t and _fits(s, t, max_words)]
        self.left_out = len(sources) - len(kept)
        if not kept:
            fail(ValueError, "the corpus", "at least one pair with words on both sides, none too long", "none")
        self.sources = [list(sources[i]) for i in kept]
        self.targets = [[BOS, *targets[i], EOS] for i in kept]

    def __len__(self) -> int:
        return len(self.sources)

    def fingerprint(self) -> str:
        """Return a short text that differs for other pairs, so that a run does not go on with another corpus."""
        return blake2b(repr((self.sources, self.targets)).encode(), digest_size=16).hexdigest()

    def batch(self, rows: Any) -> Batch:
        """Return the pairs of these numbers."""
        sources = [self.sources[i] for i in rows]
        return Batch(pad(sources), torch.tensor([len(s) for s in sources]), pad([self.targets[i] for i in rows]))

    def in_order(self, size: int) -> Iterator[Batch]:
        """Yield all pairs, those of like length together."""
        order = sorted(range(len(self)), key=lambda i: (len(self.sources[i]), len(self.targets[i])))
        return (self.batch(order[at : at + size]) for at in range(0, len(order), size))

    def epoch(self, size: int, seed: int, epoch: int) -> list[np.ndarray]:
        """Return the pairs' numbers batch by batch: shuffled, of like length inside a batch, batches shuffled again."""
        random = np.random.default_rng([seed, epoch])
        order, batches = random.permutation(len(self)), []
        for at in range(0, len(order), size * POOL):
            pool = order[at : at + size * POOL]
            # By the target first: a step of the decoder is the dearer one.
            pool = pool[np.lexsort([[len(side[i]) for i in pool] for side in (self.sources, self.targets)])]
            batches += [pool[i : i + size] for i in range(0, len(pool), size)]
        random.shuffle(batches)
        return batches


def encode(split: Any, source: Any, target: Any, max_words: int | None) -> Pairs:
    """Return a split of a corpus as numbers, by its two vocabularies."""
    sources = [source.encode(line) for line in split.sources]
    return Pairs(sources, [target.encode(line) for line in split.targets], max_words)


def _fits(source: Sequence[int], target: Sequence[int], max_words: int | None) -> bool:
    return max_words is None or max(len(source), len(target)) <= max_words
