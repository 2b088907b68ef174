"""Writes what results/ holds into README.md, docs/*.md and docs/figures: `make docs-numbers`.

See marks.py for how numbers are marked in a text, pictures.py for how figures know what they were drawn from.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import findings  # noqa: F401 (registers its marks)
import gpu  # noqa: F401
import jax_speed  # noqa: F401
import performance  # noqa: F401
import pictures
import reliability  # noqa: F401
from marks import ROOT, fill, read

from sparsegen.experiments.drawings import rendered
from sparsegen.experiments.store import whole_file, write_text


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def draw(name: str) -> None:
    """Draw a figure again if its file has changed."""
    file, made = pictures.PICTURES[name]
    path, stamp = pictures.path_of(name), pictures.stamp(file)
    if not path.exists() or pictures.stamp_of(path.read_bytes()) != stamp:
        with whole_file(path) as png:
            png.write(pictures.stamped(rendered(made(read(file)), "png"), stamp))
        print(f"wrote {path.relative_to(ROOT)}")


def main() -> None:
    for name in pictures.PICTURES:
        draw(name)
    once = cache(read)
    for path in documents():
        old = path.read_text()
        new = fill(old, once)
        if new != old:
            write_text(path, new)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
