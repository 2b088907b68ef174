"""`sparsegen train-labels`: a linear model of very many labels, split over the processes that torchrun starts."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import typer

from sparsegen._table.extras import needed
from sparsegen.cli.messages import check_folder, said_plainly


def train_labels(
    out: Path = typer.Option(..., help="Folder of the run; one begun there with the same settings is resumed."),
    data: Path = typer.Option(None, help="Documents in the extreme classification repository's format."),
    documents: int = typer.Option(2000, min=1, help="Instead: draw so many documents."),
    features: int = typer.Option(20_000, min=1, help="Words of drawn documents."),
    labels: int = typer.Option(20_000, min=1, help="Labels of drawn documents."),
    loss: str = typer.Option("sparsemax_huber", help="sparsemax_huber, sparsegen_hinge, sparsehourglass_hinge, ..."),
    control: float = typer.Option(None, help="The control of the loss, lam or q."),
    hidden: int = typer.Option(32, min=1, help="Features between words and labels."),
    epochs: int = typer.Option(3, min=1), batch_size: int = typer.Option(64, min=1),
    lr: float = typer.Option(0.5, help="Learning rate of Adagrad."),
    save_every: int = typer.Option(100, min=1, help="Steps between checkpoints."),
    seed: int = typer.Option(0, min=0, help="The same numbers for the same seed."),
    predict: Path = typer.Option(None, help="Then write the label sets of these documents to OUT/predictions.npz."),
) -> None:  # fmt: skip
    """Train a model of label sets, its labels split over the processes of torchrun; alone without it."""
    with said_plainly(out):
        check_folder(out)
        with needed("sparsegen train-labels", "torch"):
            import torch.distributed as dist

            import sparsegen.torch.distributed as sgd
            from sparsegen.experiments.labels import documents as texts
            from sparsegen.experiments.labels.training import LabelConfig, LabelTrainer

        config = LabelConfig(hidden, epochs, batch_size, lr, loss, control, seed, save_every)
        docs = texts.read(data) if data else texts.drawn(documents, features, labels, seed)
        if "RANK" in os.environ and not dist.is_initialized():
            dist.init_process_group("gloo")
        with nullcontext() if dist.is_initialized() else sgd.single_process():
            trainer = LabelTrainer(docs, config, out)
            trainer.fit(_say if dist.get_rank() == 0 else lambda line: None)
            if predict is not None:
                _predict(trainer, texts.read(predict), out)
        if dist.is_initialized():
            dist.destroy_process_group()


def _say(line: dict[str, Any]) -> None:
    if "epoch" in line:
        size = f", {line['peak_mib']:.0f} MiB" if line["peak_mib"] else ""
        typer.echo(f"epoch {line['epoch']}: loss {line['loss']:.4f}, {line['seconds']:.0f} s{size}")
    else:
        typer.echo(f"step {line['step']}: loss {line['loss']:.4f}")


def _predict(trainer: Any, docs: Any, out: Path) -> None:
    import scipy.sparse as sp
    import torch.distributed as dist

    from sparsegen.experiments.labels.training import predict, scores_of

    found = predict(trainer.model, docs.X, trainer.config)
    if dist.get_rank() == 0:
        sp.save_npz(out / "predictions.npz", found)
        typer.echo(f"wrote {out / 'predictions.npz'}: F1 {scores_of(found, docs.Y)['f1']:.4f}")
