"""Every map of the table on the way that GPUs take: the laws, and values and gradients beside the CPU's in float64."""

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from laws import LAWS, inside
from sparsegen._table.maps import MAPS
from sparsegen.torch import _fused, _plain, _route, _triton
from test_torch_cases import NAMES, control_tensors, controls, scores, some_mask, torch_map

TOLERANCE = {torch.float64: 4e-15, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
FUSED = [name for name in NAMES if MAPS[name].transform != "lin" or MAPS[name].radius.of != "control"]


def _callable(name, device):
    def f(z, mask=None, **given):
        hidden = None if mask is None else torch.from_numpy(np.ascontiguousarray(mask)).to(device)
        z = torch.from_numpy(np.ascontiguousarray(z)).to(device)
        return torch_map(name)(z, mask=hidden, **{**controls(name), **given}).cpu().numpy()

    return f


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_the_law_holds_on_a_gpu(name, law, gpu):
    m = MAPS[name]
    for k in (1, 9):
        z = inside(m, np.random.default_rng(k).standard_normal((3, k)).astype(np.float32))
        law(_callable(name, gpu), m, z)


def _gradients(name, z, given, v, **how):
    z, given = z.clone().requires_grad_(), {key: value.clone().requires_grad_() for key, value in given.items()}
    p = torch_map(name)(z, **how, **given)
    return p.detach(), torch.autograd.grad(p, [z, *given.values()], v.to(p), allow_unused=True)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_those_of_the_cpu(name, dtype, gpu, request):
    z, v = scores(name, 2, 30, 3, dtype=dtype), scores("sparsemax", 2, 30, 3, seed=1)
    z[0, 3, 1] = -math.inf
    mask, given = some_mask(2, 3, 30).movedim(-1, 1), control_tensors(name, (2, 3))
    assert torch.equal(z, z.clone())
    on = [t.to(gpu) for t in (z, v, mask)]
    p, grads = _gradients(name, on[0], {k: c.to(gpu) for k, c in given.items()}, on[1], dim=1, mask=on[2])
    request.getfixturevalue("monkeypatch").undo()
    want, expected = _gradients(name, z.double(), given, v, dim=1, mask=mask)
    size = max(float(g.abs().max()) for g in expected)
    assert p.dtype == dtype
    assert (p.cpu().double() - want).abs().max() <= TOLERANCE[dtype]
    for got, right in zip(grads, expected):
        assert (got.cpu().double() - right).abs().max() <= 4 * TOLERANCE[dtype] * max(size, 1)


@pytest.mark.parametrize("name", FUSED)
def test_a_map_is_one_call_there(name, gpu, monkeypatch):
    calls, whole = [], _triton.map_rows
    monkeypatch.setattr(_triton, "map_rows", lambda *given: calls.append(given) or whole(*given))
    torch_map(name)(scores(name, 3, 8).to(gpu), **controls(name))
    assert len(calls) == 1


AGAIN = [
    "sparsehourglass",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("sparsegen_exp", "sparsegen_lin")),
]


@pytest.mark.parametrize("name", [*AGAIN, "spherical_softmax"])
def test_derivatives_of_derivatives(name, gpu):
    z = scores(name, 1, 4).to(gpu).requires_grad_()
    given = {key: value.to(gpu).requires_grad_() for key, value in control_tensors(name, (1,)).items()}

    def f(z, *values):
        return torch_map(name)(z, **dict(zip(given, values)))

    torch.autograd.gradcheck(f, (z, *given.values()))
    torch.autograd.gradgradcheck(f, (z, *given.values()))


@pytest.mark.parametrize("name", ["sparsemax", "sparsecone", "sparsegen_log"])
def test_transforms_of_functions(name, gpu):
    z = scores(name, 2, 4).to(gpu)

    def f(z):
        return torch_map(name)(z, **controls(name))

    rows = torch.stack([torch.autograd.functional.jacobian(f, row) for row in z])
    torch.testing.assert_close(torch.func.vmap(torch.func.jacrev(f))(z), rows)
    torch.testing.assert_close(torch.autograd.functional.jacobian(f, z[0], vectorize=True), rows[0])


OPERATORS = {"sparsegen_exp": "radius", "sparsehourglass": "q", "softmax": "factor"}


@pytest.mark.parametrize("name", OPERATORS)
def test_the_operators_are_well_behaved(name, gpu):
    z, mask = scores(name, 3, 6, dtype=torch.float32).to(gpu), some_mask(3, 6).to(gpu)
    control = torch.tensor([0.5, 0.6, 0.7], dtype=torch.float64, device=gpu)
    heat = torch.tensor(0.5, dtype=torch.float64, device=gpu).requires_grad_() if name == "softmax" else None
    torch.library.opcheck(_fused.map_op, (z.requires_grad_(), control.requires_grad_(), heat, name, -1, mask))
    p, kept = _fused.map_op(z.detach(), control.detach(), heat, name, -1, mask)
    given = (z.detach(), p, torch.ones_like(p), control.detach(), heat, kept, name, -1, mask)
    torch.library.opcheck(_fused.map_vjp_op, given, test_utils=("test_schema", "test_faketensor"))


def test_a_model_compiles(gpu):
    def model(z, lam):
        return torch_map("sparsegen_exp")(z * 2, lam=lam).square().sum() + torch_map("sparsemax")(z)[0, 0]

    z, lam = scores("sparsemax", 3, 6).to(gpu), torch.tensor(0.25, dtype=torch.float64, device=gpu)
    found = []
    for f in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        given = [t.clone().requires_grad_() for t in (z, lam)]
        loss = f(*given)
        found.append([loss.detach(), *torch.autograd.grad(loss, given)])
    for eager, compiled in zip(*found):
        torch.testing.assert_close(compiled, eager)


def test_losses_take_the_engine_of_their_device(gpu):
    import sparsegen.torch as sgt

    z, target = scores("sparsemax", 4, 6).to(gpu), torch.tensor([0, 5, 2, 2], device=gpu)
    assert _triton.hinge_labels is _plain.hinge_labels
    for name in ("sparsemax_huber_loss", "sparsegen_hinge_loss", "sparsehourglass_hinge_loss"):
        assert torch.isfinite(getattr(sgt, name)(z.requires_grad_(), target))


def test_without_triton_one_warning_and_plain_operations(monkeypatch):
    monkeypatch.setitem(_route.ENGINES, "nowhere", "a_package_that_is_missing")
    _route.engine_of.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert _route.engine_of("nowhere") is _plain
        assert _route.engine_of("nowhere") is _plain
    assert ["a_package_that_is_missing is not installed" in str(w.message) for w in caught] == [True]
    _route.engine_of.cache_clear()


def test_a_device_without_an_engine_has_plain_operations():
    assert _route.engine_of("mps") is _plain


def test_tensors_of_the_cpu_never_load_triton():
    code = (
        "import sys, torch, sparsegen.torch as sgt\n"
        "z = torch.randn(3, 5, requires_grad=True)\n"
        "for f in (sgt.sparsemax, sgt.sum_normalization_plus, sgt.sparsegen_exp, sgt.softmax): f(z).sum().backward()\n"
        "sgt.sparse_attention(z, z, z).sum().backward()\n"
        "assert 'triton' not in sys.modules, 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
