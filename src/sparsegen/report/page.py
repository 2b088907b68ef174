"""Results as one HTML page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from sparsegen._checks import fail
from sparsegen.experiments.store import FORMAT, Result, from_json, write_text
from sparsegen.report import tables
from sparsegen.report.html import STYLE, Html, element, joined
from sparsegen.report.tables import EXPERIMENTS, Column, Table, ledger_table, scaled_down, tables_of

HEAVY = 300_000  # bytes from which an SVG gives way to a PNG
TITLE = "On Controllable Sparse Alternatives to Softmax: measured"
PAPER = "Laha et al., “On Controllable Sparse Alternatives to Softmax”, NeurIPS 2018"
TITLES = {
    "properties": "Table 1: properties of the maps",
    "synthetic": "Multilabel learning on synthetic documents",
    "real": "Multilabel learning on real data",
    "translation": "Translation",
    "summarization": "Summarization",
}
VERDICT_CLASSES = dict(zip(tables.VERDICTS, ("holds", "partly", "not", "unknown")))


class Missing(NamedTuple):
    """A part that the report does not have, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Contents:
    """What a report is made of.

    Parameters
    ----------
    results : dict of str to Result
        By name: that of the file, without its ending.
    missing : list of Missing
        What was left out, or failed.
    maps : bool
        Whether the figures of the maps are drawn. They need no Result; `read` wants them beside Table 1.
    """

    results: dict[str, Result] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    maps: bool = False


# Reading


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Each file, and whether it was named itself; of folders those that end in .json, in the order of their names."""
    for path in paths:
        if path.is_dir():
            yield from ((file, False) for file in sorted(path.glob("*.json")))
        else:
            yield path, True


def _checked(result: Result, path: Path) -> Result:
    """Refuse a Result whose tables cannot be made, by name."""
    try:
        tables_of(result)
        ledger_table(result)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        got = f"one without {error}" if isinstance(error, KeyError) else str(error)
        fail(ValueError, str(path), f"a Result of {result.experiment} as this version writes it", got)
    except ValueError as error:
        raise ValueError(f"{error} It is in {path}.") from None
    return result


def _is_result(path: Path) -> bool:
    """Whether a file is a Result, or torn: loading it says so."""
    try:
        stored = from_json(path.read_bytes())
    except ValueError:
        return True
    return isinstance(stored, dict) and stored.get("format") == FORMAT


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    """The name, with a number behind it if it is taken."""
    names = (name, *(f"{name}-{i}" for i in range(2, len(taken) + 3)))
    return next(new for new in names if new not in taken)


def read(paths: Iterable[Path]) -> tuple[Contents, list[Path]]:
    """Read Results from files and folders; return them, and the files of folders that are something else.

    Parameters
    ----------
    paths : iterable of Path
        Of a folder the files that end in .json are read.

    Raises
    ------
    FileNotFoundError
        A file is not there.
    ValueError
        A file is torn, or was named itself and is no Result; or there is none at all.

    Examples
    --------
    >>> read([Path("nowhere.json")])
    Traceback (most recent call last):
        ...
    FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.json'
    """
    results: dict[str, Result] = {}
    others = []
    for path, asked in _files(paths):
        if asked or _is_result(path):
            results[_unused(path.stem, results)] = _checked(Result.load(path), path)
        else:
            others.append(path)
    if not results:
        fail(ValueError, "paths", "Results, or folders with one", ", ".join(map(str, others)) or "no JSON file")
    maps = any(result.experiment == "properties" for result in results.values())
    return Contents(results, maps=maps), others


# Tables


def _label(text: str, where: str) -> str:
    """What a box is called by who cannot see where it stands: no two the same."""
    return f"{where}: {text}" if where else text


def _cell(text: str, column: Column) -> Html:
    if column.kind == "name":
        return element("th", text, scope="row", class_="name")
    if column.kind == "verdict":
        return element("td", element("span", text, class_=VERDICT_CLASSES[text]), class_="verdict")
    word, bracket, rest = text.partition(" (") if column.kind == "mark" else (text, "", "")
    other = element("span", bracket.strip() + rest, class_="other") if rest else None
    return element("td", word, " " if rest else None, other, class_=column.kind)


def _lines(rows: Iterable[Sequence[str]], columns: Sequence[Column]) -> list[Html]:
    return [joined(*(_cell(text, column) for text, column in zip(row, columns))) for row in rows]


def _bodies(table: Table) -> Iterator[Html]:
    """The lines of a table; those of a group stand in a body of their own, headed by its name."""
    if table.columns[0].kind != "group":
        yield element("tbody", *(element("tr", line) for line in _lines(table.rows, table.columns)))
        return
    for name, rows in groupby(table.rows, key=lambda row: row[0]):
        first, *others = _lines((row[1:] for row in rows), table.columns[1:])
        head = element("th", name, scope="rowgroup", rowspan=1 + len(others), class_="group")
        yield element("tbody", element("tr", head, first), *(element("tr", line) for line in others))


def _table(table: Table, where: str = "", look: str = "") -> Html:
    """A table in a box of its own that scrolls, by keyboard too, where the page is narrow."""
    heads = (element("th", column.title, scope="col", class_=column.kind) for column in table.columns)
    parts = (element("caption", element("span", table.title)), element("thead", element("tr", *heads)), *_bodies(table))
    box = element(
        "div", element("table", *parts), class_=f"scroll {look}".strip(), tabindex=0, role="region",
        aria_label=_label(table.title, where),
    )  # fmt: skip
    return joined(box, *(element("p", note, class_="note") for note in table.notes))


# Figures


def _image(figure: Any) -> tuple[str, bytes, int, int]:
    """A figure as its MIME type, bytes, and width and height on the page."""
    from sparsegen.experiments.drawings import rendered

    svg = rendered(figure, "svg")
    size = re.search(rb'<svg [^>]*width="([\d.]+)pt" height="([\d.]+)pt"', svg)
    assert size is not None  # matplotlib writes them
    width, height = (round(float(text) * 96 / 72) for text in size.groups())
    if len(svg) <= HEAVY:
        return "image/svg+xml", svg, width, height
    return "image/png", rendered(figure, "png"), width, height


def _figure(figure: Any, caption: str, alt: str, where: str = "") -> Html:
    """A figure on a white card that scrolls where the page is too narrow for its letters."""
    kind, content, width, height = _image(figure)
    source = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    image = element("img", src=source, alt=alt, width=width, height=height)
    box = element("div", image, class_="scroll", tabindex=0, role="region", aria_label=_label(caption, where))
    return element("figure", box, element("figcaption", caption, "."))


# What the figures of the maps show, for who reads and for who cannot see them.
MAP_FIGURES = {
    "contours": (
        "Lines of equal probability of the first of two scores",
        "In the plane of two scores: parallel lines for softmax, parallel lines between two flat regions for "
        "sparsemax, rays from the origin for sum-normalization.",
    ),
    "sparsegen-lin-regions": (
        "Where sparsegen-lin gives one nonzero and where two, beside sparsemax",
        "In the plane of two scores, a diagonal band gives two nonzeros, all outside of it one. At lam = 0.5 the band "
        "is half as wide as that of sparsemax, and the points z and z' become the corners A and B.",
    ),
    "cone-and-hourglass": (
        "How sparsecone and sparsehourglass find their point",
        "Two planes of two scores. Sparsecone goes along the line from the score to (-q, -q) until it meets the "
        "simplex; sparsehourglass mirrors scores of negative sum first, so that its region is an hourglass.",
    ),
    "atlas": (
        "Size of the support, and lines of equal probability of the first class, around the triangle of three classes",
        "A grid of triangles: a row each for sparsegen-lin, sparsegen-exp, sparsegen-sq, sparsehourglass and other "
        "maps, from denser on the left to sparser on the right where there is a control.",
    ),
}


# Sections


def _duration(seconds: float) -> str:
    """A time as one reads it: 0.5 s, 2 min 33 s, 1 h 16 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _title(result: Result) -> str:
    parts = ", ".join(result.config.get("sets", result.config.get("corpora", ())))
    return f"{TITLES[result.experiment]}: {parts}" if parts else TITLES[result.experiment]


def _seeds(result: Result) -> str:
    last = result.seed + result.config.get("seeds", 1) - 1
    return str(result.seed) if last == result.seed else f"{result.seed} to {last}"


def _section(name: str, title: str, *children: Any, tag: str | None = None) -> Html:
    mark = joined(" ", element("span", tag, class_="tag")) if tag else None
    return element("section", element("h2", title, mark, id=f"{name}-title"), *children, id=name,
                   aria_labelledby=f"{name}-title")  # fmt: skip


def _runs(results: Mapping[str, Result]) -> Table:
    rows = tuple(
        (name, _title(result), result.config.get("scale", ""), _seeds(result), result.started.replace("T", " "),
         _duration(result.wall_time))
        for name, result in results.items()
    )  # fmt: skip
    columns = (Column("run", "name"), Column("experiment", "text"), Column("scale", "word"),
               *map(Column, ("seed", "started", "wall time")))  # fmt: skip
    return Table("What was run, when, and how long it took", columns, rows)


def _versions(results: Mapping[str, Result]) -> Table:
    """Every version a package had in the runs; one unless they differ."""
    found: dict[str, dict[str, None]] = {}
    for result in results.values():
        for package, version in result.versions.items():
            found.setdefault(package, {})[version] = None
    rows = tuple((package, ", ".join(found[package])) for package in sorted(found))
    return Table("Versions", (Column("package", "name"), Column("version")), rows)


def _missing(missing: Sequence[Missing]) -> Html | None:
    if not missing:
        return None
    lines = (element("li", element("b", part.name), f": {part.why}") for part in missing)
    return element("div", element("p", "Not in this report:"), element("ul", *lines), class_="missing")


def _ledger(results: Mapping[str, Result]) -> Html | None:
    """All claims with their verdicts, a table a run."""
    found = {name: table for name, result in results.items() if (table := ledger_table(result, wide=True))}
    if not found:
        return None
    verdicts = [row[-1] for table in found.values() for row in table.rows]
    tally = ", ".join(f"{verdicts.count(word)} “{word}”" for word in VERDICT_CLASSES if word in verdicts)
    ledgers = (_table(replace(table, title=_title(results[name])), "Ledger", "ledger") for name, table in found.items())
    lead = f"What the paper claims, and what was measured. Verdicts are computed from the numbers by the rule: {tally}."
    return _section("ledger", "Ledger", element("p", lead), *ledgers)


def _maps() -> Html:
    from sparsegen.experiments.table1.map_figures import FIGURES

    texts = ((make(), *MAP_FIGURES.get(name, (name, name))) for name, make in FIGURES.items())
    return _section("maps", "Figures of the maps", *(_figure(*text) for text in texts))


def _experiment(name: str, result: Result) -> Html:
    from sparsegen.experiments.drawings import drawings

    about = f"Scale {result.config.get('scale', 'not said')}, seed {_seeds(result)}, {_duration(result.wall_time)}."
    title = _title(result)
    drawn = (_figure(drawing.figure, drawing.caption, drawing.alt, title) for drawing in drawings(result))
    tag = "scaled-down run" if scaled_down(result) else None
    shown = (_table(table, title) for table in tables_of(result))
    return _section(name, title, element("p", about, class_="about"), *shown, *drawn, tag=tag)


def _sections(contents: Contents) -> Iterator[tuple[str, str, Html]]:
    """Address, title and content of each section."""
    results = contents.results
    overview = [_missing(contents.missing), *map(_table, (_runs(results), _versions(results)))]
    yield "runs", "Runs", _section("runs", "Runs", *overview)
    ledger = _ledger(results)
    if ledger is not None:
        yield "ledger", "Ledger", ledger
    if contents.maps:
        yield "maps", "Figures of the maps", _maps()
    for name, result in results.items():
        yield f"run-{name}", _title(result), _experiment(f"run-{name}", result)


def page(contents: Contents) -> str:
    """Return a report as the text of an HTML page: the same for the same contents.

    Examples
    --------
    >>> line = {"name": "scene", "pair": "softmax+log", "f1": 0.757, "paper": 0.71, "support": 6.0, "gap": 1e-4}
    >>> rows = [line | {"pair": pair} for pair in ("sparsemax+huber", "sparsemax+hinge", "sparsehg+hinge")]
    >>> summary = {"table": [row | {"difference": 0.047} for row in [line, *rows]], "largest_gap": 1e-4}
    >>> result = Result("real", {"scale": "small"}, 0, (), summary, {}, 1.0, "2030-01-31T12:00:00")
    >>> text = page(Contents({"real": result}))
    >>> text.startswith("<!doctype html>"), text.count("<h1"), "0.757" in text
    (True, 1, True)
    """
    ordered = sorted(contents.results.items(), key=lambda item: (list(EXPERIMENTS).index(item[1].experiment), item[0]))
    sections = list(_sections(replace(contents, results=dict(ordered))))
    links = (element("li", element("a", title, href=f"#{name}")) for name, title, _ in sections)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", TITLE),
        element("style", Html(STYLE)),
    )
    body = element(
        "body",
        element("a", "Skip to the report", href="#report", class_="skip"),
        element("header", element("h1", TITLE), element("p", f"The claims of {PAPER}, and what sparsegen measured.")),
        element("nav", element("h2", "Contents", id="contents"), element("ul", *links), aria_labelledby="contents"),
        element("main", *(section for _, _, section in sections), id="report"),
        element("footer", element("p", "Made by sparsegen from the numbers of saved runs; nothing is typed in.")),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}"


def write(contents: Contents, path: Path) -> None:
    """Write the page of a report, whole or not at all; missing folders are made.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write(Contents(missing=[Missing("real", "it needs data")]), Path(folder) / "report.html")
    ...     "it needs data" in (Path(folder) / "report.html").read_text()
    True
    """
    write_text(path, page(contents))
