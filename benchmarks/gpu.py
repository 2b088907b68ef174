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
