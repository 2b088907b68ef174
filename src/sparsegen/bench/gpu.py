"""Maps and attention on a GPU beside torch and other libraries. An answer that is wrong gets no time.

Nothing here runs without a GPU: `sparsegen bench gpu` is for its owner.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import sparsegen.torch as sgt
from sparsegen._table.checks import fail
from sparsegen.bench.measure import Settings, Tell, interleaved, machine, ratio
from sparsegen.torch import _plain

Call = Callable[[Tensor], Tensor]
ENTRIES = 1 << 25
LENGTHS, QUICK_LENGTHS = [128, 1024, 8192, 16384, 131072], [64]
SEQUENCES, QUICK_SEQUENCES = [1024, 4096, 16384], [64]
HEADS, SIZE = 16, 64


def device() -> str:
    """The GPU, or a refusal."""
    if not torch.cuda.is_available():
        fail(ValueError, "the device of `sparsegen bench gpu`", "a GPU that torch can use", "none")
    return "cuda"


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _timed(call: Callable[..., Any], *given: Tensor) -> Callable[[], None]:
    def run() -> None:
        call(*given)
        _wait()

    return run


def _entmax() -> Call:
    from entmax import sparsemax

    return lambda x: sparsemax(x, -1)


def _liger() -> Call:
    from liger_kernel.ops.sparsemax import LigerSparsemaxFunction

    return lambda x: LigerSparsemaxFunction.apply(x, -1)


# By name: the package it needs, what makes it, and whether it claims to be sparsemax.
FORMS: dict[str, tuple[str, Callable[[], Call], bool]] = {
    "sparsegen": ("sparsegen", lambda: sgt.sparsemax, True),
    "torch.softmax": ("torch", lambda: lambda x: torch.softmax(x, -1), False),
    "copy": ("torch", lambda: torch.clone, False),
    "entmax": ("entmax", _entmax, True),
    "liger": ("liger_kernel", _liger, True),
}


def forms() -> dict[str, tuple[Call, bool]]:
    """What is installed, and whether its answers can be compared."""
    return {name: (make(), same) for name, (package, make, same) in FORMS.items() if find_spec(package)}


def error(call: Call, x: Tensor) -> float:
    """Largest difference from sorting in float64, over some rows."""
    some = x[:64]
    exact = _plain.project(some.double(), torch.ones((), dtype=torch.float64, device=x.device), -1, None)
    return float((call(some).double() - exact).abs().max())


def _step(call: Call, x: Tensor, v: Tensor) -> Callable[[], Any]:
    z = x.clone().requires_grad_()
    return lambda: torch.autograd.grad(call(z), z, v)


def rows(where: str, n: int, dtype: torch.dtype, entries: int, seconds: float) -> dict[str, Any]:
    """One length and type: errors, and forward and both ways as ratios to torch.softmax."""
    generator = torch.Generator(where).manual_seed(0)
    x = torch.randn(max(entries // n, 1), n, generator=generator, device=where).to(dtype)
    found = forms()
    errors = {name: error(call, x) for name, (call, same) in found.items() if same}
    allowed = 4 * torch.finfo(dtype).eps
    right = {name: call for name, (call, _) in found.items() if errors.get(name, 0.0) <= allowed}
    forward = interleaved({name: _timed(call, x) for name, call in right.items()}, seconds)
    v = torch.randn(x.shape, generator=generator, device=where).to(dtype)
    step = interleaved({name: _timed(_step(call, x, v)) for name, call in right.items()}, seconds)
    return {
        "n": n, "dtype": str(dtype).removeprefix("torch."), "errors": errors,
        "forward": {name: ratio(forward, name, "torch.softmax") for name in right},
        "step": {name: ratio(step, name, "torch.softmax") for name in right},
    }  # fmt: skip


def _attention_error(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> float:
    q, k, v = (t[:, :1, -256:] for t in (q, k, v))
    exact = sgt.sparse_attention(q.double(), k.double(), v.double(), is_causal=causal)
    got = sgt.sparse_attention(q, k, v, is_causal=causal)
    return float((got.double() - exact).abs().max())


def attention(where: str, length: int, dtype: torch.dtype, causal: bool, seconds: float) -> dict[str, Any]:
    """One length: the error, and forward and both ways as ratios to torch's attention."""
    generator = torch.Generator(where).manual_seed(0)
    shape = (1, HEADS, length, SIZE)
    q, k, v, upstream = (torch.randn(shape, generator=generator, device=where).to(dtype) for _ in range(4))
    wrong = _attention_error(q, k, v, causal)
    found: dict[str, Any] = {
        "length": length,
        "dtype": str(dtype).removeprefix("torch."),
        "causal": causal,
        "error": wrong,
    }
    if wrong > max(4 * torch.finfo(dtype).eps, 1e-5):  # scores are rounded in float32
        return found
    calls: dict[str, Callable[..., Tensor]] = {
        "sparsegen": lambda q: sgt.sparse_attention(q, k, v, is_causal=causal),
        "torch": lambda q: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
    }
    forward = interleaved({name: _timed(call, q) for name, call in calls.items()}, seconds)
    step = interleaved({name: _timed(_step(call, q, upstream)) for name, call in calls.items()}, seconds)
    return {**found, "forward": ratio(forward, "sparsegen", "torch"), "step": ratio(step, "sparsegen", "torch")}


def run(settings: Settings, tell: Tell, where: str | None = None) -> dict[str, Any]:
    """Measure rows and attention; `where` is the device, the GPU if left out."""
    where = where or device()
    seconds, quick = settings.time(2.0), settings.quick
    dtypes = [torch.float32] if quick else [torch.bfloat16, torch.float32]
    found: dict[str, Any] = {"rows": [], "attention": [], "machine": machine(["torch", "triton", "entmax"])}
    found["device"] = torch.cuda.get_device_name() if where == "cuda" else where
    for dtype in dtypes:
        for n in QUICK_LENGTHS if quick else LENGTHS:
            tell(f"rows of {n}, {dtype}")
            found["rows"].append(rows(where, n, dtype, 256 if quick else ENTRIES, seconds))
    for length in QUICK_SEQUENCES if quick else SEQUENCES:
        for causal in (False, True):
            tell(f"attention, {length}")
            found["attention"].append(attention(where, length, dtypes[0], causal, seconds))
    return found
