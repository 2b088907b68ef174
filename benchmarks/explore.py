"""How long the page takes to answer a hand: `python benchmarks/explore.py`, with Debian's chromium.

Each time is from an event to the end of what it makes the page draw. Writes results/explore.json.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from sparsegen._table.maps import MAPS
from sparsegen.experiments.store import to_json, versions, write_text
from sparsegen.explore import address, page

RESULTS = Path(__file__).parents[1] / "results"
TURNS = 40
MOVE_LAM = """(i) => { const dial = document.getElementById("lam"); dial.value = -3 + 0.09 * i;
  const start = performance.now(); dial.dispatchEvent(new Event("input")); return performance.now() - start; }"""
MOVE_SCORE = """(i) => { const bar = document.querySelector("#scores .score"), key = i % 2 ? "ArrowUp" : "ArrowDown";
  const start = performance.now(); bar.dispatchEvent(new KeyboardEvent("keydown", { key }));
  return performance.now() - start; }"""
LOAD = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"


def times(browser: Any, file: Path, name: str) -> dict[str, float]:
    tab = browser.new_page(viewport={"width": 1200, "height": 900})
    tab.goto(address(file, {"map": name}))
    found = {"load_ms": tab.evaluate(LOAD)}
    for what, move in (("dial", MOVE_LAM), ("score", MOVE_SCORE)):
        spent = sorted(tab.evaluate(move, i) for i in range(TURNS))
        found |= {f"{what}_median_ms": statistics.median(spent), f"{what}_worst_ms": spent[-1]}
    tab.close()
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "explore.html"
        file.write_text(page(), encoding="utf-8")
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        result = {
            "versions": versions(),
            "browser": browser.version,
            "bytes": file.stat().st_size,
            "turns": TURNS,
            "maps": {},
        }
        result["maps"] = {name: times(browser, file, name) for name in MAPS}
        browser.close()
    worst = max(v for found in result["maps"].values() for key, v in found.items() if key != "load_ms")
    for name, found in result["maps"].items():
        print(f"{name:24}", "  ".join(f"{key} {value:.0f}" for key, value in found.items()))
    print(f"{result['bytes']} bytes; the slowest answer took {worst:.0f} ms")
    write_text(RESULTS / "explore.json", to_json(result | {"worst_ms": worst}, indent=1) + "\n")


if __name__ == "__main__":
    main()
