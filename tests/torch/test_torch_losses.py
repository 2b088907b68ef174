"""The losses on tensors: NumPy's values, the closed-form gradients, every target, dtype and module."""

from __future__ import annotations

import copy
import io
import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn

import loss_oracle
import sparsegen as sg
import sparsegen.torch as sgt
from loss_oracle import HINGES, LOSSES
from test_torch_cases import HALVES, close

NAN, INF = math.nan, math.inf
NUMBERS = {"lam": -0.5, "q": 0.75}
CONTROLLED = tuple(name for name in LOSSES if LOSSES[name])


def loss(name, scores, target, control=None, **how):
    key = LOSSES[name]
    own = {key: NUMBERS[key] if control is None else control} if key else {}
    return getattr(sgt if isinstance(scores, torch.Tensor) else sg, f"{name}_loss")(scores, target, **own, **how)


def sample(*lead, k=6, seed=0, dyadic=False, dtype=torch.float64):
    """Scores, multi-hot labels, a mask that shows them, and positive weights."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(*lead, k, dtype=torch.float64, generator=g)
    y = torch.rand(*lead, k, generator=g) < 0.35
    y.scatter_(-1, torch.randint(0, k, (*lead, 1), generator=g), True)
    mask = (torch.rand(*lead, k, generator=g) < 0.7) | y
    z = (z * 2).round() / 2 if dyadic else z
    return z.to(dtype), y, mask, torch.rand(*lead, dtype=torch.float64, generator=g)


def gradients(name, z, y, control=None, **how):
    """Loss and its gradients in scores and (if a tensor) control."""
    z = z.detach().clone().requires_grad_()
    inputs = [z, control.detach().clone().requires_grad_()] if isinstance(control, torch.Tensor) else [z]
    value = loss(name, z, y, inputs[1] if len(inputs) > 1 else control, **how)
    return value.detach(), *torch.autograd.grad(value.sum(), inputs)


@pytest.fixture(params=LOSSES)
def name(request):
    return request.param


def control_of(name, kind, lead):
    if not LOSSES[name] or kind == "number":
        return None
    shape = {"tensor": (), "each": lead, "some": (*lead[:-1], 1)}[kind]
    g = torch.Generator().manual_seed(3)
    return 0.25 + torch.rand(shape, dtype=torch.float64, generator=g) / 2


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["number", "tensor", "each", "some"])
def test_values_and_gradients_are_numpys(name, kind, masked, weighted, reduction):
    for lead, dyadic in (((3, 4), False), ((12,), True)):
        z, y, mask, weight = sample(*lead, k=8, dyadic=dyadic)
        control = control_of(name, kind, lead)
        how = {"reduction": reduction, "mask": mask if masked else None, "weight": weight if weighted else None}
        value, *grads = gradients(name, z, y, control, **how)
        own = {key: v.numpy() if isinstance(v, torch.Tensor) else v for key, v in how.items()}
        given = control.numpy() if control is not None else None
        want, expected = loss(name, z.numpy(), y.numpy(), given, return_grad=True, **own)
        close(value, want, scale=64)
        close(grads[0], expected.scores, scale=64)
        if control is not None:
            close(grads[1], getattr(expected, LOSSES[name]), scale=256)


@pytest.mark.parametrize("dyadic", [False, True])
def test_autograd_is_the_closed_form(name, dyadic):
    z, y, _, _ = sample(8, k=4, dyadic=dyadic)  # means over 4 entries are exact
    control = control_of(name, "each", (8,))
    value, *grads = gradients(name, z, y, control, reduction="none")
    for i in range(len(z)):
        number = 0.0 if control is None else control[i].item()
        want = loss_oracle.row(name, z[i].tolist(), loss_oracle.shares(y[i]), number)
        close(value[i], want.value, scale=64)
        close(grads[0][i], want.grad, scale=64)
        if control is not None:
            close(grads[1][i], want.along, scale=256)


def pairwise(name, z, y, control):
    """The double sums of the paper in torch, one row; relu and abs have the slope 0 at 0."""
    first, second = z[y], z[~y]
    inside = first[:, None] - first
    eta = 1 / int(y.sum())
    if name == "sparsegen_hinge":
        gamma = 1 / (1 - control)
        return (gamma * inside).abs().sum() + torch.relu(eta - gamma * (first[:, None] - second)).sum()
    k = len(z)
    radius = (z.sum().abs() + k * control) / (1 + k * control)
    return inside.abs().sum() + torch.relu(eta * radius - (first[:, None] - second)).sum()


@pytest.mark.parametrize("name", HINGES)
@pytest.mark.parametrize("k", [4, 8, 64])
def test_autograd_through_the_pairs_gives_the_same_at_kinks(name, k):
    z, y, _, _ = sample(20, k=k, dyadic=True)
    for number in (0.5, 0.25) if name == "sparsehourglass_hinge" else (0.0, 0.5, -1.0):
        control = torch.full((20,), number, dtype=torch.float64)
        value, *grads = gradients(name, z, y, control, reduction="none")
        leaf, own = z.clone().requires_grad_(), control.clone().requires_grad_()
        want = torch.stack([pairwise(name, *row) for row in zip(leaf, y, own)])
        expected = torch.autograd.grad(want.sum(), (leaf, own))
        close(value, want, scale=256)
        close(grads[0], expected[0], scale=256)
        close(grads[1], expected[1], scale=1024)


@pytest.mark.parametrize("k", [3, 5, 6, 7, 11, 13])
def test_scores_that_add_up_to_0_have_no_pull_on_the_sum(k):
    for seed in range(20):
        z = torch.randint(-8, 9, (k,), generator=torch.Generator().manual_seed(seed)).double() / 8
        z[-1] -= z.sum()
        y = torch.arange(k) < 1
        _, grad = gradients("sparsehourglass_hinge", z, y, control=0.3)
        assert grad.sum() == 0, z  # the pull would add to every entry, the pairs cancel


def sparse(layout):
    return lambda y: y.double().to_sparse(layout=layout)


TARGETS = {
    "int": lambda y: y.long(),
    "uint8": lambda y: y.to(torch.uint8),
    "float": lambda y: y.double(),
    "bfloat16": lambda y: y.bfloat16(),
    "shares": lambda y: y / y.sum(-1, keepdim=True),
    "half shares": lambda y: (y / y.sum(-1, keepdim=True)).half(),
    "bfloat16 shares": lambda y: (y / y.sum(-1, keepdim=True)).bfloat16(),
    "strided": lambda y: y.t().contiguous().t(),
    "array": lambda y: y.numpy(),
    "lists": lambda y: y.tolist(),
    "coo": sparse(torch.sparse_coo),
    "csr": sparse(torch.sparse_csr),
    "scipy csr": lambda y: sp.csr_array(y.numpy()),
    "scipy coo": lambda y: sp.coo_array(y.numpy()),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")  # has a test of its own
@pytest.mark.parametrize("form", TARGETS)
def test_every_form_of_a_target_gives_the_same_loss(form, name):
    z, y, _, _ = sample(5)
    want, target = gradients(name, z, y), TARGETS[form](y)
    for got, expected in zip(gradients(name, z, target), want):
        close(got, expected)
    if form == "csr":
        return  # torch.func itself cannot read it
    functional = torch.func.grad_and_value(lambda z: loss(name, z, target))(z)
    tolerant = "shares" in form and form != "shares"  # half shares are not looked at there, so not rounded back
    close(functional[1], want[0], torch.bfloat16 if tolerant else torch.float64, scale=64)


def test_a_sparse_tensor_is_read_without_a_warning(name):
    z, y, _, _ = sample(2)
    torch.set_warn_always(True)  # or torch would warn the first caller only
    try:
        loss(name, z, y.to_sparse())
    finally:
        torch.set_warn_always(False)


def test_class_indices_and_rows_to_ignore_are_numpys(name):
    z, _, _, weight = sample(3, 4)
    index = torch.randint(0, 6, (3, 4), generator=torch.Generator().manual_seed(1))
    index[0, 1] = index[2, 3] = -100
    z[0, 1], z[2, 3, 2] = NAN, INF
    for how in ({}, {"weight": weight}, {"reduction": "sum"}, {"reduction": "none"}):
        value, grad = gradients(name, z, index, **how)
        own = {key: v.numpy() if isinstance(v, torch.Tensor) else v for key, v in how.items()}
        want, expected = loss(name, z.numpy(), index.numpy(), return_grad=True, **own)
        close(value, want)
        close(grad, expected.scores)
        assert (grad[0, 1] == 0).all()


def test_rows_without_labels_and_rows_of_no_weight_do_no_harm(name):
    z, y, mask, weight = sample(6)
    z[2], y[2], mask[2] = NAN, False, False
    z[4, 1], weight[4] = NAN, 0
    how = {"ignore_empty": True, "mask": mask, "weight": weight}
    value, grad = gradients(name, z, y, **how)
    kept = [0, 1, 3, 5]
    want, expected = gradients(name, z[kept], y[kept], mask=mask[kept], weight=weight[kept])
    close(value, want)
    close(grad[kept], expected)
    assert (grad[[2, 4]] == 0).all()


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_spoilt_row_is_nan_alone(bad, name):
    z, y, _, _ = sample(5)
    want, expected = gradients(name, z, y, reduction="none")
    z[2, 1] = bad
    value, grad = gradients(name, z, y, reduction="none")
    others = [0, 1, 3, 4]
    close(value[others], want[others])
    close(grad[others], expected[others])
    assert value[2].isnan()


@pytest.mark.parametrize("junk", [NAN, INF, -INF])
def test_what_a_mask_hides_reaches_neither_value_nor_gradient(junk, name):
    z, y, mask, _ = sample(5)
    want = gradients(name, z, y, mask=mask)
    for got, expected in zip(gradients(name, torch.where(mask, z, junk), y, mask=mask), want):
        close(got, expected)
    assert (want[1][~mask] == 0).all()
    for got, expected in zip(gradients(name, torch.where(mask, z, -INF), y), want):
        close(got, expected)


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (2, 0), (0, 0)])
def test_nothing_has_a_loss_of_0(shape, name):
    z = torch.zeros(shape, requires_grad=True)
    value = loss(name, z, torch.zeros(shape), ignore_empty=True)
    assert value == 0
    value.backward()
    assert z.grad.shape == shape
    assert loss(name, z, torch.full(shape[:-1], -100)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_narrow_scores_have_float32_losses_and_gradients_of_their_own_dtype(dtype, name):
    z, y, mask, _ = sample(5, dtype=dtype)
    value, grad = gradients(name, z, y, mask=mask)
    want, expected = gradients(name, z.double(), y, mask=mask)
    assert (value.dtype, grad.dtype) == (torch.float32, dtype)
    close(value, want, torch.float32, scale=64)
    close(grad / 16, expected / 16, dtype, scale=8)


@pytest.mark.parametrize("name", CONTROLLED)
def test_a_control_may_be_narrow_and_want_a_gradient_alone(name):
    z, y, _, _ = sample(5)
    control = torch.tensor(0.5, requires_grad=True)
    value = loss(name, z, y, control)
    value.backward()
    _, expected = loss(name, z.numpy(), y.numpy(), 0.5, return_grad=True)
    assert control.grad.dtype == torch.float32
    close(control.grad, getattr(expected, LOSSES[name]), torch.float32)


@pytest.mark.parametrize("name", CONTROLLED)
def test_a_tensor_control_out_of_range_spoils_its_row_only(name):
    z, y, _, _ = sample(3)
    control = torch.tensor([0.5, NAN if LOSSES[name] == "lam" else 0.0, 0.25], dtype=torch.float64)
    value = loss(name, z, y, control, reduction="none")
    assert value.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("layout", ["transposed", "expanded", "sliced"])
def test_any_layout_of_the_scores_will_do(layout, name):
    z, y, mask, _ = sample(6)
    z = z[:1].expand(6, 6) if layout == "expanded" else z
    other = {"transposed": z.t().contiguous().t(), "expanded": z, "sliced": z.repeat_interleave(2, 1)[:, ::2]}[layout]
    leaf = other.detach().requires_grad_()
    value = loss(name, leaf, y, mask=mask.t().contiguous().t())
    (grad,) = torch.autograd.grad(value, leaf)
    for got, want in zip((value, grad), gradients(name, z.contiguous(), y, mask=mask)):
        close(got, want)


def test_without_gradients_the_value_is_the_same_and_there_is_no_graph(name):
    z, y, _, _ = sample(5)
    want, _ = gradients(name, z, y)
    with torch.no_grad():
        value = loss(name, z.requires_grad_(), y)
    assert not value.requires_grad
    close(value, want)
    assert not loss(name, z.detach(), y).requires_grad


def test_two_backward_passes_add_up(name):
    z, y, _, _ = sample(5)
    z.requires_grad_()
    value = loss(name, z, y)
    value.backward(retain_graph=True)
    once = z.grad.clone()
    value.backward()
    close(z.grad, 2 * once)


MODULES = {
    "SoftmaxLogLoss(reduction='mean')": sgt.SoftmaxLogLoss,
    "SoftmaxLogLoss(reduction='sum')": lambda: sgt.SoftmaxLogLoss(reduction="sum"),
    "SparsemaxHuberLoss(lam=0.0, reduction='mean')": sgt.SparsemaxHuberLoss,
    "SparsemaxHuberLoss(lam=-1.0, reduction='none')": lambda: sgt.SparsemaxHuberLoss(lam=-1, reduction="none"),
    "SparsegenHingeLoss(lam=0.5, reduction='mean')": lambda: sgt.SparsegenHingeLoss(lam=0.5),
    "SparsegenHingeLoss(lam=tensor(5,), reduction='mean')": lambda: sgt.SparsegenHingeLoss(lam=torch.zeros(5)),
    "SparsehourglassHingeLoss(q=1.0, reduction='mean')": sgt.SparsehourglassHingeLoss,
    "SparsehourglassHingeLoss(q=tensor(), reduction='mean')": lambda: sgt.SparsehourglassHingeLoss(
        q=nn.Parameter(torch.tensor(2.0))
    ),
}


@pytest.mark.parametrize("text", MODULES)
def test_a_module_shows_its_arguments_and_scores_as_its_function(text):
    module, (z, y, mask, weight) = MODULES[text](), sample(5)
    assert repr(module) == text
    key = module.row.control
    own = {key: getattr(module, key)} if key else {}
    for args in ((), (mask,), (mask, weight)):
        how = dict(zip(("mask", "weight"), args))
        want = getattr(sgt, f"{module.row.name}_loss")(z, y, reduction=module.reduction, **own, **how)
        assert torch.equal(module(z, y, *args), want)


@pytest.mark.parametrize("text", MODULES)
def test_copies_and_saved_states_score_the_same(text):
    module, (z, y, _, _) = MODULES[text](), sample(5)
    other, buffer = copy.deepcopy(module), io.BytesIO()
    with torch.no_grad():
        for t in (*other.parameters(), *other.buffers()):
            t.add_(0.125)
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True), strict=True)
    assert torch.equal(other(z, y), module(z, y))


def test_a_tensor_is_a_buffer_and_a_parameter_stays_one():
    fixed, learnt = (
        sgt.SparsegenHingeLoss(lam=torch.zeros(2)),
        sgt.SparsegenHingeLoss(lam=nn.Parameter(torch.zeros(()))),
    )
    assert [n for n, _ in fixed.named_buffers()] == ["lam"]
    assert [n for n, _ in learnt.named_parameters()] == ["lam"]
    assert fixed.to(torch.float64).lam.dtype == torch.float64
    z, y, _, _ = sample(2)
    learnt(z, y).backward()
    close(learnt.lam.grad, gradients("sparsegen_hinge", z, y, torch.tensor(0.0))[2], torch.float32)


def test_a_module_leaves_out_what_it_is_told_to():
    z, y, _, _ = sample(3)
    y[1] = False
    module = sgt.SparsegenHingeLoss(ignore_empty=True)
    close(module(z, y), sgt.sparsegen_hinge_loss(z[[0, 2]], y[[0, 2]]))
    index = torch.tensor([1, 9, 2])
    close(sgt.SoftmaxLogLoss(ignore_index=9)(z, index), sgt.softmax_log_loss(z[[0, 2]], index[[0, 2]]))


BIG = """
import resource
import torch
import sparsegen.torch as sgt

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MB

z = torch.randn(4, 200_000, dtype=torch.float64, requires_grad=True)
sgt.sparsegen_hinge_loss(z[:, :9], torch.zeros(4, dtype=torch.long)).backward()
for labels in (50, 1000):
    y = torch.zeros(4, 200_000, dtype=torch.bool)
    y[:, :labels] = True
    before = peak()
    for f in (sgt.sparsegen_hinge_loss, sgt.sparsehourglass_hinge_loss):
        f(z, y).backward()
    print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak in kilobytes, as Linux has it")
def test_memory_grows_with_the_entries_and_not_with_the_labels():
    run = subprocess.run([sys.executable, "-c", BIG], capture_output=True, text=True, timeout=120, check=True)
    scores = 4 * 200_000 * 8 / 2**20  # 6.1 MB; the pairs of one row are 76 MB with 50 labels and 1526 with 1000
    assert all(float(line) < 10 * scores for line in run.stdout.split())


@pytest.mark.parametrize("ignore", [torch.tensor(1), torch.tensor(1, dtype=torch.int32), np.int64(1), np.array(1)])
def test_ignore_index_is_any_one_integer(ignore):
    z, y = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 1])
    want = sgt.softmax_log_loss(z, y, ignore_index=1)
    assert torch.equal(sgt.softmax_log_loss(z, y, ignore_index=ignore), want)
    assert torch.equal(sgt.SoftmaxLogLoss(ignore_index=ignore)(z, y), want)
    by_formula = torch.func.vmap(lambda z, y: sgt.softmax_log_loss(z, y, ignore_index=ignore))(z[None], y[None])
    torch.testing.assert_close(by_formula[0], want)
    assert sg.softmax_log_loss(z.numpy(), y.numpy(), ignore_index=ignore) == pytest.approx(want.item())


@pytest.mark.parametrize("ignore", [1.0, "1", None, torch.tensor(1.0), torch.tensor([1, 2])])
def test_an_ignore_index_that_is_no_integer_is_refused(ignore):
    for call in (
        lambda: sgt.softmax_log_loss(torch.randn(2, 3), torch.tensor([0, 1]), ignore_index=ignore),
        lambda: sgt.SoftmaxLogLoss(ignore_index=ignore)(torch.randn(2, 3), torch.tensor([0, 1])),
        lambda: sg.softmax_log_loss([[1.0, 2.0, 3.0]], [0], ignore_index=ignore),
    ):
        with pytest.raises(TypeError, match=r"^sparsegen: ignore_index must be an integer, got "):
            call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_an_offset_costs_the_log_loss_no_digits(dtype):
    z = torch.tensor([[1024.0, 1024.0], [-1024.0, -1024.0]], dtype=dtype)
    found = sgt.softmax_log_loss(z, torch.tensor([0, 1]), reduction="none")
    assert (found.double() - math.log(2)).abs().max() <= 2.0**-23


def test_the_sign_of_a_mean_next_to_zero_is_not_lost():
    """Multiples 1, 8, 6, -7, ... of a number, each rounded: they add up to -2^-46, and to 0 if added in order."""
    z = np.array([1, 8, 6, -7, -6, -7, 8, 4, -3, -4]) * 17.435776723550426
    assert sum(map(Fraction, z)) == -(2.0**-46)
    y = np.array([0, 0, 0, 1, 1, 1, 1, 1, 0, 1])
    t = torch.tensor(z, requires_grad=True)
    sgt.sparsehourglass_hinge_loss(t, torch.tensor(y), q=0.5).backward()
    wanted = sg.sparsehourglass_hinge_loss(z, y, q=0.5, return_grad=True)[1].scores
    np.testing.assert_allclose(t.grad, wanted, rtol=1e-14)
    assert t.grad[0] == pytest.approx(3.4722222222222223, rel=1e-14)
