"""Each map against exact arithmetic, its closed-form Jacobian, its limits and its reductions."""

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import laws
import oracle
import sparsegen as sg
import strategies
from sparsegen._table.maps import MAPS

INF = math.inf
names = pytest.mark.parametrize("name", MAPS)

CONTROLS = {
    "lam": st.one_of(st.sampled_from([0.0, -1.0, 0.5, 0.9375, -100.0]), st.floats(-10, 0.95)),
    "q": st.one_of(st.sampled_from([0.0, 1.0, 0.125, 100.0, INF]), st.floats(1e-3, 50)),
    "temperature": st.one_of(st.sampled_from([1.0, 0.5, 4.0]), st.floats(0.1, 10)),
    "alpha": st.one_of(st.sampled_from([1.0, 1.5, 2.0, 3.0]), st.floats(1.0, 2.5)),
}


@st.composite
def cases(draw, name, dtype, most=6):
    """Scores (1, K) in the map's domain, a mask or None, and controls."""
    m = MAPS[name]
    k = draw(st.integers(1, most))
    entry = draw(st.sampled_from([st.floats(-4, 4, width=16), st.integers(-8, 8).map(lambda n: n / 8)]))
    z = laws.inside(m, np.array([draw(st.lists(entry, min_size=k, max_size=k))], dtype))
    return z, draw(strategies.masks(z.shape)), {c: draw(CONTROLS[c]) for c in m.controls}


def conditioning(name, z, mask, controls):
    """How far rounding the transform and the radius may move the result, in eps."""
    open_ = z[0] if mask is None else z[0][mask[0]]
    if name == "sparsegen_log":
        return float(abs(np.log(open_.astype(float))).max()) / (1 - controls["lam"])
    if name in ("sparsehourglass", "sum_normalization_plus"):
        q = controls.get("q", 0.0)
        height = abs(float(sum(map(Fraction, open_.tolist()))))
        size = float(abs(open_).sum())
        return 1.0 if q == INF else (size + len(open_) * q) / max(height + len(open_) * q, 1e-30)
    return 1.0


@names
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
@given(data=st.data())
def test_map_equals_exact_arithmetic(name, dtype, data):
    z, mask, controls = data.draw(cases(name, dtype))
    assume(mask is None or mask.any())
    hard = conditioning(name, z, mask, controls)
    assume(hard < 1e4)
    want = oracle.map_row(name, z[0], None if mask is None else mask[0], **controls)
    p = getattr(sg, name)(z, mask=mask, **controls)
    laws.assert_on_simplex(p)
    laws.assert_near(p[0], want.p, slack=8, blur=4 * hard * np.finfo(dtype).eps)


@names
@given(data=st.data())
def test_info_describes_the_support_and_the_threshold(name, data):
    z, mask, controls = data.draw(cases(name, np.float64))
    assume(mask is None or mask.any())
    assume(conditioning(name, z, mask, controls) < 1e2)
    want = oracle.map_row(name, z[0], None if mask is None else mask[0], **controls)
    p, info = getattr(sg, name)(z, mask=mask, return_info=True, **controls)
    assert info.support_size.dtype == np.int64
    assert info.support_size.shape == np.shape(info.threshold) == (1,)
    assert info.support_size[0] == np.count_nonzero(p)
    np.testing.assert_array_equal(p, getattr(sg, name)(z, mask=mask, **controls))
    size = 1 + abs(want.tau) + float(oracle.points(name, [Fraction(v) for v in z[0].tolist()], controls)[1])
    assert abs(info.threshold[0] - want.tau) <= 1e-13 * size


@pytest.mark.parametrize("name", ["sparsegen_exp", "sparsegen_sq"])
@pytest.mark.parametrize("z", [[-800.0, -801.0], [-1e-200, 1e-200, 0.0], [300.0, 299.0], [-50.0, -50.5]], ids=str)
def test_the_threshold_is_right_at_any_magnitude(name, z):
    want = oracle.map_row(name, z)
    assert float(getattr(sg, name)(z, return_info=True)[1].threshold) == pytest.approx(want.tau, rel=1e-12)


def test_the_threshold_beyond_the_largest_number_is_infinite():
    assert sg.sparsegen_exp([800.0, 801.0], return_info=True)[1].threshold == INF
    assert sg.sparsegen_sq([1e200, 0.0], return_info=True)[1].threshold == INF


@names
@pytest.mark.parametrize("k", [20, 100, 300])
def test_long_rows_equal_the_oracle(name, k):
    m = MAPS[name]
    z = laws.inside(m, np.random.default_rng(k).standard_normal((2, k)))
    controls = {c: v for c, v in {"lam": 0.25, "q": 0.1, "temperature": 2.0, "alpha": 1.75}.items() if c in m.controls}
    laws.assert_near(getattr(sg, name)(z, **controls), oracle.apply(name, z, **controls), slack=64)


def test_cone_equals_exact_arithmetic_down_to_its_apex():
    rng = np.random.default_rng(4)
    for q in (0.125, 1.0):
        z = np.round(rng.standard_normal((200, 5)) * 16) / 16
        z -= np.round((z.mean(-1, keepdims=True) + q - rng.choice([0.0625, 0.25, 1.0], (200, 1))) * 16) / 16
        z = z[z.sum(-1) > -5 * q]
        assert (z.sum(-1) < 0).any()
        laws.assert_near(sg.sparsecone(z, q=q), oracle.apply("sparsecone", z, q=q), blur=2.0**-50)


def test_a_transform_of_ones_own_equals_the_named_one():
    z = np.random.default_rng(0).uniform(0.1, 2, (3, 7))
    mask = z > 0.4
    for name, g in {"lin": lambda v: v, "exp": np.exp, "sq": np.square, "log": np.log}.items():
        for lam in (-1.0, 0.5, np.array([0.0, 0.25, 0.5])):
            own = sg.sparsegen(z, lam=lam, transform=g, mask=mask)
            np.testing.assert_allclose(own, sg.sparsegen(z, lam=lam, transform=name, mask=mask), atol=1e-14)
            named = getattr(sg, f"sparsegen_{name}")(z, lam=lam, mask=mask)
            np.testing.assert_array_equal(sg.sparsegen(z, lam=lam, transform=name, mask=mask), named)


def projector(p):
    on = (p > 0).astype(float)
    return np.diag(on) - np.outer(on, on) / on.sum()


def jacobian(name, z, p, controls):
    """math.md, 1.3."""
    n, total, keep = len(z), z.sum(), 1 - controls.get("lam", 0.0)
    if MAPS[name].power:
        s = np.where(p > 0, p, 0.0) ** (2 - controls.get("alpha", 1.5)) * (p > 0)
        return np.diag(s) - np.outer(s, s) / s.sum()
    if MAPS[name].radius.of == "sum":
        t = controls.get("temperature", 1.0)
        shares = {"lin": (z, np.ones(n)), "sq": (z * z, 2 * z), "exp": (np.exp(z / t), np.exp(z / t) / t)}
        x, slope = shares[MAPS[name].transform]
        return projector(p) @ (np.eye(n) - keep * p[:, None]) @ np.diag(slope) / (keep * x.sum())
    if name.startswith("sparsegen_") or name == "sparsemax":
        slope = {"exp": np.exp(z), "sq": 2 * z, "log": 1 / abs(z)}.get(name.removeprefix("sparsegen_"), np.ones(n))
        return projector(p) @ np.diag(slope) / keep
    if name in ("sparsecone", "sparsehourglass", "sum_normalization_plus"):
        q, sign = controls.get("q", 0.0), 1.0 if name == "sparsecone" else np.sign(total)
        height = sign * total + n * q
        return (1 + n * q) / height * projector(p) @ (np.eye(n) - sign * np.outer(z, np.ones(n)) / height)
    return np.zeros((n, n))


def differences(f, z, h=1e-6):
    return np.stack([(f(z + h * e) - f(z - h * e)) / (2 * h) for e in np.eye(len(z))], axis=1)


@names
def test_closed_form_jacobian_equals_finite_differences(name):
    rng = np.random.default_rng(2)
    for lam, q, temperature in ((-0.5, 0.5, 0.7), (0.25, 2.0, 1.5), (-3.0, 0.05, 4.0)):
        values = {"lam": lam, "q": q, "temperature": temperature, "alpha": 1 + 0.6 / (1 + q)}
        controls = {c: values[c] for c in MAPS[name].controls}
        f = functools.partial(getattr(sg, name), **controls)
        for _ in range(10):
            z = laws.inside(MAPS[name], rng.standard_normal(5))
            if abs(z.sum()) < 0.1:
                continue
            np.testing.assert_allclose(differences(f, z), jacobian(name, z, f(z), controls), atol=2e-7)


def slope_in(f, value, h=1e-6):
    return (f(value + h) - f(value - h)) / (2 * h)


def test_derivatives_in_the_controls_have_their_closed_form():
    z = np.array([0.5, 0.3, 0.2, -0.1, 0.45])
    for lam in (-0.5, 0.25, 0.5):
        p = sg.sparsegen_lin(z, lam=lam)
        want = (p > 0) * (p - 1 / np.count_nonzero(p)) / (1 - lam)
        np.testing.assert_allclose(slope_in(lambda v: sg.sparsegen_lin(z, lam=v), lam), want, atol=1e-8)
    for f in (sg.sparsecone, sg.sparsehourglass):
        for q in (0.1, 1.0, 5.0):
            p, n, total = f(z, q=q), len(z), z.sum()
            want = (p > 0) * (p - 1 / np.count_nonzero(p)) * n * (total - 1) / ((1 + n * q) * (total + n * q))
            np.testing.assert_allclose(slope_in(lambda v, f=f: f(z, q=v), q), want, atol=1e-8)


@given(z=strategies.rows(np.float64, shape=(1, 5)), lam=CONTROLS["lam"])
def test_sparsegen_lin_is_sparsemax_at_a_temperature(z, lam):
    np.testing.assert_allclose(sg.sparsegen_lin(z, lam=lam), sg.project(z, 1 - lam), rtol=0, atol=0)
    np.testing.assert_array_equal(sg.sparsegen_lin(z, lam=0.0), sg.sparsemax(z))


@given(z=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=6))
@example(z=[-40.0, -41.0])
def test_exp_onto_the_sum_of_exponentials_is_softmax(z):
    x = np.exp(np.array(z))
    np.testing.assert_allclose(sg.project(x, x.sum()), sg.softmax(z), atol=4e-16)


@given(z=st.lists(st.floats(0.125, 8, width=32), min_size=1, max_size=6))
def test_maps_reduce_to_sum_normalization_on_positive_scores(z):
    want = sg.sum_normalization(z)
    for p in (sg.sparsecone(z, q=0), sg.sparsehourglass(z, q=0), sg.sum_normalization_plus(z), sg.project(z, sum(z))):
        np.testing.assert_allclose(p, want, atol=1e-15)
    np.testing.assert_allclose(sg.project(np.square(z), np.square(z).sum()), sg.spherical_softmax(z), atol=1e-15)


@given(z=strategies.rows(np.float64, shape=(1, 5)))
def test_infinite_q_is_sparsemax_and_zero_radius_hardmax(z):
    np.testing.assert_array_equal(sg.sparsehourglass(z, q=INF), sg.sparsemax(z))
    np.testing.assert_array_equal(sg.sparsecone(z, q=INF), sg.sparsemax(z))
    np.testing.assert_array_equal(sg.sum_normalization_plus(z), sg.sparsehourglass(z, q=0))
    np.testing.assert_array_equal(sg.project(z, 0), sg.hardmax(z))


@given(z=st.lists(st.floats(-4, 4, width=16), min_size=2, max_size=6), q=st.floats(0.05, 10))
def test_hourglass_is_sparsegen_lin_at_its_own_lam_and_the_cone_of_the_mirror_point(z, q):
    z, n = np.array(z), len(z)
    height = abs(z.sum())
    p = sg.sparsehourglass(z, q=q)
    np.testing.assert_allclose(p, sg.sparsegen_lin(z, lam=(1 - height) / (1 + n * q)), atol=1e-13)
    mirror = z - 2 * z.mean() if z.sum() < 0 else z
    np.testing.assert_allclose(p, sg.sparsecone(mirror, q=q), atol=1e-13 / q)


@given(z=st.lists(st.floats(0, 4, width=16), min_size=2, max_size=6), q=st.floats(0.05, 10), c=st.floats(0.1, 10))
def test_cone_and_hourglass_do_not_change_along_rays_from_the_anchor(z, q, c):
    z = np.array(z)
    for f in (sg.sparsecone, sg.sparsehourglass):
        away = c * (z + q) - q
        if away.sum() >= 0:
            np.testing.assert_allclose(f(away, q=q), f(z, q=q), atol=1e-12 / q)


@pytest.mark.parametrize("name", MAPS)
def test_long_rows_are_the_same_along_any_axis(name, engine):
    """Rows that are not contiguous are brought in sixteen at a time, whatever their length."""
    m, values = MAPS[name], {"lam": 0.1, "q": 0.5, "temperature": 0.8, "alpha": 1.5}
    controls = {control: values[control] for control in m.controls}
    z = np.random.default_rng(5).normal(size=(2100, 19)).astype(np.float32)
    z = abs(z) + 0.1 if m.domain else z
    found = getattr(sg, name)(z, axis=0, **controls)
    want = getattr(sg, name)(np.ascontiguousarray(z.T), **controls).T
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-7)
