"""Writes docs/performance.md from results/maps.json and results/scaling.json: `python benchmarks/performance.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparsegen.bench.peers import verdict_text
from sparsegen.bench.show import number
from sparsegen.experiments.results import write_text

ROOT = Path(__file__).resolve().parents[1]
OURS = "sparsegen"


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shape(row: dict[str, Any]) -> str:
    return f"{row['rows']} x {row['K']}"


def both(maps: dict[str, Any], threads: int, key: str, row: dict[str, Any]) -> str:
    """Sparse / dense of one shape."""
    found = [
        case["implementations"][OURS]
        for density in ("sparse", "dense")
        for case in maps["cases"]
        if (case["rows"], case["K"], case["threads"], case["density"]) == (row["rows"], row["K"], threads, density)
    ]
    return " / ".join(number(each[key]) for each in found)


def ours(maps: dict[str, Any]) -> str:
    """The library beside softmax, and how long entmax's sort takes beside it."""
    sparse = [case for case in maps["cases"] if case["threads"] == 1 and case["density"] == "sparse"]
    heads = ["rows x K", "forward, 1 thread", "forward, 2 threads", "backward, 1 thread", "backward, 2 threads",
             "forward / copy", "entmax / sparsegen"]  # fmt: skip
    rows = []
    for case in sparse:
        times = [both(maps, t, f"{part}_to_softmax", case) for part in ("forward", "backward") for t in (1, 2)]
        entmax = case["implementations"]["entmax sort"]["forward_to_sparsegen"]
        rows.append([shape(case), *times, both(maps, 1, "forward_to_copy", case), f"{entmax:.0f} x"])
    return table(heads, rows)


def peers(maps: dict[str, Any]) -> str:
    """Every implementation's forward time over softmax's, one thread, sparse rows."""
    sparse = [case for case in maps["cases"] if case["threads"] == 1 and case["density"] == "sparse"]
    rows = []
    for name in sparse[0]["implementations"]:
        cells = [case["implementations"][name] for case in sparse]
        key = "forward_to_softmax"
        texts = [number(cell[key]) if key in cell else verdict_text(cell).split(":")[0] for cell in cells]
        rows.append([name, *texts])
    return table(["", *(shape(case) for case in sparse)], rows)


def gate(maps: dict[str, Any]) -> str:
    rows = [
        [name, *(f"right ({v['error']:.0e})" if v["state"] == "right" else verdict_text(v) for v in found.values())]
        for name, found in maps["gate"].items()
    ]
    return table(["", *next(iter(maps["gate"].values()))], rows)


def targets(maps: dict[str, Any]) -> str:
    rows = [
        [t["promise"], number(t["measured"]), f"at {t['at']} {t['limit']:g}", {True: "yes", False: "**no**"}[t["met"]]]
        for t in maps["targets"]
    ]
    return table(["one thread unless said", "measured", "promised", "met"], rows)


def others(maps: dict[str, Any]) -> Iterator[str]:
    half = {d: [row for row in maps["bfloat16"] if row["density"] == d] for d in ("sparse", "dense")}
    yield "bfloat16, forward over torch.softmax's in bfloat16:\n"
    rows = [[density, *(number(row["ratio"]) for row in found)] for density, found in half.items()]
    yield table(["", *(shape(row) for row in half["sparse"])], rows)
    yield "\nAdversarial rows over random rows of the same shape:\n"
    shapes = maps["adversarial"]
    rows = [[name, *(number(row["to_random"][name]) for row in shapes)] for name in shapes[0]["to_random"]]
    yield table(["", *map(shape, shapes)], rows)
    yield "\nTwo threads, times as fast as one:\n"
    rows = [[f"{shape(row)}, {row['density']}", number(row["times_as_fast"]["2"])] for row in maps["threads"]]
    yield table(["", "times as fast"], rows)
    small = maps["small_calls"]
    yield "\nA call on a 1 x 32 tensor over torch.softmax's own:\n"
    rows = [[name, number(value), number(small["ratio_grad"][name])]
            for name, value in small["ratio"].items() if name != "softmax"]  # fmt: skip
    yield table(["", "without gradients", "with"], rows)
    yield "\nPeak memory of a forward call, in outputs:\n"
    rows = [[row["name"], str(row["threads"]), number(row["outputs"])] for row in maps["memory"] if "outputs" in row]
    yield table(["", "threads", "outputs"], rows)


def scaling(found: dict[str, Any]) -> Iterator[str]:
    for section in found["sections"]:
        yield f"\n{section['title'].capitalize()} ({section['fixed']}):\n"
        rows = []
        for point in section["points"]:
            us = [f"{point['times'][name]['median_us']:.1f}" for name in (OURS, "torch.softmax")]
            rows.append([str(point["value"]), *us, number(point["ratio"])])
        yield table([section["varies"], "sparsegen, us", "torch.softmax, us", "ratio"], rows)
        for name, fit in section["exponents"].items():
            power = f"{fit['upper_half']:.2f} in the upper half"
            yield f"\nThe time of {name} grows with {section['varies']} to the power of {power}."


def slower(maps: dict[str, Any]) -> str:
    """Where softmax wins."""
    found = []
    for threads in (1, 2):
        for part in ("forward", "backward"):
            cells = [
                f"{shape(c)} {c['density']} ({number(c['implementations'][OURS][f'{part}_to_softmax'])})"
                for c in maps["cases"]
                if c["threads"] == threads and c["implementations"][OURS][f"{part}_to_softmax"] > 1
            ]
            found.append(f"- {part}, {threads} thread(s): {', '.join(cells) or 'nowhere on this grid'}")
    return "\n".join(found)


def page(maps: dict[str, Any], scales: dict[str, Any]) -> str:
    machine = maps["machine"]
    intro = f"""Written by `benchmarks/performance.py` from [results/maps.json](../results/maps.json) and
[results/scaling.json](../results/scaling.json), which `sparsegen bench maps` and `sparsegen bench scaling` measure on
any machine. Times are medians of interleaved calls in one run, float32, N(0, 1) scores; sparse rows have about 5
nonzeros, dense rows half of their entries. This run: {machine["cpu"]}, engine {machine["engine"]}, torch
{machine["torch"]}. Below 1 is faster than softmax.
"""
    wrong = """
Where another library needs more than 0.1 s it is given fewer rows, beside the other three on the same rows. A wrong
answer gets no time:
"""
    parts = [
        "# Performance",
        intro,
        "![Time over torch.softmax's against K](figures/maps.png)\n",
        "## sparsegen / torch.softmax, sparse / dense rows\n", ours(maps),
        "\n## Where softmax wins\n", slower(maps),
        "\n## Promises\n", targets(maps),
        "\n## Every implementation, forward / torch.softmax's, sparse rows, one thread\n", peers(maps),
        wrong,
        gate(maps),
        "\n## Corners\n", *others(maps),
        "\n## Scaling\n",
        "![Time over torch.softmax's against K, rows and support](figures/scaling.png)",
        *scaling(scales),
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def main() -> None:
    maps, scales = (json.loads((ROOT / "results" / f"{name}.json").read_text()) for name in ("maps", "scaling"))
    write_text(ROOT / "docs" / "performance.md", page(maps, scales))


if __name__ == "__main__":
    main()
