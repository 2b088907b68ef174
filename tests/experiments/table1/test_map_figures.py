"""Figures of the maps: what is drawn is what the maps give, and every file is written."""

import numpy as np
import pytest
from typer.testing import CliRunner

import sparsegen as sg
from sparsegen.cli import app
from sparsegen.experiments.table1 import map_figures


def test_every_figure_is_written_by_the_command(tmp_path):
    done = CliRunner().invoke(app, ["reproduce", "figures", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == sorted(f"{name}.{kind}" for name in map_figures.FIGURES for kind in ("png", "svg"))
    assert all((tmp_path / "figures" / name).stat().st_size > 5000 for name in names)


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "sum_normalization"])
def test_values_are_written_where_the_map_has_them(name):
    p = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    places = np.array(map_figures._label_places(name, p))
    np.testing.assert_allclose(getattr(sg, name)(places)[:, 0], p, atol=1e-12)


def test_points_a_and_b_are_where_the_map_sends_the_points():
    np.testing.assert_allclose(sg.sparsegen_lin([[1.0, 0.3], [0.25, 0.95]], lam=0.5), [[1, 0], [0, 1]])
    assert (sg.sparsemax([[1.0, 0.3], [0.25, 0.95]]) > 0).all()  # but not sparsemax


def test_the_mirror_point_leads_to_the_same_probabilities():
    z = np.array([-1.3, -0.3])
    mirror = z - 2 * z.mean()
    np.testing.assert_allclose(sg.sparsehourglass(z, q=1.0), sg.sparsecone(mirror, q=1.0))
    p, anchor = sg.sparsecone(mirror, q=1.0), np.array([-1.0, -1.0])
    assert np.linalg.det([mirror - anchor, p - anchor]) == pytest.approx(0)  # on the line from the anchor


def test_the_cone_is_empty_outside_its_domain():
    assert np.isnan(map_figures._cone(np.array([[[-2.0, -2.0]]]), 1.0)).all()
