"""Training with labels split over processes: as on one process, resumed by any number of them, from the command too."""

import json

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from typer.testing import CliRunner

import sharded_cases as cases
import sparsegen.torch.distributed as sgd
from sparsegen.cli import app
from sparsegen.experiments.labels.training import LabelConfig

SIZES = (96, 300, 20_000)  # documents, words, labels
OPTIONS = {"epochs": 2, "batch_size": 32, "hidden": 8, "lr": 0.1, "save_every": 100}


def on_one(**given):
    with sgd.single_process():
        return cases.train_case(0, 1, **given)


@pytest.mark.parametrize(
    ("loss", "sizes"),
    [("sparsemax_huber", SIZES), ("sparsegen_hinge", (64, 200, 500)), ("sparsehourglass_hinge", (64, 200, 500))],
)
def test_two_processes_train_as_one(ranks, tmp_path, loss, sizes):
    options = {**OPTIONS, "loss": loss}
    one = on_one(out=tmp_path / "one", sizes=sizes, options=options, predict=True)
    two = ranks.run(cases.train_case, out=tmp_path / "two", sizes=sizes, options=options, predict=True)
    assert one[0][-1] < one[0][0]
    for rank in two:
        np.testing.assert_allclose(rank[0], one[0], rtol=1e-5)
        np.testing.assert_allclose(rank[3].toarray(), one[3].toarray(), atol=1e-3)
    torch.testing.assert_close(torch.cat([rank[2] for rank in two]), one[2], rtol=1e-3, atol=1e-4)


def test_a_run_goes_on_with_another_number_of_processes(ranks, tmp_path):
    options = {**OPTIONS, "save_every": 2}
    whole = on_one(out=tmp_path / "whole", sizes=SIZES, options=options)
    part = ranks.run(cases.train_case, out=tmp_path / "part", sizes=SIZES, options=options, stop_after=4)
    assert [rank[1] for rank in part] == [4, 4]  # in the second epoch
    rest = on_one(out=tmp_path / "part", sizes=SIZES, options=options)
    np.testing.assert_allclose(rest[0], whole[0][1:], rtol=1e-5)
    torch.testing.assert_close(rest[2], whole[2], rtol=1e-3, atol=1e-4)
    assert len((tmp_path / "part" / "progress.jsonl").read_text().splitlines()) == 2


def test_other_settings_do_not_go_on(tmp_path):
    on_one(out=tmp_path, sizes=(8, 20, 30), options={**OPTIONS, "epochs": 1})
    with pytest.raises(ValueError, match="must be those it was begun with"):
        on_one(out=tmp_path, sizes=(8, 20, 30), options={**OPTIONS, "lr": 0.2})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"epochs": 0}, "epochs must be a positive integer, got 0"),
        ({"loss": "hinge"}, "loss must be one of 'softmax_log'"),
        ({"loss": "softmax_log", "control": 0.5}, "control must be left out for softmax_log"),
    ],
)
def test_settings_that_are_none(options, error):
    with pytest.raises(ValueError, match=error):
        LabelConfig(**options)


def test_the_command_trains_resumes_and_predicts(tmp_path):
    data = tmp_path / "some.txt"
    data.write_text("4 6 9\n" + "".join(f"{i},8 {i}:1 5:1\n" for i in range(4)))
    given = ["train-labels", "--out", str(tmp_path / "run"), "--data", str(data), "--hidden", "4", "--lr", "0.2"]
    first = CliRunner().invoke(app, [*given, "--epochs", "2"])
    assert first.exit_code == 0, first.output
    again = CliRunner().invoke(app, [*given, "--epochs", "40", "--predict", str(data)])
    assert again.exit_code == 0, again.output
    assert "epoch 3: loss" in again.output
    assert "epoch 2:" not in again.output
    lines = [json.loads(line) for line in (tmp_path / "run" / "progress.jsonl").read_text().splitlines()]
    assert len(lines) == 40
    assert lines[-1]["loss"] < lines[0]["loss"]
    found = sp.load_npz(tmp_path / "run" / "predictions.npz")
    assert (found.toarray()[np.arange(4), np.arange(4)] > 0).all()
    assert (found.toarray()[:, 8] > 0).all()
    assert float(again.output.split("F1 ")[1]) == pytest.approx(16 / (found.nnz + 8), abs=1e-4)
    assert found.nnz < 16
