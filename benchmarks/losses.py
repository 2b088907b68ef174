"""Hinge loss, value and gradient, beside two plain torch forms: all pairs (N, K, K), and labels by classes (N, P, K).

python benchmarks/losses.py            # writes results/losses.json
python benchmarks/losses.py --quick    # a second, toy sizes, nothing written
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from measure import interleaved, machine, save

import sparsegen.torch as sgt

CASES = [(512, 100, 3), (256, 983, 19), (16, 100_000, 50)]  # rows, classes, mean number of labels
QUICK = [(8, 12, 3)]


def sample(rows: int, n: int, labels: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(rows, n, generator=generator)
    y = torch.zeros(rows, n, dtype=torch.long)
    for row in y:
        size = int(torch.randint(max(1, labels // 2), labels + labels // 2 + 1, (), generator=generator))
        row[torch.randperm(n, generator=generator)[:size]] = 1
    return z, y


def all_pairs(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The formula as broadcasting writes it: every pair of classes."""
    on = y.to(z.dtype)
    eta = on / on.sum(-1, keepdim=True)
    gap = z.unsqueeze(2) - z.unsqueeze(1)
    both, one = on.unsqueeze(2) * on.unsqueeze(1), on.unsqueeze(2) * (1 - on).unsqueeze(1)
    return ((both * gap.abs()) + one * torch.relu(eta.unsqueeze(2) - gap)).sum((1, 2)).mean()


def by_labels(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same with the rows' labels gathered first: (N, P, K), padded to the longest label set."""
    size = y.sum(-1)
    at = y.topk(int(size.max()), dim=-1).indices  # labels first
    real = torch.arange(at.shape[1]) < size.unsqueeze(-1)
    gap = z.gather(1, at).unsqueeze(2) - z.unsqueeze(1)
    margin = (1 / size.to(z.dtype))[:, None, None]
    each = torch.where(y.bool().unsqueeze(1), gap.abs(), torch.relu(margin - gap))
    return (each * real.unsqueeze(2)).sum((1, 2)).mean()


def ours(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return sgt.sparsegen_hinge_loss(z, y)


def hourglass(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return sgt.sparsehourglass_hinge_loss(z, y)


FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "sparsegen": ours,
    "all pairs": all_pairs,
    "labels x classes": by_labels,
    "sparsehourglass": hourglass,
}


def step(form: Callable[..., torch.Tensor], z: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = z.detach().requires_grad_()
    loss = form(scores, y)
    return loss.detach(), torch.autograd.grad(loss, scores)[0]


def usable(z: torch.Tensor, y: torch.Tensor) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """The forms that can be run here and give the right answer, and why others cannot."""
    calls, refused = {}, {}
    exact = step(ours, z.double(), y)
    for name, form in FORMS.items():
        try:
            value, grad = step(form, z, y)
        except RuntimeError as error:
            refused[name] = str(error).splitlines()[0][:120]
            continue
        if name != "sparsehourglass":  # another loss: timed beside, not compared
            torch.testing.assert_close(value.double(), exact[0], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(grad.double(), exact[1], rtol=1e-3, atol=1e-4 / len(z))
        calls[name] = lambda form=form: step(form, z, y)
    return calls, refused


def measure(rows: int, n: int, labels: int, threads: int, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(threads)
    z, y = sample(rows, n, labels)
    calls, refused = usable(z, y)
    times = interleaved(calls, seconds, least=3)  # all pairs take seconds
    base = times["sparsegen"]["median_us"]
    ratios = {name: times[name]["median_us"] / base for name in times if name != "sparsegen"}
    case = {"rows": rows, "K": n, "labels": labels, "threads": threads, "mean_labels": y.sum(-1).float().mean().item()}
    return {**case, "times": times, "times_as_long": ratios, "cannot_run": refused}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="for each case")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    cases = QUICK if options.quick else CASES
    found = []
    for threads in options.threads:
        for case in cases:
            row = measure(*case, threads, 0.1 if options.quick else options.seconds)
            found.append(row)
            ours_ms = row["times"]["sparsegen"]["median_us"] / 1000
            others = ", ".join(f"{name} {ratio:.1f} x" for name, ratio in row["times_as_long"].items())
            print(
                f"{case} {threads} thread(s): {ours_ms:.2f} ms; as long: {others}; {row['cannot_run'] or ''}",
                flush=True,
            )
    if not options.quick:
        pairs = [row["times_as_long"].get("all pairs") for row in found]
        summary = {"median_all_pairs": statistics.median(ratio for ratio in pairs if ratio)}
        print("wrote", save("losses", {"machine": machine(), "cases": found, "summary": summary}))


if __name__ == "__main__":
    main()
