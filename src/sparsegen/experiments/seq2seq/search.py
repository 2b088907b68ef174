"""From a trained model to text: greedy and beam search, unknown words replaced by what they attend to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegen._table.checks import fail
from sparsegen.experiments.seq2seq.batches import pad
from sparsegen.experiments.seq2seq.model import Memory, Seq2Seq, State
from sparsegen.experiments.seq2seq.vocabulary import BOS, EOS, PAD, UNK

LONGEST = 250  # words a translation may have, however long the source


@dataclass(frozen=True, eq=False)
class Translation:
    """What was written for one source, and where each word of it looked."""

    text: str
    words: tuple[str, ...]  # one a step, the end mark not among them
    source: tuple[str, ...]
    weights: np.ndarray  # (words, source)
    score: float  # log-probability a word, the end mark counted
    copied: tuple[bool, ...] = ()  # whether a word is the source's, in place of one that is unknown; empty: none is

    @property
    def support(self) -> np.ndarray:
        """Number of source words with positive weight, for each word written."""
        return (self.weights > 0).sum(axis=1)


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A finished sequence of word numbers, without the end mark."""

    ids: list[int]
    weights: Tensor  # (words, source)
    score: float


def _limits(lengths: Tensor, max_words: int | None) -> list[int]:
    """Most words to write for each source."""
    longest = LONGEST if max_words is None else max_words
    return [min(2 * int(n) + 10, longest) for n in lengths]


def _memory_rows(memory: Memory, rows: Tensor) -> Memory:
    return Memory(*(part[rows] for part in memory))


def _log_probabilities(model: Seq2Seq, words: Tensor, state: State, memory: Memory) -> tuple[Tensor, Tensor, State]:
    out, weights, state = model.decoder.step(model.decoder.embedding(words), state, memory)
    scores = model.generator(out)
    scores[:, [PAD, BOS]] = -torch.inf  # never to be written
    return torch.log_softmax(scores, dim=1), weights, state


class _Beams:
    """Hypotheses of one source that still grow, and the best finished one; done when `beam` have finished."""

    def __init__(self, beam: int, limit: int) -> None:
        self.beam, self.limit = beam, limit
        self.ids: list[list[int]] = [[]]
        self.looked: list[list[Tensor]] = [[]]
        self.totals = torch.zeros(1)
        self.best: Hypothesis | None = None
        self.finished = 0

    def grow(self, log_p: Tensor, weights: Tensor) -> tuple[list[int], list[int]]:
        """Take a step; return which of the old beams go on, and the words they go on with."""
        totals = self.totals[:, None] + log_p
        top = totals.flatten().topk(min(2 * self.beam, totals.numel()))
        if bool(top.values[0].isnan()):  # it ranks above every number
            fail(ValueError, "the model's scores", "numbers", "nan")
        ids: list[list[int]] = []
        looked: list[list[Tensor]] = []
        kept: list[float] = []
        parents: list[int] = []
        words: list[int] = []
        for total, flat in zip(top.values.tolist(), top.indices.tolist()):
            parent, word = divmod(flat, log_p.shape[1])
            if word == EOS:
                self._finish(self.ids[parent], self.looked[parent], total, weights.shape[1])
            elif total > -torch.inf and len(ids) < self.beam:
                ids.append([*self.ids[parent], word])
                looked.append([*self.looked[parent], weights[parent]])
                kept.append(total)
                parents.append(parent)
                words.append(word)
            if len(ids) == self.beam:
                break
        self.ids, self.looked, self.totals = ids, looked, torch.tensor(kept)
        if self._done():
            if ids and self.best is None:  # the limit came before any end mark
                self._finish(ids[0], looked[0], kept[0], weights.shape[1])
            return [], []
        return parents, words

    def _finish(self, ids: list[int], looked: list[Tensor], total: float, source: int) -> None:
        self.finished += 1
        score = total / (len(ids) + 1)
        if self.best is None or score > self.best.score:
            weights = torch.stack(looked) if looked else torch.zeros(0, source)
            self.best = Hypothesis(ids, weights, score)

    def _done(self) -> bool:
        return not self.ids or len(self.ids[0]) >= self.limit or self.finished >= self.beam


@torch.no_grad()
def search(
    model: Seq2Seq, source: Tensor, lengths: Tensor, *, beam: int = 5, max_words: int | None = None
) -> list[Hypothesis]:
    """Return the best hypothesis of each source row by log-probability a word; `beam=1` is greedy search."""
    if beam < 1:
        fail(ValueError, "beam", "a positive integer", beam)
    model.eval()
    memory, state = model.read(source, lengths)
    growing = [_Beams(beam, limit) for limit in _limits(lengths, max_words)]
    owners = list(range(len(growing)))  # whose beam each row is
    words = torch.full((len(owners),), BOS, dtype=torch.int64, device=source.device)
    while owners:
        log_p, weights, state = _log_probabilities(model, words, state, memory)
        log_p, weights = log_p.cpu(), weights.cpu()
        rows: list[int] = []
        chosen: list[int] = []
        next_owners: list[int] = []
        at = 0
        for owner in dict.fromkeys(owners):
            n = len(growing[owner].ids)
            parents, new = growing[owner].grow(log_p[at : at + n], weights[at : at + n])
            rows += [at + parent for parent in parents]
            chosen += new
            next_owners += [owner] * len(new)
            at += n
        owners = next_owners
        if owners:
            index = torch.tensor(rows, device=source.device)
            state, memory = state.pick(index), _memory_rows(memory, index)
            words = torch.tensor(chosen, device=source.device)
    return [found.best for found in growing if found.best is not None]


def _written(
    ids: Sequence[int], weights: np.ndarray, source: Sequence[str], target: Any, replace: bool
) -> tuple[list[str], tuple[bool, ...]]:
    """The words of a hypothesis, an unknown one become the source word it attends to most; and which were."""
    copied = tuple(replace and number == UNK and len(source) > 0 for number in ids)
    words = [
        source[int(row.argmax())] if taken else word for row, word, taken in zip(weights, target.tokens_of(ids), copied)
    ]
    return words, copied


def translate(
    model: Seq2Seq, source_vocabulary: Any, target_vocabulary: Any, lines: Sequence[str], *, beam: int = 5,
    batch_size: int = 32, max_words: int | None = None, replace_unknown: bool = True, device: str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> list[Translation]:  # fmt: skip
    """Translate lines, keeping their order; a line without words gives one without words."""
    encoded = [source_vocabulary.encode(line) for line in lines]
    found: list[Translation] = [Translation("", (), (), np.zeros((0, 0)), 0.0)] * len(lines)
    for rows in _alike(encoded, batch_size):
        lengths = torch.tensor([len(encoded[i]) for i in rows])
        source = pad([encoded[i] for i in rows]).to(device)
        for i, best in zip(rows, search(model, source, lengths, beam=beam, max_words=max_words)):
            weights = best.weights[:, : len(encoded[i])].numpy()
            pieces = source_vocabulary.tokens(lines[i])
            words, copied = _written(best.ids, weights, pieces, target_vocabulary, replace_unknown)
            text = target_vocabulary.decode_tokens(words)
            found[i] = Translation(text, tuple(words), tuple(pieces), weights, best.score, copied)
        if progress is not None:
            progress(len(rows))
    return found


def _alike(encoded: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Numbers of the lines that have words, in batches of like length."""
    order = sorted((i for i, ids in enumerate(encoded) if len(ids)), key=lambda i: len(encoded[i]))
    return (order[at : at + size] for at in range(0, len(order), size))


def mean_support(translations: Sequence[Translation]) -> float:
    """Return the mean number of source words that a written word attends to."""
    sizes = [t.support for t in translations if len(t.words)]
    return float(np.concatenate(sizes).mean()) if sizes else float("nan")


def copied_words(translations: Sequence[Translation], references: Sequence[Sequence[str]]) -> dict[str, int]:
    """Count the words written, those copied from the source, and of these the ones that a reference of the line has."""
    known = [{word for line in lines for word in line.split()} for lines in references]
    copied = [
        word in words
        for found, words in zip(translations, known)
        for word, taken in zip(found.words, found.copied)
        if taken
    ]
    written = sum(len(found.words) for found in translations)
    return {"words": written, "copied": len(copied), "copied_right": sum(copied)}
