"""The command line: `sparsegen tour`, `explore`, `reproduce`, `train`, `translate` and more."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

try:
    import typer
    from rich.console import Console
    from rich.table import Table

    from sparsegen.cli.running import run, run_all
    from sparsegen.experiments.terminal import table
except ImportError as error:
    raise SystemExit(
        f"sparsegen: the command line needs {error.name}, which is not installed: pip install 'sparsegen[experiments]'."
    ) from error

import sparsegen
from sparsegen.cli import tour as _tour

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Probability maps with a dial.")


@app.callback()
def _top() -> None:
    """Probability maps with a dial."""


def _map_table() -> Table:
    scores = ", ".join(f"{z:g}" for z in _tour.SCORES)
    made = table(f"Every map on z = ({scores})", "map", "probabilities", "support", "threshold")
    for row in _tour.map_rows():
        p = " ".join(f"{'0' if v == 0 else f'{v:.2f}':>4}" for v in row.p)
        name = f"{row.name} {row.control}".strip()
        made.add_row(name, p, str(row.support_size), f"{row.threshold:.2f}")
    return made


def _speed_table(seconds: float) -> Table:
    title = "Speed beside torch.softmax (float32, one thread, medians)"
    made = table(title, "rows x K", "nonzeros a row", "sparsegen_lin", "softmax", "ratio")
    for row in _tour.speed_rows(seconds):
        ours, softmax = f"{row.sparsegen_us:.0f} us", f"{row.softmax_us:.0f} us"
        made.add_row(f"{row.rows} x {row.n}", f"{row.support:.1f}", ours, softmax, f"{row.ratio:.2f}")
    return made


@app.command("tour")
def show_tour(seconds: float = typer.Option(1.0, min=0.0, help="Time for each measurement.")) -> None:
    """Show each map on one vector, and the speed beside softmax."""
    console = Console()
    console.print(f"sparsegen {sparsegen.__version__}: probability maps with a dial\n", highlight=False)
    console.print(_map_table())
    console.print("Towards lam = 1 sparsegen gets sparser; towards minus infinity, denser.\n", highlight=False)
    try:
        console.print(_speed_table(seconds))
    except ImportError:
        console.print(
            "Speed is measured beside torch, which is not installed: pip install 'sparsegen[torch]'.", markup=False
        )


class Scale(str, Enum):
    """How much is run."""

    smoke = "smoke"
    small = "small"
    paper = "paper"


class Engine(str, Enum):
    """What runs the cells of a sweep."""

    joblib = "joblib"
    dask = "dask"
    ray = "ray"


SCALE = typer.Option(Scale.small, help="smoke: seconds; small: minutes; paper: the paper's sizes.")
SEED = typer.Option(0, min=0, help="First seed; the same numbers for the same seed.")
JOBS = typer.Option(0, min=0, help="Worker processes; 0: as many as cores.")
OUT = typer.Option(Path("reproduction"), help="Folder for results; an interrupted run is resumed from it.")
DATA = typer.Option(None, help="Folder of the data sets; else SPARSEGEN_DATA.", file_okay=False)
ENGINE = typer.Option(Engine.joblib, help="Where the cells run.")
ADDRESS = typer.Option(None, help="Address of an existing Dask scheduler or Ray cluster.")

reproduce = typer.Typer(no_args_is_help=True, help="Run the paper's experiments.")
app.add_typer(reproduce, name="reproduce")


@contextmanager
def _said_plainly(out: Path | None = None) -> Iterator[None]:
    """What a person can mend is said in a line, not in a traceback."""
    from sparsegen.experiments.sweep import SweepError

    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            kept = f"What is finished is kept in {out}; the same command goes on from there."
            typer.echo(f"Interrupted. {kept if out.exists() else 'Nothing was finished yet.'}")
        raise typer.Exit(130) from None
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except (FileNotFoundError, ValueError, SweepError, ImportError, OSError) as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from None


def _reproduce(experiment: str, jobs: int, out: Path, data: Path | None, **options: Any) -> None:
    with _said_plainly(out):
        run(experiment, out=out, data=data, console=Console(), jobs=jobs or sparsegen.get_num_threads(), **options)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@reproduce.command()
def properties(
    seed: int = SEED, jobs: int = JOBS, out: Path = OUT, engine: Engine = ENGINE, address: str = ADDRESS
) -> None:
    """Measure the paper's Table 1 for every map, and the numbers behind its errata."""
    _reproduce("properties", jobs, out, None, seed=seed, engine=engine.value, address=address)


@reproduce.command()
def figures(out: Path = OUT) -> None:
    """Draw the paper's figures of the maps, and an atlas of all of them."""
    with _said_plainly():
        from sparsegen.experiments.table1 import map_figures

        for path in map_figures.draw(out / "figures"):
            typer.echo(f"wrote {path}")


@reproduce.command()
def synthetic(
    scale: Scale = SCALE, seed: int = SEED, jobs: int = JOBS, out: Path = OUT, engine: Engine = ENGINE,
    address: str = ADDRESS,
) -> None:  # fmt: skip
    """Multilabel learning on the paper's synthetic documents: F-score, JSD and sparsity figures."""
    _reproduce("synthetic", jobs, out, None, scale=scale.value, seed=seed, engine=engine.value, address=address)


@reproduce.command()
def real(
    scale: Scale = SCALE, seed: int = SEED, jobs: int = JOBS, out: Path = OUT, data: Path = DATA,
    sets: str = typer.Option("", help="Names of data sets, with commas; else those of the scale."),
    openml: bool = typer.Option(False, "--openml", help="Download from OpenML instead (no Mulan split there)."),
    engine: Engine = ENGINE, address: str = ADDRESS,
) -> None:  # fmt: skip
    """Multilabel learning on real data: Scene, Emotions and Birds beside the paper, and larger sets."""
    options = {"scale": scale.value, "seed": seed, "engine": engine.value, "address": address}
    _reproduce("real", jobs, out, data, sets=_names(sets), openml=openml, **options)


CORPORA = typer.Option("", help="Names of corpora, with commas; else those of the experiment.")
MAPS = typer.Option("", help="Rows of the table, with commas: softmax, sparsemax, sparsegen-lin, sparsehg; else all.")


@reproduce.command()
def translation(
    scale: Scale = SCALE, seed: int = SEED, jobs: int = JOBS, out: Path = OUT, data: Path = DATA,
    corpora: str = CORPORA, maps: str = MAPS, engine: Engine = ENGINE, address: str = ADDRESS,
) -> None:  # fmt: skip
    """Translate with attention by every map: BLEU, support and heatmaps. numbers-fr-en needs no data."""
    options = {"scale": scale.value, "seed": seed, "engine": engine.value, "address": address}
    _reproduce("translation", jobs, out, data, corpora=_names(corpora), maps=_names(maps), **options)


@reproduce.command()
def summarization(
    scale: Scale = SCALE, seed: int = SEED, jobs: int = JOBS, out: Path = OUT, data: Path = DATA,
    corpora: str = CORPORA, maps: str = MAPS, engine: Engine = ENGINE, address: str = ADDRESS,
) -> None:  # fmt: skip
    """Write headlines with attention by every map: ROUGE, support and heatmaps."""
    options = {"scale": scale.value, "seed": seed, "engine": engine.value, "address": address}
    _reproduce("summarization", jobs, out, data, corpora=_names(corpora), maps=_names(maps), **options)


@reproduce.command("all")
def everything(scale: Scale = SCALE, seed: int = SEED, jobs: int = JOBS, out: Path = OUT, data: Path = DATA) -> None:
    """Run all of these one after another and write report.html; without data, those that need none."""
    with _said_plainly(out):
        processes = jobs or sparsegen.get_num_threads()
        fine = run_all(out=out, data=data, console=Console(), jobs=processes, scale=scale.value, seed=seed)
        if not fine:
            raise typer.Exit(1)


@app.command()
def report(
    results: list[Path] = typer.Argument(..., help="Result files, or folders of them.", exists=True),
    out: Path = typer.Option(Path("report.html"), help="The page to write."),
) -> None:
    """Make one HTML page of saved Results: tables, figures and ledger. Nothing is run."""
    with _said_plainly():
        from sparsegen.report import page as reports

        found, others = reports.read(results)
        if others:
            typer.echo(f"left out, as they hold no experiment: {', '.join(path.name for path in others)}")
        reports.write(found, out)
        typer.echo(f"wrote {out}")


def _control(mapping: str, **controls: float | None) -> float | None:
    """The control of a map; that of another is refused, not taken for it."""
    from sparsegen._table.checks import fail
    from sparsegen._table.maps import MAPS

    if mapping not in MAPS:
        fail(ValueError, "mapping", "one of " + ", ".join(map(repr, MAPS)), repr(mapping))
    given = {name: value for name, value in controls.items() if value is not None}
    for name, value in given.items():
        if name not in MAPS[mapping].controls:
            fail(ValueError, name, f"absent for mapping {mapping!r}, which has no such control", value)
    return next(iter(given.values()), None)


@app.command()
def explore(
    out: Path = typer.Option(Path("sparsegen-explore.html"), help="The file to write: a page that needs nothing else."),
    scores: str = typer.Option(None, help="Scores to begin with, such as 1.2,0.9,0.5."),
    mapping: str = typer.Option(None, help="Map to begin with: sparsegen_lin, sparsehourglass, ..."),
    lam: float = typer.Option(None, help="Control of sparsegen."),
    q: float = typer.Option(None, help="Control of sparsecone and sparsehourglass."),
    temperature: float = typer.Option(None, help="Control of softmax."),
    show: bool = typer.Option(True, "--open/--no-open", help="Open the page in the browser."),
) -> None:
    """Write the page to play with every map, and open it in the browser."""
    with _said_plainly():
        import webbrowser

        from sparsegen import explore as pages
        from sparsegen.experiments.store import write_text

        shown = pages.state(scores, mapping, lam=lam, q=q, temperature=temperature)
        write_text(out, pages.page(shown))
        link = pages.address(out, shown)
        opened = show and webbrowser.open(link)
        typer.echo(f"wrote {out}" if opened else f"wrote {out}; open it in a browser: {link}")


@app.command()
def train(
    out: Path = typer.Option(..., help="Folder of the run; one begun there with the same settings is resumed."),
    corpus: str = typer.Option(None, help="numbers-fr-en (needs no data), multi30k-fr-en, tatoeba-fr-en, gigaword..."),
    data: Path = DATA,
    source: Path = typer.Option(None, help="Instead: source sentences, a line each, words separated by spaces."),
    target: Path = typer.Option(None, help="Their translations, line by line."),
    valid_source: Path = typer.Option(None, help="Sentences to validate on."),
    valid_target: Path = typer.Option(None, help="Their translations."),
    limit: int = typer.Option(None, min=1, help="Train on the first pairs only."),
    max_words: int = typer.Option(50, min=1, help="Leave longer sentences out of training."),
    mapping: str = typer.Option("sparsegen_lin", help="softmax, sparsemax, sparsegen_lin, sparsehourglass, ..."),
    lam: float = typer.Option(None, help="Control of sparsegen."),
    q: float = typer.Option(None, help="Control of sparsecone and sparsehourglass."),
    temperature: float = typer.Option(None, help="Control of softmax."),
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
    threads: int = typer.Option(None, min=1, help="Threads; 1 is fastest for small models and on busy machines."),
) -> None:  # fmt: skip
    """Train an encoder-decoder with sparse attention; alone, or under torchrun on several processes."""
    with _said_plainly(out):
        from sparsegen.cli import translator as text
        from sparsegen.experiments.seq2seq.training import TrainConfig

        given = text.Text(corpus, data, source, target, valid_source, valid_target, limit, max_words)
        control = _control(mapping, lam=lam, q=q, temperature=temperature)
        model = {
            "embedding": embedding, "hidden": hidden, "layers": layers, "dropout": dropout, "attention": attention,
            "mapping": mapping, "control": control, "learnable": learnable,
        }  # fmt: skip
        per = "word" if optimizer == "adam" else "sentence"  # as each is usually set up
        training = TrainConfig(
            epochs=epochs, batch_size=batch_size, optimizer=optimizer, lr=lr, decay_from=decay_from, clip=clip, per=per,
            seed=seed, patience=patience,
        )  # fmt: skip
        text.train(
            given, model, training, out, Console(), min_count=min_count, sentencepiece=sentencepiece, threads=threads
        )


@app.command()
def translate(
    model: Path = typer.Argument(..., help="A checkpoint, such as best.pt in the folder of a run."),
    beam: int = typer.Option(5, min=1, help="1: greedy."),
    tokenize: str = typer.Option(None, help="en or fr: lower-case the lines and cut them into words first."),
    unknown: bool = typer.Option(True, help="Replace unknown words by the source word they attend to."),
    attention: Path = typer.Option(None, help="Save the heatmaps: .png, .svg or .pdf, or .json with the numbers."),
    max_words: int = typer.Option(None, min=1, help="Longest translation."),
) -> None:
    """Translate the lines of standard input to standard output."""
    with _said_plainly():
        from sparsegen.cli import translator as text

        text.run_translate(
            model, sys.stdin, sys.stdout, beam=beam, language=tokenize, replace_unknown=unknown, attention=attention,
            max_words=max_words,
        )  # fmt: skip


class Bench(str, Enum):
    """What is measured."""

    maps = "maps"
    scaling = "scaling"
    losses = "losses"
    attention = "attention"
    estimator = "estimator"
    all = "all"


@app.command()
def bench(
    name: Bench = typer.Argument(Bench.maps, help="What to measure."),
    seconds: float = typer.Option(None, min=0.0, help="Time for each case; else the benchmark's own."),
    threads: str = typer.Option(None, help="Numbers of threads, with commas, such as 1,2."),
    quick: bool = typer.Option(False, "--quick", help="Toy sizes, a second; nothing is written without --out."),
    out: Path = typer.Option(None, help="Folder for JSON and figures; else bench.", file_okay=False),
    data: Path = DATA,
) -> None:
    """Measure speed beside torch.softmax and other libraries, on this machine. Wrong answers get no time."""
    with _said_plainly():
        from sparsegen.bench import measure
        from sparsegen.bench import run as benches

        counts = measure.thread_counts(threads) if threads is not None else None
        folder = out or (None if quick else Path("bench"))
        benches.run(name.value, measure.Settings(seconds, counts, quick, data), folder, benches.console())


def main() -> None:
    """Run the command line."""
    app()
