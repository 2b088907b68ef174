"""`sparsegen train` and `sparsegen translate` as a person calls them, and under torchrun."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from sparsegen.cli import app
from sparsegen.cli import translator as text
from sparsegen.experiments.seq2seq import checkpoints
from sparsegen.experiments.seq2seq.search import LONGEST
from sparsegen.experiments.seq2seq.training import BEST, LAST, load_model
from sparsegen.experiments.seq2seq.vocabulary import SentencePieceVocabulary

LETTERS = list("abcdefgh")
SMALL = ["--embedding", 8, "--hidden", 8, "--dropout", 0, "--batch-size", 8, "--epochs", 2, "--min-count", 1]


def invoke(*arguments, lines=None):
    given = None if lines is None else "".join(f"{line}\n" for line in lines)
    return CliRunner().invoke(app, list(map(str, arguments)), input=given)


def sentences(n, seed=0):
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(LETTERS, random.integers(1, 7))) for _ in range(n)]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def files(folder, n=33, valid=8):
    """The options that name four files of sentences, to be written in capitals."""
    folder.mkdir(parents=True, exist_ok=True)
    options = []
    for kind, rows, seed in (("", n, 0), ("valid-", valid, 1)):
        lines = sentences(rows, seed)
        options += [f"--{kind}source", write(folder / f"{kind}s.txt", lines)]
        options += [f"--{kind}target", write(folder / f"{kind}t.txt", [line.upper() for line in lines])]
    return options


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two epochs, its options and what was printed."""
    folder = tmp_path_factory.mktemp("trained")
    options = [*files(folder), *SMALL, "--out", folder / "run"]
    return folder / "run", options, invoke("train", *options)


def contents(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir()}


def refused(done, *parts):
    """The command ended with one line that says what is wrong."""
    assert done.exit_code == 1, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert part in done.stderr
    return done


# Training


def test_train_says_what_it_does_and_leaves_two_checkpoints(trained):
    folder, _, done = trained
    assert done.exit_code == 0, done.output
    assert "33 pairs, 12 and 12 words" in done.stdout
    assert done.stdout.count("validation loss") == 2
    assert f"in {folder / BEST}" in done.stdout
    assert sorted(contents(folder)) == [BEST, LAST]
    found = checkpoints.load(folder / LAST)
    assert found["model_config"]["mapping"] == "sparsegen_lin"
    assert (found["epoch"], len(found["history"])) == (2, 2)


def test_train_goes_on_where_it_stopped(trained, tmp_path):
    folder, options, _ = trained
    first = invoke("train", *options[:-1], tmp_path / "run", "--epochs", 1)
    assert first.exit_code == 0, first.output
    more = invoke("train", *options[:-1], tmp_path / "run")
    assert f"resuming the run in {tmp_path / 'run'} at epoch 2, step 0" in more.stdout
    assert more.stdout.count("validation loss") == 1
    found, expected = (checkpoints.load(path / LAST)["model"] for path in (tmp_path / "run", folder))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_train_refuses_another_run_s_folder_and_leaves_it_alone(trained):
    folder, options, _ = trained
    before = contents(folder)
    done = invoke("train", *options, "--hidden", 10)
    refused(done, "sparsegen: hidden must be 8, as in the run begun in", "got 10.")
    refused(invoke("train", *options, "--lam", 0.5), "control must be None, as in the run begun in", "got 0.5.")
    refused(invoke("train", *options, "--limit", 3), "source_words must be 12, as in the run begun in")
    assert contents(folder) == before


def test_train_on_a_corpus_by_name(tmp_path):
    done = invoke("train", "--corpus", "numbers-fr-en", "--limit", 20, *SMALL, "--epochs", 1, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "20 pairs" in done.stdout
    refused(invoke("train", "--corpus", "nonsense", "--out", tmp_path / "x"), "corpus must be one of", "'nonsense'")
    done = invoke("train", "--corpus", "multi30k-fr-en", "--data", tmp_path, "--out", tmp_path / "x")
    refused(done, "corpus 'multi30k-fr-en' must be in")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--mapping", "nonsense"], ["mapping must be one of", "'nonsense'"]),
        (["--lam", 2], ["lam must be", "got 2.0"]),
        (["--lam", 0.5, "--q", 1], ["absent for mapping"]),
        (["--mapping", "sparsemax", "--lam", 0.5], ["absent for mapping 'sparsemax'"]),
        (["--mapping", "sparsehourglass"], ["q must be given"]),
        (["--hidden", 7], ["hidden must be even"]),
        (["--optimizer", "magic"], ["optimizer must be one of 'adam', 'sgd'"]),
        (["--attention", "loud"], ["attention must be one of"]),
        (["--lr", 0], ["lr must be positive, got 0.0"]),
        (["--clip", -1], ["clip must be positive"]),
        (["--max-words", 1, "--source", "LONG", "--target", "LONG"], ["at least one pair with words on both sides"]),
        (["--source", "EMPTY", "--target", "EMPTY"], ["at least one pair with words on both sides"]),
        (["--sentencepiece", 5000], ["vocab_size must be one this text allows, got 5000"]),
        (["--target", "SHORT"], ["short.txt must be of as many lines as", "(33), got 2: line 3 has no partner"]),
        (["--source", "MISSING"], ["missing.txt"]),
        (["--corpus", "numbers-fr-en"], ["--source must be absent where --corpus is given"]),
    ],
)
def test_train_says_in_a_line_what_is_wrong_and_makes_nothing(tmp_path, options, parts):
    given = files(tmp_path / "text")
    for name, lines in (("LONG", ["a b c"] * 3), ("EMPTY", []), ("SHORT", ["a", "b"])):
        write(tmp_path / "text" / f"{name.lower()}.txt", lines)
    named = [
        tmp_path / "text" / f"{o.lower()}.txt" if o in ("LONG", "EMPTY", "SHORT", "MISSING") else o for o in options
    ]
    refused(invoke("train", *given, *SMALL, *named, "--out", tmp_path / "run"), *parts)
    assert not (tmp_path / "run").exists()


def test_train_refuses_the_control_of_another_map(tmp_path):
    options = [*files(tmp_path, n=8), *SMALL, "--epochs", 1, "--out", tmp_path / "run"]
    refused(invoke("train", *options, "--mapping", "sparsegen_lin", "--temperature", 0.5), "temperature")


def test_train_needs_four_files(tmp_path):
    done = invoke("train", *files(tmp_path)[:4], "--out", tmp_path / "run")
    refused(done, "--valid-source and --valid-target must be given where --corpus is not, got nothing.")


def test_train_refuses_what_is_no_checkpoint_and_leaves_it_alone(tmp_path):
    options = [*files(tmp_path), *SMALL, "--out", tmp_path / "run"]
    (tmp_path / "run").mkdir()
    last = tmp_path / "run" / LAST
    for content in (b"my diary", b""):
        last.write_bytes(content)
        refused(invoke("train", *options), str(last), "torch cannot read")
        assert contents(tmp_path / "run") == {LAST: content}
    last.unlink()
    last.parent.rmdir()
    last.parent.write_text("a file")
    refused(invoke("train", *options), "must be a folder, got the file")
    assert last.parent.read_text() == "a file"


def test_sgd_is_per_sentence_and_adam_per_word(tmp_path):
    options = [*files(tmp_path), *SMALL, "--epochs", 1]
    for name, per in (("sgd", "sentence"), ("adam", "word")):
        assert invoke("train", *options, "--optimizer", name, "--out", tmp_path / name).exit_code == 0
        assert checkpoints.load(tmp_path / name / LAST)["train_config"]["per"] == per


def test_sentences_left_out_are_counted(tmp_path):
    options = files(tmp_path)
    write(tmp_path / "s.txt", ["a b", "a " * 60, "", "b"])
    write(tmp_path / "t.txt", ["A B", "A", "C", "B"])
    done = invoke("train", *options, *SMALL, "--epochs", 1, "--out", tmp_path / "run")
    assert "2 pairs (1 empty or too long left out)" in done.stdout, done.output


def test_pieces_of_words_from_train_to_translate(tmp_path):
    options = files(tmp_path, n=20)
    done = invoke("train", *options, *SMALL, "--epochs", 1, "--sentencepiece", 13, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert "13 and 13 words" in done.stdout
    _, source, target = load_model(tmp_path / "run" / BEST)
    assert isinstance(source, SentencePieceVocabulary)
    assert target.decode(target.encode("A B")) == "A B"
    picture = tmp_path / "weights.json"
    done = invoke("translate", tmp_path / "run" / BEST, "--attention", picture, lines=["a b", "", "zz a"])
    assert done.exit_code == 0, done.output
    assert done.stdout.count("\n") == 3
    assert "\u2581" not in done.stdout
    found = json.loads(picture.read_text())
    assert found[0]["source"] == source.tokens("a b")


# Several processes


def torchrun(*arguments):
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "sparsegen"]
    call = [sys.executable, *launcher, *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, env={**os.environ, **threads}, timeout=180)


def test_two_processes_learn_what_one_does(trained, tmp_path):
    """33 pairs in batches of 8: the last batch is one pair, of which one process has nothing."""
    folder, options, _ = trained
    done = torchrun("train", *options[:-1], tmp_path / "two")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("validation loss") == 2  # one of them speaks
    found, expected = (checkpoints.load(path / LAST) for path in (tmp_path / "two", folder))
    assert sorted(contents(tmp_path / "two")) == [BEST, LAST]
    for ours, theirs in zip(found["history"], expected["history"]):
        for name in ("loss", "valid_loss"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-5)
    for name, weight in expected["model"].items():
        torch.testing.assert_close(found["model"][name], weight, atol=1e-4, rtol=1e-3)


# Translation


@pytest.fixture(scope="module")
def model(trained, tmp_path_factory):
    """A checkpoint with weights so large that it writes something else for everything it reads."""
    kept = checkpoints.load(trained[0] / BEST)
    random = torch.Generator().manual_seed(1)
    for name, weight in kept["model"].items():
        if ".map." not in name:
            weight.uniform_(-1, 1, generator=random)
    path = tmp_path_factory.mktemp("model") / "lively.pt"
    checkpoints.save(path, kept)
    return path


def translated(model, lines, *options):
    done = invoke("translate", model, *options, lines=lines)
    assert done.exit_code == 0, done.output
    assert done.stdout.count("\n") == len(lines)
    return done.stdout.split("\n")[:-1]


def test_translate_keeps_the_order_of_the_lines(model, monkeypatch):
    monkeypatch.setattr(text, "AT_ONCE", 4)
    lines = [*sentences(9, seed=4), "", "unheard-of words", "  "]
    together = translated(model, lines)
    assert len(set(together)) > 5
    assert together == [translated(model, [line])[0] for line in lines]
    assert (together[9], together[11]) == ("", "")
    assert translated(model, []) == []


def test_translate_without_a_last_line_end(model):
    done = CliRunner().invoke(app, ["translate", str(model)], input="a b\r\nc")
    assert done.stdout.split("\n")[:-1] == translated(model, ["a b", "c"])


def test_translate_a_line_of_two_thousand_words(model):
    (found,) = translated(model, [" ".join(LETTERS * 250)], "--beam", 1)
    assert len(found.split()) <= LONGEST
    (found,) = translated(model, ["a b c"], "--max-words", 2)
    assert len(found.split()) <= 2


def unknowing(model, folder):
    """The model, made to write nothing but unknown words."""
    kept = checkpoints.load(model)
    kept["model"]["generator.weight"].zero_()
    kept["model"]["generator.bias"][1] = 30.0
    checkpoints.save(folder / "unknown.pt", kept)
    return folder / "unknown.pt"


def test_translate_replaces_unknown_words_unless_told(model, tmp_path):
    path = unknowing(model, tmp_path)
    (found,) = translated(path, ["xylo yak"], "--max-words", 3, "--beam", 1)
    assert set(found.split()) <= {"xylo", "yak"}
    assert len(found.split()) == 3
    assert translated(path, ["xylo yak"], "--max-words", 3, "--beam", 1, "--no-unknown") == ["<unk> <unk> <unk>"]
    (found,) = translated(path, ["L'Oie"], "--max-words", 1, "--beam", 1, "--tokenize", "fr")
    assert found in ("l'", "oie")
    refused(invoke("translate", path, "--tokenize", "xx", lines=["a"]), "xx")


def test_translate_saves_the_weights(model, tmp_path):
    lines = [*sentences(3, seed=6), "", "NaN Infinity", 'é"'] * 7  # more than are translated at once
    kept = tmp_path / "new" / "weights.json"
    words = translated(model, lines, "--attention", kept)
    found = json.loads(kept.read_text())
    assert [row["source"] for row in found] == [line.split() for line in lines]
    assert [" ".join(row["written"]) for row in found] == words
    for row in found:
        weights = np.array(row["weights"]).reshape(len(row["written"]), len(row["source"]))
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)
    assert any(row["written"] for row in found)


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_translate_draws_the_weights(model, tmp_path, suffix, magic):
    path = unknowing(model, tmp_path)
    picture = tmp_path / f"picture.{suffix}"
    lines = ["", r"$\x$ $5 a_b^c"] if suffix == "svg" else ["a"] if suffix == "pdf" else ["a"] * 7
    done = invoke("translate", path, "--attention", picture, "--max-words", 3, "--beam", 1, lines=lines)
    assert done.exit_code == 0, done.output
    assert picture.read_bytes().startswith(magic)
    if suffix == "png":
        assert "shows the first 6 of 7 lines; .json keeps all" in done.stderr
    if suffix == "svg":
        assert r"<!-- $\x$ -->" in picture.read_text()  # each text is also a remark in the file


def test_translate_refuses_a_picture_of_another_kind_before_any_work(model, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "load_model", lambda path: pytest.fail("it began"))
    for name in ("weights.txt", "weights"):
        done = invoke("translate", model, "--attention", tmp_path / name, lines=["a"])
        refused(done, "attention must be a file that ends in .png, .svg, .pdf, .json", name)
        assert done.stdout == ""


def test_translate_says_when_there_is_nothing_to_draw(model, tmp_path):
    done = invoke("translate", model, "--attention", tmp_path / "a.png", lines=["", " "])
    refused(done, "attention must be of at least one line with words, got none was read")
    assert done.stdout == "\n\n"


class Evil:
    """A pickle that runs code when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.write_text, (self.path, "run"))


def test_translate_refuses_what_is_no_model(model, tmp_path):
    torn, state, diary, code = (tmp_path / name for name in ("torn.pt", "state.pt", "diary.txt", "code.pkl"))
    torn.write_bytes(model.read_bytes()[:-200])
    torch.save(checkpoints.load(model)["model"], state)
    diary.write_text("Dear diary,\n")
    code.write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    for path in (torn, diary, code):
        refused(invoke("translate", path, lines=["a"]), f"sparsegen: {path} must be a whole checkpoint of tensors")
    refused(invoke("translate", state, lines=["a"]), "must be a checkpoint of format 'sparsegen seq2seq', got format")
    refused(invoke("translate", tmp_path / "none.pt", lines=["a"]), "none.pt is not there. A checkpoint is made by:")
    assert not (tmp_path / "ran").exists()


def test_a_reader_that_goes_away_ends_translate_quietly(model):
    call = f"{sys.executable} -W error -m sparsegen translate {model} --beam 1 --max-words 2 | head -1"
    lines = "a b c\n" * 500
    done = subprocess.run(["bash", "-c", call], input=lines, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
