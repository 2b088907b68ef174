"""The paper's encoder-decoder: a BiLSTM reads the source, an LSTM with input feeding writes the target, and each word
written attends to the source by a map with a dial."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import sparsegen.torch as sgt
from sparsegen._table.checks import fail, one_of
from sparsegen.experiments.seq2seq.recurrence import SharedLinear, dropped, linear, lstm_cell, tanh
from sparsegen.experiments.seq2seq.vocabulary import PAD
from sparsegen.experiments.seq2seq.word_loss import word_loss

ATTENTIONS = ("additive", "general", "dot")


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a model and the map of its attention.

    Examples
    --------
    >>> ModelConfig(100, 90, mapping="sparsegen_lin", control=0.75).controls()
    {'lam': 0.75}
    """

    source_words: int
    target_words: int
    embedding: int = 500
    hidden: int = 500
    layers: int = 2
    dropout: float = 0.3
    attention: str = "additive"
    mapping: str = "softmax"
    control: float | None = None  # of the map: lam, q or temperature
    learnable: bool = False

    def __post_init__(self) -> None:
        for name in ("source_words", "target_words", "embedding", "hidden", "layers"):
            if getattr(self, name) < 1:
                fail(ValueError, name, "a positive integer", getattr(self, name))
        if self.hidden % 2:
            fail(ValueError, "hidden", "even, as two directions share it", self.hidden)
        if not 0 <= self.dropout < 1:
            fail(ValueError, "dropout", "at least 0 and below 1", self.dropout)
        if self.attention not in ATTENTIONS:
            fail(ValueError, "attention", one_of(ATTENTIONS), repr(self.attention))

    def controls(self) -> dict[str, float]:
        """Return the control by its name in the table of maps."""
        from sparsegen._table.maps import MAPS

        if self.mapping not in MAPS:
            fail(ValueError, "mapping", one_of(MAPS), repr(self.mapping))
        names = MAPS[self.mapping].controls
        if self.control is None:
            return {}
        if not names:
            fail(ValueError, "control", f"absent for mapping {self.mapping!r}, which has none", self.control)
        return {names[0]: self.control}

    def state(self) -> dict[str, Any]:
        """Return the fields, for a checkpoint."""
        return asdict(self)


class Memory(NamedTuple):
    """What the decoder reads: encoder states, what attention needs of them, and which are words."""

    states: Tensor  # (batch, source, hidden)
    projected: Tensor
    mask: Tensor  # (batch, source)


class State(NamedTuple):
    """Where the decoder is: its LSTM states and the attentional vector that is fed to the next step."""

    h: tuple[Tensor, ...]
    c: tuple[Tensor, ...]
    feed: Tensor

    def pick(self, rows: Tensor) -> State:
        """Return the state of some rows, for beam search."""
        return State(tuple(h[rows] for h in self.h), tuple(c[rows] for c in self.c), self.feed[rows])


class Encoder(nn.Module):
    """A BiLSTM over word vectors; padding is neither read nor written."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.source_words, config.embedding, padding_idx=PAD)
        self.dropout = config.dropout
        between = config.dropout if config.layers > 1 else 0.0
        self.lstm = nn.LSTM(
            config.embedding, config.hidden // 2, config.layers, bidirectional=True, batch_first=True, dropout=between
        )

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the states of every word, and the last h and c of each layer."""
        vectors = dropped(self.embedding(source), self.dropout, self.training)
        packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
        states, (h, c) = self.lstm(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        return states, _both_directions(h), _both_directions(c)


def _both_directions(last: Tensor) -> tuple[Tensor, ...]:
    """From (layers * 2, batch, half) to one (batch, hidden) a layer."""
    return tuple(torch.cat([last[i], last[i + 1]], dim=1) for i in range(0, last.shape[0], 2))


class Decoder(nn.Module):
    """A stack of LSTM cells that sees the last word and the last attentional vector, and attends to the source."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.hidden
        self.embedding = nn.Embedding(config.target_words, config.embedding, padding_idx=PAD)
        self.dropout = config.dropout
        self.cells = nn.ModuleList(
            nn.LSTMCell(config.embedding + size if layer == 0 else size, size) for layer in range(config.layers)
        )
        options: dict[str, Any] = {"mapping": config.mapping, "learnable": config.learnable, **config.controls()}
        self.attention: sgt.AdditiveAttention | sgt.DotAttention
        if config.attention == "additive":
            self.attention = sgt.AdditiveAttention(size, size, **options)
        else:
            self.attention = sgt.DotAttention(size, size, general=config.attention == "general", **options)
        self.combine = nn.Linear(2 * size, size, bias=False)

    def steps(
        self, words: Tensor, state: State, memory: Memory, precision: torch.dtype = torch.float32
    ) -> Iterator[tuple[Tensor, Tensor, State]]:
        """Read word vectors (batch, steps, embedding); yield the attentional vector, the weights and the next state."""
        maps = [self._gates(layer, words, precision) for layer in range(len(self.cells))]
        kept = dropped(torch.ones_like(state.feed).expand(words.shape[1], -1, -1), self.dropout, self.training)
        combine = SharedLinear(self.combine.weight, torch.zeros_like(kept), precision)
        for scale in kept:
            x, hs, cs = state.feed, [], []
            for layer, gates in enumerate(maps):
                h, c = lstm_cell(gates(torch.cat([x, state.h[layer]], dim=1)), state.c[layer])
                hs.append(h)
                cs.append(c)
                x = dropped(h, self.dropout, self.training) if layer + 1 < len(maps) else h
            context, weights = self.attention(
                x.unsqueeze(1), memory.states, mask=memory.mask, projected=memory.projected
            )
            out = tanh(combine(torch.cat([context.squeeze(1), x], dim=1))) * scale
            state = State(tuple(hs), tuple(cs), out)
            yield out, weights.squeeze(1), state

    def _gates(self, layer: int, words: Tensor, precision: torch.dtype) -> SharedLinear:
        """The linear map of a layer's cell at each step: of what is below it and of its own last state."""
        cell: Any = self.cells[layer]
        inner, bias = cell.weight_ih, cell.bias_ih + cell.bias_hh
        offsets = bias.expand(words.shape[1], words.shape[0], -1)
        if layer == 0:  # the words are known beforehand, so their part is one product
            seen, inner = inner.split([words.shape[2], inner.shape[1] - words.shape[2]], dim=1)
            offsets = offsets + linear(words.transpose(0, 1), seen, precision)
        return SharedLinear(torch.cat([inner, cell.weight_hh], dim=1), offsets, precision)

    def step(self, word: Tensor, state: State, memory: Memory) -> tuple[Tensor, Tensor, State]:
        """Read one word vector (batch, embedding); return what :meth:`steps` yields."""
        return next(self.steps(word.unsqueeze(1), state, memory))


class Seq2Seq(nn.Module):
    """The whole model; called with a batch it returns the sum of losses, the number of words and of right guesses.

    Examples
    --------
    >>> import torch
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> model = Seq2Seq(ModelConfig(10, 10, embedding=8, hidden=8, layers=1, mapping="sparsemax"))
    >>> source, target = torch.tensor([[4, 5, 6], [7, 8, 0]]), torch.tensor([[2, 4, 5, 3], [2, 6, 3, 0]])
    >>> loss, words, right = model(source, torch.tensor([3, 2]), target)
    >>> int(words)
    5
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.generator = nn.Linear(config.hidden, config.target_words)
        for name, weight in self.named_parameters():  # as the OpenNMT set-up does; a learnable control starts as given
            if not name.startswith("decoder.attention.map"):
                nn.init.uniform_(weight, -0.1, 0.1)
        for embedding in (self.encoder.embedding, self.decoder.embedding):
            nn.init.zeros_(embedding.weight[PAD].detach())

    def read(self, source: Tensor, lengths: Tensor, precision: torch.dtype = torch.float32) -> tuple[Memory, State]:
        """Encode a batch; return what the decoder reads and where it starts."""
        states, h, c = self.encoder(source, lengths)
        memory = Memory(states, self.decoder.attention.project_keys(states), source != PAD)
        return memory, State(h, c, states.new_zeros(states.shape[0], states.shape[2]))

    def outputs(self, memory: Memory, state: State, target: Tensor, precision: torch.dtype = torch.float32) -> Tensor:
        """Return the attentional vectors (batch, words, hidden) under teacher forcing."""
        words = dropped(self.decoder.embedding(target), self.config.dropout, self.training)
        return torch.stack([out for out, _, _ in self.decoder.steps(words, state, memory, precision)], dim=1)

    def forward(
        self, source: Tensor, lengths: Tensor, target: Tensor, precision: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the summed cross-entropy of the target's words, their number, and how many were ranked first.

        Those ranked first are counted in evaluation only; see :func:`.word_loss`.
        """
        memory, state = self.read(source, lengths, precision)
        out, wanted = self.outputs(memory, state, target[:, :-1], precision), target[:, 1:]
        words = wanted != PAD
        generator = self.generator
        loss, right = word_loss(out[words], generator.weight, generator.bias, wanted[words], precision)
        return loss, words.sum(), right
