"""Every map of the table gives in torch what it gives in NumPy, and what the oracle and the peers give."""

from __future__ import annotations

import entmax
import numpy as np
import pytest
import torch

import oracle
import sparsegen as sg
import sparsegen.torch as sgt
from sparsegen._table.maps import MAPS
from test_torch_cases import (
    CONTROLLED,
    DTYPES,
    HALVES,
    NAMES,
    PROJECTIONS,
    as_numpy,
    close,
    control_tensors,
    controls,
    numpy_map,
    scores,
    some_mask,
    torch_map,
)

SINGLE_AND_DOUBLE = (torch.float64, torch.float32)


def _same(name, z, dim=-1, mask=None, given=None):
    """Torch and NumPy agree on these scores, this mask and these controls."""
    given = controls(name) if given is None else given
    hidden = None if mask is None else mask.numpy()
    expected = numpy_map(name)(z.numpy(), axis=dim, mask=hidden, **as_numpy(given))
    got = torch_map(name)(z, dim=dim, mask=mask, **given)
    assert got.dtype == z.dtype
    assert got.shape == z.shape
    close(got, expected, z.dtype)


@pytest.mark.parametrize("dtype", SINGLE_AND_DOUBLE)
@pytest.mark.parametrize("name", NAMES)
def test_torch_and_numpy_give_the_same_numbers(name, dtype):
    for k in (1, 2, 3, 7, 33, 200):
        _same(name, scores(name, 9, k, dtype=dtype))


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("name", NAMES)
def test_any_dim_gives_what_numpy_gives_along_that_axis(name, dim):
    _same(name, scores(name, 4, 5, 6), dim=dim)
    _same(name, scores(name, 4, 5, 6), dim=dim, mask=some_mask(4, 5, 6).movedim(-1, dim).reshape(4, 5, 6))


@pytest.mark.parametrize("shape", [(6,), (1, 6), (5, 1), (1, 5, 6), (4, 1, 6), (4, 5, 6)])
@pytest.mark.parametrize("name", NAMES)
def test_masks_broadcast_as_in_numpy(name, shape):
    _same(name, scores(name, 4, 5, 6), mask=some_mask(*shape))


@pytest.mark.parametrize("shape", [(), (5,), (5, 1), (3, 5, 1), (3, 1, 1), (3, 5, 4)])
@pytest.mark.parametrize("name", CONTROLLED)
def test_controls_as_tensors_broadcast_as_in_numpy(name, shape):
    if shape == (5,):
        _same(name, scores(name, 5, 6), given=control_tensors(name, shape))
    else:
        _same(name, scores(name, 3, 5, 4, 6), given=control_tensors(name, shape))


@pytest.mark.parametrize("name", CONTROLLED)
def test_a_control_per_head_is_that_head_with_its_own_number(name):
    z, given = scores(name, 2, 3, 4, 6), control_tensors(name, (3, 1))
    together = torch_map(name)(z, **given)
    for head in range(3):
        own = {key: float(value[head, 0]) for key, value in given.items()}
        close(together[:, head], torch_map(name)(z[:, head], **own))


@pytest.mark.parametrize("name", CONTROLLED)
def test_a_number_and_a_tensor_of_no_axes_are_the_same_control(name):
    z = scores(name, 9, 6)
    given = {key: torch.tensor(value, dtype=torch.float64) for key, value in controls(name).items()}
    assert torch.equal(torch_map(name)(z, **given), torch_map(name)(z, **controls(name)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONTROLLED)
def test_the_result_has_the_dtype_of_the_scores_whatever_that_of_the_control(name, dtype):
    for of_control in DTYPES:
        exact = {key: 1.5 if key == "alpha" else 0.5 for key in controls(name)}
        given = {key: torch.full((4,), value, dtype=of_control) for key, value in exact.items()}
        p = torch_map(name)(scores(name, 4, 6, dtype=dtype), **given)
        assert p.dtype == dtype
        assert torch.equal(p, torch_map(name)(scores(name, 4, 6, dtype=dtype), **exact))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("k", [3, 40, 500])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_float32_rounded_once(name, k, dtype):
    z = scores(name, 20, k, dtype=dtype)
    expected = torch_map(name)(z.float(), **controls(name)).to(dtype)
    assert torch.equal(torch_map(name)(z, **controls(name)), expected)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_with_mask_dim_and_control_tensor_is_float32_rounded_once(name, dtype):
    z, mask = scores(name, 5, 7, 4, dtype=dtype), some_mask(7, 4)
    given = control_tensors(name, (5, 4))
    expected = torch_map(name)(z.float(), dim=1, mask=mask, **given).to(dtype)
    assert torch.equal(torch_map(name)(z, dim=1, mask=mask, **given), expected)


@pytest.mark.parametrize("name", NAMES)
def test_float16_is_the_same_in_numpy(name):
    z = scores(name, 20, 9, dtype=torch.float16)
    close(torch_map(name)(z, **controls(name)), numpy_map(name)(z.numpy(), **controls(name)), torch.float16, scale=1)


@pytest.mark.parametrize("name", NAMES)
def test_float64_agrees_with_the_oracle(name):
    z, given = scores(name, 12, 6), control_tensors(name, (12,))
    close(torch_map(name)(z, **given), oracle.apply(name, z.numpy(), **as_numpy(given)))


@pytest.mark.parametrize("name", NAMES)
def test_masked_float64_agrees_with_the_oracle(name):
    z, mask = scores(name, 4, 6, 3, seed=5), some_mask(4, 6, 3)
    expected = oracle.apply(name, z.numpy(), mask=mask.numpy(), axis=1, **controls(name))
    close(torch_map(name)(z, dim=1, mask=mask, **controls(name)), expected)


@pytest.mark.parametrize("name", PROJECTIONS)
def test_long_rows_agree_with_the_oracle(name):
    z = scores(name, 2, 300, seed=2)
    close(torch_map(name)(z, **controls(name)), oracle.apply(name, z.numpy(), **controls(name)), scale=200)


def _info_is_numpys(name, z, mask=None, **given):
    expected, found = numpy_map(name)(
        z.numpy(), mask=None if mask is None else mask.numpy(), return_info=True, **as_numpy(given)
    )
    p, info = torch_map(name)(z, mask=mask, return_info=True, **given)
    close(p, expected, z.dtype)
    assert isinstance(info, sgt.Info)
    assert info.support_size.dtype == torch.int64
    assert info.threshold.dtype == torch.float64
    assert np.array_equal(info.support_size.numpy(), found.support_size)
    torch.testing.assert_close(
        info.threshold, torch.as_tensor(found.threshold), rtol=1e-6, atol=1e-6, equal_nan=True
    )  # read off p, so as exact as p


@pytest.mark.parametrize("dtype", SINGLE_AND_DOUBLE)
@pytest.mark.parametrize("name", NAMES)
def test_info_is_the_one_of_numpy(name, dtype):
    z = scores(name, 6, 8, dtype=dtype)
    _info_is_numpys(name, z, **controls(name))
    _info_is_numpys(name, z, mask=some_mask(6, 8), **control_tensors(name, (6,)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", NAMES)
def test_info_at_the_edges_is_the_one_of_numpy(name, dtype):
    z = scores(name, 5, 8, dtype=dtype)
    z[1, 2], z[2, 3], z[3] = torch.nan, torch.inf, -torch.inf
    _info_is_numpys(name, z, **controls(name))


@pytest.mark.parametrize("radius", [0.0, 0.5, 2.0, float("inf")])
def test_info_of_project_is_the_one_of_numpy(radius):
    _info_is_numpys("project", scores("sparsemax", 6, 8), radius=radius)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_threshold_separates_the_support(dtype):
    z = scores("sparsemax", 30, 20, dtype=dtype)
    p, info = sgt.sparsegen_lin(z, lam=0.5, return_info=True)
    assert torch.equal(z.double() > info.threshold[:, None], p > 0)
    assert torch.equal((p > 0).sum(-1), info.support_size)


def test_info_carries_no_gradient_and_the_result_does():
    z, lam = scores("sparsemax", 3, 4).requires_grad_(), torch.tensor(0.5, requires_grad=True)
    p, info = sgt.sparsegen_exp(z, lam=lam, return_info=True)
    assert p.requires_grad
    assert not info.support_size.requires_grad
    assert not info.threshold.requires_grad


@pytest.mark.parametrize("k", [1, 2, 5, 64, 1000])
def test_sparsemax_is_entmaxs_sparsemax(k):
    z = scores("sparsemax", 20, k)
    close(sgt.sparsemax(z), entmax.sparsemax(z, dim=-1), scale=64)
    close(sgt.sparsemax(z, dim=0), entmax.sparsemax(z, dim=0), scale=64)


def test_the_gradient_of_sparsemax_is_entmaxs():
    z, v = scores("sparsemax", 20, 50), scores("sparsemax", 20, 50, seed=1)
    ours, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    sgt.sparsemax(ours).backward(v)
    entmax.sparsemax(theirs, dim=-1).backward(v)
    close(ours.grad, theirs.grad, scale=64)


@pytest.mark.parametrize("dtype", SINGLE_AND_DOUBLE)
@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
def test_softmax_is_torchs_softmax(temperature, dtype):
    z = scores("softmax", 20, 50, dtype=dtype)
    close(sgt.softmax(z, temperature=temperature), torch.softmax(z / temperature, -1), dtype)
    close(sgt.softmax(z, dim=0), torch.softmax(z, 0), dtype)


@pytest.mark.parametrize("transform", ["lin", "exp", "sq", "log"])
def test_sparsegen_by_name_is_the_named_map(transform):
    name = f"sparsegen_{transform}"
    z, lam = scores(name, 4, 3, 6), torch.linspace(-1, 0.5, 4, dtype=torch.float64)[:, None]
    got = sgt.sparsegen(z, lam=lam, transform=transform, mask=some_mask(3, 6))
    assert torch.equal(got, torch_map(name)(z, lam=lam, mask=some_mask(3, 6)))


def test_sparsegen_with_a_callable_is_sparsemax_of_what_it_returns():
    z, mask = scores("sparsemax", 4, 6), some_mask(4, 6)
    got = sgt.sparsegen(z, lam=0.5, transform=torch.tanh, mask=mask)
    close(got, sgt.sparsegen_lin(torch.tanh(z), lam=0.5, mask=mask))
    close(got, sg.sparsegen(z.numpy(), lam=0.5, transform=np.tanh, mask=mask.numpy()))


@pytest.mark.parametrize("dtype", SINGLE_AND_DOUBLE)
def test_rows_sum_to_one_within_four_eps(dtype):
    for name in NAMES:
        total = torch_map(name)(scores(name, 50, 300, dtype=dtype), **controls(name)).double().sum(-1)
        assert (total - 1).abs().max() <= 4 * torch.finfo(dtype).eps, name


def test_results_are_contiguous_and_new():
    z = torch.tensor([[1.0]])
    for name in NAMES:
        p = torch_map(name)(z, **controls(name))
        assert p.is_contiguous()
        assert p.data_ptr() != z.data_ptr(), name


@pytest.mark.parametrize("name", MAPS)
def test_what_is_said_of_the_support_has_no_gradient(name):
    given = {"lam": 0.25, "q": 0.5, "temperature": 0.75, "alpha": 1.25}
    controls = {key: torch.tensor(given[key], requires_grad=True) for key in MAPS[name].controls}
    p, info = getattr(sgt, name)(torch.rand(3, 5).add(0.1).requires_grad_(), return_info=True, **controls)
    assert p.requires_grad
    assert not any(t.requires_grad for t in info)
