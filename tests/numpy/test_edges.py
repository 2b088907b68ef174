"""The contract at the edges, line by line, for every map of the NumPy front end."""

import functools
import math

import numpy as np
import pytest

import laws
import oracle
import sparsegen as sg
from sparsegen._table.maps import MAPS

DOCUMENTED_DEFAULTS = {"lam": 0.0, "temperature": 1.0, "alpha": 1.5}

CONTROLS = {"lam": -0.5, "q": 0.5, "temperature": 0.75, "alpha": 1.25}
DTYPES = [np.float16, np.float32, np.float64]
names = pytest.mark.parametrize("name", MAPS)


def mapped(name):
    return functools.partial(getattr(sg, name), **{c: CONTROLS[c] for c in MAPS[name].controls})


def spread(control, factors):
    """Values about that of CONTROLS: multiples of how far it is above its least."""
    least = {"alpha": 1.0}.get(control, 0.0)
    return least + (CONTROLS[control] - least) * factors


def scores(name, shape, dtype=np.float64):
    return laws.inside(MAPS[name], np.random.default_rng(3).standard_normal(shape).astype(dtype))


@names
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.__name__)
def test_no_classes_give_an_empty_array(name, dtype):
    for shape, axis in (((0,), 0), ((3, 0), -1), ((0, 4), 0), ((2, 0, 3), 1)):
        p, info = mapped(name)(np.empty(shape, dtype), axis=axis, return_info=True)
        assert p.shape == shape
        assert p.dtype == dtype
        lead = shape[:axis] + shape[axis + 1 :] if axis >= 0 else shape[:-1]
        assert info.support_size.shape == np.shape(info.threshold) == lead
        assert (info.support_size == 0).all()


@names
def test_no_rows_give_an_empty_array(name):
    for shape, axis in (((0, 3), -1), ((3, 0), 0), ((2, 3, 0), 1)):
        mask = np.ones(shape, bool)
        p, info = mapped(name)(np.empty(shape, np.float32), axis=axis, mask=mask, return_info=True)
        assert p.shape == shape
        assert p.dtype == np.float32
        assert info.support_size.size == 0


@names
def test_a_single_class_gets_everything(name):
    for value in (0.125, 1.0, 1e30, 1e-30):
        p, info = mapped(name)(np.full((3, 1), value), return_info=True)
        laws.assert_on_simplex(p)
        np.testing.assert_array_equal(info.support_size, 1)


@names
def test_a_single_number_is_refused(name):
    with pytest.raises(ValueError, match="scores must be an array with at least one axis, got a single number"):
        mapped(name)(1.0)


@names
def test_any_axis_equals_the_last(name):
    z = scores(name, (3, 4, 5))
    mask = np.random.default_rng(0).random((4, 1)) < 0.7
    for axis in (-3, -2, -1, 0, 1, 2):
        moved = np.ascontiguousarray(np.moveaxis(z, axis, -1))
        hidden = np.ascontiguousarray(np.moveaxis(np.broadcast_to(mask, z.shape), axis, -1))
        want = np.moveaxis(mapped(name)(moved, mask=hidden), -1, axis)
        np.testing.assert_allclose(mapped(name)(z, axis=axis, mask=mask), want, rtol=1e-15, atol=1e-16)


@names
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "bool"])
def test_integers_and_booleans_become_float64(name, dtype):
    z = np.array([[1, 1, 0], [1, 1, 1]]).astype(dtype) + (MAPS[name].domain == "z > 0")
    p = mapped(name)(z)
    assert p.dtype == np.float64
    np.testing.assert_array_equal(p, mapped(name)(z.astype(np.float64)))


@names
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128, np.longdouble, object, "U4", "M8[s]"], ids=str)
def test_other_dtypes_are_refused(name, dtype):
    with pytest.raises(TypeError, match="scores must be float16, float32, float64, integers or booleans, got dtype"):
        mapped(name)(np.ones((2, 3)).astype(dtype))


@names
def test_lists_and_tuples_are_scores_too(name):
    z = scores(name, (2, 3))
    np.testing.assert_array_equal(mapped(name)(z.tolist()), mapped(name)(z))
    np.testing.assert_array_equal(mapped(name)(tuple(map(tuple, z))), mapped(name)(z))


@names
@pytest.mark.parametrize("k", [1, 5, 40, 300])
def test_float16_is_float32_rounded_once(name, k):
    z = scores(name, (4, k), np.float16)
    p = mapped(name)(z)
    single = mapped(name)(z.astype(np.float32))
    assert p.dtype == np.float16
    rounded = single.astype(np.float16)
    lost = (single > 0) & (rounded == 0)
    np.testing.assert_array_equal(p[~lost], rounded[~lost])


@names
def test_float64_stays_float64(name):
    z = scores(name, (3, 5)) + 2.0**-40
    want = oracle.apply(name, z, **{c: CONTROLS[c] for c in MAPS[name].controls})
    np.testing.assert_allclose(mapped(name)(z), want, rtol=1e-14, atol=1e-15)


@names
def test_a_control_a_row_equals_a_call_a_row(name):
    z = scores(name, (2, 3, 5))
    for control in MAPS[name].controls:
        values = spread(control, np.array([[0.5, 0.75, 1.0], [1.25, 1.5, 1.75]]))
        for shaped in (values, values[:1], values[:, :1], values[0], values.astype(np.float32)):
            p = getattr(sg, name)(z, **{control: shaped})
            for at in np.ndindex(2, 3):
                own = float(np.broadcast_to(shaped, (2, 3))[at])
                np.testing.assert_array_equal(p[at], getattr(sg, name)(z[at], **{control: own}))


@names
def test_a_control_a_column_goes_with_axis_0(name):
    z = scores(name, (4, 3))
    for control in MAPS[name].controls:
        values = spread(control, np.array([0.5, 1.0, 1.5]))
        p = getattr(sg, name)(z, axis=0, **{control: values})
        for i in range(3):
            np.testing.assert_allclose(p[:, i], getattr(sg, name)(z[:, i], **{control: values[i]}), rtol=1e-15)


@names
def test_controls_have_the_defaults_of_the_table(name):
    z = scores(name, (3, 5))
    for control in MAPS[name].controls:
        if control in DOCUMENTED_DEFAULTS:
            np.testing.assert_array_equal(
                getattr(sg, name)(z), getattr(sg, name)(z, **{control: DOCUMENTED_DEFAULTS[control]})
            )


@names
def test_integer_and_numpy_controls_are_numbers(name):
    z = scores(name, (3, 5))
    values = {"lam": -1, "q": 2, "temperature": 2, "alpha": 2}
    for control in MAPS[name].controls:
        want = getattr(sg, name)(z, **{control: float(values[control])})
        for kind in (int, np.int32, np.float32, np.array):
            np.testing.assert_array_equal(getattr(sg, name)(z, **{control: kind(values[control])}), want)


@names
def test_nan_inf_and_empty_rows_are_described(name):
    z = scores(name, (4, 3))
    z[0, 1], z[1, 1], z[2] = math.nan, math.inf, -math.inf
    p, info = mapped(name)(z, return_info=True)
    assert np.isnan(p[:2]).all()
    assert (p[2] == 0).all()
    np.testing.assert_array_equal(info.support_size[:3], 0)
    assert np.isnan(info.threshold[:3]).all(), "a row without a support has no threshold"
    assert info.support_size[3] > 0


@names
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
@pytest.mark.parametrize("size", [1e-30, 1e-3, 30.0, 100.0, 300.0, 1e4, 1e30])
def test_magnitudes_keep_rows_on_the_simplex(name, dtype, size):
    z = (np.array([[1.0, 1.0, 0.5], [0.25, 1.0, 0.125]]) * size).astype(dtype)
    laws.assert_on_simplex(mapped(name)(z))
    if not MAPS[name].domain:
        laws.assert_on_simplex(mapped(name)(-z))


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda t: t.__name__)
@pytest.mark.parametrize("r", [1e-300, 1e-100, 1e-80, 1e80, 1e100, 1e300])
def test_radii_beyond_the_dtype_are_limits(dtype, r):
    x = np.array([[2.0, 2.0, 1.0, -math.inf]], dtype)
    want = [[0.5, 0.5, 0, 0]] if r < 1 else [[1 / 3, 1 / 3, 1 / 3, 0]]
    np.testing.assert_allclose(sg.project(x, r), want, rtol=1e-6)


def test_a_temperature_below_the_dtype_is_hardmax():
    for dtype in DTYPES:
        for temperature in (1e-10, 1e-50, 1e-300):
            p = sg.softmax(np.array([1.0, 2.0, 2.0], dtype), temperature=temperature)
            np.testing.assert_array_equal(p, np.array([0, 0.5, 0.5], dtype))


@pytest.mark.parametrize("name", ["sparsegen_lin", "sparsegen_exp", "sparsegen_sq", "sparsegen_log"])
@pytest.mark.parametrize("size", [1e-200, 1e-3, 1.0, 800.0, 1e200])
def test_lam_minus_infinity_is_uniform_at_any_magnitude(name, size):
    p = getattr(sg, name)(np.array([1.0, 0.5, -math.inf]) * size, lam=-math.inf)
    np.testing.assert_array_equal(p, [0.5, 0.5, 0.0])


def test_hourglass_of_the_largest_numbers_does_not_overflow():
    np.testing.assert_array_equal(sg.sparsehourglass([1e308, 0.9e308], q=1e308), [1.0, 0.0])
