"""Every error message the NumPy front end gives, by its full text."""

import math

import numpy as np
import pytest

import sparsegen as sg

Z = np.array([[1.0, 2.0, 3.0], [0.5, 0.25, 0.0]])
DTYPES = "float16, float32, float64, integers or booleans"
TRANSFORM_NAMES = "one of 'lin', 'exp', 'sq', 'log', or a callable"
LEAD = "the scores' shape without the class axis"
MASK = "boolean (True = may be chosen)"

CASES = [
    (lambda: sg.sparsemax(1.0), ValueError, "scores must be an array with at least one axis, got a single number."),
    (lambda: sg.project(1.0), ValueError, "points must be an array with at least one axis, got a single number."),
    (lambda: sg.sparsemax(Z, axis=1.0), TypeError, "axis must be an integer, got 1.0."),
    (lambda: sg.sparsemax(Z, axis=None), TypeError, "axis must be an integer, got None."),
    (lambda: sg.sparsemax(Z, axis="0"), TypeError, "axis must be an integer, got '0'."),
    (lambda: sg.sparsemax(Z, axis=2), ValueError, "axis must be between -2 and 1 for scores of shape (2, 3), got 2."),
    (lambda: sg.softmax(Z, axis=-3), ValueError, "axis must be between -2 and 1 for scores of shape (2, 3), got -3."),
    (lambda: sg.project(Z, axis=2), ValueError, "axis must be between -2 and 1 for points of shape (2, 3), got 2."),
    (lambda: sg.sparsemax(Z.astype(complex)), TypeError, f"scores must be {DTYPES}, got dtype complex128."),
    (
        lambda: sg.sparsemax(Z.astype(np.longdouble)),
        TypeError,
        f"scores must be {DTYPES}, got dtype {np.dtype(np.longdouble)}.",
    ),
    (lambda: sg.sparsemax(Z.astype(object)), TypeError, f"scores must be {DTYPES}, got dtype object."),
    (lambda: sg.sparsemax(None), TypeError, f"scores must be {DTYPES}, got None."),
    (lambda: sg.sparsemax(["a", "b"]), TypeError, f"scores must be {DTYPES}, got dtype <U1."),
    (lambda: sg.project(Z.astype(complex)), TypeError, f"points must be {DTYPES}, got dtype complex128."),
    (lambda: sg.sparsemax(Z, mask=[1, 0, 1]), TypeError, f"mask must be {MASK}, got dtype int64."),
    (lambda: sg.sparsemax(Z, mask=np.ones(3)), TypeError, f"mask must be {MASK}, got dtype float64."),
    (
        lambda: sg.sparsemax(Z, mask=[True, False]),
        ValueError,
        "the shape of mask must be broadcastable to (2, 3), the scores' shape, got (2,).",
    ),
    (
        lambda: sg.softmax(Z, mask=np.ones((1, 2, 3), bool)),
        ValueError,
        "the shape of mask must be broadcastable to (2, 3), the scores' shape, got (1, 2, 3).",
    ),
    (
        lambda: sg.sparsegen_lin(Z, lam=[0.0, 0.0, 0.0]),
        ValueError,
        f"the shape of lam must be broadcastable to (2,), {LEAD}, got (3,).",
    ),
    (
        lambda: sg.sparsehourglass(Z, q=[[1.0, 1.0]], axis=0),
        ValueError,
        f"the shape of q must be broadcastable to (3,), {LEAD}, got (1, 2).",
    ),
    (
        lambda: sg.softmax(Z[0], temperature=[1.0]),
        ValueError,
        f"the shape of temperature must be broadcastable to (), {LEAD}, got (1,).",
    ),
    (
        lambda: sg.project(Z, [1.0, 1.0, 1.0]),
        ValueError,
        "the shape of radius must be broadcastable to (2,), the points' shape without the class axis, got (3,).",
    ),
    (lambda: sg.sparsegen_lin(Z, lam=1), ValueError, "lam must be a number below 1, got 1.0."),
    (lambda: sg.sparsegen_exp(Z, lam=1.5), ValueError, "lam must be a number below 1, got 1.5."),
    (lambda: sg.sparsegen(Z, lam=math.inf), ValueError, "lam must be a number below 1, got inf."),
    (lambda: sg.sparsegen_sq(Z, lam=math.nan), ValueError, "lam must be a number below 1, got nan."),
    (lambda: sg.sparsegen_log(Z + 1, lam="0"), TypeError, "lam must be a number below 1, got '0'."),
    (lambda: sg.sparsegen(Z, lam=None), TypeError, "lam must be a number below 1, got None."),
    (lambda: sg.sparsegen_lin(Z, lam=1j), TypeError, "lam must be a number below 1, got 1j."),
    (lambda: sg.sparsegen_lin(Z, lam=[0.5, 2.5]), ValueError, "lam[1] must be a number below 1, got 2.5."),
    (lambda: sg.sparsegen_lin(Z, lam=np.array(1.0)), ValueError, "lam must be a number below 1, got 1.0."),
    (lambda: sg.sparsegen_lin(Z, lam=[0.5, math.nan]), ValueError, "lam[1] must be a number below 1, got nan."),
    (lambda: sg.sparsegen_lin(Z, lam=["a", "b"]), TypeError, "lam must be a number below 1, got dtype <U1."),
    (lambda: sg.sparsegen(Z, transform=abs, lam=1), ValueError, "lam must be a number below 1, got 1.0."),
    (lambda: sg.sparsecone(Z, q=-1), ValueError, "q must be a number at least 0, got -1.0."),
    (lambda: sg.sparsehourglass(Z, q=math.nan), ValueError, "q must be a number at least 0, got nan."),
    (lambda: sg.sparsehourglass(Z, q=[1.0, -0.5]), ValueError, "q[1] must be a number at least 0, got -0.5."),
    (lambda: sg.sparsehourglass(Z, q=None), TypeError, "q must be a number at least 0, got None."),
    (lambda: sg.project(Z, -1.0), ValueError, "radius must be a number at least 0, got -1.0."),
    (lambda: sg.project(Z, math.nan), ValueError, "radius must be a number at least 0, got nan."),
    (lambda: sg.project(Z, "1"), TypeError, "radius must be a number at least 0, got '1'."),
    (lambda: sg.softmax(Z, temperature=0), ValueError, "temperature must be a positive number, got 0.0."),
    (lambda: sg.softmax(Z, temperature=-2), ValueError, "temperature must be a positive number, got -2.0."),
    (lambda: sg.softmax(Z, temperature=[1.0, 0.0]), ValueError, "temperature[1] must be a positive number, got 0.0."),
    (lambda: sg.softmax(Z, temperature="x"), TypeError, "temperature must be a positive number, got 'x'."),
    (lambda: sg.sparsegen(Z, transform="cube"), ValueError, f"transform must be {TRANSFORM_NAMES}, got 'cube'."),
    (lambda: sg.sparsegen(Z, transform=3), ValueError, f"transform must be {TRANSFORM_NAMES}, got 3."),
    (lambda: sg.sparsegen(Z, transform=None), ValueError, f"transform must be {TRANSFORM_NAMES}, got None."),
    (
        lambda: sg.sparsegen(Z, transform=np.sum),
        ValueError,
        "the result of transform must be of the scores' shape (2, 3), got shape ().",
    ),
    (
        lambda: sg.sparsegen_log(Z),
        ValueError,
        "scores row (1,) of sparsegen_log must be positive, got 0.0.",
    ),
    (
        lambda: sg.sparsegen_log([1.0, -2.0]),
        ValueError,
        "the scores of sparsegen_log must be positive, got -2.0.",
    ),
    (
        lambda: sg.sum_normalization(-Z[:, None], axis=1),
        ValueError,
        "scores row (0, 0) of sum_normalization must be at least 0, got -1.0.",
    ),
    (
        lambda: sg.sum_normalization([[1.0, 2.0], [0.0, 0.0]]),
        ValueError,
        "scores row (1,) of sum_normalization must be not all 0, got zeros.",
    ),
    (
        lambda: sg.spherical_softmax([0.0, 0.0, -math.inf]),
        ValueError,
        "the scores of spherical_softmax must be not all 0, got zeros.",
    ),
    (
        lambda: sg.sparsecone([-2.0, -1.0], q=1.0),
        ValueError,
        "the scores of sparsecone must be of a sum above -K q = -2.0, got -3.0.",
    ),
    (
        lambda: sg.sparsecone([[1.0, 1.0], [-1.5, -0.5]], q=1.0),
        ValueError,
        "scores row (1,) of sparsecone must be of a sum above -K q = -2.0, got -2.0.",
    ),
    (
        lambda: sg.sparsecone([[1.0, 1.0], [-1.5, -0.5]], q=[0.5, 0.25], mask=[True, False]),
        ValueError,
        "scores row (1,) of sparsecone must be of a sum above -K q = -0.25, got -1.5.",
    ),
    (lambda: sg.set_num_threads(0), ValueError, "n must be a positive integer, got 0."),
    (lambda: sg.set_num_threads(2.0), ValueError, "n must be a positive integer, got 2.0."),
    (lambda: sg.set_num_threads("2"), ValueError, "n must be a positive integer, got '2'."),
]


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[text[:50] for _, _, text in CASES])
def test_message_names_argument_condition_and_value(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert str(caught.value) == f"sparsegen: {text}"


def test_the_control_of_cone_and_hourglass_must_be_given():
    for f in (sg.sparsecone, sg.sparsehourglass):
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'q'"):
            f(Z)


def test_controls_and_options_are_keyword_only():
    for call in (lambda: sg.sparsegen_lin(Z, 0.5), lambda: sg.sparsehourglass(Z, 1.0), lambda: sg.sparsemax(Z, 0)):
        with pytest.raises(TypeError, match="positional argument"):
            call()


def test_an_error_leaves_the_number_of_threads():
    before = sg.get_num_threads()
    with pytest.raises(ValueError):
        sg.set_num_threads(-1)
    assert sg.get_num_threads() == before
