"""Attention as models use it, beside torch's: decoding, bfloat16, compiled, masked, with the dial of softmax."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import sparsegen.torch as sgt
from sparsegen.bench.measure import Settings, Tell, default_threads, extra_memory, interleaved, ratio, torch_threads

HEADS, WIDTH = 8, 64
CACHES, LENGTHS = [256, 1024, 4096, 16384], [512, 1024, 2048, 4096]
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# What each mode is held to, as a ratio to torch's time.
TARGETS = {
    "decoding": 1.0,
    "halves": 1.0,
    "compiled": 0.7,
    "compiled step": 0.5,
    "masked": 0.7,
    "dial": 1.0,
    "small": 1.5,
}

Inputs = tuple[Tensor, Tensor, Tensor]


def sample(batch: int, queries: int, keys: int, kind: str = "float32") -> Inputs:
    """Queries, keys and values.

    >>> [tuple(t.shape) for t in sample(2, 1, 5)]
    [(2, 8, 1, 64), (2, 8, 5, 64), (2, 8, 5, 64)]
    """
    generator = torch.Generator().manual_seed(0)
    sizes = (queries, keys, keys)
    q, k, v = (torch.randn(batch, HEADS, n, WIDTH, generator=generator).to(TYPES[kind]) for n in sizes)
    return q, k, v


def _pair(inputs: Inputs, threads: int, seconds: float, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    calls: dict[str, Callable[[], Any]] = {
        "sparsegen": lambda: sgt.sparse_attention(*inputs, **ours),
        "sdpa": lambda: F.scaled_dot_product_attention(*inputs, **theirs),
    }
    with torch_threads(threads), torch.no_grad():
        times = interleaved(calls, seconds, least=5)
    return {"times": times, "ratio": ratio(times, "sparsegen", "sdpa")}


DIAL = {"mapping": "sparsegen_softmax", "lam": 0.05}


def decoding(settings: Settings, threads: int, tell: Tell) -> list[dict[str, Any]]:
    """One query against a cache of keys, for one sequence and for eight."""
    rows = []
    for kind in TYPES:
        for batch in (1, 8):
            for keys in CACHES[:1] if settings.quick else CACHES:
                tell(f"decoding, {kind}, batch {batch}, {keys} keys, {threads} thread(s)")
                inputs = sample(batch, 1, keys, kind)
                for mapping, how in (("sparsemax", {}), ("sparsegen_softmax", DIAL)):
                    found = _pair(inputs, threads, settings.time(0.5), how, {})
                    rows.append(
                        {"mapping": mapping, "type": kind, "batch": batch, "keys": keys, "threads": threads, **found}
                    )
    return rows


def forward(settings: Settings, threads: int, tell: Tell) -> list[dict[str, Any]]:
    """Whole sequences: bfloat16, a causal mask that is materialised, and the dial that begins at softmax."""
    rows = []
    for length in [64] if settings.quick else LENGTHS:
        triangle = torch.ones(length, length, dtype=torch.bool).tril()
        cases: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
            "halves": ("bfloat16", {"is_causal": True}, {"is_causal": True}),
            "masked": ("float32", {"attn_mask": triangle}, {"attn_mask": triangle}),
            "dial": ("float32", {**DIAL, "is_causal": True}, {"is_causal": True}),
        }
        for mode, (kind, ours, theirs) in cases.items():
            tell(f"{mode}, length {length}, {threads} thread(s)")
            found = _pair(sample(1, length, length, kind), threads, settings.time(1.0), ours, theirs)
            rows.append({"mode": mode, "length": length, "threads": threads, **found})
    tell("small calls")
    small = _pair(sample(1, 8, 64), threads, settings.time(0.5), {}, {})
    return [*rows, {"mode": "small", "length": 64, "threads": threads, **small}]


def _step(f: Callable[..., Tensor], inputs: Inputs) -> Any:
    asked = [t.detach().requires_grad_() for t in inputs]
    out = f(*asked)
    return torch.autograd.grad(out, asked, torch.ones_like(out))


FORMS: dict[str, Callable[..., Tensor]] = {
    "sparsegen": lambda q, k, v: sgt.sparse_attention(q, k, v, is_causal=True),
    "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
}


def compiled(settings: Settings, threads: int, tell: Tell) -> list[dict[str, Any]]:
    """The same under torch.compile, forward and forward with backward."""
    rows = []
    for length in [] if settings.quick else LENGTHS:
        tell(f"compiled, length {length}, {threads} thread(s)")
        inputs = sample(1, length, length)
        graphs = {name: torch.compile(form, fullgraph=True) for name, form in FORMS.items()}
        row: dict[str, Any] = {"length": length, "threads": threads}
        with torch_threads(threads):
            steps = interleaved({n: partial(_step, g, inputs) for n, g in graphs.items()}, settings.time(1.0), least=3)
            with torch.no_grad():
                calls = interleaved({n: partial(g, *inputs) for n, g in graphs.items()}, settings.time(1.0), least=3)
        row["ratio"] = {"forward": ratio(calls, "sparsegen", "sdpa"), "step": ratio(steps, "sparsegen", "sdpa")}
        rows.append(row)
    return rows


def _memory_call(form: str, length: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    torch.set_num_threads(1)
    graph = torch.compile(FORMS[form], fullgraph=True, dynamic=True)
    small, large = sample(1, 32, 32), sample(1, length, length)
    return lambda: _step(graph, small), lambda: _step(graph, large)


def memory(length: int) -> dict[str, Any]:
    """Bytes of a compiled step beyond its inputs, in processes of their own."""
    return {"length": length, **{form: extra_memory(_memory_call, form, length) for form in FORMS}}


def run(settings: Settings, tell: Tell) -> dict[str, Any]:
    """Measure every mode; `tell` hears which."""
    found: dict[str, Any] = {"decoding": [], "forward": [], "compiled": []}
    for threads in settings.thread_counts(default_threads()):
        found["decoding"] += decoding(settings, threads, tell)
        found["forward"] += forward(settings, threads, tell)
        found["compiled"] += compiled(settings, threads, tell)
    if not settings.quick:
        tell("memory of a compiled step")
        found["memory"] = memory(LENGTHS[-1])
    return {**found, "targets": TARGETS}
