"""What all commands share: the version, messages in one line, and refusals before any work."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

import sparsegen
from sparsegen.cli import app, running
from sparsegen.experiments.registry import experiments
from sparsegen.experiments.store import Result


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def refused(done, text):
    assert done.exit_code == 1, done.output
    assert done.stderr == f"sparsegen: {text}.\n"


def test_the_version_is_told():
    done = invoke("--version")
    assert (done.exit_code, done.stdout) == (0, f"sparsegen {sparsegen.__version__}\n")


@pytest.mark.parametrize("name", ["tour", "explore", "report", "train", "translate", "bench", "reproduce"])
def test_every_command_is_listed_and_explained(name):
    assert name in invoke("--help").output
    assert invoke(name, "--help").exit_code == 0


@pytest.mark.parametrize("name", [*experiments(), "all"])
def test_every_experiment_is_a_command(name):
    done = invoke("reproduce", name, "--help")
    assert done.exit_code == 0
    assert "--out" in done.output
    assert ("--seed" in done.output) is (name != "figures")


def test_a_page_is_not_written_over_a_folder(tmp_path):
    Result("real", {}, 0, (), {"table": []}, {}, 1.0, "2030-01-01T00:00:00").save(tmp_path / "real.json")
    for command in (["report", tmp_path], ["explore", "--no-open"]):
        refused(invoke(*command, "--out", tmp_path), f"--out must be a file to write, got the folder {tmp_path}")


@pytest.mark.parametrize("name", ["synthetic", "properties", "figures", "all"])
def test_results_are_not_written_into_a_file(tmp_path, name):
    (tmp_path / "diary").write_text("Dear diary")
    for out in (tmp_path / "diary", tmp_path / "diary" / "below"):
        refused(invoke("reproduce", name, "--out", out), f"--out must be a folder, got the file {tmp_path / 'diary'}")
    assert (tmp_path / "diary").read_text() == "Dear diary"


def test_progress_tells_the_time_of_a_cell_as_that():
    file = io.StringIO()

    def work(moved):
        moved(0, 2, None, 0.0)
        moved(1, 2, {"seed": 0}, 12.4)

    running._watched(Console(file=file), "toy", work)
    assert file.getvalue().strip() == "toy: 1 of 2, this one in 12 s"


def without(package, *arguments):
    """A command where a package is not installed."""
    code = f"import sys; sys.modules[{package!r}] = None; from sparsegen.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("package", "arguments", "text"),
    [
        ("torch", ["train", "--corpus", "numbers-fr-en", "--out", "run"], "sparsegen train needs torch"),
        ("torch", ["translate", "best.pt"], "sparsegen translate needs torch"),
        ("torch", ["bench", "maps"], "sparsegen.bench needs torch"),
        ("torch", ["reproduce", "translation", "--corpora", "numbers-fr-en"], "translation needs torch"),
        ("typer", ["tour"], "the command line needs typer"),
        ("matplotlib", ["reproduce", "figures"], "drawing figures needs matplotlib"),
    ],
)
def test_a_missing_package_is_named_with_what_brings_it(package, arguments, text, tmp_path):
    done = without(package, *arguments, *(["--out", tmp_path] if arguments[0] == "reproduce" else []))
    assert done.returncode == 1
    assert done.stdout.strip() == ""
    wanted = rf"sparsegen: {re.escape(text)}, which is not installed: pip install 'sparsegen\[\w+\]'\.\n"
    assert re.fullmatch(wanted, done.stderr), done.stderr


def test_the_tour_goes_without_torch():
    done = without("torch", "tour", "--seconds", "0")
    assert done.returncode == 0
    assert "sparsehourglass" in done.stdout
    assert "measuring speed needs torch" in " ".join(done.stdout.split())
