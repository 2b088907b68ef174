"""What is done to break commands and readers, counted: kill -9, full and read-only disks, damaged and hostile files.

    python tools/trials.py kill --trials 3
    python tools/trials.py disk
    python tools/trials.py damage --tries 300

Counts go into results/reliability.json; a trial that fails is shown and ends the program with 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import record
from sparsegen.experiments.labels import documents
from sparsegen.experiments.multilabel import mulan
from sparsegen.experiments.seq2seq import checkpoints
from sparsegen.experiments.store import CellStore, Result
from sparsegen.torch import distributed as sgd

PROGRAM = [sys.executable, "-W", "ignore", "-m", "sparsegen"]
SMALL = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
COMMANDS = {
    "reproduce synthetic": "reproduce synthetic --scale smoke --jobs 1 --out",
    "reproduce translation": "reproduce translation --scale smoke --corpora numbers-fr-en "
    "--maps softmax,sparsegen-lin --jobs 1 --out",
    "train": "train --corpus numbers-fr-en --limit 1500 --epochs 3 --hidden 32 --embedding 32 --out",
    "train-labels": "train-labels --documents 3000 --labels 5000 --features 5000 --epochs 2 --save-every 10 --out",
}
CHANGES = re.compile("time|seconds|started|versions|mib|path|folder")  # what differs between equal runs


# What a run has found, without its times


def numbers(value: Any) -> Any:
    """A value without what differs between equal runs, tensors as digests of their bits."""
    if isinstance(value, torch.Tensor):
        bits = value.detach().contiguous().view(torch.uint8) if value.dim() else value.detach().reshape(1)
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(bits.numpy().tobytes()).hexdigest()}"
    if isinstance(value, dict):
        return {str(key): numbers(item) for key, item in value.items() if not CHANGES.search(str(key))}
    if isinstance(value, (list, tuple)):
        return [numbers(item) for item in value]
    return value


def content(path: Path) -> Any:
    """What a file of a run holds; an error if it is torn."""
    if path.suffix == ".json":
        return numbers(json.loads(path.read_text()))
    if path.suffix == ".pt":
        return numbers(torch.load(path, weights_only=True))
    return None


def outcome(folder: Path) -> dict[str, Any]:
    """What the files of a finished run hold, by name."""
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    return {name: content(path) for name, path in found.items() if path.suffix in (".json", ".pt")}


def torn(folder: Path) -> list[str]:
    """Files under their own names that cannot be read."""
    wrong = []
    for path in sorted(folder.rglob("*")):
        unread = path.name.startswith(".") or any(part.endswith(".unfinished") for part in path.parts)
        if path.is_file() and not unread:
            try:
                content(path)
            except Exception as error:
                wrong.append(f"{path.name}: {type(error).__name__}")
    return wrong


# Killed


def started(command: str, out: Path) -> subprocess.Popen[bytes]:
    words = [*PROGRAM, *command.split(), str(out)]
    environment = {**os.environ, **SMALL}
    return subprocess.Popen(words, env=environment, start_new_session=True, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE)  # fmt: skip


def finished(command: str, out: Path) -> float:
    """Run a command to its end; the seconds that took."""
    start = time.perf_counter()
    process = started(command, out)
    _, error = process.communicate(timeout=1200)
    if process.returncode:
        raise SystemExit(f"sparsegen {command} {out} ended with {process.returncode}: {error.decode()[-1000:]}")
    return time.perf_counter() - start


def killed(command: str, out: Path, after: float) -> bool:
    """Begin a command and kill it, with all its processes, after so many seconds; False if it had ended before."""
    process = started(command, out)
    try:
        process.communicate(timeout=after)
        return False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return True


def kill(trials: int, seed: int) -> dict[str, Any]:
    draw, found = random.Random(seed), {}
    for name, command in COMMANDS.items():
        counts: Counter[str] = Counter()
        with tempfile.TemporaryDirectory() as folder:
            reference = Path(folder, "whole")
            seconds = finished(command, reference)
            expected = outcome(reference)
            for trial in range(trials):
                out = Path(folder, f"killed-{trial}")
                for _ in range(3):
                    if killed(command, out, draw.uniform(0.15, 1.0) * seconds):
                        counts["kills"] += 1
                    counts["torn files"] += len(torn(out)) if out.exists() else 0
                finished(command, out)
                counts["runs resumed"] += 1
                same = outcome(out) == expected
                counts["the same numbers" if same else "other numbers"] += 1
                print(f"{name}: {dict(counts)}", flush=True)
        found[name] = {"seconds": round(seconds, 1), **counts}
    return {"commands": found, "bad": sum(f.get("other numbers", 0) + f["torn files"] for f in found.values())}


# No room


def inside(size: str, name: str) -> None:
    """In a mount namespace of its own: a command on a disk of a size, or one that cannot be written to."""
    with tempfile.TemporaryDirectory() as folder:
        disk = Path(folder, "disk")
        disk.mkdir()
        option = "ro" if size == "read-only" else f"size={size}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", option, "none", str(disk)], check=True)
        try:
            process = started(COMMANDS[name], disk / "run")
            _, error = process.communicate(timeout=1200)
            text = error.decode()
            print(json.dumps({"code": process.returncode, "traceback": "Traceback" in text, "torn": torn(disk),
                              "line": text.strip().splitlines()[-1:]}))  # fmt: skip
        finally:
            subprocess.run(["umount", str(disk)], check=True)


def disk() -> dict[str, Any]:
    counts: Counter[str] = Counter()
    lines = []
    for name in COMMANDS:
        for size in ("read-only", "64k", "256k", "700k"):
            words = ["unshare", "-rm", sys.executable, __file__, "inside", "--size", size, "--command", name]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            counts["runs"] += 1
            counts["ended well, as there was room" if found["code"] == 0 else "refused in a line"] += 1
            counts["torn files"] += len(found["torn"])
            if found["traceback"] or found["code"] not in (0, 1):
                counts["ended otherwise"] += 1
                lines.append(f"{name}, {size}: code {found['code']}, {found['line']}")
            print(f"{name}, {size}: {found}", flush=True)
    return {**counts, "lines": lines, "bad": counts["ended otherwise"] + counts["torn files"]}


# Damaged and hostile files


def damage(data: bytes, draw: random.Random) -> bytes:
    """A file with something wrong somewhere."""
    at, to = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
    to = min(to, at + 200)
    noise = bytes(draw.randrange(256) for _ in range(draw.randint(1, 8)))
    words = [b"9" * 40, b"nan", b"-1", b"1e999", b"{", b"}", b"\0", b"'", b"\n", b"@data\n", b"?", b"\xff\xfe", b""]
    kind = draw.randrange(6)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[to:]
    if kind == 2:
        return data[:at] + data[at:to] * 2 + data[to:]
    if kind == 3:
        return data[:at] + draw.choice(words) + data[at:]
    if kind == 4:
        return data[:at] + noise + data[at:]
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]


ARFF = b"""@relation toy
@attribute colour {red,'deep blue',green}
@attribute size numeric
@attribute 'sea level' real
@attribute sea {0,1}
@attribute sky {0,1}
@data
red,1.5,2,0,1
'deep blue',2,3.25,1,0
green,0,-4,1,1
"""
SPARSE = b"""@relation toy
@attribute a numeric
@attribute b numeric
@attribute sea {0,1}
@attribute sky {0,1}
@data
{0 1.5,2 1}
{1 2,3 1}
{2 1,3 1}
"""
LABELS = b'<labels xmlns="http://mulan.sourceforge.net/labels"><label name="sea"/><label name="sky"/></labels>'
DOCUMENTS = b"4 10 6\n0,2 1:0.5 3:1.5\n1 0:1 9:0.25\n5 2:2\n3,4 7:1 8:1\n"


def result_text() -> bytes:
    result = Result("toy", {"q": 1.0}, 0, ({"f1": 0.5, "k": [1, 2]},), {"best": 0.5}, {"python": "3"}, 0.1,
                    "2030-01-31T12:00:00")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        result.save(Path(folder, "r.json"))
        return Path(folder, "r.json").read_bytes()


def cells_text() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        with CellStore.opened(folder) as store:
            store.add("a", {"q": 1.0}, {"f1": 0.5}, seconds=0.1)
            store.add("b", {"q": 2.0}, {"f1": float("nan")}, seconds=0.2)
        return Path(folder, "cells.jsonl").read_bytes()


def read_cells(path: Path) -> Any:
    with CellStore.opened(path.parent) as store:
        return repr(store.outputs)


def read_sharded(path: Path) -> Any:
    model = sgd.ShardedLinear(3, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = sgd.load(path.parent, model)
    return numbers([kept, dict(model.state_dict())])


def checkpoint_files() -> Iterator[tuple[str, str, dict[str, bytes], Callable[[Path], Any]]]:
    """Kind, the file that is damaged, all files of its folder, and what reads them."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints.save(Path(folder, "best.pt"), {"epoch": 3, "model": {"w": torch.arange(40.0)}, "words": ["a", "b"]})
        yield ("checkpoint of train", "best.pt", {"best.pt": Path(folder, "best.pt").read_bytes()},
               lambda path: numbers(checkpoints.load(path)))  # fmt: skip
        sgd.save(Path(folder, "step-1"), sgd.ShardedLinear(3, 5), step=1)
        files = {path.name: path.read_bytes() for path in Path(folder, "step-1").iterdir()}
    for name in files:
        yield f"checkpoint of train-labels, {name.split('-')[0].removesuffix('.pt')}", name, files, read_sharded


def text_files() -> Iterator[tuple[str, str, dict[str, bytes], Callable[[Path], Any]]]:
    def arff(path: Path) -> Any:
        X, Y, names = mulan.read_arff(path, ["sea", "sky"])
        return repr([np.asarray(X.todense() if hasattr(X, "todense") else X).tolist(), Y.toarray().tolist(), names])

    yield "Result", "r.json", {"r.json": result_text()}, lambda path: repr(Result.load(path))
    yield "cells of a sweep", "cells.jsonl", {"cells.jsonl": cells_text()}, read_cells
    yield "ARFF, dense", "toy.arff", {"toy.arff": ARFF}, arff
    yield "ARFF, sparse", "toy.arff", {"toy.arff": SPARSE}, arff
    yield "list of labels", "toy.xml", {"toy.xml": LABELS}, lambda path: repr(mulan.read_labels(path))
    yield (
        "documents with label sets",
        "d.txt",
        {"d.txt": DOCUMENTS},
        lambda path: repr([m.toarray().tolist() for m in documents.read(path)]),
    )


def late(signal_number: int, frame: Any) -> None:
    raise TimeoutError("reading took more than 20 seconds")


def read_damaged(path: Path, read: Callable[[Path], Any], whole: Any) -> str:
    """What becomes of a damaged file: refused by name, read as before, read with other values; or anything else."""
    signal.alarm(20)
    try:
        return "read as before" if read(path) == whole else "read with other values"
    except ValueError as error:
        named = str(error).startswith("sparsegen: ") and (path.name in str(error) or path.parent.name in str(error))
        return "refused by name" if named else f"refused without a name: {str(error)[:150]}"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    finally:
        signal.alarm(0)


class Hostile:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return open, (self.marker, "w")


def hostile() -> dict[str, int]:
    """Pickles that would run code, in the place of every file that torch reads."""
    counts: Counter[str] = Counter()
    for _, name, files, read in checkpoint_files():
        for make in ("plain pickle", "torch's zip", "torch's older form"):
            with tempfile.TemporaryDirectory() as folder:
                out, marker = Path(folder, "step-1"), Path(folder, "marker")
                out.mkdir()
                for other, data in files.items():
                    (out / other).write_bytes(data)
                if make == "plain pickle":
                    import pickle

                    (out / name).write_bytes(pickle.dumps({"format": checkpoints.FORMAT, "x": Hostile(str(marker))}))
                else:
                    torch.save({"format": checkpoints.FORMAT, "x": Hostile(str(marker))}, out / name,
                               _use_new_zipfile_serialization=make == "torch's zip")  # fmt: skip
                marker.unlink(missing_ok=True)
                end = read_damaged(out / name, read, None)
                counts["tried"] += 1
                counts["code was run"] += marker.exists()
                counts["refused"] += end == "refused by name"
                if end != "refused by name":
                    print(f"{name} as {make}: {end}")
    return dict(counts)


def damaged(tries: int, seed: int) -> dict[str, Any]:
    signal.signal(signal.SIGALRM, late)
    draw, found, bad = random.Random(seed), {}, 0
    wanted = ("refused by name", "read as before", "read with other values")
    with sgd.single_process():
        for kind, name, files, read in [*text_files(), *checkpoint_files()]:
            counts: Counter[str] = Counter()
            with tempfile.TemporaryDirectory() as folder:
                for number in range(tries + 1):
                    out = Path(folder, f"case-{number}")
                    out.mkdir()
                    for other, data in files.items():
                        (out / other).write_bytes(data)
                    if number == 0:
                        whole = read(out / name)
                        continue
                    (out / name).write_bytes(damage(files[name], draw))
                    counts[read_damaged(out / name, read, whole)] += 1
            found[kind] = {end: n for end, n in counts.items() if end in wanted}
            found[kind]["tried"] = tries
            found[kind]["otherwise"] = sum(n for end, n in counts.items() if end not in wanted)
            bad += found[kind]["otherwise"]
            print(f"{kind}: {dict(counts)}", flush=True)
        pickles = hostile()
    bad += pickles["code was run"] + pickles["tried"] - pickles["refused"]
    return {"files": found, "pickles": pickles, "bad": bad}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trial", choices=["kill", "disk", "damage", "inside"])
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--tries", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", default="read-only")
    parser.add_argument("--command", choices=COMMANDS)
    parser.add_argument("--out", default=str(record.PATH))
    options = parser.parse_args()
    if options.trial == "inside":
        return inside(options.size, options.command)
    if options.trial == "kill":
        found = kill(options.trials, options.seed)
    else:
        found = disk() if options.trial == "disk" else damaged(options.tries, options.seed)
    bad = found.pop("bad")
    record.keep(options.trial, found, options.out)
    sys.exit(f"{bad} trials failed" if bad else 0)


if __name__ == "__main__":
    main()
