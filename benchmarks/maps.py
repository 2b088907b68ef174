"""Speed of the maps beside torch.softmax, a plain copy and entmax's sort: `python benchmarks/maps.py`.

Writes results/maps.json and prints a table. Wrong answers are not timed: every case is compared with a float64
bisection first.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from typing import Any

import torch
from measure import interleaved, machine, save
from torch import Tensor

import sparsegen.torch as sgt

SHAPES = [(65536, 10), (4096, 50), (8192, 128), (4096, 512), (1024, 2048), (256, 32000), (64, 131072)]


def bisected(x: Tensor, radius: float) -> Tensor:
    x = x.double()
    high = x.amax(-1, keepdim=True)
    low = high - radius
    for _ in range(80):
        middle = (low + high) / 2
        over = (x - middle).clamp(min=0).sum(-1, keepdim=True) > radius
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    on = x > low
    tau = ((x * on).sum(-1, keepdim=True) - radius) / on.sum(-1, keepdim=True)
    return (x - tau).clamp(min=0) / radius


def check(x: Tensor, lam: float) -> float:
    """Largest error on some rows; raises if it is not rounding."""
    p = sgt.sparsegen_lin(x[:32], lam=lam)
    error = float((p - bisected(x[:32], 1 - lam)).abs().max())
    if error > 1e-6:
        raise SystemExit(f"wrong answer: error {error:.1e} at shape {tuple(x.shape)}, lam {lam}; nothing is timed")
    return error


def case(shape: tuple[int, int], density: str, threads: int, seconds: float) -> dict[str, Any]:
    rows, n = shape
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, v = torch.randn(rows, n), torch.randn(rows, n)
    lam = sgt.lam_for_mean_support(x[:256], 5 if density == "sparse" else n / 2)
    error = check(x, lam)
    z, s = x.clone().requires_grad_(), x.clone().requires_grad_()
    p, y = sgt.sparsegen_lin(z, lam=lam), torch.softmax(s, -1)
    times = interleaved(
        {
            "forward": lambda: sgt.sparsegen_lin(x, lam=lam),
            "softmax": lambda: torch.softmax(x, -1),
            "copy": lambda: x.clone(),
            "backward": lambda: torch.autograd.grad(p, z, v, retain_graph=True),
            "softmax_backward": lambda: torch.autograd.grad(y, s, v, retain_graph=True),
        },
        seconds,
    )
    row = {
        "rows": rows, "K": n, "density": density, "threads": threads, "lam": lam, "error": error,
        "support": float((p > 0).sum(-1).double().mean()), "times": times,
    }  # fmt: skip
    if n >= 512 and threads == 1:
        row["times"] |= entmax_times(x, lam)
    median = {name: t["median_us"] for name, t in row["times"].items()}
    row["forward_ratio"] = median["forward"] / median["softmax"]
    row["copy_ratio"] = median["forward"] / median["copy"]
    row["backward_ratio"] = median["backward"] / median["softmax_backward"]
    if "entmax" in median:
        row["entmax_speedup"] = median["entmax"] / median["forward_beside_entmax"]
    return row


def entmax_times(x: Tensor, lam: float) -> dict[str, Any]:
    """entmax.sparsemax of x / (1 - lam), a few turns of it: one takes up to minutes where ours takes milliseconds."""
    try:
        from entmax import sparsemax
    except ImportError:
        return {}
    part = x[: max(1, 2_000_000 // x.shape[1])]
    scaled = part / (1 - lam)
    times = interleaved(
        {
            "entmax": lambda: sparsemax(scaled, dim=-1),
            "forward_beside_entmax": lambda: sgt.sparsegen_lin(part, lam=lam),
        },
        0.0,
        least=3,
    )
    return times


def small_calls() -> dict[str, Any]:
    """A 1 x 32 call, with and without gradients, beside torch.softmax's; blocks of 200 calls."""
    torch.set_num_threads(1)
    x = torch.randn(1, 32)
    z = x.clone().requires_grad_()

    def block(call: Any) -> Any:
        return lambda: [call() for _ in range(200)]

    times = interleaved(
        {
            "softmax": block(lambda: torch.softmax(x, -1)),
            "sparsemax": block(lambda: sgt.sparsemax(x)),
            "sparsegen_lin": block(lambda: sgt.sparsegen_lin(x, lam=0.5)),
            "sparsehourglass": block(lambda: sgt.sparsehourglass(x, q=0.5)),
            "softmax_grad": block(lambda: torch.softmax(z, -1)),
            "sparsemax_grad": block(lambda: sgt.sparsemax(z)),
            "sparsegen_lin_grad": block(lambda: sgt.sparsegen_lin(z, lam=0.5)),
            "sparsehourglass_grad": block(lambda: sgt.sparsehourglass(z, q=0.5)),
        },
        4.0,
    )
    us = {name: t["median_us"] / 200 for name, t in times.items()}
    return {
        "us": us,
        "ratio": {name: us[name] / us["softmax"] for name in us if not name.endswith("_grad")},
        "ratio_grad": {name: us[name] / us["softmax_grad"] for name in us if name.endswith("_grad")},
    }


def import_time() -> dict[str, float]:
    """What `import sparsegen` adds to importing NumPy, in fresh interpreters, median of 15."""
    code = "import time, numpy; a = time.perf_counter(); import sparsegen; print(time.perf_counter() - a)"
    call = [sys.executable, "-c", code]
    spent = sorted(float(subprocess.run(call, capture_output=True, text=True, check=True).stdout) for _ in range(15))
    return {"median_ms": spent[7] * 1e3, "worst_ms": spent[-1] * 1e3}


MEMORY = """
import re, torch, sparsegen.torch as sgt
torch.set_num_threads({threads})
x = torch.randn({rows}, {n})
sgt.sparsemax(torch.randn(8, 64))
status = lambda key: int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak from here on
p = sgt.sparsegen_lin(x, lam={lam})
print(status("VmHWM") - before)
"""


def memory(rows: int, n: int, threads: int) -> dict[str, float]:
    """Peak memory of a forward call beyond its input, in a fresh process."""
    code = MEMORY.format(rows=rows, n=n, threads=threads, lam=0.0)
    grown = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    output = rows * n * 4
    return {
        "rows": rows, "K": n, "threads": threads, "output_bytes": output, "grown_bytes": grown,
        "beyond_output_per_K": (grown - output) / n,
    }  # fmt: skip


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def show(result: dict[str, Any]) -> None:
    print(f"{'shape':>14} {'density':>7} {'thr':>3} {'nnz':>8} | {'fwd us':>8} {'/softmax':>8} {'/copy':>6} | "
          f"{'bwd us':>8} {'/softmax':>8} | {'entmax':>7}")  # fmt: skip
    for r in result["cases"]:
        t = r["times"]
        peer = f"{r['entmax_speedup']:6.0f}x" if "entmax_speedup" in r else ""
        print(
            f"{r['rows']:>7}x{r['K']:<6} {r['density']:>7} {r['threads']:>3} {r['support']:8.1f} | "
            f"{t['forward']['median_us']:8.0f} {r['forward_ratio']:8.2f} {r['copy_ratio']:6.2f} | "
            f"{t['backward']['median_us']:8.0f} {r['backward_ratio']:8.2f} | {peer}"
        )
    for threads, means in result["geometric_means"].items():
        print(f"geometric means, {threads} thread(s): forward {means['forward']:.2f}, backward {means['backward']:.2f}")
    print("1x32 call: ", json.dumps({k: round(v, 2) for k, v in result["small_calls"]["ratio"].items()}))
    print("with grad: ", json.dumps({k: round(v, 2) for k, v in result["small_calls"]["ratio_grad"].items()}))
    print(f"import sparsegen after NumPy: {result['import']['median_ms']:.1f} ms")
    for m in result["memory"]:
        size = f"{m['rows']}x{m['K']}, {m['threads']} thread(s)"
        print(f"memory {size}: the output and {m['beyond_output_per_K']:.0f} bytes x K")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each case")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true", help="toy sizes, for the test of this script; writes nothing")
    args = parser.parse_args()
    shapes = [(64, 10), (16, 600)] if args.quick else SHAPES
    result: dict[str, Any] = {"machine": machine(), "cases": []}
    for threads in args.threads:
        for shape in shapes:
            for density in ("sparse", "dense"):
                result["cases"].append(case(shape, density, threads, 0.01 if args.quick else args.seconds))
    result["geometric_means"] = {
        str(threads): {
            key: geometric_mean([r[f"{key}_ratio"] for r in result["cases"] if r["threads"] == threads])
            for key in ("forward", "backward")
        }
        for threads in args.threads
    }
    result["small_calls"] = small_calls()
    result["import"] = import_time()
    result["memory"] = [memory(512, 131072, 1), memory(512, 131072, 2)] if not args.quick else [memory(8, 1024, 1)]
    show(result)
    if not args.quick:
        print("written:", save("maps", result).name)


if __name__ == "__main__":
    main()
