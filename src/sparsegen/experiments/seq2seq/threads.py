"""How many threads suit a model: a recurrent one is many small steps, and threads that wait for each other cost more
than they give. On two busy cores, steps of models up to the default size took 5 to 57 times as long with two."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sparsegen.experiments.seq2seq.model import ModelConfig

LARGE = 100_000_000  # multiplications in one step of the decoder's cell, of the paper's model and not of the default
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # by which a person, or a sweep, has chosen


def threads_for(config: ModelConfig, batch_size: int) -> int:
    """Return how many threads torch should use: one for a small model, else what it uses already.

    Examples
    --------
    >>> import torch
    >>> threads_for(ModelConfig(100, 100, embedding=500, hidden=500), 64) == torch.get_num_threads()
    True
    """
    work = 4 * batch_size * config.hidden * (config.embedding + 2 * config.hidden)
    small = work < LARGE and not any(os.environ.get(name) for name in VARIABLES)
    return 1 if small else torch.get_num_threads()


@contextmanager
def suited_threads(config: ModelConfig, batch_size: int, asked: int | None = None) -> Iterator[None]:
    """Let torch use as many threads as asked for, or as suit the model; what it used before is set again at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(asked or threads_for(config, batch_size))
    try:
        yield
    finally:
        torch.set_num_threads(before)
