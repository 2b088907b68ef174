"""The linear layer whose classes are split: as one of torch's on one process, with its checkpoints and label sets."""

import errno
import os

import numpy as np
import pytest
import torch

import sharded_cases as cases
import sparsegen.torch as sgt
import sparsegen.torch.distributed as sgd
from sparsegen.torch.distributed.linear import BLOCK


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("sparse", [False, True])
def test_scores_and_gradients_are_those_of_a_linear_layer(ranks, sparse):
    hidden = torch.randn(6, 5, generator=generator(0))
    v = torch.randn(6, 2 * BLOCK + 7, generator=generator(1))
    if sparse:
        v = torch.where(torch.rand(v.shape, generator=generator(2)) < 0.001, v, 0.0)
    found = ranks.run(cases.linear_case, hidden=hidden, v=v, sparse=sparse)
    assert [one[5] for one in found] == [sparse, sparse]
    weight = torch.cat([one[4] for one in found]).requires_grad_()
    bias, h = torch.zeros(v.shape[1], requires_grad=True), hidden.clone().requires_grad_()
    z = torch.nn.functional.linear(h, weight, bias)
    z.backward(v)
    torch.testing.assert_close(torch.cat([one[0] for one in found], -1), z.detach())
    for one in found:
        torch.testing.assert_close(one[1], h.grad, rtol=0, atol=1e-3)  # sums of thousands of products in float32
    torch.testing.assert_close(torch.cat([one[2] for one in found]), weight.grad)
    torch.testing.assert_close(torch.cat([one[3] for one in found]), bias.grad)


def test_the_weights_at_the_start_do_not_depend_on_the_ranks(ranks):
    v, hidden = torch.zeros(1, BLOCK + 101), torch.zeros(1, 5)
    two = ranks.run(cases.linear_case, hidden=hidden, v=v)
    with sgd.single_process():
        one = cases.linear_case(0, 1, hidden, v)
    assert torch.equal(torch.cat([part[4] for part in two]), one[4])
    assert one[4].abs().max() <= 5**-0.5
    assert one[4].std() == pytest.approx((3 * 5) ** -0.5, rel=0.02)


@pytest.mark.parametrize("there", ["one", "two"])
def test_a_checkpoint_is_read_by_another_number_of_processes(ranks, tmp_path, there):
    def on_one(function):
        with sgd.single_process():
            return [function(0, 1, tmp_path / "a", 101)]

    def on_two(function):
        return ranks.run(function, folder=tmp_path / "a", classes=101)

    write, read = (on_one, on_two) if there == "two" else (on_two, on_one)
    saved, loaded = write(cases.save_case), read(cases.load_case)
    for at in (0, 1):
        assert torch.equal(torch.cat([one[at] for one in saved]), torch.cat([one[at] for one in loaded]))
    assert [one[2] for one in loaded] == [{"step": 1}] * len(loaded)
    assert not list(tmp_path.glob("*.unfinished"))


def test_a_checkpoint_with_a_gap_or_of_other_classes_is_refused_on_all_ranks(ranks, tmp_path):
    ranks.run(cases.save_case, folder=tmp_path / "a", classes=10)
    for error in ranks.errors(cases.load_case, folder=tmp_path / "a", classes=12):
        assert "the classes of the model must be those of the checkpoint, got 12 where it has 10" in str(error)
    next((tmp_path / "a").glob("rows-000000000005-*")).unlink()
    for error in ranks.errors(cases.load_case, folder=tmp_path / "a", classes=10):
        assert "the checkpoint a must be complete, got no file with class 5" in str(error)


@pytest.mark.parametrize(
    ("mapping", "controls"), [("sparsemax", {}), ("sparsegen_lin", {"lam": -1.0}), ("sparsehourglass", {"q": 0.5})]
)
def test_label_sets_are_the_support(ranks, mapping, controls):
    z = torch.randn(5, 300, generator=generator(4))
    halves = [(z[:, :120],), (z[:, 120:],)]
    found = ranks.run(cases.call, name="label_sets", args=halves, options=[{"mapping": mapping, **controls}] * 2)
    p = getattr(sgt, mapping)(z, **controls).numpy()
    for one in found:
        assert one.shape == (5, 300)
        assert np.array_equal(one.toarray() > 0, p > 0)
        np.testing.assert_allclose(one.toarray(), p, atol=2e-7)


def test_what_a_layer_refuses():
    with sgd.single_process():
        with pytest.raises(ValueError, match="out_features must be a positive integer, got 0"):
            sgd.ShardedLinear(3, 0)
        with pytest.raises(ValueError, match="hidden must be of 3 features, got 4"):
            sgd.ShardedLinear(3, 2)(torch.ones(1, 4))
        with pytest.raises(ValueError, match="model must be one with a single ShardedLinear, got 0 of them"):
            sgd.save("nowhere", torch.nn.Linear(1, 1))
        with pytest.raises(ValueError, match="mapping must be one of 'sparsemax'"):
            sgd.label_sets(torch.ones(1, 2), mapping="softmax")
        with pytest.raises(ValueError, match="scores must be a matrix, got 1 axes"):
            sgd.label_sets(torch.ones(2))


class WritesAFile:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("name", ["whole.pt", "rows-000000000000-000000000005.pt"])
def test_a_damaged_or_hostile_file_of_a_checkpoint_is_refused_by_name(tmp_path, name):
    marker = tmp_path / "marker"
    with sgd.single_process():
        model = sgd.ShardedLinear(3, 5)
        for number, damage in enumerate(
            [
                lambda path: path.write_bytes(path.read_bytes()[:-40]),
                lambda path: path.write_bytes(b"nothing of the kind"),
                lambda path: torch.save([1, 2], path),
                lambda path: torch.save({"weight": 3}, path),
                lambda path: torch.save({"weight": WritesAFile(marker)}, path),
            ]
        ):
            sgd.save(tmp_path / f"step-{number}", model)
            damage(tmp_path / f"step-{number}" / name)
            marker.unlink(missing_ok=True)
            with pytest.raises(ValueError, match=rf"sparsegen: .*step-{number}/{name} must be a ") as refused:
                sgd.load(tmp_path / f"step-{number}", model)
            assert "weights_only" not in str(refused.value)
            assert not marker.exists()


def test_a_full_disk_is_told_with_the_file_and_leaves_no_checkpoint(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with sgd.single_process():
        model = sgd.ShardedLinear(3, 5)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left on device: '.*whole\.pt'"):
            sgd.save(tmp_path / "step-1", model)
    assert not (tmp_path / "step-1").exists()
