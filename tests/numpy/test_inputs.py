"""What NumPy users give as scores, masks and controls: read as they mean it, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegen as sg
from sparsegen._table.maps import MAPS

CONTROLS = {"lam": 0.25, "q": 0.5, "temperature": 0.75, "alpha": 1.25}
Z = np.array([[1.0, 9.0, 0.5, 0.25], [0.5, 2.0, 8.0, 1.5]])
HIDDEN = np.array([[False, True, False, False], [False, False, True, True]])
MASKED = np.ma.array(Z, mask=HIDDEN)
LOSSES = {"softmax_log": {}, "sparsemax_huber": {"lam": 0.25}, "sparsegen_hinge": {"lam": 0.25}}
LOSSES["sparsehourglass_hinge"] = {"q": 0.5}


def _map(name):
    given = {key: CONTROLS[key] for key in MAPS[name].controls}
    return lambda z, **options: getattr(sg, name)(z, **given, **options)


@pytest.mark.parametrize("name", MAPS)
def test_a_masked_entry_may_not_be_chosen(name):
    f, also = _map(name), np.array([True, True, True, False])
    for z, mask, want in (
        (MASKED, None, f(Z, mask=~HIDDEN)),
        (MASKED, also, f(Z, mask=~HIDDEN & also)),
        (list(MASKED), None, f(Z, mask=~HIDDEN)),
        (np.ma.array(Z), None, f(Z)),
        (np.ma.array(np.where(HIDDEN, np.nan, Z), mask=HIDDEN), None, f(Z, mask=~HIDDEN)),
    ):
        p = f(z, mask=mask)
        assert type(p) is np.ndarray
        np.testing.assert_array_equal(p, want)
    assert (f(MASKED)[HIDDEN] == 0).all()
    for axis in (0, 1):
        _, info = f(MASKED, axis=axis, return_info=True)
        _, want = f(Z, axis=axis, mask=~HIDDEN, return_info=True)
        np.testing.assert_array_equal(info.support_size, want.support_size)
        np.testing.assert_array_equal(info.threshold, want.threshold)


def test_project_and_a_callers_transform_see_what_is_masked():
    np.testing.assert_array_equal(sg.project(MASKED, 0.5), sg.project(Z, 0.5, mask=~HIDDEN))
    got = sg.sparsegen(MASKED, transform=np.tanh)
    np.testing.assert_array_equal(got, sg.sparsegen(Z, transform=np.tanh, mask=~HIDDEN))


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_leaves_masked_scores_out(name):
    loss, y = getattr(sg, f"{name}_loss"), [0, 1]
    value, grad = loss(MASKED, y, return_grad=True, **LOSSES[name])
    want, want_grad = loss(Z, y, mask=~HIDDEN, return_grad=True, **LOSSES[name])
    assert value == want
    np.testing.assert_array_equal(grad.scores, want_grad.scores)
    with pytest.raises(ValueError, match=r"target row 0 must be a set of labels that may be chosen"):
        loss(MASKED, [1, 0], **LOSSES[name])


def test_controls_are_found_for_what_is_not_masked():
    for find in (
        lambda z, **o: sg.lam_for_support(z, 2, **o),
        lambda z, **o: sg.lam_for_peak(z, 0.75, **o),
        lambda z, **o: sg.lam_for_mean_support(z, 1.5, **o),
        lambda z, **o: sg.q_for_support(z, 2, **o),
        lambda z, **o: sg.explain(z, **o).lam_interval,
        lambda z, **o: sg.explain(z, **o).distance,
        lambda z, **o: sg.explain(z, "sparsegen_exp", **o).entropy,
    ):
        np.testing.assert_array_equal(find(MASKED), find(Z, mask=~HIDDEN))
    assert sg.calibrate([MASKED], mean_support=1.5) == sg.calibrate([np.where(HIDDEN, -np.inf, Z)], mean_support=1.5)


TWO = np.ma.array([0.1, 0.2], mask=[False, True])
OTHERS = {
    "mask": lambda x: sg.sparsemax(Z[:, :2], mask=x),
    "lam": lambda x: sg.sparsegen_lin(Z, lam=x),
    "q": lambda x: sg.sparsehourglass(Z, q=x),
    "temperature": lambda x: sg.softmax(Z, temperature=x),
    "radius": lambda x: sg.project(Z, x),
    "weight": lambda x: sg.softmax_log_loss(Z, [0, 1], weight=x),
    "target": lambda x: sg.softmax_log_loss(Z[:, :2], x),
    "k": lambda x: sg.lam_for_support(Z, x),
    "p_max": lambda x: sg.lam_for_peak(Z, x),
}
SCORES = {
    "scores": [
        *(_map(name) for name in MAPS), lambda x: sg.softmax_log_loss(x, [0, 1]), lambda x: sg.lam_for_support(x, 1),
        sg.explain, lambda x: sg.calibrate([x], mean_support=1), sg.sparsegen,
    ],
    "points": [sg.project],
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_masked_entries_mean_nothing_but_in_scores(name):
    value = np.ma.array([True, True], mask=[False, True]) if name == "mask" else TWO
    with pytest.raises(ValueError, match=rf"^sparsegen: {name} must be without masked entries, got 1 of 2 masked\.$"):
        OTHERS[name](value)


class Unreadable:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("no")


BAD = {
    "ragged": ([[1.0, 2.0], [3.0]], ValueError, "an array, rows of one length, got rows of several"),
    "sparse matrix": (sp.csr_matrix(np.eye(2)), TypeError, r"a dense array \(toarray\(\) makes one\), got csr_matrix"),
    "sparse array": (sp.coo_array(np.eye(2)), TypeError, r"a dense array \(toarray\(\) makes one\), got coo_array"),
    "unreadable": (Unreadable(), TypeError, "an array, or what NumPy makes one of, got Unreadable"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("name", [*OTHERS, *SCORES])
def test_what_is_no_array_is_refused_by_name(name, kind):
    value, error, text = BAD[kind]
    if name == "target" and "sparse" in kind:
        pytest.skip("targets may be sparse")
    for call in SCORES.get(name) or [OTHERS[name]]:
        with pytest.raises(error, match=rf"^sparsegen: {name} must be {text}\.$"):
            call(value)


@pytest.mark.parametrize("value", ["abc", ["a", "b"], [1.0, None], [object()], {"a": 1.0}, None, [1j], [b"a"]])
@pytest.mark.parametrize("name", [*OTHERS, *SCORES])
def test_what_is_no_numbers_is_refused_by_name(name, value):
    if value is None and name in ("mask", "weight"):
        pytest.skip("left out")
    for call in SCORES.get(name) or [OTHERS[name]]:
        with pytest.raises((TypeError, ValueError), match=rf"^sparsegen: {name} must be .*, got "):
            call(value)


def test_series_and_frames_are_arrays():
    pd = pytest.importorskip("pandas")
    frames = (
        pd.DataFrame(Z),
        pd.DataFrame(Z).astype("Float64"),
        pd.DataFrame({"a": pd.array([1, 0], "Int64"), "b": [0.5, 1.0]}),
        pd.DataFrame({"a": [True, False], "b": [0.5, 1.0]}),
        pd.Series([1.0, 0.5]),
        pd.Series([2, 1], dtype="Int64"),
    )
    for frame in frames:
        want = sg.sparsemax(np.asarray(frame).astype(np.float64))
        np.testing.assert_array_equal(sg.sparsemax(frame), want)
    lam = pd.Series([0.5, 0.25])
    np.testing.assert_array_equal(sg.sparsegen_lin(frames[0], lam=lam), sg.sparsegen_lin(Z, lam=[0.5, 0.25]))
    np.testing.assert_array_equal(sg.sparsemax(frames[0], mask=pd.DataFrame(~HIDDEN)), sg.sparsemax(Z, mask=~HIDDEN))
    assert sg.softmax_log_loss(frames[0], pd.Series([0, 1])) == sg.softmax_log_loss(Z, [0, 1])
