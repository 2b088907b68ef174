"""The encoder-decoder: padding, training that is resumed to the same numbers, checkpoints, and the search."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sparsegen.experiments.seq2seq import checkpoints, search, training
from sparsegen.experiments.seq2seq.batches import Batch, Pairs, pad
from sparsegen.experiments.seq2seq.generation import ROWS
from sparsegen.experiments.seq2seq.model import ModelConfig, Seq2Seq
from sparsegen.experiments.seq2seq.training import BEST, LAST, TrainConfig, Trainer, evaluate, load_model
from sparsegen.experiments.seq2seq.vocabulary import BOS, EOS, PAD, UNK, SentencePieceVocabulary, WordVocabulary

WORDS = 8
# A control of each row of the paper's table; with it attention is neither even nor on one word.
PAPER = {"softmax": None, "softmax (with temp.)": 0.5, "sparsemax": None, "sparsegen-lin": 0.75, "sparsehg": 0.1}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Numbers are compared to the last bit, also with those of another process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lines(n=30, seed=0, longest=6):
    """Sentences of letters, to be written in capitals."""
    random = np.random.default_rng(seed)
    sources = [" ".join(random.choice(list("abcdefgh"), random.integers(1, longest + 1))) for _ in range(n)]
    return sources, [line.upper() for line in sources]


SOURCE, TARGET = WordVocabulary("abcdefgh"), WordVocabulary("ABCDEFGH")
STATES = {"source": SOURCE.state(), "target": TARGET.state()}


def pairs(n=30, seed=0, **options):
    sources, targets = lines(n, seed)
    return Pairs([SOURCE.encode(s) for s in sources], [TARGET.encode(t) for t in targets], **options)


def config(**changes):
    sizes = {"embedding": 8, "hidden": 8, "layers": 1, "dropout": 0.0, "mapping": "sparsemax"}
    return ModelConfig(len(SOURCE), len(TARGET), **{**sizes, **changes})


def lively(seed=0, scale=1.0, **changes):
    """A model with weights so large that its attention and its words differ; the padding has a vector too."""
    torch.manual_seed(seed)
    model = Seq2Seq(config(**changes)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".map." not in name:
                weight.uniform_(-scale, scale)
    return model


def of_row(name, **changes):
    return lively(mapping=ROWS[name].mapping, control=PAPER[name], **changes)


def trainer(folder, *, model=None, train=None, valid=None, n=30, **changes):
    settings = {"epochs": 2, "batch_size": 8, "lr": 0.01, **changes}
    held = valid if valid is not None else pairs(10, seed=1)
    return Trainer(model or config(), TrainConfig(**settings), train or pairs(n), held, STATES, folder)


def without_seconds(history):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


def assert_same_weights(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


# Padding


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("layers", [1, 2])
def test_padding_changes_neither_loss_nor_gradient(name, layers):
    model, data = of_row(name, layers=layers, dropout=0.5), pairs(5)
    together = model(*batch_of(data, range(5)))
    together[0].backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    alone = [model(*batch_of(data, [i])) for i in range(5)]
    sum(loss for loss, _, _ in alone).backward()
    assert together[0].item() == pytest.approx(sum(loss.item() for loss, _, _ in alone), rel=1e-5)
    assert together[1] == sum(words for _, words, _ in alone) == sum(len(t) - 1 for t in data.targets)
    assert together[2] == sum(right for _, _, right in alone)
    for n, p in model.named_parameters():
        torch.testing.assert_close(p.grad, gradients[n], rtol=1e-3, atol=1e-4, msg=n)
    for embedding in (model.encoder.embedding, model.decoder.embedding):
        assert (embedding.weight.grad[PAD] == 0).all()


def batch_of(data, rows):
    found = data.batch(rows)
    return found.source, found.lengths, found.target


@pytest.mark.parametrize("attention", ["additive", "general", "dot"])
@pytest.mark.parametrize("name", ROWS)
def test_padding_gets_exactly_no_weight_and_the_words_keep_theirs(name, attention):
    model, data = of_row(name, attention=attention), pairs(5)
    source, lengths, target = batch_of(data, range(5))
    assert len(set(lengths.tolist())) > 2
    with torch.no_grad():
        memory, state = model.read(source, lengths)
        out, weights, _ = model.decoder.step(model.decoder.embedding(target[:, 0]), state, memory)
        for i, n in enumerate(lengths):
            memory, state = model.read(source[i : i + 1, :n], lengths[i : i + 1])
            alone, expected, _ = model.decoder.step(model.decoder.embedding(target[i : i + 1, 0]), state, memory)
            assert (weights[i, n:] == 0).all()
            torch.testing.assert_close(weights[i, :n], expected[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(out[i], alone[0], atol=1e-5, rtol=1e-5)
    if attention == "additive" and not name.startswith("softmax"):  # some word has no weight either
        assert (weights == 0).sum() > (source == PAD).sum()


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("beam", [1, 3])
def test_padding_changes_no_translation(name, beam):
    model, (sources, _) = of_row(name), lines(6, seed=3)
    together = search.translate(model, SOURCE, TARGET, sources, beam=beam)
    for line, found in zip(sources, together):
        (alone,) = search.translate(model, SOURCE, TARGET, [line], beam=beam)
        assert found.words == alone.words
        assert found.source == tuple(line.split())
        assert found.weights.shape == (len(found.words), len(found.source))
        np.testing.assert_allclose(found.weights, alone.weights, atol=1e-5)
        np.testing.assert_allclose(found.weights.sum(1), 1, atol=1e-5)
        assert found.score == pytest.approx(alone.score, abs=1e-5)


def test_the_loss_is_the_cross_entropy_of_each_word():
    model, data = lively(), pairs(1, seed=5)
    source, lengths, target = batch_of(data, [0])
    memory, state = model.read(source, lengths)
    expected, right = 0.0, 0
    for word, following in itertools.pairwise(target[0]):
        out, _, state = model.decoder.step(model.decoder.embedding(word[None]), state, memory)
        log_p = torch.log_softmax(model.generator(out)[0], 0)
        expected -= log_p[following].item()
        right += int(log_p.argmax() == following)
    loss, words, found = model(source, lengths, target)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert (int(words), int(found)) == (len(target[0]) - 1, right)


def test_the_attentional_vector_is_fed_to_the_next_step():
    model, data = lively(), pairs(1)
    source, lengths, target = batch_of(data, [0])
    memory, state = model.read(source, lengths)
    assert (state.feed == 0).all()
    word = model.decoder.embedding(target[:, 0])
    out, _, following = model.decoder.step(word, state, memory)
    assert torch.equal(following.feed, out)
    changed = model.decoder.step(word, state._replace(feed=torch.ones_like(state.feed)), memory)[0]
    assert not torch.allclose(changed, out)


def test_a_new_model_starts_as_said():
    torch.manual_seed(0)
    model = Seq2Seq(config(mapping="sparsegen_lin", control=0.5, learnable=True))
    assert model.decoder.attention.map.lam.item() == pytest.approx(0.5)
    for name, weight in model.named_parameters():
        assert ".map." in name or weight.abs().max() <= 0.1
    for embedding in (model.encoder.embedding, model.decoder.embedding):
        assert (embedding.weight[PAD] == 0).all()


# Batches


def test_pairs_are_padded_marked_and_counted():
    found = Pairs([[4, 5], [6], [7, 7, 7], []], [[8], [8, 9], [9], [9]], max_words=2)
    assert (len(found), found.left_out) == (2, 2)
    batch = found.batch([0, 1])
    assert batch.source.tolist() == [[4, 5], [6, PAD]]
    assert batch.target.tolist() == [[BOS, 8, EOS, PAD], [BOS, 8, 9, EOS]]
    assert (len(batch), batch.lengths.tolist()) == (2, [2, 1])
    part = batch.rows(0, 1)
    assert isinstance(part, Batch)
    assert part.target.tolist() == [[BOS, 8, EOS]]
    assert batch.rows(1, 2).source.tolist() == [[6]]


def test_an_epoch_has_every_pair_once_in_an_order_of_its_own():
    data = pairs(30)
    first, again, other, seeded = (data.epoch(8, seed, epoch) for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0)))
    assert sorted(np.concatenate(first)) == list(range(30))
    assert sorted(map(len, first)) == [6, 8, 8, 8]
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    for differing in (other, seeded):
        assert np.concatenate(first).tolist() != np.concatenate(differing).tolist()
    sizes = [[len(data.sources[i]) for i in batch] for batch in first]
    assert all(row == sorted(row) for row in sizes)
    bounds = sorted((min(row), max(row)) for row in sizes)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(bounds))  # of like length in a batch


def test_validation_sees_every_pair_once():
    data = pairs(10)
    seen = [tuple(row[row != PAD].tolist()) for batch in data.in_order(4) for row in batch.target]
    assert sorted(seen) == sorted(map(tuple, data.targets))
    model = lively()
    once, alone = evaluate(model, data, 4), evaluate(model, data, 1)
    assert once["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert once["accuracy"] == alone["accuracy"]


def test_pairs_that_make_no_corpus_are_refused():
    with pytest.raises(ValueError, match="targets must be as many as sources, 2, got 1"):
        Pairs([[4], [5]], [[4]])
    for sources, targets, most in (([], [], None), ([[]], [[4]], None), ([[4] * 9], [[4]], 8), ([[4]], [[4] * 9], 8)):
        with pytest.raises(ValueError, match="the corpus must be at least one pair with words on both sides, none too"):
            Pairs(sources, targets, most)


# Settings


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"embedding": 0}, "embedding must be a positive integer, got 0"),
        ({"hidden": 7}, "hidden must be even, as two directions share it, got 7"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"attention": "loud"}, "attention must be one of 'additive', 'general', 'dot', got 'loud'"),
        ({"mapping": "loud"}, "mapping must be one of 'sparsemax', .* got 'loud'"),
        ({"control": 0.5}, "control must be absent for mapping 'sparsemax', which has none, got 0.5"),
        ({"mapping": "sparsegen_lin", "control": 1.5}, "lam must be .*, got 1.5"),
        ({"mapping": "sparsehourglass"}, "q must be given for mapping 'sparsehourglass', got None"),
        ({"learnable": True}, "learnable must be False for mapping 'sparsemax'"),
    ],
)
def test_settings_of_a_model_are_checked(changes, text):
    with pytest.raises(ValueError, match=f"^sparsegen: {text}"):
        Seq2Seq(config(**changes))


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


# Training


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


# Going on


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
    call = [sys.executable, "-c", "import sys, test_seq2seq; test_seq2seq.killed(sys.argv[1])", tmp_path / "killed"]
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


# Checkpoints


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


# Search


def greedy(model, line, limit):
    """The likeliest word at each step, by hand."""
    ids = SOURCE.encode(line)
    words, score = [], 0.0
    with torch.no_grad():
        memory, state = model.read(torch.tensor([ids]), torch.tensor([len(ids)]))
        word = BOS
        while len(words) < limit:
            out, _, state = model.decoder.step(model.decoder.embedding(torch.tensor([word])), state, memory)
            logits = model.generator(out)[0]
            logits[[PAD, BOS]] = -torch.inf
            log_p = torch.log_softmax(logits, 0)
            word = int(log_p.argmax())
            score += float(log_p[word])
            if word == EOS:
                break
            words.append(word)
    return words, score / (len(words) + 1)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """A model that has learnt something, but not all."""
    run = trainer(tmp_path_factory.mktemp("learnt"), model=config(hidden=16), n=60, epochs=4, lr=0.03)
    run.run()
    return run.model


def test_a_beam_of_one_is_greedy_search(learnt):
    sources, _ = lines(12, seed=7)
    found = search.translate(learnt, SOURCE, TARGET, sources, beam=1, replace_unknown=False)
    for line, translation in zip(sources, found):
        words, score = greedy(learnt, line, 2 * len(line.split()) + 10)
        assert list(translation.words) == TARGET.tokens_of(words)
        assert translation.score == pytest.approx(score, abs=1e-5)


def test_a_wider_beam_finds_better_scores_on_average(learnt):
    sources, _ = lines(20, seed=8)
    means = []
    for beam in (1, 2, 5):
        means.append(np.mean([t.score for t in search.translate(learnt, SOURCE, TARGET, sources, beam=beam)]))
    assert means[0] < means[2]
    assert means[0] <= means[1] + 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_a_beam_wide_enough_finds_the_best_of_all(seed):
    """All sentences of up to two words, each with its end mark, are tried by hand."""
    torch.manual_seed(seed)
    tiny = replace(config(), target_words=7)
    model = Seq2Seq(tiny).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.uniform_(-1.5, 1.5)
        model.generator.bias[EOS] -= 1.0
    source, lengths = torch.tensor([[4, 5, 6]]), torch.tensor([3])
    (found,) = search.search(model, source, lengths, beam=500, max_words=3)
    allowed = [UNK, 4, 5, 6]
    every = [list(ids) for n in range(3) for ids in itertools.product(allowed, repeat=n)]
    scores = [by_hand(model, source, lengths, ids) for ids in every]
    best = int(np.argmax(scores))
    assert found.ids == every[best]
    assert found.score == pytest.approx(scores[best], abs=1e-5)


@torch.no_grad()
def by_hand(model, source, lengths, ids):
    """Log-probability a word of a sentence with its end mark."""
    memory, state = model.read(source, lengths)
    total = 0.0
    for word, following in itertools.pairwise([BOS, *ids, EOS]):
        out, _, state = model.decoder.step(model.decoder.embedding(torch.tensor([word])), state, memory)
        logits = model.generator(out)[0]
        logits[[PAD, BOS]] = -torch.inf
        total += float(torch.log_softmax(logits, 0)[following])
    return total / (len(ids) + 1)


def always(model, word, *others):
    """Make a model write one word, whatever it reads; the others come next."""
    with torch.no_grad():
        model.generator.weight.zero_()
        model.generator.bias.zero_()
        for at, number in enumerate((word, *others)):
            model.generator.bias[number] = 20 - at
    return model


def test_an_unknown_word_becomes_the_source_word_it_attends_to():
    model = always(lively(scale=2.0), UNK)
    (kept,) = search.translate(model, SOURCE, TARGET, ["xylo a yak b"], beam=2, max_words=4, replace_unknown=False)
    assert kept.words == ("<unk>",) * 4
    (found,) = search.translate(model, SOURCE, TARGET, ["xylo a yak b"], beam=2, max_words=4)
    assert found.words == tuple(["xylo", "a", "yak", "b"][i] for i in kept.weights.argmax(1))
    assert found.text == " ".join(found.words)
    assert found.source == ("xylo", "a", "yak", "b")


def test_padding_and_beginning_are_never_written():
    for beam in (1, 3):
        (found,) = search.translate(always(lively(), BOS, PAD, 6), SOURCE, TARGET, ["a b"], beam=beam, max_words=3)
        assert found.words == ("C", "C", "C")


def test_an_end_at_once_gives_no_words():
    (found,) = search.translate(always(lively(), EOS), SOURCE, TARGET, ["a b"], beam=3)
    assert (found.text, found.words, found.weights.shape) == ("", (), (0, 2))
    assert np.isnan(search.mean_support([found]))


def test_order_is_kept_and_an_empty_line_stays_empty(learnt):
    sources, _ = lines(7, seed=9)
    given = ["", *sources[:3], "   ", *sources[3:], "zzz yyy"]
    seen = []
    found = search.translate(learnt, SOURCE, TARGET, given, batch_size=3, progress=seen.append)
    assert [t.source for t in found] == [tuple(line.split()) for line in given]
    assert [given[i] for i, t in enumerate(found) if not t.source] == ["", "   "]
    assert found[0].text == found[4].text == ""
    assert seen == [3, 3, 2]
    for i in (1, 5, 8):
        assert found[i].text == search.translate(learnt, SOURCE, TARGET, [given[i]])[0].text
    assert search.translate(learnt, SOURCE, TARGET, []) == []


def test_a_sentence_of_two_thousand_words_is_translated(learnt):
    line = " ".join("abcdefgh"[i % 8] for i in range(2000))
    (found,) = search.translate(learnt, SOURCE, TARGET, [line], beam=2, max_words=20)
    assert len(found.words) <= 20
    assert found.weights.shape == (len(found.words), 2000)
    np.testing.assert_allclose(found.weights.sum(1), 1, atol=1e-4)
    (found,) = search.translate(always(lively(), 5), SOURCE, TARGET, [line], beam=1)
    assert len(found.words) == search.LONGEST


def test_support_counts_the_words_with_weight():
    weights = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    found = search.Translation("A B", ("A", "B"), ("a", "b", "c"), weights, -1.0)
    assert found.support.tolist() == [2, 1]
    assert search.mean_support([found, search.Translation("", (), (), np.zeros((0, 0)), 0.0)]) == 1.5


def test_a_beam_of_none_is_refused():
    with pytest.raises(ValueError, match="beam must be a positive integer, got 0"):
        search.translate(lively(), SOURCE, TARGET, ["a"], beam=0)


def test_a_model_whose_numbers_are_lost_says_so():
    model = lively()
    model.generator.bias.data[5] = torch.nan
    with pytest.raises(ValueError, match="the model's scores must be numbers"):
        search.translate(model, SOURCE, TARGET, ["a", "b c"], beam=2)


# Pieces of words


def test_pieces_of_words_are_trained_on_and_written(tmp_path):
    text = ["low lower lowest", "new newer newest", "lower newer", "low new", "lowest newest"]
    vocabulary = SentencePieceVocabulary.build(text, vocab_size=18)
    numbers = [vocabulary.encode(line) for line in text]
    data = Pairs(numbers, numbers)
    sizes = ModelConfig(18, 18, 16, 32, 1, 0.0, mapping="sparsemax")
    state = vocabulary.state()
    settings = TrainConfig(epochs=80, batch_size=5, lr=0.03, decay_from=80)
    run = Trainer(sizes, settings, data, data, {"source": state, "target": state}, tmp_path)
    run.run()
    model, source, target = load_model(tmp_path / BEST)
    assert isinstance(source, SentencePieceVocabulary)
    found = search.translate(model, source, target, ["lowest newest", "new lower"], beam=2)
    assert found[0].text == "lowest newest"
    assert found[0].source == tuple(source.tokens("lowest newest"))
    assert found[0].weights.shape == (len(found[0].words), len(found[0].source))
    unknown = search.translate(always(model, UNK), source, target, ["low %%%"], beam=1, max_words=2)[0]
    assert set(unknown.words) <= set(source.tokens("low %%%"))


def test_pad_fills_up():
    assert pad([[1], [2, 3]]).tolist() == [[1, PAD], [2, 3]]
