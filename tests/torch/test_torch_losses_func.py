"""Derivatives of every order, torch.func, the registered operator, compilers and exporters of the losses."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import sparsegen.torch as sgt
from loss_oracle import HINGES, LOSSES
from sparsegen.torch import _cpu, _losses, _plain
from test_torch_cases import FORWARD_MODE, HALVES, close
from test_torch_losses import CONTROLLED, control_of, gradients, loss, sample

pytestmark = [
    FORWARD_MODE,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*"),  # torch's own, while it compiles
]
NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=LOSSES)
def name(request):
    return request.param


def case(name, lead=(4,), kind="each", **how):
    """The loss as a function of scores and (if it has one) control, and points away from kinks."""
    z, y, mask, weight = sample(*lead, seed=5)
    options = {"mask": mask, "weight": weight, **how}
    control = control_of(name, kind, lead)
    f = lambda z, c=None: loss(name, z, y, c, **options)  # noqa: E731
    return f, [z] if control is None else [z, control]


def leaves(inputs):
    return tuple(t.detach().clone().requires_grad_() for t in inputs)


@pytest.mark.parametrize(("kind", "reduction"), [("each", "none"), ("tensor", "mean")])
def test_gradcheck_and_gradgradcheck_in_scores_and_control(name, kind, reduction):
    f, inputs = case(name, kind=kind, reduction=reduction)
    assert gradcheck(f, leaves(inputs))
    assert gradgradcheck(f, leaves(inputs))


def test_forward_mode_passes_gradcheck(name):
    f, inputs = case(name)
    assert gradcheck(f, leaves(inputs), check_forward_ad=True, check_backward_ad=False)


def test_grad_is_what_backward_gives(name):
    f, inputs = case(name)
    want = torch.autograd.grad(f(*(own := leaves(inputs))), own)
    got = grad(f, argnums=tuple(range(len(inputs))))(*inputs)
    for a, b in zip(got, want):
        close(a, b, scale=64)


@pytest.mark.parametrize("dyadic", [False, True])
def test_vmap_is_a_loop(name, dyadic):
    z, y, mask, weight = sample(3, 5, k=8, dyadic=dyadic)
    control = control_of(name, "each", (3, 5))
    keys = [z, y, mask, weight] + ([] if control is None else [control])

    def f(z, y, mask, weight, c=None):
        return loss(name, z, y, c, mask=mask, weight=weight)

    got = vmap(f)(*keys)
    close(got, torch.stack([f(*row) for row in zip(*keys)]), scale=64)
    each = vmap(grad(f))(*keys)
    close(each, torch.stack([gradients(name, *r[:2], *r[4:], mask=r[2], weight=r[3])[1] for r in zip(*keys)]), scale=64)
    nested = vmap(vmap(lambda z, y: loss(name, z, y)), in_dims=1)(z, y)
    close(nested, torch.stack([loss(name, z[:, i], y[:, i], reduction="none") for i in range(5)]), scale=64)


@pytest.mark.parametrize("at", [(0, None, None), (None, 0, None), (None, None, 0), (1, 0, None)])
def test_vmap_over_some_arguments_is_a_loop(name, at):
    z, y, mask, _ = sample(4)
    stack = [
        torch.stack([t, t.flip(0)], axis or 0) if axis is not None else t for t, axis in zip((z, y, mask | True), at)
    ]

    def f(z, y, mask):
        return loss(name, z, y, mask=mask, reduction="none")

    got = vmap(f, in_dims=at)(*stack)
    for i in range(2):
        own = [t if axis is None else t.select(axis, i) for t, axis in zip(stack, at)]
        close(got[i], f(*own), scale=64)


def test_vmap_over_class_indices_and_controls_is_a_loop(name):
    z, index = sample(4)[0], torch.tensor([3, 0, -100, 5])
    got = vmap(lambda z, i: loss(name, z, i))(z, index)
    close(got, loss(name, z, index, reduction="none"))
    if LOSSES[name]:
        numbers = torch.tensor([0.25, 0.5], dtype=torch.float64)
        got = vmap(lambda c: loss(name, z, index, c))(numbers)
        close(got, torch.stack([loss(name, z, index, c) for c in numbers]))


def test_jacobians_by_rows_and_columns_agree(name):
    f, inputs = case(name, reduction="none")
    for at in range(len(inputs)):
        rows, columns = jacrev(f, argnums=at)(*inputs), jacfwd(f, argnums=at)(*inputs)
        close(rows, columns, scale=64)
        assert rows.shape == (4, *inputs[at].shape)
    close(jacrev(f, chunk_size=2)(*inputs), jacrev(f)(*inputs), scale=64)
    jacobian = torch.autograd.functional.jacobian
    want = jacobian(f, tuple(inputs))
    for a, b in zip(jacobian(f, tuple(inputs), vectorize=True), want):
        close(a, b, scale=64)
    close(jacrev(f)(*inputs), want[0], scale=64)


def test_batched_upstream_gradients_are_a_loop(name):
    f, inputs = case(name, reduction="none")
    own = leaves(inputs)
    value, v = f(*own), torch.eye(4, dtype=torch.float64)
    batched = torch.autograd.grad(value, own, v, is_grads_batched=True, retain_graph=True)
    for i in range(4):
        for a, b in zip(batched, torch.autograd.grad(value, own, v[i], retain_graph=True)):
            close(a[i], b, scale=64)


def test_the_hessian_is_the_derivative_of_the_gradient(name):
    f, inputs = case(name)
    h = hessian(f)(*inputs)
    close(h, jacrev(grad(f))(*inputs), scale=256)
    close(h, torch.autograd.functional.hessian(lambda z: f(z, *inputs[1:]), inputs[0]), scale=256)
    assert (h == 0).all() == (name == "sparsegen_hinge" or name == "sparsehourglass_hinge")
    if LOSSES[name]:
        mixed = hessian(f, argnums=(0, 1))(*inputs)
        close(mixed[0][1], mixed[1][0].movedim(0, -1), scale=256)


def test_jvp_is_the_gradient_along_the_way(name):
    f, inputs = case(name)
    u = sample(4, seed=8)[0]
    value, change = jvp(lambda z: f(z, *inputs[1:]), (inputs[0],), (u,))
    own = leaves(inputs)
    want = f(*own)
    close(value, want, scale=64)
    close(change, (torch.autograd.grad(want, own)[0] * u).sum(), scale=64)


def value_and_gradients(f, inputs):
    own = leaves(inputs)
    value = f(*own)
    return [value.detach(), *torch.autograd.grad(value.sum(), own)]


@pytest.mark.parametrize("form", ["int", "float", "index"])
def test_rows_to_leave_out_harm_no_gradient_in_torch_func(name, form):
    z, y, mask, weight = sample(4)
    z[1], y[1], mask[1] = NAN, False, False
    target = {"int": y.long(), "float": y.double(), "index": y.long().argmax(-1)}[form]
    if form == "index":
        target[1] = -100
    control = control_of(name, "tensor", (4,))
    inputs = [z] if control is None else [z, control]

    def f(z, c=None):
        return loss(name, z, target, c, mask=mask, weight=weight, ignore_empty=True)

    want = gradients(
        name, *(z, target) + ((control,) if len(inputs) > 1 else ()), mask=mask, weight=weight, ignore_empty=True
    )
    close(f(*inputs), want[0])
    for a, b in zip(grad(f, argnums=tuple(range(len(inputs))))(*inputs), want[1:]):
        close(a, b, scale=64)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "sparsegen_hinge" else pytest.mark.slow) for name in LOSSES]
)
def test_a_compiled_loss_is_one_graph_with_eagers_values_and_gradients(name):
    control = control_of(name, "tensor", (5,))

    def f(z, y, index, mask, weight, *c):
        dense = loss(name, z, y, *c, mask=mask, weight=weight, reduction="none")
        return torch.cat([dense, loss(name, z, index, *c, mask=mask)[None]])

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (5, 7):  # one graph serves both
        z, y, mask, weight = sample(rows)
        index = torch.where(torch.arange(rows) == 2, -100, y.long().argmax(-1))
        inputs, fixed = [z] + ([] if control is None else [control]), (y, index, mask, weight)
        with torch._dynamo.config.patch(error_on_recompile=True):
            found = value_and_gradients(lambda z, *c, fixed=fixed: compiled(z, *fixed, *c), inputs)
        for got, want in zip(found, value_and_gradients(lambda z, *c, fixed=fixed: f(z, *fixed, *c), inputs)):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            close(got, want, scale=64)


@pytest.mark.slow
def test_inductors_code_gives_eagers_values_and_gradients():
    z, y, mask, _ = sample(5, dtype=torch.float32)
    f = lambda z: loss("sparsehourglass_hinge", z, y, mask=mask)  # noqa: E731
    for got, want in zip(value_and_gradients(torch.compile(f, fullgraph=True), [z]), value_and_gradients(f, [z])):
        close(got, want, torch.float32, scale=64)


class Model(torch.nn.Module):
    def __init__(self, criterion):
        super().__init__()
        self.layer, self.criterion = torch.nn.Linear(5, 6), criterion

    def forward(self, x, y):
        return self.criterion(self.layer(x), y)


MODULES = {
    "softmax_log": sgt.SoftmaxLogLoss,
    "sparsemax_huber": lambda: sgt.SparsemaxHuberLoss(lam=torch.tensor(0.25)),
    "sparsegen_hinge": lambda: sgt.SparsegenHingeLoss(lam=torch.nn.Parameter(torch.tensor(0.25))),
    "sparsehourglass_hinge": lambda: sgt.SparsehourglassHingeLoss(q=0.5),
}


def test_an_exported_model_runs_on_any_batch(name):
    torch.manual_seed(0)
    model, batch = Model(MODULES[name]()), torch.export.Dim("batch", min=2, max=1000)
    x, y = torch.randn(4, 5), sample(4)[1].float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        shapes = {"x": {0: batch}, "y": {0: batch}}
        program = torch.export.export(model, (x, y), dynamic_shapes=shapes, strict=name == "sparsegen_hinge")
    assert (name in HINGES) == any("sparsegen.hinge" in str(node.target) for node in program.graph.nodes)
    for rows in (2, 9):
        x, y = torch.randn(rows, 5), sample(rows)[1].float()
        close(program.module()(x, y), model(x, y), torch.float32, scale=64)


def op_sample(dtype=torch.float64, lead=(3, 4), k=6, masked=False, per_row=False):
    z, y, mask, _ = sample(*lead, k=k, dtype=dtype)
    radius = 0.5 + torch.rand(lead if per_row else (), dtype=torch.float64)
    return z, radius, y, mask if masked else None


SAMPLES = {
    **{f"{dtype}".removeprefix("torch."): {"dtype": dtype} for dtype in (torch.float64, torch.float32, *HALVES)},
    "masked": {"masked": True},
    "a radius a row": {"per_row": True, "masked": True},
    "no rows": {"lead": (0, 2)},
    "one entry": {"k": 1},
}


@pytest.mark.parametrize("key", SAMPLES)
def test_opcheck_of_hinge(key):
    torch.library.opcheck(_losses.hinge_op, op_sample(**SAMPLES[key]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_fake_and_meta_tensors_have_the_shape_and_dtype_of_real_ones(name, dtype):
    z, y, mask, _ = sample(3, 4, dtype=dtype)
    for reduction in ("none", "mean"):
        real = loss(name, z, y, mask=mask, reduction=reduction)
        with FakeTensorMode() as mode:
            given = [mode.from_tensor(t) for t in (z, y, mask)]
            fake = loss(name, given[0], given[1], mask=given[2], reduction=reduction)
        assert (fake.shape, fake.dtype) == (real.shape, real.dtype)
        meta = loss(name, z.to("meta").requires_grad_(), y.to("meta"), mask=mask.to("meta"), reduction=reduction)
        assert (meta.shape, meta.dtype, meta.device.type) == (real.shape, real.dtype, "meta")
        meta.sum().backward()


@pytest.mark.parametrize("tracing", ["real", "symbolic"])
def test_make_fx_records_a_graph_that_gives_the_same(name, tracing):
    z, y, _, _ = sample(4)
    other, labels, _, _ = sample(4, seed=9)
    f = lambda z, y: loss(name, z, y)  # noqa: E731
    close(make_fx(f, tracing_mode=tracing)(z, y)(other, labels), f(other, labels), scale=64)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_does_not_change_gradients(name, reentrant):
    z, y, _, _ = sample(4)
    own = z.clone().requires_grad_()
    checkpoint(lambda z: loss(name, z, y), own, use_reentrant=reentrant).backward()
    close(own.grad, gradients(name, z, y)[1])


BROKEN = {
    "no label": ([0.0, 1.0, 2.0], [0.0, 0.0, 0.0]),
    "a label that is hidden": ([0.0, -INF, 2.0], [0.0, 1.0, 1.0]),
    "the only label hidden": ([0.0, -INF, 2.0], [0.0, 1.0, 0.0]),
    "an index above": ([0.0, 1.0, 2.0], 3),
    "an index below": ([0.0, 1.0, 2.0], -1),
    "the index of a hidden entry": ([0.0, -INF, 2.0], 1),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_target_that_cannot_be_looked_at_and_is_none_gives_nan(kind, name):
    z, y = BROKEN[kind]
    z = torch.tensor([[0.5, 0.25, 1.0], z])
    y = torch.tensor([0, y]) if isinstance(y, int) else torch.tensor([[1.0, 1.0, 0.0], y])
    assert vmap(lambda z, y: loss(name, z, y))(z, y).isnan().tolist() == [False, True]


@pytest.mark.parametrize("name", CONTROLLED)
def test_controls_out_of_range_give_nan_and_numbers_are_refused_in_torch_func_too(name):
    z, y, _, _ = sample(2)
    bad = torch.tensor([0.5, 1.0 if LOSSES[name] == "lam" else 0.0], dtype=torch.float64)
    assert vmap(lambda z, y, c: loss(name, z, y, c))(z, y, bad).isnan().tolist() == [False, True]
    with pytest.raises(ValueError, match=f"sparsegen: {LOSSES[name]} must be "):
        grad(lambda z: loss(name, z, y, -1.0 if LOSSES[name] == "q" else 1.5))(z)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("k", [1, 4, 40])
def test_the_sort_path_is_the_kernel_on_ties_and_masks(k, masked, dtype):
    for dyadic, offset in ((True, 0.0), (False, 0.0), (True, 64.0)):
        z, y, mask, _ = sample(7, 3, k=k, dyadic=dyadic)
        if k == 40:
            y[0] |= mask[0]  # more labels than the kernel pairs up
            y[1] = mask[1] = True
        z = (z + offset).to(dtype)
        z[2, 0, 0] = NAN
        y[3] = False
        mask = mask if masked else None
        for radius in (
            torch.tensor(1.0, dtype=torch.float64),
            torch.linspace(0.1, 9, 21, dtype=torch.float64).view(7, 3),
        ):
            got = _plain.hinge_labels(z, radius, y, mask)
            want = _losses.hinge_op(z, radius, y, mask)
            for a, b in zip(got, want):
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                close(a / k, b / k, scale=64)


def test_the_sort_path_knows_hidden_labels_and_broken_radii(monkeypatch):
    z, y, _, _ = sample(5, k=4)
    z[1, y[1].nonzero()[0]] = -INF
    radius = torch.tensor([1.0, 1.0, INF, NAN, 2.0], dtype=torch.float64)
    got, want = _plain.hinge_labels(z, radius, y, None), _losses.hinge_op(z, radius, y, None)
    for a, b in zip(got, want):
        assert (a.isnan().reshape(5, -1).all(1) == torch.tensor([False, True, True, True, False])).all()
        close(a, b)
    monkeypatch.setattr(_cpu, "hinge", None)  # other devices do not have it
    elsewhere = torch.zeros(1, 2, device="meta")
    assert [t.shape for t in _losses.hinge_op(elsewhere, elsewhere[0, 0], elsewhere > 0, None)] == [(1,), (1,), (1, 2)]
