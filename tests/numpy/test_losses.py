"""The losses on NumPy arrays: equal to the literal double sums, and the laws the paper and convexity ask for."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import exact_vectors
import loss_oracle
import oracle
import sparsegen as sg
import strategies
from loss_oracle import HINGES, LOSSES, MAPS
from sparsegen._table.maps import MAPS as TABLE

INF = math.inf
LAMS = st.integers(-12, 3).map(lambda n: n / 4)  # dyadic, so that kinks are hit
QS = st.sampled_from([0.125, 0.25, 0.5, 0.75, 1.0, 3.0, 15.0, INF])
CONTROLS = {"lam": LAMS, "q": QS, "": st.just(0.0)}
NUMBERS = {"lam": -0.5, "q": 0.75}

# function, control, scores, labels, exact loss, exact gradient (math.md, section 6)
ESSENTIAL = [
    ("sparsegen_hinge", 0.0, [0.5, 0.2, -0.1], [1, 0, 0], "11/10", [-2, 1, 1], "-9/10"),
    ("sparsegen_hinge", 0.0, [1.0, 0.5, -1.0], [1, 1, 1], "8", [4, 0, -4], "8"),
    ("sparsegen_hinge", 0.5, [5.0], [1], "0", [0], "0"),
    ("sparsegen_hinge", 0.0, [1.0, 0.0], [1, 0], "0", [0, 0], "0"),
    ("sparsegen_hinge", 0.0, [1.0, 0.0], [1, 1], "2", [2, -2], "2"),
    ("sparsehourglass_hinge", 1.0, [0.5, 1.0, -0.25, 0.75], [1, 0, 0, 1], "49/20", [-2.8, 2.2, 0.2, 1.2], "-4/25"),
    ("sparsehourglass_hinge", 0.5, [-0.5, -1.0, 0.25], [1, 0, 0], "49/20", [-2.8, 0.2, 0.2], "-6/25"),
    ("sparsehourglass_hinge", 1.0, [0.25, -0.5, 0.25], [1, 0, 0], "3/4", [-1, 0, 1], "3/16"),
    ("sparsehourglass_hinge", INF, [0.5, 0.2, -0.1], [1, 0, 0], "11/10", [-2, 1, 1], "0"),
    ("sparsemax_huber", 0.0, [0.3, -0.2, 0.9, 0.1], [1, 1, 0, 0], "16/25", [-0.3, -0.5, 0.8, 0], "9/100"),
    ("sparsemax_huber", 0.0, [0.0, 3.0], [1, 0], "3", [-1, 1], "0"),
]


def loss(name, scores, target, control=None, **how):
    given_ = {} if control is None or not LOSSES[name] else {LOSSES[name]: control}
    return getattr(sg, f"{name}_loss")(scores, target, **given_, **how)


def along(name, grad):
    return getattr(grad, LOSSES[name]) if LOSSES[name] else None


@pytest.mark.parametrize(("name", "control", "z", "y", "value", "grad_z", "grad_control"), ESSENTIAL)
def test_loss_gives_the_exact_vector(name, control, z, y, value, grad_z, grad_control):
    got, grad = loss(name, z, y, control, return_grad=True)
    assert got == pytest.approx(float(Fraction(value)), abs=1e-15)
    np.testing.assert_allclose(grad.scores, grad_z, atol=1e-15)
    assert along(name, grad) == pytest.approx(float(Fraction(grad_control)), abs=1e-15)


@pytest.mark.parametrize(("name", "control", "z", "y", "value", "grad_z", "grad_control"), ESSENTIAL)
def test_oracle_gives_the_exact_vector(name, control, z, y, value, grad_z, grad_control):
    found = loss_oracle.row(name, z, loss_oracle.shares(y), control)
    assert found.value == pytest.approx(float(Fraction(value)), abs=1e-15)
    np.testing.assert_allclose(found.grad, grad_z, atol=1e-15)
    assert found.along == pytest.approx(float(Fraction(grad_control)), abs=1e-15)


def test_losses_are_the_exact_ones():
    refused = 0
    for case in exact_vectors.LOSSES:
        name = case["function"].replace("_lin", "")
        ((key, control),) = case["params"].items()
        if name in HINGES and (case["y"] is None or (float(control) == 0 and key == "q")):
            with pytest.raises(ValueError, match=r"sparsegen: (the target of|q) "):
                loss(name, case["z"], case["eta"] if case["y"] is None else case["y"], float(control))
            refused += 1
            continue
        value, grad = loss(name, case["z"], case["eta"], float(control), return_grad=True)
        assert value == pytest.approx(case["value"], abs=1e-14), case["name"]
        np.testing.assert_allclose(grad.scores, case["slopes"]["grad_z"], atol=1e-14, err_msg=case["name"])
        assert along(name, grad) == pytest.approx(case["slopes"].get(f"grad_{key}", 0.0), abs=1e-14), case["name"]
    assert refused == 2
    assert len(exact_vectors.LOSSES) == 16


@st.composite
def batches(draw, name, dtype=np.float64):
    """Scores of any size, labels, a mask or -inf, and a control a row."""
    n, k = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    z = draw(strategies.rows(dtype, shape=(n, k))).copy()
    bits = st.lists(st.booleans(), min_size=n * k, max_size=n * k)
    y = np.array(draw(bits)).reshape(n, k)
    y[~y.any(1), draw(st.integers(0, k - 1))] = True
    mask = None if draw(st.booleans()) else np.array(draw(bits)).reshape(n, k) | y
    if mask is not None and draw(st.booleans()):
        z[~mask], mask = -INF, None
    return z, y, mask, np.array([draw(CONTROLS[LOSSES[name]]) for _ in range(n)])


@st.composite
def kinks(draw, name):
    """The same on a grid, such that every step of the kernel is exact, and differences often equal the margin."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    hourglass = name == "sparsehourglass_hinge"
    n, k = 4, draw(st.sampled_from([4, 2, 1] if hourglass else [6, 5, 3, 2, 1]))
    z = rng.integers(-2, 3, (n, k)) / 2 + draw(st.sampled_from([0.0, 0.5] if hourglass else [0.0, 1e8, -1e8]))
    y = rng.random((n, k)) < 0.4
    y[~y.any(1), rng.integers(k)] = True
    mask = (rng.random((n, k)) < 0.7) | y if draw(st.booleans()) else None
    if mask is not None and hourglass:
        mask[mask.sum(1) == 3] = True  # a mean over a power of 2 is exact
    if mask is not None and draw(st.booleans()):
        z[~mask], mask = -INF, None
    return z, y, mask, rng.choice([0.25, 0.5, 1.0, INF] if hourglass else [0.0, 0.5, -1.0, -2.0], n)


def answers(name, z, y, mask, control):
    own = [None] * len(z) if mask is None else mask
    return [loss_oracle.row(name, *r) for r in zip(z, map(loss_oracle.shares, y), control, own)]


@pytest.mark.parametrize("name", HINGES)
def test_hinge_losses_equal_the_double_sums_at_ties_and_kinks(name):
    met = []

    @given(kinks(name))
    def check(batch):
        value, grad = loss(name, *batch[:2], batch[3], mask=batch[2], reduction="none", return_grad=True)
        for i, want in enumerate(answers(name, *batch)):
            met.append(want.nearest == 0)
            np.testing.assert_allclose(value[i], want.value, rtol=1e-14, atol=1e-14)
            np.testing.assert_allclose(grad.scores[i], want.grad, rtol=1e-15, atol=1e-15)
            np.testing.assert_allclose(along(name, grad)[i], want.along, rtol=1e-14, atol=1e-14)

    check()
    assert sum(met) > len(met) / 16  # the samples do reach them


def room(z, control, key):
    """What a loss is measured in: the spread of the scores and the radius, and the size of a difference's error."""
    z = z[z > -INF].astype(np.float64)
    radius = 1 - control if key == "lam" else 1 + abs(z).sum()
    spread = float(np.ptp(z)) + radius
    return spread, 2.0**-49 * (len(z) * abs(z).max() + spread)


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_equal_the_oracle_at_any_size_and_offset(name, dtype):
    @given(batches(name, dtype=dtype))
    @settings(max_examples=40)
    def check(batch):
        z, y, mask, control = batch
        given_ = control if LOSSES[name] else None
        value, grad = loss(name, z, y, given_, mask=mask, reduction="none", return_grad=True)
        assert grad.scores.dtype == dtype
        for i, want in enumerate(answers(name, *batch)):
            spread, blur = room(z[i], control[i], LOSSES[name])
            t = 1 - control[i] if LOSSES[name] == "lam" else 1.0
            np.testing.assert_allclose(value[i], want.value, rtol=1e-14, atol=1e-13 * spread / min(t, 1.0))
            unsure = want.nearest <= blur or abs(math.fsum(z[i][z[i] > -INF])) <= blur
            if name in HINGES and unsure:
                continue
            atol = 1e-13 * (1 if name in HINGES else spread / t)
            atol += np.finfo(dtype).eps * (abs(want.grad).max() + (z.shape[1] / t if name in HINGES else 0))
            np.testing.assert_allclose(grad.scores[i], want.grad, rtol=0, atol=atol)
            if LOSSES[name]:
                np.testing.assert_allclose(along(name, grad)[i], want.along, rtol=1e-12, atol=1e-12 * spread / t**2)

    check()


def rows(n=200, k=6, seed=0, dyadic=False):
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, k))
    y = rng.random((n, k)) < 0.4
    y[np.arange(n), rng.integers(0, k, n)] = True
    return (np.round(z * 4) / 4 if dyadic else z), y


def controls(name):
    return {"lam": (0.0, 0.75, -3.0), "q": (0.125, 1.0, INF), "": (None,)}[LOSSES[name]]


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_convex_on_random_segments(name):
    (a, y), (b, _), rng = rows(3000), rows(3000, seed=1), np.random.default_rng(2)
    t = rng.random((3000, 1))
    for c in controls(name):
        f = functools.partial(loss, name, target=y, control=c, reduction="none")
        chord = t[:, 0] * f(scores=a) + (1 - t[:, 0]) * f(scores=b)
        assert (f(scores=t * a + (1 - t) * b) <= chord + 1e-12).all()
        assert (f(scores=a) >= 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_subgradients_at_ties_and_kinks(name):
    z, y = rows(1500, dyadic=True)
    for c in controls(name):
        value, grad = loss(name, z, y, c, reduction="none", return_grad=True)
        for seed in (3, 4):
            other = z + rows(1500, seed=seed, dyadic=seed == 3)[0] / 4
            plane = value + (grad.scores * (other - z)).sum(1)
            assert (loss(name, other, y, c, reduction="none") >= plane - 1e-12).all()


def equals_target(name, z, y, control) -> bool:
    x, r = oracle.points(MAPS[name], [Fraction(v) for v in z], {LOSSES[name]: control})
    return oracle.project_exact(x, r)[0] == loss_oracle.shares(y)


@pytest.mark.parametrize("name", HINGES)
def test_hinge_losses_are_zero_exactly_where_the_map_gives_the_target(name):
    rng, seen = np.random.default_rng(5), {True: 0, False: 0}
    for c in (0.5, 1.0, 3.0) if name == "sparsehourglass_hinge" else (0.0, 0.5, -3.0):
        for k in (1, 2, 4):
            y = rng.random((60, k)) < 0.5
            y[:, 0] |= ~y.any(1)
            z = y * rng.integers(0, 9, (60, 1)) / 8 + rng.integers(-4, 2, (60, k)) * rng.integers(0, 2, (60, 1)) / 8
            for zi, yi, value in zip(z, y, loss(name, z, y, c, reduction="none")):
                same = equals_target(name, zi, yi, c)
                assert (value == 0) == same, (zi, yi, value)
                seen[same] += 1
    assert min(seen.values()) > 100


@given(st.data(), st.integers(1, 8), LAMS)
def test_sparsegen_hinge_is_zero_from_the_margin_on(data, labels, lam):
    others = data.draw(st.integers(1, 4))
    radius = labels * (1 - lam)  # so that the margin (1 - lam) is exact
    below = np.array(data.draw(st.lists(st.integers(0, 16), min_size=others, max_size=others))) / 8
    z = np.concatenate([np.zeros(labels), -(1 - lam) - below])
    y = np.arange(labels + others) < labels
    value, grad = loss("sparsegen_hinge", z, y, 1 - radius, return_grad=True)
    assert value == 0
    assert not grad.scores.any()
    np.testing.assert_allclose(sg.sparsegen_lin(z, lam=1 - radius), y / labels, atol=1e-15)
    z[labels] += below[0] + 2.0**-20
    assert loss("sparsegen_hinge", z, y, 1 - radius) > 0
    assert sg.sparsegen_lin(z, lam=1 - radius)[labels] > 0


@pytest.mark.parametrize("labels", [1, 2, 4])
@pytest.mark.parametrize("q", [0.25, 1.0, INF])
def test_sparsehourglass_hinge_is_zero_at_the_target_itself_and_not_before(labels, q):
    y = np.arange(4 if labels == 4 else 8) < labels
    eta = y / labels
    assert loss("sparsehourglass_hinge", [eta, 2 * eta, 64 * eta], [y] * 3, q) == 0
    if labels < y.size:
        assert loss("sparsehourglass_hinge", eta * (1 - 2.0**-20), y, q) > 0
    eta[0] += 2.0**-20
    assert (loss("sparsehourglass_hinge", eta, y, q) > 0) == (labels > 1)


def test_lam_is_a_change_of_scale():
    z, y = rows()
    for lam in (0.5, -3.0, 0.9):
        got, grad = loss("sparsegen_hinge", z, y, lam, reduction="none", return_grad=True)
        want, plain = loss("sparsegen_hinge", z / (1 - lam), y, 0.0, reduction="none", return_grad=True)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(grad.scores, plain.scores / (1 - lam), rtol=1e-12, atol=1e-12)


def test_an_infinite_q_is_a_lam_of_0():
    z, y = rows(dyadic=True)
    one, first = loss("sparsehourglass_hinge", z, y, INF, reduction="none", return_grad=True)
    two, second = loss("sparsegen_hinge", z, y, 0.0, reduction="none", return_grad=True)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(first.scores, second.scores)
    assert first.q == 0


@pytest.mark.parametrize("name", LOSSES)
def test_losses_permute_with_the_scores(name):
    for dyadic in (False, True):
        z, y = rows(dyadic=dyadic)
        order = np.random.default_rng(6).permutation(z.shape[1])
        one, first = loss(name, z, y, reduction="none", return_grad=True)
        two, second = loss(name, z[:, order], y[:, order], reduction="none", return_grad=True)
        np.testing.assert_allclose(two, one, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(second.scores, first.scores[:, order], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", [n for n in LOSSES if n != "sparsehourglass_hinge"])
def test_adding_a_constant_changes_nothing(name):
    z, y = rows(dyadic=True)
    one, first = loss(name, z, y, reduction="none", return_grad=True)
    for offset in (1.0, -3.5, 2.0**30, -(2.0**40)):
        two, second = loss(name, z + offset, y, reduction="none", return_grad=True)
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(first.scores, second.scores)


def test_the_gradient_of_huber_is_the_map_minus_the_target():
    z, y = rows()
    for lam in (0.0, 0.5, -2.0):
        value, grad = loss("sparsemax_huber", z, y, lam, reduction="none", return_grad=True)
        p = oracle.apply("sparsegen_lin", z, lam=lam)
        eta = y / y.sum(1, keepdims=True)
        np.testing.assert_allclose(grad.scores, p - eta, atol=1e-14)
        stable = ((p - eta) * (z - (1 - lam) * (p + eta) / 2)).sum(1)
        np.testing.assert_allclose(value, stable, atol=1e-13)


@pytest.mark.parametrize(("t", "want"), [(2, 0), (1, 0), (0.5, 0.0625), (-0.5, 0.5625), (-1, 1), (-3, 3)])
def test_huber_of_two_classes_is_hubers_function_of_the_margin(t, want):
    assert loss("sparsemax_huber", [t + 0.25, 0.25], 0) == want


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_finite_differences(name):
    z, y = rows(40)
    h = 1e-6
    for c in ({"lam": (0.3, -1.7), "q": (0.3, 2.1), "": (None,)})[LOSSES[name]]:
        f = functools.partial(loss, name, target=y, reduction="none")
        _, grad = loss(name, z, y, c, return_grad=True, reduction="sum")
        for k in range(z.shape[1]):
            step = h * (np.arange(z.shape[1]) == k)
            beside = (f(scores=z + step, control=c) - f(scores=z - step, control=c)) / (2 * h)
            np.testing.assert_allclose(grad.scores[:, k], beside, atol=1e-7)
        if c is not None:
            beside = (f(scores=z, control=c + h) - f(scores=z, control=c - h)).sum() / (2 * h)
            assert along(name, grad) == pytest.approx(beside, rel=1e-7, abs=1e-6)


def test_huber_and_log_take_any_distribution():
    rng = np.random.default_rng(7)
    for name in ("softmax_log", "sparsemax_huber"):
        for eta in rng.dirichlet(np.ones(5), 20):
            z = rng.standard_normal(5)
            value, grad = loss(name, z, eta, return_grad=True)
            want = loss_oracle.row(name, z, [Fraction(v) for v in eta])
            assert value == pytest.approx(want.value, abs=1e-14)
            np.testing.assert_allclose(grad.scores, want.grad, atol=1e-14)


def test_huber_of_a_long_row_is_the_fenchel_young_loss():
    rng = np.random.default_rng(8)
    z, y = rng.standard_normal(3000), rng.random(3000) < 0.01
    p, eta = oracle.project_bisect(z, 1.5), y / y.sum()
    want = math.fsum([*(z * (p - eta)), *(-0.75 * p * p), *(0.75 * eta * eta)])
    assert loss("sparsemax_huber", z, y, -0.5) == pytest.approx(want, abs=1e-13)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_names_a_map_of_the_table(name):
    from sparsegen.numpy.losses import LOSSES as OWN

    assert OWN[name].mapping == MAPS[name]
    assert OWN[name].control == LOSSES[name]
    assert OWN[name].even == (name in HINGES)
    assert OWN[name].smooth == (name not in HINGES)
    assert MAPS[name] in TABLE
    assert set(OWN) == {*LOSSES, "entmax"}  # which test_entmax_loss.py is about
