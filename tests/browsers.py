"""The browser the tests of pages run in: one that is installed; without it they are skipped."""

import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no browser: install the package chromium (Debian, Ubuntu)")


@contextmanager
def running():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def faults(page):
    """What axe-core finds on a page. It does not fetch style sheets again, which a page in a folder may not do."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, options={"preload": False}).response["violations"]
    return [(v["id"], v["impact"], v["nodes"][0]["html"][:200]) for v in found]
