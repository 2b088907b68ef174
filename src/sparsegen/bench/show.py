"""Measurements as tables for the terminal, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from sparsegen.bench.peers import verdict_text
from sparsegen.experiments.terminal import table

WIDTH = 100


def number(value: float) -> str:
    """Three digits, as a person reads ratios.

    >>> number(0.2567), number(3.14159), number(172.4)
    ('0.26', '3.1', '172')
    """
    return f"{value:.2f}" if value < 1.995 else f"{value:.1f}" if value < 99.5 else f"{value:.0f}"


def _wrapped(title: str, *columns: str) -> Table:
    """Return a table whose cells may take several lines: verdicts are longer than numbers."""
    made = table(title, *columns)
    for column in made.columns[1:]:
        column.no_wrap = False
    return made


def _cell(found: dict[str, Any], key: str) -> str:
    if key in found:
        return number(found[key])
    return "" if found["state"] in ("right", "not compared") else verdict_text(found)


def _grid(cases: Sequence[dict[str, Any]], part: str, title: str) -> Table:
    """One line an implementation, one column a shape: time over torch.softmax's."""
    shapes = [f"{row['rows']}\nx {row['K']}" for row in cases]
    made = _wrapped(title, "", *shapes)
    us = [row["implementations"]["torch.softmax"].get(part, {}).get("median_us") for row in cases]
    made.add_row("torch.softmax, us", *(f"{value:.0f}" if value else "" for value in us), style="dim")
    key = f"{part}_to_softmax"
    for name in cases[0]["implementations"]:
        cells = [_cell(row["implementations"][name], key) for row in cases]
        if name != "torch.softmax" and any(cells) and (part == "forward" or any(c[:1].isdigit() for c in cells)):
            made.add_row(name, *cells, style="bold" if name == "sparsegen" else "")
    return made


def _grids(result: dict[str, Any]) -> Iterator[Table]:
    for threads in sorted({row["threads"] for row in result["cases"]}):
        for part in ("forward", "backward"):
            for density in ("sparse", "dense"):
                cases = [row for row in result["cases"] if (row["threads"], row["density"]) == (threads, density)]
                title = f"{part} / torch.softmax's, {density} rows, {threads} thread(s); below 1 is faster"
                yield _grid(cases, part, title)


def _gate(result: dict[str, Any]) -> Table:
    names = list(next(iter(result["gate"].values())))
    made = _wrapped("Gate: answers beside a float64 bisection (sum of differences in the worst row)", "", *names)
    for peer, verdicts in result["gate"].items():
        cells = (
            f"right ({found['error']:.0e})" if found["state"] == "right" else verdict_text(found)
            for found in verdicts.values()
        )
        made.add_row(peer, *cells)
    return made


def _summary(result: dict[str, Any]) -> Table:
    made = table("sparsegen / torch.softmax over the grid", "", "geometric mean", "worst", "worst cell")
    for threads, parts in result["summary"].items():
        for part, found in parts.items():
            mean, worst = number(found["geometric_mean"]), number(found["worst"])
            made.add_row(f"{part}, {threads} thread(s)", mean, worst, found["worst_cell"])
    return made


def _targets(result: dict[str, Any]) -> Table:
    made = table("Promises, one thread unless said", "", "measured", "promised", "met")
    made.columns[0].no_wrap = False
    for found in result["targets"]:
        measured = "not measured" if found["measured"] is None else number(found["measured"])
        met = {None: Text(), True: Text("yes", "green"), False: Text("no", "red")}[found["met"]]
        made.add_row(found["promise"], measured, f"at {found['at']} {found['limit']:g}", met)
    return made


def _memory(result: dict[str, Any]) -> Table:
    first = result["memory"][0]
    made = table(f"Peak memory of a forward call, {first['rows']} x {first['K']}", "", "threads", "outputs", "MiB")
    for row in result["memory"]:
        known = "outputs" in row
        cells = (number(row["outputs"]), f"{row['grown_bytes'] / 2**20:.0f}") if known else ("not known", "")
        made.add_row(row["name"], str(row["threads"]), *cells)
    return made


def _adversarial(result: dict[str, Any]) -> Table:
    shapes = [f"{row['rows']} x {row['K']}" for row in result["adversarial"]]
    made = _wrapped("Adversarial rows / random rows, one thread", "", *shapes)
    for name in dict.fromkeys(name for row in result["adversarial"] for name in (*row["to_random"], *row["wrong"])):
        cells = (
            number(row["to_random"][name]) if name in row["to_random"] else verdict_text(row["wrong"][name])
            for row in result["adversarial"]
        )
        made.add_row(name, *cells)
    return made


def _half(result: dict[str, Any]) -> Table:
    sparse = [row for row in result["bfloat16"] if row["density"] == "sparse"]
    made = _wrapped("bfloat16 forward / torch.softmax in bfloat16", "", *(f"{r['rows']}\nx {r['K']}" for r in sparse))
    for density in ("sparse", "dense"):
        made.add_row(density, *(_cell(row, "ratio") for row in result["bfloat16"] if row["density"] == density))
    return made


def maps(result: dict[str, Any]) -> Iterator[Any]:
    """Tables of `bench maps`."""
    yield _gate(result)
    yield from _grids(result)
    for name in result["own_threads"]:
        yield f"{name} takes as many threads as it likes."
    yield _half(result)
    yield _adversarial(result)
    if result["memory"]:
        yield _memory(result)
    small = result["small_calls"]
    if small:
        made = table("1 x 32 call / torch.softmax's", "", "no gradients", "with gradients", "there and back")
        for name in small["ratio"]:
            made.add_row(name, *(number(small[key][name]) for key in ("ratio", "ratio_grad", "ratio_step")))
        yield made
    else:
        yield "1 x 32 call: wrong, not timed"
    if result["import"]:
        yield f"import sparsegen after NumPy: {result['import']['median_ms']:.1f} ms"
    yield _summary(result)
    if not result.get("quick"):  # toy sizes keep no promise and break none
        yield _targets(result)


FAMILY_BESIDE = {
    "lin": "sparsegen_lin's",
    "lin_alike": "sparsegen_lin's with supports as large",
    "softmax": "torch.softmax's",
}


def _family_grid(result: dict[str, Any], key: str, title: str) -> Table:
    made = _wrapped(title, "", *(f"{row['rows']}\nx {row['K']}" for row in result["cases"]))
    for name in result["cases"][0]["maps"]:
        made.add_row(name, *(number(row["maps"][name][key]) for row in result["cases"]))
    return made


def family(result: dict[str, Any]) -> Iterator[Any]:
    """Tables of `bench family`."""
    for part in ("forward", "backward"):
        for key, other in FAMILY_BESIDE.items():
            yield _family_grid(result, f"{part}_to_{key}", f"{part} / {other}, one thread")
    made = _wrapped(
        "Masked calls / the same without a mask", "", *(f"{r['rows']}\nx {r['K']}" for r in result["masks"])
    )
    for name in result["masks"][0]["ratio"]:
        made.add_row(name, *(number(row["ratio"][name]) for row in result["masks"]))
    for name in result["masks"][0]["other_maps"]:
        made.add_row(f"mask, {name}", *(number(row["other_maps"][name]) for row in result["masks"]))
    yield made
    for row in result["entmax"]:
        others = ", ".join(f"{name} {number(value)}" for name, value in row["times_as_long"].items())
        yield f"entmax15, {row['rows']} x {row['K']}: {number(row['to_softmax'])} of softmax; times as long: {others}"
    if not result.get("quick"):
        yield _targets(result)


def scaling(result: dict[str, Any]) -> Iterator[Any]:
    """Tables of `bench scaling`."""
    for section in result["sections"]:
        title = f"{section['title']}; {section['fixed']}"
        made = _wrapped(title, section["varies"], "sparsegen, us", "torch.softmax, us", "ratio", "ns an entry")
        for point in section["points"]:
            label = str(point["value"])
            if "times" not in point:
                made.add_row(label, verdict_text(point))
                continue
            ours, softmax = (point["times"][name]["median_us"] for name in ("sparsegen", "torch.softmax"))
            each = 1000 * ours / (point["rows"] * point["K"])
            made.add_row(label, f"{ours:.1f}", f"{softmax:.1f}", number(point["ratio"]), f"{each:.3f}")
        yield made
        for name, fit in section["exponents"].items():
            both = f"{fit['all']:.2f} over all sizes, {fit['upper_half']:.2f} over the upper half"
            yield f"time of {name} grows with {section['varies']} to the power of {both}"


def losses(result: dict[str, Any]) -> Iterator[Any]:
    """Tables of `bench losses`."""
    others = ("all pairs", "labels x classes", "sparsehourglass")
    made = _wrapped("Hinge loss and gradient; others: times as long", "rows x K", "labels", "threads", "ms", *others)
    for row in result["cases"]:
        ours = row["times"]["sparsegen"]["median_us"] / 1000
        cells = [number(row["times_as_long"][n]) if n in row["times_as_long"] else "cannot run" for n in others]
        size = f"{row['rows']} x {row['K']}"
        made.add_row(size, f"{row['mean_labels']:.1f}", str(row["threads"]), f"{ours:.2f}", *cells)
    yield made


def attention(result: dict[str, Any]) -> Iterator[Any]:
    """Tables of `bench attention`."""
    for part, meaning in (("forward", "forward"), ("step", "forward and backward")):
        names = list(result["cases"][0][part])
        made = _wrapped(f"Attention, {meaning}: ms, and the ratio to sdpa", "length", "threads", "ratio", *names)
        for row in result["cases"]:
            size = f"{row['length']} {'causal' if row['causal'] else 'full'}"
            cells = [f"{row[part][n]['median_us'] / 1000:.1f}" if n in row[part] else "too slow" for n in names]
            made.add_row(size, str(row["threads"]), number(row["ratio"][part]), *cells)
        yield made
    for row in result["memory"]:
        yield f"{row['length']} {'causal' if row['causal'] else 'full'}: memory {number(row['ratio'])} of sdpa's"


def estimator(result: dict[str, Any]) -> Iterator[Any]:
    """Tables of `bench estimator`."""
    made = table(
        "SparseMultilabelClassifier.fit", "data", "mapping", "rows x features", "labels", "s", "gap", "MiB", "F1"
    )
    for row in result["fits"]:
        size = f"{row['rows']} x {row['features']}"
        figures = (f"{row['seconds']:.1f}", f"{row['gap']:.0e}", f"{row['peak_mib']:.0f}", f"{row['test_f1']:.3f}")
        made.add_row(row["data"], row["mapping"], size, str(row["labels"]), *figures)
    yield made
    for name, why in result.get("missing", {}).items():
        yield f"{name} was left out: {why}"


def many_labels(result: dict[str, Any]) -> Iterator[Any]:
    """Tables of `bench many_labels`."""
    made = table(
        "SparseMultilabelClassifier with many labels", "labels", "rows x features", "fit, s", "predict, s", "gap",
        "MiB", "MiB of weights", "F1",
    )  # fmt: skip
    for row in result["fits"]:
        times = (f"{row['fit_seconds']:.1f}", f"{row['predict_seconds']:.1f}", f"{row['gap']:.0e}")
        memory = (f"{row['peak_mib']:.0f}", f"{row['weights_mib']:.0f}")
        size = f"{row['rows']} x {row['features']}"
        made.add_row(str(row["labels"]), size, *times, *memory, f"{row['test_f1']:.3f}")
    yield made
    for name, why in result["missing"].items():
        yield f"{name}: left out, {why}"


def jax(result: dict[str, Any]) -> Iterator[Any]:
    """Tables of `bench jax`."""
    yield _gate(result)
    for part in dict.fromkeys(row["part"] for row in result["cases"]):
        for density in dict.fromkeys(row["density"] for row in result["cases"]):
            cases = [row for row in result["cases"] if (row["part"], row["density"]) == (part, density)]
            made = _wrapped(f"{part} / jax.nn.softmax's under jit, {density} rows; below 1 is faster", "",
                            *(f"{row['rows']}\nx {row['K']}" for row in cases))  # fmt: skip
            for name in cases[0]["implementations"]:
                cells = [_cell(row["implementations"][name], "to_softmax") for row in cases]
                if name != "jax.nn.softmax":
                    made.add_row(name, *cells, style="bold" if name == "sparsegen" else "")
            yield made
    yield f"the kernel's handlers: {result['kernel']}"
    if not result.get("quick"):
        yield _targets(result)


def gpu(found: dict[str, Any]) -> Iterator[Any]:
    """Rows and attention of a GPU; an answer that is wrong shows its error."""
    names = list(dict.fromkeys(name for case in found["rows"] for name in (*case["forward"], *case["errors"])))
    for part, title in (("forward", "Forward"), ("step", "Forward and backward")):
        made = _wrapped(f"{title} on {found['device']}, times that of torch.softmax", "rows of", "type", *names)
        for case in found["rows"]:
            cells = [number(case[part][name]) if name in case[part] else _wrong(case, name) for name in names]
            made.add_row(str(case["n"]), case["dtype"], *cells)
        yield made
    made = _wrapped("Attention, times that of torch's", "length", "type", "causal", "forward", "both ways")
    for case in found["attention"]:
        cells = [number(case[part]) if part in case else f"off by {case['error']:.0e}" for part in ("forward", "step")]
        made.add_row(str(case["length"]), case["dtype"], "yes" if case["causal"] else "no", *cells)
    yield made


def _wrong(case: dict[str, Any], name: str) -> str:
    return f"off by {case['errors'][name]:.0e}" if name in case["errors"] else ""


SHOWN: dict[str, Callable[[dict[str, Any]], Iterator[Any]]] = {
    "maps": maps,
    "family": family,
    "scaling": scaling,
    "losses": losses,
    "attention": attention,
    "estimator": estimator,
    "many_labels": many_labels,
    "jax": jax,
    "gpu": gpu,
}
