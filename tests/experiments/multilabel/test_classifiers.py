"""The classifier beside others, at toy size."""

from __future__ import annotations

import mulan_files
import pytest

from sparsegen.experiments.multilabel import classifiers
from sparsegen.experiments.registry import experiments


def test_every_method_is_chosen_on_training_rows_and_scored_on_test_rows(tmp_path, monkeypatch):
    mulan_files.toy_set(tmp_path)
    monkeypatch.setenv("SPARSEGEN_DATA", str(tmp_path))
    classifiers._held_probabilities.cache_clear()
    result = classifiers.run("smoke", store=tmp_path / "store")
    assert [row["method"] for row in result.rows] == list(classifiers.METHODS)
    for row in result.rows:
        assert 0.75 < row["micro"] <= 1, row["method"]
        assert 0 <= row["macro"] <= 1
        assert row["fit_seconds"] > 0
        assert row.get("gap", 0) <= 1e-3
    assert result.summary["true_labels"]["emotions"] > 1
    (verdict,) = result.summary["verdicts"]
    assert verdict["name"] == "emotions"
    (table,) = experiments()["classifiers"].tables(result)
    assert len(table.rows) == len(classifiers.METHODS)
    assert "emotions: default" in table.notes[0]


def row(method, micro, seconds=1.0, name="toy"):
    return {"name": name, "method": method, "micro": micro, "fit_seconds": seconds}


@pytest.mark.parametrize(
    ("ours", "plain", "ahead", "close"),
    [(0.70, 0.65, True, True), (0.695, 0.70, False, True), (0.68, 0.65, True, False)],
)
def test_a_verdict_names_the_better_tuned_baseline(ours, plain, ahead, close):
    rows = [row("default", ours, 3.0), row("logistic at 0.5", plain), row("logistic tuned", 0.70, 2.0)]
    assert classifiers.verdicts(rows) == []  # until all are there
    (found,) = classifiers.verdicts([*rows, row("softmax+log tuned", 0.60)])
    assert (found["ahead"], found["close"]) == (ahead, close)
    assert (found["best"], found["tuned"], found["times"]) == ("logistic tuned", 0.70, 1.5)


def test_the_lead_over_splits_is_a_paired_difference():
    shared = {"name": "toy", "fit_seconds": 1.0}
    ours = [{**shared, "method": "default", "split": s, "micro": 0.6 + 0.1 * s} for s in (1, 2, 3)]
    other = [{**shared, "method": "logistic tuned", "split": s, "micro": 0.58 + 0.1 * s} for s in (1, 2, 3)]
    default, logistic = classifiers.spread([*ours, *other])
    assert default["lead"] == {"mean": 0, "low": 0, "high": 0}
    assert logistic["splits"] == 3
    assert logistic["lead"]["low"] == pytest.approx(0.02)  # every split agrees, though they differ among each other
    assert logistic["lead"]["high"] == pytest.approx(0.02)
    assert logistic["micro"] == pytest.approx(0.78)


def test_rows_that_are_dealt_anew_are_the_same_rows(tmp_path, monkeypatch):
    mulan_files.toy_set(tmp_path)
    monkeypatch.setenv("SPARSEGEN_DATA", str(tmp_path))
    given, dealt, again = (classifiers.parts("emotions", split) for split in (0, 1, 1))
    assert given.Y.shape == dealt.Y.shape
    assert given.Y_test.shape == dealt.Y_test.shape
    assert given.Y.sum() + given.Y_test.sum() == dealt.Y.sum() + dealt.Y_test.sum()
    assert (given.Y != dealt.Y).nnz > 0
    assert (dealt.X == again.X).all()


@pytest.mark.parametrize(("options", "name"), [({"sets": ("iris",)}, "sets"), ({"methods": ("magic",)}, "methods")])
def test_what_is_not_known_is_refused(options, name):
    with pytest.raises(ValueError, match=f"sparsegen: {name} must be among"):
        classifiers.run("smoke", **options)
    with pytest.raises(ValueError, match="sparsegen: scale must be one of"):
        classifiers.run("huge")
