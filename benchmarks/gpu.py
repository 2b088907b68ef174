"""What the compilers said of the GPU kernels, as tables."""

from __future__ import annotations

from typing import Any

from marks import mark, table


@mark("gpu-compile")
def version(found: dict[str, Any]) -> str:
    return found["versions"]["triton"]


def _cell(usage: dict[str, int]) -> str:
    return f"{usage['registers']} / {usage['spilled']} / {usage['shared'] / 1024:.3g}"


def _table(found: dict[str, Any], attention: bool) -> str:
    targets = list(found["shared"])
    chosen = {name: each for name, each in found["kernels"].items() if name.startswith("attention") == attention}
    lines = [
        [name.removeprefix("attention "), *(_cell(each[target]) for target in targets)] for name, each in chosen.items()
    ]
    return "\n" + table(["attention" if attention else "rows", *targets], lines) + "\n"


@mark("gpu-compile")
def rows(found: dict[str, Any]) -> str:
    return _table(found, attention=False)


@mark("gpu-compile")
def attention(found: dict[str, Any]) -> str:
    return _table(found, attention=True)


@mark("gpu-traffic")
def copies(found: dict[str, Any]) -> str:
    """Bytes moved over those of a copy."""
    lengths = sorted({int(name.split()[1]) for name in found["rows"]})
    lines = [
        [f"{way}, {dtype}", *(f"{found['rows'][f'{dtype} {n}'][way]:.2f}" for n in lengths)]
        for way in ("forward", "backward")
        for dtype in ("bf16", "fp32")
    ]
    return "\n" + table(["bytes / those of a copy", *(f"{n} entries" for n in lengths)], lines) + "\n"


@mark("gpu-traffic")
def passes(found: dict[str, Any]) -> str:
    """How often keys are read, and the share of tiles that hold support."""
    lines = [
        [f"`{name}`", kind, f"{each['active']:.2f}", f"{each['forward']:.2f}", f"{each['backward']:.2f}"]
        for name, kinds in found["attention"].items()
        for kind, each in kinds.items()
    ]
    return "\n" + table(["map", "scores", "tiles with support", "passes forward", "backward"], lines) + "\n"


@mark("gpu-traffic")
def shape(found: dict[str, Any]) -> str:
    return f"{found['queries']} queries, {found['keys']} keys, a head of {found['size']} features in bf16"


@mark("gpu-traffic")
def share(found: dict[str, Any]) -> str:
    return f"{1 - found['controls']['sparsegen_softmax']:.1f}"
