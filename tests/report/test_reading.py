"""A report is read from files and folders; what is no Result is refused by name."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from made_results import (
    RESULTS,
    Page,
    made,
    made_real,
)
from sparsegen.cli import app
from sparsegen.experiments import registry
from sparsegen.report.reading import read


def run_report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_a_report_is_made_of_files_and_folders(tmp_path):
    made_real().save(tmp_path / "in" / "real.json")
    made_real().save(tmp_path / "real.json")
    (tmp_path / "in" / "other.json").write_text('{"a": 1}')
    (tmp_path / "in" / "notes.txt").write_text("no JSON")
    done = run_report(tmp_path / "in", tmp_path / "real.json", "--out", tmp_path / "new" / "page.html")
    assert done.exit_code == 0, done.output
    assert "left out, as they hold no experiment: other.json" in done.output
    assert "notes.txt" not in done.output
    found = Page((tmp_path / "new" / "page.html").read_text())
    assert {"run-real", "run-real-2"} <= {a["id"] for a in found.all("section")}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"format": "sparsegen res', "whole JSON"),
        (b"\xff\xfe", "whole JSON"),
        (b"[1, 2]", "format 'sparsegen result'"),
        (b'{"format": "another"}', "format 'another'"),
    ],
)
def test_a_torn_or_foreign_file_is_refused_by_name(tmp_path, content, words):
    path = tmp_path / "torn.json"
    path.write_bytes(content)
    done = run_report(path, "--out", tmp_path / "page.html")
    assert done.exit_code == 1
    assert "torn.json" in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.output
    assert not (tmp_path / "page.html").exists()


def test_a_torn_result_in_a_folder_is_refused_too(tmp_path):
    made_real().save(tmp_path / "real.json")
    (tmp_path / "torn.json").write_bytes((tmp_path / "real.json").read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"torn\.json"):
        read([tmp_path])


def test_a_result_of_another_kind_or_version_is_refused_by_name(tmp_path):
    made("toy", {}).save(tmp_path / "toy.json")
    with pytest.raises(ValueError, match=r"experiment.*'toy'.*toy\.json"):
        read([tmp_path / "toy.json"])
    made("real", {"table": []}).save(tmp_path / "real.json")
    with pytest.raises(ValueError, match=r"real\.json.*'largest_gap'"):
        read([tmp_path / "real.json"])


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(ValueError, match="got no JSON file"):
        read([tmp_path])


def test_the_results_of_the_repository_can_be_read_and_benchmarks_are_named():
    found, others = read([RESULTS])
    assert {result.experiment for result in found.results.values()} == set(registry.measured())
    assert found.drawn == ("figures",)
    assert {"maps.json", "attention.json"} <= {path.name for path in others}
