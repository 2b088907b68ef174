"""Exact vectors through NumPy: those of the file beside, and the essential ones written out here."""

import math
from fractions import Fraction

import numpy as np
import pytest

import buffers
import exact_vectors
import oracle
import sparsegen as sg

INF = math.inf

# function, controls, scores, exact probabilities
ESSENTIAL = [
    ("sparsemax", {}, [0.1, 1.1, 0.2], "0 19/20 1/20"),
    ("sparsemax", {}, [0.0, 1.0], "0 1"),
    ("sparsemax", {}, [0.375, -0.125, 0.5, 0.25, 0.4375, -2.0], "15/64 0 23/64 7/64 19/64 0"),
    ("sparsegen_lin", {"lam": 0.5}, [0.5, 0.3, 0.2], "2/3 4/15 1/15"),
    ("sparsegen_lin", {"lam": 0.96875}, [0.5, 0.3, 0.2], "1 0 0"),
    ("sparsegen_lin", {"lam": 0.96875}, [1.0, 1.0, 0.5], "1/2 1/2 0"),
    ("sparsegen_lin", {"lam": 0.0}, [1.0, 0.5, 0.5], "2/3 1/6 1/6"),
    ("sparsegen_lin", {"lam": -3.0}, [2.0, 1.0, 1.0, 0.0], "1/2 1/4 1/4 0"),
    ("sparsegen_lin", {"lam": 0.5}, [1000000.0, 1000000.25, 999998.0], "1/4 3/4 0"),
    ("sparsegen_lin", {"lam": -1.0}, [1e30, 1e30, -1e30], "1/2 1/2 0"),
    ("sparsegen_exp", {"lam": 0.0}, [0.0, 0.5, -1.0], "0.175639364649935926575674606093 0.824360635350064073424325 0"),
    ("sparsegen_exp", {"lam": -2.0}, [1.0, 0.5, -3.0], "0.678260092959819514751939447 0.3217399070401804852480605 0"),
    ("sparsegen_exp", {"lam": 0.0}, [1000.0, 1000.0, 999.0], "1/2 1/2 0"),
    ("sparsegen_sq", {"lam": 0.0}, [1.0, -2.0, 0.5], "0 1 0"),
    ("sparsegen_sq", {"lam": -0.5}, [0.6, -0.7, 0.1], "86/225 211/450 67/450"),
    ("sparsegen_sq", {"lam": 0.0}, [0.7, 0.3], "7/10 3/10"),
    ("sparsegen_log", {"lam": 0.25}, [3.0, 6.0, 1.5], "0.0379018796267031270551785 0.96209812037329687294482141 0"),
    ("sparsecone", {"q": 1.0}, [1.0, 2.0, -0.5], "3/22 19/22 0"),
    ("sparsecone", {"q": 0.0}, [1.0, 3.0, 4.0], "1/8 3/8 1/2"),
    ("sparsecone", {"q": 0.0}, [2.0, -1.0, 0.5], "1 0 0"),
    ("sparsecone", {"q": 1.0}, [-0.5, -0.45, -0.6], "11/29 15/29 3/29"),
    ("sparsehourglass", {"q": 1.0}, [1.0, 2.0, -0.5], "3/22 19/22 0"),
    ("sparsehourglass", {"q": 0.0}, [-1.0, -2.0], "2/3 1/3"),
    ("sparsehourglass", {"q": 0.0}, [1.0, 1.0, -2.0], "1/2 1/2 0"),
    ("sparsehourglass", {"q": 0.0}, [0.0, 0.0, 0.0], "1/3 1/3 1/3"),
    ("sparsehourglass", {"q": INF}, [0.3, 0.9, -0.2], "1/5 4/5 0"),
    ("sparsehourglass", {"q": 0.125}, [0.5, 0.25, 0.25, 0.0], "1/2 1/4 1/4 0"),
    ("sum_normalization_plus", {}, [-1.0, -2.0], "2/3 1/3"),
    ("spherical_softmax", {}, [1.0, -2.0, 2.0], "1/9 4/9 4/9"),
    ("sum_normalization", {}, [1.0, 3.0, 4.0], "1/8 3/8 1/2"),
    ("softmax", {"temperature": 2.0}, [0.0, 0.0], "1/2 1/2"),
    ("hardmax", {}, [2.0, 0.5, 2.0], "1/2 0 1/2"),
    ("sparsemax", {}, [-INF, 0.0, 0.0], "0 1/2 1/2"),
    ("sparsemax", {}, [-INF, -INF], "0 0"),
    ("sparsegen_exp", {"lam": 0.0}, [-3.0, -INF], "1 0"),
    ("sparsehourglass", {"q": 1.0}, [2.0, 1.75, -INF], "13/23 10/23 0"),
]


@pytest.mark.parametrize(("name", "controls", "z", "want"), ESSENTIAL)
def test_map_gives_the_exact_vector(name, controls, z, want):
    p = getattr(sg, name)(z, **controls)
    np.testing.assert_allclose(p, [float(Fraction(v)) for v in want.split()], rtol=1e-15, atol=1e-15)
    np.testing.assert_array_equal(p > 0, [v != "0" for v in want.split()])


@pytest.mark.parametrize(("name", "controls", "z", "want"), ESSENTIAL)
def test_oracle_gives_the_exact_vector(name, controls, z, want):
    p = oracle.map_row(name, z, **controls).p
    np.testing.assert_allclose(p, [float(Fraction(v)) for v in want.split()], rtol=1e-15, atol=1e-15)


def numbers(values):
    return [float(v) for v in values]


def test_maps_are_the_exact_ones():
    for case in exact_vectors.MAPS:
        controls = {key: float(value) for key, value in case["params"].items()}
        p, info = getattr(sg, case["function"])(case["z"], **controls, return_info=True)
        np.testing.assert_allclose(p, numbers(case["p"]), atol=1e-15, err_msg=case["name"])
        assert np.flatnonzero(p).tolist() == case["support"], case["name"]
        assert info.support_size == len(case["support"]), case["name"]


def test_edges_are_the_exact_ones():
    for case in exact_vectors.EDGES:
        controls = {key: float(value) for key, value in case["params"].items()}
        f = getattr(sg, case["function"])
        if case["raises"]:
            with pytest.raises(ValueError):
                f(numbers(case["z"]), **controls)
        else:
            np.testing.assert_allclose(f(numbers(case["z"]), **controls), numbers(case["p"]), atol=1e-15)


# g'(z) of each transform, for the chain rule through the kernel's product
SLOPES = {"exp": np.exp, "sq": lambda z: 2 * z, "log": lambda z: 1 / z}


def through_the_radius(name, z, controls):
    """The radius, its slope in each score and its slope in the control."""
    n, total, q = len(z), z.sum(), controls.get("q", 0.0)
    if name == "sparsecone":
        return (total + n * q) / (1 + n * q), 1 / (1 + n * q), n * (1 - total) / (1 + n * q) ** 2
    if name == "sparsehourglass":
        if q == INF:
            return 1.0, 0.0, 0.0
        height = abs(total)
        return (height + n * q) / (1 + n * q), np.sign(total) / (1 + n * q), n * (1 - height) / (1 + n * q) ** 2
    return 1 - controls.get("lam", 0.0), 0.0, -1.0


def test_products_follow_from_the_kernel():
    tried = 0
    for case in exact_vectors.MAPS:
        name, controls = case["function"], {key: float(value) for key, value in case["params"].items()}
        if case["vjp"] is None or name in ("spherical_softmax", "sum_normalization"):
            continue
        z, p, v = (np.array(a, np.float64) for a in (case["z"], case["p"], case["vjp"]["v"]))
        r, by_score, by_control = through_the_radius(name, z, controls)
        grad, grad_radius = buffers.vjp(p.reshape(1, -1, 1), v.reshape(1, -1, 1), r, "float64")
        slope = SLOPES.get(name.removeprefix("sparsegen_"), np.ones_like)(z)
        grad_z = grad[0, :, 0] * slope + grad_radius[0, 0] * by_score
        np.testing.assert_allclose(grad_z, case["vjp"]["grad_z"], atol=1e-13, err_msg=case["name"])
        for control in ("lam", "q"):
            if f"grad_{control}" in case["vjp"]:
                assert abs(grad_radius[0, 0] * by_control - case["vjp"][f"grad_{control}"]) < 1e-13, case["name"]
        tried += 1
    assert tried >= 15
