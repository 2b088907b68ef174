"""The built documentation: every link leads somewhere, every public name is there, search and pages work offline.

`make docs` builds the site and runs this with the folder in SPARSEGEN_SITE; without it there is nothing to look at.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import browsers

SITE = Path(os.environ.get("SPARSEGEN_SITE") or "no-site").resolve()
pytestmark = pytest.mark.skipif(not os.environ.get("SPARSEGEN_SITE"), reason="make docs builds the site and runs this")

PLACES = (
    "sparsegen",
    "sparsegen.torch",
    "sparsegen.torch.distributed",
    "sparsegen.jax",
    "sparsegen.sklearn",
    "sparsegen.transformers",
    "sparsegen.properties",
)
LOOKED_AT = (
    "index.html",
    "guides.html",
    "from-softmax.html",
    "maps.html",
    "math.html",
    "performance.html",
    "reliability.html",
    "play.html",
    "api.html",
    "api/sparsegen.torch.html",
    "api/sparsegen.sparsehourglass.html",
    "api/sparsegen.sklearn.SparseMultilabelClassifier.html",
    "gallery/index.html",
    "gallery/plot_dial.html",
    "changes.html",
    "decisions.html",
)


class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.places |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.loaded.append(found["src"])
        if tag == "link" and found.get("href") and found.get("rel") != "canonical":
            self.loaded.append(found["href"])


@cache
def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def pages() -> list[Path]:
    return sorted(path for path in SITE.rglob("*.html") if "_static" not in path.parts)


def dead(path: Path) -> list[str]:
    """Links and files of a page that lead nowhere in the site."""
    page, wrong = read(path), []
    for link in [*page.links, *page.loaded]:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        anchor = unquote(parts.fragment)
        if not target.is_file() or (
            anchor and target.suffix == ".html" and anchor not in read(target).places and target.name != "explore.html"
        ):
            wrong.append(link)
    return wrong


def test_the_site_has_many_pages_and_no_dead_link():
    found = pages()
    assert len(found) > 150
    assert {path.relative_to(SITE).as_posix(): links for path in found if (links := dead(path))} == {}


def test_a_dead_link_is_seen(tmp_path):
    page = tmp_path / "a.html"
    page.write_text('<p id="here"><a href="#here"></a><a href="#gone"></a><a href="b.html"></a><img src="c.png">')
    assert dead(page) == ["#gone", "b.html", "c.png"]


def test_no_page_loads_anything_from_elsewhere():
    away = {src for path in pages() for src in read(path).loaded if urlsplit(src).scheme in ("http", "https")}
    assert away == set()


def test_every_public_name_is_in_the_reference():
    for place in PLACES:
        for name in importlib.import_module(place).__all__:
            named = [SITE / "api" / f"{place}.{name}{end}.html" for end in ("", "-class")]
            assert any(f"{place}.{name}" in read(path).places for path in named if path.exists()), f"{place}.{name}"


def test_no_two_pages_differ_in_case_alone():
    names = [path.relative_to(SITE).as_posix().lower() for path in pages()]
    assert len(names) == len(set(names))


def test_examples_of_the_gallery_have_their_pictures():
    for script in (Path(__file__).parents[1] / "examples").glob("plot_*.py"):
        page = SITE / "gallery" / f"{script.stem}.html"
        assert any(f"sphx_glr_{script.stem}_001" in src for src in read(page).loaded), script.stem


def test_nothing_of_the_machine_that_built_it_is_shown():
    root = str(Path(__file__).resolve().parents[1])
    assert [path for path in pages() if root in path.read_text(encoding="utf-8")] == []


# In a browser


@pytest.fixture(scope="module")
def browser():
    with browsers.running() as found:
        yield found


@pytest.fixture
def visit(browser):
    """Open a page of the site from its folder; what goes wrong in it, or leaves it, fails the test."""
    wrong, contexts = [], []

    def open_it(address, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: wrong.append(request.url) if request.url.startswith("http") else None)
        page.goto(f"{SITE.as_uri()}/{address}")
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert wrong == []


@browsers.in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1200])
@pytest.mark.parametrize("address", LOOKED_AT)
def test_a_page_fits_and_is_accessible(visit, address, width, scheme):
    page = visit(address, viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert browsers.faults(page) == []


@browsers.in_browser
@pytest.mark.parametrize(("words", "found"), [("lam_for_support", "lam_for_support"), ("label sets", "Label sets")])
def test_search_works_without_a_server(visit, words, found):
    page = visit(f"search.html?q={words.replace(' ', '+')}", viewport={"width": 1200, "height": 900})
    page.wait_for_selector("#search-results li a")
    assert any(found in text for text in page.locator("#search-results li a").all_inner_texts())


@browsers.in_browser
def test_the_page_to_play_with_works_inside_the_site(visit):
    page = visit("play.html", viewport={"width": 1200, "height": 900})
    frame = page.frame_locator("iframe.explore")
    frame.locator("[data-map=sparsemax]").first.wait_for()
    assert frame.locator("#text").input_value().count(",") >= 2
