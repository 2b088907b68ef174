"""Distil a softmax teacher into sparse targets: does a student need more than a few entries of each?

    python examples/sparse_distillation.py [--quick] [--figure distillation.svg] [--out results.json]

A teacher learns handwritten digits (scikit-learn's, 8 x 8 pixels). A smaller student sees the same pictures and the
teacher's word on them instead of labels: softmax of its scores, or a sparse map of them, whose zeros need not be kept.
Takes a few minutes on one core.
"""

from __future__ import annotations

from typing import Any

import torch
from running import Found, command, summed_up
from sklearn.datasets import load_digits
from torch import Tensor, nn

import sparsegen.torch as sgt

SEEDS, TEMPERATURE = 5, 4.0
# How a target is made of the teacher's scores, tempered alike for all.
TARGETS: dict[str, dict[str, Any]] = {
    "softmax": {"mapping": "softmax"},
    "entmax-1.5": {"mapping": "entmax15"},
    "sparsegen-lin, lam -2": {"mapping": "sparsegen_lin", "lam": -2.0},
    "sparsemax": {"mapping": "sparsemax"},
    "sparsegen-lin, lam 0.5": {"mapping": "sparsegen_lin", "lam": 0.5},
    "sparsegen-softmax, lam 0.2": {"mapping": "sparsegen_softmax", "lam": 0.2},
    "the label alone": {},
}


def pictures(seed: int, shown: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Digits to learn from and others to be judged on."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    return x[:shown], y[:shown], x[897:], y[897:]


def network(hidden: int) -> nn.Sequential:
    """A network of one hidden layer."""
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def trained(hidden: int, x: Tensor, target: Tensor, steps: int, seed: int) -> nn.Sequential:
    """Fit a network to distributions over the digits by cross-entropy, from pictures with some noise."""
    torch.manual_seed(seed)
    model = network(hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1e-4)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        seen = x[rows] + 0.2 * torch.randn(64, 64)
        loss = -(target[rows] * torch.log_softmax(model(seen), 1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def targets(teacher: nn.Module, x: Tensor, y: Tensor, controls: dict[str, Any]) -> Tensor:
    """What the student is to say of each picture."""
    if not controls:
        return nn.functional.one_hot(y, 10).float()
    return sgt.make_map(**controls)(teacher(x) / TEMPERATURE)


@torch.no_grad()
def judged(student: nn.Module, teacher: nn.Module, x: Tensor, y: Tensor) -> Found:
    """Share of digits that are right, and that the teacher names too."""
    said, wanted = student(x).argmax(1), teacher(x).argmax(1)
    return {"accuracy": (said == y).float().mean().item(), "agreement": (said == wanted).float().mean().item()}


def work(quick: bool) -> Found:
    """Train a teacher and a student for each kind of target and each seed."""
    steps, shown, seeds = (30, 60, 2) if quick else (2000, 200, SEEDS)
    rows = []
    for seed in range(seeds):
        x, y, x_new, y_new = pictures(seed, 897)  # the teacher has seen more than the student will
        teacher = trained(128, x, nn.functional.one_hot(y, 10).float(), steps, seed)
        rows.append({"target": "(the teacher)", "seed": seed, "entries": 1.0, **judged(teacher, teacher, x_new, y_new)})
        for name, controls in TARGETS.items():
            target = targets(teacher, x[:shown], y[:shown], controls)
            student = trained(16, x[:shown], target, steps, seed)
            entries = (target > 0).sum(1).float().mean().item()
            rows.append({"target": name, "seed": seed, "entries": entries, **judged(student, teacher, x_new, y_new)})
    measures = ("entries", "accuracy", "agreement")
    setting = {"steps": steps, "shown": shown, "seeds": seeds, "temperature": TEMPERATURE}
    return {"setting": setting, "rows": rows, "summary": summed_up(rows, ("target",), measures)}


def drawn(found: Found) -> Any:
    """A figure of accuracy against the entries of a target that must be kept."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4), layout="constrained")
    axes = figure.subplots()
    for row in found["summary"]:
        if row["target"] == "(the teacher)":
            axes.axhline(row["accuracy"]["mean"], color="gray", linestyle=":", label="the teacher")
            continue
        point = row["entries"]["mean"], row["accuracy"]["mean"]
        axes.errorbar(*point, yerr=row["accuracy"]["half"], marker="o", capsize=3, linestyle="", label=row["target"])
    axes.set(xlabel="entries of a target that are not 0, of 10", ylabel="right on new digits", xlim=(0, 10.5))
    figure.legend(loc="outside right upper", fontsize="small")
    return figure


if __name__ == "__main__":
    command(__doc__, work, drawn)
