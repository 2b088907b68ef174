"""The sort path, which other devices use, against the kernel and the oracle, at every edge."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import oracle
from sparsegen.torch import _cpu, _operators, _plain
from test_torch_cases import DTYPES, close, scores, some_mask

NAN, INF = math.nan, math.inf
RADII = (0.0, 1e-3, 0.5, 1.0, 7.0, 1e3, INF)


def _radius(value) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def _both(x, radius, dim=-1, mask=None, scale=16.0):
    """The two paths agree; return what the sort path gives."""
    got = _plain.project(x, _radius(radius), dim, mask)
    want = _cpu.project(x, _radius(radius), dim, mask)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    close(got, want, x.dtype, scale=scale)
    return got


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 2, 7, 300])
def test_sorting_gives_what_the_kernel_gives(k, dtype, radius):
    _both(scores("sparsemax", 20, k, dtype=dtype), radius, scale=64)


@pytest.mark.parametrize("radius", RADII)
def test_sorting_gives_what_the_oracle_gives(radius):
    x = scores("sparsemax", 10, 6)
    got = _plain.project(x, _radius(radius), -1, None)
    want = [[float(v) for v in oracle.project_exact(row.tolist(), radius)[0]] for row in x]
    close(got, torch.tensor(want, dtype=torch.float64))


def test_sorting_long_rows_gives_what_the_oracle_gives():
    x = scores("sparsemax", 3, 2000)
    for radius in (0.5, 5.0, 500.0):
        got = _plain.project(x, _radius(radius), -1, None)
        close(got, torch.as_tensor(oracle.project_bisect(x.numpy(), radius)), scale=64)


@pytest.mark.parametrize("dim", [-1, -2, -3])
@pytest.mark.parametrize("masked", [False, True])
def test_any_dim_mask_and_radius_a_row_are_as_in_the_kernel(dim, masked):
    x = scores("sparsemax", 3, 4, 5)
    lead = _cpu.lead_shape(x, dim)
    radius = 0.25 + torch.rand(lead, generator=torch.Generator().manual_seed(0))
    _both(x, radius, dim, some_mask(3, 4, 5) if masked else None)
    _both(x, radius[:1], dim, some_mask(4, 5) if masked else None)


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_inf_spoil_their_row_only(dtype, bad):
    x = scores("sparsemax", 4, 5, dtype=dtype)
    x[1, 2] = bad
    p = _both(x, 0.5)
    assert p.isnan().all(-1).tolist() == [False, True, False, False]


@pytest.mark.parametrize("radius", RADII)
def test_hidden_entries_and_empty_rows_get_zeros(radius):
    x = scores("sparsemax", 4, 5)
    x[0, 1], x[1] = -INF, -INF
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[2] = False
    p = _both(x, radius, mask=mask)
    assert (p[0, 1], p[1].sum(), p[2].sum()) == (0, 0, 0)


def test_a_radius_out_of_range_spoils_its_row_only():
    p = _both(scores("sparsemax", 4, 5), torch.tensor([1.0, -1.0, NAN, 0.5]))
    assert p.isnan().all(-1).tolist() == [False, True, True, False]


@pytest.mark.parametrize("size", [1e30, 1e-30, 1e8, 1e300])
def test_huge_and_tiny_points_are_as_in_the_kernel(size):
    x = scores("sparsemax", 6, 5) * size
    _both(x, 1.0)
    _both(torch.tensor([[1.0, 1.0, 0.5], [1.0, 1.0, 1.0]], dtype=torch.float64) * size, 1.0)


def test_an_offset_does_not_matter():
    x = (torch.randint(0, 64, (6, 9), generator=torch.Generator().manual_seed(0)) / 64).double()
    for offset in (0.0, 1e8, 2.0**45):
        close(_plain.project(x + offset, _radius(1.0), -1, None), oracle.project_bisect(x.numpy(), 1.0))


def test_ties_share_equally():
    x = torch.tensor([[2.0, 0.5, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
    for radius in RADII:
        p = _both(x, radius)
        assert p[0, 0] == p[0, 2] == p[0, 3]
        assert (p[1] == 0.25).all()


def test_one_entry_gets_everything_and_an_entry_at_the_threshold_nothing():
    assert _both(torch.tensor([[3.0], [-2.0]]), 0.5).tolist() == [[1.0], [1.0]]
    assert _both(torch.tensor([1.0, 0.0]), 1.0).tolist() == [1.0, 0.0]


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.floats(-1e3, 1e3)),
    st.sampled_from(RADII),
)
def test_any_points_are_projected_as_by_the_kernel(x, radius):
    # Points far above the radius cancel: both paths shift by the maximum and are exact to its last digit.
    scale = 64 * (1 + float(np.ptp(x)) / radius) if 0 < radius < INF else 64
    _both(torch.from_numpy(x), radius, scale=scale)


@pytest.mark.parametrize("masked", [False, True])
def test_row_means_count_what_may_be_chosen(masked):
    x = scores("sparsemax", 4, 5, 6)
    x[0, 0] = -INF
    x[1, 2, 3] = -INF
    mask = some_mask(5, 6) if masked else None
    open_ = (x > -INF) & (mask if masked else True)
    for dim in (-1, -2, -3):
        mean, count = _plain.row_means(x, dim, mask)
        close(count, open_.sum(dim))
        close(mean, x.masked_fill(~open_, 0.0).sum(dim) / open_.sum(dim).clamp(min=1))


def _both_vjps(p, v, radius, dtype):
    size = max(1.0, 1 / radius) if radius else 1.0
    plain = _plain.vjp(p, v, _radius(radius), -1)
    kernel = _cpu.project_vjp(p, v, _radius(radius), -1, True)
    for got, want in zip(plain, kernel):
        close(got.double() / size, want.double() / size, dtype, scale=32)


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_plain_vjp_is_the_kernels(dtype, radius):
    p = _cpu.project(scores("sparsemax", 6, 9, dtype=dtype), _radius(radius), -1, None)
    _both_vjps(p, scores("sparsemax", 6, 9, dtype=dtype, seed=1), radius, dtype)


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_plain_vjp_of_a_nan_row_is_the_kernels(dtype, radius):
    p = _cpu.project(scores("sparsemax", 6, 9, dtype=dtype), _radius(radius), -1, None)
    p[1] = NAN
    _both_vjps(p, scores("sparsemax", 6, 9, dtype=dtype, seed=1), radius, dtype)


class _Elsewhere(torch.Tensor):
    """A tensor that says it is not on the CPU, to send operators down the path of other devices."""

    is_cpu = False


def test_the_operators_take_the_sort_path_where_the_kernel_cannot_go(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the kernel was called")

    monkeypatch.setattr(_cpu, "project", refuse)
    x = scores("sparsemax", 3, 5)
    with pytest.raises(AssertionError, match="the kernel was called"):
        _operators.project_op(x, _radius(1.0), -1, None)
    taken = _operators.project_op._init_fn(x.as_subclass(_Elsewhere), _radius(1.0), -1, None)
    close(torch.Tensor(taken), oracle.project_bisect(x.numpy(), 1.0))
