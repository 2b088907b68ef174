"""What docs/jax.md quotes of speed: the marks of `sparsegen bench jax`."""

from __future__ import annotations

from typing import Any

from marks import mark, span, table

from sparsegen.bench.peers import verdict_text
from sparsegen.bench.show import number


def _cells(found: dict[str, Any], name: str, part: str, key: str) -> dict[int, list[float]]:
    """What was measured of an implementation, by K: sparse rows, then dense."""
    cells: dict[int, list[float]] = {}
    for case in found["cases"]:
        if case["part"] == part and key in case["implementations"].get(name, {}):
            cells.setdefault(case["K"], []).append(case["implementations"][name][key])
    return cells


@mark("jax", name="machine")
def machine(found: dict[str, Any]) -> str:
    about = found["machine"]
    return f"{about['cpu']}, {about['cores']} cores, engine {about['engine']}, jax {about['jax']}"


@mark("jax", name="grid")
def grid(found: dict[str, Any]) -> str:
    """The kernel, the plain operations and optax beside jax.nn.softmax."""
    columns = [(name, part) for part in ("forward", "gradient") for name in ("sparsegen", "sparsegen plain", "optax")]
    cells = {each: _cells(found, *each, "to_softmax") for each in columns}
    rows = []
    for case in found["cases"]:
        if case["density"] == "sparse" and case["part"] == "forward":
            ratios = (" / ".join(map(number, cells[each].get(case["K"], []))) for each in columns)
            rows.append([f"{case['rows']} x {case['K']}", *ratios])
    return "\n" + table(["rows x K", *(f"{name}, {part}" for name, part in columns)], rows) + "\n"


@mark("jax", name="optax")
def optax(found: dict[str, Any]) -> str:
    """How much longer optax takes."""
    cells = [_cells(found, "optax", part, "to_sparsegen") for part in ("forward", "gradient")]
    return span((value for each in cells for values in each.values() for value in values), ".0f")


@mark("jax", name="wrong")
def wrong(found: dict[str, Any]) -> str:
    """Where optax's answer is wrong."""
    states = found["gate"].get("optax", {})
    bad = [f"{kind}: {verdict_text(state)}" for kind, state in states.items() if state["state"] != "right"]
    return f", and answers wrongly on some rows ({'; '.join(bad)})" if bad else ""
