"""The report: one page that stands alone, has every number of the terminal, and says what it does not have."""

from __future__ import annotations

import io
import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import browsers
from sparsegen._maps import MAPS
from sparsegen.cli import app, running
from sparsegen.experiments import registry
from sparsegen.experiments.ledger import ledger
from sparsegen.experiments.multilabel import real, synthetic
from sparsegen.experiments.multilabel.pairs import PAIRS
from sparsegen.experiments.seq2seq import figures as attention_figures
from sparsegen.experiments.seq2seq import generation, translation
from sparsegen.experiments.store import Result
from sparsegen.experiments.table1 import map_figures, properties
from sparsegen.report import figures, html
from sparsegen.report import page as pages
from sparsegen.report.page import page
from sparsegen.report.reading import Contents, Missing, read
from sparsegen.report.terminal import show

RESULTS = Path(__file__).parents[2] / "results"
WHEN = "2030-01-31T12:00:00+00:00"
VERSIONS = {"python": "3.11.7", "numpy": "2.4.6", "torch": "2.13.0+cpu"}
NASTY = ["<script>alert(1)</script>", '"quoted"', "R&D", "<unk>", "l'homme", "$5"]


def made(experiment, summary, rows=(), scale="small", **config):
    return Result(experiment, {"scale": scale, **config}, 3, rows, summary, VERSIONS, 4585.85, WHEN)


def made_synthetic():
    table = [
        {"setting": "mean", "value": value, "pair": pair}
        | {measure: [base + i / 10, base, base + 0.5] for measure, base in (("f1", 0.5), ("jsd", 0.1), ("support", 3))}
        for value in (2, 8)
        for i, pair in enumerate(PAIRS)
    ]
    same = {"equal_scaled_penalty": 1.0, "equal_same_penalty": 0.995}
    return made("synthetic", {"table": table, "equivalence": same, "largest_gap": 9.7e-4}, pairs=list(PAIRS), seeds=5)


def made_real():
    rows = [
        {"name": name, "pair": pair, "f1": 0.7 + i / 100, "jsd": 0.1, "support": 2.25, "labels": 2.0, "gap": 1e-4}
        for name in ("scene", "birds")
        for i, pair in enumerate(PAIRS)
    ]
    return made("real", {"table": real.compare(rows), "largest_gap": 1e-4}, sets=["scene", "birds"])


def made_translation(words=NASTY):
    weights = [[1.0 if i == j else 0.0 for j in range(len(words))] for i in range(len(words))]
    found = {"bleu": 41.25, "exact_match": 0.125, "support": 1.5, "source_words": 6.0}
    found["samples"] = [{"source": words, "written": words, "weights": weights}]
    curve = [{"epoch": i, "valid_accuracy": 0.5 + i / 10} for i in range(2)]
    rows = [
        {"row": name, "corpus": "multi30k-fr-en", "control": 0.5 if kind.grid else None, "tests": {"test_2016": found}}
        | {"curve": curve, "valid_accuracy": 0.6}
        for name, kind in generation.ROWS.items()
    ]
    summary = {"table": translation.EXPERIMENT.table(rows), "tried": [], "chosen": {}}
    return made("translation", summary, rows, corpora=["multi30k-fr-en"])


def made_properties():
    claimed = dict.fromkeys(properties.MARKS, "yes") | {"lipschitz": "1"}
    rows = [{"name": name, "measured": {**claimed, "scale": "no"}, "claimed": claimed} for name in MAPS]
    errata = [{"name": "E1", "claim": "lam -> 1 & more", "measured": "(0.5, 0.3): 0.125"}]
    return made("properties", {"cells": 72, "equal": 71, "errata": errata}, rows)


MADE = {"properties": made_properties, "synthetic": made_synthetic, "real": made_real, "translation": made_translation}
VOID = {"img", "meta", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """A page as its tags, texts and what is wrong with its nesting."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.wrong, self.words, self.verdicts = [], [], [], [], []
        self.feed(text)
        self.close()
        self.wrong += self.open
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)
        if self.open[-2:] == ["td", "span"] and "class" in self.tags[-1][1]:
            self.verdicts.append((self.tags[-1][1]["class"], data))

    def all(self, *names):
        return [attributes for tag, attributes in self.tags if tag in names]


@pytest.fixture(scope="module")
def contents():
    missing = [Missing("summarization", "failed: no <duc> & no more")]
    return Contents({name: make() for name, make in MADE.items()}, missing=missing)


@pytest.fixture(scope="module")
def text(contents):
    return page(contents)


@pytest.fixture(scope="module")
def parsed(text):
    return Page(text)


# The page


def test_tags_are_balanced_and_ids_are_met_once(parsed):
    assert not parsed.wrong
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = {a["href"][1:] for a in parsed.all("a")} | {a["aria-labelledby"] for a in parsed.all("section", "nav")}
    assert wanted <= set(ids)


def test_the_page_needs_nothing_but_itself(text, parsed):
    assert not parsed.all("script", "link", "iframe", "object", "base")
    assert all(a["href"].startswith("#") for a in parsed.all("a"))
    assert all(a["src"].startswith("data:image/") for a in parsed.all("img"))
    assert "http" not in re.sub(r"base64,[\w+/=]+", "", text)
    assert not re.search(r"@import|url\(", text)


def test_the_page_has_landmarks_a_language_and_headings_in_order(parsed):
    assert parsed.all("html") == [{"lang": "en"}]
    for landmark in ("header", "nav", "main", "footer", "h1", "title"):
        assert len(parsed.all(landmark)) == 1
    levels = [int(tag[1]) for tag, _ in parsed.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))
    assert [a["href"] for a in parsed.all("a")][1:] == [f"#{a['id']}" for a in parsed.all("section")]


def test_tables_have_captions_scopes_and_a_box_that_keyboards_scroll(parsed):
    n = len(parsed.all("table"))
    assert n == len(parsed.all("caption")) == len(parsed.all("thead")) > 8
    assert {a["scope"] for a in parsed.all("th")} == {"col", "row", "rowgroup"}
    boxes = [a for a in parsed.all("div") if a["class"].startswith("scroll")]
    assert len(boxes) == n + len(parsed.all("img"))
    assert all((a["tabindex"], a["role"]) == ("0", "region") and a["aria-label"] for a in boxes)


@browsers.in_browser
@pytest.mark.parametrize(("width", "scheme"), [(1100, "light"), (375, "dark")])
def test_the_report_fits_the_screen_and_axe_finds_nothing(text, tmp_path, width, scheme):
    path = tmp_path / "report.html"
    path.write_text(text, encoding="utf-8")
    with browsers.running() as browser:
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert browsers.faults(page) == []


def test_figures_have_alternative_texts_and_sizes(parsed):
    images = parsed.all("img")
    assert len(images) == 3 + 2  # synthetic; curves and heatmaps
    assert all(len(a["alt"]) > 40 and int(a["width"]) > 100 and int(a["height"]) > 100 for a in images)
    assert len(parsed.all("figure")) == len(parsed.all("figcaption")) == len(images)


@pytest.mark.parametrize("name", MADE)
def test_every_number_of_the_terminal_is_on_the_page(name, contents, parsed):
    file = io.StringIO()
    show(contents.results[name], Console(file=file, width=1000))
    numbers = set(re.findall(r"[-+±]?\d[\w.+-]*", file.getvalue()))
    assert len(numbers) > 3
    assert {number for number in numbers if number not in parsed.text} == set()


def test_verdicts_are_told_by_a_word_and_a_look(contents, parsed):
    expected = [entry for result in contents.results.values() for entry in ledger(result)]
    found = [verdict for verdict in parsed.verdicts if verdict[0] != "other"]
    assert [word for _, word in found] == [entry.verdict for entry in expected]
    assert len({look for look, _ in found}) == len({word for _, word in found}) > 1
    for entry in expected:
        for part in (entry.claim, entry.source, entry.rule, entry.measured):
            assert part in parsed.text


def test_the_paper_s_word_stands_beside_a_measured_one_that_differs(parsed):
    assert parsed.verdicts.count(("other", "(yes)")) == len(MAPS)
    assert "71 of 72 cells" in parsed.text


def test_words_of_a_corpus_are_escaped_wherever_they_stand(parsed):
    heatmap = parsed.all("img")[-1]["alt"]
    assert all(word in heatmap for word in NASTY)
    assert "failed: no <duc> & no more" in parsed.text


def test_runs_are_listed_with_versions_seeds_scale_and_time(parsed):
    for part in ("2.13.0+cpu", "3.11.7", "3 to 7", "2030-01-31 12:00:00+00:00", "1 h 16 min", "small"):
        assert part in parsed.text


@pytest.mark.parametrize(
    ("name", "scale", "expected"),
    [
        ("synthetic", "small", True), ("synthetic", "paper", False), ("translation", "smoke", True),
        ("real", "small", False), ("real", "smoke", True), ("properties", "small", False),
    ],
)  # fmt: skip
def test_scaled_down_runs_are_marked(name, scale, expected):
    result = MADE[name]()
    result = Result(name, {**result.config, "scale": scale}, 0, result.rows, result.summary, {}, 1.0, WHEN)
    assert registry.scaled_down(result) is expected


def test_the_mark_of_a_scaled_down_run_is_on_the_page(text):
    assert [a for a in Page(text).all("span") if a.get("class") == "tag"] == [{"class": "tag"}] * 2


def test_the_same_results_make_the_same_page_in_any_order(contents, text):
    turned = dict(reversed(contents.results.items()))
    assert page(Contents(turned, missing=contents.missing)) == text


def test_a_heavy_figure_is_a_png(monkeypatch):
    monkeypatch.setattr(figures, "HEAVY", 50_000)
    kinds = [a["src"][:15] for a in Page(page(Contents({"translation": made_translation()}))).all("img")]
    assert kinds == ["data:image/svg+", "data:image/png;"]


def test_figures_of_the_maps_are_explained():
    assert set(map_figures.TEXTS) == set(map_figures.FIGURES)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.46, "0.5 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3600, "1 h 0 min")]
)
def test_a_duration_is_told_as_one_reads_it(seconds, words):
    assert pages._duration(seconds) == words


def test_only_what_was_made_as_html_passes_unescaped():
    assert html.element("p", "<b>", html.Html("<br>"), id='"') == '<p id="&quot;">&lt;b&gt;<br></p>'


# Reading


def run_report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_a_report_is_made_of_files_and_folders(tmp_path):
    made_real().save(tmp_path / "in" / "real.json")
    made_real().save(tmp_path / "real.json")
    (tmp_path / "in" / "other.json").write_text('{"a": 1}')
    (tmp_path / "in" / "notes.txt").write_text("no JSON")
    done = run_report(tmp_path / "in", tmp_path / "real.json", "--out", tmp_path / "new" / "page.html")
    assert done.exit_code == 0, done.output
    assert "left out, as they hold no experiment: other.json" in done.output
    assert "notes.txt" not in done.output
    found = Page((tmp_path / "new" / "page.html").read_text())
    assert {"run-real", "run-real-2"} <= {a["id"] for a in found.all("section")}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"format": "sparsegen res', "whole JSON"),
        (b"\xff\xfe", "whole JSON"),
        (b"[1, 2]", "format 'sparsegen result'"),
        (b'{"format": "another"}', "format 'another'"),
    ],
)
def test_a_torn_or_foreign_file_is_refused_by_name(tmp_path, content, words):
    path = tmp_path / "torn.json"
    path.write_bytes(content)
    done = run_report(path, "--out", tmp_path / "page.html")
    assert done.exit_code == 1
    assert "torn.json" in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.output
    assert not (tmp_path / "page.html").exists()


def test_a_torn_result_in_a_folder_is_refused_too(tmp_path):
    made_real().save(tmp_path / "real.json")
    (tmp_path / "torn.json").write_bytes((tmp_path / "real.json").read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"torn\.json"):
        read([tmp_path])


def test_a_result_of_another_kind_or_version_is_refused_by_name(tmp_path):
    made("toy", {}).save(tmp_path / "toy.json")
    with pytest.raises(ValueError, match=r"experiment.*'toy'.*toy\.json"):
        read([tmp_path / "toy.json"])
    made("real", {"table": []}).save(tmp_path / "real.json")
    with pytest.raises(ValueError, match=r"real\.json.*'largest_gap'"):
        read([tmp_path / "real.json"])


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(ValueError, match="got no JSON file"):
        read([tmp_path])


def test_the_results_of_the_repository_can_be_read_and_benchmarks_are_named():
    found, others = read([RESULTS])
    assert {result.experiment for result in found.results.values()} == set(registry.measured())
    assert found.drawn == ("figures",)
    assert {"maps.json", "attention.json"} <= {path.name for path in others}


# Everything at once


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("SPARSEGEN_DATA", str(tmp_path / "empty"))


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(properties, "MAPS", {"sparsemax": MAPS["sparsemax"]})
    monkeypatch.setattr(properties, "HOURGLASS", ((2, 1.0),))
    monkeypatch.setattr(map_figures, "FIGURES", {"contours": map_figures.contours})
    monkeypatch.setattr(attention_figures, "HEATMAP_ROWS", ("sparsegen-lin",))
    monkeypatch.setattr(generation, "ROWS", {name: generation.ROWS[name] for name in ("softmax", "sparsegen-lin")})
    monkeypatch.setitem(synthetic.SCALES, "smoke", synthetic.Scale((2, 8), (), (200,), 100, 2, (1.0,)))
    monkeypatch.setattr(synthetic, "ALPHA", 1e-2)
    monkeypatch.setattr(synthetic, "TOLERANCE", 1e-2)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # many times as fast where other tests keep the cores busy
    yield
    torch.set_num_threads(before)


def run_all(out, *more):
    return CliRunner().invoke(
        app, ["reproduce", "all", "--scale", "smoke", "--jobs", "1", "--out", str(out), *map(str, more)]
    )


@pytest.mark.slow
def test_everything_runs_without_data_and_says_what_is_left_out(tmp_path, no_data, tiny):
    done = run_all(tmp_path / "out")
    assert done.exit_code == 0, done.output
    names = ["properties", "synthetic", "numbers"]
    assert sorted(path.stem for path in (tmp_path / "out").glob("*.json")) == sorted(names)
    for name in ("real left out: Mulan", "translation left out: Multi30k", "summarization left out: Gigaword"):
        assert done.output.count(name) == 2  # in its turn, and at the end
    assert f"wrote {tmp_path / 'out' / 'report.html'}" in done.output
    first = (tmp_path / "out" / "report.html").read_text()
    found = Page(first)
    assert {"figures", *(f"run-{name}" for name in names)} <= {a["id"] for a in found.all("section")}
    assert not found.wrong
    again = run_all(tmp_path / "out")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "out" / "report.html").read_text() == first  # times too: nothing was done again


@pytest.fixture
def made_parts(monkeypatch):
    """Instant runs; those named in the set that is returned fail, and the options of each are kept."""
    failing, seen = {}, []

    def runner(experiment):
        def run_it(*, store, progress, **options):
            seen.append((store.name, options))
            if store.name in failing:
                raise failing[store.name]
            return MADE.get(experiment, made_real)()

        return run_it

    for name, experiment in registry.measured().items():
        instant = replace(experiment, run=runner(name), figures=lambda result: ())
        monkeypatch.setitem(registry._added, name, instant)
    monkeypatch.setattr(map_figures, "FIGURES", {"contours": map_figures.contours})
    return failing, seen


def test_a_part_that_fails_is_told_and_the_others_remain(tmp_path, made_parts, no_data):
    failing, _ = made_parts
    failing["synthetic"] = FileNotFoundError("no <file> here")
    failing["properties"] = ZeroDivisionError("by zero")
    done = run_all(tmp_path / "out")
    assert done.exit_code == 1
    assert "synthetic failed: no <file> here" in done.output
    assert "properties failed: ZeroDivisionError: by zero" in done.output
    assert "Traceback" not in done.output
    found = Page((tmp_path / "out" / "report.html").read_text())
    assert "failed: no <file> here" in found.text
    assert "by zero" in found.text
    sections = {a["id"] for a in found.all("section")}
    assert {"run-numbers", "figures"} <= sections
    assert not {"run-synthetic", "run-properties"} & sections


def test_with_data_both_translations_run_under_names_of_their_own(tmp_path, made_parts, no_data):
    _, seen = made_parts
    done = run_all(tmp_path / "out", "--data", tmp_path, "--seed", 5)
    assert done.exit_code == 0, done.output
    names = ["properties", "synthetic", "real", "numbers", "translation", "summarization"]
    assert [name for name, _ in seen] == names
    assert all((tmp_path / "out" / f"{name}.json").is_file() for name in names)
    assert dict(seen)["numbers"]["corpora"] == ("numbers-fr-en",)
    assert "corpora" not in dict(seen)["translation"]
    assert all(options["seed"] == 5 and options["jobs"] == 1 for _, options in seen)


def test_a_part_runs_where_some_of_its_data_is_found(tmp_path, made_parts, no_data):
    _, seen = made_parts
    (tmp_path / "empty" / "multilabel").mkdir()
    (tmp_path / "empty" / "multilabel" / "emotions.xml").write_text("")
    run_all(tmp_path / "out")
    assert [name for name, _ in seen] == ["properties", "synthetic", "real", "numbers"]


def test_an_interrupted_run_says_what_is_kept(tmp_path, made_parts, no_data):
    failing, _ = made_parts
    failing["numbers"] = KeyboardInterrupt()
    done = run_all(tmp_path / "out")
    assert done.exit_code == 130
    assert "Finished: properties, synthetic." in done.output
    assert "goes on from there" in done.output


def test_a_run_from_the_store_keeps_the_times_of_the_work(tmp_path, made_parts):
    first = made_real()
    result = Result("real", first.config, first.seed, first.rows, first.summary, first.versions, 0.1, "2031-01-01")
    first.save(tmp_path / "real.json")
    assert running._earlier(result, tmp_path / "real.json") == first
    other = Result("real", first.config, 9, first.rows, first.summary, first.versions, 0.1, "2031-01-01")
    assert running._earlier(other, tmp_path / "real.json") is other
    (tmp_path / "real.json").write_text("torn")
    assert running._earlier(result, tmp_path / "real.json") is result
