"""The contract at the edges, line by line, through torch; NumPy's answers where NumPy has one."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

import sparsegen.torch as sgt
from sparsegen._table.maps import MAPS
from test_torch_cases import (
    CONTROLLED,
    DTYPES,
    NAMES,
    PROJECTIONS,
    close,
    control_tensors,
    controls,
    numpy_map,
    scores,
    some_mask,
    torch_map,
)

NAN, INF = math.nan, math.inf


def _as_numpy(name, z, mask=None, dim=-1):
    hidden = None if mask is None else mask.numpy()
    want = numpy_map(name)(z.numpy(), axis=dim, mask=hidden, **controls(name))
    got = torch_map(name)(z, dim=dim, mask=mask, **controls(name))
    assert (got.dtype, got.shape) == (z.dtype, z.shape)
    close(got, want, z.dtype)
    return got


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 3, 0)])
@pytest.mark.parametrize("name", NAMES)
def test_no_entries_give_an_empty_result_and_gradient(name, shape):
    z = torch.empty(shape, requires_grad=True)
    p = torch_map(name)(z, **controls(name))
    assert p.shape == shape
    p.sum().backward()
    assert z.grad.shape == shape
    assert torch_map(name)(z, mask=torch.ones(shape, dtype=torch.bool), **controls(name)).shape == shape


@pytest.mark.parametrize("name", NAMES)
def test_no_entries_work_in_every_way_torch_differentiates(name):
    z = torch.empty(3, 0, dtype=torch.float64)

    def f(z):
        return torch_map(name)(z, **controls(name))

    assert torch.func.vmap(f)(z).shape == (3, 0)
    assert torch.func.vjp(f, z)[1](z)[0].shape == (3, 0)
    leaf = z.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(leaf).sum(), leaf, create_graph=True, materialize_grads=True)
    assert g.shape == (3, 0)


@pytest.mark.parametrize("name", NAMES)
def test_no_entries_have_the_info_of_numpy(name):
    _, info = torch_map(name)(torch.empty(3, 0), **controls(name), return_info=True)
    _, want = numpy_map(name)(torch.empty(3, 0).numpy(), **controls(name), return_info=True)
    assert torch.equal(info.support_size, torch.as_tensor(want.support_size))
    close(info.threshold, want.threshold)


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (0, 0)])
@pytest.mark.parametrize("name", NAMES)
def test_no_rows_give_an_empty_result_and_gradient(name, shape):
    z = torch.empty(shape, requires_grad=True)
    p = torch_map(name)(z, **controls(name))
    assert p.shape == shape
    p.sum().backward()
    assert z.grad.shape == shape


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_one_entry_gets_everything(name, dtype):
    p = torch_map(name)(scores(name, 5, 1, dtype=dtype), **controls(name))
    close(p, torch.ones(5, 1), dtype, scale=4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [1e30, 1e-30, 1e8, 1e4])
@pytest.mark.parametrize("name", NAMES)
def test_huge_and_tiny_scores_are_as_in_numpy(name, size, dtype):
    z = scores(name, 6, 5, dtype=dtype) * size
    p = _as_numpy(name, z)
    close(p.double().sum(-1), torch.ones(6), dtype, scale=4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", NAMES)
def test_an_offset_of_1e8_is_as_in_numpy(name, dtype):
    p = _as_numpy(name, scores(name, 6, 5, dtype=dtype) * 100 + 1e8)
    close(p.double().sum(-1), torch.ones(6), dtype, scale=4)


@pytest.mark.parametrize("size", [1e30, 1e-30, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_huge_and_tiny_scores_are_finite(name, size):
    z = (scores(name, 6, 5) * size).requires_grad_()
    torch_map(name)(z, **controls(name)).square().sum().backward()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_ties_share_equally(name):
    z = torch.tensor([[2.0, 0.5, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0]])
    p = _as_numpy(name, z)
    assert p[0, 0] == p[0, 2] == p[0, 3]
    assert torch.equal(p[1], torch.full((4,), 0.25))


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_nan_and_inf_spoil_their_row_only(name, dtype, bad):
    z = scores(name, 4, 5, dtype=dtype)
    want = torch_map(name)(z, **controls(name))
    z[2, 3] = bad
    p = torch_map(name)(z, **controls(name))
    assert p[2].isnan().all()
    assert torch.equal(p[[0, 1, 3]], want[[0, 1, 3]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_minus_inf_is_the_mask(name, dtype):
    z, mask = scores(name, 4, 5, dtype=dtype), some_mask(4, 5)
    mask[1] = False
    by_value = torch_map(name)(z.masked_fill(~mask, -INF), **controls(name))
    assert torch.equal(by_value, torch_map(name)(z, mask=mask, **controls(name)))
    assert torch.equal(by_value[1], torch.zeros(5, dtype=dtype))
    assert (by_value[~mask] == 0).all()


@pytest.mark.parametrize("shape", [(2, 1, 1, 5), (1, 3, 1, 5), (4, 5), (1,), (2, 1, 4, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_attention_masks_broadcast(name, shape):
    z, mask = scores(name, 2, 3, 4, 5), some_mask(*shape)
    got = torch_map(name)(z, mask=mask, **controls(name))
    assert torch.equal(got, torch_map(name)(z, mask=mask.expand(2, 3, 4, 5).contiguous(), **controls(name)))


LAYOUTS = {
    "transposed": lambda z: z.transpose(0, 1).contiguous().transpose(0, 1),
    "permuted": lambda z: z.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "every other": lambda z: z.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda z: z[:1].expand(3, -1, -1),
    "channels last": lambda z: z[None].contiguous(memory_format=torch.channels_last)[0],
    "offset": lambda z: torch.cat([z.flatten()[:1], z.flatten()])[1:].view_as(z),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_strides_do_not_matter(name, layout):
    z = LAYOUTS[layout](scores(name, 3, 4, 5, dtype=torch.float32))
    for dim in (0, 1, 2):
        got = torch_map(name)(z, dim=dim, **controls(name))
        copied = z.clone(memory_format=torch.contiguous_format)
        assert torch.equal(got, torch_map(name)(copied, dim=dim, **controls(name)))


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_never_written_by_a_plain_call(name):
    for shape in ((5,), (4, 5), (2, 300), (200, 7)):
        z = scores(name, *shape)
        torch_map(name)(z, **controls(name))
        torch_map(name)(z, dim=0, **controls(name))
        assert torch.equal(z, scores(name, *shape))


@pytest.mark.parametrize("name", NAMES)
def test_the_callers_tensors_are_never_written(name):
    given = control_tensors(name, (4,))
    tensors = [scores(name, 4, 5), some_mask(4, 5), *given.values()]
    before = [(t.clone(), t._version) for t in tensors]
    z = tensors[0].requires_grad_()
    p = torch_map(name)(z, mask=tensors[1], **given)
    v = scores("sparsemax", 4, 5, seed=1)
    p.backward(v)
    for t, (copy, version) in zip(tensors, before):
        assert torch.equal(t.detach(), copy)
        assert t._version == version
    assert torch.equal(v, scores("sparsemax", 4, 5, seed=1))


BAD_CONTROLS = {
    "lam": (1.0, 1.5, INF, NAN),
    "q": (-0.5, -INF, NAN),
    "temperature": (0.0, -1.0, NAN),
    "alpha": (0.5, INF, NAN),
}


@pytest.mark.parametrize("name", CONTROLLED)
def test_control_tensors_out_of_range_give_nan_rows_and_leave_the_others(name):
    (key, value), *_ = controls(name).items()
    for bad in BAD_CONTROLS[key]:
        row = torch.tensor([value, bad, value], dtype=torch.float64)
        p = torch_map(name)(scores(name, 3, 5), **{**controls(name), key: row})
        assert p[1].isnan().all(), bad
        close(p[[0, 2]], torch_map(name)(scores(name, 3, 5), **controls(name))[[0, 2]])


def test_a_radius_tensor_below_zero_gives_a_nan_row():
    p = sgt.project(torch.tensor([[1.0, 0.5]] * 3), torch.tensor([1.0, -1.0, NAN]))
    assert p.isnan().all(-1).tolist() == [False, True, True]


OUTSIDE = {
    "sparsecone": [-2.0, -1.0, -1.0],
    "sparsegen_log": [1.0, 0.0, 2.0],
    "sum_normalization": [1.0, -0.5, 2.0],
    "spherical_softmax": [0.0, 0.0, 0.0],
}


def test_every_map_with_a_domain_has_a_row_outside_it_here():
    assert set(OUTSIDE) == {name for name in NAMES if MAPS[name].domain}


WAYS = {
    "eager": lambda f, z: f(z),
    "func": lambda f, z: torch.func.vjp(f, z)[0],
    "vmap": lambda f, z: torch.func.vmap(f)(z),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OUTSIDE)
def test_rows_outside_the_domain_are_nan_and_leave_the_others(name, way):
    def f(z):
        return torch_map(name)(z, **controls(name))

    z = scores(name, 3, 3)
    want = f(z)
    z[1] = torch.tensor(OUTSIDE[name])
    p = WAYS[way](f, z)
    assert p[1].isnan().all()
    close(p[[0, 2]], want[[0, 2]])


@pytest.mark.parametrize(("name", "row"), [("sum_normalization", [0.0, 0.0]), ("sparsegen_log", [-1.0, 1.0])])
def test_other_rows_outside_the_domain_are_nan_too(name, row):
    assert torch_map(name)(torch.tensor(row)).isnan().all()


@pytest.mark.parametrize("way", WAYS)
def test_the_edge_of_the_cone_is_outside_and_masked_entries_do_not_count(way):
    z = torch.tensor([[-1.5, -0.5], [-1.5, -0.4]], dtype=torch.float64)
    assert WAYS[way](lambda z: sgt.sparsecone(z, q=1.0), z).isnan().all(-1).tolist() == [True, False]
    assert sgt.sparsecone(z, q=1.0, mask=torch.tensor([False, True])).tolist() == [[0.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_row_outside_the_domain_but_under_the_mask_does_not_matter(name):
    z = torch.tensor([OUTSIDE[name], [1.0, 2.0, 3.0]], dtype=torch.float64)
    mask = torch.tensor([[False] * 3, [True] * 3])
    p = torch_map(name)(z, mask=mask, **controls(name))
    assert torch.equal(p[0], torch.zeros(3, dtype=torch.float64))
    assert p[1].isfinite().all()


@pytest.mark.parametrize("name", [n for n in PROJECTIONS if "lam" in MAPS[n].controls])
def test_lam_minus_infinity_is_uniform_with_zero_gradient(name):
    for lam in (-INF, torch.tensor(-INF, dtype=torch.float64)):
        z = scores(name, 2, 4).requires_grad_()
        p = torch_map(name)(z, lam=lam)
        assert torch.equal(p, torch.full((2, 4), 0.25, dtype=torch.float64))
        p[:, 0].sum().backward()
        assert torch.equal(z.grad, torch.zeros_like(z))


@pytest.mark.parametrize("name", ["sparsecone", "sparsehourglass"])
def test_q_infinity_is_sparsemax_with_its_gradient(name):
    for q in (INF, torch.tensor(INF, dtype=torch.float64)):
        z, other = scores(name, 2, 4).requires_grad_(), scores(name, 2, 4).requires_grad_()
        p = torch_map(name)(z, q=q)
        close(p, sgt.sparsemax(other))
        p[:, 0].sum().backward()
        sgt.sparsemax(other)[:, 0].sum().backward()
        close(z.grad, other.grad)


def test_a_sum_of_zero_with_q_zero_is_hardmax_with_zero_gradient():
    z = torch.tensor([[1.0, 1.0, -2.0], [0.0, 0.0, 0.0]], requires_grad=True)
    p = sgt.sum_normalization_plus(z)
    close(p, torch.tensor([[0.5, 0.5, 0.0], [1 / 3] * 3]), torch.float32)
    p[:, 0].sum().backward()
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_two_callers_transforms_on_hidden_entries_see_finite_numbers():
    seen = []
    sgt.sparsegen(torch.tensor([1.0, -INF, 3.0]), transform=lambda x: seen.append(x) or x)
    assert seen[0].tolist() == [1.0, 3.0, 3.0]


LOSSES = {"sparsemax_huber_loss": "lam", "sparsegen_hinge_loss": "lam", "sparsehourglass_hinge_loss": "q"}


def _by_control(f, key):
    return lambda z, c: f(z, **{key: c})


def _empty_calls():
    """Whatever has a control, as a function of scores and the control."""
    for name in CONTROLLED:
        key, *_ = controls(name)
        yield name, _by_control(torch_map(name), key)
        if not MAPS[name].domain:  # attention makes scores of its own
            attend = partial(sgt.sparse_attention, mapping=name)
            yield f"attention by {name}", _by_control(lambda z, f=attend, **c: f(z, z, z, **c), key)
    for name, key in LOSSES.items():
        loss = getattr(sgt, name)
        yield name, _by_control(lambda z, f=loss, **c: f(z, torch.zeros(z.shape), ignore_empty=True, **c), key)


EMPTY_CALLS = dict(_empty_calls())


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
@pytest.mark.parametrize("scores_learn", [False, True])
@pytest.mark.parametrize("name", EMPTY_CALLS)
def test_nothing_to_map_gives_a_control_the_gradient_zero(name, scores_learn, shape):
    f = EMPTY_CALLS[name]
    for start in (torch.tensor(0.25), torch.full(shape[:1], 0.25)):
        c, z = start.clone().requires_grad_(), torch.empty(shape, requires_grad=scores_learn)
        f(z, c).sum().backward()
        assert torch.equal(c.grad, torch.zeros_like(start))
        if scores_learn:
            assert torch.equal(z.grad, torch.empty(shape))
        again = torch.func.grad(lambda c: f(torch.empty(shape), c).sum())(start)
        assert torch.equal(again, torch.zeros_like(start))


def test_an_entry_that_cannot_move_has_no_gradient_however_steep_its_transform():
    z = torch.tensor([[4e-40]], requires_grad=True)  # 1/z is infinite in float32
    assert torch.equal(torch.autograd.grad(sgt.sparsegen_log(z, lam=-5000.0).sum(), z)[0], torch.zeros(1, 1))
    z = torch.tensor([[4e-40, 1.0]], requires_grad=True)
    grad = torch.autograd.grad(sgt.sparsegen_log(z, lam=-5000.0)[0, 0], z)[0]
    torch.testing.assert_close(grad, torch.tensor([[0.5 / 5001 / z[0, 0].item(), -0.5 / 5001]]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("per_row", [False, True])
def test_a_uniform_map_has_no_gradient_however_steep_its_transform(per_row):
    z = torch.tensor([[5e-324, 1.0, 2.0], [1e-310, 1e-3, 0.5]], dtype=torch.float64, requires_grad=True)
    lam = torch.full((2,), -torch.inf, dtype=torch.float64) if per_row else -torch.inf
    for f in (sgt.sparsegen_log, torch.compile(sgt.sparsegen_log, backend="aot_eager")):
        p = f(z, lam=lam)
        assert torch.equal(p, torch.full_like(p, 1 / 3))
        assert not torch.autograd.grad(p[:, 0].sum(), z)[0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_at_the_ends_of_the_range_are_numbers(dtype, engine):
    """0 times what overflows is 0: scores further apart than the largest number, hidden NaN upstream, a tiny sum."""
    most, tiny = torch.finfo(dtype).max, torch.finfo(dtype).tiny
    z = torch.tensor([[-0.8 * most, 0.5 * most]], dtype=dtype, requires_grad=True)
    temperature = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    found = torch.autograd.grad(sgt.softmax(z, temperature=temperature), (z, temperature), torch.ones_like(z) * 2)
    assert all((grad == 0).all() for grad in found)
    z = torch.tensor([[1.0, -math.inf, 1.0]], dtype=dtype, requires_grad=True)
    (grad,) = torch.autograd.grad(sgt.softmax(z), z, torch.tensor([[1.0, math.nan, 3.0]], dtype=dtype))
    assert grad.tolist() == [[-0.5, 0.0, 0.5]]
    z = torch.tensor([[tiny / 8]], dtype=dtype, requires_grad=True)
    (grad,) = torch.autograd.grad(sgt.sum_normalization(z), z, torch.ones_like(z))
    assert grad.tolist() == [[0.0]]
