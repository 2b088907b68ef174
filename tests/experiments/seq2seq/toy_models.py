"""A toy task, letters to capitals, and models and runs of it."""

from __future__ import annotations

import numpy as np
import torch

from sparsegen.experiments.seq2seq.batches import Pairs
from sparsegen.experiments.seq2seq.generation import ROWS
from sparsegen.experiments.seq2seq.model import ModelConfig, Seq2Seq
from sparsegen.experiments.seq2seq.training import TrainConfig, Trainer
from sparsegen.experiments.seq2seq.vocabulary import WordVocabulary

WORDS = 8
# A control of each row of the paper's table; with it attention is neither even nor on one word.
PAPER = {"softmax": None, "softmax (with temp.)": 0.5, "sparsemax": None, "sparsegen-lin": 0.75, "sparsehg": 0.1}
PAPER |= {"entmax-1.5": None, "sparsegen-softmax": 0.9}


def lines(n=30, seed=0, longest=6):
    """Sentences of letters, to be written in capitals."""
    random = np.random.default_rng(seed)
    sources = [" ".join(random.choice(list("abcdefgh"), random.integers(1, longest + 1))) for _ in range(n)]
    return sources, [line.upper() for line in sources]


SOURCE, TARGET = WordVocabulary("abcdefgh"), WordVocabulary("ABCDEFGH")
STATES = {"source": SOURCE.state(), "target": TARGET.state()}


def pairs(n=30, seed=0, **options):
    sources, targets = lines(n, seed)
    return Pairs([SOURCE.encode(s) for s in sources], [TARGET.encode(t) for t in targets], **options)


def config(**changes):
    sizes = {"embedding": 8, "hidden": 8, "layers": 1, "dropout": 0.0, "mapping": "sparsemax"}
    return ModelConfig(len(SOURCE), len(TARGET), **{**sizes, **changes})


def lively(seed=0, scale=1.0, **changes):
    """A model with weights so large that its attention and its words differ; the padding has a vector too."""
    torch.manual_seed(seed)
    model = Seq2Seq(config(**changes)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".map." not in name:
                weight.uniform_(-scale, scale)
    return model


def of_row(name, **changes):
    return lively(mapping=ROWS[name].mapping, control=PAPER[name], **changes)


def trainer(folder, *, model=None, train=None, valid=None, n=30, **changes):
    settings = {"epochs": 2, "batch_size": 8, "lr": 0.01, **changes}
    held = valid if valid is not None else pairs(10, seed=1)
    return Trainer(model or config(), TrainConfig(**settings), train or pairs(n), held, STATES, folder)


def without_seconds(history):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


def assert_same_weights(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def batch_of(data, rows):
    found = data.batch(rows)
    return found.source, found.lengths, found.target
