"""Results as one HTML page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparsegen.experiments import registry
from sparsegen.experiments.registry import Experiment, scaled_down
from sparsegen.experiments.store import Result, write_text
from sparsegen.experiments.tables import Column, Table
from sparsegen.report.boxes import VERDICT_CLASSES, table_box
from sparsegen.report.figures import card, figures_of, figures_without_result
from sparsegen.report.html import Html, element, joined
from sparsegen.report.reading import Contents, Missing
from sparsegen.report.style import STYLE
from sparsegen.report.tables import ledger_table, tables_of

TITLE = "On Controllable Sparse Alternatives to Softmax: measured"
PAPER = "Laha et al., “On Controllable Sparse Alternatives to Softmax”, NeurIPS 2018"


def _duration(seconds: float) -> str:
    """A time as one reads it: 0.5 s, 2 min 33 s, 1 h 16 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _title(result: Result) -> str:
    parts = ", ".join(result.config.get("sets", result.config.get("corpora", ())))
    title = registry.of(result).title
    return f"{title}: {parts}" if parts else title


def _seeds(result: Result) -> str:
    """The seeds of a run; of each corpus, where they differ."""
    counts = result.config.get("seeds", 1)
    if isinstance(counts, dict):
        return "; ".join(f"{corpus}: {_from(result.seed, count)}" for corpus, count in counts.items())
    return _from(result.seed, counts)


def _from(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first} to {first + count - 1}"


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
    titled = (replace(table, title=_title(results[name])) for name, table in found.items())
    ledgers = (table_box(table, "Ledger", "ledger") for table in titled)
    lead = f"What the paper claims, and what was measured. Verdicts are computed from the numbers by the rule: {tally}."
    return _section("ledger", "Ledger", element("p", lead), *ledgers)


def _unmeasured(experiment: Experiment) -> Html:
    """The figures of an experiment without a Result."""
    return _section(experiment.name, experiment.title, *map(card, figures_without_result(experiment)))


def _experiment(name: str, result: Result) -> Html:
    about = f"Scale {result.config.get('scale', 'not said')}, seed {_seeds(result)}, {_duration(result.wall_time)}."
    title = _title(result)
    drawn = (card(drawing, title) for drawing in figures_of(result))
    tag = "scaled-down run" if scaled_down(result) else None
    shown = (table_box(table, title) for table in tables_of(result))
    return _section(name, title, element("p", about, class_="about"), *shown, *drawn, tag=tag)


def _sections(contents: Contents) -> Iterator[tuple[str, str, Html]]:
    """Address, title and content of each section."""
    results = contents.results
    overview = [_missing(contents.missing), *map(table_box, (_runs(results), _versions(results)))]
    yield "runs", "Runs", _section("runs", "Runs", *overview)
    ledger = _ledger(results)
    if ledger is not None:
        yield "ledger", "Ledger", ledger
    for name, experiment in registry.experiments().items():
        if name in contents.drawn:
            yield name, experiment.title, _unmeasured(experiment)
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
    ordered = sorted(contents.results.items(), key=lambda item: (registry.of(item[1]).order, item[0]))
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
