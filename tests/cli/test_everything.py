"""`reproduce all` runs what it can, says what it cannot, and keeps what is done."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from made_results import (
    MADE,
    Page,
    made_real,
)
from sparsegen._table.maps import MAPS
from sparsegen.cli import app, running
from sparsegen.experiments import registry
from sparsegen.experiments.multilabel import synthetic
from sparsegen.experiments.seq2seq import figures as attention_figures
from sparsegen.experiments.seq2seq import generation
from sparsegen.experiments.store import Result
from sparsegen.experiments.table1 import map_figures, properties


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("SPARSEGEN_DATA", str(tmp_path / "empty"))


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(properties, "MAPS", {"sparsemax": MAPS["sparsemax"]})
    monkeypatch.setattr(properties, "HOURGLASS", ((2, 1.0),))
    monkeypatch.setattr(map_figures, "FIGURES", {"contours": map_figures.contours})
    monkeypatch.setattr(attention_figures, "HEATMAP_ROWS", ("sparsegen-lin",))
    monkeypatch.setattr(generation, "ROWS", {name: generation.ROWS[name] for name in ("softmax", "sparsegen-lin")})
    monkeypatch.setitem(synthetic.SCALES, "smoke", synthetic.Scale((2, 8), (), (200,), 100, 2, (1.0,)))
    monkeypatch.setattr(synthetic, "ALPHA", 1e-2)
    monkeypatch.setattr(synthetic, "TOLERANCE", 1e-2)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # many times as fast where other tests keep the cores busy
    yield
    torch.set_num_threads(before)


def run_all(out, *more):
    return CliRunner().invoke(
        app, ["reproduce", "all", "--scale", "smoke", "--jobs", "1", "--out", str(out), *map(str, more)]
    )


@pytest.mark.slow
def test_everything_runs_without_data_and_says_what_is_left_out(tmp_path, no_data, tiny):
    done = run_all(tmp_path / "out")
    assert done.exit_code == 0, done.output
    names = ["properties", "synthetic", "numbers"]
    assert sorted(path.stem for path in (tmp_path / "out").glob("*.json")) == sorted(names)
    left = ("real left out: Mulan", "classifiers left out: Mulan", "translation left out: Multi30k")
    for name in (*left, "summarization left out: Gigaword"):
        assert done.output.count(name) == 2  # in its turn, and at the end
    assert f"wrote {tmp_path / 'out' / 'report.html'}" in done.output
    first = (tmp_path / "out" / "report.html").read_text()
    found = Page(first)
    assert {"figures", *(f"run-{name}" for name in names)} <= {a["id"] for a in found.all("section")}
    assert not found.wrong
    again = run_all(tmp_path / "out")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "out" / "report.html").read_text() == first  # times too: nothing was done again


@pytest.fixture
def made_parts(monkeypatch):
    """Instant runs; those named in the set that is returned fail, and the options of each are kept."""
    failing, seen = {}, []

    def runner(experiment):
        def run_it(*, store, progress, **options):
            seen.append((store.name, options))
            if store.name in failing:
                raise failing[store.name]
            return MADE.get(experiment, made_real)()

        return run_it

    for name, experiment in registry.measured().items():
        instant = replace(experiment, run=runner(name), figures=lambda result: ())
        monkeypatch.setitem(registry._added, name, instant)
    monkeypatch.setattr(map_figures, "FIGURES", {"contours": map_figures.contours})
    return failing, seen


def test_a_part_that_fails_is_told_and_the_others_remain(tmp_path, made_parts, no_data):
    failing, _ = made_parts
    failing["synthetic"] = FileNotFoundError("no <file> here")
    failing["properties"] = ZeroDivisionError("by zero")
    done = run_all(tmp_path / "out")
    assert done.exit_code == 1
    assert "synthetic failed: no <file> here" in done.output
    assert "properties failed: ZeroDivisionError: by zero" in done.output
    assert "Traceback" not in done.output
    found = Page((tmp_path / "out" / "report.html").read_text())
    assert "failed: no <file> here" in found.text
    assert "by zero" in found.text
    sections = {a["id"] for a in found.all("section")}
    assert {"run-numbers", "figures"} <= sections
    assert not {"run-synthetic", "run-properties"} & sections


def test_with_data_both_translations_run_under_names_of_their_own(tmp_path, made_parts, no_data):
    _, seen = made_parts
    done = run_all(tmp_path / "out", "--data", tmp_path, "--seed", 5)
    assert done.exit_code == 0, done.output
    names = ["properties", "synthetic", "real", "classifiers", "numbers", "translation", "summarization"]
    assert [name for name, _ in seen] == names
    assert all((tmp_path / "out" / f"{name}.json").is_file() for name in names)
    assert dict(seen)["numbers"]["corpora"] == ("numbers-fr-en",)
    assert "corpora" not in dict(seen)["translation"]
    assert all(options["seed"] == 5 and options["jobs"] == 1 for _, options in seen)


def test_a_part_runs_where_some_of_its_data_is_found(tmp_path, made_parts, no_data):
    _, seen = made_parts
    (tmp_path / "empty" / "multilabel").mkdir()
    (tmp_path / "empty" / "multilabel" / "emotions.xml").write_text("")
    run_all(tmp_path / "out")
    assert [name for name, _ in seen] == ["properties", "synthetic", "real", "classifiers", "numbers"]


def test_an_interrupted_run_says_what_is_kept(tmp_path, made_parts, no_data):
    failing, _ = made_parts
    failing["numbers"] = KeyboardInterrupt()
    done = run_all(tmp_path / "out")
    assert done.exit_code == 130
    assert "Finished: properties, synthetic." in done.output
    assert "goes on from there" in done.output


def test_a_run_from_the_store_keeps_the_times_of_the_work(tmp_path, made_parts):
    first = made_real()
    result = Result("real", first.config, first.seed, first.rows, first.summary, first.versions, 0.1, "2031-01-01")
    first.save(tmp_path / "real.json")
    assert running._earlier(result, tmp_path / "real.json") == first
    other = Result("real", first.config, 9, first.rows, first.summary, first.versions, 0.1, "2031-01-01")
    assert running._earlier(other, tmp_path / "real.json") is other
    (tmp_path / "real.json").write_text("torn")
    assert running._earlier(result, tmp_path / "real.json") is result
