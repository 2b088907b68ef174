"""The row kernels of GPUs beside bisection in float64: values, gradients, edges, layouts, in registers and streamed."""

import math

import numpy as np
import pytest
import torch

import oracle
from laws import assert_near, assert_on_simplex
from sparsegen.torch import _plain, _triton

INF, NAN = math.inf, math.nan
EPS = {torch.float64: 2.3e-16, torch.float32: 1.2e-7, torch.float16: 1e-3, torch.bfloat16: 8e-3}
DTYPES = list(EPS)


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def project(x, radius, device, dim=-1, mask=None):
    radius = torch.as_tensor(radius, dtype=torch.float64)
    hidden = None if mask is None else mask.to(device)
    return _triton.project(x.to(device), radius.to(device), dim, hidden).cpu()


def check(p, x, radius, mask=None):
    """Beside bisection, in units of the type that was computed in, and of the one that was stored."""
    z = x.double() if mask is None else torch.where(mask, x.double(), -INF)
    want = oracle.project_bisect(z.numpy(), np.asarray(radius))
    assert p.dtype == x.dtype
    eps = EPS[x.dtype]
    share = 1 / np.maximum((want > 0).sum(-1, keepdims=True), 1)
    wrong = abs(p.double().numpy() - want) > 2 * eps * (want + share)
    assert not wrong.any(), (p[wrong], want[wrong])
    np.testing.assert_array_equal(np.isnan(p.double().numpy()), np.isnan(want))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 10, 300])
@pytest.mark.parametrize("kind", ["one", "each"])
def test_rows_match_bisection(dtype, n, kind, length, device):
    x = (draw(3, n, seed=n) * 2 + 5).to(dtype)
    radius = 0.7 if kind == "one" else np.array([0.3, 1e-3, 40.0])
    check(project(x, radius, device), x, radius)


@pytest.mark.parametrize("spread", [1e-4, 1.0, 30.0])
def test_wide_and_narrow_supports_sum_to_one(spread, length, device):
    for dtype in (torch.float32, torch.float64):
        p = project((draw(3, 200) * spread).to(dtype), [0.5, 1.0, 200.0], device)
        assert_on_simplex(p.numpy())


def test_one_large_entry_and_many_at_the_threshold(length, device):
    """Sums of equal numbers round with one sign: the threshold needs its second number."""
    x = torch.full((2, 500), -0.9)
    x[:, 7] = 0.0
    x[1] += 3
    check(project(x, 1.0, device), x, 1.0)


def test_heavy_tails_keep_their_digits(length, device):
    """Where the radius is larger than the scores, nothing may be taken off them."""
    for dtype, last in ((torch.float32, 23), (torch.float64, 52)):
        x = (2.0 ** -torch.arange(last + 1, dtype=torch.float64)).to(dtype)[None]
        check(project(x, float(x.double().sum()), device), x, float(x.double().sum()))


@pytest.mark.parametrize("size", [1e30, 1e-30, 3e38, 1e-38])
def test_extreme_sizes(size, length, device):
    x = torch.tensor([[1.0, 0.5, -1.0, 0.25]]) * size
    radius = float(torch.tensor(size))
    torch.testing.assert_close(project(x, radius, device), torch.tensor([[0.75, 0.25, 0.0, 0.0]]))
    torch.testing.assert_close(project(x / size + 1e8, 1.0, device), torch.full((1, 4), 0.25))


def test_the_edges(length, device):
    x = torch.tensor(
        [[1.0, 2.0, -INF], [-INF] * 3, [1.0, NAN, 0.0], [INF, 0.0, 0.0], [3.0] * 3, [NAN] * 3, [NAN, -INF, -INF]]
    )
    want = [[0.0, 1.0, 0.0], [0.0] * 3, [NAN] * 3, [NAN] * 3, [1 / 3] * 3, [NAN] * 3, [NAN] * 3]
    torch.testing.assert_close(project(x, 1.0, device), torch.tensor(want), equal_nan=True)
    mask = torch.tensor([True, False, True])
    torch.testing.assert_close(project(x[2:3], 1.0, device, mask=mask), torch.tensor([[1.0, 0.0, 0.0]]))


def test_limits_of_the_radius(length, device):
    x = torch.tensor([[1.0, 1.0, 0.0, -INF]]).repeat(6, 1)
    x[4, 1], x[5, 0] = NAN, INF
    nan = [NAN] * 4
    want = [[0.5, 0.5, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3, 0.0], nan, nan, nan, nan]
    radius = torch.tensor([0.0, INF, -1.0, NAN, INF, 0.0])
    torch.testing.assert_close(project(x, radius, device), torch.tensor(want), equal_nan=True)


def test_radii_beyond_float32_give_the_uniform_row(length, device):
    x = torch.tensor([[1.0, -3e38, 3e38, -INF]])
    for radius in (1e49, 1e300):
        torch.testing.assert_close(project(x, radius, device), torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0.0]]))


def test_nothing_is_nothing(device):
    for shape in ((0, 5), (3, 0), (0,)):
        assert project(torch.empty(shape), 1.0, device).shape == shape


MASKS = [
    *((2, 1, 1, 10), (4, 10), (2, 3, 4, 10), (2, 3, 4, 1)),
    *(pytest.param(shape, marks=pytest.mark.slow) for shape in [(10,), (2, 1, 4, 10), (1, 3, 1, 10)]),
]


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks_broadcast(shape, length, device):
    x, mask = draw(2, 3, 4, 10), draw(*shape, seed=1) > -0.5
    check(project(x, 1.0, device, mask=mask), x, 1.0, mask.expand(x.shape))


@pytest.mark.parametrize("dim", [-1, -2, *(pytest.param(dim, marks=pytest.mark.slow) for dim in (-3, -4))])
def test_every_axis_and_stride(dim, length, device):
    whole = draw(2, 3, 2, 5)
    for x in (whole, whole.transpose(1, 3), whole[:, ::2]):
        mask = draw(*x.shape[1:], seed=2) > -1
        lead = x.movedim(dim, -1).shape[:-1]
        radius = draw(*lead, seed=3).abs() + 0.2
        p = project(x, radius, device, dim, mask)
        assert p.is_contiguous()
        check(p.movedim(dim, -1), x.movedim(dim, -1), radius.numpy(), mask.expand(x.shape).movedim(dim, -1))


def test_offsets_beyond_32_bits(length):
    """Rows that lie 2^30 entries apart; the memory between them is never touched."""
    if torch.cuda.is_available():
        pytest.skip("a GPU would have to hold all of it")
    x = torch.empty(2**31 + 2**30 + 64, dtype=torch.float16).as_strided((4, 12), (2**30, 1))
    x.copy_(draw(4, 12))
    check(_triton.project(x, torch.tensor(1.0), -1, None), x, 1.0)
    mask = torch.empty(2**31 + 2**30 + 64, dtype=torch.bool).as_strided((4, 12), (2**30, 1))
    mask.copy_(draw(4, 12, seed=1) > 0)
    check(_triton.project(x, torch.tensor(1.0), -1, mask), x, 1.0, mask)


def test_a_positive_half_stays_positive(length, device):
    x = torch.tensor([[0.0, -1 + 2e-8, -2.0]], dtype=torch.float16)
    x = torch.cat([x, torch.tensor([[4.0, 0.0, 0.0]], dtype=torch.float16)])
    p = project(x, [1.0, 4 + 1e-6], device)
    assert (p[1] > 0).tolist() == [True, True, True]


def test_the_callers_tensors_are_not_written(length, device):
    x, mask, radius = draw(3, 9).to(device), (draw(3, 9, seed=1) > 0).to(device), torch.rand(3, 1).squeeze(1).to(device)
    before = [t.clone() for t in (x, mask, radius)]
    p = _triton.project(x, radius, -1, mask)
    _triton.project_vjp(p, x, radius, -1, True)
    assert all(torch.equal(a, b) for a, b in zip(before, (x, mask, radius)))


@pytest.mark.parametrize(
    ("dtype", "dim"),
    [
        (torch.float32, -1),
        (torch.float32, -2),
        (torch.bfloat16, -1),
        *(pytest.param(dtype, -1, marks=pytest.mark.slow) for dtype in (torch.float16, torch.float64)),
    ],
    ids=str,
)
def test_gradients_match_the_formula(dtype, dim, length, device):
    for shape in ((4, 3), (40, 2)):
        x, v = draw(*shape, dtype=dtype), draw(*shape, seed=1, dtype=dtype)
        radius = draw(*x.movedim(dim, -1).shape[:-1], seed=2).abs().double() + 0.5
        p = project(x, radius, device, dim)
        found = _triton.project_vjp(p.to(device), v.to(device), radius.to(device), dim, True)
        want = _plain.vjp(p.double(), v.double(), radius, dim)
        for got, expected in zip(found, want):
            assert (got.cpu().double() - expected).abs().max() <= 16 * EPS[dtype]
        spread = _triton.project_vjp(p.to(device), v[..., :1].expand(shape).to(device), radius.to(device), dim, True)
        again = _plain.vjp(p.double(), v[..., :1].expand(shape).double(), radius, dim)
        assert (spread[0].cpu().double() - again[0]).abs().max() <= 16 * EPS[dtype]


def test_gradients_at_the_edges(length, device):
    p = torch.tensor([[NAN] * 3, [0.0] * 3, [1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]], device=device)
    radius = torch.tensor([1.0, 1.0, 1e-300, 0.0, INF], dtype=torch.float64, device=device)
    v = torch.tensor([[1.0, 2.0, NAN]] * 5, device=device)
    grad, along = _triton.project_vjp(p, v, radius, -1, True)
    assert torch.isnan(grad[0]).all()
    assert (grad[1:] == 0).all()
    assert (along[1:] == 0).all()


def test_results_do_not_depend_on_the_rows_beside_them(length, device):
    x = draw(20, 30)
    p = project(x, 1.0, device)
    for i in (0, 7, 19):
        assert torch.equal(project(x[i : i + 1], 1.0, device), p[i : i + 1])
    assert_near(p.numpy(), oracle.project_bisect(x.numpy(), 1.0))
