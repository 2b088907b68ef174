"""Maps of rows of at most 64 floats, made into points where they stand transposed: beside bisection and themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import oracle
import sparsegen as sg
import sparsegen.torch as sgt
from sparsegen._table.maps import MAPS

CONTROLS = {"lam": 0.2, "q": 0.5, "temperature": 0.7}
NAMES = [name for name, m in MAPS.items() if not m.power and name not in ("sparsemax", "sparsegen_lin", "hardmax")]
SIZES = (1, 3, 4, 7, 8, 9, 15, 16, 17, 33, 50, 63, 64, 65)
KINDS = {
    "normal": lambda z: z, "narrow": lambda z: z / 64, "wide": lambda z: z * 8, "far": lambda z: z + 40,
    "tied": lambda z: np.round(2 * z) / 2,
}  # fmt: skip
ODD = (math.nan, math.inf, -math.inf, 0.0, -1.0, 1e30, 1e-30, 3e38, 1e-42)


def controls_of(name, **others):
    return {key: value for key, value in (CONTROLS | others).items() if key in MAPS[name].controls}


def scores(name, kind, k, n=37):
    z = KINDS[kind](np.random.default_rng([k, len(kind)]).standard_normal((n, k)))
    return (abs(z) + 0.125 if MAPS[name].domain else z).astype(np.float32)


def bisected(name, z):
    """The map in float64: points and radii by the table's own words, thresholds by bisection."""
    m, given = MAPS[name], MAPS[name].fixed | controls_of(name)
    z = z.astype(np.float64)
    n, share = z.shape[1], 1 - given.get("lam", 0.0)
    height = z.mean(1) if name == "sparsecone" else abs(z.mean(1))
    x = {"lin": lambda: z, "sq": lambda: z * z, "log": lambda: np.log(z), "exp": lambda: np.exp(z - z.max(1)[:, None])}
    if m.transform == "exp" and m.radius.of == "sum":
        x["exp"] = lambda: np.exp((z - z.max(1)[:, None]) / given.get("temperature", 1.0))
    points = x[m.transform]()
    if m.radius.of == "mean":
        return oracle.project_bisect(points, (height + given["q"]) / (1 / n + given["q"]))
    if m.radius.of == "sum":
        return points / points.sum(1)[:, None] if share == 1 else oracle.project_bisect(points, share * points.sum(1))
    return oracle.project_bisect(points, share * (np.exp(-z.max(1)) if m.transform == "exp" else np.ones(len(z))))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_short_rows_are_as_bisection_has_them(engine, name, kind):
    eps = np.finfo(np.float32).eps
    for k in SIZES:
        z = scores(name, kind, k)
        p, want = getattr(sg, name)(z, **controls_of(name)), bisected(name, z)
        # A point is a float: what lies a unit of its last place from the threshold can be either side of it.
        blur = 8 * eps * (1 + abs(z).max() ** 2 * (MAPS[name].transform == "sq") + math.log2(k + 1) * 0.25)
        assert abs(p - want).max() <= blur, k
        assert abs(p.sum(1, dtype=np.float64) - 1).max() <= 4 * eps, k


@pytest.mark.parametrize("name", [*NAMES, "hardmax", "entmax15"])
def test_odd_rows_do_not_reach_their_neighbours_nor_how_many_there_are(engine, name):
    f = getattr(sgt, name)
    given = controls_of(name)
    for k in (4, 9, 16, 17, 50, 64):
        z = torch.from_numpy(scores(name, "normal", k, 41))
        plain = f(z, **given)
        spoilt = z.clone()
        spoilt[3::4, k // 2] = torch.tensor([ODD[i % len(ODD)] for i in range(len(spoilt[3::4]))])
        among = f(spoilt, **given)
        whole = torch.arange(len(z)) % 4 != 3
        assert torch.equal(among[whole], plain[whole])
        alone = torch.cat([f(row, **given) for row in spoilt.split(1)])
        assert torch.equal(among.nan_to_num(7), alone.nan_to_num(7))
        assert torch.equal(f(spoilt.t(), dim=0, **given).t().nan_to_num(7), alone.nan_to_num(7))  # read where it stands
        assert torch.equal(f(spoilt.t().contiguous(), dim=0, **given).t().nan_to_num(7), alone.nan_to_num(7))


@pytest.mark.parametrize("name", NAMES)
def test_controls_of_each_row_and_gradients_are_those_of_a_row_alone(engine, name):
    given = controls_of(name)
    for k in (10, 50):
        z = torch.from_numpy(scores(name, "normal", k, 21)).requires_grad_()
        v = torch.from_numpy(scores("softmax", "normal", k + 1, 21)[:, :k].copy())
        many = {key: torch.linspace(0.5, 1.5, 21, dtype=torch.float64) * value for key, value in given.items()}
        if "lam" in many:
            many["lam"][::2] = 0.0  # where the sum is the radius
        p = getattr(sgt, name)(z, **many)
        (grad,) = torch.autograd.grad(p, z, v)
        wide = z.detach().double().requires_grad_()
        want = getattr(sgt, name)(wide, **many)
        (want_grad,) = torch.autograd.grad(want, wide, v.double())
        torch.testing.assert_close(p.double(), want, rtol=0, atol=4e-6)
        torch.testing.assert_close(grad.double(), want_grad, rtol=2e-3, atol=2e-4)
        for i in (0, 1, 20):
            row = {key: float(value[i]) for key, value in many.items()}
            torch.testing.assert_close(getattr(sgt, name)(z[i : i + 1], **row)[0], p[i], rtol=0, atol=3e-7)


@pytest.mark.parametrize("name", NAMES)
def test_halves_and_other_axes_take_the_same_way(engine, name):
    given = controls_of(name)
    for k in (5, 16, 50):
        z = torch.from_numpy(scores(name, "normal", k)).half()
        want = getattr(sgt, name)(z.float(), **given)
        assert torch.equal(getattr(sgt, name)(z.float().t(), dim=0, **given).t(), want)
        rounded = torch.where((want > 0) & (want.half() == 0), torch.tensor(2.0**-24), want).half()
        assert torch.equal(getattr(sgt, name)(z, **given), rounded)


def test_tops_of_short_rows_are_shared_evenly(engine):
    for k in (2, 4, 8, 9, 10, 15, 16, 17):
        for n in (2, 15, 16, 17, 33):
            z = scores("hardmax", "tied", k, n)
            z[::5, 0] = -math.inf
            tops = z == z.max(1)[:, None]
            np.testing.assert_array_equal(sg.hardmax(z), tops / tops.sum(1, dtype=np.float32)[:, None])
            _, about = sg.project(z, 0.0, return_info=True)
            np.testing.assert_allclose(about.threshold, z.max(1), rtol=1e-15)
