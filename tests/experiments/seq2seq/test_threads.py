"""A small model gets one thread, unless someone has chosen."""

import pytest
import torch

from sparsegen.experiments.seq2seq.model import ModelConfig
from sparsegen.experiments.seq2seq.threads import VARIABLES, suited_threads, threads_for

SMALL, LARGE = (ModelConfig(50, 50, embedding=size, hidden=size) for size in (256, 500))


@pytest.fixture(autouse=True)
def three(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_a_small_model_gets_one_thread_and_the_papers_all():
    assert (threads_for(SMALL, 64), threads_for(LARGE, 64)) == (1, 3)
    assert (threads_for(SMALL, 640), threads_for(LARGE, 2)) == (3, 1)  # what counts is the work of a step


@pytest.mark.parametrize("name", VARIABLES)
def test_threads_that_were_chosen_in_the_environment_stay(monkeypatch, name):
    monkeypatch.setenv(name, "3")
    assert threads_for(SMALL, 64) == 3


def fails_with_its_threads():
    raise RuntimeError(str(torch.get_num_threads()))


def test_threads_that_were_asked_for_are_used_and_given_back_even_after_an_error():
    for asked, expected in ((2, "2"), (None, "1")):
        with pytest.raises(RuntimeError, match=expected), suited_threads(SMALL, 64, asked):
            fails_with_its_threads()
        assert torch.get_num_threads() == 3
