"""The property lab: true maps are measured as they are, wrong ones are caught with a counterexample that is one."""

import io
import math

import numpy as np
import pytest
from rich.console import Console

import sparsegen as sg
from sparsegen._table.maps import MAPS
from sparsegen.experiments.store import Result
from sparsegen.experiments.table1 import properties as laws
from sparsegen.properties import check, equation, has_value, measure, probes
from sparsegen.report.terminal import show


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def failed(f, **options):
    return {law for law, found in check(f, **options).findings.items() if not found.holds}


@pytest.mark.parametrize("name", MAPS)
def test_a_row_of_the_table_is_measured_as_it_is(name):
    found = measure(name)
    assert found.row == found.true


@pytest.mark.parametrize("name", [name for name, m in MAPS.items() if m.domain])
def test_the_library_refuses_just_the_rows_without_a_value(name):
    m, z = MAPS[name], probes(3, np.random.default_rng(1))
    controls = {"q": 0.5} if "q" in m.controls else {}
    for row, on in zip(z, has_value(m, z, controls)):
        if on:
            assert np.isfinite(getattr(sg, name)(row, **controls)).all()
        else:
            with pytest.raises(ValueError, match=f"of {name} must be"):
                getattr(sg, name)(row, **controls)


def test_a_map_written_by_someone_else_is_measured():
    report = check(softmax)
    assert {law for law, found in report.findings.items() if not found.holds} == {"idempotent", "scale"}
    assert report.lipschitz == pytest.approx(0.5, rel=0.01)
    assert "idempotent   no" in str(report)


@pytest.mark.parametrize(("wrong", "law"), [
    (lambda z: softmax(z) * 0.999, "probability"),
    (lambda z: softmax(z) + np.eye(z.shape[-1])[0] * 0.1 - np.eye(z.shape[-1])[1] * 0.1, "permutation"),
    (lambda z: softmax(-z), "monotone"),
    (lambda z: softmax(np.abs(z)), "translation"),
    (lambda z: softmax(np.sqrt(z)), "full_domain"),
    (lambda z: softmax(np.round(1e5 * z) % 7), "jacobian"),
])  # fmt: skip
def test_a_wrong_map_is_caught(wrong, law):
    with np.errstate(invalid="ignore"):
        found = check(wrong, n_classes=(3,)).findings[law]
    assert not found.holds
    assert found.counterexample is not None


def test_a_counterexample_is_one():
    seen = check(lambda z: softmax(np.abs(z)), n_classes=(3,)).findings["monotone"].counterexample
    i, j = seen["z"].argmax(), seen["p"].argmax()
    assert seen["z"][i] > seen["z"][j]
    assert seen["p"][i] < seen["p"][j]
    np.testing.assert_allclose(seen["p"], softmax(np.abs(seen["z"])))


def test_the_constant_of_the_hourglass_is_not_the_papers():
    found = check(lambda z: sg.sparsehourglass(z, q=1.0), n_classes=(2,)).lipschitz
    assert 1.57 < found <= math.sqrt(10) / 2 * (1 + 1e-4)  # the paper says 1.5


def test_a_map_that_jumps_has_no_constant():
    assert check(sg.hardmax, n_classes=(3,)).lipschitz == math.inf


def test_rows_that_raise_are_rows_without_a_value():
    report = check(sg.sum_normalization, n_classes=(2,))
    assert not report.findings["full_domain"].holds
    assert report.findings["monotone"].holds


def test_a_map_without_a_value_on_most_rows_is_measured_without_a_warning():
    def positive(z):
        return np.where((z > 50).all(-1, keepdims=True), z / z.sum(-1, keepdims=True), np.nan)

    for f in (positive, lambda z: np.full(z.shape, np.nan)):
        found = check(f, n_classes=(2,)).findings["jacobian"]
        assert (found.holds, found.tried, found.counterexample) == (False, 0, None)


def test_the_equation_has_no_value_where_its_radius_is_zero():
    p = equation("sparsehourglass", q=0.0)(np.array([[1.0, -1.0], [0.0, 1.0]]))
    assert np.isnan(p[0]).all()
    np.testing.assert_allclose(p[1], [0, 1])


@pytest.mark.parametrize(("call", "error", "text"), [
    (lambda: check("softmax"), TypeError, "mapping must be callable, got 'softmax'"),
    (lambda: check(lambda z: z[:, :1]), ValueError, "the result of the map must be of the scores' shape"),
])  # fmt: skip
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_the_result_is_shown_in_80_columns():
    row = laws.row("sparsemax", 0)
    assert all(row["agrees"].values())
    slopes = [{"K": 2, "q": 1.0, "claim": 1.5, "true": 1.581, "found": 1.58}]
    rows = tuple({"name": name, **row} for name in MAPS)
    summary = {"cells": 6, "equal": 6, "errata": laws.errata(slopes)}
    result = Result("properties", {"scale": "small"}, 0, rows, summary, {}, 1.0, "2030-01-01T00:00:00")
    file = io.StringIO()
    show(result, Console(file=file, width=80))
    text = file.getvalue()
    assert "…" not in text
    assert "6 of 6 cells" in text
    assert "slope 1.580 found; the constant is" in text
    assert "(0.335, 0.333, 0.332) at -99" in " ".join(text.split())


def test_what_lies_beyond_lam_1_is_computed(monkeypatch):
    text = "refused: the formula is no minimum there, (0.6, 0.4) at lam = 2 would give (0.4, 0.6)"
    assert laws.errata([])[-1]["measured"] == text
    monkeypatch.setattr(sg, "sparsegen_lin", lambda z, lam: np.ones(len(z)) / len(z))
    assert laws.errata([])[-1]["measured"].startswith("(0.5, 0.5): the formula is no minimum")
