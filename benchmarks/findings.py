"""What the documents quote of the experiments: the marks of properties, synthetic, real, translation and the like."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from marks import as_result, mark, span, table

from sparsegen.experiments.ledger import ledger
from sparsegen.experiments.multilabel.claims import CLOSE_F1
from sparsegen.experiments.seq2seq.comparison import PAPERS_ROWS, share

Found = dict[str, Any]  # a Result as its file holds it


@mark("synthetic", "real", "real-large", "translation", "summarization", name="ledger")
def ledger_table(found: Found) -> str:
    entries = ledger(as_result(found))
    rows = ([f"{entry.claim} ({entry.source})", entry.measured, entry.verdict] for entry in entries)
    return table(["the paper claims", "measured here", "verdict"], rows)


@mark("properties")
def cells(found: Found) -> str:
    return f"{found['summary']['equal']} of {found['summary']['cells']}"


@mark("properties")
def departures(found: Found) -> str:
    """How many cells of the paper's table were measured otherwise."""
    rows = [row for row in found["rows"] if row["claimed"]]
    return str(sum(row["claimed"][name] != measured for row in rows for name, measured in row["measured"].items()))


@mark("synthetic")
def setting(found: Found) -> str:
    config = found["config"]
    return f"{config['documents']} documents, {config['seeds']} seeds, scale `{config['scale']}`"


@mark("synthetic")
def hourglass_gap(found: Found) -> str:
    """By how much the two hinge pairs differ at most, in F1."""
    means = {(row["setting"], row["value"], row["pair"]): row["f1"][0] for row in found["summary"]["table"]}
    points = {key[:2] for key in means}
    return f"{max(abs(means[(*p, 'sparsehg+hinge')] - means[(*p, 'sparsemax+hinge')]) for p in points):.4f}"


@mark("synthetic", "real", "real-large")
def gap(found: Found) -> str:
    return f"{100 * found['summary']['largest_gap']:.2f} %"


@mark("real", "real-large", name="table")
def real_table(found: Found) -> str:
    rows = found["summary"]["table"]
    names, pairs = (list(dict.fromkeys(row[key] for row in rows)) for key in ("name", "pair"))
    cells = {
        (row["name"], row["pair"]): f"{row['f1']:.2f}" + (f" ({row['paper']:.2f})" if "paper" in row else "")
        for row in rows
    }
    lines = ([pair, *(cells[name, pair] for name in names)] for pair in pairs)
    return table(["pair", *map(str.capitalize, names)], lines)


def winners(found: Found, group: str, name: str, measure: str) -> str:
    """Who has the best of a measure in which groups."""
    rows, ahead = found["summary"]["table"], {}
    for where in dict.fromkeys(row[group] for row in rows):
        best = max((row for row in rows if row[group] == where), key=lambda row: row[measure])
        ahead.setdefault(best[name], []).append(where)
    return "; ".join(f"{who} on {', '.join(where)}" for who, where in ahead.items())


@mark("real", "real-large", name="best")
def best_pair(found: Found) -> str:
    return winners(found, "name", "pair", "f1")


@mark("real")
def near(found: Found) -> str:
    """How many cells are near the paper's, or better."""
    rows = [row for row in found["summary"]["table"] if "paper" in row]
    return f"{sum(row['difference'] >= -CLOSE_F1 for row in rows)} of {len(rows)}"


@mark("real")
def close(_: Found) -> str:
    return f"{CLOSE_F1:g}"


def of_scene(found: Found, pair: str) -> Found:
    return next(row for row in found["summary"]["table"] if (row["name"], row["pair"]) == ("scene", pair))


@mark("real")
def scene_huber(found: Found) -> str:
    return f"{of_scene(found, 'sparsemax+huber')['f1']:.2f}"


@mark("real")
def scene_huber_labels(found: Found) -> str:
    return f"{of_scene(found, 'sparsemax+huber')['labels']:.1f}"


@mark("real")
def scene_softmax_labels(found: Found) -> str:
    return f"{of_scene(found, 'softmax+log')['labels']:.1f}"


def row_name(row: Found) -> str:
    return row["row"] if row["control"] is None else f"{row['row']} ({row['control']:g})"


def by_corpus(texts: dict[str, str]) -> str:
    """What is true of each corpus, once where it is the same."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{corpus}: {text}" for corpus, text in texts.items())


@mark("numbers", "translation", "summarization")
def units(found: Found) -> str:
    presets = found["config"]["presets"]
    return by_corpus({
        corpus: f"{presets[corpus]['layers']} layer of {presets[corpus]['hidden']} units, "
                f"{presets[corpus]['train']['epochs']} epochs"
        for corpus in found["config"]["corpora"]
    })  # fmt: skip


def of(rows: list[Found], corpus: str) -> list[Found]:
    return [row for row in rows if row["corpus"] == corpus]


def pairs_of(rows: list[Found]) -> str:
    return span((row["train_pairs"] for row in rows), ",d").replace(",", " ")


def minutes_of(rows: list[Found]) -> str:
    return span((row["train_seconds"] / 60 for row in rows), ".0f")


@mark("numbers", "translation")
def pairs(found: Found) -> str:
    return pairs_of(found["rows"])


@mark("numbers")
def minutes(found: Found) -> str:
    return minutes_of(found["rows"])


@mark("translation", name="minutes")
def least_minutes(found: Found) -> str:
    """What a training takes where nothing else runs, and with what did."""
    found_minutes = [row["train_seconds"] / 60 for row in found["rows"]]
    return f"{min(found_minutes):.0f} at the least and {statistics.median(found_minutes):.0f} in the middle"


@mark("numbers", name="table")
def numbers_table(found: Found) -> str:
    rows = [[row_name(row), f"{100 * row['exact_match']:.1f} %", f"{row['support']:.2f}"]
            for row in found["summary"]["table"]]  # fmt: skip
    return table(["attention (control)", "translated exactly", "attends to"], rows)


@mark("numbers")
def lines(found: Found) -> str:
    return str(found["rows"][0]["tests"]["numbers"]["lines"])


@mark("numbers")
def source_words(found: Found) -> str:
    return f"{found['summary']['table'][0]['source_words']:.1f}"


TESTS = {"test_2016_flickr": "2016", "test_2017_flickr": "2017"}


def of_corpus(found: Found, corpus: str, test: str) -> dict[str, Found]:
    rows = found["summary"]["table"]
    return {row_name(row): row for row in rows if (row["corpus"], row["test"]) == (corpus, test)}


def lead_of(found: Found, line: Found) -> str:
    """The interval of a line's lead over softmax, where it was tested."""
    key = [line["corpus"], line["test"], line["row"], "softmax"]
    ends = (
        f"{lead['low']:+.1f} to {lead['high']:+.1f}"
        for lead in found["summary"]["leads"] if [lead[name] for name in ("corpus", "test", "row", "base")] == key
    )  # fmt: skip
    return next(ends, "")


def direction_table(found: Found, corpus: str) -> str:
    """BLEU of each row both years, how far it is ahead of softmax, what it attends to, and the paper's."""
    heads = ["attention (control)", "2016", "ahead of softmax", "2017", "ahead of softmax", "attends to", "paper"]
    if corpus not in found["config"]["corpora"]:
        return table(heads, [["not yet run", *[""] * (len(heads) - 1)]])
    first, second = (of_corpus(found, corpus, test) for test in TESTS)
    lines = []
    for name, row in first.items():
        years = [year[name] for year in (first, second)]
        scores = [cell for line in years for cell in (f"{line['bleu']:.1f}", lead_of(found, line))]
        paper = "" if row["paper"] is None else f"{row['paper']:.2f}"
        lines.append([name, *scores, f"{row['support']:.2f}", paper])
    return table(heads, lines)


@mark("translation")
def fr_en(found: Found) -> str:
    return direction_table(found, "multi30k-fr-en")


@mark("translation", "translation-entmax")
def en_fr(found: Found) -> str:
    return direction_table(found, "multi30k-en-fr")


@mark("translation", "summarization")
def chosen_by(found: Found) -> str:
    """How the controls were chosen: files from before there were intervals did it in another way."""
    if not found["summary"]["leads"]:
        return "on short runs in this file, which is of before there were intervals"
    lent = [f"{corpus} has those of {other}" for corpus, other in found["config"].get("controls_from", {}).items()]
    own = "for each corpus by the validation accuracy of whole trainings, as in the paper"
    return own + (f"; but {', '.join(lent)}" if lent else "")


def seeds_from(first: int, count: int) -> str:
    return f"one seed, {first}" if count == 1 else f"{count} seeds, {first} to {first + count - 1}"


def seeds_of(found: Found) -> dict[str, str]:
    """Which seeds each corpus has."""
    known, corpora = found["config"]["seeds"], found["config"]["corpora"]
    counts = known if isinstance(known, dict) else dict.fromkeys(corpora, known)
    return {corpus: seeds_from(found["seed"], counts[corpus]) for corpus in corpora}


@mark("translation", "translation-entmax")
def seeds(found: Found) -> str:
    return by_corpus(seeds_of(found))


@mark("translation", "translation-entmax", "summarization")
def order(found: Found) -> str:
    """What the intervals against softmax tell of the order of the maps, and no more."""
    leads = [lead for lead in found["summary"]["leads"] if lead["base"] == "softmax"]
    if not leads:
        return "The file has no intervals, so no order of the maps follows from it."
    sides = {
        "above": [lead for lead in leads if lead["low"] > 0],
        "below": [lead for lead in leads if lead["high"] < 0],
    }
    alone = [corpus for corpus, text in seeds_of(found).items() if text.startswith("one seed")]
    last = added(leads)
    last += f" With one seed ({', '.join(alone)}) an interval says nothing of other seeds." if alone else ""
    if not any(sides.values()):
        return f"All {len(leads)} intervals have 0 in them: runs of this size tell no map from softmax.{last}"
    texts = [f"{len(side)} {'is' if len(side) == 1 else 'are'} {where} 0{named(side)}" for where, side in sides.items()]
    rest = len(leads) - sum(map(len, sides.values()))
    return (
        f"Of {len(leads)} intervals {' and '.join(texts)}; {rest} {'has' if rest == 1 else 'have'} 0 in them and tell "
        f"nothing. One in twenty such intervals misses 0 where there is no difference.{last}"
    )


def added(leads: list[Found]) -> str:
    """How many intervals are of rows that the paper's table has not."""
    rows = [lead["row"] for lead in leads if lead["row"] not in PAPERS_ROWS]
    names = " and ".join(dict.fromkeys(rows))
    verb = "is" if len(rows) == 1 else "are"
    return f" {len(rows)} of the {len(leads)} {verb} of {names}, not in the paper's table." if rows else ""


def named(leads: list[Found]) -> str:
    """Which rows, on which test sets."""
    where: dict[str, list[str]] = {}
    for lead in leads:
        where.setdefault(f"{lead['corpus']}, {lead['test']}", []).append(lead["row"])
    texts = (f"{' and '.join(rows)} on {place}" for place, rows in where.items())
    return f" ({'; '.join(texts)})" if leads else ""


@mark("translation")
def spread(found: Found) -> str:
    """How far the maps, the paper's and what was added, are apart at most, on one test set."""
    scores = [
        [row["bleu"] for row in of_corpus(found, corpus, test).values()]
        for corpus in found["config"]["corpora"] for test in TESTS
    ]  # fmt: skip
    return f"{max(max(each) - min(each) for each in scores if each):.1f}"


PAPERS_SPARSE = ("sparsemax", "sparsegen-lin", "sparsehg")


@mark("translation")
def sparse_support(found: Found) -> str:
    """The source words that the paper's sparse maps attend to, 2016."""
    rows = found["summary"]["table"]
    sparse = [row for row in rows if row["row"] in PAPERS_SPARSE and row["test"] == "test_2016_flickr"]
    return span((row["support"] for row in sparse), ".1f")


def of_softmax(found: Found, key: str) -> str:
    """A number of softmax's on the test set of 2016, for each language that is read."""
    rows = found["summary"]["table"]
    every = [row for row in rows if row["row"] == "softmax" and row["test"] == "test_2016_flickr"]
    languages = {"fr-en": "French", "en-fr": "English"}
    return " and ".join(f"{row[key]:.1f} in {languages[row['corpus'].partition('-')[2]]}" for row in every)


@mark("translation")
def softmax_support(found: Found) -> str:
    return of_softmax(found, "support")


@mark("translation")
def sentence_words(found: Found) -> str:
    return of_softmax(found, "source_words")


MEASURES = ("rouge1", "rouge2", "rougeL")


HEADLINES = ("gigaword", "reuters", "acl")


@mark("summarization", name="table")
def summarization_table(found: Found) -> str:
    """A table for each corpus in the file, and which are not in it."""
    parts = []
    for corpus in found["config"]["corpora"]:
        rows = of(found["rows"], corpus)
        about = f"{pairs_of(rows)} pairs, {minutes_of(rows)} minutes per map, {seeds_of(found)[corpus]}"
        parts += [f"Trained on {corpus} ({about}):", corpus_table(found, corpus)]
    left = [corpus for corpus in HEADLINES if corpus not in found["config"]["corpora"]]
    return "\n\n".join([*parts, *([f"Not yet run: {', '.join(left)}."] if left else [])])


def corpus_table(found: Found, corpus: str) -> str:
    """ROUGE of each row on each test set, with those columns for which there is anything."""
    lines = of(found["summary"]["table"], corpus)
    lines.sort(key=lambda line: (line["test"] != corpus, line["test"]))  # its own test set first, else as they are
    columns: dict[str, Callable[[Found], str]] = {
        "test set": lambda line: line["test"] + (" (recall)" if line["measure"] == "rouge_recall_75" else ""),
        "attention (control)": row_name,
        "ROUGE-1 / 2 / L": lambda line: " / ".join(f"{line[measure]:.1f}" for measure in MEASURES),
        "in the paper": lambda line: " / ".join(f"{value:g}" for value in line["paper"] or ()),
        "ahead of softmax": lambda line: lead_of(found, line),
        "attends to": lambda line: f"{line['support']:.1f}",
        "copied": lambda line: share(line.get("copied")),
        "of these right": lambda line: share(line.get("copied_right")),
    }
    cells = {name: list(map(cell, lines)) for name, cell in columns.items()}
    kept = {name: column for name, column in cells.items() if any(column)}
    return table(kept, zip(*kept.values()))


@mark("summarization")
def beside_paper(found: Found) -> str:
    """How far the run is from the paper's, where they can stand beside each other."""
    lines = [line for line in of(found["summary"]["table"], "gigaword") if line["paper"] is not None]
    if not lines:
        return "nothing in the file can be compared with the paper, which trains on Gigaword"
    first, second = (span(line[MEASURES[i]] / line["paper"][i] for line in lines) for i in (0, 1))
    return f"trained on Gigaword, ROUGE-1 is {first} of the paper's and ROUGE-2 {second}"


def by_set(found: Found, cell: Callable[[Found], str], head: Callable[[str], str] = str.capitalize) -> str:
    """A table of methods by data sets."""
    rows = found["rows"]
    names, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in ("name", "method"))
    cells = {(row["name"], row["method"]): cell(row) for row in rows}
    return table(["method", *map(head, names)], ([m, *(cells.get((n, m), "") for n in names)] for m in methods))


@mark("classifiers")
def micro(found: Found) -> str:
    return by_set(found, lambda row: f"{row['micro']:.3f}")


@mark("classifiers")
def macro(found: Found) -> str:
    return by_set(found, lambda row: f"{row['macro']:.3f}")


@mark("classifiers")
def sizes(found: Found) -> str:
    true = found["summary"]["true_labels"]
    return by_set(found, lambda row: f"{row['labels']:.1f}", lambda name: f"{name.capitalize()} ({true[name]:.1f})")


@mark("classifiers")
def seconds(found: Found) -> str:
    return by_set(found, lambda row: f"{row['fit_seconds']:.2f}")


@mark("classifiers", name="close")
def close_to_tuned(found: Found) -> str:
    return f"{found['config']['close']:g}"


@mark("classifiers", name="verdicts")
def classifier_verdicts(found: Found) -> str:
    rows = (
        [
            row["name"].capitalize(), f"{row['default']:.3f}", f"{row['plain']:.3f}", "yes" if row["ahead"] else "no",
            f"{row['tuned']:.3f} ({row['best']})", "yes" if row["close"] else "no", f"{row['times']:.1f}",
        ]
        for row in found["summary"]["verdicts"]
    )  # fmt: skip
    heads = ["set", "default", "logistic at 0.5", "at least that", "better tuned baseline", "close to it"]
    return table([*heads, "seconds over one logistic fit"], rows)


@mark("classifiers", name="spread")
def classifier_spread(found: Found) -> str:
    """The default beside each method over splits that were dealt anew, where that was done."""
    rows = found["summary"].get("spread", [])
    if not rows:
        return "(not yet measured)"
    names, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in ("name", "method"))
    cells = {
        (row["name"], row["method"]): f"{row['micro']:.3f}"
        if row["method"] == "default"
        else f"{row['micro']:.3f} ({row['lead']['low']:+.3f} to {row['lead']['high']:+.3f})"
        for row in rows
    }
    lines = ([method, *(cells[name, method] for name in names)] for method in methods)
    return table(["method", *map(str.capitalize, names)], lines)


@mark("language-model", name="table")
def language_model(found: Found) -> str:
    """Loss and keys of the small model, as trained, switched, calibrated and fine-tuned."""
    soft, going = found["softmax"], found["softmax going on"]
    lines = [("trained with softmax", soft, soft)]
    for row in found["switched"]:
        control = "lam" if "lam" in row else "alpha"
        lines.append((f"switched to `{row['mapping']}`, {control} {row[control]:g}", row, soft))
    lines.append((f"calibrated `sparsegen_softmax`, lam {found['calibrated']['lam']:.3f}", found["calibrated"], soft))
    lines += [
        (f"fine-tuned, {what}", found[what], going) for what in found if what.startswith(("softmax g", "sparseg"))
    ]
    rows = (
        [what, f"{row['loss']:.4f}", f"{(row['loss'] / beside['loss'] - 1) * 100:+.1f} %", f"{row['support']:.1f}"]
        for what, row, beside in lines
    )
    return table(["", "held-out loss", "beside softmax, equally trained", "keys a query uses"], rows)


@mark("sharded", name="calls")
def sharded_calls(found: Found) -> str:
    """Rounds and bytes of each call, and what the model on paper says."""
    rows = (
        [
            f"`{line['name']}`", str(line["ranks"]), f"{line['rounds']} + {line['rounds_back']}",
            f"{line['bytes']} + {line['bytes_back']}", str(line["on_paper"]), str(line["bytes_of_scores"]),
            f"{line['off_by_eps']:.2f}",
        ]
        for line in found["calls"]
    )  # fmt: skip
    heads = ["call", "ranks", "rounds", "bytes sent", "on paper", "bytes of the scores", "off by eps"]
    return table(heads, rows)


@mark("sharded", name="equality")
def sharded_equality(found: Found) -> str:
    return f"{found['equality']['off_by']:.1e}"


@mark("sharded", name="training")
def sharded_training(found: Found) -> str:
    run, (first, *_, last) = found["training"], found["training"]["epochs_done"]
    return (
        f"{run['labels']:,} labels, {run['documents']:,} documents, {last['ranks']} processes: a loss of "
        f"{first['loss']:.2f} in the first epoch and {last['loss']:.2f} in the last, {last['seconds']:.0f} seconds and "
        f"{last['steps']} steps each, {last['rounds_per_step']:.1f} rounds and {last['bytes_per_step']:,.0f} bytes a "
        f"step; a rank had {last['peak_mib']:.0f} MiB at most, {run['mib_for_labels']:.0f} of them for its labels, "
        f"where the formula says {run['mib_on_paper']:.0f}"
    )


@mark("sharded", name="far")
def sharded_far(found: Found) -> str:
    far = found["far"]
    return (
        f"{far['ranks']} ranks, {far['labels']:,} labels, {far['rows']} rows and {far['hidden']} hidden features: a "
        f"rank holds {far['mib']:.0f} MiB and sends {far['bytes']:,} bytes in a step, beside scores of "
        f"{far['bytes_of_scores']:,} bytes"
    )


def around(value: Found, form: str = ".3f") -> str:
    """A mean over seeds and half its interval."""
    return f"{value['mean']:{form}} ± {value['half']:{form}}"


@mark("distillation", name="table")
def distillation_table(found: Found) -> str:
    rows = (
        [row["target"], "" if row["target"].startswith("(") else f"{row['entries']['mean']:.1f}",
         around(row["accuracy"]), around(row["agreement"])]
        for row in found["summary"]
    )  # fmt: skip
    return table(["target", "entries kept", "right on new digits", "says what the teacher says"], rows)


@mark("policy", name="table")
def policy_table(found: Found) -> str:
    rows = (
        [row["policy"], around(row["mean_curve"], ".0f"), around(row["balanced"], ".0f"), around(row["greedy"], ".0f"),
         around(row["possible"], ".1f")]
        for row in found["summary"]
    )  # fmt: skip
    heads = ["policy", "steps balanced while learning", "at the end", "at the end, by the likeliest action"]
    return table([*heads, "actions not ruled out"], rows)


@mark("memory", name="table")
def memory_table(found: Found) -> str:
    lengths = list(dict.fromkeys(row["facts"] for row in found["summary"]))
    at = {(row["read"], row["facts"]): row for row in found["summary"]}
    rows = (
        [
            read,
            *(around(at[read, facts]["accuracy"]) for facts in lengths),
            f"{at[read, lengths[-1]]['slots']['mean']:.1f}",
        ]
        for read in dict.fromkeys(row["read"] for row in found["summary"])
    )
    return table(["read", *(f"{facts} facts" for facts in lengths), f"slots read of {lengths[-1]}"], rows)


@mark("distillation", "policy", "memory", name="setting")
def example_setting(found: Found) -> str:
    return f"{found['setting']['seeds']} seeds, {found['seconds'] / 60:.0f} minutes on a busy core"
