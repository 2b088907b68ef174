"""What the documents quote of speed and memory: the marks of `sparsegen bench`, and those of the page to explore."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from marks import Text, mark, span, table

from sparsegen.bench.measure import geometric_mean
from sparsegen.bench.peers import verdict_text
from sparsegen.bench.show import number

OURS = "sparsegen"
FIRST = (OURS, "torch.softmax", "copy")  # in tables; others follow by name
MAPS, FAMILY = ((name, f"{name}-zen5", f"{name}-xeon") for name in ("maps", "family"))  # one file per processor
LONG = 512  # entries of a row from which other libraries are compared in a sentence


def shape(row: dict[str, Any]) -> str:
    return f"{row['rows']} x {row['K']}"


def cases(maps: dict[str, Any], threads: int = 1, density: str = "sparse") -> list[dict[str, Any]]:
    return [case for case in maps["cases"] if (case["threads"], case["density"]) == (threads, density)]


def both(maps: dict[str, Any], threads: int, key: str, row: dict[str, Any]) -> str:
    """Sparse / dense of one shape."""
    found = [
        case["implementations"][OURS][key]
        for density in ("sparse", "dense")
        for case in cases(maps, threads, density)
        if shape(case) == shape(row)
    ]
    return " / ".join(map(number, found))


def ordered(implementations: dict[str, Any]) -> list[str]:
    return [*(name for name in FIRST if name in implementations), *sorted({*implementations} - {*FIRST})]


def times_as_long(case: dict[str, Any], peer: str) -> float:
    return case["implementations"][peer]["forward_to_sparsegen"]


@mark(*MAPS, "scaling", "losses", "attention", "estimator")
def machine(found: dict[str, Any]) -> str:
    about = found["machine"]
    return f"{about['cpu']}, engine {about['engine']}, torch {about['torch']}"


@mark(*MAPS)
def forward(maps: dict[str, Any]) -> str:
    return number(maps["summary"]["1"]["forward"]["geometric_mean"])


@mark(*MAPS)
def backward(maps: dict[str, Any]) -> str:
    return number(maps["summary"]["1"]["backward"]["geometric_mean"])


@mark(*MAPS)
def copies(maps: dict[str, Any]) -> str:
    """What a plain copy takes of softmax's time, over the grid: rows that come from memory can hardly take less."""
    found = (case for density in ("sparse", "dense") for case in cases(maps, 1, density))
    ratios = [case["implementations"]["copy"]["forward_to_softmax"] for case in found]
    return number(geometric_mean(ratios))


@mark("maps")
def sort(maps: dict[str, Any]) -> str:
    """How much longer entmax's sort takes on long sparse rows."""
    return span((times_as_long(case, "entmax sort") for case in cases(maps) if case["K"] >= LONG), ".0f")


@mark("maps")
def nearest(maps: dict[str, Any]) -> str:
    """The peer that comes nearest on long rows, and where."""
    found = [
        (times_as_long(case, peer), peer, case)
        for density in ("sparse", "dense")
        for case in cases(maps, 1, density)
        for peer, cell in case["implementations"].items()
        if case["K"] >= LONG and "forward_to_sparsegen" in cell and peer not in FIRST
    ]
    times, peer, case = min(found, key=lambda each: each[0])
    theirs, ours = (case["implementations"][name]["forward"] for name in (peer, OURS))
    apart = number(theirs["median_us"] / ours["median_us"])
    where = f"{number(times)} times as long as sparsegen at {shape(case)}, {case['density']} rows"
    turns = f"medians of {theirs['repeats']} turns; {apart} against sparsegen's median of {ours['repeats']} turns"
    return f"{peer}, {where} ({turns})"


@mark("maps")
def short(maps: dict[str, Any]) -> str:
    """The table of the README: one thread."""
    heads = ["rows x K", "forward", "backward", "entmax sort", "entmax top-k"]
    rows = []
    for case in cases(maps):
        ours = [both(maps, 1, f"{part}_to_softmax", case) for part in ("forward", "backward")]
        peers = [f"{number(times_as_long(case, peer))} x" for peer in ("entmax sort", "entmax top-k")]
        rows.append([shape(case), *ours, *peers])
    return table(heads, rows)


@mark(*MAPS)
def grid(maps: dict[str, Any]) -> str:
    """The library beside softmax, and how long entmax's sort takes beside it."""
    heads = ["rows x K", "forward, 1 thread", "forward, 2 threads", "backward, 1 thread", "backward, 2 threads",
             "forward / copy", "entmax sort / sparsegen"]  # fmt: skip
    rows = []
    for case in cases(maps):
        times = [both(maps, t, f"{part}_to_softmax", case) for part in ("forward", "backward") for t in (1, 2)]
        entmax = f"{number(times_as_long(case, 'entmax sort'))} x"
        rows.append([shape(case), *times, both(maps, 1, "forward_to_copy", case), entmax])
    return table(heads, rows)


@mark("maps")
def peers(maps: dict[str, Any]) -> str:
    """Every implementation's forward time over softmax's, one thread, sparse rows."""
    sparse, key = cases(maps), "forward_to_softmax"
    rows = []
    for name in ordered(sparse[0]["implementations"]):
        cells = [case["implementations"][name] for case in sparse]
        rows.append([name, *(number(cell[key]) if key in cell else verdict_text(cell).split(":")[0] for cell in cells)])
    return table(["", *map(shape, sparse)], rows)


@mark("maps")
def gate(maps: dict[str, Any]) -> str:
    rows = [
        [name, *(f"right ({v['error']:.0e})" if v["state"] == "right" else verdict_text(v) for v in found.values())]
        for name, found in ((name, maps["gate"][name]) for name in ordered(maps["gate"]))
    ]
    return table(["", *next(iter(maps["gate"].values()))], rows)


@mark("maps")
def wrong(maps: dict[str, Any]) -> str:
    """Who answers wrongly on plain rows already."""
    return ", ".join(name for name, found in maps["gate"].items() if found["plain"]["state"] == "wrong") or "nobody"


def family_table(family: dict[str, Any], beside: str) -> str:
    def cell(found: dict[str, float]) -> str:
        return " / ".join(number(found[f"{part}_to_{beside}"]) for part in ("forward", "backward"))

    names, cases = family["cases"][0]["maps"], family["cases"]
    rows = [[name, *(cell(case["maps"][name]) for case in cases)] for name in names]
    return table(["forward / backward", *map(shape, cases)], rows)


@mark(*FAMILY, name="maps")
def every_map(family: dict[str, Any]) -> str:
    return family_table(family, "softmax")


@mark("family", name="alike")
def alike(family: dict[str, Any]) -> str:
    """Beside sparsegen_lin, with its own control and with one that leaves as many entries."""
    return family_table(family, "lin_alike")


def times_of_zeros(key: str) -> Text:
    """How much longer a loop over memory takes that writes something else."""
    return lambda lines: number(lines["dense_to_sparse"][key])


for part in ("zeros", "forward", "backward"):
    mark("lines", name=part)(times_of_zeros(part))


@mark("family", name="entmax")
def entmax_forms(family: dict[str, Any]) -> str:
    names = ["entmax sort", "entmax top-k", "entmax bisection"]
    rows = [
        [shape(case), number(case["to_softmax"]), *(number(case["times_as_long"].get(n, float("nan"))) for n in names)]
        for case in family["entmax"]
    ]
    return table(["", "entmax15 / softmax", *(f"{name}, times as long" for name in names)], rows)


@mark(*MAPS, *FAMILY)
def promises(maps: dict[str, Any]) -> str:
    met = {True: "yes", False: "**no**", None: ""}
    rows = [
        [t["promise"], "not measured" if t["measured"] is None else number(t["measured"]),
         f"at {t['at']} {t['limit']:g}", met[t["met"]]]
        for t in maps["targets"]
    ]  # fmt: skip
    return table(["one thread unless said", "measured", "promised", "met"], rows)


@mark("maps")
def softmax_wins(maps: dict[str, Any]) -> str:
    lines = []
    for threads in (1, 2):
        for part in ("forward", "backward"):
            ratios = [(case, case["implementations"][OURS][f"{part}_to_softmax"])
                      for case in maps["cases"] if case["threads"] == threads]  # fmt: skip
            cells = [f"{shape(c)} {c['density']} ({number(ratio)})" for c, ratio in ratios if ratio > 1]
            count = "one thread" if threads == 1 else f"{threads} threads"
            lines.append(f"- {part}, {count}: {', '.join(cells) or 'nowhere on this grid'}")
    return "\n".join(lines)


@mark("maps")
def bfloat16(maps: dict[str, Any]) -> str:
    half = {d: [row for row in maps["bfloat16"] if row["density"] == d] for d in ("sparse", "dense")}
    rows = [[density, *(number(row["ratio"]) for row in found)] for density, found in half.items()]
    return table(["", *map(shape, half["sparse"])], rows)


@mark("maps")
def adversarial(maps: dict[str, Any]) -> str:
    shapes = maps["adversarial"]
    rows = [[name, *(number(row["to_random"][name]) for row in shapes)] for name in shapes[0]["to_random"]]
    return table(["", *map(shape, shapes)], rows)


@mark("maps")
def two_threads(maps: dict[str, Any]) -> str:
    rows = [[f"{shape(row)}, {row['density']}", number(row["times_as_fast"]["2"])] for row in maps["threads"]]
    return table(["", "times as fast"], rows)


@mark("maps")
def small_calls(maps: dict[str, Any]) -> str:
    small = maps["small_calls"]
    keys = [key for key in ("ratio", "ratio_grad", "ratio_step") if key in small]
    base = "torch.softmax" if "torch.softmax" in small["ratio"] else "softmax"
    names = [name for name in small["ratio"] if name != base]
    rows = [[name, *(number(small[key][name]) for key in keys)] for name in names]
    return table(["", "without gradients", "with", "there and back"][: 1 + len(keys)], rows)


@mark("maps")
def imports(maps: dict[str, Any]) -> str:
    found = maps["import"]
    return f"{found['median_ms']:.0f} ms (median; {found['worst_ms']:.0f} ms at worst)"


@mark("maps")
def memory(maps: dict[str, Any]) -> str:
    rows = [[row["name"], str(row["threads"]), number(row["outputs"])] for row in maps["memory"] if "outputs" in row]
    return table(["", "threads", "outputs"], rows)


@mark("scaling")
def sections(found: dict[str, Any]) -> str:
    return "\n".join(_sections(found))


def _sections(found: dict[str, Any]) -> Iterator[str]:
    for at, section in enumerate(found["sections"]):
        varies, fixed = (section[key] for key in ("varies", "fixed"))
        title = section["title"][0].upper() + section["title"][1:]
        yield f"{chr(10) if at else ''}**{title}** ({fixed}):\n"
        rows = []
        for point in section["points"]:
            us = [f"{point['times'][name]['median_us']:.1f}" for name in (OURS, "torch.softmax")]
            rows.append([str(point["value"]), *us, number(point["ratio"])])
        yield table([varies, "sparsegen, us", "torch.softmax, us", "ratio"], rows)
        powers = [f"{name} {fit['upper_half']:.2f}" for name, fit in section["exponents"].items()]
        if powers:
            yield f"\nTime grows with {varies} to the power of (upper half of the sizes): {', '.join(powers)}."


@mark("scaling")
def level(found: dict[str, Any]) -> str:
    """The numbers of entries in a call from which sparsegen is no slower than softmax."""
    crossings = []
    for section in found["sections"]:
        if section["title"] in ("same rows", "same K"):
            slower = [p["rows"] * p["K"] for p in section["points"] if p["ratio"] > 1]
            faster = [p["rows"] * p["K"] for p in section["points"] if p["rows"] * p["K"] > max(slower, default=0)]
            crossings.append(min(faster))
    return span(crossings, ",d").replace(",", " ")


@mark("losses", name="table")
def losses(found: dict[str, Any]) -> str:
    heads = ["rows x classes, labels", "sparsegen hinge", "sparsehourglass hinge", "as labels x classes", "as pairs"]
    rows = []
    for case in found["cases"]:
        ours = [f"{case['times'][name]['median_us'] / 1000:.1f} ms" for name in (OURS, "sparsehourglass")]
        others = [_times(case, name) for name in ("labels x classes", "all pairs")]
        rows.append([f"{shape(case)}, {case['labels']}", *ours, *others])
    return table(heads, rows)


def _times(case: dict[str, Any], name: str) -> str:
    if name in case["times_as_long"]:
        return f"{number(case['times_as_long'][name])} x"
    return f"does not fit: {4 * case['rows'] * case['K'] ** 2 / 1e9:.0f} GB"


@mark("attention", name="table")
def attention(found: dict[str, Any]) -> str:
    heads = ["keys", "", "forward, 1 thread", "2 threads", "forward and backward, 1 thread", "2 threads", "memory"]
    ratios = {(c["length"], c["causal"], c["threads"]): c["ratio"] for c in found["cases"]}
    rows = []
    for row in found["memory"]:
        which = row["length"], row["causal"]
        times = [number(ratios[(*which, threads)][part]) for part in ("forward", "step") for threads in (1, 2)]
        rows.append([str(row["length"]), "causal" if row["causal"] else "full", *times, number(row["ratio"])])
    return table(heads, rows)


@mark("attention", name="forward")
def attention_forward(found: dict[str, Any]) -> str:
    return span(case["ratio"]["forward"] for case in found["cases"])


@mark("attention", name="step")
def attention_step(found: dict[str, Any]) -> str:
    return span(case["ratio"]["step"] for case in found["cases"])


@mark("attention", name="memory")
def attention_memory(found: dict[str, Any]) -> str:
    return span(row["ratio"] for row in found["memory"])


@mark("attention", name="decoding")
def attention_decoding(found: dict[str, Any]) -> str:
    """One query beside a cache of keys, with one thread / with two."""
    ratios = {
        (c["mapping"], c["type"], c["batch"], c["keys"], c["threads"]): c["ratio"] for c in found["modes"]["decoding"]
    }
    lengths = sorted({which[3] for which in ratios})
    rows = []
    for which in dict.fromkeys(key[:3] for key in ratios):
        cells = (" / ".join(number(ratios[(*which, keys, threads)]) for threads in (1, 2)) for keys in lengths)
        rows.append([f"`{which[0]}`", which[1], str(which[2]), *cells])
    return table(["map", "type", "batch", *(f"{keys} keys" for keys in lengths)], rows)


@mark("attention", name="modes")
def attention_modes(found: dict[str, Any]) -> str:
    """Other calls: compiled, in bfloat16, with a mask, with the dial that begins at softmax, small."""
    modes, spans = found["modes"], []
    for name, what in (
        ("halves", "bfloat16"), ("masked", "a boolean mask"), ("dial", "sparsegen_softmax"), ("small", "small calls"),
    ):  # fmt: skip
        ratios = [case["ratio"] for case in modes["forward"] if case["mode"] == name]
        spans += [[f"{what}, forward", span(ratios), number(modes["targets"][name])]] if ratios else []
    for part, aim in (("forward", "compiled"), ("step", "compiled step")):
        what = f"compiled, {'forward' if part == 'forward' else 'forward and backward'}"
        ratios = [case["ratio"][part] for case in modes["compiled"]]
        spans.append([what, span(ratios), number(modes["targets"][aim])])
    return table(["call", "measured", "aim, at most"], spans)


@mark("estimator", name="table")
def estimator(found: dict[str, Any]) -> str:
    heads = ["data", "rows x features, labels", "map", "seconds", "iterations", "gap"]
    rows = [
        [fit["data"], f"{fit['rows']} x {fit['features']}, {fit['labels']}", fit["mapping"], f"{fit['seconds']:.1f}",
         str(fit["n_iter"]), f"{fit['gap']:.0e}"]
        for fit in found["fits"]
    ]  # fmt: skip
    return table(heads, rows)


@mark("many_labels", name="table")
def many_labels(found: dict[str, Any]) -> str:
    heads = [
        "labels",
        "rows x features",
        "fit, seconds",
        "predict, seconds",
        "gap",
        "MiB at the peak",
        "MiB of weights",
    ]
    rows = [
        [f"{fit['labels']:,}", f"{fit['rows']:,} x {fit['features']:,}", f"{fit['fit_seconds']:.0f}",
         f"{fit['predict_seconds']:.1f}", f"{fit['gap']:.0e}", f"{fit['peak_mib']:,.0f}", f"{fit['weights_mib']:,.0f}"]
        for fit in found["fits"]
    ]  # fmt: skip
    return table(heads, rows)


@mark("explore")
def size(found: dict[str, Any]) -> str:
    return f"{found['bytes'] / 1000:.0f} kB"


@mark("explore")
def redraw(found: dict[str, Any]) -> str:
    return f"{found['worst_ms']:.0f} ms"
