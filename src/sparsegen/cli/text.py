"""`sparsegen train` and `sparsegen translate`: an encoder-decoder with sparse attention on any parallel text."""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from rich.console import Console

from sparsegen._table.checks import fail, one_of
from sparsegen._table.extras import needed
from sparsegen._table.maps import MAPS
from sparsegen.cli.messages import said_plainly
from sparsegen.cli.options import DATA


def _control(mapping: str, **controls: float | None) -> float | None:
    """The dial of a map; that of another is refused, not taken for it."""
    if mapping not in MAPS:
        fail(ValueError, "--mapping", one_of(MAPS), repr(mapping))
    given = {name: value for name, value in controls.items() if value is not None}
    for name, value in given.items():
        if name not in MAPS[mapping].controls[:1]:
            fail(ValueError, f"--{name}", f"absent for mapping {mapping!r}, which has no such control", value)
    return next(iter(given.values()), None)


def train(
    out: Path = typer.Option(..., help="Folder of the run; one begun there with the same settings is resumed."),
    corpus: str = typer.Option(None, help="numbers-fr-en (needs no data), multi30k-fr-en, tatoeba-fr-en, gigaword..."),
    data: Path = DATA,
    source: Path = typer.Option(None, help="Instead: source sentences, a line each, words apart by spaces."),
    target: Path = typer.Option(None, help="Their translations, line by line."),
    valid_source: Path = typer.Option(None, help="Sentences to validate on; needed with --source."),
    valid_target: Path = typer.Option(None, help="Their translations; needed with --source."),
    limit: int = typer.Option(None, min=1, help="Train on the first pairs only."),
    max_words: int = typer.Option(50, min=1, help="Leave longer sentences out of training."),
    mapping: str = typer.Option("sparsegen_lin", help="softmax, sparsemax, sparsegen_lin, sparsehourglass, ..."),
    lam: float = typer.Option(None, help="Control of sparsegen."),
    q: float = typer.Option(None, help="Control of sparsecone and sparsehourglass."),
    temperature: float = typer.Option(None, help="Control of softmax."),
    alpha: float = typer.Option(None, help="Control of entmax."),
    learnable: bool = typer.Option(False, "--learnable", help="Train the control too."),
    attention: str = typer.Option("additive", help="additive, general or dot."),
    embedding: int = typer.Option(256, min=1), hidden: int = typer.Option(256, min=2),
    layers: int = typer.Option(1, min=1), dropout: float = typer.Option(0.3, min=0.0, max=0.99),
    epochs: int = typer.Option(9, min=1), batch_size: int = typer.Option(64, min=1),
    optimizer: str = typer.Option("adam", help="adam or sgd."), lr: float = typer.Option(1.5e-3),
    decay_from: int = typer.Option(5, min=1, help="Halve the learning rate each epoch after this many."),
    clip: float = typer.Option(1.0, help="Largest norm of the gradient."),
    patience: int = typer.Option(None, min=1, help="Stop after so many epochs without a better one."),
    min_count: int = typer.Option(2, min=1, help="Rarer words are unknown."),
    sentencepiece: int = typer.Option(None, min=8, help="Use SentencePiece with so many pieces, not words."),
    seed: int = typer.Option(0, min=0, help="The same numbers for the same seed."),
    threads: int = typer.Option(None, min=1, help="Threads; else one for small models and all for large."),
) -> None:  # fmt: skip
    """Train an encoder-decoder with sparse attention; alone, or under torchrun on several processes."""
    with said_plainly(out):
        with needed("sparsegen train", "torch"):
            from sparsegen.cli import translator
            from sparsegen.experiments.seq2seq.training import TrainConfig

        given = translator.Text(corpus, data, source, target, valid_source, valid_target, limit, max_words)
        control = _control(mapping, lam=lam, q=q, temperature=temperature, alpha=alpha)
        model = {
            "embedding": embedding, "hidden": hidden, "layers": layers, "dropout": dropout, "attention": attention,
            "mapping": mapping, "control": control, "learnable": learnable,
        }  # fmt: skip
        per = "word" if optimizer == "adam" else "sentence"  # as each is usually set up
        training = TrainConfig(
            epochs=epochs, batch_size=batch_size, optimizer=optimizer, lr=lr, decay_from=decay_from, clip=clip, per=per,
            seed=seed, patience=patience,
        )  # fmt: skip
        translator.train(
            given, model, training, out, Console(), min_count=min_count, sentencepiece=sentencepiece, threads=threads
        )


def translate(
    model: Path = typer.Argument(..., help="A checkpoint, such as best.pt in the folder of a run."),
    beam: int = typer.Option(5, min=1, help="1: greedy."),
    tokenize: str = typer.Option(None, help="en or fr: lower-case the lines and cut them into words first."),
    unknown: bool = typer.Option(True, help="Replace unknown words by the source word they attend to."),
    attention: Path = typer.Option(None, help="Save the heatmaps: .png, .svg or .pdf, or .json with the numbers."),
    max_words: int = typer.Option(None, min=1, help="Longest translation."),
) -> None:
    """Translate the lines of standard input to standard output."""
    with said_plainly():
        with needed("sparsegen translate", "torch"):
            from sparsegen.cli import translator

        translator.run_translate(
            model, sys.stdin, sys.stdout, beam=beam, language=tokenize, replace_unknown=unknown, attention=attention,
            max_words=max_words,
        )  # fmt: skip
