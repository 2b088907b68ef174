"""Sparse attention beside torch's scaled_dot_product_attention: forward, forward and backward, and memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import sparsegen.torch as sgt
from sparsegen.bench import attention_modes
from sparsegen.bench.measure import (
    Settings,
    Tell,
    default_threads,
    extra_memory,
    interleaved,
    machine,
    ratio,
    same,
    torch_threads,
)
from sparsegen.bench.peers import bisected

HEADS, WIDTH = 8, 64
LENGTHS, QUICK = [512, 1024, 2048, 4096], [64]
PATIENCE = 1.0  # seconds a form may take for one step: beyond it is left out
TARGETS = {"forward": 0.7, "step": 0.5, "memory": 1.2}

Inputs = tuple[Tensor, Tensor, Tensor]
Form = Callable[..., Tensor]


def sample(length: int) -> Inputs:
    """Queries, keys and values of one sentence.

    >>> sample(4)[0].shape
    torch.Size([1, 8, 4, 64])
    """
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, WIDTH, generator=generator) for _ in range(3))
    return q, k, v


def _ours(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    return sgt.sparse_attention(q, k, v, is_causal=is_causal)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def composed(weigh: Callable[[Tensor], Tensor]) -> Form:
    """Attention that computes every weight: the scores as a matrix, `weigh` on its rows.

    >>> q, k, v = sample(4)
    >>> dense = composed(lambda x: torch.softmax(x, -1))
    >>> torch.allclose(dense(q, k, v, True), F.scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-5)
    True
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        return weigh(scores) @ v

    return attend


def _entmax(scores: Tensor) -> Tensor:
    from entmax import sparsemax

    return sparsemax(scores, dim=-1)


FORMS: dict[str, Form] = {
    "sparsegen": _ours,
    "sdpa": _sdpa,
    "dense softmax": composed(lambda scores: torch.softmax(scores, -1)),
    "dense entmax.sparsemax": composed(_entmax),
}


def forms() -> dict[str, Form]:
    """The forms that can be run here.

    >>> list(forms())[:3]
    ['sparsegen', 'sdpa', 'dense softmax']
    """
    return {name: form for name, form in FORMS.items() if "entmax" not in name or find_spec("entmax")}


def _step(form: Form, inputs: Inputs, grad: Tensor, is_causal: bool) -> Any:
    asked = [t.detach().requires_grad_() for t in inputs]
    return torch.autograd.grad(form(*asked, is_causal), asked, grad)


def check(length: int) -> None:
    """Refuse to go on if answer or gradient is wrong: no time is taken of it.

    >>> check(5)
    """
    inputs = sample(length)
    grad = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1))
    exact = composed(lambda scores: bisected(scores).to(scores.dtype))
    for causal in (False, True):
        same("sparse_attention", _ours(*inputs, causal), exact(*inputs, causal), rtol=1e-5, atol=1e-5)
        for a, b in zip(_step(_ours, inputs, grad, causal), _step(exact, inputs, grad, causal)):
            same("the gradient of sparse_attention", a, b, rtol=1e-4, atol=1e-5)


def _late(last: dict[str, Any] | None, length: int, patience: float) -> list[str]:
    """Forms that would take too long for one step, judged by what they took for the length before."""
    if last is None:
        return []
    factor = (length / last["length"]) ** 2 / 1e6
    slow = [name for name, times in last["step"].items() if times["median_us"] * factor > patience]
    return [name for name in dict.fromkeys((*slow, *last["left_out"])) if name.startswith("dense")]


def _memory_call(form: str, length: int, causal: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    torch.set_num_threads(1)
    inputs = sample(length)
    grad = torch.ones_like(inputs[0])
    q, k, v = (t[..., :32, :] for t in inputs)
    warm = grad[..., :32, :]
    return (
        lambda: _step(FORMS[form], (q, k, v), warm, causal),
        lambda: _step(FORMS[form], inputs, grad, causal),
    )


def memory(length: int, causal: bool) -> dict[str, Any] | None:
    """Bytes of forward and backward beyond the inputs, in processes of their own; None where they cannot be known."""
    both = {form: extra_memory(_memory_call, form, length, causal) for form in ("sparsegen", "sdpa")}
    ours, sdpa = both["sparsegen"], both["sdpa"]
    if ours is None or sdpa is None:
        return None
    return {"length": length, "causal": causal, **both, "ratio": ours / sdpa}


def measure(length: int, causal: bool, threads: int, seconds: float, left_out: list[str]) -> dict[str, Any]:
    """Time every form but those left out.

    The two that are compared take turns alone: the dense forms leave cold caches and unmapped memory.

    >>> sorted(measure(8, True, 1, 0.0, ["dense entmax.sparsemax"])["forward"])
    ['dense softmax', 'sdpa', 'sparsegen']
    """
    inputs = sample(length)
    grad = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1))
    found: dict[str, Any] = {"length": length, "causal": causal, "threads": threads, "left_out": left_out}
    for part in ("forward", "step"):
        calls = {name: _call(form, part, inputs, grad, causal) for name, form in forms().items()}
        pair = {name: calls.pop(name) for name in ("sparsegen", "sdpa")}
        dense = {name: call for name, call in calls.items() if name not in left_out}
        with torch_threads(threads), torch.set_grad_enabled(part == "step"):
            found[part] = interleaved(pair, seconds, least=5)
            found[part] |= interleaved(dense, seconds / 4, least=2) if dense else {}
    return {**found, "ratio": {part: ratio(found[part], "sparsegen", "sdpa") for part in ("forward", "step")}}


def _call(form: Form, part: str, inputs: Inputs, grad: Tensor, causal: bool) -> Callable[[], Any]:
    return (lambda: form(*inputs, causal)) if part == "forward" else (lambda: _step(form, inputs, grad, causal))


def run(settings: Settings, tell: Tell) -> dict[str, Any]:
    """Measure every length; `tell` hears which."""
    with torch_threads(1):
        check(40 if settings.quick else 130)
    lengths = QUICK if settings.quick else LENGTHS
    cases: list[dict[str, Any]] = []
    for threads in settings.thread_counts(default_threads()):
        for causal in (False, True):
            last = None
            for length in lengths:
                tell(f"length {length}, {'causal' if causal else 'full'}, {threads} thread(s)")
                last = measure(length, causal, threads, settings.time(2.0), _late(last, length, PATIENCE))
                cases.append(last)
    rows = []
    for length in [] if settings.quick else lengths:
        tell(f"memory, length {length}")
        rows += [memory(length, causal) for causal in (False, True)]
    return {**_result(cases, [row for row in rows if row is not None]), "modes": attention_modes.run(settings, tell)}


def _result(cases: list[dict[str, Any]], memory: list[dict[str, Any]]) -> dict[str, Any]:
    parts = ("forward", "step")
    median = {part: statistics.median(row["ratio"][part] for row in cases) for part in parts}
    worst: dict[str, float | None] = {part: max(row["ratio"][part] for row in cases) for part in parts}
    worst["memory"] = max((row["ratio"] for row in memory), default=None)
    result = {"machine": machine(["entmax"]), "cases": cases, "memory": memory, "median": median, "worst": worst}
    return {**result, "targets": TARGETS, "patience_seconds": PATIENCE}
