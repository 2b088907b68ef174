"""The paper's encoder-decoder: a BiLSTM reads the source, an LSTM with input feeding writes the target, and each word
written attends to the source by a map with a dial."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

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
    """A BiLSTM over word vectors. The states of padding mean nothing; those of words do not depend on it.

    Both directions go step by step together, one of them over the words of each sentence in their opposite order.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.source_words, config.embedding, padding_idx=PAD)
        self.dropout = config.dropout
        self.lstm = nn.LSTM(  # holds the weights
            config.embedding, config.hidden // 2, config.layers, bidirectional=True, batch_first=True
        )

    def forward(
        self, source: Tensor, lengths: Tensor, precision: torch.dtype = torch.float32
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the states of every word, and the last h and c of each layer."""
        opposite = _opposite(lengths.to(source.device), source.shape[1])
        states = dropped(self.embedding(source), self.dropout, self.training)
        hs, cs = [], []
        for layer in range(self.lstm.num_layers):
            if layer:
                states = dropped(states, self.dropout, self.training)
            states, h, c = self._layer(layer, states, opposite, precision)
            hs.append(h)
            cs.append(c)
        return states, tuple(hs), tuple(cs)

    def _layer(self, layer: int, x: Tensor, opposite: Tensor, precision: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """The states of a layer, and its h and c after the last word, both directions side by side."""
        batch, half = x.shape[0], self.lstm.hidden_size
        inputs = {f"l{layer}": x, f"l{layer}_reverse": _along(x, opposite)}
        ways = [self._gates(name, words, precision) for name, words in inputs.items()]
        h, c = x.new_zeros(2 * batch, half), x.new_zeros(2 * batch, half)
        seen: list[tuple[Tensor, Tensor]] = []
        for _ in range(x.shape[1]):
            gates = torch.cat([gates(own) for gates, own in zip(ways, h.split(batch))])
            h, c = lstm_cell(gates, c)
            seen.append((h, c))
        hs, cs = (torch.stack(part, dim=1) for part in zip(*seen))  # (2 batch, source, half)
        there, back = hs.split(batch)
        states = torch.cat([there, _along(back, opposite)], dim=2)
        # Either way ends at the last step that is a word: the first word's opposite.
        end = opposite[:, :1].repeat(2, 1)
        last_h, last_c = (torch.cat(_along(part, end).squeeze(1).split(batch), dim=1) for part in (hs, cs))
        return states, last_h, last_c

    def _gates(self, name: str, x: Tensor, precision: torch.dtype) -> SharedLinear:
        """What goes into the gates of one direction at each step: of the words, and of its own last state."""
        of = {part: getattr(self.lstm, f"{part}_{name}") for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        offsets = linear(x.transpose(0, 1), of["weight_ih"], precision) + (of["bias_ih"] + of["bias_hh"])
        return SharedLinear(of["weight_hh"], offsets, precision)


def _opposite(lengths: Tensor, steps: int) -> Tensor:
    """Where each word of a sentence stands when its words are in the opposite order, (batch, steps); padding stays.

    >>> _opposite(torch.tensor([3, 1]), 3)
    tensor([[2, 1, 0],
            [0, 1, 2]])
    """
    at = torch.arange(steps, device=lengths.device)
    return torch.where(at < lengths[:, None], lengths[:, None] - 1 - at, at)


def _along(x: Tensor, steps: Tensor) -> Tensor:
    """Some steps of each row of x (batch, steps, width)."""
    return x.gather(1, steps[:, :, None].expand(-1, -1, x.shape[2]))


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
        states, h, c = self.encoder(source, lengths, precision)
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
