"""The paper's attention experiments: translation and summarization with every map, on corpora this side of a cluster.

For each row of the paper's table the control is chosen by validation accuracy on short runs; then a model is trained
in full, its best epoch (by validation accuracy, as in the paper) writes the test sets by beam search, and the text is
scored. Rows differ in the map alone: the same seed gives the same initial weights and the same order of sentences.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sparsegen._table.checks import fail
from sparsegen.experiments import sweep
from sparsegen.experiments.folders import DATA_VARIABLE, RUNS_VARIABLE, environment
from sparsegen.experiments.registry import experiments
from sparsegen.experiments.seq2seq import text_metrics
from sparsegen.experiments.seq2seq.batches import Pairs, encode
from sparsegen.experiments.seq2seq.comparison import ALIASES, ROWS, Comparison
from sparsegen.experiments.seq2seq.corpora import Corpus, load_corpus
from sparsegen.experiments.seq2seq.model import ModelConfig
from sparsegen.experiments.seq2seq.search import Translation, mean_support, translate
from sparsegen.experiments.seq2seq.threads import suited_threads
from sparsegen.experiments.seq2seq.training import BEST, TrainConfig, Trainer, load_model
from sparsegen.experiments.seq2seq.vocabulary import WordVocabulary
from sparsegen.experiments.store import Result, Stopwatch, to_json, write_text

VERSION = "2"  # of the cells: raised when they would give other numbers
LOOKED_AT = 200  # validation sentences on which the support of a short run is measured
SUMMARIES = ("gigaword", "reuters", "acl")
SAMPLES = 3  # sentences of each test set whose heatmaps are kept


@dataclass(frozen=True)
class Preset:
    """Sizes of a scale: of the model, of training, of the short runs that choose controls, of the search."""

    embedding: int
    hidden: int
    layers: int
    train: TrainConfig
    short: TrainConfig
    dropout: float = 0.3
    pairs: int | None = None  # of the training set
    short_pairs: int | None = None
    min_count: int = 2  # of a word of the vocabulary
    max_vocabulary: int | None = 50_000
    max_words: int = 50  # of a training sentence
    test_lines: int | None = None
    beam: int = 5


_SHORT = TrainConfig(epochs=3, batch_size=64, lr=2e-3, decay_from=2, clip=1.0)
_SGD = TrainConfig(epochs=13, optimizer="sgd", lr=1.0, per="sentence", decay_from=8)
_SMALL = TrainConfig(epochs=6, batch_size=64, lr=1.5e-3, decay_from=3, clip=1.0)
_SMOKE = TrainConfig(epochs=1, batch_size=16)
PRESETS = {
    "smoke": Preset(16, 16, 1, _SMOKE, _SMOKE, pairs=64, short_pairs=32, test_lines=8, beam=2, min_count=1),
    "small": Preset(192, 256, 1, _SMALL, _SHORT, short_pairs=6000, min_count=3),
    "paper": Preset(500, 500, 2, _SGD, _SGD, pairs=1_000_000),
}
# The generated corpus is easy: every word of it is frequent, and few epochs do. Its controls are not tuned.
NUMBERS = Preset(
    96, 192, 1, TrainConfig(epochs=4, batch_size=128, lr=4e-3, decay_from=3, clip=1.0), _SHORT, dropout=0.1,
    min_count=1, beam=1,
)  # fmt: skip
NUMBERS_CONTROLS = {"softmax (with temp.)": 0.5, "sparsegen-lin": 0.75, "sparsehg": 1.0}


# Sources are twice as long as Multi30k's, the training sample is a third of its size, and there are three test sets.
HEADLINES = Preset(
    128, 128, 1, TrainConfig(epochs=5, batch_size=32, lr=2e-3, decay_from=3, clip=1.0), _SHORT, short_pairs=2000,
    min_count=3, beam=3,
)  # fmt: skip


Names = tuple[str, ...]


def preset(scale: str, corpus: str) -> Preset:
    """Return the sizes of a scale for a corpus."""
    if scale not in PRESETS:
        fail(ValueError, "scale", "one of " + ", ".join(map(repr, PRESETS)), repr(scale))
    if scale != "small":
        return PRESETS[scale]
    return NUMBERS if corpus.startswith("numbers") else HEADLINES if corpus in SUMMARIES else PRESETS["small"]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A corpus as numbers: pairs to train and validate on, and the vocabularies."""

    corpus: Corpus
    train: Pairs
    valid: Pairs
    source: WordVocabulary
    target: WordVocabulary

    @property
    def vocabularies(self) -> dict[str, Any]:
        """Return the vocabularies' states."""
        return {"source": self.source.state(), "target": self.target.state()}


def prepare(name: str, scale: str, short: bool) -> Prepared:
    """Load a corpus and number its words; a short run sees fewer pairs, but the same vocabulary."""
    return _prepared(name, scale, short, os.environ.get(DATA_VARIABLE))


@cache
def _prepared(name: str, scale: str, short: bool, folder: str | None) -> Prepared:
    sizes = preset(scale, name)
    corpus = load_corpus(name, folder, limit=sizes.pairs)
    options: dict[str, Any] = {"min_count": sizes.min_count, "max_size": sizes.max_vocabulary}
    source = WordVocabulary.build(corpus.train.sources, **options)
    target = WordVocabulary.build(corpus.train.targets, **options)
    train, valid = corpus.train.first(sizes.short_pairs if short else None), corpus.valid.first(sizes.test_lines)
    kept, held = (encode(split, source, target, sizes.max_words) for split in (train, valid))
    return Prepared(corpus, kept, held, source, target)


@contextmanager
def _run_folder(*parts: Any) -> Iterator[Path]:
    """The folder of a training run: kept where the environment says, else for as long as it is used."""
    runs = os.environ.get(RUNS_VARIABLE)
    if runs is not None:
        yield Path(runs, "-".join("none" if part is None else str(part) for part in parts))
        return
    with TemporaryDirectory(prefix="sparsegen-run-") as folder:
        yield Path(folder)


def _keep_curve(trainer: Trainer) -> None:
    if trainer.step == 0:  # an epoch has ended: leave its numbers where a person can look
        write_text(trainer.folder / "curve.json", to_json(trainer.history, indent=1) + "\n")


@contextmanager
def _trained(corpus: str, scale: str, mapping: str, control: float | None, seed: int, short: bool) -> Iterator[Trainer]:
    """Train, or go on training; the run's folder is there while the trainer is in use."""
    sizes, data = preset(scale, corpus), prepare(corpus, scale, short)
    config = ModelConfig(
        len(data.source), len(data.target), sizes.embedding, sizes.hidden, sizes.layers, sizes.dropout,
        mapping=mapping, control=control,
    )  # fmt: skip
    training = replace(sizes.short if short else sizes.train, seed=seed)
    length = "short" if short else "full"
    with (
        _run_folder(corpus, scale, mapping, control, seed, length, f"v{VERSION}") as folder,
        suited_threads(config, training.batch_size),
    ):
        trainer = Trainer(config, training, data.train, data.valid, data.vocabularies, folder)
        trainer.run(_keep_curve)
        yield trainer


def tune(corpus: str, scale: str, mapping: str, control: float, seed: int) -> dict[str, Any]:
    """Train a short run with one value of the control; return its best validation accuracy, and its sparsity."""
    data = prepare(corpus, scale, short=True)
    with _trained(corpus, scale, mapping, control, seed, short=True) as trainer:
        best, (model, _, _) = trainer.best, load_model(trainer.folder / BEST)
        written = translate(model, data.source, data.target, data.corpus.valid.sources[:LOOKED_AT], beam=1)
    assert best is not None  # at least one epoch was trained
    support = mean_support(written)
    found = {"valid_accuracy": best["valid_accuracy"], "valid_loss": best["valid_loss"], "support": support}
    return {**found, "seconds": trainer.seconds}


def _sample(translation: Translation) -> dict[str, Any]:
    weights = [[float(f"{w:.3g}") for w in row] for row in translation.weights]  # short, and what is not 0 stays so
    return {"source": list(translation.source), "written": list(translation.words), "weights": weights}


def write_tests(model: Any, data: Prepared, sizes: Preset) -> dict[str, Any]:
    """Write every test set by beam search and score the text as the experiment of the corpus' task does."""
    experiment = experiments()[data.corpus.task]
    assert isinstance(experiment, Comparison)  # every task of a corpus is one
    found = {}
    for name, whole in data.corpus.tests.items():
        split = whole.first(sizes.test_lines)
        start = time.perf_counter()
        written = translate(model, data.source, data.target, split.sources, beam=sizes.beam)
        seconds = time.perf_counter() - start
        texts = [t.text for t in written]
        found[name] = {
            **experiment.score(name, texts, split),
            "exact_match": text_metrics.exact_match(texts, split.references),
            "support": mean_support(written),
            "source_words": sum(len(t.source) for t in written) / len(written),
            "seconds": seconds,
            "lines": len(split),
            "samples": [_sample(t) for t in written[:SAMPLES]],
        }
    return found


def final(corpus: str, scale: str, mapping: str, control: float | None, seed: int) -> dict[str, Any]:
    """Train in full, take the best epoch, write and score the test sets."""
    sizes, data = preset(scale, corpus), prepare(corpus, scale, short=False)
    with _trained(corpus, scale, mapping, control, seed, short=False) as trainer:
        model, _, _ = load_model(trainer.folder / BEST)
        tests = write_tests(model, data, sizes)
    best = trainer.best
    assert best is not None  # at least one epoch was trained
    return {
        "tests": tests,
        "curve": trainer.history,
        "best_epoch": best["epoch"],
        "valid_accuracy": best["valid_accuracy"],
        "train_seconds": trainer.seconds,
        "train_pairs": len(data.train),
        "left_out": data.train.left_out,
        "parameters": sum(p.numel() for p in model.parameters()),
        "words": [len(data.source), len(data.target)],
    }


def choose(todo: list[dict[str, Any]], found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, for each row that has a control, the value with the best validation accuracy."""
    best: dict[str, dict[str, Any]] = {}
    for cell, output in zip(todo, found):
        row = {"control": cell["control"], "valid_accuracy": output["valid_accuracy"]}
        name = next(n for n, r in ROWS.items() if r.mapping == cell["mapping"] and cell["control"] in r.grid)
        if name not in best or row["valid_accuracy"] > best[name]["valid_accuracy"]:
            best[name] = row
    return best


def _candidates(corpus: str, maps: tuple[str, ...], shared: dict[str, Any]) -> list[dict[str, Any]]:
    """The short runs that choose controls; none where they are given."""
    if corpus.startswith("numbers"):
        return []
    return [
        {"corpus": corpus, "mapping": ROWS[name].mapping, "control": value, **shared}
        for name in maps
        for value in ROWS[name].grid
    ]


def _control(name: str, chosen: dict[str, dict[str, Any]]) -> float | None:
    return chosen[name]["control"] if name in chosen else None


def _checked(experiment: Comparison, scale: str, corpora: Iterable[str], maps: Iterable[str]) -> tuple[Names, Names]:
    """The corpora and the rows meant, or a refusal; a missing file is said before any work."""
    names = tuple(ALIASES.get(name, name) for name in maps) or tuple(ROWS)
    for name in names:
        if name not in ROWS:
            fail(ValueError, "maps", "among " + ", ".join(map(repr, ROWS)), repr(name))
    chosen = tuple(corpora) or experiment.corpora
    for corpus in chosen:
        found = prepare(corpus, scale, False).corpus.task
        if found != experiment.name:
            fail(ValueError, "corpora", f"for {experiment.name}", f"{corpus!r}, which is for {found}")
    return chosen, names


def run(
    experiment: Comparison, scale: str = "small", *, corpora: Iterable[str] = (), maps: Iterable[str] = (),
    seed: int = 0, store: Path | None = None, **how: Any,
) -> Result:  # fmt: skip
    """Run an experiment and return its Result; `how` goes to :func:`sparsegen.experiments.sweep.run`."""
    corpora, maps = _checked(experiment, scale, corpora, maps)
    clock, shared = Stopwatch(), {"scale": scale, "seed": seed}
    short = _candidates(corpora[0], maps, shared)
    runs = {} if store is None else {RUNS_VARIABLE: str(Path(store).resolve() / "runs")}
    with environment(runs):
        tried = sweep.run(tune, short, store=store, version=VERSION, **how) if short else []
        chosen = choose(short, tried) if short else {name: {"control": NUMBERS_CONTROLS.get(name)} for name in maps}
        names = [name for _ in corpora for name in maps]
        cells = [
            {"corpus": corpus, "mapping": ROWS[name].mapping, "control": _control(name, chosen), **shared}
            for corpus in corpora
            for name in maps
        ]
        outputs = sweep.run(final, cells, store=store, version=VERSION, **how)
    rows = [{"row": name, **cell, **output} for name, cell, output in zip(names, cells, outputs)]
    config: dict[str, Any] = {"task": experiment.name, "scale": scale, "corpora": list(corpora), "maps": list(maps)}
    config["presets"] = {corpus: asdict(preset(scale, corpus)) for corpus in corpora}
    tuning = [{**cell, **output} for cell, output in zip(short, tried)]
    summary = {"table": experiment.table(rows), "chosen": chosen, "tried": tuning}
    return clock.result(experiment.name, config, seed, rows, summary)
