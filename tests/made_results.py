"""Results made by hand, and a page taken apart, for the tests of report and commands."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from sparsegen._table.maps import MAPS
from sparsegen.experiments.multilabel import real
from sparsegen.experiments.multilabel.pairs import PAIRS
from sparsegen.experiments.seq2seq import generation, translation
from sparsegen.experiments.store import Result
from sparsegen.experiments.table1 import properties

RESULTS = Path(__file__).parents[1] / "results"
WHEN = "2030-01-31T12:00:00+00:00"
VERSIONS = {"python": "3.11.7", "numpy": "2.4.6", "torch": "2.13.0+cpu"}
NASTY = ["<script>alert(1)</script>", '"quoted"', "R&D", "<unk>", "l'homme", "$5"]


def made(experiment, summary, rows=(), scale="small", **config):
    return Result(experiment, {"scale": scale, **config}, 3, rows, summary, VERSIONS, 4585.85, WHEN)


def made_synthetic():
    table = [
        {"setting": "mean", "value": value, "pair": pair}
        | {measure: [base + i / 10, base, base + 0.5] for measure, base in (("f1", 0.5), ("jsd", 0.1), ("support", 3))}
        for value in (2, 8)
        for i, pair in enumerate(PAIRS)
    ]
    same = {"equal_scaled_penalty": 1.0, "equal_same_penalty": 0.995}
    return made("synthetic", {"table": table, "equivalence": same, "largest_gap": 9.7e-4}, pairs=list(PAIRS), seeds=5)


def made_real():
    rows = [
        {"name": name, "pair": pair, "f1": 0.7 + i / 100, "jsd": 0.1, "support": 2.25, "labels": 2.0, "gap": 1e-4}
        for name in ("scene", "birds")
        for i, pair in enumerate(PAIRS)
    ]
    return made("real", {"table": real.compare(rows), "largest_gap": 1e-4}, sets=["scene", "birds"])


def made_translation(words=NASTY):
    weights = [[1.0 if i == j else 0.0 for j in range(len(words))] for i in range(len(words))]
    found = {"bleu": 41.25, "exact_match": 0.125, "support": 1.5, "source_words": 6.0}
    found["samples"] = [{"source": words, "written": words, "weights": weights}]
    curve = [{"epoch": i, "valid_accuracy": 0.5 + i / 10} for i in range(2)]
    rows = [
        {"row": name, "corpus": "multi30k-fr-en", "control": 0.5 if kind.grid else None, "tests": {"test_2016": found}}
        | {"curve": curve, "valid_accuracy": 0.6, "seed": 3}
        for name, kind in generation.ROWS.items()
    ]
    summary = {"table": translation.EXPERIMENT.table(rows), "tried": [], "chosen": {}, "leads": []}
    return made("translation", summary, rows, corpora=["multi30k-fr-en"], maps=list(generation.ROWS), seeds=1)


def made_properties():
    claimed = dict.fromkeys(properties.MARKS, "yes") | {"lipschitz": "1"}
    rows = [{"name": name, "measured": {**claimed, "scale": "no"}, "claimed": claimed} for name in MAPS]
    errata = [{"name": "E1", "claim": "lam -> 1 & more", "measured": "(0.5, 0.3): 0.125"}]
    return made("properties", {"cells": 72, "equal": 71, "errata": errata}, rows)


MADE = {"properties": made_properties, "synthetic": made_synthetic, "real": made_real, "translation": made_translation}
VOID = {"img", "meta", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """A page as its tags, texts and what is wrong with its nesting."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.wrong, self.words, self.verdicts = [], [], [], [], []
        self.feed(text)
        self.close()
        self.wrong += self.open
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)
        if self.open[-2:] == ["td", "span"] and "class" in self.tags[-1][1]:
            self.verdicts.append((self.tags[-1][1]["class"], data))

    def all(self, *names):
        return [attributes for tag, attributes in self.tags if tag in names]
