"""`sparsegen doctor`: what is found, what is missing, and a kernel that errs."""

from importlib import metadata

import pytest
from typer.testing import CliRunner

import sparsegen
from sparsegen import _core
from sparsegen.cli import app, doctor


def told():
    done = CliRunner().invoke(app, ["doctor"])
    return done.exit_code, {line.split()[0]: line.split(maxsplit=1)[1] for line in done.output.splitlines()}


def test_it_tells_kernel_threads_packages_and_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARSEGEN_DATA", str(tmp_path))
    monkeypatch.setenv("SPARSEGEN_NUM_THREADS", "3")
    monkeypatch.setattr("sparsegen.numpy.threads._threads", None)
    code, lines = told()
    assert code == 0
    assert lines["sparsegen"].startswith(f"{sparsegen.__version__}, Python 3.")
    assert lines["kernel"] == f"engine {_core.engine()}, of {', '.join(_core.engines())}"
    assert lines["tried"] == f"{100 * len(_core.engines())} rows with every engine, right"
    assert lines["threads"] == "3 (from SPARSEGEN_NUM_THREADS)"
    assert lines["data"] == f"{tmp_path} (from SPARSEGEN_DATA), there"


def test_a_missing_package_is_told_with_what_to_type(monkeypatch):
    def version(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(doctor.metadata, "version", version)
    code, lines = told()
    assert code == 0
    assert lines["triton"].startswith("not found: pip install")
    assert "[gpu]" in lines["triton"]


def test_a_broken_package_is_told_and_the_rest_goes_on(monkeypatch):
    def broken(name):
        raise OSError("libfeathers.so is not there\nand more")

    monkeypatch.setattr(doctor, "import_module", broken)
    pytest.importorskip("sklearn")
    code, lines = told()
    assert code == 0
    assert lines["scikit-learn"].endswith("found but not usable: OSError: libfeathers.so is not there")
    assert "runs" in lines


def test_a_kernel_that_errs_is_a_failure(monkeypatch):
    monkeypatch.setattr(doctor, "_by_sorting", lambda z: z * 0)
    engine = _core.engine()
    code, lines = told()
    assert code == 1
    assert lines["tried"].startswith("wrong: engine ")
    assert _core.engine() == engine
