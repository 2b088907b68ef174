"""Classes split over processes: what is sent, how equal it is, a million labels trained. Writes results/sharded.json.

    python benchmarks/sharded.py            # what is sent and how equal it is: minutes
    python benchmarks/sharded.py training   # 20 000 documents, a million labels, two processes; can be interrupted

The model on paper is the functions `sent` and `memory`; the file holds what they say beside what was measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import sparsegen.torch as sgt
import sparsegen.torch.distributed as sgd
from sparsegen.bench.measure import machine
from sparsegen.experiments.labels.documents import drawn
from sparsegen.experiments.labels.training import LabelConfig, LabelTrainer
from sparsegen.experiments.store import write_text
from sparsegen.torch.distributed._search import room

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "results" / "sharded.json"
ROWS, CLASSES, LABELS = 32, 50_000, 3
TRAINING = {"documents": 20_000, "labels": 1_000_000, "features": 20_000, "hidden": 32, "batch_size": 64, "epochs": 2}
FEW = {"documents": 256, "labels": 2000, "epochs": 1}
MAPS = {"sparsemax": {}, "sparsehourglass": {"q": 0.5}}
LOSSES = {"sparsemax_huber_loss": {}, "sparsegen_hinge_loss": {}}
FAR = {"ranks": 64, "labels": 100_000_000, "hidden": 32, "rows": 64}


def sent(name: str, rows: int, ranks: int, labels: int = 0, hidden: int = 0) -> int:
    """Bytes that a rank gives to one call on float32 scores whose supports fit their messages; on paper."""
    agree, bounds, gather = 8 * 17, 8 * (4 * rows + 1), rows * (8 + 4 * room(ranks)) + 1
    if name == "sparsegen_hinge_loss":
        return agree + 8 + 8 * (labels + 1) + 8 * (2 * rows + labels + 1)
    more = {"sparsemax": 0, "sparsehourglass": 8 * (2 * rows + 1), "sparsemax_huber_loss": 8 + 8 * (2 * rows + 1)}
    return agree + bounds + gather + more[name] + (8 * (rows * hidden + 1) if hidden else 0)


def memory(classes: int, hidden: int, rows: int) -> float:
    """MiB of a rank with so many classes: weights, their state, scores, their projection and its support; on paper."""
    return (2 * 4 * hidden * classes + rows * classes * (4 + 4 + 1)) / 2**20


def _rank(rank: int, ranks: int, folder: str, work: Any, given: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    found = work(**given)
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
    dist.destroy_process_group()


def on_ranks(ranks: int, work: Any, **given: Any) -> Any:
    """What `work` gives on the first of so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (ranks, folder, work, given), nprocs=ranks)
        return torch.load(f"{folder}/found.pt", weights_only=False)


def _scores() -> tuple[torch.Tensor, sp.csr_array]:
    draw = np.random.default_rng(0)
    chosen = np.concatenate([draw.choice(CLASSES, LABELS, replace=False) for _ in range(ROWS)])
    rows = np.repeat(np.arange(ROWS), LABELS)
    Y = sp.csr_array((np.ones(len(rows), np.float32), (rows, chosen)), shape=(ROWS, CLASSES))
    return torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(0)), Y


def _sending() -> list[dict[str, Any]]:
    """Rounds and bytes of each call, and how far its values are from those of one process, in eps."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    z, Y = _scores()
    a, b = CLASSES * rank // ranks, CLASSES * (rank + 1) // ranks
    lines = []
    for name, controls in {**MAPS, **LOSSES}.items():
        x = z[:, a:b].clone().requires_grad_()
        target = (Y,) if name in LOSSES else ()
        with sgd.traffic() as forward:
            out = getattr(sgd, name)(x, *target, **controls)
        with sgd.traffic() as backward:
            out.sum().backward()
        one = getattr(sgt, name)(z, *target, **controls)
        far = (out.detach() - (one if name in LOSSES else one[:, a:b])).abs().max() / max(1.0, float(one.abs().max()))
        far = float(far) / torch.finfo(z.dtype).eps
        lines.append({
            "name": name, "ranks": ranks, "rounds": forward.rounds, "bytes": forward.bytes,
            "on_paper": sent(name, ROWS, ranks, LABELS * ROWS), "rounds_back": backward.rounds,
            "bytes_back": backward.bytes, "off_by_eps": far, "bytes_of_scores": 4 * x.numel(),
        })  # fmt: skip
    return lines


def _trained() -> dict[str, Any]:
    docs = drawn(256, 2000, 20_000)
    with tempfile.TemporaryDirectory() as folder:
        trainer = LabelTrainer(docs, LabelConfig(epochs=1, lr=0.05), Path(folder) / str(dist.get_rank()))
        losses = [trainer.train_step(np.arange(i, i + 64)) for i in range(0, 256, 64)]
    return {"losses": losses}


def _epochs(folder: Path, given: dict[str, int]) -> list[dict[str, Any]]:
    """Train with two processes, or go on; what the epochs say."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "sparsegen",
        "train-labels",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, f"--out={folder}", "--lr=0.05", "--save-every=20", *options], check=True, env=environment)
    return [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


def training(folder: Path) -> dict[str, Any]:
    """The training, and the memory that its labels take: what a process has without them is measured beside it."""
    with tempfile.TemporaryDirectory() as small:
        few = _epochs(Path(small), {**TRAINING, **FEW})
    epochs = _epochs(folder, TRAINING)
    on_paper = memory(TRAINING["labels"] // 2, TRAINING["hidden"], TRAINING["batch_size"])
    for_labels = max(epoch["peak_mib"] for epoch in epochs) - max(epoch["peak_mib"] for epoch in few)
    return {**TRAINING, "epochs_done": epochs, "mib_for_labels": for_labels, "mib_on_paper": on_paper}


def far() -> dict[str, Any]:
    """The model on paper where no machine here can follow."""
    rows, ranks, hidden = FAR["rows"], FAR["ranks"], FAR["hidden"]
    return {
        **FAR, "bytes": sent("sparsemax_huber_loss", rows, ranks, hidden=hidden),
        "bytes_gathered": ranks * rows * (8 + 4 * room(ranks)), "mib": memory(FAR["labels"] // ranks, hidden, rows),
        "bytes_of_scores": 4 * rows * FAR["labels"] // ranks,
    }  # fmt: skip


def _kept(found: dict[str, Any]) -> None:
    write_text(FILE, json.dumps({**found, "machine": machine()}, indent=1) + "\n")
    print(f"wrote {FILE.relative_to(ROOT)}", flush=True)


def main() -> None:
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    if sys.argv[1:] == ["training"]:
        found["training"] = training(ROOT / "build" / "train-labels")
        return _kept(found)
    found["far"] = far()
    found["calls"] = []
    for ranks in (1, 2, 4):
        found["calls"] += on_ranks(ranks, _sending)
        _kept(found)
    one, two = (on_ranks(ranks, _trained)["losses"] for ranks in (1, 2))
    off = max(abs(a / b - 1) for a, b in zip(one, two))
    found["equality"] = {"labels": 20_000, "steps": len(one), "off_by": off}
    return _kept(found)


if __name__ == "__main__":
    main()
