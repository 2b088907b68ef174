"""A long run of both drivers, kept in results/fuzz.json: so many rows of each name and engine.

    python fuzz/long_run.py --rows 1000000

It can be stopped at any time and started again: each piece is added to what is there, with seeds that follow. The file
says of each job which sources it ran on; what others have been through does not count, and the job starts afresh.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DRIVER = ROOT / "build" / "fuzz" / "release" / "kernel"
FAMILIES = ("project", "vjp", "means", "maps", "hinge", "attention", "pool")
PIECE = 100_000  # rows of each name and engine between two looks at the file


def sources() -> str:
    """A fingerprint of what is tested."""
    found = hashlib.sha256()
    package = ROOT / "src" / "sparsegen"
    folders = ("_kernel", "_table", "numpy", "torch")
    for path in sorted(path for folder in folders for path in (package / folder).glob("*.[pch]*")):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def compiler() -> str:
    """The first line a compiler says of itself."""
    done = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0] if done.stdout else "unknown"


def fresh() -> dict[str, Any]:
    """A result without any rows."""
    from sparsegen.bench.measure import machine

    native = DRIVER.exists() and "avx512vl" in Path("/proc/cpuinfo").read_text()
    about = machine() | {"compiler": compiler(), "avx512": "native" if native else "emulated"}
    return {"machine": about, "sources": {}, "rows": {}, "seeds": {}, "violations": []}


def load(path: Path) -> dict[str, Any]:
    """What a file has, or nothing yet."""
    return json.loads(path.read_text()) if path.exists() else fresh()


def of_job(name: str, job: str) -> bool:
    """Is a name that was counted one of this job?"""
    return name == job or name.startswith(f"{job} ")


def renew(result: dict[str, Any], driver: str, job: str) -> None:
    """Forget a job that ran on other sources."""
    key = f"{driver} {job}"
    if result["sources"].get(key) == sources():
        return
    rows = result["rows"].get(driver, {})
    for name in [name for name in rows if of_job(name, job)]:
        del rows[name]
    result["seeds"].pop(key, None)
    result["violations"] = [text for text in result["violations"] if not of_job(text.split(" is wrong")[0], job)]
    result["sources"][key] = sources()


def save(path: Path, result: dict[str, Any]) -> None:
    """Whole or not at all."""
    from sparsegen.experiments.store import write_text

    write_text(path, json.dumps(result, indent=1, sort_keys=True) + "\n")


def add(result: dict[str, Any], driver: str, piece: dict[str, Any]) -> None:
    """Add the counts of a piece, name by name, engine by engine, storage by storage."""
    rows = result["rows"].setdefault(driver, {})
    for key, count in piece["rows"].items():
        name, engine, storage = key.split("/")
        storages = rows.setdefault(name, {}).setdefault(engine, {})
        storages[storage] = storages.get(storage, 0) + count
    result["violations"] += piece["failures"]


def fewest(result: dict[str, Any], driver: str, job: str) -> int:
    """Rows of the name and engine of a job that has the fewest; 0 before its first piece."""
    found = [
        sum(storages.values())
        for name, engines in result["rows"].get(driver, {}).items()
        if of_job(name, job)
        for storages in engines.values()
    ]
    return min(found, default=0)


def build() -> None:
    """The kernel's driver, of the sources as they are."""
    subprocess.run(["make", "-s", "-C", str(ROOT / "fuzz"), "release"], check=True)


def run_piece(command: list[str], seed: int, rows: int) -> dict[str, Any]:
    """One run of a driver; a crash is a violation too."""
    done = subprocess.run(
        [*command, "--seed", str(seed), "--rows", str(rows), "--json"], capture_output=True, text=True, check=False
    )
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return {"rows": {}, "failures": [f"{' '.join(command[1:])} --seed {seed}: {done.stderr.strip()[-2000:]}"]}


def jobs(only: list[str] | None) -> Iterator[tuple[str, str, list[str]]]:
    """Driver, name and command."""
    sys.path.insert(0, str(Path(__file__).parent))
    from front_ends import NAMES

    everything = [("kernel", f, [str(DRIVER), "--family", f]) for f in FAMILIES]
    front_ends = str(Path(__file__).parent / "front_ends.py")
    everything += [("front ends", name, [sys.executable, front_ends, "--map", name]) for name in NAMES]
    return (job for job in everything if not only or job[1] in only)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each name and engine")
    parser.add_argument("--only", action="append", help="this family of the kernel's driver, map, loss or attention")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "fuzz.json")
    args = parser.parse_args(arguments)
    chosen = list(jobs(args.only))
    if any(driver == "kernel" for driver, _, _ in chosen):
        build()
    result = load(args.out)
    for driver, job, command in chosen:
        renew(result, driver, job)
        while (done := fewest(result, driver, job)) < args.rows:
            key = f"{driver} {job}"
            seed = result["seeds"].get(key, 0)
            piece = run_piece(command, seed, min(PIECE, args.rows - done))
            add(result, driver, piece)
            result["seeds"][key] = seed + 1  # the next to be taken
            save(args.out, result)
            print(f"{key}: {fewest(result, driver, job)} rows, {len(result['violations'])} violations", flush=True)
            if piece["failures"]:
                break
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
