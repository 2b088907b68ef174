"""The longer examples, at toy size: what they make, what they measure, and what they are shown as."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")
EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = {"sparse_distillation": "target", "sparse_policy": "policy", "sparse_memory": "read"}


@pytest.fixture
def example(monkeypatch):
    """Import an example by its name, as one that runs it does."""
    monkeypatch.syspath_prepend(EXAMPLES)
    yield importlib.import_module
    for name in (*NAMES, "running"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_prints_draws_and_writes(name, example, monkeypatch, tmp_path, capsys):
    module, out, figure = example(name), tmp_path / "a.json", tmp_path / "a.png"
    monkeypatch.setattr(sys, "argv", [name, "--quick", "--out", str(out), "--figure", str(figure)])
    module.command(module.__doc__, module.work, module.drawn)
    found = json.loads(out.read_text())
    assert figure.read_bytes().startswith(b"\x89PNG")
    seeds = found["setting"]["seeds"]
    assert len(found["rows"]) == seeds * len(found["summary"])
    assert {"machine", "seconds"} <= found.keys()
    assert all(str(row[NAMES[name]]) in capsys.readouterr().out for row in found["summary"][:1])
    for row in found["rows"]:
        assert 0 <= row.get("accuracy", 0) <= 1


def test_seeds_are_summed_up_with_their_interval(example):
    running = example("running")
    rows = [{"map": "a", "seed": s, "x": x} for s, x in enumerate((1.0, 2.0, 3.0))] + [
        {"map": "b", "seed": 0, "x": 5.0}
    ]
    first, second = running.summed_up(rows, ("map",), ("x",))
    assert (first["map"], first["x"]["mean"]) == ("a", 2.0)
    assert first["x"]["half"] == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert (second["map"], second["x"]["mean"]) == ("b", 5.0)
    assert math.isnan(second["x"]["half"])


def test_the_last_fact_about_a_person_is_the_answer(example):
    memory = example("sparse_memory")
    torch.manual_seed(0)
    people, places, asked, answer = memory.stories(50, 9)
    for who, where, person, right in zip(people.tolist(), places.tolist(), asked.tolist(), answer.tolist()):
        assert dict(zip(who, where))[person] == right  # later facts overwrite


def test_a_pole_falls_to_the_side_it_leans_to_and_is_caught_by_a_push(example):
    policy = example("sparse_policy")
    leaning = torch.tensor([[0.0, 0.0, 0.1, 0.0]])
    state = leaning
    for _ in range(60):
        state = policy.moved(state, torch.zeros(1))
    assert not policy.standing(state).item()
    assert state[0, 2] > 0.1
    pushed = policy.moved(policy.moved(leaning, torch.tensor([10.0])), torch.tensor([10.0]))
    assert pushed[0, 3] < 0  # the pole turns back


def test_a_policy_never_does_what_it_has_ruled_out(example):
    policy = example("sparse_policy")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 9))
    mapping = example("sparsegen.torch").make_map("sparsegen_lin", lam=0.9)
    game = policy.played(network, mapping, 30)
    assert policy.log_probabilities(network, mapping, game).isfinite().all()
    assert 1 <= game["possible"] < 9


def test_targets_are_distributions_of_the_teachers_scores(example):
    distillation = example("sparse_distillation")
    x, y, _, _ = distillation.pictures(0, 30)
    teacher = distillation.network(8)
    for name, controls in distillation.TARGETS.items():
        target = distillation.targets(teacher, x, y, controls)
        torch.testing.assert_close(target.sum(1), torch.ones(30), atol=1e-5, rtol=0)
        best = y if not controls else teacher(x).argmax(1)
        assert (target.argmax(1) == best).all(), name
