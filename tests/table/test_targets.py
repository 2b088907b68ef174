"""What takes part in a loss: targets in every form, masks, weights, reductions, and rows that are left out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sparsegen as sg
from loss_oracle import HINGES, LOSSES
from sparsegen._table.targets import read

INF, NAN = math.inf, math.nan
Y = np.array([[1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 1, 1]])
Z = np.array([[0.5, -0.25, 1.0, 0.75], [0.0, 0.5, -1.5, 0.25], [1.0, 0.5, 0.25, -0.5]])
SHARES = np.array([[0.5, 0, 0.5, 0], [0, 1, 0, 0], [0.25, 0.25, 0.25, 0.25]])
NUMBERS = {"lam": -0.5, "q": 0.75}


def loss(name, scores, target, **how):
    key = LOSSES[name]
    given_ = {key: NUMBERS[key], **how} if key else how
    return getattr(sg, f"{name}_loss")(scores, target, **given_)


@pytest.fixture(params=LOSSES)
def name(request):
    return request.param


def unsorted(y):
    """CSR whose rows are backwards, as some readers of files leave them."""
    m = sp.csr_array(y)
    for i in range(m.shape[0]):
        part = slice(m.indptr[i], m.indptr[i + 1])
        m.indices[part], m.data[part] = m.indices[part][::-1].copy(), m.data[part][::-1].copy()
    m.has_sorted_indices = False
    return m


def with_zeros(y):
    """COO with stored zeros."""
    at = np.argwhere(np.ones_like(y))
    return sp.coo_array((y.reshape(-1), (at[:, 0], at[:, 1])), shape=y.shape)


def in_halves(y):
    """COO with each label given twice, as halves, and one pair that cancels."""
    at = np.argwhere(y)
    row, col = np.tile(at[:, 0], 2), np.tile(at[:, 1], 2)
    data = np.full(len(row), 0.5)
    extra = ([1, 1], [3, 3], [0.25, -0.25])
    parts = [np.concatenate([a, b]) for a, b in zip((row, col, data), extra)]
    return sp.coo_array((parts[2], (parts[0], parts[1])), shape=y.shape)


def twice_in_csr(y):
    """CSR that is not canonical: a label's two halves stand beside each other."""
    m = sp.csr_array(y.astype(np.float64))
    return sp.csr_array((np.repeat(m.data / 2, 2), np.repeat(m.indices, 2), m.indptr * 2), shape=y.shape)


FORMS = {
    "int": lambda y: y,
    "bool": lambda y: y.astype(bool),
    "uint8": lambda y: y.astype(np.uint8),
    "float": lambda y: y.astype(np.float64),
    "float16": lambda y: y.astype(np.float16),
    "lists": lambda y: y.tolist(),
    "fortran": np.asfortranarray,
    "strided": lambda y: np.repeat(y, 2, 1)[:, ::2],
    "shares": lambda y: y / y.sum(1, keepdims=True),
    "float32 shares": lambda y: (y / y.sum(1, keepdims=True)).astype(np.float32),
    "csr": sp.csr_array,
    "csr_matrix": sp.csr_matrix,
    "csr of bool": lambda y: sp.csr_array(y.astype(bool)),
    "csr of shares": lambda y: sp.csr_array(y / y.sum(1, keepdims=True)),
    "csc": sp.csc_array,
    "coo": sp.coo_array,
    "lil": sp.lil_array,
    "dok": sp.dok_array,
    "unsorted csr": unsorted,
    "stored zeros": with_zeros,
    "stored zeros in csr": lambda y: with_zeros(y).tocsr(),
    "duplicates": in_halves,
    "duplicates in csr": twice_in_csr,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_target_gives_the_same_loss(form, name):
    want, expected = loss(name, Z, Y, reduction="none", return_grad=True)
    got, grad = loss(name, Z, FORMS[form](Y), reduction="none", return_grad=True)
    np.testing.assert_allclose(got, want, rtol=1e-15, atol=1e-15)
    np.testing.assert_allclose(grad.scores, expected.scores, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_target_is_read_as_the_same_shares(form):
    found = read(FORMS[form](Y), Z.shape)
    np.testing.assert_allclose(found.dense(4, "float64"), SHARES, rtol=1e-15)
    np.testing.assert_array_equal(found.indptr, [0, 2, 3, 7])
    np.testing.assert_array_equal(found.indices, [0, 2, 1, 0, 1, 2, 3])
    np.testing.assert_array_equal(found.rows(), [0, 0, 1, 2, 2, 2, 2])
    assert (found.indptr.dtype, found.indices.dtype, found.eta.dtype) == (np.int64, np.int64, np.float64)
    assert found.counted is None


@pytest.mark.parametrize("form", [form for form in FORMS if form != "lists"])
def test_a_target_is_never_changed(form, name):
    y = FORMS[form](Y)
    parts = [p for p in ("data", "indices", "indptr", "row", "col") if sp.issparse(y) and hasattr(y, p)]
    kept = [np.array(getattr(y, p)) for p in parts] if sp.issparse(y) else np.array(y)
    flags = getattr(y, "has_canonical_format", None)
    loss(name, Z, y, return_grad=True)
    if sp.issparse(y):
        for part, before in zip(parts, kept):
            np.testing.assert_array_equal(getattr(y, part), before)
        assert getattr(y, "has_canonical_format", None) == flags
    else:
        np.testing.assert_array_equal(y, kept)


def test_no_array_of_the_caller_is_changed(name):
    weight, mask = np.array([1.0, 2.0, 0.5]), Y.astype(bool) | (Z > 0)
    arrays = [Z.copy(), Y.copy(), mask, weight]
    kept = [a.copy() for a in arrays]
    control = {LOSSES[name]: np.full(3, 0.5)} if LOSSES[name] else {}
    arrays += list(control.values())
    kept += [a.copy() for a in control.values()]
    for a in arrays:
        a.flags.writeable = False
    loss(name, arrays[0], arrays[1], mask=mask, weight=weight, return_grad=True, **control)
    for a, b in zip(arrays, kept):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, np.uint64])
def test_class_indices_are_rows_of_one_label(dtype, name):
    index = np.array([2, 0, 3], dtype)
    want = loss(name, Z, np.eye(4)[index.astype(int)], reduction="none")
    np.testing.assert_array_equal(loss(name, Z, index, reduction="none"), want)
    np.testing.assert_array_equal(loss(name, Z, index.tolist(), reduction="none"), want)
    assert loss(name, Z[0], dtype(2)) == want[0]
    assert loss(name, Z[0], 2) == want[0]


@pytest.mark.parametrize(("ignored", "how"), [(-100, {}), (255, {"ignore_index": 255}), (1, {"ignore_index": 1})])
def test_rows_with_the_ignored_index_take_no_part(ignored, how, name):
    z = Z.copy()
    z[1] = NAN
    value, grad = loss(name, z, [2, ignored, 3], return_grad=True, **how)
    want, expected = loss(name, Z[[0, 2]], [2, 3], return_grad=True)
    assert value == pytest.approx(want, abs=1e-15)
    np.testing.assert_allclose(grad.scores[[0, 2]], expected.scores, atol=1e-15)
    assert (grad.scores[1] == 0).all()
    each = loss(name, z, [2, ignored, 3], reduction="none", **how)
    assert each[1] == 0
    control = LOSSES[name]
    if control:
        assert getattr(grad, control) == pytest.approx(getattr(expected, control), abs=1e-14)


@pytest.mark.parametrize("form", ["int", "float", "csr", "coo", "stored zeros in csr"])
def test_rows_without_labels_can_be_left_out(form, name):
    y, z = Y.copy(), Z.copy()
    y[1], z[1] = 0, [NAN, INF, -INF, 0.0]
    value, grad = loss(name, z, FORMS[form](y), ignore_empty=True, return_grad=True)
    want, expected = loss(name, Z[[0, 2]], Y[[0, 2]], return_grad=True)
    assert value == pytest.approx(want, abs=1e-15)
    np.testing.assert_allclose(grad.scores[[0, 2]], expected.scores, atol=1e-15)
    assert (grad.scores[1] == 0).all()
    with pytest.raises(ValueError, match=r"^sparsegen: target row 1 must be a row with at least one label"):
        loss(name, Z, FORMS[form](y))


def test_a_mean_of_nothing_is_0(name):
    for target, how in (
        (np.zeros_like(Y), {"ignore_empty": True}),
        ([-100] * 3, {}),
        (Y, {"weight": 0.0}),
        (Y, {"weight": [0, 0, 0]}),
    ):
        value, grad = loss(name, Z * NAN, target, return_grad=True, **how)
        assert value == 0
        assert (grad.scores == 0).all()


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (0, 1)])
def test_no_rows_have_a_loss_of_0(shape, name):
    for target in (np.zeros(shape), np.zeros(shape[:-1], int)):
        for mask in (None, np.ones(shape[-1], bool)):
            value, grad = loss(name, np.zeros(shape), target, mask=mask, return_grad=True)
            assert value == 0
            assert grad.scores.shape == shape
            assert loss(name, np.zeros(shape), target, reduction="none").shape == shape[:-1]


@pytest.mark.parametrize("shape", [(2, 0), (0, 0), (0,)])
def test_rows_without_entries_have_no_label_and_can_be_left_out(shape, name):
    value, grad = loss(name, np.zeros(shape), np.zeros(shape), ignore_empty=True, return_grad=True)
    assert value == 0
    assert grad.scores.shape == shape
    ignored = np.full(shape[:-1], -100)
    assert loss(name, np.zeros(shape), ignored, mask=np.ones((1,) * (len(shape) - 1) + (0,), bool)) == 0
    if shape != (0, 0):
        with pytest.raises(ValueError, match="target row 0 must be a row with at least one label"):
            loss(name, np.zeros(shape), np.zeros(shape))


@pytest.mark.parametrize("lead", [(), (12,), (3, 4), (2, 3, 2), (1, 12, 1)])
def test_leading_axes_are_rows(lead, name):
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((12, 5)), rng.integers(0, 5, 12)
    weight, control = rng.random(12), rng.random(12) / 2 + 0.25
    if lead == ():
        z, y, weight, control = z[:1], y[:1], weight[:1], control[:1]
    own = {LOSSES[name]: control} if LOSSES[name] else {}
    want, expected = loss(name, z, y, weight=weight, reduction="none", return_grad=True, **own)
    own = {key: value.reshape(lead)[()] for key, value in own.items()}
    for target in (y.reshape(lead)[()], np.eye(5)[y].reshape(*lead, 5)):
        given_ = {"weight": weight.reshape(lead)[()], "reduction": "none", "return_grad": True}
        value, grad = loss(name, z.reshape(*lead, 5), target, **given_, **own)
        assert np.shape(value) == lead
        np.testing.assert_array_equal(np.reshape(value, -1), want)
        np.testing.assert_array_equal(grad.scores.reshape(-1, 5), expected.scores)
        if LOSSES[name]:
            along = getattr(grad, LOSSES[name])
            assert np.shape(along) == lead
            np.testing.assert_array_equal(np.reshape(along, -1), getattr(expected, LOSSES[name]))


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 1), (1, 4), (3, 4)])
@pytest.mark.parametrize("name", [n for n in LOSSES if LOSSES[n]])
def test_a_shared_control_receives_the_sum_of_its_rows(name, shape):
    rng = np.random.default_rng(1)
    z, y = rng.standard_normal((3, 4, 5)), rng.integers(0, 5, (3, 4))
    control = rng.random(shape) / 2 + 0.25
    whole = np.broadcast_to(control, (3, 4)).copy()
    value, grad = loss(name, z, y, return_grad=True, **{LOSSES[name]: control})
    want, expected = loss(name, z, y, return_grad=True, **{LOSSES[name]: whole})
    assert value == want
    each = getattr(expected, LOSSES[name])
    along = getattr(grad, LOSSES[name])
    assert np.shape(along) == shape
    summed = each.sum(axis=tuple(range(2 - len(shape))))
    for axis, n in enumerate(shape):
        summed = summed.sum(axis, keepdims=True) if n == 1 else summed
    np.testing.assert_allclose(along, summed, rtol=1e-13)


def test_distributions_are_kept_by_log_and_huber_and_refused_by_hinges(name):
    eta = np.array([[0.7, 0.3, 0, 0], [0.5, 0.25, 0.25, 0], [1, 0, 0, 0]])
    for target in (eta, sp.csr_array(eta), eta.astype(np.float32)):
        if name in HINGES:
            with pytest.raises(ValueError, match="a loss of 0 would not mean that the map returns the target"):
                loss(name, Z, target)
            continue
        _, grad = loss(name, Z, target, reduction="sum", return_grad=True)
        p = sg.softmax(Z) if name == "softmax_log" else sg.sparsegen_lin(Z, lam=NUMBERS["lam"])
        np.testing.assert_allclose(grad.scores, p - eta, atol=1e-7 if sp.issparse(target) is False else 1e-15)


def test_shares_are_made_to_add_up_to_1():
    eta = np.float32([[1 / 3, 1 / 3, 1 / 3], [0.1, 0.2, 0.7]])
    found = read(eta, (2, 3))
    np.testing.assert_allclose(np.add.reduceat(found.eta, [0, 3]), 1, rtol=1e-15)
    np.testing.assert_allclose(found.eta[:3], 1 / 3, rtol=1e-7)
    np.testing.assert_array_equal(read(eta[:1], (1, 3)).eta, 1 / 3)


@given(hnp.arrays(np.bool_, st.tuples(st.integers(1, 4), st.integers(1, 5))))
def test_dense_and_sparse_targets_are_read_alike(y):
    one, two = (read(t, y.shape, ignore_empty=True) for t in (y, sp.csr_array(y)))
    for a, b in zip(one[:3], two[:3]):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one.dense(y.shape[1], "float64") > 0, y)
    np.testing.assert_array_equal(np.ones(len(y), bool) if one.counted is None else one.counted, y.any(1))


def random_rows(n=30, k=7, seed=2):
    rng = np.random.default_rng(seed)
    y = rng.random((n, k)) < 0.3
    y[np.arange(n), rng.integers(0, k, n)] = True
    return rng.standard_normal((n, k)), y, (rng.random((n, k)) < 0.6) | y


def test_masking_is_deleting(name):
    z, y, mask = random_rows()
    value, grad = loss(name, z, y, mask=mask, reduction="none", return_grad=True)
    for i in range(len(z)):
        want, expected = loss(name, z[i][mask[i]], y[i][mask[i]], return_grad=True)
        assert value[i] == pytest.approx(want, abs=1e-14)
        np.testing.assert_allclose(grad.scores[i][mask[i]], expected.scores, atol=1e-14)
        assert (grad.scores[i][~mask[i]] == 0).all()


@pytest.mark.parametrize("junk", [NAN, INF, -INF, 1e300])
def test_what_a_mask_hides_is_not_read(junk, name):
    z, y, mask = random_rows()
    want, expected = loss(name, z, y, mask=mask, return_grad=True)
    value, grad = loss(name, np.where(mask, z, junk), y, mask=mask, return_grad=True)
    by_value = loss(name, np.where(mask, z, -INF), y, return_grad=True)
    for got, g in ((value, grad), by_value):
        assert got == pytest.approx(want, abs=1e-15)
        np.testing.assert_allclose(g.scores, expected.scores, atol=1e-15)


@pytest.mark.parametrize("shape", [(5,), (3, 1, 5), (1, 4, 5), (1, 1, 5), (3, 4, 1)])
def test_a_mask_is_shared_by_rows(shape, name):
    rng = np.random.default_rng(3)
    z, y = rng.standard_normal((3, 4, 5)), np.zeros((3, 4), int)
    mask = rng.random(shape) < 0.5
    mask[..., 0] = True
    full = np.broadcast_to(mask, z.shape).copy()
    one, two = (loss(name, z, y, mask=m, reduction="none", return_grad=True) for m in (mask, full))
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1].scores, two[1].scores)


def test_reductions_and_weights_are_those_of_the_rows(name):
    z, y, mask = random_rows()
    weight = np.random.default_rng(4).integers(0, 4, len(z)) * 0.75
    each, by_row = loss(name, z, y, mask=mask, reduction="none", return_grad=True)
    for w in (None, weight, weight[:1], 2.0):
        own = np.ones(len(z)) if w is None else np.broadcast_to(w, len(z))
        got, grad = loss(name, z, y, mask=mask, weight=w, reduction="none", return_grad=True)
        np.testing.assert_allclose(got, own * each, rtol=1e-14)
        np.testing.assert_allclose(grad.scores, own[:, None] * by_row.scores, rtol=1e-14)
        for reduction, total in (("sum", 1.0), ("mean", own.sum())):
            got, grad = loss(name, z, y, mask=mask, weight=w, reduction=reduction, return_grad=True)
            assert got == pytest.approx((own * each).sum() / total, rel=1e-13)
            np.testing.assert_allclose(grad.scores, own[:, None] * by_row.scores / total, rtol=1e-13, atol=1e-16)
        assert loss(name, z, y, mask=mask, weight=w) == loss(name, z, y, mask=mask, weight=w, reduction="mean")
    doubled = loss(name, np.repeat(z, 2, 0), np.repeat(y, 2, 0), mask=np.repeat(mask, 2, 0))
    assert doubled == pytest.approx(each.mean(), rel=1e-13)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_spoilt_row_is_nan_alone_and_can_be_weighted_away(bad, name):
    z, y, _ = random_rows()
    want, expected = loss(name, z, y, reduction="none", return_grad=True)
    spoilt = z.copy()
    spoilt[3, 2] = bad
    value, grad = loss(name, spoilt, y, reduction="none", return_grad=True)
    others = np.arange(len(z)) != 3
    assert np.isnan(value[3])
    assert np.isnan(grad.scores[3]).all()
    np.testing.assert_array_equal(value[others], want[others])
    np.testing.assert_array_equal(grad.scores[others], expected.scores[others])
    assert np.isnan(loss(name, spoilt, y))
    kept, clean = loss(name, spoilt, y, weight=others, return_grad=True)
    assert kept == pytest.approx(want[others].mean(), rel=1e-13)
    assert (clean.scores[3] == 0).all()
    assert all(g is None or np.isfinite(g) for g in clean[1:])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64, np.bool_])
def test_gradients_have_the_dtype_of_the_scores_and_losses_are_float64(dtype, name):
    z = (Z * 4).astype(dtype)
    value, grad = loss(name, z, Y, return_grad=True)
    assert value.dtype == np.float64
    assert grad.scores.dtype == (dtype if np.dtype(dtype).kind == "f" else np.float64)
    assert grad._fields == ("scores", "lam", "q", "alpha")
    assert [f for f in ("lam", "q", "alpha") if getattr(grad, f) is not None] == [LOSSES[name]] * bool(LOSSES[name])
