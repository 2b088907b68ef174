"""Random cases through the public functions of both front ends, each answer checked by another algorithm.

    python fuzz/front_ends.py --seconds 60
    python fuzz/front_ends.py --map sparsehourglass --engine avx2 --seed 3 --case 41

A seed and a number give a case again. What fails is shrunk and printed as one line of Python.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # the exact oracles

import attention_cases
import loss_cases
import map_cases
from loss_oracle import LOSSES
from sparsegen import _core
from sparsegen._table.maps import MAPS

NAMES = [*MAPS, *(f"{name}_loss" for name in LOSSES), "attention"]
SHRINKING_SECONDS = 10.0


class Report(NamedTuple):
    """Rows by name, engine and storage; and what went wrong, in words."""

    rows: Counter[str]
    failures: list[str]


def module_of(name: str) -> Any:
    """What makes, checks, simplifies and prints the cases of a name."""
    return map_cases if name in MAPS else attention_cases if name == "attention" else loss_cases


def case_of(seed: int, name: str, number: int) -> Any:
    """The same case whenever it is asked for."""
    return module_of(name).make(np.random.default_rng([seed, NAMES.index(name), number]), name)


def _check(case: Any, module: Any, sabotage: bool) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return module.check(case, sabotage)
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


def _kind(what: str) -> str:
    """Errors stay errors and wrong answers wrong answers while a case is shrunk: a simpler one may be out of bounds."""
    return what.split(":")[0] if what.startswith("raised ") else "answer" if what else ""


def shrunk(case: Any, wrong: Callable[[Any], bool], simplified: Callable[[Any], Iterator[Any]]) -> Any:
    """The simplest case that is still wrong, as far as a few seconds lead."""
    end = time.monotonic() + SHRINKING_SECONDS
    again = True
    while again and time.monotonic() < end:
        again = False
        for simpler in simplified(case):
            if time.monotonic() > end:
                break
            if wrong(simpler):
                case, again = simpler, True
                break
    return case


def _failure(case: Any, module: Any, what: str, where: str, engine: str, sabotage: bool) -> str:
    small = shrunk(case, lambda c: _kind(_check(c, module, sabotage)) == _kind(what), module.simplified)
    what = _check(small, module, sabotage) or what
    return f"{case.label()} is wrong: {what}\n  again: {where}\n  Python: {module.line(small, engine)}"


def run(
    names: list[str], engines: list[str], seed: int, cases: range | None, seconds: float, rows: int | None,
    sabotage: bool = False, most_failures: int = 5,
) -> Report:  # fmt: skip
    """Cases in turn: every name, every engine, until time, rows or cases are over."""
    report = Report(Counter(), [])
    end, number = time.monotonic() + seconds, cases.start if cases else 0
    done: Counter[tuple[str, str]] = Counter()
    while (number in cases) if cases else time.monotonic() < end:
        for name in names:
            if cases is None and (time.monotonic() > end or (rows and min(done[name, e] for e in engines) >= rows)):
                continue
            case, module = case_of(seed, name, number), module_of(name)
            for engine in engines:
                _core.use_engine(engine)
                what = _check(case, module, sabotage)
                report.rows[f"{case.label()}/{engine}/{case.storage}"] += case.rows
                done[name, engine] += case.rows
                if what:
                    where = f"--map {name} --engine {engine} --seed {seed} --case {number}"
                    report.failures.append(_failure(case, module, what, where, engine, sabotage))
                    print(report.failures[-1], flush=True)
                if len(report.failures) >= most_failures:
                    return report
        number += 1
        if rows and cases is None and all(done[name, e] >= rows for name in names for e in engines):
            break
    return report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--map", action="append", choices=NAMES, help="a map, a loss or attention; all by default")
    parser.add_argument("--engine", action="append", choices=_core.engines(), help="all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="this case only: what a failure printed")
    parser.add_argument("--cases", type=int, help="so many of each name")
    parser.add_argument("--seconds", type=float, default=60.0, help="in all")
    parser.add_argument("--rows", type=int, help="stop once each name and engine had so many rows")
    parser.add_argument("--failures", type=int, default=5, help="stop after so many")
    parser.add_argument("--sabotage", action="store_true", help="spoil the answers: every name must notice")
    parser.add_argument("--json", action="store_true", help="counts as JSON, on the last line")
    args = parser.parse_args(arguments)
    cases = range(args.case, args.case + 1) if args.case is not None else range(args.cases) if args.cases else None
    seconds = float("inf") if args.rows and "--seconds" not in (arguments or sys.argv) else args.seconds
    report = run(
        args.map or NAMES, args.engine or _core.engines(), args.seed, cases, seconds, args.rows, args.sabotage,
        args.failures,
    )  # fmt: skip
    if args.json:
        print(json.dumps({"rows": dict(sorted(report.rows.items())), "failures": report.failures}))
    else:
        for name, count in sorted(report.rows.items()):
            print(f"{name:44} {count:12} rows")
        print(f"{len(report.failures)} failures")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
