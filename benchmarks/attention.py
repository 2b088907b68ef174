"""Sparse attention beside torch's scaled_dot_product_attention: forward, forward and backward, and memory.

python benchmarks/attention.py            # writes results/attention.json
python benchmarks/attention.py --quick    # a second, toy sizes, nothing written
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
from collections.abc import Callable
from typing import Any

import torch
from entmax import sparsemax as entmax_sparsemax
from measure import interleaved, machine, save
from torch.nn import functional as F

import sparsegen.torch as sgt

HEADS, WIDTH = 8, 64
LENGTHS, QUICK = [512, 1024, 2048, 4096], [64]
PATIENCE = 1.0  # seconds a form may take for one step: beyond it is left out
TARGETS = {"forward": 0.7, "step": 0.5, "memory": 1.2}

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def sample(length: int) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, WIDTH, generator=generator) for _ in range(3))
    return q, k, v


def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool) -> torch.Tensor:
    return sgt.sparse_attention(q, k, v, is_causal=is_causal)


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def composed(weigh: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool) -> torch.Tensor:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        return weigh(scores, dim=-1) @ v

    return attend


FORMS = {
    "sparsegen": ours,
    "sdpa": sdpa,
    "dense softmax": composed(torch.softmax),
    "dense entmax.sparsemax": composed(entmax_sparsemax),
}


def step(form: Callable[..., torch.Tensor], inputs: Inputs, grad: torch.Tensor, is_causal: bool) -> Any:
    asked = [t.detach().requires_grad_() for t in inputs]
    return torch.autograd.grad(form(*asked, is_causal), asked, grad)


def check() -> None:
    """No time is taken of an answer that is wrong."""
    inputs = sample(130)
    grad = torch.randn_like(inputs[0])
    exact = composed(entmax_sparsemax)
    for causal in (False, True):
        torch.testing.assert_close(ours(*inputs, causal), exact(*inputs, causal), rtol=1e-5, atol=1e-5)
        for a, b in zip(step(ours, inputs, grad, causal), step(exact, inputs, grad, causal)):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def _late(last: dict[str, Any] | None, length: int, patience: float) -> list[str]:
    """Forms that would take too long for one step, judged by what they took for the length before."""
    if last is None:
        return []
    factor = (length / last["length"]) ** 2 / 1e6
    slow = [name for name, times in last["step"].items() if times["median_us"] * factor > patience]
    return [name for name in {*slow, *last["left_out"]} if name.startswith("dense")]


def _child(form: str, length: int, causal: bool, answer: Any) -> None:
    torch.set_num_threads(1)
    inputs = sample(length)
    grad = torch.ones_like(inputs[0])
    step(FORMS[form], tuple(t[..., :32, :] for t in inputs), grad[..., :32, :], causal)  # libraries load, pools start
    before = _reset_peak()
    step(FORMS[form], inputs, grad, causal)
    answer.send(_peak() - before)


def _status(name: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def _peak() -> int:
    return _status("VmHWM")


def _reset_peak() -> int:
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    return _status("VmRSS")


def extra_memory(form: str, length: int, causal: bool) -> int:
    """Bytes a process of its own needs for forward and backward beyond its inputs."""
    context = multiprocessing.get_context("spawn")
    ask, answer = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(form, length, causal, answer))
    child.start()
    answer.close()
    found = ask.recv()
    child.join()
    return found


def measure(length: int, causal: bool, threads: int, seconds: float, left_out: list[str]) -> dict[str, Any]:
    """The two that are compared take turns alone: the dense forms leave cold caches and unmapped memory."""
    torch.set_num_threads(threads)
    inputs = sample(length)
    grad = torch.randn_like(inputs[0])
    steps = {name: lambda form=form: step(form, inputs, grad, causal) for name, form in FORMS.items()}
    forwards = {name: lambda form=form: form(*inputs, causal) for name, form in FORMS.items()}
    dense = [name for name in FORMS if name.startswith("dense") and name not in left_out]
    found: dict[str, Any] = {"length": length, "causal": causal, "threads": threads, "left_out": left_out}
    for part, calls in (("forward", forwards), ("step", steps)):
        with torch.set_grad_enabled(part == "step"):
            found[part] = interleaved({name: calls[name] for name in ("sparsegen", "sdpa")}, seconds, least=5)
            found[part] |= interleaved({name: calls[name] for name in dense}, seconds / 4, least=2) if dense else {}
    return {**found, "ratio": {part: _ratio(found[part]) for part in ("forward", "step")}}


def _ratio(times: dict[str, dict[str, float]]) -> float:
    return times["sparsegen"]["median_us"] / times["sdpa"]["median_us"]


def show(row: dict[str, Any]) -> None:
    times = ", ".join(
        f"{name} {row['forward'][name]['median_us'] / 1000:.1f} / {row['step'][name]['median_us'] / 1000:.1f} ms"
        for name in row["forward"]
    )
    kind = "causal" if row["causal"] else "full"
    late = f"; longer than {PATIENCE} s: {', '.join(row['left_out'])}" if row["left_out"] else ""
    ratio = f"{row['ratio']['forward']:.2f} / {row['ratio']['step']:.2f}"
    print(f"{row['length']} {kind} {row['threads']} thread(s): {ratio} of sdpa; {times}{late}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each case")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    check()
    lengths, threads = (QUICK, [1]) if options.quick else (LENGTHS, options.threads)
    seconds = 0.05 if options.quick else options.seconds
    cases, memory = [], []
    for count in threads:
        for causal in (False, True):
            last = None
            for length in lengths:
                last = measure(length, causal, count, seconds, _late(last, length, PATIENCE))
                cases.append(last)
                show(last)
    for length in [] if options.quick or not os.path.exists("/proc/self/clear_refs") else lengths:
        for causal in (False, True):
            both = {form: extra_memory(form, length, causal) for form in ("sparsegen", "sdpa")}
            memory.append({"length": length, "causal": causal, **both, "ratio": both["sparsegen"] / both["sdpa"]})
            print(f"{length} {'causal' if causal else 'full'}: memory {memory[-1]['ratio']:.2f} of sdpa", flush=True)
    if not options.quick:
        summary = {part: statistics.median(row["ratio"][part] for row in cases) for part in ("forward", "step")}
        worst = {part: max(row["ratio"][part] for row in cases) for part in ("forward", "step")}
        worst["memory"] = max((row["ratio"] for row in memory), default=math.nan)
        result = {"machine": machine(), "cases": cases, "memory": memory, "median": summary, "worst": worst}
        print("wrote", save("attention", {**result, "targets": TARGETS, "patience_seconds": PATIENCE}))


if __name__ == "__main__":
    main()
