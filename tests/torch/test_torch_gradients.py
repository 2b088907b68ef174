"""Gradients where they are delicate: zeros, masks, NaN, strides, half precision, several passes."""

from __future__ import annotations

import pytest
import torch

import sparsegen.torch as sgt
from sparsegen._table.maps import MAPS
from test_torch_cases import (
    CONTROLLED,
    HALVES,
    NAMES,
    PROJECTIONS,
    close,
    control_tensors,
    controls,
    scores,
    some_mask,
    torch_map,
)


def _eager(f, inputs, v, **how):
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    return torch.autograd.grad(f(*inputs), inputs, v, materialize_grads=True, **how)


def _twice_differentiable(f, inputs, v):
    return [g.detach() for g in _eager(f, inputs, v, create_graph=True)]


def _functional(f, inputs, v):
    return torch.func.vjp(f, *inputs)[1](v)


WAYS = {"eager": _eager, "create_graph": _twice_differentiable, "func": _functional}


@pytest.fixture(params=WAYS)
def grads(request):
    """Gradients of f(*inputs) along v, by each of the three ways the library has."""
    return WAYS[request.param]


def _with_controls(name, rows, **how):
    """The map as a function of scores and one control a row, and the controls."""
    keys = tuple(controls(name))
    given = list(control_tensors(name, (rows,)).values())
    return (lambda z, *c: torch_map(name)(z, **dict(zip(keys, c)), **how)), given


def _zero(*tensors):
    return all(torch.equal(t, torch.zeros_like(t)) for t in tensors)


@pytest.mark.parametrize("name", PROJECTIONS)
def test_one_hot_rows_have_no_gradient_at_all(name, grads):
    rest = 0.125 if name in ("sparsegen_log", "sum_normalization") else -1.0
    z = torch.tensor([[30.0, rest, rest, rest], [rest, rest, 40.0, rest]], dtype=torch.float64)
    f, given = _with_controls(name, 2)
    p = f(z, *given)
    assert torch.equal(p > 0, z > 1)
    close(p, (z > 1).double())
    assert _zero(*grads(f, [z, *given], scores("sparsemax", 2, 4)))


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_one_entry_have_no_gradient_at_all(name, grads):
    f, given = _with_controls(name, 3)
    z = scores(name, 3, 1)
    for g in grads(f, [z, *given], scores("sparsemax", 3, 1)):
        assert g.abs().max() < 1e-15


@pytest.mark.parametrize("name", NAMES)
def test_masked_entries_have_no_gradient(name, grads):
    z, mask = scores(name, 4, 6), some_mask(4, 6)
    f, given = _with_controls(name, 4, mask=mask)
    got = grads(f, [z, *given], scores("sparsemax", 4, 6, seed=1))
    assert _zero(got[0][~mask])
    assert name == "hardmax" or not _zero(got[0][mask])
    assert all(g.isfinite().all() for g in got)


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_and_minus_inf_have_the_same_gradients(name, grads):
    z, mask, v = scores(name, 4, 6), some_mask(4, 6), scores("sparsemax", 4, 6, seed=1)
    f, given = _with_controls(name, 4)
    g, _ = _with_controls(name, 4, mask=mask)
    hidden = z.masked_fill(~mask, -torch.inf)
    for by_value, by_mask in zip(grads(f, [hidden, *given], v), grads(g, [z, *given], v)):
        close(by_value, by_mask)


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e300])
@pytest.mark.parametrize("name", NAMES)
def test_what_stands_under_the_mask_does_not_reach_the_gradients(name, junk, grads):
    z, mask, v = scores(name, 4, 6), some_mask(4, 6), scores("sparsemax", 4, 6, seed=1)
    f, given = _with_controls(name, 4, mask=mask)
    dirty = z.masked_fill(~mask, junk)
    for with_junk, without in zip(grads(f, [dirty, *given], v), grads(f, [z, *given], v)):
        close(with_junk, without)


@pytest.mark.parametrize("name", NAMES)
def test_rows_with_nothing_to_choose_have_zero_gradients(name, grads):
    z, mask = scores(name, 3, 5), torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    z[2] = -torch.inf
    f, given = _with_controls(name, 3, mask=mask)
    for g in grads(f, [z, *given], scores("sparsemax", 3, 5, seed=1)):
        assert _zero(g[1:])
        assert g.isfinite().all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", NAMES)
def test_a_spoilt_row_leaves_the_gradients_of_the_others_alone(name, bad, grads):
    z, v = scores(name, 4, 5), scores("sparsemax", 4, 5, seed=1)
    f, given = _with_controls(name, 4)
    good = grads(f, [z, *given], v)
    spoilt = z.clone()
    spoilt[1, 2] = bad
    for g, want in zip(grads(f, [spoilt, *given], v), good):
        others = [0, 2, 3]
        close(g[others], want[others])


@pytest.mark.parametrize("name", [n for n in PROJECTIONS if n != "hardmax"])
def test_an_upstream_nan_outside_the_support_does_not_leak(name, grads):
    z, v = scores(name, 20, 6, seed=4), scores("sparsemax", 20, 6, seed=1)
    f, given = _with_controls(name, 20)
    outside = f(z, *given) == 0
    assert outside.any()
    clean = grads(f, [z, *given], v)
    for g, want in zip(grads(f, [z, *given], v.masked_fill(outside, torch.nan)), clean):
        close(g, want)


@pytest.mark.parametrize("shape", [(), (5,), (4, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_expanded_upstream_gradients_are_the_same_as_copied_ones(name, shape, grads):
    f, given = _with_controls(name, 4)
    z, v = scores(name, 4, 5), scores("sparsemax", *shape, seed=2).expand(4, 5)
    for g, want in zip(grads(f, [z, *given], v), grads(f, [z, *given], v.clone())):
        close(g, want)


@pytest.mark.parametrize("name", NAMES)
def test_the_sum_of_a_row_has_no_gradient(name, grads):
    f, given = _with_controls(name, 4)
    for g in grads(f, [scores(name, 4, 5), *given], torch.ones((), dtype=torch.float64).expand(4, 5)):
        assert g.abs().max() < 1e-14


LAYOUTS = {
    "transposed": lambda t: t.t().contiguous().t(),
    "every other column": lambda t: t.repeat_interleave(2, 1)[:, ::2],
    "every other row": lambda t: t.repeat_interleave(2, 0)[::2],
    "inside a larger tensor": lambda t: torch.nn.functional.pad(t, (1, 2, 3, 0))[3:, 1:-2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_strided_scores_and_upstreams_have_the_gradients_of_contiguous_ones(name, layout):
    z, v = scores(name, 4, 6), scores("sparsemax", 4, 6, seed=1)
    strided, upstream = LAYOUTS[layout](z), LAYOUTS[layout](v)
    assert not strided.is_contiguous()
    leaf = strided.detach().requires_grad_()
    torch_map(name)(leaf, **controls(name)).backward(upstream)
    (want,) = _eager(lambda z: torch_map(name)(z, **controls(name)), [z], v)
    close(leaf.grad, want)


@pytest.mark.parametrize("name", NAMES)
def test_an_expanded_row_receives_the_sum_of_its_copies_gradients(name):
    row, v = scores(name, 6).requires_grad_(), scores("sparsemax", 4, 6, seed=1)
    torch_map(name)(row.expand(4, 6), **controls(name)).backward(v)
    (want,) = _eager(lambda z: torch_map(name)(z, **controls(name)), [row.detach().repeat(4, 1)], v)
    close(row.grad, want.sum(0))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_gradients_are_those_of_float32_rounded(name, dtype, grads):
    z, v = scores(name, 5, 6, dtype=dtype), scores("sparsemax", 5, 6, seed=1, dtype=dtype)
    f, given = _with_controls(name, 5)
    half, single = grads(f, [z, *given], v), grads(f, [z.float(), *given], v.float())
    assert half[0].dtype == dtype
    for g, want in zip(half, single):
        size = float(want.abs().max()) + 1.0
        close(g.double() / size, want.double() / size, dtype, scale=4)


def test_a_probability_too_small_for_float16_still_belongs_to_the_support(grads):
    z = torch.zeros(1001)
    z[-1] = -1.0  # its probability is 1e-8, below half the smallest float16
    v = (z < 0).float()
    (single,) = grads(lambda z: sgt.sparsegen_lin(z, lam=1 - 1000.01), [z], v)
    (half,) = grads(lambda z: sgt.sparsegen_lin(z, lam=1 - 1000.01), [z.half()], v.half())
    assert single[-1] > 9e-4
    close(half[-1].double() * 1000, single[-1].double() * 1000, torch.float16, scale=2)


@pytest.mark.parametrize("name", CONTROLLED)
def test_a_control_shared_by_rows_receives_the_sum_of_their_gradients(name, grads):
    key, *_ = controls(name)
    z, v = scores(name, 2, 3, 4, 6), scores("sparsemax", 2, 3, 4, 6, seed=1)
    heads, *_ = control_tensors(name, (3, 1)).values()
    (shared,) = grads(lambda c: torch_map(name)(z, **{key: c}), [heads], v)
    (each,) = grads(lambda c: torch_map(name)(z, **{key: c}), [heads.expand(2, 3, 4).clone()], v)
    assert shared.shape == (3, 1)
    close(shared, each.sum((0, 2))[:, None])
    (one,) = grads(lambda c: torch_map(name)(z, **{key: c}), [heads[0, 0]], v)
    (each,) = grads(lambda c: torch_map(name)(z, **{key: c}), [heads[0, 0].expand(2, 3, 4).clone()], v)
    assert one.shape == ()
    close(one, each.sum(), scale=64)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_zero_probability_entries_of_the_hourglass_receive_the_closed_form(sign, grads):
    z = torch.tensor([2.0, 1.8, -1.0, 0.5], dtype=torch.float64) + (-2.0 if sign < 0 else 0.0)
    v, q = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    p = sgt.sparsehourglass(z, q=q)
    assert (p > 0).tolist() == [True, True, False, False]
    w = torch.where(p > 0, v - v[:2].mean(), 0.0)
    total = z.sum().abs() + 4 * q
    want = (1 + 4 * q) / total * w - z.sum().sign() * (w @ p) / total
    got, _ = grads(lambda z, q: sgt.sparsehourglass(z, q=q), [z, q], v)
    assert (want[2:] != 0).all()
    close(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", CONTROLLED)
def test_each_gradient_has_the_dtype_and_shape_of_what_it_belongs_to(name, dtype, grads):
    (key, value), *_ = controls(name).items()
    z, control = scores(name, 2, 3, dtype=dtype), torch.full((2,), value, dtype=torch.float32)
    got = grads(lambda z, c: torch_map(name)(z, **{key: c}), [z, control], torch.ones(2, 3, dtype=dtype))
    assert [(g.dtype, g.shape) for g in got] == [(dtype, z.shape), (torch.float32, control.shape)]


@pytest.mark.parametrize("name", CONTROLLED)
def test_only_the_control_may_want_a_gradient(name):
    (key, value), *_ = controls(name).items()
    control = torch.tensor(value, requires_grad=True)
    z = scores(name, 30, 5)
    torch_map(name)(z, **{key: control}).square().sum().backward()
    assert control.grad.isfinite()
    assert control.grad != 0
    assert z.grad is None


@pytest.mark.parametrize("name", NAMES)
def test_two_backward_passes_add_up(name):
    z, v = scores(name, 3, 5).requires_grad_(), scores("sparsemax", 3, 5, seed=1)
    p = torch_map(name)(z, **controls(name))
    p.backward(v, retain_graph=True)
    once = z.grad.clone()
    p.backward(v)
    close(z.grad, 2 * once)
    if MAPS[name].radius.of != "sum":
        with pytest.raises(RuntimeError, match="second time"):
            p.backward(v)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "hardmax"])
def test_the_gradient_of_a_gradient_norm_exists_and_is_right(name):
    z = scores(name, 2, 5).requires_grad_()

    def norm(z):
        value = torch_map(name)(z, **controls(name)).square().sum()
        (g,) = torch.autograd.grad(value, z, create_graph=True)
        return (g * g).sum()

    (got,) = torch.autograd.grad(norm(z), z)
    for at, h in ((0, 1e-6), (4, 1e-6)):
        step = torch.zeros_like(z)
        step[1, at] = h
        beside = (norm(z + step) - norm(z - step)) / (2 * h)
        torch.testing.assert_close(got[1, at], beside.detach(), rtol=1e-5, atol=1e-6)


def test_a_result_changed_in_place_is_refused_by_backward():
    p = sgt.sparsemax(scores("sparsemax", 2, 5).requires_grad_())
    p.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        p.sum().backward()


def test_no_grad_gives_the_same_values_and_no_graph():
    z = scores("sparsemax", 3, 5).requires_grad_()
    for name in NAMES:
        own = scores(name, 3, 5).requires_grad_()
        with torch.no_grad():
            p = torch_map(name)(own, **controls(name))
        assert not p.requires_grad
        assert torch.equal(p, torch_map(name)(own, **controls(name)).detach())
    with torch.inference_mode():
        assert torch.equal(sgt.sparsemax(z), sgt.sparsemax(z.detach()))


@pytest.mark.parametrize(("name", "low"), [("sparsegen_exp", -800.0), ("sparsegen_sq", 1e-160)])
def test_a_control_has_a_gradient_where_the_unit_is_infinite(name, low, grads):
    z = torch.full((2, 3), low, dtype=torch.float64)
    lam = torch.tensor([0.25, -1.0], dtype=torch.float64)

    def f(z, lam):
        return torch_map(name)(z, lam=lam)

    assert torch.equal(f(z, lam), torch.full((2, 3), 1 / 3, dtype=torch.float64))
    assert _zero(*grads(f, [z, lam], scores("sparsemax", 2, 3)))


def test_the_gradient_of_a_mean_radius_in_halves_is_rounded_once():
    z = torch.tensor([[2.0027e-05, 5.96e-08]], dtype=torch.float16, requires_grad=True)
    v = torch.tensor([[3.037, -2.273]], dtype=torch.float16)
    (half,) = torch.autograd.grad(sgt.sum_normalization_plus(z), z, v)
    wide = z.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(sgt.sum_normalization_plus(wide), wide, v.double())
    fits = want.abs() < 6e4
    assert fits.any()
    torch.testing.assert_close(half[fits], want[fits].half(), rtol=2e-2, atol=0)
