"""What explain says of maps that share a sum out and of entmax: distances by trying, intervals by the map itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

import sparsegen as sg
from sparsegen._table.maps import TRANSFORMS

RNG = np.random.default_rng(11)
ROWS = RNG.uniform(0.2, 2.0, (12, 5))
CASES = [
    ("sum_normalization", {"lam": 0.25}), ("sum_normalization", {"lam": 0.0}), ("sum_normalization", {"lam": -1.0}),
    ("spherical_softmax", {"lam": 0.5}), ("sparsegen_softmax", {"lam": 0.25}),
    ("sparsegen_softmax", {"lam": 0.6, "temperature": 0.5}), ("softmax", {"temperature": 0.5}),
    ("entmax", {"alpha": 1.25}), ("entmax", {"alpha": 1.75}), ("entmax", {"alpha": 2.5}), ("entmax15", {}),
]  # fmt: skip
BACK = {"lin": float, "sq": math.sqrt, "exp": math.log}


def changes(name, z, step, controls):
    """Does the support change if one of the points moves by `step`, either way?"""
    f, m = getattr(sg, name), sg.numpy.maps.MAPS[name]
    t, gap = controls.get("temperature", 1.0), (controls.get("alpha", 1.5) - 1 if m.power else 1.0)
    on = f(z, **controls) > 0
    for i in range(len(z)):
        for sign in (1, -1):
            x = TRANSFORMS[m.transform].g(np, z * gap / t)[i] + sign * step
            if m.radius.of == "sum" and x <= 0:
                continue
            moved = z.copy()
            moved[i] = BACK[m.transform](x) * t / gap
            if (f(moved, **controls) > 0).tolist() != on.tolist():
                return True
    return False


@pytest.mark.parametrize(("name", "controls"), CASES)
def test_the_distance_is_the_smallest_change_of_one_point(name, controls):
    for z in ROWS:
        distance = float(sg.explain(z, name, **controls).distance)
        if math.isinf(distance):
            assert not any(changes(name, z, step, controls) for step in (0.01, 0.3, 1.0, 5.0))
            continue
        assert not changes(name, z, distance * (1 - 1e-7), controls)
        at_zero = sg.numpy.maps.MAPS[name].radius.of == "sum" and controls.get("lam", 0.0) <= 0
        assert at_zero or changes(name, z, distance * (1 + 1e-7), controls)


@pytest.mark.parametrize(("name", "controls"), [case for case in CASES if "lam" in case[1]])
def test_every_lam_of_the_interval_keeps_the_size(name, controls):
    found = sg.explain(ROWS, name, **controls)
    for z, k, (low, high) in zip(ROWS, found.support_size, found.lam_interval):

        def size(lam, z=z):
            return int((getattr(sg, name)(z, **{**controls, "lam": lam}) > 0).sum())

        assert size(high - 1e-9) == k
        assert high >= 1 or size(high + 1e-9) < k
        assert math.isinf(low) or (size(low + 1e-9) == k and size(low - 1e-9) > k)


def test_the_interval_of_softmax_is_that_of_the_dial_which_begins_there_and_entmax_has_none():
    np.testing.assert_array_equal(
        sg.explain(ROWS, "softmax").lam_interval, sg.explain(ROWS, "sparsegen_softmax").lam_interval
    )
    assert np.isnan(sg.explain(ROWS, "entmax", alpha=1.25).lam_interval).all()
    assert np.isinf(sg.explain(ROWS, "entmax", alpha=1.0).distance).all()
    far = np.array([[800.0, 1.0], [-800.0, -900.0]])
    assert np.isfinite(sg.explain(far, "softmax").lam_interval[:, 1]).all()
