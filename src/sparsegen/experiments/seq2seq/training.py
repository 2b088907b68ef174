"""Teacher forcing on one process or several, resumed to the same numbers after an interruption.

What a step does depends on the settings, the seed, the epoch and the number of the step alone: the order of the
sentences and the dropout are drawn anew from them, so a checkpoint needs no state of a random generator.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sparsegen._table.checks import fail, one_of
from sparsegen.experiments.seq2seq import checkpoints
from sparsegen.experiments.seq2seq.batches import Batch, Pairs
from sparsegen.experiments.seq2seq.model import ModelConfig, Seq2Seq
from sparsegen.experiments.seq2seq.vocabulary import vocabulary_from_state

OPTIMIZERS = ("adam", "sgd")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LAST, BEST = "last.pt", "best.pt"
KEPT = ("model_config", "train_config", "vocabularies", "model", "history")  # in every checkpoint
# Settings that may change between sittings: they say when to stop and how often to save, not what a step does.
FREE = ("epochs", "patience", "save_steps")


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained.

    Examples
    --------
    >>> config = TrainConfig(lr=1.0, decay_from=3)
    >>> [config.lr_of(epoch) for epoch in range(5)]
    [1.0, 1.0, 1.0, 0.5, 0.25]
    """

    epochs: int = 13
    batch_size: int = 64  # of all processes together
    optimizer: str = "adam"
    lr: float = 1e-3
    decay: float = 0.5  # of the learning rate, each epoch from `decay_from` on (counted from 0)
    decay_from: int = 8
    clip: float = 5.0  # largest norm of the gradient
    per: str = "word"  # what the loss is a mean over: "word" or "sentence"
    precision: str = "float32"  # of the factors of matrix products in training
    seed: int = 0
    patience: int | None = None  # epochs without a better validation accuracy before it stops
    save_steps: int = 200  # between checkpoints inside an epoch

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "save_steps", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                fail(ValueError, name, "a positive integer", value)
        for name in ("lr", "clip", "decay"):
            if not getattr(self, name) > 0:
                fail(ValueError, name, "positive", getattr(self, name))
        if self.optimizer not in OPTIMIZERS:
            fail(ValueError, "optimizer", one_of(OPTIMIZERS), repr(self.optimizer))
        if self.precision not in PRECISIONS:
            fail(ValueError, "precision", one_of(PRECISIONS), repr(self.precision))
        if self.per not in ("word", "sentence"):
            fail(ValueError, "per", "'word' or 'sentence'", repr(self.per))

    def lr_of(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        return self.lr * self.decay ** max(0, epoch - self.decay_from + 1)


@dataclass(frozen=True)
class Place:
    """Which of how many processes this is, and where its tensors live."""

    rank: int = 0
    world: int = 1
    device: str = "cpu"

    @classmethod
    def of_this_process(cls) -> Place:
        """Join the processes that torchrun started, or be the only one."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        cuda = torch.cuda.is_available()
        if world > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if cuda else "gloo")
        local = int(os.environ.get("LOCAL_RANK", "0"))
        return cls(int(os.environ.get("RANK", "0")), world, f"cuda:{local}" if cuda else "cpu")

    def total(self, *numbers: Tensor | float) -> list[float]:
        """Return each number summed over the processes."""
        summed = torch.tensor([float(n) for n in numbers], dtype=torch.float64)
        if self.world > 1:
            summed = summed.to(self.device)
            dist.all_reduce(summed)
        return summed.tolist()


def suited_precision() -> str:
    """Return the precision in which this processor multiplies fastest: bfloat16 where it has instructions for it."""
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return "bfloat16" if found.get("avx512_bf16") or found.get("amx_bf16") else "float32"


def _optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    if config.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=config.lr)
    return torch.optim.Adam(model.parameters(), lr=config.lr, fused=True)


def _forward(model: nn.Module, batch: Batch, device: str, precision: str = "float32") -> tuple[Tensor, Tensor, Tensor]:
    return model(batch.source.to(device), batch.lengths, batch.target.to(device), PRECISIONS[precision])


@torch.no_grad()
def evaluate(model: Seq2Seq, pairs: Pairs, batch_size: int = 64, device: str = "cpu") -> dict[str, float]:
    """Return loss per word and accuracy (share of words ranked first) under teacher forcing."""
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    for batch in pairs.in_order(batch_size):
        sums += torch.stack([n.double().cpu() for n in _forward(model, batch, device)])
    loss, words, right = sums.tolist()
    return {"loss": loss / words, "accuracy": right / words}


class Trainer:
    """One training run in a folder: `last.pt` to go on from, `best.pt` with the best epoch so far.

    Parameters
    ----------
    model_config, config : ModelConfig, TrainConfig
    train, valid : Pairs
    vocabularies : dict
        States of the vocabularies "source" and "target", kept with the model.
    folder : Path
        Where the run is kept; one that was begun there with the same settings is resumed.
    place : Place, optional
        Which process this is.
    """

    def __init__(
        self, model_config: ModelConfig, config: TrainConfig, train: Pairs, valid: Pairs,
        vocabularies: dict[str, Any], folder: Path, place: Place | None = None,
    ) -> None:  # fmt: skip
        self.model_config, self.config, self.train, self.valid = model_config, config, train, valid
        self.vocabularies, self.folder, self.place = vocabularies, Path(folder), place or Place()
        torch.manual_seed(config.seed)
        self.model = Seq2Seq(model_config).to(self.place.device)
        self.optimizer = _optimizer(self.model, config)
        self.pairs = train.fingerprint()
        self.epoch = self.step = 0
        self.sums = [0.0, 0.0]  # loss and words of the epoch so far
        self.seconds = self.epoch_seconds = 0.0
        self.history: list[dict[str, float]] = []
        if self.folder.exists() and not self.folder.is_dir():  # said now, not when the first checkpoint is due
            fail(ValueError, "the folder of a run", "a folder", f"the file {self.folder}")
        if (self.folder / LAST).exists():
            self._resume(checkpoints.load(self.folder / LAST, self.place.device, KEPT))

    @property
    def best(self) -> dict[str, float] | None:
        """The epoch with the highest validation accuracy; of equals the one with the lowest loss."""
        return max(self.history, key=lambda row: (row["valid_accuracy"], -row["valid_loss"]), default=None)

    @property
    def finished(self) -> bool:
        """Whether the last epoch, or the patience, has run out."""
        if self.epoch >= self.config.epochs:
            return True
        best = self.best
        return (
            best is not None and self.config.patience is not None and self.epoch - best["epoch"] > self.config.patience
        )

    def run(self, progress: Callable[[Trainer], None] | None = None) -> list[dict[str, float]]:
        """Train to the end and return the learning curve, one row an epoch."""
        module = nn.parallel.DistributedDataParallel(self.model) if self.place.world > 1 else self.model
        while not self.finished:
            self._epoch(module, progress)
        return self.history

    def _epoch(self, module: nn.Module, progress: Callable[[Trainer], None] | None) -> None:
        batches = self.train.epoch(self.config.batch_size, self.config.seed, self.epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr_of(self.epoch)
        while self.step < len(batches):
            start = time.perf_counter()
            found = self._step(module, batches[self.step])
            self.sums = [total + new for total, new in zip(self.sums, found)]
            self.step += 1
            self.epoch_seconds += time.perf_counter() - start
            if self.step % self.config.save_steps == 0:
                self._save(LAST)
            if progress is not None:
                progress(self)
        self._end_epoch()
        if progress is not None:
            progress(self)

    def _step(self, module: nn.Module, rows: Any) -> list[float]:
        """Learn from one batch, of which this process takes every `world`-th pair."""
        place, config = self.place, self.config
        drawn = np.random.SeedSequence([config.seed, self.epoch, self.step, place.rank]).generate_state(1)
        torch.manual_seed(int(drawn[0]))
        module.train()
        own = rows[place.rank :: place.world]
        batch = self.train.batch(own if len(own) else rows[:1])
        loss, words, _ = _forward(module, batch, place.device, config.precision)
        if not len(own):  # a last, short batch: take part in the exchange of gradients, with no weight
            loss, words = loss * 0, words * 0
        total_loss, total_words = place.total(loss.detach(), words)
        if not math.isfinite(total_loss):
            fail(ValueError, "the loss", f"finite (epoch {self.epoch}, step {self.step})", total_loss)
        share = total_words if config.per == "word" else len(rows)
        self.optimizer.zero_grad(set_to_none=True)
        (loss * (place.world / share)).backward()  # processes average their gradients
        nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        self.optimizer.step()
        return [total_loss, total_words]

    def _end_epoch(self) -> None:
        loss, words = self.sums
        start = time.perf_counter()
        found = evaluate(self.model, self.valid, self.config.batch_size, self.place.device)
        self.seconds += self.epoch_seconds + time.perf_counter() - start
        self.history.append({
            "epoch": self.epoch, "lr": self.config.lr_of(self.epoch), "loss": loss / words,
            "valid_loss": found["loss"], "valid_accuracy": found["accuracy"], "seconds": self.seconds,
        })  # fmt: skip
        self.epoch, self.step, self.sums, self.epoch_seconds = self.epoch + 1, 0, [0.0, 0.0], 0.0
        if self.best is self.history[-1]:
            self._save(BEST)
        self._save(LAST)

    def _save(self, name: str) -> None:
        if self.place.rank:
            return
        content: dict[str, Any] = {
            "model_config": self.model_config.state(), "train_config": asdict(self.config),
            "vocabularies": self.vocabularies, "model": self.model.state_dict(), "history": self.history,
        }  # fmt: skip
        if name == LAST:
            content |= {"optimizer": self.optimizer.state_dict(), "epoch": self.epoch, "step": self.step}
            content |= {
                "pairs": self.pairs,
                "sums": self.sums,
                "seconds": self.seconds,
                "epoch_seconds": self.epoch_seconds,
            }
        checkpoints.save(self.folder / name, content)

    def _resume(self, found: dict[str, Any]) -> None:
        if "optimizer" not in found:
            fail(
                ValueError, str(self.folder / LAST), "a checkpoint of a run that can go on", "one without its optimizer"
            )
        for kind, mine in (("model_config", self.model_config.state()), ("train_config", asdict(self.config))):
            for name, value in mine.items():
                if name not in FREE and found[kind].get(name) != value:
                    fail(
                        ValueError,
                        name,
                        f"{found[kind].get(name)!r}, as in the run begun in {self.folder}",
                        repr(value),
                    )
        if found["vocabularies"] != self.vocabularies:
            fail(ValueError, "the vocabularies", f"those of the run begun in {self.folder}", "others: another corpus?")
        if found["pairs"] != self.pairs:
            fail(ValueError, "the training pairs", f"those of the run begun in {self.folder}", "others")
        self.model.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])
        self.epoch, self.step, self.history = found["epoch"], found["step"], found["history"]
        self.sums, self.seconds, self.epoch_seconds = found["sums"], found["seconds"], found["epoch_seconds"]


def load_model(path: str | Path, device: str = "cpu") -> tuple[Seq2Seq, Any, Any]:
    """Return the model of a checkpoint, ready to translate, and its two vocabularies."""
    found = checkpoints.load(path, device, KEPT)
    model = Seq2Seq(ModelConfig(**found["model_config"])).to(device)
    model.load_state_dict(found["model"])
    source, target = (vocabulary_from_state(found["vocabularies"][side]) for side in ("source", "target"))
    return model.eval(), source, target
