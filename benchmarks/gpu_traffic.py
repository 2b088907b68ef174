"""What the GPU kernels read and write, counted in Triton's interpreter: writes results/gpu-traffic.json.

Rows: bytes of all tensors over those of a copy (one read and one write of every entry). Attention: how often a block of
queries goes over its keys, forwards and backwards, and the share of tiles that hold support.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from marks import ROOT
from torch import Tensor
from triton.runtime import interpreter

sys.path.insert(0, str(ROOT / "tests" / "torch" / "_triton"))
from interpreter import mend
from sparsegen._table.maps import MAPS
from sparsegen.experiments.store import versions
from sparsegen.torch import _triton
from sparsegen.torch._triton import attention_launch
from sparsegen.torch._triton.numbers import add2

QUERIES, KEYS, SIZE = 256, 512, 64
ROWS = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Traffic:
    """Bytes that kernels read of one tensor, and those they read and write in all."""

    def __init__(self) -> None:
        self.all, self.of, self.first, self.end = 0, 0, 0, 0
        builder = interpreter.InterpreterBuilder
        load, store = builder.create_masked_load, builder.create_masked_store

        def counted_load(made: Any, at: Any, mask: Any, *rest: Any) -> Any:
            self._add(at, mask)
            return load(made, at, mask, *rest)

        def counted_store(made: Any, at: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self._add(at, mask)
            return store(made, at, value, mask, *rest)

        builder.create_masked_load, builder.create_masked_store = counted_load, counted_store

    def _add(self, at: Any, mask: Any) -> None:
        moved = int(mask.data.sum()) * at.get_element_ty().primitive_bitwidth // 8
        self.all += moved
        if self.first <= int(at.data.flat[0]) < self.end:
            self.of += moved

    def during(self, call: Callable[..., Any], watched: Tensor, *given: Any) -> tuple[Any, int, int]:
        """What a call returns, the bytes it moves, and those it reads of a tensor."""
        self.all = self.of = 0
        self.first = watched.data_ptr()
        self.end = self.first + watched.numel() * watched.element_size()
        return call(*given), self.all, self.of


def rows(traffic: Traffic) -> dict[str, Any]:
    """Bytes moved over those of a copy, forwards and backwards."""
    found: dict[str, Any] = {}
    one = torch.ones((), dtype=torch.float64)
    for name, dtype in ROWS.items():
        for n in (1024, 8192, 16384, 65536):
            x = torch.randn(2, n, generator=torch.Generator().manual_seed(n)).to(dtype)
            copy = 2 * x.numel() * x.element_size()
            p, forward, _ = traffic.during(_triton.project, x, x, one, -1, None)
            _, backward, _ = traffic.during(_triton.project_vjp, x, p, x, one, -1, True)
            found[f"{name} {n}"] = {"forward": forward / copy, "backward": backward / copy}
    return found


def pattern(name: str) -> Tensor | None:
    """What is added to random scores: nothing; a fall with the distance; the same with four keys that all look at."""
    if name == "random":
        return None
    place = torch.arange(QUERIES)[:, None] * (KEYS // QUERIES)
    bias = -(place - torch.arange(KEYS)).abs() / 4
    return bias.where(torch.arange(KEYS) >= 4, 2.0) if name == "sinks" else bias


def attention(traffic: Traffic, mapping: str, control: float, kind: str) -> dict[str, float]:
    """Passes over the keys of a head of bf16, in tiles as on a device."""
    draw = torch.Generator().manual_seed(0)
    q, k, v, upstream = (torch.randn(1, 1, n, SIZE, generator=draw).bfloat16() for n in (QUERIES, KEYS, KEYS, QUERIES))
    m, how = MAPS[mapping], (False, 1 / math.sqrt(SIZE), 1.0, 0.0)
    given = torch.tensor(control, dtype=torch.float64)
    mask = pattern(kind)
    whole = attention_launch.block_counts(q, k, v)[0] * k.numel() * 2
    found, _, forward = traffic.during(_triton.attention, k, q, k, v, given, mask, None, m, *how)
    kept = found[1:]
    _, _, backward = traffic.during(_triton.attention_vjp, k, q, k, v, mask, None, kept, upstream, m, *how)
    return {
        "active": float(found[4].float().mean()),
        "refined": float(found[5][..., 1].float().mean()),
        "forward": forward / whole,
        "backward": (backward - k.numel() * 2) / whole,  # without the once that each key's own gradient reads it
    }


CALLS = {"sparsemax": 1.0, "entmax15": 1.0, "sparsegen_softmax": 0.9}


def main() -> None:
    mend(add2)
    traffic = Traffic()
    made: dict[str, Any] = {"versions": versions(), "queries": QUERIES, "keys": KEYS, "size": SIZE, "controls": CALLS}
    with np.errstate(all="ignore"):
        made["attention"] = {
            name: {kind: attention(traffic, name, control, kind) for kind in ("random", "local", "sinks")}
            for name, control in CALLS.items()
        }
        made["rows"] = rows(traffic)
    (ROOT / "results" / "gpu-traffic.json").write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
