"""Training: what a step is, and that it is resumed to the same numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from toy_models import (
    STATES,
    assert_same_weights,
    batch_of,
    config,
    trainer,
    without_seconds,
)

from sparsegen.experiments.seq2seq import checkpoints, search, training
from sparsegen.experiments.seq2seq.model import Seq2Seq
from sparsegen.experiments.seq2seq.training import BEST, LAST, TrainConfig, Trainer, evaluate, load_model
from sparsegen.experiments.seq2seq.vocabulary import WordVocabulary


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"epochs": 0}, "epochs must be a positive integer, got 0"),
        ({"batch_size": 0}, "batch_size must be a positive integer, got 0"),
        ({"save_steps": -1}, "save_steps must be a positive integer, got -1"),
        ({"patience": 0}, "patience must be a positive integer, got 0"),
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"clip": float("nan")}, "clip must be positive, got nan"),
        ({"decay": -1.0}, "decay must be positive, got -1.0"),
        ({"optimizer": "magic"}, "optimizer must be one of 'adam', 'sgd', got 'magic'"),
        ({"per": "page"}, "per must be 'word' or 'sentence', got 'page'"),
    ],
)
def test_settings_of_training_are_checked(changes, text):
    with pytest.raises(ValueError, match=f"^sparsegen: {text}"):
        TrainConfig(**changes)


def test_the_toy_task_is_learnt(tmp_path):
    run = trainer(tmp_path, model=config(hidden=32, embedding=16), n=60, epochs=14, lr=0.05, decay_from=10)
    history = run.run()
    assert [row["epoch"] for row in history] == list(range(14))
    assert history[-1]["loss"] < 0.35 * history[0]["loss"]
    assert run.best["valid_accuracy"] > 0.7
    model, source, target = load_model(tmp_path / BEST)
    found = evaluate(model, run.valid, 8)
    assert found == {"loss": run.best["valid_loss"], "accuracy": run.best["valid_accuracy"]}
    assert not model.training
    written = [t.text for t in search.translate(model, source, target, ["a", "b"], beam=2)]
    assert written == ["A", "B"]


@pytest.mark.parametrize(("mapping", "control"), [("sparsegen_lin", 0.0), ("sparsehourglass", 0.5), ("softmax", 1.0)])
def test_a_learnable_control_is_trained_and_kept(tmp_path, mapping, control):
    model = config(mapping=mapping, control=control, learnable=True)
    run = trainer(tmp_path, model=model, epochs=1, lr=0.05)
    theta = run.model.decoder.attention.map.theta
    before = theta.item()
    run.run()
    assert theta.item() != before
    found, _, _ = load_model(tmp_path / BEST)
    assert found.decoder.attention.map.theta.item() == theta.item()


def test_the_learning_rate_is_halved_from_an_epoch_on(tmp_path):
    run = trainer(tmp_path, epochs=4, decay_from=2, optimizer="sgd", lr=0.1)
    assert [row["lr"] for row in run.run()] == [0.1, 0.1, 0.05, 0.025]
    assert [group["lr"] for group in run.optimizer.param_groups] == [0.025]
    rates = TrainConfig(lr=1.0, decay=0.1, decay_from=1)
    assert [rates.lr_of(e) for e in range(3)] == pytest.approx([1.0, 0.1, 0.01])


def test_training_stops_when_patience_has_run_out(tmp_path, monkeypatch):
    accuracies = iter([0.1, 0.3, 0.2, 0.3, 0.25, 0.9])
    monkeypatch.setattr(training, "evaluate", lambda *_: {"loss": 1.0, "accuracy": next(accuracies)})
    run = trainer(tmp_path, epochs=6, patience=3, n=8)
    history = run.run()
    assert [row["valid_accuracy"] for row in history] == [0.1, 0.3, 0.2, 0.3, 0.25]
    assert run.best["epoch"] == 1  # the first of equals
    assert run.finished
    assert len(checkpoints.load(tmp_path / BEST)["history"]) == 2
    more = trainer(tmp_path, epochs=6, patience=4, n=8)  # one may change one's mind
    assert len(more.run()) == 6
    assert more.best["epoch"] == 5


def one_step(folder, **changes):
    """Take one step of SGD on all pairs; return the change of the weights and the gradient by hand."""
    run = trainer(folder, epochs=1, batch_size=30, optimizer="sgd", **changes)
    before = nn.utils.parameters_to_vector(run.model.parameters()).detach().clone()
    copy = Seq2Seq(run.model_config)
    copy.load_state_dict(run.model.state_dict())
    loss, words, _ = copy(*batch_of(run.train, range(30)))
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in copy.parameters()])
    run.run()
    after = nn.utils.parameters_to_vector(run.model.parameters()).detach()
    return after - before, gradient, int(words)


@pytest.mark.parametrize("per", ["word", "sentence"])
def test_a_step_is_the_mean_over_words_or_sentences(tmp_path, per):
    moved, gradient, words = one_step(tmp_path, per=per, lr=0.5, clip=1e9)
    expected = -0.5 * gradient / (words if per == "word" else 30)
    torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-6)


def test_the_gradient_is_clipped(tmp_path):
    moved, gradient, _ = one_step(tmp_path, per="sentence", lr=1.0, clip=0.01)
    assert gradient.norm() / 30 > 0.01
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)
    torch.testing.assert_close(moved / moved.norm(), -gradient / gradient.norm(), atol=1e-3, rtol=1e-3)


def test_a_loss_that_is_no_number_ends_training(tmp_path):
    run = trainer(tmp_path)
    run.model.generator.bias.data[5] = torch.nan
    with pytest.raises(ValueError, match=r"the loss must be finite \(epoch 0, step 0\), got nan"):
        run.run()
    assert not list(tmp_path.iterdir())


HARD = {"epochs": 3, "batch_size": 8, "lr": 0.01, "save_steps": 2, "seed": 5}
DROPPING = {"dropout": 0.3, "layers": 2, "mapping": "sparsegen_lin", "control": 0.5, "learnable": True}


def killed(folder):
    """Train in a process of its own that is killed after step 3 of the second epoch; its checkpoint is of step 2."""
    torch.set_num_threads(1)

    def progress(run):
        if (run.epoch, run.step) == (1, 3):
            os.kill(os.getpid(), signal.SIGKILL)

    trainer(Path(folder), model=config(**DROPPING), **HARD).run(progress)


def test_a_killed_run_goes_on_to_exactly_the_same_numbers(tmp_path):
    whole = trainer(tmp_path / "whole", model=config(**DROPPING), **HARD)
    whole.run()
    call = [sys.executable, "-c", "import sys, test_training; test_training.killed(sys.argv[1])", tmp_path / "killed"]
    done = subprocess.run(call, capture_output=True, text=True, cwd=Path(__file__).parent)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert sorted(p.name for p in (tmp_path / "killed").iterdir()) == [BEST, LAST]
    again = trainer(tmp_path / "killed", model=config(**DROPPING), **HARD)
    assert (again.epoch, again.step) == (1, 2)
    steps = []
    again.run(lambda run: steps.append((run.epoch, run.step)))
    assert steps == [(1, 3), (1, 4), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4), (3, 0)]
    assert without_seconds(again.history) == without_seconds(whole.history)
    assert_same_weights(again.model.state_dict(), whole.model.state_dict())
    for name in (LAST, BEST):
        found, expected = (checkpoints.load(tmp_path / run / name) for run in ("killed", "whole"))
        assert_same_weights(found["model"], expected["model"])
        assert without_seconds(found["history"]) == without_seconds(expected["history"])
    assert again.seconds > sum(row["seconds"] for row in again.history[:1])


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_more_epochs_later_are_the_same_as_at_once(tmp_path, optimizer):
    settings = {**HARD, "optimizer": optimizer, "decay_from": 2}
    whole = trainer(tmp_path / "a", model=config(dropout=0.3), **settings)
    whole.run()
    trainer(tmp_path / "b", model=config(dropout=0.3), **{**settings, "epochs": 1}).run()
    torch.manual_seed(99)  # nothing hangs on what a process drew before
    later = trainer(tmp_path / "b", model=config(dropout=0.3), **{**settings, "save_steps": 3})
    assert without_seconds(later.run()) == without_seconds(whole.history)
    assert_same_weights(later.model.state_dict(), whole.model.state_dict())
    assert_same_weights(*(checkpoints.load(tmp_path / run / BEST)["model"] for run in "ab"))


def test_dropout_is_another_at_every_step(tmp_path):
    run = trainer(tmp_path, model=config(dropout=0.5))
    rows = np.arange(8)
    run.optimizer.param_groups[0]["lr"] = 0.0
    losses = []
    for run.epoch, run.step in ((0, 0), (0, 1), (1, 0), (0, 0)):
        losses.append(run._step(run.model, rows)[0])
    assert len(set(losses)) == 3
    assert losses[0] == losses[3]


def test_a_finished_run_does_nothing_more(tmp_path):
    trainer(tmp_path, n=8).run()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    again = trainer(tmp_path, n=8)
    assert again.finished
    assert len(again.run(lambda run: pytest.fail("it took a step"))) == 2
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("model", "changes", "text"),
    [
        ({"hidden": 10}, {}, "hidden must be 8, as in the run begun in .*, got 10"),
        ({"mapping": "softmax"}, {}, "mapping must be 'sparsemax', as in the run begun in .*, got 'softmax'"),
        ({}, {"lr": 0.5}, "lr must be 0.01, as in the run begun in .*, got 0.5"),
        ({}, {"seed": 1}, "seed must be 0, as in the run begun in .*, got 1"),
    ],
)
def test_a_run_of_other_settings_is_neither_continued_nor_overwritten(tmp_path, model, changes, text):
    trainer(tmp_path, n=8, epochs=1).run()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=text):
        trainer(tmp_path, n=8, epochs=2, model=config(**model), **changes)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_run_on_another_text_is_not_continued(tmp_path):
    run = trainer(tmp_path, n=8, epochs=1)
    run.run()
    states = {**STATES, "source": WordVocabulary("abcdefgx").state()}
    with pytest.raises(ValueError, match=r"the vocabularies must be those of the run begun .*others: another corpus"):
        Trainer(run.model_config, run.config, run.train, run.valid, states, tmp_path)


def test_a_best_model_is_nothing_to_go_on_from(tmp_path):
    trainer(tmp_path, n=8, epochs=1).run()
    (tmp_path / BEST).replace(tmp_path / LAST)
    with pytest.raises(ValueError, match=r"last\.pt must be a checkpoint of a run that can go on, got one without its"):
        trainer(tmp_path, n=8, epochs=1)


def test_a_folder_that_is_a_file_is_refused_before_training(tmp_path):
    (tmp_path / "run").write_text("precious")
    with pytest.raises((ValueError, OSError), match="run"):
        trainer(tmp_path / "run", n=8, epochs=1).run(lambda run: pytest.fail("it took a step"))
    assert (tmp_path / "run").read_text() == "precious"
