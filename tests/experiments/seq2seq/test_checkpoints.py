"""Checkpoints are whole, ours, and run no code."""

from __future__ import annotations

import pickle
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from toy_models import (
    SOURCE,
    TARGET,
    assert_same_weights,
    config,
    lively,
    trainer,
)

from sparsegen.experiments.seq2seq import checkpoints
from sparsegen.experiments.seq2seq.training import BEST, LAST, load_model


class Evil:
    """A pickle that runs code when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.write_text, (self.path, "run"))


def foreign(kind, path, ran):
    if kind == "state dict":
        torch.save(lively().state_dict(), path)
    elif kind == "other schema":
        checkpoints.save(path, {"schema": 2})
    elif kind == "list":
        torch.save([1, 2], path)
    elif kind == "nothing in it":
        checkpoints.save(path, {})
    elif kind == "evil pickle":
        path.write_bytes(pickle.dumps(Evil(ran)))
    elif kind == "evil checkpoint":
        torch.save({"format": checkpoints.FORMAT, "schema": 1, "model": Evil(ran)}, path)
    else:
        path.write_bytes(
            {"empty": b"", "text": b"hello\nworld\n", "binary": bytes(range(256)), "zip": b"PK\x03\x04x"}[kind]
        )


KINDS = ["state dict", "other schema", "list", "nothing in it", "evil pickle", "evil checkpoint"]
KINDS += ["empty", "text", "binary", "zip"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_foreign_file_is_refused_in_a_line_and_no_code_is_run(tmp_path, kind):
    path = tmp_path / LAST
    foreign(kind, path, tmp_path / "ran")
    before = path.read_bytes()
    for action in (lambda: load_model(path), lambda: trainer(tmp_path)):
        with pytest.raises(ValueError) as error:
            action()
        assert str(error.value).startswith("sparsegen: ")
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 260 + len(str(path))
    assert [p.name for p in tmp_path.iterdir()] == [LAST]
    assert path.read_bytes() == before


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_a_torn_checkpoint_is_refused_by_name(tmp_path, share):
    trainer(tmp_path, n=8, epochs=1).run()
    whole = (tmp_path / LAST).read_bytes()
    (tmp_path / LAST).write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"last\.pt must be a whole checkpoint .*, got one torch cannot read: "):
        trainer(tmp_path, n=8, epochs=1)
    assert len((tmp_path / LAST).read_bytes()) == int(share * len(whole))


def test_a_missing_checkpoint_says_what_makes_one(tmp_path):
    for path in (tmp_path / "none.pt", tmp_path):
        with pytest.raises(FileNotFoundError, match=r"is not there\. A checkpoint is made by: sparsegen train"):
            load_model(path)


def test_a_checkpoint_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / LAST
    checkpoints.save(path, {"epoch": 1})

    def full(content, file):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="no space left"):
        checkpoints.save(path, {"epoch": 2})
    assert checkpoints.load(path)["epoch"] == 1
    assert [p.name for p in tmp_path.iterdir()] == [LAST]


def test_a_checkpoint_keeps_settings_vocabularies_and_weights(tmp_path):
    run = trainer(tmp_path, model=config(mapping="sparsegen_lin", control=0.25), n=8, epochs=1)
    run.run()
    found = checkpoints.load(tmp_path / BEST)
    assert found["model_config"] == asdict(run.model_config)
    assert found["train_config"] == asdict(run.config)
    model, source, target = load_model(tmp_path / BEST)
    assert_same_weights(model.state_dict(), run.model.state_dict())
    assert (source.state(), target.state()) == (SOURCE.state(), TARGET.state())
