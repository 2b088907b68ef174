"""Hinge loss and gradient beside two plain torch forms: all pairs (N, K, K), and labels by classes (N, P, K)."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import sparsegen.torch as sgt
from sparsegen.bench.measure import Settings, Tell, interleaved, machine, ratio, same, torch_threads

CASES = [(512, 100, 3), (256, 983, 19), (16, 100_000, 50)]  # rows, classes, mean number of labels
QUICK = [(8, 12, 3)]
GATE_ROWS = 4


def sample(rows: int, n: int, labels: int) -> tuple[Tensor, Tensor]:
    """Scores and labels.

    >>> z, y = sample(2, 5, 1)
    >>> z.shape, y.sum(-1)
    (torch.Size([2, 5]), tensor([1, 1]))
    """
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(rows, n, generator=generator)
    y = torch.zeros(rows, n, dtype=torch.long)
    for row in y:
        size = int(torch.randint(max(1, labels // 2), labels + labels // 2 + 1, (), generator=generator))
        row[torch.randperm(n, generator=generator)[:size]] = 1
    return z, y


def all_pairs(z: Tensor, y: Tensor) -> Tensor:
    """The formula as broadcasting writes it: every pair of classes.

    >>> all_pairs(torch.tensor([[1.0, 0.5]]), torch.tensor([[1, 0]]))
    tensor(0.5000)
    """
    on = y.to(z.dtype)
    eta = on / on.sum(-1, keepdim=True)
    gap = z.unsqueeze(2) - z.unsqueeze(1)
    both, one = on.unsqueeze(2) * on.unsqueeze(1), on.unsqueeze(2) * (1 - on).unsqueeze(1)
    return ((both * gap.abs()) + one * torch.relu(eta.unsqueeze(2) - gap)).sum((1, 2)).mean()


def by_labels(z: Tensor, y: Tensor) -> Tensor:
    """The same with the rows' labels gathered first: (N, P, K), padded to the longest label set.

    >>> by_labels(torch.tensor([[1.0, 0.5]]), torch.tensor([[1, 0]]))
    tensor(0.5000)
    """
    size = y.sum(-1)
    at = y.topk(int(size.max()), dim=-1).indices  # labels first
    real = torch.arange(at.shape[1]) < size.unsqueeze(-1)
    gap = z.gather(1, at).unsqueeze(2) - z.unsqueeze(1)
    margin = (1 / size.to(z.dtype))[:, None, None]
    each = torch.where(y.bool().unsqueeze(1), gap.abs(), torch.relu(margin - gap))
    return (each * real.unsqueeze(2)).sum((1, 2)).mean()


def _ours(z: Tensor, y: Tensor) -> Tensor:
    return sgt.sparsegen_hinge_loss(z, y)


def _hourglass(z: Tensor, y: Tensor) -> Tensor:
    return sgt.sparsehourglass_hinge_loss(z, y)


Form = Callable[[Tensor, Tensor], Tensor]
FORMS: dict[str, Form] = {
    "sparsegen": _ours,
    "all pairs": all_pairs,
    "labels x classes": by_labels,
    "sparsehourglass": _hourglass,
}


def _step(form: Form, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    scores = z.detach().requires_grad_()
    loss = form(scores, y)
    return loss.detach(), torch.autograd.grad(loss, scores)[0]


def usable(z: Tensor, y: Tensor) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """The forms that can be run here and give the right answer, and why others cannot.

    >>> calls, refused = usable(*sample(2, 5, 1))
    >>> list(calls), refused
    (['sparsegen', 'all pairs', 'labels x classes', 'sparsehourglass'], {})
    """
    calls: dict[str, Callable[[], Any]] = {}
    refused: dict[str, str] = {}
    for name, form in FORMS.items():
        try:
            _step(form, z, y)
        except RuntimeError as error:
            refused[name] = str(error).splitlines()[0][:120]
            continue
        if name != "sparsehourglass":  # another loss: timed beside, not compared
            _compare(name, form, z[:GATE_ROWS], y[:GATE_ROWS])
        calls[name] = partial(_step, form, z, y)
    return calls, refused


def _compare(name: str, form: Form, z: Tensor, y: Tensor) -> None:
    (value, grad), (exact_value, exact_grad) = _step(form, z, y), _step(by_labels, z.double(), y)
    same(f"the loss {name}", value, exact_value, rtol=1e-4, atol=1e-4)
    same(f"the gradient of {name}", grad, exact_grad, rtol=1e-3, atol=1e-4 / len(z))


def measure(rows: int, n: int, labels: int, threads: int, seconds: float) -> dict[str, Any]:
    """Time value and gradient in every form.

    >>> sorted(measure(2, 5, 1, 1, 0.0)["times_as_long"])
    ['all pairs', 'labels x classes', 'sparsehourglass']
    """
    z, y = sample(rows, n, labels)
    with torch_threads(threads):
        calls, refused = usable(z, y)
        times = interleaved(calls, seconds, least=3)  # all pairs take seconds
    longer = {name: ratio(times, name, "sparsegen") for name in times if name != "sparsegen"}
    case = {"rows": rows, "K": n, "labels": labels, "threads": threads, "mean_labels": y.sum(-1).float().mean().item()}
    return {**case, "times": times, "times_as_long": longer, "cannot_run": refused}


def run(settings: Settings, tell: Tell) -> dict[str, Any]:
    """Measure every case; `tell` hears which."""
    found = []
    for threads in settings.thread_counts([1]):
        for rows, n, labels in QUICK if settings.quick else CASES:
            tell(f"{rows} x {n}, {threads} thread(s)")
            found.append(measure(rows, n, labels, threads, settings.time(4.0)))
    pairs = [row["times_as_long"].get("all pairs") for row in found]
    summary = {"median_all_pairs": statistics.median(ratio for ratio in pairs if ratio)}
    return {"machine": machine(), "cases": found, "summary": summary}
