"""Sparse attention through torch: weights, result and gradients against dense sums in long double."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import long_double
import sparsegen.torch as sgt
from long_double import Real
from scores import EPS, TINY, literal, rounded

# The maps that are one fused kernel, and the control each takes.
FUSED = {"sparsemax": "", "sparsegen_lin": "lam", "sparsecone": "q", "sparsehourglass": "q", "hardmax": ""}


@dataclass(frozen=True)
class Case:
    """Queries (heads, L, E), keys (heads / group, S, E) and values (heads / group, S, Ev)."""

    mapping: str
    storage: str
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    grad: np.ndarray  # of the result
    control: float | None
    mask: np.ndarray | None
    causal: bool
    scale: float

    @property
    def rows(self) -> int:
        return self.q.shape[0] * self.q.shape[1]

    def label(self) -> str:
        return f"attention {self.mapping}"

    def group(self) -> int:
        return len(self.q) // len(self.k)


def make(rng: np.random.Generator, name: str) -> Case:
    mapping = str(rng.choice(list(FUSED)))
    storage = str(rng.choice(["float32", "float64"]))
    heads, group = int(rng.integers(1, 3)), int(rng.choice([1, 1, 2]))
    length, keys = int(rng.integers(1, 20)), int(rng.integers(1, 50))
    wide, deep = int(rng.choice([1, 2, 3, 8, 9])), int(rng.choice([1, 3, 8, 17]))
    size = 10.0 ** rng.uniform(-2, 2)

    def numbers(*shape: int) -> np.ndarray:
        return rounded(
            rng.standard_normal(shape) * size if rng.random() < 0.7 else rng.integers(-4, 5, shape) / 4, storage
        )

    q, k, v = numbers(heads * group, length, wide), numbers(heads, keys, wide), numbers(heads, keys, deep)
    grad = rounded(rng.standard_normal((heads * group, length, deep)), storage)
    control = {"lam": float(rng.choice([0.0, 0.5, -3.0, 1 - 10.0 ** rng.uniform(-3, 3)])), "": None}.get(
        FUSED[mapping], 0.5
    )
    scale = float(rng.choice([1.0, 0.25, 1 / math.sqrt(wide)]))
    if mapping == "sparsecone":  # above minus the mean of every row
        control = float(abs(np.einsum("hle,hse->hls", q, np.repeat(k, group, 0))).max() * scale + 0.5)
    causal = bool(rng.random() < 0.3)
    mask = rng.random((heads * group, length, keys)) < 0.7 if not causal and rng.random() < 0.3 else None
    return Case(mapping, storage, q, k, v, grad, control, mask, causal, scale)


def _call(c: Case) -> list[np.ndarray]:
    """Weights, result, and the gradients of q, k and v."""
    q, k, v = (torch.from_numpy(x.astype(c.storage))[None].requires_grad_() for x in (c.q, c.k, c.v))
    how: dict[str, Any] = {FUSED[c.mapping]: c.control} if FUSED[c.mapping] else {}
    if c.mask is not None:
        how["attn_mask"] = torch.from_numpy(c.mask)[None]
    out, weights = sgt.sparse_attention(
        q,
        k,
        v,
        mapping=c.mapping,
        is_causal=c.causal,
        scale=c.scale,
        return_weights=True,
        enable_gqa=c.group() > 1,
        **how,
    )
    grads = torch.autograd.grad(out, (q, k, v), torch.from_numpy(c.grad.astype(c.storage))[None])
    return [t.detach()[0].double().numpy() for t in (weights, out, *grads)]


def check(c: Case, sabotage: bool = False) -> str:
    """Ask the library, then the oracle."""
    found = _call(c)
    if sabotage:
        found[0] = found[0] + 2.0**-6
    with np.errstate(all="ignore"):
        return _wrong(c, *found)


def _wrong(
    c: Case, weights: np.ndarray, out: np.ndarray, q_grad: np.ndarray, k_grad: np.ndarray, v_grad: np.ndarray
) -> str:
    """Scores are off by d = (E + 4) u scale sum |q k|, which moves a weight by 2 d / r at most: see attention.cpp."""
    eps, rows, keys = EPS[c.storage], c.rows, c.k.shape[1]
    q, (k, v) = c.q.astype(Real), (np.repeat(x, c.group(), 0).astype(Real) for x in (c.k, c.v))
    s = np.einsum("hle,hse->hls", q, k) * c.scale
    off = np.einsum("hle,hse->hls", abs(q), abs(k)).max(2) * abs(c.scale) * (c.q.shape[2] + 4) * eps
    shown = np.ones(s.shape, bool) if c.mask is None else c.mask
    if c.causal:
        shown = shown & (np.arange(keys) <= np.arange(c.q.shape[1])[:, None])
    control = np.full(rows, 0.0 if c.control is None else c.control)
    want = long_double.map_rows(c.mapping, s.reshape(rows, keys), shown.reshape(rows, keys), control, eps)
    r = np.where(want.radius > 0, want.radius, long_double.LEAST)
    # The radius is made of the scores too, where there is a rule: 4 of their errors over it at most.
    blur = np.minimum(
        (6 if FUSED[c.mapping] == "q" else 2) * off.reshape(rows) / r * (1 + keys * (FUSED[c.mapping] == "q")), Real(1)
    )
    allowed = 4 * eps * (want.p + 1 / want.firm[:, None]) + (blur + want.blur)[:, None] + TINY[c.storage]
    p = weights.reshape(rows, keys)
    near = (abs(p - want.p) <= allowed) | want.skip[:, None]
    if not near.all():
        at = tuple(np.argwhere(~near)[0])
        return f"weight {at[1]} of row {at[0]} is {p[at]!r}, not {float(want.p[at])!r}"
    sums = np.einsum("hls,hse->hle", weights.astype(Real), v)
    sizes = np.einsum("hls,hse->hle", weights.astype(Real), abs(v))
    if not (abs(out - sums) <= eps * (keys + 4) * sizes + keys * TINY[c.storage]).all():
        return "the result is not the sum of the values by the weights"
    return _grads_wrong(c, weights, want.radius.reshape(s.shape[:2]), (q_grad, k_grad, v_grad), q, k, v, shown)


def _grads_wrong(
    c: Case, weights: np.ndarray, r: np.ndarray, got: tuple[np.ndarray, ...], q: Any, k: Any, v: Any, shown: Any
) -> str:
    if FUSED[c.mapping] == "q":
        return ""  # the radius' own part is the C++ driver's: here it is known to half the digits only
    eps, keys = EPS[c.storage], c.k.shape[1]
    on, g = weights > 0, c.grad.astype(Real)
    n = np.maximum(on.sum(2, keepdims=True), 1)
    slope = np.einsum("hle,hse->hls", g, v)
    size = np.einsum("hle,hse->hls", abs(g), abs(v)).max(2, keepdims=True)
    over_r = np.where(r > 0, 1 / np.where(r > 0, r, Real(1)), Real(0))[:, :, None] * c.scale
    w = np.where(on, slope - np.where(on, slope, 0).sum(2, keepdims=True) / n, Real(0)) * over_r
    w_size = np.where(on, size * abs(over_r), Real(0))
    steps = 2 * eps * (keys + c.rows + c.v.shape[2] + 16)

    def shared(x: np.ndarray) -> np.ndarray:
        return x.reshape(len(c.k), c.group(), *x.shape[1:]).sum(1)

    wants = {
        "queries": (got[0], np.einsum("hls,hse->hle", w, k), np.einsum("hls,hse->hle", w_size, abs(k))),
        "keys": (got[1], shared(np.einsum("hls,hle->hse", w, q)), shared(np.einsum("hls,hle->hse", w_size, abs(q)))),
        "values": (
            got[2], shared(np.einsum("hls,hle->hse", weights.astype(Real), g)),
            shared(np.einsum("hls,hle->hse", weights.astype(Real), abs(g))),
        ),
    }  # fmt: skip
    for name, (found, want, scale) in wants.items():
        if not (abs(found - want) <= steps * scale + 1e-30).all():
            return f"the gradient of the {name} is wrong"
    return ""


def simplified(c: Case) -> Iterator[Case]:
    if c.mask is not None:
        yield replace(c, mask=None)
    if c.causal:
        yield replace(c, causal=False)
    if len(c.q) > 1 and c.mask is None:
        yield replace(c, q=c.q[:1], k=c.k[:1], v=c.v[:1], grad=c.grad[:1])
    if c.mask is None:
        for i in range(c.q.shape[1] if c.q.shape[1] > 1 else 0):
            yield replace(c, q=np.delete(c.q, i, 1), grad=np.delete(c.grad, i, 1))
        for i in range(c.k.shape[1] if c.k.shape[1] > 1 else 0):
            yield replace(c, k=np.delete(c.k, i, 1), v=np.delete(c.v, i, 1))
    for name in ("q", "k", "v"):
        x = getattr(c, name)
        if (np.round(x) != x).any():
            yield replace(c, **{name: np.round(x)})


def line(c: Case, engine: str) -> str:
    control = f", {FUSED[c.mapping]}={c.control!r}" if FUSED[c.mapping] else ""
    mask = "" if c.mask is None else f", attn_mask=torch.tensor({literal(c.mask)})[None]"
    tensors = "; ".join(
        f"{name} = torch.tensor({literal(getattr(c, name))}, dtype=torch.{c.storage})[None].requires_grad_()"
        for name in "qkv"
    )
    return (
        f"import torch, sparsegen as sg, sparsegen.torch as sgt; sg._core.use_engine({engine!r}); {tensors}; "
        f"out, w = sgt.sparse_attention(q, k, v, mapping={c.mapping!r}, is_causal={c.causal}, scale={c.scale!r}, "
        f"return_weights=True, enable_gqa={c.group() > 1}{control}{mask}); "
        f"out.backward(torch.tensor({literal(c.grad)}, dtype=torch.{c.storage})[None]); "
        "print(w, out, q.grad, k.grad, v.grad)"
    )
