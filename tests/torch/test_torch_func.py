"""torch.func, the registered operators, and the tracers that are not compilers."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import sparsegen.torch as sgt
from sparsegen.torch import _operators
from test_torch_cases import (
    CONTROLLED,
    DTYPES,
    FORWARD_MODE,
    NAMES,
    around,
    close,
    control_tensors,
    controls,
    scores,
    some_mask,
    torch_map,
)

pytestmark = FORWARD_MODE


def _loss(name, v):
    return lambda z: (torch_map(name)(z, **controls(name)) * v).sum()


@pytest.mark.parametrize("name", NAMES)
def test_grad_is_what_backward_gives(name):
    z, v = scores(name, 4, 6), scores("sparsemax", 4, 6, seed=1)
    leaf = z.clone().requires_grad_()
    _loss(name, v)(leaf).backward()
    close(grad(_loss(name, v))(z), leaf.grad)


@pytest.mark.parametrize("name", CONTROLLED)
def test_grad_in_the_control_is_what_backward_gives(name):
    (key, value), *_ = controls(name).items()
    z, v = scores(name, 4, 6), scores("sparsemax", 4, 6, seed=1)

    def loss(c):
        return (torch_map(name)(z, **{key: c}) * v).sum()

    leaf = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    loss(leaf).backward()
    close(grad(loss)(leaf.detach()), leaf.grad)


@pytest.mark.parametrize("dims", [(0, 0), (1, 0), (0, 1), (1, 1), (-1, -1)])
@pytest.mark.parametrize("name", NAMES)
def test_vmap_is_a_loop_over_the_mapped_axis(name, dims):
    at, out = dims
    z = scores(name, 5, 4, 6)
    got = vmap(lambda row: torch_map(name)(row, dim=0, **controls(name)), in_dims=at, out_dims=out)(z)
    want = torch.stack([torch_map(name)(row, dim=0, **controls(name)) for row in z.unbind(at)], out)
    close(got, want)


@pytest.mark.parametrize("at", [(0, 0, 0), (1, 0, 1), (0, None, 0), (None, 0, None), (0, 0, None), (None, None, 0)])
@pytest.mark.parametrize("name", NAMES)
def test_vmap_over_scores_controls_and_mask_is_a_loop(name, at):
    keys, n = tuple(controls(name)), 3
    if not keys and at == (None, 0, None):
        at = (0, 0, 0)  # nothing to map over

    def f(z, given, mask):
        return torch_map(name)(z, mask=mask, **dict(zip(keys, given)))

    def some(make, axis, *shape):
        return make(*(shape if axis is None else (*shape[:axis], n, *shape[axis:])))

    z, mask = some(lambda *s: scores(name, *s), at[0], 4, 6), some(some_mask, at[2], 4, 6)
    given = tuple(some(lambda *s: control_tensors(name, s), at[1], 4).values())
    got = vmap(f, in_dims=at)(z, given, mask)

    def pick(t, axis, i):
        return t if axis is None else t.select(axis, i)

    for i in range(n):
        close(got[i], f(pick(z, at[0], i), tuple(pick(c, at[1], i) for c in given), pick(mask, at[2], i)))


@pytest.mark.parametrize("name", CONTROLLED)
def test_vmap_over_a_number_for_each_example_with_the_same_scores(name):
    key, *_ = controls(name)
    z = scores(name, 2, 3, 6)
    numbers = around(key, torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64))
    got = vmap(lambda c: torch_map(name)(z, **{key: c}))(numbers)
    close(got, torch.stack([torch_map(name)(z, **{key: float(c)}) for c in numbers]))


@pytest.mark.parametrize("name", NAMES)
def test_nested_vmap_is_the_batch_itself(name):
    z = scores(name, 3, 4, 6)
    got = vmap(vmap(lambda row: torch_map(name)(row, **controls(name)), in_dims=0), in_dims=1, out_dims=1)(z)
    close(got, torch_map(name)(z, **controls(name)))


@pytest.mark.parametrize("name", NAMES)
def test_vmap_of_grad_gives_each_examples_own_gradient(name):
    z, v = scores(name, 4, 6), scores("sparsemax", 6, seed=1)
    each = vmap(grad(_loss(name, v)))(z)
    close(each, torch.stack([grad(_loss(name, v))(row) for row in z]))


@pytest.mark.parametrize("name", NAMES)
def test_jvp_and_vjp_are_transposes(name):
    z = scores(name, 4, 6)
    u, v = scores("sparsemax", 4, 6, seed=1), scores("sparsemax", 4, 6, seed=2)

    def f(z):
        return torch_map(name)(z, **controls(name))

    p, forward = jvp(f, (z,), (u,))
    again, pull = vjp(f, z)
    assert torch.equal(p, again)
    close((forward * v).sum(), (u * pull(v)[0]).sum(), scale=64)


@pytest.mark.parametrize("name", NAMES)
def test_jacrev_jacfwd_and_their_batches_agree(name):
    z = scores(name, 3, 5)

    def f(z):
        return torch_map(name)(z, **controls(name))

    close(jacrev(f)(z), jacfwd(f)(z), scale=64)
    close(vmap(jacrev(f))(z), vmap(jacfwd(f))(z), scale=64)
    close(vmap(jacfwd(f))(z)[1], jacrev(f)(z[1]), scale=64)
    close(jacrev(f, chunk_size=2)(z), jacrev(f)(z), scale=64)


@pytest.mark.parametrize("name", NAMES)
def test_the_hessian_is_symmetric_and_the_derivative_of_the_gradient(name):
    z = scores(name, 5)

    def square(z):
        return torch_map(name)(z, **controls(name)).square().sum()

    h = hessian(square)(z)
    close(h, h.T, scale=256)
    close(h, jacrev(grad(square))(z), scale=256)
    close(h, jacrev(jacrev(square))(z), scale=256)
    close(h, torch.autograd.functional.hessian(square, z), scale=256)


@pytest.mark.parametrize("name", NAMES)
def test_forward_duals_outside_torch_func_work(name):
    import torch.autograd.forward_ad as fwad

    z, u = scores(name, 3, 5), scores("sparsemax", 3, 5, seed=1)
    with fwad.dual_level():
        p, change = fwad.unpack_dual(torch_map(name)(fwad.make_dual(z, u), **controls(name)))
    want, tangent = jvp(lambda z: torch_map(name)(z, **controls(name)), (z,), (u,))
    close(p, want)
    close(change, tangent)


def _sample(dtype=torch.float32, shape=(3, 4, 5), dim=-1, masked=False, rows=(), wants=True):
    z = scores("sparsemax", *shape, dtype=dtype).requires_grad_(wants)
    radius = (0.5 + torch.rand(rows, dtype=torch.float64)).requires_grad_(wants)
    return z, radius, dim, some_mask(*shape) if masked else None


SAMPLES = {
    **{f"{dtype}".removeprefix("torch."): {"dtype": dtype} for dtype in DTYPES},
    "dim-2": {"dim": -2},
    "dim-3 masked": {"dim": -3, "masked": True},
    "a radius a row": {"rows": (3, 4)},
    "a radius a head, masked": {"rows": (3, 1), "masked": True},
    "dim-2, a radius a row": {"dim": -2, "rows": (3, 5), "dtype": torch.float64},
    "no rows": {"shape": (0, 5), "dtype": torch.float64},
    "no entries": {"shape": (3, 0), "dtype": torch.float64},
    "one row": {"shape": (7,), "dtype": torch.float64},
    "no gradient": {"wants": False},
}


# torch's own checks trace and compile: what only repeats another sample in other digits is left to `make test-slow`.
REPEATED = ("float64", "float32", "float16", "dim-2", "a radius a row", "one row", "no rows", "dim-3 masked")
CHECKED = [pytest.param(s, marks=pytest.mark.slow) if s in REPEATED else s for s in SAMPLES]


@pytest.mark.parametrize("sample", CHECKED)
def test_opcheck_of_project(sample):
    torch.library.opcheck(_operators.project_op, _sample(**SAMPLES[sample]))


@pytest.mark.parametrize("sample", CHECKED)
def test_opcheck_of_project_vjp(sample):
    z, radius, dim, mask = _sample(**SAMPLES[sample])
    p = _operators.project_op(z, radius, dim, mask).detach().requires_grad_(z.requires_grad)
    v = scores("sparsemax", *z.shape, dtype=z.dtype, seed=1).requires_grad_(z.requires_grad)
    torch.library.opcheck(_operators.project_vjp_op, (p, v, radius, dim))


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_operators_do_what_eager_mode_does(sample):
    z, radius, dim, mask = _sample(**SAMPLES[sample])
    by_operator, eager = _operators.project_op(z, radius, dim, mask), sgt.project(z, radius, dim=dim, mask=mask)
    assert torch.equal(by_operator, eager)
    if not z.requires_grad:
        return
    v = scores("sparsemax", *z.shape, dtype=z.dtype, seed=1)
    inputs = (z, radius)
    for got, want in zip(torch.autograd.grad(by_operator, inputs, v), torch.autograd.grad(eager, inputs, v)):
        close(got, want, z.dtype)


@pytest.mark.parametrize("sample", ["float64", "dim-2, a radius a row", "one row"])
def test_the_operators_own_derivatives_pass_gradcheck_and_gradgradcheck(sample):
    z, radius, dim, mask = _sample(**{**SAMPLES[sample], "dtype": torch.float64})
    assert gradcheck(lambda z, r: _operators.project_op(z, r, dim, mask), (z, radius))
    assert gradgradcheck(lambda z, r: _operators.project_op(z, r, dim, mask), (z, radius))


@pytest.mark.parametrize("name", NAMES)
def test_fake_tensors_have_the_shape_dtype_and_strides_of_real_ones(name):
    for dim, dtype in ((-1, torch.float32), (1, torch.bfloat16), (0, torch.float64)):
        real = torch_map(name)(scores(name, 3, 4, 5, dtype=dtype), dim=dim, **controls(name))
        with FakeTensorMode() as mode:
            fake = torch_map(name)(mode.from_tensor(scores(name, 3, 4, 5, dtype=dtype)), dim=dim, **controls(name))
        assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


@pytest.mark.parametrize("name", NAMES)
def test_meta_tensors_work_forward_and_backward(name):
    z = torch.empty(3, 4, 5, device="meta", requires_grad=True)
    p = torch_map(name)(z, dim=1, mask=torch.ones(4, 5, dtype=torch.bool, device="meta"), **controls(name))
    assert (p.device.type, p.shape, p.dtype) == ("meta", z.shape, z.dtype)
    p.sum().backward()
    assert (z.grad.device.type, z.grad.shape) == ("meta", z.shape)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tracing", ["real", "fake", "symbolic"])
def test_make_fx_records_a_graph_that_gives_the_same(name, tracing):
    z, other, mask = scores(name, 4, 6), scores(name, 4, 6, seed=9), some_mask(6)

    def f(z, mask):
        return torch_map(name)(z, mask=mask, **controls(name))

    close(make_fx(f, tracing_mode=tracing)(z, mask)(other, mask), f(other, mask))


def test_make_fx_of_a_gradient_gives_the_same():
    z, other, v = scores("sparsemax", 4, 6), scores("sparsemax", 4, 6, seed=9), scores("sparsemax", 4, 6, seed=1)
    f = grad(_loss("sparsehourglass", v))
    close(make_fx(f)(z)(other), f(other))


def test_make_fx_shows_the_registered_operator():
    graph = make_fx(lambda z: sgt.sparsegen_lin(z, lam=0.5))(scores("sparsemax", 4, 6)).graph
    assert torch.ops.sparsegen.project.default in [node.target for node in graph.nodes]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_checkpointing_does_not_change_gradients(name, reentrant):
    z, v = scores(name, 4, 6), scores("sparsemax", 4, 6, seed=1)
    plain, saved = z.clone().requires_grad_(), z.clone().requires_grad_()
    torch_map(name)(plain, **controls(name)).backward(v)
    checkpoint(lambda z: torch_map(name)(z, **controls(name)), saved, use_reentrant=reentrant).backward(v)
    assert torch.equal(saved.grad, plain.grad)


@pytest.mark.parametrize("name", NAMES)
def test_functional_jacobian_vectorized_is_the_loop(name):
    z = scores(name, 3, 5)

    def f(z):
        return torch_map(name)(z, **controls(name))

    jacobian = torch.autograd.functional.jacobian
    close(jacobian(f, z, vectorize=True), jacobian(f, z), scale=64)
