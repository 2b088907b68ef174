"""README and docs: what they quote is what results/ holds, their examples run, their links lead somewhere."""

from __future__ import annotations

import ast
import contextlib
import copy
import io
import re
import sys
import tokenize
from functools import cache
from pathlib import Path

import click
import numpy as np
import pytest
import typer
from matplotlib.image import imread

from sparsegen._table.maps import MAPS
from sparsegen.cli import app

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
try:
    import documents
    import marks
    import pictures
finally:
    sys.path.pop(0)

TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in documents.documents()}
read = cache(marks.read)


def each_document(test):
    return pytest.mark.parametrize("name", TEXTS)(test)


# Marks


@each_document
def test_what_is_marked_is_what_the_results_hold(name):
    assert TEXTS[name] == marks.fill(TEXTS[name], read), "run: make docs-numbers"


def test_another_measurement_is_another_text():
    maps = copy.deepcopy(read("maps"))
    maps["summary"]["1"]["forward"]["geometric_mean"] = 0.123
    text = "takes <!--n:maps.forward-->0.41<!--/n--> of its time"
    assert marks.fill(text, lambda _: maps) == "takes <!--n:maps.forward-->0.12<!--/n--> of its time"


def test_a_block_is_filled_once_and_for_all():
    once = marks.fill("<!--n:maps.short-->\n<!--/n-->", read)
    assert once.count("\n| ") == 2 + len({(c["rows"], c["K"]) for c in read("maps")["cases"]})
    assert once.endswith(" |\n\n<!--/n-->")
    assert marks.fill(once, read) == once


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<!--n:maps.nothing-->1<!--/n-->", "no function makes the mark 'maps.nothing'"),
        ("<!--n:maps.forward-->0.41", "not closed"),
        ("0.41<!--/n-->", "not closed or not opened"),
        ("<!--n:maps.forward-->0.41 and <!--n:maps.backward-->0.77<!--/n-->", "one holds another"),
    ],
)
def test_a_mark_that_is_none_is_refused(text, error):
    with pytest.raises((KeyError, ValueError), match=error):
        marks.fill(text, read)


def test_every_mark_is_used():
    used = {found["name"] for text in TEXTS.values() for found in marks.MARK.finditer(text)}
    assert set(marks.MARKS) - used == set()


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_figure_is_drawn_from_the_results_as_they_are(name):
    file, _ = pictures.PICTURES[name]
    assert pictures.stamp_of(pictures.path_of(name).read_bytes()) == pictures.stamp(file), "run: make docs-numbers"


def test_every_figure_is_shown_and_shows_results_or_maps():
    shown = {name for text in TEXTS.values() for name in re.findall(r"figures/([\w-]+)\.png", text)}
    kept = {path.stem for path in (ROOT / "docs" / "figures").glob("*.png")}
    assert shown == kept == {*pictures.PICTURES, "atlas"}


def test_a_stamp_leaves_a_picture_that_can_be_read(tmp_path):
    png = pictures.path_of("atlas").read_bytes()
    assert pictures.stamp_of(png) is None
    made = pictures.stamped(png, "maps.json abc")
    assert pictures.stamp_of(made) == "maps.json abc"
    np.testing.assert_array_equal(imread(io.BytesIO(made)), imread(io.BytesIO(png)))


def test_the_script_writes_what_differs_and_nothing_else(tmp_path, monkeypatch, capsys):
    stale, fresh = tmp_path / "stale.md", tmp_path / "fresh.md"
    stale.write_text("<!--n:maps.forward-->9.99<!--/n-->")
    fresh.write_text("no number")
    monkeypatch.setattr(documents, "documents", lambda: [stale, fresh])
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    (tmp_path / "scaling.png").write_bytes(pictures.path_of("scaling").read_bytes())
    monkeypatch.setattr(pictures, "PICTURES", {name: pictures.PICTURES[name] for name in ("maps", "scaling")})
    monkeypatch.setattr(pictures, "path_of", lambda name: tmp_path / f"{name}.png")
    documents.main()
    assert capsys.readouterr().out == "wrote maps.png\nwrote stale.md\n"
    assert pictures.stamp_of((tmp_path / "maps.png").read_bytes()) == pictures.stamp("maps")
    assert stale.read_text() == marks.fill(stale.read_text(), read) != "<!--n:maps.forward-->9.99<!--/n-->"


# What is said of several corpora


def made_summaries(corpora, *, ends=(-0.5, 0.5), seeds=3, **config):
    """A file of summaries: softmax and sparsemax on each corpus' own test set and on one of DUC."""
    known = {"rouge1": 30.0, "rouge2": 10.0, "rougeL": 28.0, "support": 2.0, "paper": None}
    known |= {"copied": 0.05, "copied_right": None}
    places = [(corpus, test) for corpus in corpora for test in ("duc2003", corpus)]
    table = [
        {**known, "corpus": corpus, "test": test, "row": row, "control": None}
        | {"measure": "rouge_recall_75" if test == "duc2003" else "rouge"}
        for corpus, test in places
        for row in ("softmax", "sparsemax")
    ]
    shared = {"row": "sparsemax", "base": "softmax", "low": ends[0], "high": ends[1]}
    leads = [{"corpus": corpus, "test": test, **shared} for corpus, test in places]
    sizes = {"layers": 1, "hidden": 256, "train": {"epochs": 6}}
    rows = [{"corpus": corpus, "train_pairs": 9994, "train_seconds": 240.0} for corpus in corpora]
    settings = {"corpora": corpora, "seeds": seeds, "presets": dict.fromkeys(corpora, sizes), **config}
    return {"seed": 0, "config": settings, "rows": rows, "summary": {"table": table, "leads": leads}}


def said(mark, found):
    return marks.MARKS[f"summarization.{mark}"](found)


def test_each_corpus_of_a_file_has_a_table_and_the_others_are_named():
    text = said("table", made_summaries(["reuters", "acl"], seeds={"reuters": 3, "acl": 1}))
    assert "Trained on reuters (9 994 pairs, 4 minutes per map, 3 seeds, 0 to 2):" in text
    assert "Trained on acl (9 994 pairs, 4 minutes per map, one seed, 0):" in text
    assert text.endswith("Not yet run: gigaword.")
    heads = "| test set | attention (control) | ROUGE-1 / 2 / L | ahead of softmax | attends to | copied |"
    assert text.count(heads) == 2  # no column of nothing: none is in the paper's table, none was copied rightly
    assert "| reuters | sparsemax | 30.0 / 10.0 / 28.0 | -0.5 to +0.5 | 2.0 | 5.0 % |" in text
    assert text.index("| reuters | softmax") < text.index("| duc2003 (recall) | softmax")
    whole = said("table", made_summaries(["gigaword", "reuters", "acl"]))
    assert "Not yet run" not in whole


def test_what_differs_between_corpora_is_said_for_each():
    found = made_summaries(["reuters", "acl"])
    assert said("units", found) == "1 layer of 256 units, 6 epochs"
    found["config"]["presets"]["acl"] = {**found["config"]["presets"]["acl"], "hidden": 128}
    assert said("units", found).endswith("; acl: 1 layer of 128 units, 6 epochs")
    assert said("chosen_by", found).endswith("as in the paper")
    lent = made_summaries(["reuters", "acl"], controls_from={"acl": "reuters"})
    assert said("chosen_by", lent).endswith("as in the paper; but acl has those of reuters")
    assert "nothing in the file" in said("beside_paper", found)


@pytest.mark.parametrize(
    ("ends", "seeds", "start", "end"),
    [
        ((-0.5, 0.5), 3, "All 2 intervals have 0 in them", "tell no map from softmax."),
        (
            (-0.5, 0.5),
            1,
            "All 2 intervals have 0 in them",
            "With one seed (acl) an interval says nothing of other seeds.",
        ),
        (
            (0.1, 0.5),
            3,
            "Of 2 intervals 2 are above 0 (sparsemax on acl, duc2003; sparsemax on acl, acl) and 0 are",
            ".",
        ),
        (
            (-0.5, -0.1),
            3,
            "Of 2 intervals 0 are above 0 and 2 are below 0 (sparsemax on acl, duc2003;",
            "no difference.",
        ),
    ],
)
def test_of_the_order_of_maps_is_said_what_intervals_tell(ends, seeds, start, end):
    text = said("order", made_summaries(["acl"], ends=ends, seeds=seeds))
    assert text.startswith(start)
    assert text.endswith(end)


def test_intervals_of_rows_that_the_paper_has_not_are_counted_apart():
    found = made_summaries(["acl"])
    assert "paper" not in said("order", found)
    found["summary"]["leads"].append({**found["summary"]["leads"][0], "row": "entmax-1.5"})
    text = said("order", found)
    assert text.startswith("All 3 intervals")
    assert text.endswith(" 1 of the 3 is of entmax-1.5, not in the paper's table.")


def test_a_row_that_the_paper_has_not_is_in_the_table_with_nothing_beside():
    found = copy.deepcopy(read("translation"))
    at, there = ("multi30k-en-fr", "test_2016_flickr"), marks.MARKS["translation.en_fr"](found)
    kept = marks.MARKS["translation.ledger"](found), marks.MARKS["translation.sparse_support"](found)
    own = [line for line in found["summary"]["table"] if (line["corpus"], line["row"]) == (at[0], "softmax")]
    found["summary"]["table"] += [{**line, "row": "entmax-1.5", "paper": None, "support": 9.0} for line in own]
    added = marks.MARKS["translation.en_fr"](found)
    assert added.startswith(there)
    (line,) = added.removeprefix(there).strip().splitlines()
    assert re.fullmatch(r"\| entmax-1.5 \| [\d.]+ \|  \| [\d.]+ \|  \| 9.00 \|  \|", line)
    assert (marks.MARKS["translation.ledger"](found), marks.MARKS["translation.sparse_support"](found)) == kept


# Numbers outside of marks

FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n)+")
# What holds digits and is no measurement: code, numbers of decisions, addresses, names of files, years.
QUIET = re.compile(r"`[^`]*`|\[decision\s\d+\]\([^)]*\)|\]\([^)]*\)|\[results/[^\]]*\]|\b20\d\d\b")
UNITS = r"(?:%|x|times|ms|us|seconds|minutes|hours|kB|MB|GB|BLEU)"
NUMBER = re.compile(rf"(?<![\w.-])[-+]?\d+(?:[.,]\d+)*(?P<unit>\s?{UNITS}(?!\w))?")
CITED = re.compile(r"results/[\w-]+\.json")


def prose(text: str) -> str:
    """A text without code."""
    return INDENTED.sub("", FENCED.sub("", text))


def typed_numbers(text: str) -> list[str]:
    """Numbers outside of marks that look measured: all where results are quoted, elsewhere those with a unit."""
    found = []
    for block in re.split(r"\n\s*\n|\n(?=- )", marks.MARK.sub("<mark>", prose(text))):
        quotes = "<mark>" in block or CITED.search(block)
        found += [number[0] for number in NUMBER.finditer(QUIET.sub("", block)) if quotes or number["unit"]]
    return found


@each_document
def test_no_measured_number_is_typed_by_hand(name):
    assert typed_numbers(TEXTS[name]) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It takes 0.41 of the time (results/maps.json).", ["0.41"]),
        ("It takes <!--n:maps.forward-->0.41<!--/n-->, or 0.5 (results/maps.json).", ["0.5"]),
        ("It takes 71 to 159 times\nas long.", ["159 times"]),
        ("- one\n- 29 ms", ["29 ms"]),
        ("Rows of `K >= 512` in float32 (results/maps.json), [as 1](docs/a1.md).", ["1"]),
        ("Sums are within 4 eps of 1.", []),
        ("```python\nx = 3  # 0.5 ms\n```\n\nand\n\n    sleep 5 ms\n", []),
    ],
)
def test_a_typed_number_is_seen(text, found):
    assert typed_numbers(text) == found


@each_document
def test_a_section_names_the_files_its_numbers_come_from(name):
    for section in re.split(r"^#+ ", TEXTS[name], flags=re.MULTILINE):
        sources = {f"results/{found['name'].split('.')[0]}.json" for found in marks.MARK.finditer(section)}
        assert sources <= set(CITED.findall(section)), section.splitlines()[0]


@each_document
def test_no_mark_begins_a_line_of_text(name):
    """Markdown takes a line that begins with a comment for HTML, and ends the paragraph there."""
    for line in TEXTS[name].splitlines():
        assert not re.match(r"(?:- )? {0,3}<!--n:[\w.-]+-->.*\w", line), line


def test_results_named_in_the_documents_exist():
    texts = [*TEXTS.values(), *(path.read_text() for path in (ROOT / "docs" / "decisions").glob("*.md"))]
    named = {name for text in texts for name in CITED.findall(text)}
    assert named
    for name in named:
        found = read(Path(name).stem)
        assert (found.get("machine") or found["versions"])["sparsegen"]


# Examples

EXAMPLES = [
    pytest.param(found[1], id=f"{name}-{number}")
    for name, text in TEXTS.items()
    for number, found in enumerate(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE), 1)
]


def outputs(code: str) -> list[tuple[str, str]]:
    """Run an example; what each of its prints says, and what the comment behind it says it says."""
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }
    names: dict = {}
    said = []
    for statement in ast.parse(code).body:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(ast.Module([statement], []), "example", "exec"), names)
        if out.getvalue():
            said.append((" ".join(out.getvalue().split()), comments.get(statement.end_lineno, "")))
    return said


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_prints_what_it_says(code):
    said = outputs(code)
    assert said, "an example prints something that its comment says"
    for printed, comment in said:
        assert printed == comment


def test_an_example_that_says_something_else_is_seen():
    assert outputs("x = 1\nprint(x)  # 2\n") == [("1", "2")]


def test_the_readme_is_short_and_names_every_extra():
    readme = TEXTS["README.md"]
    assert len(readme.splitlines()) <= 150
    extras = re.search(r"optional-dependencies\]\n(.*?)\n\[", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    assert extras
    for extra in re.findall(r"^(\w+) = \[", extras[1], re.MULTILINE):
        assert f"`{extra}`" in readme, extra


def test_the_page_of_maps_names_every_map():
    assert [name for name in MAPS if f"`{name}" not in TEXTS["docs/maps.md"]] == []


# Links and commands


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    heads = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@each_document
def test_links_lead_somewhere(name):
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(TEXTS[name])):
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


def commands() -> list[str]:
    lines = [line.split("#")[0] for text in TEXTS.values() for line in re.findall(r"^ {4}(.*)$", text, re.MULTILINE)]
    return [found[1].strip() for line in lines for found in re.finditer(r"(?:^|\| |-m )sparsegen ([^|]+)", line)]


@pytest.mark.parametrize("line", commands())
def test_commands_have_the_options_they_are_shown_with(line):
    command = typer.main.get_command(app)
    words = line.split()
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        command = command.get_command(click.Context(command), words.pop(0))
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= options
