"""What is measured: this library, torch.softmax, a copy, and other libraries; and the gate each passes first.

Other libraries are never needed. Those that are installed are loaded when they are asked for.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

import sparsegen.torch as sgt
from sparsegen.bench.measure import torch_threads

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
GATE_ROWS, GATE_ENTRIES = 32, 2**18

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Peer:
    """An implementation: where it is from, how it is called, and what it is given.

    ``load`` returns a function of the input alone. ``takes`` is "lam" if load wants lam first; "scaled" for sparsemax
    of x / (1 - lam), which is the same map; "scores" for what is another function and stands beside, uncompared.
    """

    name: str
    package: str
    load: Callable[..., Function]
    takes: str = "scaled"
    gradient: bool = False
    enter: Callable[[Tensor], Any] = lambda x: x  # to its own arrays, untimed
    leave: Callable[[Any], Tensor] = lambda p: p
    heavy: bool = False  # loads another framework: left out of quick runs
    own_threads: bool = False  # uses as many as it likes, whatever torch is told

    def function(self, lam: float) -> Function:
        """The implementation as a function of its input."""
        return self.load(lam) if self.takes == "lam" else self.load()

    def input(self, x: Tensor, lam: float) -> Tensor:
        """Scores as it takes them, still a tensor."""
        return x / (1 - lam) if self.takes == "scaled" else x

    def radius(self, lam: float) -> float:
        """Radius of the projection it computes of its input."""
        return 1.0 if self.takes == "scaled" else 1 - lam


@dataclass(frozen=True)
class Verdict:
    """What the gate says: state is right, wrong, crashed, not installed, left out or not compared."""

    state: str
    error: float | None = None
    why: str | None = None

    @property
    def timed(self) -> bool:
        """Whether times may be taken."""
        return self.state in ("right", "not compared")

    def record(self) -> dict[str, Any]:
        """The verdict as a dict without what it does not know."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def verdict_text(found: dict[str, Any]) -> str:
    """What a table's cell says instead of a time.

    >>> verdict_text({"state": "wrong", "error": 0.3})
    'wrong (error 3e-01)'
    >>> verdict_text({"state": "crashed", "why": "TypeError: bad"})
    'TypeError'
    """
    if found["state"] == "wrong":
        return f"wrong (error {found['error']:.0e})" if "error" in found else "wrong (not finite)"
    return found["why"].split(":")[0] if found["state"] == "crashed" else found["state"]


def _ours(lam: float) -> Function:
    return lambda x: sgt.sparsegen_lin(x, lam=lam)


def _softmax() -> Function:
    return lambda x: torch.softmax(x, -1)


def _copy() -> Function:
    return torch.clone


def _entmax_sort() -> Function:
    from entmax import sparsemax

    return lambda x: sparsemax(x, dim=-1)


def _entmax_top_k() -> Function:
    from entmax import sparsemax

    return lambda x: sparsemax(x, dim=-1, k=100)  # starts with the 100 largest, goes on where that is too few


def _entmax_bisection() -> Function:
    from entmax import sparsemax_bisect

    return lambda x: sparsemax_bisect(x, dim=-1)


def _pypi_sparsemax() -> Function:
    from sparsemax import Sparsemax

    return Sparsemax(dim=-1)


def _optax() -> Function:
    import jax
    from optax.projections import projection_simplex

    rows = jax.jit(jax.vmap(projection_simplex))
    return lambda x: rows(x).block_until_ready()


def _to_jax(x: Tensor) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(x.numpy())


def _from_jax(p: Any) -> Tensor:
    import numpy as np

    return torch.from_numpy(np.array(p))


def _keras() -> Function:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    if keras.backend.backend() != "torch":
        raise RuntimeError(f"keras runs on {keras.backend.backend()}: set KERAS_BACKEND=torch")
    return lambda x: keras.ops.sparsemax(x, axis=-1)


OURS, SOFTMAX, COPY = "sparsegen", "torch.softmax", "copy"
PEERS = (
    Peer(OURS, "sparsegen", _ours, "lam", gradient=True),
    Peer(SOFTMAX, "torch", _softmax, "scores", gradient=True),
    Peer(COPY, "torch", _copy, "scores"),
    Peer("entmax sort", "entmax", _entmax_sort, gradient=True),
    Peer("entmax top-k", "entmax", _entmax_top_k, gradient=True),
    Peer("entmax bisection", "entmax", _entmax_bisection, gradient=True),
    Peer("PyPI sparsemax", "sparsemax", _pypi_sparsemax, gradient=True),
    Peer("optax", "optax", _optax, enter=_to_jax, leave=_from_jax, heavy=True, own_threads=True),
    Peer("keras", "keras", _keras, heavy=True),
)


def present(peers: Sequence[Peer], quick: bool = False) -> dict[str, Verdict]:
    """Those that cannot be asked, and why: not installed, left out of quick runs, or broken when loaded.

    >>> present([Peer("another", "no_such_package", _copy)])["another"].state
    'not installed'
    """
    found = {}
    for peer in peers:
        if find_spec(peer.package) is None:
            found[peer.name] = Verdict("not installed")
        elif peer.heavy and quick:
            found[peer.name] = Verdict("left out")
        else:
            try:
                peer.function(0.0)
            except Exception as error:  # another library's: whatever it is, it is told
                found[peer.name] = crashed(error)
    return found


def crashed(error: Exception) -> Verdict:
    """Return the verdict on an implementation that raised.

    >>> crashed(TypeError("bad dtype")).why
    'TypeError: bad dtype'
    """
    lines = str(error).splitlines() or [""]
    return Verdict("crashed", why=f"{type(error).__name__}: {lines[0][:120]}")


def bisected(x: Tensor, radius: float = 1.0) -> Tensor:
    """Project rows onto the simplex in float64 by bisection: the oracle, another algorithm than any that is timed.

    Differentiable: the support is a constant, the threshold on it a mean.

    >>> bisected(torch.tensor([[0.5, 0.25, 0.0]]), 0.5)
    tensor([[0.7500, 0.2500, 0.0000]], dtype=torch.float64)
    """
    x = x.double()
    x = x - x.detach().amax(-1, keepdim=True)
    z = x.detach()
    low, high = torch.full_like(z[..., :1], -radius), torch.zeros_like(z[..., :1])
    for _ in range(80):
        middle = (low + high) / 2
        over = (z - middle).clamp(min=0).sum(-1, keepdim=True) > radius
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    on = z > low
    tau = (torch.where(on, x, 0).sum(-1, keepdim=True) - radius) / on.sum(-1, keepdim=True)
    return (x - tau).clamp(min=0) / radius


def gate(peer: Peer, x: Tensor, lam: float) -> Verdict:
    """Compare an implementation with the oracle on some rows of the very input it would be timed on.

    The error is the largest over rows of the sum of absolute differences: of a distribution, so it needs no scale.

    >>> gate(PEERS[0], torch.randn(4, 9, generator=torch.Generator().manual_seed(0)), 0.5).state
    'right'
    """
    if peer.takes == "scores":
        return Verdict("not compared")
    part = peer.input(x[: _gate_rows(x)], lam)
    with torch_threads(1):  # few entries: more threads would only wait for each other
        exact = bisected(part, peer.radius(lam))
    try:
        p = peer.leave(peer.function(lam)(peer.enter(part)))  # no copy: the layout is part of the input
        error = float((p.double() - exact).abs().sum(-1).max())
        slope = _gradient_error(peer, part, lam) if peer.gradient else 0.0
    except Exception as problem:  # another library's: whatever it is, it is told
        return crashed(problem)
    if not (math.isfinite(error) and math.isfinite(slope)):
        return Verdict("wrong", why="not finite")
    worst = max(error, slope)
    return Verdict("right" if worst <= TOLERANCE[x.dtype] else "wrong", worst)


def _gate_rows(x: Tensor) -> int:
    return max(1, min(GATE_ROWS, GATE_ENTRIES // x.shape[-1]))


def _gradient_error(peer: Peer, part: Tensor, lam: float) -> float:
    """Error of the backward pass, as a mean over the row's entries; the support is the one it answered with."""
    z = part.clone().requires_grad_()
    p = peer.function(lam)(z)
    v = torch.linspace(-1, 1, z.shape[-1]).to(p.dtype).expand(z.shape)
    (found,) = torch.autograd.grad(p, z, v)
    on = (p.detach() > 0).double()
    exact = on * (v.double() - (on * v).sum(-1, keepdim=True) / on.sum(-1, keepdim=True)) / peer.radius(lam)
    return float((found.double() - exact).abs().mean(-1).max())
