"""Results of one comparison, joined into one: corpora, and rows of the table, may be run one after another.

Scale and first seed are the same for all; one corpus may have more seeds, or more rows of the table, than another. Rows
are added to a corpus only where both runs have the same settings and the rows that both have came out the same: that is
what shows that they may be compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sparsegen._table.checks import fail
from sparsegen.experiments.seq2seq.comparison import BASES, ROWS
from sparsegen.experiments.seq2seq.corpora import CORPORA
from sparsegen.experiments.store import Result

Rows = Iterable[dict[str, Any]]

BASE = BASES[0]  # the row that both runs must have for rows to be added: what every other is compared with
NO_BASE = f"{BASE}, with which the others are compared, is not in both"
ORDERS: dict[str, list[Any]] = {
    "corpus": list(CORPORA),
    "row": list(ROWS),
    "base": list(BASES),
    "mapping": list(dict.fromkeys(row.mapping for row in ROWS.values())),
}


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


def rows_of(result: Result, corpus: str) -> list[str]:
    """Return the rows of the table that a corpus has."""
    return list(dict.fromkeys(row["row"] for row in _of([corpus], result.rows)))


def check_others(path: Path, experiment: str, config: dict[str, Any], seed: int) -> None:
    """Refuse a run whose file has other corpora that cannot stand beside it."""
    others = without(Result.load(path), config["corpora"])
    if others is not None:
        _check(others, str(path), experiment, config, seed)


def apart(saved: Result, run: Result, corpus: str) -> str:
    """Return, in words, why the rows of two runs on a corpus must not stand side by side; nothing where they may."""
    found = _difference(saved, run, corpus)
    return found or ("" if BASE in _shared(saved, run, corpus) else NO_BASE)


def keeping(saved: Result, run: Result) -> Result | None:
    """Return what of a saved Result stays beside a run: the corpora that it has not, and those it may add rows to."""
    both = [corpus for corpus in saved.config["corpora"] if corpus in run.config["corpora"]]
    more = [corpus for corpus in both if not set(rows_of(saved, corpus)) <= set(rows_of(run, corpus))]
    return without(saved, [corpus for corpus in both if corpus not in more or apart(saved, run, corpus)])


def announced(saved: Result, config: dict[str, Any], seed: int) -> Iterator[str]:
    """Yield, in words, what a saved Result has that a run with these settings has not, and whether it may stay."""
    known = saved.config.get("corpora", ())
    others = [corpus for corpus in known if corpus not in config["corpora"]]
    if others:
        yield f"{', '.join(others)} from before, which stays in it"
    for corpus in (corpus for corpus in known if corpus in config["corpora"]):
        before = rows_of(saved, corpus)
        rest = [name for name in before if name not in config["maps"]]
        why = _first_difference(_settings(saved.config, saved.seed, corpus), _settings(config, seed, corpus))
        why = why or ("" if BASE in before and BASE in config["maps"] else NO_BASE)
        stay = f"are replaced: {why}" if why else "stay in it if the rows that both have come out as they did"
        if rest:
            yield f"{', '.join(rest)} of {corpus} from before, which {stay}"


def replaced(saved: Result, result: Result) -> Iterator[str]:
    """Yield, in words, what a saved Result has of the corpora of another that is not in that one, and why."""
    for corpus in saved.config.get("corpora", ()):
        if corpus not in result.config["corpora"]:
            continue
        lost = [name for name in rows_of(saved, corpus) if name not in rows_of(result, corpus)]
        gone = f", {', '.join(lost)} among them" if lost else ""
        if lost or _difference(saved, result, corpus):
            yield f"other numbers of {corpus}, which are replaced{gone}: {apart(saved, result, corpus)}"


def join(kept: Result, result: Result) -> Result:
    """Return one Result with the corpora and rows of both; what both have is taken from the later, `result`.

    It began when the first of them did, and its wall time is that of both. Where corpora have not equally many seeds,
    config["seeds"] has a number for each. A lead is there if one of the two has both of its rows.

    Parameters
    ----------
    kept, result : Result
        Of one experiment, scale and first seed; not :func:`apart` on a corpus that both have.
    """
    _check(kept, "the Result that is kept", result.experiment, result.config, result.seed)
    _check_shared(kept, result)
    both = (kept, result)
    named = {name for each in both for name in each.config["corpora"]}
    presets, seeds, borrowed = (part(kept) | part(result) for part in (_presets, seeds_of, _borrowed))
    config = _config(result.config, sorted(named, key=ORDERS["corpus"].index), presets, seeds, borrowed)
    rows = _joined((each.rows for each in both), "corpus", "seed", "row")
    summary: dict[str, Any] = {
        part: _joined((each.summary[part] for each in both), *keys)
        for part, keys in {
            "leads": ("corpus", "test", "base", "row"),
            "table": ("corpus", "row", "test"),
            "tried": ("corpus", "mapping", "control"),
        }.items()
    }
    summary["chosen"] = _chosen(*both)
    return Result(
        result.experiment, {**config, "maps": _maps(rows)}, result.seed, tuple(rows), summary, _versions(*both),
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


def _check_shared(kept: Result, result: Result) -> None:
    """Refuse to add rows to a corpus where those of before are of another set-up."""
    for corpus in kept.config["corpora"]:
        why = apart(kept, result, corpus) if corpus in result.config["corpora"] else ""
        if why:
            must = "as in the run, for rows to be added"
            fail(ValueError, f"{corpus} of the Result that is kept", must, f"another: {why}")


def _shared(saved: Result, run: Result, corpus: str) -> list[str]:
    return [name for name in rows_of(saved, corpus) if name in rows_of(run, corpus)]


def _difference(saved: Result, run: Result, corpus: str) -> str:
    """What two runs on a corpus differ in first, of settings, sizes, and the numbers of the rows that both have."""
    shared = _shared(saved, run, corpus)
    known = (
        _settings(each.config, each.seed, corpus)
        | _sizes(each.config.get("presets", {}).get(corpus, {}))
        | _numbers(_of([corpus], each.summary["table"]), shared)
        for each in (saved, run)
    )
    return _first_difference(*known)


def _first_difference(saved: dict[str, Any], run: dict[str, Any]) -> str:
    for what in saved | run:
        has, new = saved.get(what), run.get(what)
        if has != new:
            return f"{what} is {_spelt(has)} in the file and {_spelt(new)} in the run"
    return ""


def _spelt(value: Any) -> str:
    return "none" if value is None else f"{value:.8g}" if isinstance(value, float) else str(value)


def _settings(config: dict[str, Any], seed: int, corpus: str) -> dict[str, Any]:
    """What a run was asked for, by what it is called."""
    seeds = config["seeds"]
    return {
        "the scale": config["scale"],
        "the first seed": seed,
        "the number of seeds": seeds[corpus] if isinstance(seeds, dict) else seeds,
        "the corpus that chose the controls": config.get("controls_from", {}).get(corpus, corpus),
    }


def _sizes(preset: dict[str, Any], inside: str = "") -> dict[str, Any]:
    """The sizes of a preset, those of training among them, by what they are called."""
    found: dict[str, Any] = {}
    for name, value in preset.items():
        found |= _sizes(value, f"{name}.") if isinstance(value, dict) else {f"the size {inside}{name}": value}
    return found


def _numbers(table: Rows, names: Collection[str]) -> dict[str, Any]:
    """The control of some rows and their score on each test set with each seed, by what they are called."""
    found: dict[str, Any] = {}
    for line in table:
        if line["row"] in names:
            found[f"the control of {line['row']}"] = line["control"]
            where = f"{line['row']} on {line['test']} with seed"
            found |= {f"{where} {seed}": score for seed, score in zip(line["seeds"], line["each"])}
    return found


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


def _joined(parts: Iterable[Rows], *keys: str) -> list[dict[str, Any]]:
    """Rows of several Results in the order of a run of all of them; one that several have is that of the last."""
    found = {tuple(row[key] for key in keys): row for rows in parts for row in rows}
    known = ORDERS | {"test": list(dict.fromkeys(row.get("test") for row in found.values()))}

    def place(row: dict[str, Any]) -> list[Any]:
        return [known[key].index(row[key]) if key in known else row[key] for key in keys]

    return sorted(found.values(), key=place)


def _chosen(kept: Result, result: Result) -> dict[str, Any]:
    """The controls of each corpus and row."""
    before, now = kept.summary["chosen"], result.summary["chosen"]
    return {corpus: before.get(corpus, {}) | now.get(corpus, {}) for corpus in before | now}


def _versions(kept: Result, result: Result) -> dict[str, str]:
    """The versions of both, two of one package with a word between them."""
    names = {**kept.versions, **result.versions}
    each = {
        name: [version for r in (kept, result) for version in r.versions.get(name, "").split(" and ") if version]
        for name in names
    }
    return {name: " and ".join(dict.fromkeys(found)) for name, found in each.items()}


def _moment(started: str) -> datetime:
    return datetime.fromisoformat(started).astimezone()
