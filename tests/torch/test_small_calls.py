"""Small calls, of which the kernel asks torch itself: the answers of the long way, for whatever a tensor is."""

from __future__ import annotations

import gc
import math
import pickle
import subprocess
import sys
from copy import deepcopy

import pytest
import torch
from torch.nn.utils import parametrize

import sparsegen.torch as sgt
from sparsegen import _core
from sparsegen._table.maps import MAPS
from sparsegen.torch import _cpu, _mapping, maps
from test_torch_cases import NAMES, controls, scores, torch_map

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def at_length(monkeypatch):
    """No answer to any question."""
    asked = [(_core, "tensor_map"), (_core, "tensor_map_vjp"), (_core, "tensor_number")]
    for module, name in [*asked, (maps, "quick"), (_mapping, "quick"), (_mapping, "quick_module")]:
        monkeypatch.setattr(module, name, lambda *_: None)


def both(f, monkeypatch):
    """What f returns the quick way, and at length."""
    quick = f()
    with monkeypatch.context() as patch:
        at_length(patch)
        return quick, f()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients_are_those_of_the_long_way(name, dtype, monkeypatch):
    z = scores(name, 3, 7, dtype=dtype)
    v = torch.randn(3, 7, generator=torch.Generator().manual_seed(1)).to(dtype)

    def run():
        x = z.clone().requires_grad_()
        p = torch_map(name)(x, **controls(name))
        return torch_map(name)(z, **controls(name)), p.detach(), torch.autograd.grad(p, x, v)[0]

    quick, slow = both(run, monkeypatch)
    for got, want in zip(quick, slow):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("make", [sgt.Sparsegen, sgt.SparsegenSoftmax, sgt.Sparsehourglass, sgt.Entmax, sgt.Softmax])
def test_modules_that_learn_give_the_numbers_of_the_long_way(make, monkeypatch):
    control = {sgt.Sparsehourglass: 0.5, sgt.Entmax: 1.3, sgt.Softmax: 0.7}.get(make, 0.25)
    module, z = make(control, learnable=True), torch.randn(4, 9, generator=torch.Generator().manual_seed(0))

    def run():
        x = z.clone().requires_grad_()
        p = module(x)
        with torch.no_grad():
            return module(z), p.detach(), *torch.autograd.grad(p, (x, module.theta), z * z)

    quick, slow = both(run, monkeypatch)
    for got, want in zip(quick, slow):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["sparsegen_exp", "sparsegen_softmax", "sparsehourglass", "entmax"])
@pytest.mark.parametrize(
    "upstream",
    [
        lambda v: v.double(), lambda v: torch._neg_view(-v), lambda v: v.t().contiguous().t(),
        lambda v: v[:1].expand(5, 6), lambda v: torch._efficientzerotensor(tuple(v.shape)),
    ],
    ids=["another type", "negated", "transposed", "expanded", "zeros never written"],
)  # fmt: skip
def test_the_way_back_takes_any_upstream_gradient(name, upstream):
    """The way there was quick and kept what it found; the way back may have to be the long one."""
    m, z = MAPS[name], scores(name, 5, 6, dtype=torch.float32)
    v = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
    second = 1.5 if name == "entmax" else 1.0
    p, found = _cpu.map_rows(z, m, 0.5, second, -1, None, True)
    got = _cpu.map_vjp(z, p, upstream(v), m, 0.5, second, found, -1, None, (True, True))
    plain = upstream(v).to(z.dtype).clone()
    want = _cpu.map_vjp(z, p, plain, m, 0.5, second, found, -1, None, (True, True))
    for a, b in zip(got, want):
        torch.testing.assert_close(a.reshape(b.shape), b, rtol=0, atol=0)


class Own(torch.Tensor):
    pass


def test_what_is_unusual_gets_no_quick_answer():
    z, kind = torch.rand(2, 5), MAPS["sparsemax"].kind
    unusual = {
        "no tensor": [0.5, 0.25], "None": None, "a subclass": z.as_subclass(Own), "whole": torch.ones(2, 5).long(),
        "no entries": torch.zeros(2, 0), "no rows": torch.zeros(0, 5), "no axis": torch.tensor(1.0),
        "strided": torch.rand(5, 2).t(), "meta": torch.zeros(2, 5, device="meta"), "sparse": z.to_sparse(),
        "negated": torch._neg_view(z), "zeros": torch._efficientzerotensor((2, 5)),
        "nested": torch.nested.nested_tensor([z[0]], layout=torch.jagged),
    }  # fmt: skip
    assert _core.quick_map(z, kind, 1.0, 1.0) is not None
    for what, t in unusual.items():
        assert _core.quick_map(t, kind, 1.0, 1.0) is None, what
        assert sys.exc_info() == (None, None, None)
    asked = z.clone().requires_grad_()
    assert _core.quick_map(asked, kind, 1.0, 1.0) is None
    with torch.no_grad():
        assert torch.equal(_core.quick_map(asked, kind, 1.0, 1.0), sgt.sparsemax(z))
        assert torch.equal(_core.quick_map(torch.nn.Parameter(z), kind, 1.0, 1.0), sgt.sparsemax(z))


def test_nothing_is_answered_while_torch_watches():
    z, kind, one = torch.rand(2, 5), MAPS["sparsemax"].kind, torch.tensor(0.5)
    seen = []

    def ask(x):
        seen.append((_core.idle(), _core.quick_map(z, kind, 1.0, 1.0), _core.tensor_number(one)))
        return x

    torch.func.vmap(ask)(z)
    with torch.autograd.forward_ad.dual_level():
        ask(z)
    with torch.utils._python_dispatch.TorchDispatchMode():
        ask(z)
    assert seen == [(False, None, None)] * 3
    assert _core.idle()
    assert _core.tensor_number(one) == 0.5
    assert [_core.tensor_number(t) for t in (torch.ones(1), torch.zeros((), device="meta"), None, 0.5)] == [None] * 4


def test_no_reference_is_kept_or_lost():
    z, kind, unusual = torch.rand(2, 5), MAPS["sparsegen_exp"].kind, torch.rand(5, 2).t()
    one, module = torch.tensor(0.5), sgt.Sparsegen(0.5, learnable=True)
    parts = (module, module.theta, module.__dict__, module._plan, sgt.Sparsegen.forward)
    known = (z, unusual, torch.float32, torch.float64, torch.Size, torch.empty_like, *parts)

    @torch.no_grad()
    def calls(n):
        for _ in range(n):
            _core.quick_module(module, z), _core.quick_module(module, unusual)
            p, found = _core.tensor_map(z, kind, 0.5, 1.0, True, None)
            _core.tensor_map_vjp(z, p, z, kind, 0.5, 1.0, found, True, True, None)
            _core.quick_map(unusual, kind, 0.5, 1.0)
            _core.tensor_number(one)

    def alive():
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    calls(10)
    before = [sys.getrefcount(t) for t in known]
    tensors = alive()
    calls(1000)
    assert [sys.getrefcount(t) for t in known] == before
    assert alive() == tensors


def all_modules():
    """One of each, fixed and learnable, and copies of them by every way torch's users have."""
    fixed = [sgt.Sparsemax(), sgt.Hardmax(), sgt.Entmax15(), sgt.SumNormalizationPlus(), sgt.SparsegenSoftmax(0.1, 0.5)]
    both = [
        (sgt.Softmax, (0.7,)), (sgt.Sparsecone, (1.0,)), (sgt.Sparsehourglass, (0.5,)), (sgt.SumNormalization, (0.2,)),
        (sgt.SphericalSoftmax, (0.2,)), (sgt.SparsegenSoftmax, (0.1, 2.0)), (sgt.Entmax, (1.3,)),
        *((sgt.Sparsegen, (0.1, transform)) for transform in ("lin", "exp", "sq", "log")),
    ]  # fmt: skip
    made = [*fixed, *(make(*given, learnable=learnable) for make, given in both for learnable in (False, True))]
    return [
        copy for m in made for copy in (m, deepcopy(m), pickle.loads(pickle.dumps(m)), deepcopy(m).double(), m.eval())
    ]


@torch.no_grad()
def test_every_module_is_called_by_the_kernel_and_gives_the_bits_of_its_forward():
    z = torch.rand(3, 7, generator=torch.Generator().manual_seed(0)) + 0.1
    for module in all_modules():
        quick = _core.quick_module(module, z)
        assert quick is not None, module
        assert torch.equal(quick, module.forward(z)), module
        assert torch.equal(module(z), quick), module


@torch.no_grad()
def test_a_module_that_was_set_anew_is_called_as_it_is_now():
    z = torch.rand(3, 7, generator=torch.Generator().manual_seed(0)) + 0.1
    dial, heat, learned = sgt.Sparsegen(0.1), sgt.SparsegenSoftmax(0.3), sgt.Entmax(1.3, learnable=True)
    dial.lam, heat.temperature, learned.alpha = 0.5, 0.25, 1.75
    assert torch.equal(dial(z), sgt.sparsegen_lin(z, lam=0.5))
    assert torch.equal(heat(z), sgt.sparsegen_softmax(z, lam=0.3, temperature=0.25))
    torch.testing.assert_close(learned(z), sgt.entmax(z, alpha=1.75), rtol=1e-5, atol=1e-7)
    dial.transform = "exp"
    assert torch.equal(dial(z), sgt.sparsegen_exp(z, lam=0.5))
    dial.transform, dial.dim = "lin", 0
    assert torch.equal(dial(z), sgt.sparsegen_lin(z, lam=0.5, dim=0))
    learned.theta.fill_(torch.nan)
    assert learned(z).isnan().all()
    learned.theta.fill_(1e9)  # kept where alpha is 2
    torch.testing.assert_close(learned(z), sgt.sparsemax(z))


class Doubled(sgt.Sparsemax):
    def forward(self, scores, mask=None):
        return 2 * super().forward(scores, mask)


@torch.no_grad()
def test_a_module_that_does_more_than_its_map_is_left_to_torch():
    z, seen = torch.rand(3, 7), []

    def hook(module, *_):
        seen.append(type(module))

    for register in ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"):
        module = sgt.Sparsegen(0.5, learnable=True)
        handle = getattr(module, register)(hook)
        assert _core.quick_module(module, z) is None, register
        handle.remove()
        assert _core.quick_module(module, z) is not None, register
    handle = torch.nn.modules.module.register_module_forward_hook(hook)
    sgt.Sparsemax()(z)
    handle.remove()
    assert seen == [sgt.Sparsemax]
    torch.testing.assert_close(Doubled()(z), 2 * sgt.sparsemax(z))
    patched = sgt.Sparsemax()
    patched.forward = lambda scores, mask=None: scores + 1  # type: ignore[method-assign]
    assert torch.equal(patched(z), z + 1)
    compiled = sgt.Sparsemax()
    compiled.compile(backend=lambda graph, _: seen.append(graph) or graph.forward)
    assert torch.equal(compiled(z), sgt.sparsemax(z))
    assert len(seen) == 2


def test_a_module_whose_gradients_are_asked_for_gets_no_quick_answer():
    z, module = torch.rand(3, 7), sgt.Sparsegen(0.5, learnable=True)
    assert _core.quick_module(module, z) is None
    assert module(z).requires_grad
    module.requires_grad_(False)
    assert _core.quick_module(module, z) is not None
    assert _core.quick_module(module, z.requires_grad_()) is None
    with torch.no_grad():
        assert _core.quick_module(module, z) is not None


@torch.no_grad()
def test_an_unusual_control_gets_no_quick_answer():
    z = torch.rand(3, 7)
    heads, half, moved, gone = (sgt.Sparsegen(0.5, learnable=True) for _ in range(4))
    heads.theta = torch.nn.Parameter(torch.zeros(3))
    moved = moved.to("meta")
    gone.theta = torch.nn.Parameter(torch._neg_view(torch.tensor(1.0)))
    for module in (heads, half.half(), moved, gone, sgt.Sparsegen(0.5, torch.abs), sgt.Sparsemax(dim=0)):
        assert _core.quick_module(module, z) is None, module
    torch.testing.assert_close(gone(z), sgt.sparsegen_lin(z, lam=1 - math.exp(-1)))
    for what in (None, z.tolist(), z.to_sparse(), z.t()):
        assert _core.quick_module(sgt.Sparsemax(), what) is None
    assert torch.equal(torch.func.functional_call(heads, {"theta": torch.zeros(())}, (z,)), sgt.sparsemax(z))


class Twice(torch.nn.Module):
    def forward(self, theta):
        return 2 * theta


def test_theta_may_be_made_of_another_parameter():
    z, module = torch.rand(3, 7), sgt.Sparsegen(0.5, learnable=True)
    parametrize.register_parametrization(module, "theta", Twice())
    p = module(z)
    torch.testing.assert_close(p, sgt.sparsegen_lin(z, lam=0.75))
    (grad,) = torch.autograd.grad(p[:, 0].sum(), module.parametrizations.theta.original)
    theta = torch.tensor(math.log(0.5), requires_grad=True)
    (want,) = torch.autograd.grad(sgt.sparsegen_lin(z, lam=1 - (2 * theta).exp())[:, 0].sum(), theta)
    torch.testing.assert_close(grad, want)


def test_a_module_under_transforms_and_tracers_is_seen_by_them():
    z, module = torch.rand(3, 7), sgt.Sparsegen(0.5)
    assert torch.equal(torch.func.vmap(module)(z), module(z))
    whole = torch.compile(lambda x: module(2 * x), backend="eager", fullgraph=True)
    assert torch.equal(whole(z), module(2 * z))


MASKS = {
    "one for each row": lambda full: full,
    "one for all rows": lambda full: full[:1, :1],
    "of one axis": lambda full: full[0, 0],
    "shared by some": lambda full: full[:, :1],
    "transposed": lambda full: full.transpose(0, 1).contiguous().transpose(0, 1),
    "all hidden": lambda full: torch.zeros_like(full),
    "zeros never written": lambda full: torch._efficientzerotensor(tuple(full.shape), dtype=torch.bool),
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("name", NAMES)
def test_masked_calls_are_those_of_the_long_way(name, kind, monkeypatch):
    z = scores(name, 6, 9, dtype=torch.float32).reshape(2, 3, 9)
    full = torch.rand(z.shape, generator=torch.Generator().manual_seed(3)) < 0.7
    full[..., 4] = True
    mask, v = MASKS[kind](full), torch.randn(z.shape, generator=torch.Generator().manual_seed(1))

    def run():
        x = z.clone().requires_grad_()
        p = torch_map(name)(x, **controls(name), mask=mask)
        return torch_map(name)(z, **controls(name), mask=mask), p.detach(), torch.autograd.grad(p, x, v)[0]

    quick, slow = both(run, monkeypatch)
    for got, want in zip(quick, slow):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert not quick[0].masked_fill(mask.expand(z.shape), 0).any()


@pytest.mark.parametrize("k", [17, 65, 100, 128, 200, 1023, 1024, 1025, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [1, 15, 37])
def test_a_mask_is_minus_infinity_bit_for_bit(k, dtype, rows):
    """Rows of some lengths are hidden in passing, by the first look at them; scores are not written to."""
    z = torch.randn(rows, k, generator=torch.Generator().manual_seed(k), dtype=dtype) * 3
    mask = torch.rand(rows, k, generator=torch.Generator().manual_seed(4)) < 0.6
    mask[0] = False
    kept, hidden = z.clone(), z.masked_fill(~mask, -torch.inf)
    for lam in (0.5, -3.0, 0.999, -float(k), -30.0 * k, 1 - 1e-15):
        torch.testing.assert_close(
            sgt.sparsegen_lin(z, lam=lam, mask=mask), sgt.sparsegen_lin(hidden, lam=lam), rtol=0, atol=0
        )
    assert torch.equal(z, kept)


@pytest.mark.parametrize("k", [2048, 2049, 2111, 5000])
def test_what_a_mask_hides_may_be_anything(k):
    """Long rows are read behind their masks: what stands there must be felt nowhere, and what is open everywhere."""
    z = torch.randn(8, k, generator=torch.Generator().manual_seed(k)) * 3
    mask = torch.rand(8, k, generator=torch.Generator().manual_seed(4)) < 0.6
    mask[0], mask[1, :-1], mask[1, -1] = False, False, True
    mask[2, 5], mask[3, -1] = True, True
    wild = torch.where(mask, z, torch.tensor([torch.nan, torch.inf, 1e30, -1e30]).repeat(2 * k).reshape(8, k))
    for lam in (0.5, -float(k)):
        want = sgt.sparsegen_lin(z.masked_fill(~mask, -torch.inf), lam=lam)
        torch.testing.assert_close(sgt.sparsegen_lin(wild, lam=lam, mask=mask), want, rtol=0, atol=0)
        assert (want[0] == 0).all()
        assert want[1, -1] == 1
        open_nan, open_inf = wild.clone(), wild.clone()
        open_nan[2, 5], open_inf[3, -1] = torch.nan, torch.inf
        for bad, row in ((open_nan, 2), (open_inf, 3)):
            got = sgt.sparsegen_lin(bad, lam=lam, mask=mask)
            assert got[row].isnan().all()
            rest = torch.arange(8) != row
            torch.testing.assert_close(got[rest], want[rest], rtol=0, atol=0)


WITHOUT_TABLE = """
import torch
del torch.Tensor.__dlpack_c_exchange_api__
import sparsegen.torch as sgt
from sparsegen import _core
from sparsegen._table.maps import MAPS
z, kind, module = torch.rand(3, 7), MAPS["sparsemax"].kind, sgt.Sparsegen(0.0, learnable=True)
unusual = (z.t(), z.long(), z.to_sparse(), torch._neg_view(z), torch.zeros(2, 0), torch.zeros(2, 5, device="meta"))
with torch.no_grad():
    assert torch.equal(_core.quick_map(z, kind, 1.0, 1.0), sgt.project(z))
    assert all(_core.quick_map(t, kind, 1.0, 1.0) is None for t in unusual)
    assert _core.quick_module(module, z) is None
    assert torch.equal(module(z), sgt.project(z))
"""


@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has no such table")
def test_without_dlpacks_table_tensors_are_asked_one_by_one():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_TABLE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
