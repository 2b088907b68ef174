"""The multilabel experiments from cell to command line, at toy size."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import mulan_files
import numpy as np
import pytest
from typer.testing import CliRunner

from sparsegen.cli import app
from sparsegen.experiments import registry, sweep
from sparsegen.experiments.ledger import HOLDS, NOT, PARTLY, UNKNOWN, ledger
from sparsegen.experiments.multilabel import claims, real, synthetic
from sparsegen.experiments.multilabel.pairs import PAIRS, score, threshold_for
from sparsegen.experiments.store import Result

TOY = synthetic.Scale((2, 8), (), (200,), 100, 2, (1.0,))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Few rows need a firmer penalty to be solved at once."""
    monkeypatch.setattr(synthetic, "ALPHA", 1e-2)
    monkeypatch.setattr(synthetic, "TOLERANCE", 1e-2)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(synthetic.SCALES, "smoke", TOY)


def cell(pair="sparsemax+hinge", seed=0, **changes):
    arguments = {"setting": "mean", "value": 3, "n_documents": 150, "q_grid": [0.1, 1.0], "pair": pair, "seed": seed}
    return synthetic.cell(**{**arguments, **changes})


@pytest.mark.parametrize("pair", PAIRS)
def test_a_cell_scores_its_pair_and_names_what_it_tuned(pair):
    found = cell(pair)
    assert 0.3 < found["f1"] <= 1
    assert found["gap"] <= synthetic.TOLERANCE
    assert ("q" in found, "p0" in found) == (PAIRS[pair].tunes == "q", PAIRS[pair].tunes == "p0")
    assert found["support"] == 10 if pair == "softmax+log" else found["support"] < 10


def test_a_cell_is_the_same_for_the_same_seed_and_another_for_another():
    first, again, other = (cell(seed=seed) for seed in (4, 4, 5))
    for found in (first, again, other):
        del found["seconds"]
    assert first == again
    assert first != other


def test_the_threshold_of_softmax_is_tuned_on_validation_rows_only(monkeypatch):
    seen = []
    monkeypatch.setattr(synthetic, "threshold_for", lambda pair, Y, P: seen.append(len(Y)) or 0.3)
    assert cell("softmax+log")["p0"] == 0.3
    assert seen == [30]  # a fifth of 150 documents


def test_scores_are_those_of_the_predicted_sets():
    Y = np.array([[1, 1, 0, 0], [1, 0, 0, 0]])
    P = np.array([[0.6, 0.4, 0, 0], [0.5, 0.3, 0.2, 0]])
    found = score(Y, P)
    assert found.f1 == pytest.approx(2 * 3 / (3 + 5))
    assert (found.support, found.labels) == (2.5, 2.5)
    assert score(Y, P, p0=0.35).labels == 1.5
    assert threshold_for("sparsemax+hinge", Y, P) == 0.0
    assert threshold_for("softmax+log", Y, P) == pytest.approx(0.35)


def test_length_2000_of_the_first_settings_and_poisson_labels_of_the_third():
    assert (synthetic.documents("mean", 3, 20, 0).X.sum(axis=1) == 2000).all()
    assert (synthetic.documents("length", 400, 20, 0).X.sum(axis=1) == 400).all()


def test_a_run_resumes_from_its_store(tmp_path, toy, monkeypatch):
    first = synthetic.run("smoke", store=tmp_path)
    monkeypatch.setattr(sweep, "_call", lambda *arguments: pytest.fail("a finished cell was run again"))
    again = synthetic.run("smoke", store=tmp_path)
    assert again.rows == first.rows
    assert again.summary == first.summary


def test_the_paper_scale_is_the_papers():
    scale = synthetic.SCALES["paper"]
    assert (scale.documents, scale.mean) == (5000, (2, 3, 4, 5, 6, 7, 8, 9))
    assert (scale.length[0], scale.length[-1], scale.range) == (200, 2000, (0, 1, 2, 3, 4))
    assert all(size.seeds >= 5 for name, size in synthetic.SCALES.items() if name != "smoke")


def made(values, equal=(1.0, 1.0)) -> Result:
    """A synthetic Result with these means: {(setting, value): {pair: (f1, jsd, support)}}."""
    table = [
        {"setting": setting, "value": value, "pair": pair, "seeds": 5}
        | {measure: [mean, mean, mean] for measure, mean in zip(("f1", "jsd", "support"), means)}
        for (setting, value), pairs in values.items()
        for pair, means in pairs.items()
    ]
    equivalence = {"equal_scaled_penalty": equal[0], "equal_same_penalty": equal[1]}
    summary = {"table": table, "equivalence": equivalence, "largest_gap": 1e-3}
    return Result("synthetic", {}, 0, (), summary, {"sparsegen": "0"}, 1.0, "2030-01-01T00:00:00")


def point(softmax, huber, hinge, hourglass):
    return dict(zip(PAIRS, (softmax, huber, hinge, hourglass)))


AHEAD = point((0.9, 0.10, 10), (0.7, 0.05, 5), (0.8, 0.04, 4), (0.85, 0.03, 3))
BEHIND = point((0.9, 0.01, 10), (0.7, 0.02, 5), (0.6, 0.04, 6), (0.5, 0.05, 7))


def verdicts(result):
    return [entry.verdict for entry in ledger(result)]


def test_every_claim_holds_where_the_numbers_say_so():
    found = verdicts(made({("mean", 2): AHEAD, ("mean", 9): point((0.9, 0.1, 10), (0.7, 0.03, 5), (0.71, 0.04, 4),
                                                                   (0.72, 0.035, 3))}))  # fmt: skip
    assert found == [HOLDS, HOLDS, HOLDS, HOLDS, HOLDS, PARTLY, HOLDS, HOLDS, HOLDS]


def test_no_claim_of_the_hinges_holds_where_they_are_behind():
    found = verdicts(made({("mean", 2): BEHIND, ("mean", 9): BEHIND}, (0.5, 0.5)))
    assert found[:5] == [NOT, NOT, NOT, NOT, NOT]
    assert found[6:] == [NOT, NOT, NOT]


def test_some_of_each_holds_partly_and_what_was_not_measured_is_said():
    found = verdicts(made({("mean", 2): AHEAD, ("range", 1): BEHIND}, (1.0, 0.9)))
    assert found[0] == PARTLY
    assert found[1] == UNKNOWN
    assert found[-1] == PARTLY


def test_a_difference_too_small_to_see_is_no_win():
    level = point((0.9, 0.1, 10), (0.7, 0.05, 5), (0.7005, 0.05, 5), (0.7009, 0.05, 5))
    assert verdicts(made({("mean", 2): level, ("mean", 9): level}))[:4] == [NOT, NOT, NOT, NOT]


def real_result(f1):
    rows = [{"name": "scene", "pair": pair, "f1": value, "jsd": 0.1, "support": 2.0, "labels": 2.0, "gap": 1e-4}
            for pair, value in zip(PAIRS, f1)]  # fmt: skip
    summary = {"table": real.compare(rows), "largest_gap": 1e-4}
    return Result("real", {}, 0, tuple(rows), summary, {"sparsegen": "0"}, 1.0, "2030-01-01T00:00:00")


def test_real_data_is_judged_beside_the_paper():
    table = real_result((0.71, 0.60, 0.70, 0.69)).summary["table"]
    assert [round(row["difference"], 2) for row in table] == [0.0, -0.1, 0.02, 0.0]
    entries = ledger(real_result((0.71, 0.60, 0.70, 0.69)))
    assert [entry.verdict for entry in entries] == [PARTLY, NOT, HOLDS]
    assert "sparsemax+huber 0.600 (paper 0.70)" in entries[0].measured
    assert [entry.verdict for entry in ledger(real_result((0.74, 0.72, 0.71, 0.70)))] == [HOLDS, HOLDS, NOT]


def test_the_rule_beside_a_verdict_is_written_down():
    for entry in [*ledger(made({("mean", 2): AHEAD, ("mean", 9): BEHIND})), *ledger(real_result((0.7,) * 4))]:
        assert entry.claim
        assert entry.source
        assert entry.rule
        assert re.search(r"\d", entry.measured)


def test_real_data_is_tuned_on_training_rows_and_scored_on_test_rows(tmp_path, monkeypatch):
    mulan_files.toy_set(tmp_path)
    monkeypatch.setenv("SPARSEGEN_DATA", str(tmp_path))
    result = real.run("smoke")
    assert {row["pair"] for row in result.rows} == set(PAIRS)
    for row in result.rows:
        assert row["f1"] > 0.75
        assert row["gap"] <= real.TOLERANCE
        assert not row["published_split"]  # a toy is not Mulan's set
    assert all(row["paper"] == real.PAPER["emotions"][row["pair"]] for row in result.summary["table"])


def test_the_best_configuration_is_chosen_by_validation():
    todo = [{"name": "a", "pair": "p", "preparation": prep, "q": 1.0} for prep in ("x", "y")]
    found = [{"found": [{"alpha": 0.1, "p0": 0.0, "f1": 0.5}, {"alpha": 0.2, "p0": 0.1, "f1": 0.7}]},
             {"found": [{"alpha": 0.1, "p0": 0.0, "f1": 0.6}]}]  # fmt: skip
    (best,) = real.choose(todo, found)
    assert (best["preparation"], best["alpha"], best["validation_f1"]) == ("x", 0.2, 0.7)


def invoke(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def test_reproduce_synthetic_writes_result_figures_and_ledger(tmp_path, toy):
    done = invoke("synthetic", "--scale", "smoke", "--jobs", 1, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    result = Result.load(tmp_path / "synthetic.json")
    assert len(result.rows) == 3 * 2 * 4
    for name in ("f1", "jsd", "sparsity"):
        png = (tmp_path / "synthetic" / f"synthetic-{name}.png").read_bytes()
        assert png.startswith(b"\x89PNG")
        assert len(png) > 10_000
        assert "<svg" in (tmp_path / "synthetic" / f"synthetic-{name}.svg").read_text()
    assert "Ledger" in done.output
    assert all(entry.verdict.split()[0] in done.output for entry in ledger(result))
    assert max(map(len, (line for line in done.output.splitlines() if "wrote" not in line))) <= 80


def test_reproduce_real_says_where_to_get_missing_data(tmp_path):
    done = invoke("real", "--data", tmp_path, "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "scene-train.arff" in done.output
    assert "mulan" in done.output
    assert "Traceback" not in done.output


def test_reproduce_real_refuses_an_unknown_set(tmp_path):
    done = invoke("real", "--sets", "scene,nonsense", "--out", tmp_path)
    assert done.exit_code == 1
    assert "sparsegen: sets must be among" in done.output


def test_an_interrupted_run_says_that_it_can_go_on(tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setitem(registry._added, "synthetic", replace(synthetic.EXPERIMENT, run=interrupted))
    done = invoke("synthetic", "--out", tmp_path)
    assert done.exit_code == 130
    assert "goes on from there" in done.output


def test_a_result_is_json_that_anyone_can_read(tmp_path):
    real_result((0.7,) * 4).save(tmp_path / "real.json")
    assert json.loads((tmp_path / "real.json").read_text())["experiment"] == "real"


def test_verdict_thresholds_are_what_the_texts_say():
    assert claims.FEW < claims.MANY
    assert "0.005" in next(rule for claim, _, rule, _ in claims.CLAIMS if "few labels" in claim)
