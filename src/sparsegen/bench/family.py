"""Every map of the table beside sparsegen_lin and torch.softmax; masks; entmax beside the package of that name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

import sparsegen as sg
import sparsegen.torch as sgt
from sparsegen._table import plain
from sparsegen._table.maps import MAPS, TRANSFORMS
from sparsegen._table.radius import of_mean
from sparsegen.bench.inputs import scores
from sparsegen.bench.measure import (
    Settings,
    Tell,
    geometric_mean,
    in_places,
    interleaved,
    machine,
    ratio,
    same,
    torch_threads,
)

SHAPES = [(65536, 10), (4096, 50), (8192, 128), (4096, 512), (1024, 2048), (256, 32000)]
QUICK_SHAPES = [(16, 10), (8, 40)]
CONTROLS = {"lam": 0.1, "q": 0.5, "temperature": 0.8, "alpha": 1.3}
LIN, SOFTMAX = "sparsegen_lin", "torch.softmax"
TRANSCENDENTAL = ("sparsegen_exp", "sparsegen_log", "softmax", "sparsegen_softmax", "entmax")
ALIKE = ", sparsegen_lin"  # behind a map's name: on the scores of that map, with supports as large
ALIKE_ENTRIES = 2**20  # of which these are found
PEER_ENTRIES = 2**18  # the package entmax sorts: it is given fewer rows


def controls_of(name: str) -> dict[str, float]:
    """The controls a map is measured with.

    >>> controls_of("sparsegen_softmax")
    {'lam': 0.1, 'temperature': 0.8}
    """
    return {control: CONTROLS[control] for control in MAPS[name].controls}


def input_of(name: str, x: Tensor) -> Tensor:
    """Scores inside the domain of a map, in memory of their own: none finds them in caches that another map filled."""
    return x.abs() + 0.1 if MAPS[name].domain else x.clone()


def reference(name: str, z: Tensor) -> Tensor:
    """A map in float64 by the plain operations that kernels are compared with.

    >>> reference("sparsemax", torch.tensor([[1.0, 0.5, 0.0]])).tolist()
    [[0.75, 0.25, 0.0]]
    """
    m, given, z = MAPS[name], {**MAPS[name].fixed, **controls_of(name)}, z.double()
    if m.power:
        return plain.entmax(torch, z, torch.tensor(given["alpha"], dtype=z.dtype))
    x = TRANSFORMS[m.transform].g(torch, z / given.get("temperature", 1.0))
    if m.radius.of == "mean":
        n = torch.full(z.shape[:-1], float(z.shape[-1]), dtype=z.dtype)
        radius = of_mean(torch, m.radius, z.mean(-1), n, torch.tensor(given["q"], dtype=z.dtype))
    else:
        own = {} if m.radius.fixed is not None else {"lam": given.get("lam", 0.0)}
        radius = torch.as_tensor(m.radius.value(torch, **own), dtype=z.dtype)
        radius = radius * x.sum(-1) if m.radius.of == "sum" else radius
    return plain.project(torch, x, radius)


def _both_ways(name: str, f: Callable[[Tensor], Tensor], z: Tensor) -> dict[str, Callable[[], Any]]:
    leaf = z.clone().requires_grad_()
    p, v = f(leaf), scores(*z.shape).flip(0)
    return {
        f"{name}/forward": lambda: f(z),
        f"{name}/backward": lambda: torch.autograd.grad(p, leaf, v, retain_graph=True),
    }


def _map(name: str, z: Tensor) -> dict[str, Callable[[], Any]]:
    f = partial(getattr(sgt, name), **controls_of(name))
    same(name, f(z[:16]), reference(name, z[:16]), 1e-3, 2e-5)
    return _both_ways(name, f, z)


def lam_alike(name: str, x: Tensor) -> float:
    """The lam with which sparsegen_lin gives the scores of a map, on average, supports as large as that map does.

    >>> lam_alike("hardmax", torch.tensor([[0.0, 1.0, 0.9]])) > 0.9
    True
    """
    z = input_of(name, x[: max(1, ALIKE_ENTRIES // x.shape[-1])])
    sizes = (getattr(sgt, name)(z, **controls_of(name)) > 0).sum(-1)
    return float(sg.lam_for_mean_support(z.numpy(), float(sizes.double().mean())))


def every_map(shape: tuple[int, int], seconds: float) -> dict[str, Any]:
    """Forward and backward of every map, one thread, over those of torch.softmax and of sparsegen_lin.

    That is with its own control, and with one that leaves as many entries as the map at hand does: what a call
    takes goes by their number, whatever the map.

    >>> sorted(every_map((4, 8), 0.0)["maps"]["softmax"])[:3]
    ['backward_to_lin', 'backward_to_lin_alike', 'backward_to_softmax']
    """
    x = scores(*shape)
    lams = {name: lam_alike(name, x) for name in MAPS}

    def make() -> dict[str, Callable[[], Any]]:
        calls = _both_ways(SOFTMAX, partial(torch.softmax, dim=-1), x.clone())
        for name in MAPS:
            calls |= _map(name, input_of(name, x))
            calls |= _both_ways(f"{name}{ALIKE}", partial(sgt.sparsegen_lin, lam=lams[name]), input_of(name, x))
        return calls

    times = in_places(make, seconds * len(MAPS))
    found: dict[str, dict[str, float]] = {name: {} for name in MAPS}
    for name in MAPS:
        for part in ("forward", "backward"):
            for key, other in (("lin", LIN), ("lin_alike", f"{name}{ALIKE}"), ("softmax", SOFTMAX)):
                found[name][f"{part}_to_{key}"] = ratio(times, f"{name}/{part}", f"{other}/{part}")
    return {"rows": shape[0], "K": shape[1], "times": times, "maps": found, "lam_alike": lams}


def _hidden_by(mask: Tensor, name: str, z: Tensor) -> dict[str, Callable[[], Any]]:
    """A map without and with a mask; on scores of its own each, see input_of()."""
    f, own = partial(getattr(sgt, name), **controls_of(name)), z.clone()
    same(name, f(z[:16], mask=mask[:16]), f(z[:16].masked_fill(~mask[:16], -torch.inf)), 1e-3, 2e-5)
    return {f"{name}/plain": lambda: f(z), f"{name}/mask": lambda: f(own, mask=mask)}


def masks(shape: tuple[int, int], seconds: float) -> dict[str, Any]:
    """A masked call over one without: a mask for every row, one for all rows, and the same as -inf; and of other maps.

    >>> found = masks((4, 8), 0.0)
    >>> sorted(found["ratio"]), len(found["other_maps"])
    (['-inf', 'mask', 'one mask for all'], 14)
    """
    others = [name for name in MAPS if name != LIN]

    def drawn() -> tuple[Tensor, Tensor]:
        x = scores(*shape)
        return x, torch.rand(x.shape, generator=torch.Generator().manual_seed(3)) < 0.8

    def make() -> dict[str, Callable[[], Any]]:
        x, mask = drawn()
        hidden, f = x.masked_fill(~mask, -torch.inf), partial(sgt.sparsegen_lin, lam=CONTROLS["lam"])
        same("mask", f(x[:16], mask=mask[:16]), reference(LIN, hidden[:16]), 1e-3, 2e-5)
        own, shared = x.clone(), x.clone()  # see input_of(): scores that three calls read would be found in caches
        return {
            "plain": lambda: f(x), "mask": lambda: f(own, mask=mask), "-inf": lambda: f(hidden),
            "one mask for all": lambda: f(shared, mask=mask[:1]),
        }  # fmt: skip

    def make_others() -> dict[str, Callable[[], Any]]:
        x, mask = drawn()
        calls: dict[str, Callable[[], Any]] = {}
        for name in others:
            calls |= _hidden_by(mask, name, input_of(name, x))
        return calls

    times = in_places(make, 2 * seconds)
    of_others = in_places(make_others, seconds * len(others) / 2)
    names = [name for name in times if name != "plain"]
    return {
        "rows": shape[0],
        "K": shape[1],
        "times": times,
        "ratio": {name: ratio(times, name, "plain") for name in names},
        "other_maps": {name: ratio(of_others, f"{name}/mask", f"{name}/plain") for name in others},
    }


def _peers(x: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """The forms of entmax-1.5 in the package entmax, each with what makes it right."""
    if find_spec("entmax") is None:
        return {}
    import entmax

    return {
        "entmax sort": entmax.entmax15,
        "entmax top-k": partial(entmax.entmax15, k=min(512, x.shape[-1])),
        "entmax bisection": partial(entmax.entmax_bisect, alpha=1.5, n_iter=50),
    }


def entmax_case(shape: tuple[int, int], seconds: float) -> dict[str, Any]:
    """entmax15 beside torch.softmax and the package entmax; forward, one thread.

    >>> entmax_case((4, 8), 0.0)["K"]
    8
    """
    x = scores(min(shape[0], max(4, PEER_ENTRIES // shape[1])), shape[1])
    exact, wrong = reference("entmax15", x), {}
    calls: dict[str, Callable[[], Any]] = {}
    same("entmax15", sgt.entmax15(x), exact, 1e-3, 2e-5)
    for name, f in _peers(x).items():
        error = float((f(x).double() - exact).abs().max())
        if error > 1e-4:
            wrong[name] = error
        else:
            calls[name] = partial(f, x)
    calls |= {"sparsegen": lambda: sgt.entmax15(x), SOFTMAX: lambda: torch.softmax(x, -1)}
    times = interleaved(calls, seconds, least=5)
    others = [name for name in times if name not in ("sparsegen", SOFTMAX)]
    return {
        "rows": x.shape[0], "K": shape[1], "times": times, "wrong": wrong,
        "to_softmax": ratio(times, "sparsegen", SOFTMAX),
        "times_as_long": {name: ratio(times, name, "sparsegen") for name in others},
    }  # fmt: skip


def numpy_calls(shape: tuple[int, int], seconds: float) -> dict[str, Any]:
    """NumPy's functions over torch's own of the same map: what the front end adds.

    >>> sorted(numpy_calls((4, 8), 0.0)["ratio"])[:2]
    ['entmax', 'entmax15']
    """
    x = scores(*shape)
    calls: dict[str, Callable[[], Any]] = {}
    for name in MAPS:
        z = input_of(name, x)
        calls[f"{name}/numpy"] = partial(getattr(sg, name), z.numpy(), **controls_of(name))
        calls[f"{name}/torch"] = partial(getattr(sgt, name), z, **controls_of(name))
    times = interleaved(calls, seconds, least=5)
    found = {name: ratio(times, f"{name}/numpy", f"{name}/torch") for name in MAPS}
    return {"rows": shape[0], "K": shape[1], "ratio": found}


def _promise(text: str, values: Sequence[float], limit: float, most: bool = True) -> dict[str, Any]:
    measured = (max if most else min)(values) if values else None
    met = None if measured is None else measured <= limit if most else measured >= limit
    return {"promise": text, "measured": measured, "limit": limit, "at": "most" if most else "least", "met": met}


def promises(result: dict[str, Any]) -> list[dict[str, Any]]:
    """What is promised of the other maps, beside what was measured."""

    def cells(key: str, keep: Callable[[str], bool]) -> list[float]:
        return [case["maps"][name][key] for case in result["cases"] for name in MAPS if keep(name)]

    algebraic = [name for name in MAPS if name not in (*TRANSCENDENTAL, LIN)]
    long = [case for case in result["entmax"] if case["K"] >= 512]
    others = [t for case in long for name, t in case["times_as_long"].items()]
    sort = [case["times_as_long"]["entmax sort"] for case in long if "entmax sort" in case["times_as_long"]]
    beside = [
        _promise(f"other maps / {other}, {part}, worst cell", cells(f"{part}_to_{key}", algebraic.__contains__), limit)
        for key, other in (("lin", LIN), ("lin_alike", f"{LIN} with supports as large"))
        for part, limit in (("forward", 1.5), ("backward", 2.0))
    ]
    return [
        *beside,
        _promise("mask= / without, worst cell", [case["ratio"]["mask"] for case in result["masks"]], 1.2),
        _promise(
            "mask= / without, other maps, worst cell",
            [t for c in result["masks"] for t in c["other_maps"].values()],
            1.2,
        ),
        _promise("entmax sort / entmax15, K >= 512, times as long, worst", sort, 20.0, most=False),
        _promise("the package's best / entmax15, K >= 512, times as long, worst", others, 3.0, most=False),
        _promise("entmax15 / torch.softmax, K >= 512, worst", [case["to_softmax"] for case in long], 1.5),
    ]


def run(settings: Settings, tell: Tell) -> dict[str, Any]:
    """Measure the family; see the module."""
    seconds, shapes = settings.time(2.0), QUICK_SHAPES if settings.quick else SHAPES
    result: dict[str, Any] = {"machine": machine(["entmax"]), "seconds": seconds, "quick": settings.quick}
    with torch_threads(1):
        for key, measure in (("cases", every_map), ("masks", masks), ("entmax", entmax_case)):
            result[key] = []
            for shape in shapes:
                tell(f"{key}, {shape[0]} x {shape[1]}")
                result[key].append(measure(shape, seconds))
        tell("NumPy")
        result["numpy"] = numpy_calls(shapes[len(shapes) // 2], seconds)
    names = [name for name in MAPS if name != LIN]
    result["means"] = {
        name: {part: geometric_mean([case["maps"][name][f"{part}_to_lin"] for case in result["cases"]])
               for part in ("forward", "backward")}
        for name in names
    }  # fmt: skip
    kept = promises(result)
    return {**result, "targets": [{**each, "met": None} for each in kept] if settings.quick else kept}
