"""What surrounds the work: small calls, importing, memory, compiling."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import sparsegen.torch as sgt
from sparsegen._table.maps import MAPS
from sparsegen.bench.family import controls_of
from sparsegen.bench.inputs import scores
from sparsegen.bench.measure import extra_memory, interleaved, torch_threads
from sparsegen.bench.peers import PEERS, gate


def _calls(form: Callable[[Tensor], Tensor], z: Tensor, count: int) -> None:
    with torch.set_grad_enabled(z.requires_grad):  # else what learns would record a graph
        for _ in range(count):
            form(z)


def _steps(form: Callable[[Tensor], Tensor], z: Tensor, count: int) -> None:
    v = torch.ones_like(z)
    for _ in range(count):
        torch.autograd.grad(form(z), z, v)


_SOFTMAX = "torch.softmax"


def _forms() -> dict[str, Callable[[Tensor], Tensor]]:
    """What is called: torch.softmax, every map of the table, and modules whose control is learned."""
    forms: dict[str, Callable[[Tensor], Tensor]] = {_SOFTMAX: lambda x: torch.softmax(x, -1)}
    for name in MAPS:
        forms[name] = partial(getattr(sgt, name), **controls_of(name))
    learned = (sgt.Sparsegen(0.1, learnable=True), sgt.Sparsehourglass(0.5, learnable=True),
               sgt.SparsegenSoftmax(0.1, learnable=True), sgt.Entmax(1.5, learnable=True))  # fmt: skip
    return forms | {f"{type(module).__name__} that learns": module for module in learned}


def small_calls(seconds: float, block: int = 200) -> dict[str, Any]:
    """Time a 1 x 32 call of every map and of modules that learn, beside torch.softmax's; none if one is wrong.

    In blocks of calls, without gradients (under `torch.no_grad`) and with them, forward only; `ratio_step` is of
    forward and backward.

    >>> small_calls(0.0, block=1)["ratio"]["torch.softmax"]
    1.0
    """
    x = torch.randn(1, 32, generator=torch.Generator().manual_seed(0)).abs() + 0.1
    if not gate(PEERS[0], x, 0.5).timed:
        return {}
    forms = _forms()
    inputs = {"": x, "_grad": x.clone().requires_grad_()}
    with torch_threads(1):
        calls: dict[str, Callable[[], Any]] = {}
        for name, form in forms.items():
            calls |= {name + kind: partial(_calls, form, z, block) for kind, z in inputs.items()}
            calls[f"{name}_step"] = partial(_steps, form, inputs["_grad"], block)
        times = interleaved(calls, seconds)
    us = {name: found["median_us"] / block for name, found in times.items()}
    return {
        "us": us,
        "ratio": {name: us[name] / us[_SOFTMAX] for name in forms},
        "ratio_grad": {name: us[f"{name}_grad"] / us[f"{_SOFTMAX}_grad"] for name in forms},
        "ratio_step": {name: us[f"{name}_step"] / us[f"{_SOFTMAX}_step"] for name in forms},
    }


def import_time(repeats: int = 15) -> dict[str, float]:
    """What `import sparsegen` adds to importing NumPy, in fresh interpreters."""
    code = "import time, numpy; a = time.perf_counter(); import sparsegen; print(time.perf_counter() - a)"
    call = [sys.executable, "-c", code]
    runs = (subprocess.run(call, capture_output=True, text=True, check=True) for _ in range(repeats))
    spent = sorted(float(run.stdout) for run in runs)
    return {"median_ms": spent[repeats // 2] * 1e3, "worst_ms": spent[-1] * 1e3}


def _forward_call(name: str, rows: int, n: int, threads: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    torch.set_num_threads(threads)
    peer = next(peer for peer in PEERS if peer.name == name)
    function, x = peer.function(0.0), peer.enter(scores(rows, n))
    warm = peer.enter(scores(8, 64))
    return lambda: function(warm), lambda: function(x)


def memory(name: str, rows: int, n: int, threads: int) -> dict[str, Any]:
    """Peak memory of a forward call beyond its input, in a fresh process; no bytes where they cannot be known."""
    grown, output = extra_memory(_forward_call, name, rows, n, threads), rows * n * 4
    case = {"name": name, "rows": rows, "K": n, "threads": threads, "output_bytes": output}
    if grown is None:
        return case
    return {**case, "grown_bytes": grown, "outputs": grown / output, "beyond_output_per_K": (grown - output) / n}


def compiles() -> dict[str, Any]:
    """Whether a function that uses the map is one graph for torch.compile."""
    try:
        whole = torch.compile(lambda x: sgt.sparsegen_lin(2 * x, lam=0.5) + 1, backend="eager", fullgraph=True)
        whole(torch.zeros(2, 4))
    except Exception as error:  # dynamo's, of many kinds
        return {"one_graph": False, "why": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}
    return {"one_graph": True}
