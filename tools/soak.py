"""An hour of mixed calls from threads and forked workers: the same bits throughout, and memory that stays flat.

    python tools/soak.py --minutes 60

Every case has a digest of its result, taken before. Threads call cases at random and compare; now and then two forked
workers do the same. Counts, and the memory of the process over time, go into results/reliability.json.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import record
import sparsegen as sg
import sparsegen.torch as sgt
from sparsegen._table.maps import MAPS

Case = Callable[[], Any]
SHAPES = ((1, 5), (300, 7), (64, 50), (40, 513), (8, 4099), (2, 40000))
CONTROLS = {"lam": 0.3, "q": 0.7, "temperature": 0.8, "alpha": 1.4}


def digest(value: Any) -> str:
    """Of every bit of a result."""
    made = hashlib.sha256()
    parts = value if isinstance(value, (tuple, list)) else [value]
    for part in parts:
        array = part.detach().numpy() if isinstance(part, torch.Tensor) else np.asarray(part)
        made.update(np.ascontiguousarray(array).tobytes())
    return made.hexdigest()


def with_gradient(f: Callable[..., torch.Tensor], *arrays: np.ndarray, **options: Any) -> list[torch.Tensor]:
    inputs = [torch.tensor(array, requires_grad=True) for array in arrays]
    out = f(*inputs, **options)
    grads = torch.autograd.grad((out * torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype)).sum(), inputs)
    return [out, *grads]


def cases() -> dict[str, Case]:
    """Maps of every storage with masks and gradients, losses, attention, and what finds a dial."""
    rng = np.random.default_rng(0)
    made: dict[str, Case] = {}
    for name, m in MAPS.items():
        given = {control: CONTROLS[control] for control in m.controls}
        for shape in SHAPES:
            z = np.abs(rng.normal(size=shape)) + 0.1
            mask = rng.random(shape) < 0.7
            f, ft = getattr(sg, name), getattr(sgt, name)
            for dtype in (np.float64, np.float32, np.float16):
                x = z.astype(dtype)
                made[f"{name} {shape} {dtype.__name__}"] = lambda f=f, x=x, g=given: f(x, **g)
            made[f"{name} {shape} mask"] = lambda f=f, z=z, k=mask, g=given: f(z, mask=k, **g)
            made[f"{name} {shape} torch"] = lambda ft=ft, z=z, g=given: with_gradient(ft, z, **g)
    for shape in SHAPES[1:4]:
        z, y = rng.normal(size=shape), (rng.random(shape) < 0.3).astype(np.float64)
        y[:, 0] = 1
        for name in ("sparsegen_hinge_loss", "sparsehourglass_hinge_loss", "sparsemax_huber_loss", "softmax_log_loss"):
            target = y if "hinge" in name else y / y.sum(-1, keepdims=True)
            f = getattr(sg, name)
            made[f"{name} {shape}"] = lambda f=f, z=z, t=target: (lambda r: [r[0], r[1].scores])(
                f(z, t, return_grad=True)
            )
        made[f"lam_for_support {shape}"] = lambda z=z: sg.lam_for_support(z, 3)
        made[f"lam_for_mean_support {shape}"] = lambda z=z: sg.lam_for_mean_support(z, 3)
        made[f"explain {shape}"] = lambda z=z: sg.explain(z, "sparsegen_lin", lam=0.3).support_size
    for length in (7, 130):
        q, k, v = rng.normal(size=(3, 2, 2, length, 16)).astype(np.float32)
        for name in ("sparsemax", "sparsegen_lin", "entmax15", "sparsegen_softmax"):
            given = {control: CONTROLS[control] for control in MAPS[name].controls if control == "lam"}
            made[f"attention {name} {length}"] = lambda q=q, k=k, v=v, n=name, g=given: with_gradient(
                sgt.sparse_attention, q, k, v, mapping=n, is_causal=True, **g
            )
    return made


class Soak:
    """Callers that compare, and what they have counted."""

    def __init__(self, seed: int) -> None:
        self.cases = cases()
        self.expected = {name: digest(case()) for name, case in self.cases.items()}
        self.names = list(self.cases)
        self.seed, self.stop = seed, threading.Event()
        self.lock, self.calls, self.wrong = threading.Lock(), 0, []
        self.memory: list[tuple[float, float]] = []

    def compare(self, name: str) -> bool:
        return digest(self.cases[name]()) == self.expected[name]

    def caller(self, number: int) -> None:
        draw = random.Random(self.seed + number)
        while not self.stop.is_set():
            name = draw.choice(self.names)
            try:
                good = self.compare(name)
            except Exception as error:
                good, name = False, f"{name}: {type(error).__name__}: {error}"
            with self.lock:
                self.calls += 1
                if not good:
                    self.wrong.append(name)

    def child(self, seed: int, calls: int = 40) -> None:
        """In a forked worker: exit 0 if every call had the same bits. It uses one thread of torch, as loaders do."""
        torch.set_num_threads(1)
        draw = random.Random(seed)
        good = all(self.compare(draw.choice(self.names)) for _ in range(calls))
        os._exit(0 if good else 1)

    def fork(self, seed: int, wait: float = 120.0) -> str:
        """What became of a worker: "same bits", "other bits", "died" or "hung"."""
        child = os.fork()
        if child == 0:
            try:
                self.child(seed)
            finally:
                os._exit(2)
        end = time.monotonic() + wait
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return {0: "same bits", 1: "other bits"}.get(os.waitstatus_to_exitcode(status), "died")
            time.sleep(0.05)
        os.kill(child, 9)
        os.waitpid(child, 0)
        return "hung"

    def run(self, minutes: float, threads: int, every: float) -> dict[str, Any]:
        start = time.monotonic()
        callers = [threading.Thread(target=self.caller, args=(n,)) for n in range(threads)]
        for one in callers:
            one.start()
        ends: dict[str, int] = {}
        turn = 0
        while (passed := time.monotonic() - start) < 60 * minutes:
            time.sleep(every)
            sg.set_num_threads(1 + turn % 2)
            turn += 1
            end = self.fork(self.seed + 1000 + turn)
            ends[end] = ends.get(end, 0) + 1
            self.memory.append((passed, resident()))
            if turn % 10 == 0:
                line = f"{passed / 60:5.1f} min: {self.calls} calls, {turn} forked workers, {len(self.wrong)} wrong"
                print(f"{line}, {self.memory[-1][1]:.0f} MiB", flush=True)
        self.stop.set()
        for one in callers:
            one.join()
        return self.summary(time.monotonic() - start, threads, ends)

    def summary(self, seconds: float, threads: int, ends: dict[str, int]) -> dict[str, Any]:
        later = [mib for at, mib in self.memory if at >= 0.2 * seconds]
        half = len(later) // 2 or 1
        first, second = later[:half], later[half:] or later
        return {
            "minutes": round(seconds / 60, 1), "threads": threads, "cases": len(self.cases), "calls": self.calls,
            "calls_wrong": len(self.wrong), "wrong": self.wrong[:20], "workers": sum(ends.values()),
            "workers_by_end": ends, "mib_first_half": round(float(np.median(first)), 1),
            "mib_second_half": round(float(np.median(second)), 1), "mib_most": round(max(later), 1),
        }  # fmt: skip


def resident() -> float:
    """Memory of this process in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between forked workers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=str(record.PATH))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = Soak(options.seed).run(options.minutes, options.threads, options.every)
    record.keep("soak", found, options.out)
    print(found)


if __name__ == "__main__":
    main()
