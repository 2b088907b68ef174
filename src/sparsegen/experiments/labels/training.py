"""Training a linear model of label sets whose labels are split over processes; it resumes with any number of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.distributed as dist
from torch import Tensor, nn

import sparsegen.torch.distributed as sgd
from sparsegen._table.checks import fail, one_of
from sparsegen._table.losses import LOSSES
from sparsegen.experiments.labels.documents import Documents
from sparsegen.experiments.memory import peak_mib
from sparsegen.torch.distributed.checkpoints import latest

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class LabelConfig:
    """What a run depends on."""

    hidden: int = 32
    epochs: int = 3
    batch_size: int = 64
    lr: float = 0.5
    loss: str = "sparsemax_huber"
    control: float | None = None
    seed: int = 0
    save_every: int = 100  # steps

    def __post_init__(self) -> None:
        for name in ("hidden", "epochs", "batch_size", "save_every"):
            if getattr(self, name) < 1:
                fail(ValueError, name, "a positive integer", getattr(self, name))
        if self.loss not in LOSSES:
            fail(ValueError, "loss", one_of(LOSSES), repr(self.loss))
        if self.control is not None and not LOSSES[self.loss].control:
            fail(ValueError, "control", f"left out for {self.loss}, which has none", self.control)

    @property
    def controls(self) -> dict[str, float]:
        """The control of the loss and of the map it trains."""
        row = LOSSES[self.loss]
        return {row.control: row.default if self.control is None else self.control} if row.control else {}


class LabelModel(nn.Module):
    """Sparse features -> hidden features, the same on every rank -> scores of this rank's labels."""

    def __init__(self, features: int, labels: int, hidden: int, seed: int = 0) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(features, hidden, mode="sum", sparse=True)
        with torch.no_grad():
            self.bag.weight.normal_(generator=torch.Generator().manual_seed(seed))
        self.out = sgd.ShardedLinear(hidden, labels, seed=seed)

    def forward(self, X: sp.csr_array) -> Tensor:
        """Return the scores of this rank's labels for rows of a sparse matrix."""
        words, starts = torch.from_numpy(X.indices.astype(np.int64)), torch.from_numpy(X.indptr[:-1].astype(np.int64))
        return self.out(self.bag(words, starts, per_sample_weights=torch.from_numpy(X.data)))


def predict(model: LabelModel, X: sp.csr_array, config: LabelConfig) -> sp.csr_array:
    """Return the label sets of documents with their probabilities, batch by batch: never a dense matrix of them.

    All ranks must call it, and all get the result.
    """
    row = LOSSES[config.loss]
    found = []
    controls: dict[str, Any] = dict(config.controls)
    with torch.no_grad():
        for start in range(0, X.shape[0], config.batch_size):
            z = model(X[start : start + config.batch_size])
            found.append(sgd.label_sets(z, mapping=row.mapping, **controls))
    return sp.csr_array(sp.vstack(found)) if found else sp.csr_array((0, model.out.out_features))


def scores_of(predicted: sp.csr_array, truth: sp.csr_array) -> dict[str, float]:
    """Precision, recall and F1 of label sets, all documents together."""
    hits = float((predicted.astype(bool).multiply(truth.astype(bool))).sum())
    precision, recall = hits / max(predicted.nnz, 1), hits / max(truth.nnz, 1)
    return {"precision": precision, "recall": recall, "f1": 2 * hits / max(predicted.nnz + truth.nnz, 1)}


class LabelTrainer:
    """One run in a folder: checkpoints ``step-N`` to go on from, and ``progress.jsonl`` with a line per epoch."""

    def __init__(self, docs: Documents, config: LabelConfig, out: Path) -> None:
        self.docs, self.config, self.out = docs, config, out
        self.model = LabelModel(docs.X.shape[1], docs.Y.shape[1], config.hidden, config.seed)
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=config.lr)
        self.loss = getattr(sgd, f"{config.loss}_loss")
        self.step, self.sum = 0, 0.0
        self.per_epoch = -(-docs.X.shape[0] // config.batch_size)
        self._resume()

    def _resume(self) -> None:
        found = latest(self.out)
        if found is None:
            return
        kept = sgd.load(found, self.model, self.optimizer)
        settings = {**asdict(self.config), "epochs": kept["config"]["epochs"]}  # more epochs may follow
        if kept["config"] != settings:
            fail(
                ValueError, f"the settings of {self.out}", "those it was begun with", f"{settings} for {kept['config']}"
            )
        self.step, self.sum = kept["step"], kept["sum"]

    def save(self) -> None:
        """Write a checkpoint, and remove the one before."""
        before = latest(self.out)
        path = self.out / f"step-{self.step}"
        sgd.save(path, self.model, self.optimizer, step=self.step, sum=self.sum, config=asdict(self.config))
        if before is not None and before != path and dist.get_rank() == 0:
            import shutil

            shutil.rmtree(before)

    def _batches(self, epoch: int) -> Iterator[np.ndarray]:
        order = np.random.default_rng([self.config.seed, epoch]).permutation(self.docs.X.shape[0])
        size = self.config.batch_size
        for i in range(self.step % self.per_epoch, self.per_epoch):
            yield order[i * size : (i + 1) * size]

    def train_step(self, rows: np.ndarray) -> float:
        """One step on the documents of these rows; returns their mean loss, the same on every rank."""
        self.optimizer.zero_grad(set_to_none=True)
        z = self.model(self.docs.X[rows])
        loss = self.loss(z, self.docs.Y[rows], sparse_grad=True, **self.config.controls)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, report: Report = lambda line: None, stop_after: int | None = None) -> list[dict[str, Any]]:
        """Train to the last epoch; `report` is given a line for each epoch, and a short one at each checkpoint."""
        config, done = self.config, 0
        lines: list[dict[str, Any]] = []
        while self.step < config.epochs * self.per_epoch:
            epoch, started = self.step // self.per_epoch, time.perf_counter()
            first = self.step
            with sgd.traffic() as sent:
                for rows in self._batches(epoch):
                    self.sum += self.train_step(rows) * len(rows)
                    self.step, done = self.step + 1, done + 1
                    if self.step % config.save_every == 0:
                        self.save()
                        report(
                            {"step": self.step, "loss": self.sum / (len(rows) * (self.step - epoch * self.per_epoch))}
                        )
                    if done == stop_after:
                        return lines
            lines.append(self._epoch(epoch, time.perf_counter() - started, self.step - first, sent))
            self.sum = 0.0
            self.save()
            report(lines[-1])
        return lines

    def _epoch(self, epoch: int, seconds: float, steps: int, sent: sgd.Traffic) -> dict[str, Any]:
        line = {
            "epoch": epoch + 1, "loss": self.sum / self.docs.X.shape[0], "seconds": seconds, "steps": steps,
            "rounds_per_step": sent.rounds / max(steps, 1), "bytes_per_step": sent.bytes / max(steps, 1),
            "peak_mib": peak_mib(), "ranks": dist.get_world_size(),
        }  # fmt: skip
        if dist.get_rank() == 0:
            self.out.mkdir(parents=True, exist_ok=True)
            with (self.out / "progress.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        return line
