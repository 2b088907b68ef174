"""Adding an experiment is adding one module: the command, `all`, tables, ledger and report find it there."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

import sparsegen.experiments
from sparsegen.cli import app
from sparsegen.cli.options import Scale
from sparsegen.experiments import registry
from sparsegen.experiments.ledger import ledger
from sparsegen.experiments.registry import SCALES, Experiment, experiments
from sparsegen.experiments.store import Result
from sparsegen.report.page import page
from sparsegen.report.reading import read
from sparsegen.report.tables import ledger_table, tables_of
from sparsegen.report.terminal import show

TOY = """
from pathlib import Path

from sparsegen.experiments import sweep
from sparsegen.experiments.ledger import HOLDS, Entry
from sparsegen.experiments.registry import Data, Experiment, Option
from sparsegen.experiments.store import Stopwatch
from sparsegen.experiments.tables import Column, Table


def run(scale="small", *, seed=0, colours=(), loud=False, store=None, **how):
    clock = Stopwatch()
    rows = sweep.run(dict, [{"seed": seed, "loud": loud}], store=store, **how)
    return clock.result("toy", {"scale": scale, "colours": list(colours)}, seed, rows, {"answer": 42.5})


def tables(result):
    rows = (("one", str(result.summary["answer"])),)
    yield Table("Answers of a toy", (Column("toy", "name"), Column("answer")), rows)


def ledger(result):
    return [Entry("Toys answer", "Sec. 0", "holds if there is one", f"{result.summary['answer']} found", HOLDS)]


def figures(result):
    from matplotlib.figure import Figure

    from sparsegen.experiments.drawings import Drawing

    figure = Figure(figsize=(2, 2))
    figure.subplots().plot([0, 1], [0, result.summary["answer"]])
    yield Drawing("toy-answers", figure, "Answers of a toy", "A line that rises from nothing to the answer of the toy")


EXPERIMENT = Experiment(
    name="toy", title="A toy to play with", help="Ask a toy.", order=35, run=run, scales=("smoke", "small"),
    options=(Option("colours", "Names of colours."), Option("loud", "Ask loudly.", bool)),
    data=Data("toy data", "toys", lambda scale: [f"{scale}.txt"]), tables=tables, ledger=ledger, figures=figures,
)
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """One more module, in a folder of the package, as a person would add it."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "toy.py").write_text(TOY)
    monkeypatch.setattr(sparsegen.experiments, "__path__", [*sparsegen.experiments.__path__, f"{tmp_path}/package"])
    registry._found.cache_clear()
    yield experiments()["toy"]
    registry._found.cache_clear()
    sys.modules.pop("sparsegen.experiments.toy", None)


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def words(text):
    return " ".join(text.replace("│", " ").split())


def test_a_module_is_all_it_takes_to_be_a_command(toy, tmp_path):
    assert list(experiments())[2:4] == ["synthetic", "toy"]
    assert "Ask a toy." in invoke("reproduce", "--help").output
    shown = invoke("reproduce", "toy", "--help").output
    for part in ("--scale", "--seed", "--jobs", "--out", "--data", "--colours", "--loud", "--engine", "--address"):
        assert part in shown
    assert "Names of colours." in words(shown)
    assert "paper]" not in shown
    done = invoke("reproduce", "toy", "--out", tmp_path, "--jobs", 1, "--seed", 3, "--colours", "red, blue", "--loud")
    assert done.exit_code == 0, done.output
    result = Result.load(tmp_path / "toy.json")
    assert (result.config, result.seed) == ({"scale": "small", "colours": ["red", "blue"]}, 3)
    assert result.rows == ({"seed": 3, "loud": True},)
    for part in ("Answers of a toy", "42.5", "Toys answer (Sec. 0)", f"wrote {tmp_path / 'toy' / 'toy-answers.svg'}"):
        assert part in done.output
    assert invoke("reproduce", "toy", "--scale", "paper").exit_code == 2


def test_its_tables_ledger_and_figures_are_shown_by_the_report(toy, tmp_path):
    result = toy.run("smoke")
    assert tables_of(result)[0].rows == (("one", "42.5"),)
    assert ledger(result)[0].measured == "42.5 found"
    assert ledger_table(result).rows == (("Toys answer (Sec. 0)", "42.5 found", "holds"),)
    file = io.StringIO()
    show(result, Console(file=file))
    assert "42.5" in file.getvalue()
    result.save(tmp_path / "toy.json")
    text = page(read([tmp_path / "toy.json"])[0])
    for part in ("A toy to play with", "scaled-down run", "42.5 found", "Answers of a toy", "data:image/"):
        assert part in text


@pytest.fixture
def alone(toy, monkeypatch):
    """No experiment but the toy."""
    monkeypatch.setattr("sparsegen.cli.everything.experiments", lambda: {"toy": toy})


def test_reproduce_all_runs_it_where_its_data_is_there(alone, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEGEN_DATA", str(tmp_path / "data"))
    without = invoke("reproduce", "all", "--jobs", 1, "--out", tmp_path / "out")
    assert without.exit_code == 0, without.output
    assert "toy left out: toy data not found" in without.output
    (tmp_path / "data" / "toys").mkdir(parents=True)
    (tmp_path / "data" / "toys" / "smoke.txt").write_text("")
    assert "left out" in invoke("reproduce", "all", "--jobs", 1, "--out", tmp_path / "out").output  # another scale's
    done = invoke("reproduce", "all", "--jobs", 1, "--scale", "smoke", "--out", tmp_path / "out")
    assert "42.5" in done.output
    assert "A toy to play with" in (tmp_path / "out" / "report.html").read_text()


def test_an_experiment_defined_elsewhere_can_be_registered_once(monkeypatch):
    monkeypatch.setattr(registry, "_added", {})
    mine = Experiment("mine", "Mine", "Do mine.", 0, run=lambda **how: None)
    assert registry.register(mine) is mine
    assert next(iter(experiments())) == "mine"
    assert "Do mine." in invoke("reproduce", "--help").output
    with pytest.raises(ValueError, match="the name of an experiment must be one that no other has, got 'mine'"):
        registry.register(replace(mine, title="Again"))
    with pytest.raises(ValueError, match="'real'"):
        registry.register(replace(mine, name="real"))


def test_two_modules_may_not_define_the_same_experiment(toy, tmp_path):
    (tmp_path / "package" / "toy_again.py").write_text(TOY)
    registry._found.cache_clear()
    with pytest.raises(ValueError, match=r"in sparsegen\.experiments\.toy_again must be one that no other has, got"):
        experiments()
    (tmp_path / "package" / "toy_again.py").unlink()
    sys.modules.pop("sparsegen.experiments.toy_again")


def test_a_result_of_no_experiment_is_refused():
    nothing = Result("figures", {}, 0, (), {}, {}, 1.0, "2030-01-31T12:00:00")  # it measures nothing
    with pytest.raises(ValueError, match=r"the experiment of a Result must be one of 'properties', .*, got 'figures'"):
        registry.of(nothing)


def test_listing_experiments_loads_nothing_heavy():
    code = "import sys, sparsegen.cli; from sparsegen.experiments.registry import experiments; experiments()"
    run = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*sys.modules)"], capture_output=True, text=True, timeout=120, check=True
    )
    loaded = {name.split(".")[0] for name in run.stdout.split()}
    assert "typer" in loaded
    assert not loaded & {"torch", "scipy", "sklearn", "matplotlib", "joblib", "num2words", "babel"}


def test_every_experiment_says_what_it_is():
    for name, experiment in experiments().items():
        assert experiment.name == name
        assert experiment.title
        assert experiment.help.endswith(".")
        assert set(experiment.full) <= set(SCALES)
        assert set(experiment.scales) <= set(SCALES)
        assert experiment.beside in (*experiments(), "")
        assert all(option.help.endswith(".") for option in experiment.options)
    orders = [experiment.order for experiment in experiments().values()]
    assert len(set(orders)) == len(orders)
    assert [scale.value for scale in Scale] == list(SCALES)
