"""The paper's attention experiments: translation and summarization with every map, on corpora this side of a cluster.

For each row of the paper's table and each corpus the control is chosen as in the paper: a model is trained in full
with each value, and the one with the best validation accuracy is kept. It is then trained with every seed; the best
epoch, by validation accuracy again, writes the test sets by beam search, and the text is scored. Rows differ in the map
alone: the same seed gives the same initial weights and the same order of sentences.
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

from sparsegen._table.checks import fail, one_of
from sparsegen.experiments import sweep
from sparsegen.experiments.folders import DATA_VARIABLE, RUNS_VARIABLE, environment
from sparsegen.experiments.registry import experiments
from sparsegen.experiments.seq2seq import joining, text_metrics
from sparsegen.experiments.seq2seq.batches import Pairs, encode
from sparsegen.experiments.seq2seq.comparison import ROWS, Comparison, meant
from sparsegen.experiments.seq2seq.corpora import Corpus, load_corpus
from sparsegen.experiments.seq2seq.model import ModelConfig
from sparsegen.experiments.seq2seq.search import Translation, copied_words, mean_support, translate
from sparsegen.experiments.seq2seq.threads import suited_threads
from sparsegen.experiments.seq2seq.training import BEST, TrainConfig, Trainer, load_model, suited_precision
from sparsegen.experiments.seq2seq.vocabulary import WordVocabulary
from sparsegen.experiments.store import Result, Stopwatch, to_json, write_text

VERSION = "5"  # of the cells: raised when they would give other numbers
LOOKED_AT = 200  # validation sentences on which the support of a short run is measured
SAMPLES = 3  # sentences of each test set whose heatmaps are kept


@dataclass(frozen=True)
class Preset:
    """Sizes of a scale: of the model, of training, of the search."""

    embedding: int
    hidden: int
    layers: int
    train: TrainConfig
    dropout: float = 0.3
    pairs: int | None = None  # of the training set
    min_count: int = 2  # of a word of the vocabulary
    max_vocabulary: int | None = 50_000
    max_words: int = 50  # of a training sentence
    test_lines: int | None = None
    beam: int = 5


_FAST = suited_precision()
_SGD = TrainConfig(epochs=13, optimizer="sgd", lr=1.0, per="sentence", decay_from=8)
_SMALL = TrainConfig(epochs=6, batch_size=128, lr=3e-3, decay_from=3, clip=1.0, precision=_FAST)
_SMOKE = TrainConfig(epochs=1, batch_size=16)
PRESETS = {
    "smoke": Preset(16, 16, 1, _SMOKE, pairs=64, test_lines=8, beam=2, min_count=1),
    "small": Preset(192, 256, 1, _SMALL, min_count=3),
    "paper": Preset(500, 500, 2, _SGD, pairs=1_000_000),
}
# The generated corpus is easy: every word of it is frequent, and few epochs do. Its controls are not tuned.
NUMBERS = Preset(
    96, 192, 1, TrainConfig(epochs=4, batch_size=128, lr=4e-3, decay_from=3, clip=1.0, precision=_FAST), dropout=0.1,
    min_count=1, beam=1,
)  # fmt: skip
NUMBERS_CONTROLS = {"softmax (with temp.)": 0.5, "sparsegen-lin": 0.75, "sparsehg": 1.0, "sparsegen-softmax": 0.5}


# Headlines: sources are twice as long as Multi30k's, targets half as long. Every corpus gets about 1000 steps: the two
# small ones by half the batch, the 50 000 titles of the ACL by two epochs. Of titles only frequent words are learned,
# and others copied.
HEADLINES = replace(PRESETS["small"], train=replace(_SMALL, epochs=6, batch_size=64, decay_from=4), beam=3)
TITLES = replace(PRESETS["small"], train=replace(_SMALL, epochs=2, decay_from=1), min_count=5, beam=3)
SIZED = {"gigaword": HEADLINES, "reuters": HEADLINES, "acl": TITLES}


Names = tuple[str, ...]


def preset(scale: str, corpus: str) -> Preset:
    """Return the sizes of a scale for a corpus."""
    if scale not in PRESETS:
        fail(ValueError, "scale", one_of(PRESETS), repr(scale))
    if scale != "small":
        return PRESETS[scale]
    return NUMBERS if corpus.startswith("numbers") else SIZED.get(corpus, PRESETS["small"])


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


def prepare(name: str, scale: str) -> Prepared:
    """Load a corpus and number its words."""
    return _prepared(name, scale, os.environ.get(DATA_VARIABLE))


@cache
def _prepared(name: str, scale: str, folder: str | None) -> Prepared:
    sizes = preset(scale, name)
    corpus = load_corpus(name, folder, limit=sizes.pairs)
    options: dict[str, Any] = {"min_count": sizes.min_count, "max_size": sizes.max_vocabulary}
    source = WordVocabulary.build(corpus.train.sources, **options)
    target = WordVocabulary.build(corpus.train.targets, **options)
    splits = corpus.train, corpus.valid.first(sizes.test_lines)
    kept, held = (encode(split, source, target, sizes.max_words) for split in splits)
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
def _trained(corpus: str, scale: str, mapping: str, control: float | None, seed: int) -> Iterator[Trainer]:
    """Train, or go on training; the run's folder is there while the trainer is in use."""
    sizes, data = preset(scale, corpus), prepare(corpus, scale)
    config = ModelConfig(
        len(data.source), len(data.target), sizes.embedding, sizes.hidden, sizes.layers, sizes.dropout,
        mapping=mapping, control=control,
    )  # fmt: skip
    training = replace(sizes.train, seed=seed)
    with (
        _run_folder(corpus, scale, mapping, control, seed, f"v{VERSION}") as folder,
        suited_threads(config, training.batch_size),
    ):
        trainer = Trainer(config, training, data.train, data.valid, data.vocabularies, folder)
        trainer.run(_keep_curve)
        yield trainer


def tune(corpus: str, scale: str, mapping: str, control: float, seed: int) -> dict[str, Any]:
    """Train with one value of the control; return its best validation accuracy, and how sparsely it attends."""
    data = prepare(corpus, scale)
    with _trained(corpus, scale, mapping, control, seed) as trainer:
        best, (model, _, _) = trainer.best, load_model(trainer.folder / BEST)
        written = translate(model, data.source, data.target, data.corpus.valid.sources[:LOOKED_AT], beam=1)
    assert best is not None  # at least one epoch was trained
    found = {"valid_accuracy": best["valid_accuracy"], "valid_loss": best["valid_loss"]}
    found |= {"support": mean_support(written), "seconds": trainer.seconds}
    return {**found, "samples": [_sample(t) for t in written[:SAMPLES]]}


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
            "written": texts,
            "exact_match": text_metrics.exact_match(texts, split.references),
            "support": mean_support(written),
            **copied_words(written, split.references),
            "source_words": sum(len(t.source) for t in written) / len(written),
            "seconds": seconds,
            "lines": len(split),
            "samples": [_sample(t) for t in written[:SAMPLES]],
        }
    return found


def final(corpus: str, scale: str, mapping: str, control: float | None, seed: int) -> dict[str, Any]:
    """Train, take the best epoch, write and score the test sets."""
    sizes, data = preset(scale, corpus), prepare(corpus, scale)
    with _trained(corpus, scale, mapping, control, seed) as trainer:
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


def choose(todo: list[dict[str, Any]], found: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return, for each corpus and each row that has a control, the value with the best validation accuracy."""
    best: dict[str, dict[str, dict[str, Any]]] = {}
    for cell, output in zip(todo, found):
        row = {"control": cell["control"], "valid_accuracy": output["valid_accuracy"]}
        name = next(n for n, r in ROWS.items() if r.mapping == cell["mapping"] and cell["control"] in r.grid)
        chosen = best.setdefault(cell["corpus"], {})
        if name not in chosen or row["valid_accuracy"] > chosen[name]["valid_accuracy"]:
            chosen[name] = row
    return best


def _candidates(corpora: Names, maps: Names, shared: dict[str, Any]) -> list[dict[str, Any]]:
    """The trainings that choose controls; none where they are given."""
    return [
        {"corpus": corpus, "mapping": ROWS[name].mapping, "control": value, **shared}
        for corpus in corpora
        if not corpus.startswith("numbers")
        for name in maps
        for value in ROWS[name].grid
    ]


def _borrowed(corpora: Names, chosen: dict[str, dict[str, dict[str, Any]]], other: str) -> dict[str, Any]:
    """The controls of corpora where one chooses for all: to the others' values its name is added."""
    own = chosen.get(other, {})  # none where no row has a control
    lent = {name: {"control": found["control"], "from": other} for name, found in own.items()}
    return {corpus: own if corpus == other else lent for corpus in corpora}


def _given(corpora: Names, maps: Names) -> dict[str, dict[str, dict[str, Any]]]:
    """The controls of the generated corpora, which are not tuned."""
    known = {name: {"control": NUMBERS_CONTROLS[name]} for name in maps if name in NUMBERS_CONTROLS}
    return {corpus: known for corpus in corpora if corpus.startswith("numbers")}


def _checked(experiment: Comparison, scale: str, corpora: Iterable[str], maps: Iterable[str]) -> tuple[Names, Names]:
    """The corpora and the rows meant, or a refusal; a missing file is said before any work."""
    names = meant(maps) or tuple(ROWS)
    for name in names:
        if name not in ROWS:
            fail(ValueError, "maps", "among " + ", ".join(map(repr, ROWS)), repr(name))
    chosen = tuple(corpora) or experiment.corpora
    for corpus in chosen:
        found = prepare(corpus, scale).corpus.task
        if found != experiment.name:
            fail(ValueError, "corpora", f"for {experiment.name}", f"{corpus!r}, which is for {found}")
    return chosen, names


@contextmanager
def _runs(store: Path | None) -> Iterator[None]:
    """Keep the trainings of a run beside its cells, or until it ends: what chose a control is not trained again."""
    if store is not None:
        with environment({RUNS_VARIABLE: str(Path(store).resolve() / "runs")}):
            yield
        return
    with TemporaryDirectory(prefix="sparsegen-runs-") as folder, environment({RUNS_VARIABLE: folder}):
        yield


def _trained_cells(
    corpora: Names, maps: Names, seeds: range, chosen: dict[str, dict[str, dict[str, Any]]], scale: str
) -> list[tuple[str, dict[str, Any]]]:
    """The name of a row and its cell, for every corpus, seed and map: one corpus after the other."""
    return [
        (name, {"corpus": corpus, "mapping": ROWS[name].mapping, "scale": scale, "seed": seed}
         | {"control": chosen.get(corpus, {}).get(name, {}).get("control")})
        for corpus in corpora
        for seed in seeds
        for name in maps
    ]  # fmt: skip


def _leads(experiment: Comparison, corpora: Names, rows: list[dict[str, Any]], scale: str) -> list[dict[str, Any]]:
    """How far the rows are apart; what they wrote is taken from them, as it would fill the file."""
    found = []
    for corpus in corpora:
        lines = preset(scale, corpus).test_lines
        tests = {name: split.first(lines) for name, split in prepare(corpus, scale).corpus.tests.items()}
        found += experiment.leads(corpus, [row for row in rows if row["corpus"] == corpus], tests)
    for row in rows:
        for test in row["tests"].values():
            del test["written"]
    return found


def run(
    experiment: Comparison, scale: str = "small", *, corpora: Iterable[str] = (), maps: Iterable[str] = (),
    controls_from: str = "", seed: int = 0, seeds: int = 1, store: Path | None = None, beside: Path | None = None,
    **how: Any,
) -> Result:  # fmt: skip
    """Run an experiment and return its Result.

    Parameters
    ----------
    experiment : Comparison
    scale : str
    corpora, maps : iterable of str
        Without them, those of the experiment and all rows of the table.
    controls_from : str
        A corpus on whose validation the controls of all corpora of the run are chosen; else each chooses its own.
    seed, seeds : int
        The first seed, and how many.
    store : path, optional
        Folder of the finished cells and trainings.
    beside : path, optional
        A file with a Result of this experiment: its other corpora are in the Result that is returned, too, and so are
        its other rows of the same corpora, where the two runs agree in what both have. Other corpora that cannot stand
        beside this run are refused before any work.
    how
        For :func:`sparsegen.experiments.sweep.run`.
    """
    corpora, maps = _checked(experiment, scale, corpora, maps)
    tuned = _checked(experiment, scale, (controls_from,), ())[0] if controls_from else corpora
    clock, drawn = Stopwatch(), range(seed, seed + max(1, seeds))
    config: dict[str, Any] = {"task": experiment.name, "scale": scale, "corpora": list(corpora), "maps": list(maps)}
    config |= {"seeds": len(drawn), "presets": {corpus: asdict(preset(scale, corpus)) for corpus in corpora}}
    config["controls_from"] = {corpus: controls_from for corpus in corpora if controls_from not in ("", corpus)}
    if beside is not None:
        joining.check_others(beside, experiment.name, config, seed)
    candidates = _candidates(tuned, maps, {"scale": scale, "seed": seed})
    with _runs(store):
        tried = sweep.run(tune, candidates, store=store, version=VERSION, **how) if candidates else []
        chosen = choose(candidates, tried) | _given(tuned, maps)
        if controls_from:
            chosen = _borrowed(corpora, chosen, controls_from)
        cells = _trained_cells(corpora, maps, drawn, chosen, scale)
        outputs = sweep.run(final, [cell for _, cell in cells], store=store, version=VERSION, **how)
    rows = [{"row": name, **cell, **output} for (name, cell), output in zip(cells, outputs)]
    summary = {"leads": _leads(experiment, corpora, rows, scale), "table": experiment.table(rows), "chosen": chosen}
    summary["tried"] = [{**cell, **output} for cell, output in zip(candidates, tried)]
    result = clock.result(experiment.name, config, seed, rows, summary)
    kept = None if beside is None else joining.keeping(Result.load(beside), result)  # as it is by now
    return result if kept is None else joining.join(kept, result)
