"""A machine that has nothing: clone, set up and try the project there, with nothing cached and nothing inherited.

    python tools/fresh.py --python 3.11 --targets .venv/.installed,demo

Each target of make is run in an empty folder under an environment of a few variables. Its time, the megabytes that pip
fetched and left on the disk, and the longest silence go into results/reliability.json.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import record

ROOT = record.ROOT
UNITS = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
FETCHED = re.compile(r"Downloading \S+ \(([\d.]+) (bytes|kB|MB|GB)\)")
# Where packages come from and how the network is reached belongs to the machine, not to who is logged in.
KEPT = (
    "PATH",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_TRUSTED_HOST",
    "PYENV_VERSION",
    "SSL_CERT_FILE",
)


def environment(home: str) -> dict[str, str]:
    """What a new user's shell has; pip may cache nothing."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return kept | {"HOME": home, "LANG": "C.UTF-8", "PIP_NO_CACHE_DIR": "1"}


def fetched(lines: list[str]) -> float:
    """Bytes that pip says it downloaded.

    >>> fetched(["  Downloading a.whl (1.5 MB)", "Collecting b", "  Downloading b.whl (20 kB)"])
    1520000.0
    """
    return sum(float(found[1]) * UNITS[found[2]] for line in lines if (found := FETCHED.search(line)))


def spoken(process: subprocess.Popen[str]) -> Iterator[tuple[float, str]]:
    """The lines of a process, each with the silence before it."""
    assert process.stdout is not None  # a pipe was asked for
    last = time.perf_counter()
    for line in process.stdout:
        now = time.perf_counter()
        yield now - last, line
        last = now


def run(target: str, folder: Path, home: str, python: str) -> dict[str, Any]:
    """One target of make; ends the program if that fails."""
    start, lines, silence = time.perf_counter(), [], 0.0
    with subprocess.Popen(
        ["make", target, f"PYTHON={python}"], cwd=folder, env=environment(home), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        for before, line in spoken(process):
            lines.append(line)
            silence = max(silence, before)
    if process.returncode:
        sys.exit(f"make {target} failed:\n" + "".join(lines[-30:]))
    return {
        "seconds": round(time.perf_counter() - start), "longest_silence_seconds": round(silence),
        "fetched_mb": round(fetched(lines) / 1e6), "lines": len(lines),
    }  # fmt: skip


def size_mb(folder: Path) -> int:
    """What lies in a folder, links not followed."""
    return round(sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink()) / 1e6)


def main() -> None:
    """Clone, run the targets, keep what was counted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", help="one that is on PATH")
    parser.add_argument("--targets", default=".venv/.installed,demo", help="of make, in this order")
    parser.add_argument("--out", type=Path, default=record.PATH)
    options = parser.parse_args()
    python = shutil.which(f"python{options.python}")
    if python is None:
        sys.exit(f"sparsegen: --python must be one that is on PATH, got {options.python!r}.")
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "sparsegen")
        subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
        found: dict[str, Any] = {target: run(target, folder, home, python) for target in options.targets.split(",")}
        found["environment_mb"] = size_mb(folder / ".venv")
    print(found)
    record.keep(f"fresh {options.python}", found, options.out)


if __name__ == "__main__":
    main()
