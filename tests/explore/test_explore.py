"""The page to play with: the same numbers as the library, by mouse, finger and keyboard, on any screen."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import browsers
import sparsegen as sg
from sparsegen import explore
from sparsegen._table.maps import MAPS

ROOT = Path(__file__).parents[2]
START = np.array([1.2, 0.9, 0.5, 0.3, 0.1])
CONTROLS = {"lam": 0.5, "q": 0.5, "temperature": 1.0, "alpha": 1.5}


@pytest.fixture(scope="module")
def browser():
    with browsers.running() as found:
        yield found


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "explore.html"
    path.write_text(explore.page(), encoding="utf-8")
    return path


@pytest.fixture
def visit(browser, file):
    """Open the page at a state; whatever goes wrong in it, or leaves it, fails the test."""
    wrong, contexts = [], []

    def open_it(shown=None, **options):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text))
        page.on("request", lambda request: wrong.append(request.url) if not request.url.startswith("file:") else None)
        page.goto(explore.address(file, shown or {}))
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert wrong == []


def shown_p(page, name):
    """The probabilities a card shows, as text."""
    return page.locator(f'[data-map="{name}"] li > span:last-child').all_inner_texts()


def shown_scores(page):
    return [float(v) for v in page.input_value("#text").split(",")]


def test_the_page_is_one_small_file():
    page = explore.page()
    assert len(page.encode()) < 500_000
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|/\*\{|<!--\{", page)
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_the_page_in_the_docs_is_this_one():
    assert (ROOT / "docs" / "explore.html").read_text(encoding="utf-8") == explore.page(), (
        "run: sparsegen explore --no-open --out docs/explore.html"
    )


def test_the_page_has_every_map_and_knows_its_transform_and_radius():
    page, code = explore.page(), (ROOT / "src/sparsegen/explore/maps.js").read_text()
    rows = json.loads(re.search(r'type="application/json">(.*?)</script>', page, re.S)[1])
    assert [row["name"] for row in rows] == list(MAPS)
    for row in rows:
        assert f"    {row['transform']}: (z)" in code
        if isinstance(row["radius"], str):
            assert f"    {row['radius']}: (z" in code


def random_case(rng):
    n = rng.integers(2, 13)
    kind = rng.integers(4)
    scale = 10.0 ** rng.uniform(-3, 3)
    z = rng.normal(size=n) * scale
    if kind == 0:
        z = np.round(z / scale) * scale  # ties
    elif kind == 1:
        z = abs(z)  # inside the domains of log and sum-normalization
    elif kind == 2:
        z = z + 10.0 ** rng.uniform(0, 5)  # an offset
    lam = 1 - 10.0 ** rng.uniform(-2, 3)
    q = rng.choice([0.0, np.inf, 10.0 ** rng.uniform(-3, 3)])
    alpha = float(rng.choice([1.0, 2.0, rng.uniform(1, 3)]))
    return z, {"lam": lam, "q": float(q), "temperature": 10.0 ** rng.uniform(-1, 2), "alpha": alpha}


def by_library(name, z, controls):
    """p and threshold, or None where the library refuses the row."""
    given = {key: controls[key] for key in MAPS[name].controls}
    try:
        p, info = getattr(sg, name)(z, return_info=True, **given)
    except ValueError:
        return None
    return p, float(info.threshold)


def same(found, expected, scale):
    if expected is None:
        return "outside" in found
    p, threshold = expected
    tau = float(found["tau"])
    ours = np.array(found["p"])
    close = np.allclose(ours, p, rtol=1e-9, atol=1e-9) and found["size"] == np.count_nonzero(ours)
    zeros = np.maximum(ours, p)[(ours > 0) != (p > 0)]  # an entry on the threshold may fall to either side
    near = tau == threshold or abs(tau - threshold) <= 1e-9 * max(abs(threshold), scale)
    return close and near and bool(np.all(zeros < 1e-12))


JS = """(cases) => {
  const maps = JSON.parse(document.getElementById("table").textContent);
  const number = (v) => (v === "Infinity" ? Infinity : v);
  return cases.map(([z, controls]) => Object.fromEntries(maps.map((map) => {
    const given = Object.fromEntries(Object.entries(controls).map(([k, v]) => [k, number(v)]));
    const found = sparsegen.apply(map, z, given);
    return [map.name, { ...found, tau: String(found.tau).replace("Infinity", "inf") }];
  })));
}"""


@browsers.in_browser
def test_hundreds_of_random_cases_are_as_in_numpy(visit):
    rng = np.random.default_rng(0)
    cases = [random_case(rng) for _ in range(300)]
    spelled = [[z.tolist(), {k: "Infinity" if v == np.inf else v for k, v in c.items()}] for z, c in cases]
    answers = visit().evaluate(JS, spelled)
    compared = 0
    for (z, controls), answer in zip(cases, answers):
        for name in MAPS:
            expected = by_library(name, z, controls)
            assert same(answer[name], expected, abs(z).max()), (name, z.tolist(), controls, answer[name], expected)
            compared += expected is not None
    assert compared > 3000  # most cases are inside the domains


@browsers.in_browser
def test_the_cards_show_what_the_library_gives(visit):
    page = visit()
    for name, row in MAPS.items():
        p = getattr(sg, name)(START, **{key: CONTROLS[key] for key in row.controls})
        shown = shown_p(page, name)
        assert [text == "0" for text in shown] == [v == 0 for v in p]
        np.testing.assert_allclose([float(text) for text in shown], p, rtol=0, atol=5.0001e-4)  # three digits
    assert page.locator("#chosen-title").inner_text() == "sparsegen-lin"
    formula = page.locator("#formula").inner_text()
    assert "r = 1 − λ = 1 − 0.5 = 0.5" in formula
    assert "τ = (1.2 + 0.9 − 0.5)/2 = 0.8" in formula


@browsers.in_browser
def test_what_is_outside_a_domain_is_said(visit):
    page = visit({"z": "-1,-2,0", "q": "0.1", "map": "sparsecone"})
    card = page.locator('[data-map="sparsecone"]').inner_text()
    assert "Not defined here: it needs S > -Kq." in card
    assert shown_p(page, "sparsecone") == ["–", "–", "–"]
    assert "Not defined" in page.locator("#formula").inner_text()
    assert "not defined" in page.locator("#plane").get_attribute("aria-label")


@browsers.in_browser
def test_a_bar_is_dragged_with_the_mouse(visit):
    page = visit()
    box = page.locator("#scores .score").nth(4).locator(".hit").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 10)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] - 200)  # beyond the end stays at the end
    page.mouse.up()
    assert shown_scores(page) == [1.2, 0.9, 0.5, 0.3, 3.0]
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)  # let go
    assert shown_scores(page)[4] == 3.0
    assert shown_p(page, "sparsemax") == ["0", "0", "0", "0", "1.000"]


@browsers.in_browser
def test_a_bar_is_dragged_with_a_finger(visit):
    page = visit(viewport={"width": 375, "height": 700}, has_touch=True)
    box = page.locator("#scores .score").nth(0).locator(".hit").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"]
    touch = page.context.new_cdp_session(page)
    down = [("touchMove", [(x, y + part * (box["height"] - 6))]) for part in (0.4, 0.6, 0.8, 1.0)]
    for kind, points in [("touchStart", [(x, y + 60)]), *down, ("touchEnd", [])]:
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": a, "y": b} for a, b in points]})
    assert shown_scores(page)[0] == pytest.approx(-3.0, abs=0.05)
    assert page.evaluate("scrollY") == 0  # the page stood still under the finger


@browsers.in_browser
def test_the_pictures_are_dragged_too(visit):
    page = visit({"z": "1,0.5,0.2", "map": "sparsemax"})
    box = page.locator("#plane").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.75, box["y"] + box["height"] * 0.25)
    assert shown_scores(page) == pytest.approx([1.0, 1.0, 0.2], abs=0.03)
    box = page.locator("#triangle").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)  # its centre: all equal
    assert np.ptp(shown_scores(page)) < 0.05
    assert "3 nonzero" in page.locator("#triangle").get_attribute("aria-label")


@browsers.in_browser
def test_the_keyboard_does_all(visit):
    page = visit()
    page.locator("#scores .score").first.focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Shift+ArrowUp")
    assert shown_scores(page)[0] == 1.31
    page.keyboard.press("Home")
    assert shown_scores(page)[0] == -3
    page.keyboard.press("Tab")
    page.keyboard.press("PageUp")
    assert shown_scores(page)[:2] == [-3, 1.9]
    page.locator("#lam").focus()
    page.keyboard.press("End")
    assert page.input_value("#lam-number") == "0.99"
    page.locator("#q").focus()
    page.keyboard.press("End")
    assert page.input_value("#q-number") == "∞"
    page.locator('[data-map="sparsegen_lin"] input').focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#chosen-title").inner_text() == "sparsegen-exp"


@browsers.in_browser
def test_numbers_that_cannot_be_are_marked_and_not_taken(visit):
    page = visit()
    before = shown_p(page, "sparsegen_lin")
    for field, bad in (("#lam-number", "1"), ("#lam-number", ""), ("#q-number", "-1"), ("#temperature-number", "0")):
        page.fill(field, bad)
        assert page.get_attribute(field, "aria-invalid") == "true", (field, bad)
    page.fill("#text", "1.2, hello")
    assert page.get_attribute("#text", "aria-invalid") == "true"
    assert shown_p(page, "sparsegen_lin") == before
    page.locator("#shuffle").focus()
    assert page.input_value("#text") == "1.2, 0.9, 0.5, 0.3, 0.1"
    assert page.input_value("#q-number") == "0.5"
    page.fill("#lam-number", "−3")
    assert shown_p(page, "sparsegen_lin") == [f"{v:.3f}" for v in sg.sparsegen_lin(START, lam=-3)]


@browsers.in_browser
def test_a_state_is_shared_by_its_link(visit, file):
    page = visit({"z": "1.4,-1.25,2", "lam": "-2.5", "q": "inf", "temperature": "0.3", "map": "sparsegen_sq"})
    page.locator("#more").click()
    link = page.input_value("#link")
    assert link == page.url
    again = visit()
    again.goto(link)
    again.reload()
    for name in MAPS:
        assert shown_p(again, name) == shown_p(page, name)
    assert again.input_value("#text") == "1.4, -1.25, 2, 0"
    assert [again.input_value(f"#{name}-number") for name in CONTROLS] == ["−2.5", "∞", "0.3", "1.5"]
    assert again.locator("#chosen-title").inner_text() == "sparsegen-sq"
    code = again.input_value("#code")
    assert code == "sg.sparsegen_sq([1.4, -1.25, 2, 0], lam=-2.5)"
    np.testing.assert_allclose(eval(code, {"sg": sg, "np": np}), sg.sparsegen_sq([1.4, -1.25, 2, 0], lam=-2.5))


@browsers.in_browser
def test_a_page_opens_at_the_state_it_was_written_with(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(explore.page(explore.state("2 1 0.5", "sparsegen-sq", q=2.0)), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    assert shown_scores(page) == [2, 1, 0.5]
    assert page.input_value("#q-number") == "2"
    assert page.locator("#chosen-title").inner_text() == "sparsegen-sq"
    page.goto(path.as_uri() + "#z=3,1")  # an address goes first
    page.reload()
    assert shown_scores(page) == [3, 1]
    page.close()


@browsers.in_browser
def test_a_bad_link_is_told_and_the_rest_of_it_used(visit):
    page = visit({"z": "1,2,oops", "lam": "5", "q": "0.25", "map": "<img src=x onerror=alert(1)>"})
    said = page.locator("#notice").inner_text()
    assert "lam = 5 (it must be below 1)" in said
    assert "oops" in said
    assert "<img" in said
    assert page.input_value("#q-number") == "0.25"
    assert page.input_value("#text") == "1.2, 0.9, 0.5, 0.3, 0.1"


@browsers.in_browser
def test_scores_come_and_go(visit):
    page = visit()
    for _ in range(20):
        page.locator("#more").click()
    assert len(shown_scores(page)) == 12
    for _ in range(20):
        page.locator("#fewer").click()
    assert len(shown_scores(page)) == 2
    assert "three scores" in page.locator("#triangle").get_attribute("aria-label")


@browsers.in_browser
@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (375, "dark"),
        (1200, "light"),
        pytest.param(375, "light", marks=pytest.mark.slow),
        pytest.param(1200, "dark", marks=pytest.mark.slow),
    ],
)
def test_no_layout_breaks_and_axe_finds_nothing(visit, width, scheme):
    many = "123456.75,-99999.5,0.001,1,2,3,4,5,6,7,8,-9"
    page = visit({"z": many, "lam": "-123456.789"}, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert browsers.faults(page) == []
    page.goto(explore.address(Path(page.url.split("#")[0].removeprefix("file://")), {}))
    assert browsers.faults(page) == []


@pytest.fixture
def command(monkeypatch, tmp_path):
    from sparsegen import cli

    opened = []
    monkeypatch.setattr("webbrowser.open", lambda link: opened.append(link) or True)
    monkeypatch.chdir(tmp_path)
    return lambda *words: (CliRunner().invoke(cli.app, ["explore", *words]), opened)


def test_the_command_writes_the_page_and_opens_it(command, tmp_path):
    done, opened = command("--scores", "1.2, 0.9", "--lam", "0.25", "--mapping", "sparsemax")
    path = tmp_path / "sparsegen-explore.html"
    assert done.exit_code == 0
    assert path.read_text(encoding="utf-8") == explore.page({"z": "1.2,0.9", "map": "sparsemax", "lam": "0.25"})
    assert opened == [f"{path.as_uri()}#z=1.2%2C0.9&map=sparsemax&lam=0.25"]


def test_the_command_can_leave_the_browser_alone(command, tmp_path):
    done, opened = command("--no-open", "--out", "deep/page.html")
    assert (tmp_path / "deep" / "page.html").exists()
    assert opened == []
    assert "open it in a browser: file://" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--lam", "1"), "lam must be a number below 1"),
        (("--q", "-0.5"), "q must be a number at least 0"),
        (("--temperature", "inf"), "temperature must be a positive, finite number"),
        (("--mapping", "soft"), "mapping must be one of 'sparsemax'"),
        (("--scores", "1"), "scores must be 2 to 12 numbers"),
        (("--scores", "1e7,1"), "from -1e+06 to 1e+06"),
        (("--scores", "1,x"), "scores must be 2 to 12 numbers"),
    ],
)
def test_the_command_refuses_what_cannot_be_shown(command, tmp_path, words, said):
    done, opened = command(*words)
    assert done.exit_code == 1
    assert said in done.output
    assert opened == []
    assert list(tmp_path.iterdir()) == []
