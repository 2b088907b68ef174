"""Results of one comparison on different corpora, joined into one: corpora may be run one after another.

Scale and first seed are the same for all; one corpus may have more seeds, or more rows of the table, than another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sparsegen._table.checks import fail
from sparsegen.experiments.seq2seq.comparison import ROWS
from sparsegen.experiments.seq2seq.corpora import CORPORA
from sparsegen.experiments.store import Result

Rows = Iterable[dict[str, Any]]


def without(result: Result, corpora: Collection[str]) -> Result | None:
    """Return a Result without some corpora, or None where it has no other."""
    left = [name for name in result.config["corpora"] if name not in corpora]
    if not left:
        return None
    config, summary = result.config, result.summary
    borrowed = _only(left, config.get("controls_from", {}))
    kept = {
        **{part: _of(left, summary[part]) for part in ("leads", "table")},
        "tried": _of({*left, *borrowed.values()}, summary["tried"]),
        "chosen": _only(left, summary["chosen"]),
    }
    rows = tuple(_of(left, result.rows))
    config = {**_config(config, left, {}, seeds_of(result), borrowed), "maps": _maps(rows)}
    return replace(result, config=config, rows=rows, summary={**summary, **kept})


def seeds_of(result: Result) -> dict[str, Any]:
    """Return how many seeds each corpus was trained with."""
    known = result.config["seeds"]
    return known if isinstance(known, dict) else dict.fromkeys(result.config["corpora"], known)


def fitting(path: Path, experiment: str, config: dict[str, Any], seed: int) -> Result | None:
    """Return what a file has of corpora that a run has not, or None; what cannot stand beside the run is refused."""
    kept = without(Result.load(path), config["corpora"])
    if kept is not None:
        _check(kept, str(path), experiment, config, seed)
    return kept


def join(kept: Result, result: Result) -> Result:
    """Return one Result with the corpora of both.

    It began when the first of them did, and its wall time is that of both. Where corpora have not equally many seeds,
    config["seeds"] has a number for each.

    Parameters
    ----------
    kept, result : Result
        Of one experiment, scale and first seed, and on different corpora.
    """
    _check(kept, "the Result that is kept", result.experiment, result.config, result.seed)
    both = (kept, result)
    corpora = sorted((name for each in both for name in each.config["corpora"]), key=list(CORPORA).index)
    presets, seeds, borrowed = (part(kept) | part(result) for part in (_presets, seeds_of, _borrowed))
    config = _config(result.config, corpora, presets, seeds, borrowed)
    summary: dict[str, Any] = {
        part: _sorted(row for each in both for row in each.summary[part]) for part in ("leads", "table")
    }
    summary |= {"chosen": kept.summary["chosen"] | result.summary["chosen"], "tried": _tried(*both)}
    rows = tuple(_sorted(row for each in both for row in each.rows))
    return Result(
        result.experiment, {**config, "maps": _maps(rows)}, result.seed, rows, summary, _versions(*both),
        kept.wall_time + result.wall_time, min((each.started for each in both), key=_moment),
    )  # fmt: skip


def _check(kept: Result, where: str, experiment: str, config: dict[str, Any], seed: int) -> None:
    """Refuse to put a run beside a Result where the two together would mislead."""
    names = ", ".join(kept.config["corpora"])
    wanted = {
        "the experiment": (kept.experiment, experiment),
        "the scale": (kept.config["scale"], config["scale"]),
        "the first seed": (kept.seed, seed),
    }
    for what, (has, new) in wanted.items():
        if has != new:
            must = f"that of the run, {new!r}, to keep its {names}; another folder for --out keeps both"
            fail(ValueError, f"{what} of {where}", must, repr(has))
    twice = [name for name in kept.config["corpora"] if name in config["corpora"]]
    if twice:
        fail(ValueError, f"the corpora of {where}", "others than those added", ", ".join(map(repr, twice)))


def _config(
    config: dict[str, Any], corpora: list[str], presets: dict[str, Any], seeds: dict[str, Any], borrowed: dict[str, Any]
) -> dict[str, Any]:
    """Settings for some corpora; a number of seeds that all have is said once."""
    counts = _only(corpora, seeds)
    made = {**config, "corpora": corpora, "presets": _only(corpora, presets or config.get("presets", {}))}
    made["seeds"] = counts if len(set(counts.values())) > 1 else next(iter(counts.values()))
    return {**made, "controls_from": borrowed}


def _maps(rows: Rows) -> list[str]:
    """The rows of the table that any corpus has."""
    found = {row["row"] for row in rows}
    return [name for name in ROWS if name in found]


def _presets(result: Result) -> dict[str, Any]:
    return result.config.get("presets", {})


def _borrowed(result: Result) -> dict[str, Any]:
    return result.config.get("controls_from", {})


def _only(corpora: Collection[str], known: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in known.items() if name in corpora}


def _of(corpora: Collection[str], rows: Rows) -> list[dict[str, Any]]:
    return [row for row in rows if row["corpus"] in corpora]


def _sorted(rows: Rows) -> list[dict[str, Any]]:
    """Rows in the order of the table of corpora, those of one as they were."""
    order = list(CORPORA)
    return sorted(rows, key=lambda row: order.index(row["corpus"]))


def _tried(kept: Result, result: Result) -> list[dict[str, Any]]:
    """The trainings that chose controls; one that both have is taken from the later."""
    found = {
        (row["corpus"], row["mapping"], row["control"]): row for each in (kept, result) for row in each.summary["tried"]
    }
    return _sorted(found.values())


def _versions(kept: Result, result: Result) -> dict[str, str]:
    """The versions of both, two of one package with a word between them."""
    names = {**kept.versions, **result.versions}
    each = {name: [r.versions[name] for r in (kept, result) if name in r.versions] for name in names}
    return {name: " and ".join(dict.fromkeys(found)) for name, found in each.items()}


def _moment(started: str) -> datetime:
    return datetime.fromisoformat(started).astimezone()
