"""The report: one page that stands alone, has every number of the terminal, and says what it does not have."""

from __future__ import annotations

import io
import itertools
import re

import pytest
from rich.console import Console

import browsers
from made_results import (
    MADE,
    NASTY,
    WHEN,
    Page,
    made_translation,
)
from sparsegen._table.maps import MAPS
from sparsegen.experiments import registry
from sparsegen.experiments.ledger import ledger
from sparsegen.experiments.store import Result
from sparsegen.experiments.table1 import map_figures
from sparsegen.report import figures, html
from sparsegen.report import page as pages
from sparsegen.report.page import page
from sparsegen.report.reading import Contents, Missing
from sparsegen.report.terminal import show


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
