"""Random rows that look for trouble, the layouts arrays come in, and cases made simpler."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 5e-324}
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38, "float64": 1.7e308}


def computed_in(storage: str) -> str:
    """Halves are computed in float32."""
    return "float64" if storage == "float64" else "float32"


def rounded(x: np.ndarray, storage: str) -> np.ndarray:
    """The nearest numbers a storage has, as float64; those beyond its largest become that."""
    x = np.clip(x, -LARGEST[storage], LARGEST[storage])
    if storage != "bfloat16":
        return x.astype(storage).astype(np.float64)
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32)
    return np.clip(bits.view(np.float32).astype(np.float64), -LARGEST[storage], LARGEST[storage])


def _halves(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    return rng.permuted(np.tile(2.0 ** -np.minimum(np.arange(k), 160), (n, 1)), axis=1)


def _crowd(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    x = rng.integers(-2, 3, (n, k)) * 2.0**-23 * rng.choice([0, 1, 4], (n, k))
    x[:, : min(k, 3)] += 1 / min(k, 3)
    return x


def _outlier(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    x = rng.standard_normal((n, k))
    x[np.arange(n), rng.integers(k, size=n)] = 10.0 ** rng.uniform(0, 8, n)
    return x


KINDS: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "normal": lambda rng, n, k: rng.standard_normal((n, k)),
    "heavy": lambda rng, n, k: np.exp(5 * rng.standard_normal((n, k))),
    "power": lambda rng, n, k: rng.random((n, k)) ** 20,
    "halves": _halves,
    "sorted": lambda rng, n, k: np.sort(rng.standard_normal((n, k)), axis=1),
    "constant": lambda rng, n, k: np.repeat(rng.standard_normal((n, 1)), k, axis=1),
    "levels": lambda rng, n, k: np.where(rng.random((n, k)) < 4 / (k + 4), 0.0, -0.9),
    "ties": lambda rng, n, k: rng.integers(-8, 9, (n, k)) / 8,
    "crowd": _crowd,
    "outlier": _outlier,
    "harmonic": lambda rng, n, k: np.tile(1 / (1 + np.arange(k)), (n, 1)),
}


def rows(rng: np.random.Generator, n: int, k: int, storage: str, most: float = 1e30) -> np.ndarray:
    """Rows (n, k) as the storage has them, each block of them of another kind, scale and offset."""
    x = np.empty((n, k))
    for block in np.array_split(np.arange(n), min(n, 4)):
        made = KINDS[rng.choice(list(KINDS))](rng, len(block), k)
        if rng.random() < 0.4:
            made = made * 10.0 ** rng.uniform(*((-3, 3) if rng.random() < 0.7 else (-30, 30)))
        if rng.random() < 0.2:
            made = made + rng.standard_normal() * 10.0 ** rng.uniform(0, 6)
        x[block] = np.clip(made, -most, most)
    return rounded(x, storage)


def spoil(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Hides a few entries as -inf, and breaks a few rows with NaN or inf."""
    if rng.random() < 0.2:
        x = np.where(rng.random(x.shape) < 0.2, -math.inf, x)
    if rng.random() < 0.1:
        x = x.copy()
        x[rng.integers(len(x)), rng.integers(x.shape[1])] = rng.choice([math.nan, math.inf])
    return x


def length(rng: np.random.Generator) -> int:
    """Row lengths on both sides of the limits in the code."""
    if rng.random() < 0.6:
        return int(rng.integers(1, 24))
    limit = int(rng.choice([16, 32, 64, 128, 256, 512, 1024, 2048], p=[0.2, 0.2, 0.2, 0.15, 0.1, 0.06, 0.05, 0.04]))
    return max(1, limit + int(rng.integers(-3, 4)))


# How rows (N, K) are laid out: an expression of x, and the axis the rows lie along in it.
LAYOUTS = {
    "rows": ("x", -1),
    "columns": ("np.ascontiguousarray(x.T)", 0),
    "transposed": ("x.T", 0),
    "stepped": ("np.repeat(x, 2, axis=1)[:, ::2]", 1),
    "reversed": ("np.ascontiguousarray(x[:, ::-1])[:, ::-1]", 1),
    "upside down": ("np.ascontiguousarray(x[::-1])[::-1]", 1),
    "padded": ("np.pad(x, ((0, 0), (0, 3)))[:, :-3]", -1),
    "off by one": ("np.concatenate([x.ravel()[:1], x.ravel()])[1:].reshape(x.shape)", -1),
    "middle": ("np.ascontiguousarray(x.reshape(-1, 2, x.shape[1]).swapaxes(1, 2))", 1),
}


def laid_out(x: np.ndarray, layout: str) -> np.ndarray:
    """Rows (N, K) in a layout; "middle" needs an even number of them."""
    return eval(LAYOUTS[layout][0], {"np": np, "x": x})


def as_rows(p: np.ndarray, layout: str, shape: tuple[int, ...]) -> np.ndarray:
    """A result in a layout, as rows again."""
    if layout == "middle":
        return p.swapaxes(1, 2).reshape(shape)
    return p.T if LAYOUTS[layout][1] == 0 else p


def parts(size: int) -> Iterator[slice]:
    """What is worth leaving out of `size` things: all but one, halves, quarters, ... one."""
    n = size - 1
    while n > 0:
        for start in range(0, size - n + 1, n):
            yield slice(start, start + n)
        n //= 2


def simpler(x: float) -> Iterator[float]:
    """Numbers simpler than x."""
    if not math.isfinite(x):
        return
    yield from (v for v in (0.0, 1.0, -1.0, float(round(x)) if abs(x) < 1e15 else x) if v != x)
    for digits in (1, 2, 4):
        if (v := float(f"{x:.{digits}g}")) != x:
            yield v


def literal(x: Any) -> str:
    """Numbers as Python; `nan` and `inf` are names there."""
    return repr(np.asarray(x).tolist())
