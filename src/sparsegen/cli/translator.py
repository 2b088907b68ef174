"""`sparsegen train` and `sparsegen translate`: a readable encoder-decoder on any parallel text, with any map."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sparsegen._table.checks import fail, one_of
from sparsegen.experiments.seq2seq.batches import encode
from sparsegen.experiments.seq2seq.corpora import CORPORA, load_corpus
from sparsegen.experiments.seq2seq.model import ModelConfig
from sparsegen.experiments.seq2seq.search import Translation, translate
from sparsegen.experiments.seq2seq.splits import Split, read_parallel
from sparsegen.experiments.seq2seq.threads import suited_threads
from sparsegen.experiments.seq2seq.tokens import tokenise
from sparsegen.experiments.seq2seq.training import BEST, Place, TrainConfig, Trainer, load_model
from sparsegen.experiments.seq2seq.vocabulary import SentencePieceVocabulary, WordVocabulary
from sparsegen.experiments.store import write_text

AT_ONCE = 32  # lines translated together; one where a person types them
DRAWN = 6  # heatmaps in one picture
PICTURES = (".png", ".svg", ".pdf")


FILES = ("--source", "--target", "--valid-source", "--valid-target")


@dataclass(frozen=True)
class Text:
    """Where the sentences come from: a corpus by name, or two pairs of files. Errors name the options of `train`."""

    corpus: str | None = None
    data: Path | None = None
    source: Path | None = None
    target: Path | None = None
    valid_source: Path | None = None
    valid_target: Path | None = None
    limit: int | None = None
    max_words: int = 50

    def splits(self) -> tuple[Split, Split]:
        """Return what to train and to validate on."""
        files = {flag: getattr(self, flag[2:].replace("-", "_")) for flag in FILES}
        given = [flag for flag, path in files.items() if path is not None]
        if self.corpus is None:
            return self._read(files)
        if given:
            fail(ValueError, given[0], "absent where --corpus is given", files[given[0]])
        if self.corpus not in CORPORA:
            fail(ValueError, "--corpus", one_of(CORPORA), repr(self.corpus))
        found = load_corpus(self.corpus, self.data, limit=self.limit)
        return found.train, found.valid

    def _read(self, files: dict[str, Path | None]) -> tuple[Split, Split]:
        """The sentences of four files, all of which are needed."""
        if missing := [flag for flag, path in files.items() if path is None]:
            fail(ValueError, " and ".join(missing), "given where --corpus is not", "nothing")
        paths = {flag: path for flag, path in files.items() if path is not None}
        for flag, path in paths.items():
            if not path.is_file():
                fail(FileNotFoundError, flag, "a file of sentences", f"{path}, which is not there")
        source, target, valid_source, valid_target = paths.values()
        return read_parallel(source, target).first(self.limit), read_parallel(valid_source, valid_target)


def _vocabulary(lines: Sequence[str], min_count: int, max_size: int, sentencepiece: int | None) -> Any:
    if sentencepiece is not None:
        return SentencePieceVocabulary.build(lines, vocab_size=sentencepiece)
    return WordVocabulary.build(lines, min_count=min_count, max_size=max_size)


def train(
    text: Text, model: dict[str, Any], training: TrainConfig, out: Path, console: Console, *, min_count: int = 2,
    max_vocabulary: int = 50_000, sentencepiece: int | None = None, threads: int | None = None,
) -> Trainer:  # fmt: skip
    """Train a model, or go on with the one begun in `out`; alone, or as one of torchrun's processes."""
    place = Place.of_this_process()
    quiet = console if place.rank == 0 else Console(quiet=True)
    splits = text.splits()
    source, target = (
        _vocabulary(lines, min_count, max_vocabulary, sentencepiece) for lines in (splits[0].sources, splits[0].targets)
    )
    pairs, held = (encode(split, source, target, text.max_words) for split in splits)
    config = ModelConfig(source_words=len(source), target_words=len(target), **model)
    states = {"source": source.state(), "target": target.state()}
    with suited_threads(config, training.batch_size, threads):
        trainer = Trainer(config, training, pairs, held, states, out, place)
        _greet(trainer, quiet)
        _watch(trainer, quiet)
    return trainer


def _greet(trainer: Trainer, console: Console) -> None:
    pairs, config = trainer.train, trainer.model_config
    left_out = f" ({pairs.left_out} empty or too long left out)" if pairs.left_out else ""
    console.print(
        f"{len(pairs)} pairs{left_out}, {config.source_words} and {config.target_words} words", highlight=False
    )
    if trainer.finished:
        console.print(
            f"the run in {trainer.folder} is finished; more --epochs would go on", highlight=False, soft_wrap=True
        )
    elif trainer.history or trainer.step:
        done = f"epoch {trainer.epoch + 1}, step {trainer.step}"
        console.print(f"resuming the run in {trainer.folder} at {done}", highlight=False, soft_wrap=True)


def _watch(trainer: Trainer, console: Console) -> None:
    """Train with a bar a step and a line an epoch."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("epoch 1", total=None)
        steps = -(-len(trainer.train) // trainer.config.batch_size)

        def moved(now: Trainer) -> None:
            if now.step:
                label = f"epoch {now.epoch + 1}  loss {now.sums[0] / max(now.sums[1], 1):.3f}"
                progress.update(task, completed=now.step, total=steps, description=label)
            else:
                console.print(_line(now.history[-1]), highlight=False)

        trainer.run(moved)
    best = trainer.best
    if best is not None:
        text = f"best epoch by accuracy: {best['epoch'] + 1:.0f}, in {trainer.folder / BEST}"
        console.print(text, highlight=False, soft_wrap=True)


def _line(row: dict[str, float]) -> str:
    return (
        f"epoch {row['epoch'] + 1:<3.0f} loss {row['loss']:.3f}  validation loss {row['valid_loss']:.3f}  "
        f"accuracy {row['valid_accuracy']:.3f}  {row['seconds']:.0f} s"
    )


def _chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    held: list[str] = []
    for line in lines:
        held.append(line.rstrip("\n"))
        if len(held) == size:
            yield held
            held = []
    if held:
        yield held


def run_translate(
    model: Path, lines: TextIO, out: TextIO, *, beam: int = 5, language: str | None = None,
    replace_unknown: bool = True, attention: Path | None = None, max_words: int | None = None,
) -> None:  # fmt: skip
    """Translate line by line; the attention of all lines goes to a file if one is named."""
    if attention is not None and attention.suffix not in (*PICTURES, ".json"):
        fail(ValueError, "--attention", "a file that ends in " + ", ".join((*PICTURES, ".json")), attention)
    loaded, source, target = load_model(model)
    kept: list[Translation] = []
    for chunk in _chunks(lines, 1 if lines.isatty() else AT_ONCE):
        words = [tokenise(line, language) if language else line for line in chunk]
        with suited_threads(loaded.config, beam * len(words)):
            found = translate(
                loaded, source, target, words, beam=beam, replace_unknown=replace_unknown, max_words=max_words
            )
        for translation in found:
            out.write(translation.text + "\n")
        out.flush()
        if attention is not None:
            kept += found
    if attention is not None:
        _keep_attention(kept, attention)


def _keep_attention(translations: list[Translation], path: Path) -> None:
    if path.suffix == ".json":
        rows = [{"source": t.source, "weights": t.weights.tolist(), "written": t.words} for t in translations]
        write_text(path, json.dumps(rows) + "\n")  # not our own spelling of numbers: "NaN" may be a word here
        return
    from sparsegen.experiments import drawings
    from sparsegen.experiments.seq2seq import figures

    drawn = [t for t in translations if t.words and t.source][:DRAWN]
    if not drawn:
        fail(ValueError, "--attention", "of at least one line with words", "none was read")
    panels = [figures.Heatmap("", list(t.source), list(t.words), t.weights) for t in drawn]
    drawings.save_as(figures.heatmaps(panels), path)
    if len(drawn) < len(translations):
        print(f"{path} shows the first {len(drawn)} of {len(translations)} lines; .json keeps all.", file=sys.stderr)
