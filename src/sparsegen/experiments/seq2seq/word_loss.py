"""The loss of a model's last layer, whose scores of every word are never all in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

ROWS = 512  # whose scores are computed together: enough for a product, few enough for a cache
UNIT = 64  # rows are filled up to a multiple of it: a product of a size not seen before is compiled first


class WordLoss(NamedTuple):
    """Of some words: the summed cross-entropy, and how many were ranked first."""

    loss: Tensor
    right: Tensor


class _Slopes(NamedTuple):
    """What the summed loss changes by with the inputs, weights and bias of the last layer."""

    x: Tensor
    weight: Tensor
    bias: Tensor


class _Scores:
    """Room for the scores of some rows, used again by the next: a new page of memory costs as much as its product."""

    def __init__(self, weight: Tensor, bias: Tensor, rows: int) -> None:
        self.weight, self.bias = weight, bias
        self._rounded = weight.new_empty(rows, len(weight))
        self._scores, self._log_p = (bias.new_empty(rows, len(weight)) for _ in range(2))

    def log_probabilities(self, x: Tensor) -> Tensor:
        """Return those of every word; they stand until the next call."""
        rounded, scores, log_p = (room[: len(x)] for room in (self._rounded, self._scores, self._log_p))
        scores.copy_(torch.mm(x, self.weight.t(), out=rounded)).add_(self.bias)
        return torch.log_softmax(scores, dim=1, out=log_p)

    def add_slopes(self, slopes: _Slopes, rows: slice, log_p: Tensor, wanted: Tensor, x: Tensor) -> None:
        """Add what some rows give; their log-probabilities are overwritten. Rows beyond the words wanted are void."""
        error, n = log_p.exp_(), len(wanted)
        error[torch.arange(n), wanted] -= 1
        error[n:] = 0
        rounded = self._rounded[: len(x)].copy_(error)
        slopes.x[rows] = torch.mm(rounded, self.weight)[:n]
        slopes.weight.add_(torch.mm(rounded.t(), x))
        slopes.bias.add_(error.sum(0))


class _WordLoss(torch.autograd.Function):
    """The loss, and its slopes on the way: they only wait for a factor, and the scores need not be kept."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, wanted: Tensor, precision: torch.dtype, training: bool
    ) -> tuple[Tensor, Tensor]:
        filled = nn.functional.pad(x.to(precision), (0, 0, 0, -len(x) % UNIT))
        scores = _Scores(weight.to(precision), bias, min(len(filled), ROWS))
        loss, right = x.new_zeros((), dtype=torch.float64), wanted.new_zeros(())
        slopes = _Slopes(*(torch.zeros_like(part) for part in (x, weight, bias))) if training else None
        for begin in range(0, len(x), ROWS):
            rows = slice(begin, begin + ROWS)
            words, log_p = wanted[rows], scores.log_probabilities(filled[rows])
            loss -= log_p[: len(words)].gather(1, words[:, None]).sum(dtype=torch.float64)
            if slopes is None:
                right += (log_p[: len(words)].argmax(1) == words).sum()
            else:
                scores.add_slopes(slopes, rows, log_p, words, filled[rows])
        ctx.slopes = slopes
        ctx.mark_non_differentiable(right)
        return loss.to(x.dtype), right

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *(grads[0] * part for part in ctx.slopes), None, None, None


def word_loss(
    x: Tensor, weight: Tensor, bias: Tensor, wanted: Tensor, precision: torch.dtype = torch.float32
) -> WordLoss:
    """Return the summed cross-entropy of words under ``softmax(x W' + b)``, and how many of them rank first.

    Those ranked first are counted where no gradient is asked for: it would cost training time for a number not needed.

    Examples
    --------
    >>> with torch.no_grad():
    ...     loss, right = word_loss(torch.eye(3), 10 * torch.eye(3), torch.zeros(3), torch.tensor([0, 1, 0]))
    >>> round(float(loss), 3), int(right)
    (10.0, 2)
    """
    return WordLoss(*_WordLoss.apply(x, weight, bias, wanted, precision, torch.is_grad_enabled()))
