"""The JAX front end beside jax.nn.softmax and optax's projection: forward and gradient under jit.

XLA takes as many threads as it likes, for all of them alike. "sparsegen plain" is what runs on GPUs and TPUs, and on a
CPU where the kernel's handlers were not built.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from sparsegen._table.extras import needed
from sparsegen.bench import peers
from sparsegen.bench.inputs import DENSITIES, corners, lam_of, scores
from sparsegen.bench.measure import Settings, Tell, interleaved, machine, ratio
from sparsegen.bench.peers import Verdict
from sparsegen.bench.targets import promise

CASES = ((16384, 10), (4096, 128), (1024, 512), (256, 2048), (32, 32000))
QUICK = ((8, 10), (4, 130))
PARTS = ("forward", "gradient")
OURS, PLAIN, SOFTMAX, OPTAX = "sparsegen", "sparsegen plain", "jax.nn.softmax", "optax"
# Sums of differences in the worst row, as for torch; of gradients, which are of size 1, in the worst entry.
TOLERANCE = peers.TOLERANCE[torch.float32]

Function = Callable[[Any], Any]


def implementations(lam: float, quick: bool = False) -> dict[str, Function]:
    """What is compared, as functions of scores that JAX can trace: sparsegen_lin with this lam, and softmax.

    >>> sorted(implementations(0.5, quick=True))
    ['jax.nn.softmax', 'sparsegen', 'sparsegen plain']
    """
    with needed("bench jax", "jax"):
        import jax

        import sparsegen.jax as sgj
        from sparsegen.jax._ffi import left_out

    def ours(x: Any) -> Any:
        return sgj.sparsegen_lin(x, lam=lam)

    def plain(x: Any) -> Any:
        with left_out():
            return ours(x)

    found: dict[str, Function] = {OURS: ours, PLAIN: plain, SOFTMAX: jax.nn.softmax}
    if find_spec("optax") is not None and not quick:
        from optax.projections import projection_simplex

        found[OPTAX] = lambda x: jax.vmap(projection_simplex)(x / (1 - lam))
    return found


def compiled(f: Function, part: str, v: Any) -> Function:
    """The function, or the gradient of its product with `v`, under jit; it returns when the answer is there."""
    import jax
    import jax.numpy as jnp

    g = jax.jit(f if part == "forward" else jax.grad(lambda x: jnp.sum(f(x) * v)))
    return lambda x: g(x).block_until_ready()


def _exact(x: torch.Tensor, lam: float, part: str, v: torch.Tensor) -> torch.Tensor:
    z = x.double().requires_grad_()
    p = peers.bisected(z, 1 - lam)
    return p.detach() if part == "forward" else torch.autograd.grad(p, z, v.double())[0]


def gate(call: Function, x: torch.Tensor, lam: float, part: str, v: torch.Tensor) -> Verdict:
    """Compare a compiled function with float64 bisection on the very input it would be timed on."""
    exact = _exact(x, lam, part, v)
    try:
        found = torch.from_numpy(_array(call(_entered(x)))).double()
    except Exception as error:  # another library's: whatever it is, it is told
        return peers.crashed(error)
    gaps = (found - exact).abs()
    gap = float(gaps.sum(-1).max() if part == "forward" else gaps.max() * (1 - lam))
    return Verdict("right" if gap <= TOLERANCE else "wrong", gap)


def _entered(x: torch.Tensor) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(x.numpy())


def _array(p: Any) -> Any:
    import numpy as np

    return np.array(p)


def measure(shape: tuple[int, int], density: str, part: str, seconds: float, quick: bool = False) -> dict[str, Any]:
    """One case: gate every implementation on the input, time those that are right beside softmax.

    >>> found = measure((4, 10), "sparse", "forward", 0.0, quick=True)
    >>> found["implementations"]["sparsegen"]["state"], found["implementations"]["jax.nn.softmax"]["to_softmax"]
    ('right', 1.0)
    """
    x = scores(*shape)
    v = scores(*shape[::-1]).reshape(shape)
    lam = lam_of(x, density)
    calls = {name: compiled(f, part, _entered(v)) for name, f in implementations(lam, quick).items()}
    verdicts = {name: gate(call, x, lam, part, v) for name, call in calls.items() if name != SOFTMAX}
    verdicts[SOFTMAX] = Verdict("not compared")
    given = _entered(x)
    ready: dict[str, Callable[[], Any]] = {
        name: partial(call, given) for name, call in calls.items() if verdicts[name].timed
    }
    times = interleaved({name: ready[name] for name in (OURS, SOFTMAX) if name in ready}, seconds)
    found = {}
    for name in calls:
        found[name] = verdicts[name].record()
        if name not in ready:
            continue
        beside = {each: ready[each] for each in (OURS, SOFTMAX, name) if each in ready}
        own = times if name in times else interleaved(beside, seconds / 2, least=5)
        found[name] |= {**own[name], "to_softmax": ratio(own, name, SOFTMAX)}
        if OURS in own:
            found[name]["to_sparsegen"] = ratio(own, name, OURS)
    return {"rows": shape[0], "K": shape[1], "density": density, "part": part, "lam": lam, "implementations": found}


def offsets(quick: bool) -> dict[str, dict[str, Any]]:
    """Every implementation on rows that other libraries have been seen to get wrong.

    >>> offsets(quick=True)["sparsegen"]["offset 1e4"]["state"]
    'right'
    """
    found: dict[str, dict[str, Any]] = {}
    for kind, x in corners().items():
        for name, f in implementations(0.0, quick).items():
            if name != SOFTMAX:
                verdict = gate(compiled(f, "forward", None), x, 0.0, "forward", x)
                found.setdefault(name, {})[kind] = verdict.record()
    return found


def promises(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was promised of JAX, beside what was measured.

    >>> [each["met"] for each in promises([])]
    [None, None, None, None, None]
    """

    def cells(name: str, key: str, part: str, keep: Callable[[int], bool]) -> list[float]:
        rows = [row["implementations"].get(name, {}) for row in cases if row["part"] in (part, "") and keep(row["K"])]
        return [row[key] for row in rows if key in row]

    found = []
    for part in PARTS:
        for text, limit, keep in (("K >= 2048", 1.0, lambda k: k >= 2048), ("K < 2048", 2.0, lambda k: k < 2048)):
            found.append(promise(f"{part} / softmax, {text}, worst", cells(OURS, "to_softmax", part, keep), limit, max))
    optax = [value for part in PARTS for value in cells(OPTAX, "to_sparsegen", part, lambda k: True)]
    return [*found, promise("optax / sparsegen, times as long, worst", optax, 1.0, min)]


def run(settings: Settings, tell: Tell) -> dict[str, Any]:
    """Measure every case; `tell` hears which."""
    cases = []
    for shape in QUICK if settings.quick else CASES:
        for density in DENSITIES[:1] if settings.quick else DENSITIES:
            for part in PARTS:
                tell(f"{shape[0]} x {shape[1]}, {density}, {part}")
                cases.append(measure(shape, density, part, settings.time(4.0), settings.quick))
    from sparsegen.jax._ffi import MISSING

    result: dict[str, Any] = {"machine": machine(("jax", "jaxlib", "optax")), "kernel": MISSING or "there"}
    result |= {"gate": offsets(settings.quick), "cases": cases, "targets": promises(cases)}
    return {**result, "quick": True} if settings.quick else result
