"""What the kernel reads is what a tensor says, however torch keeps it.

Views that are negated as they are read, zeros that were never written, copies that are put off, subclasses whose
numbers lie elsewhere.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import sparsegen.torch as sgt
from test_torch_cases import CONTROLLED, NAMES, control_tensors, controls, scores, some_mask, torch_map

# A test hands each tensor over as one of these.
FORMS = {
    "negated": lambda t: torch._neg_view(-t) if t.is_floating_point() else t,
    "imaginary part of a conjugate": lambda t: torch.complex(t, -t).conj().imag if t.dtype in WIDE else t,
    **({"copy on write": torch._lazy_clone} if hasattr(torch.Tensor, "const_data_ptr") else {}),
}
WIDE = (torch.float32, torch.float64)
KEYS = {"lam": 0.25, "q": 0.5}


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


def _same(call, tensors, form):
    """Each tensor in turn, and all of them, in another form: the same bits, and copies stay copies."""
    want = call(**tensors)
    for names in ([name] for name in tensors), [list(tensors)]:
        for changed in names:
            given = {name: form(t) if name in changed else t for name, t in tensors.items()}
            cow = [name for name, t in given.items() if torch._C._is_cow_tensor(t)]
            got = call(**given)
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
            assert all(torch._C._is_cow_tensor(given[name]) for name in cow), "a copy was made"


def _with_gradients(f, tensors, upstream):
    leaves = {name: t.detach().requires_grad_() for name, t in tensors.items() if t.is_floating_point()}
    rest = {name: t for name, t in tensors.items() if name not in leaves}
    p = f(**leaves, **rest)
    return p.detach(), torch.autograd.grad(p, list(leaves.values()), upstream)


@pytest.mark.parametrize("shape", [(4, 5), (3, 80), (2, 3, 4)])
@pytest.mark.parametrize("name", NAMES)
def test_a_map_reads_what_a_tensor_says(name, shape, form):
    for dim in (-1, 0):
        for dtype in (torch.float32, torch.bfloat16):
            _same(
                lambda z, dim=dim: torch_map(name)(z, dim=dim, **controls(name)),
                {"z": scores(name, *shape, dtype=dtype)},
                form,
            )


@pytest.mark.parametrize("name", NAMES)
def test_a_map_reads_scores_masks_controls_and_upstream_gradients_as_they_are(name, form):
    def call(z, v, mask=None, **given):
        f = lambda z, **g: torch_map(name)(z, mask=mask, **{**controls(name), **g})  # noqa: E731
        return _with_gradients(f, {"z": z, **given}, v)

    for n in (5, 80):
        tensors = {"z": scores(name, 4, n), "v": scores("sparsemax", 4, n, seed=1)}
        _same(call, tensors, form)
        tensors["mask"] = some_mask(4, n)
        _same(call, tensors, form)
        for shape in ((), (4,)):
            _same(call, {**tensors, **control_tensors(name, shape)}, form)


def test_project_reads_its_radius_as_it_is(form):
    tensors = {"z": scores("sparsemax", 4, 5), "radius": torch.full((4,), 0.5, dtype=torch.float64)}
    _same(lambda z, radius: sgt.project(z, radius), tensors, form)


LOSSES = {
    "softmax_log_loss": None,
    "sparsemax_huber_loss": "lam",
    "sparsegen_hinge_loss": "lam",
    "sparsehourglass_hinge_loss": "q",
}


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_reads_scores_targets_weights_and_controls_as_they_are(name, dense, form):
    key, loss = LOSSES[name], getattr(sgt, name)

    def call(z, y, w, v, mask, **control):
        return _with_gradients(
            lambda z, **c: loss(z, y, weight=w, mask=mask, reduction="none", **c), {"z": z, **control}, v
        )

    y = torch.tensor([0, 1, 2, 0])
    tensors = {
        "z": scores("sparsemax", 4, 5), "y": torch.nn.functional.one_hot(y, 5).double() if dense else y,
        "w": torch.tensor([1.0, 2.0, 0.5, 1.0], dtype=torch.float64), "v": torch.ones(4, dtype=torch.float64),
        "mask": torch.tensor([True, True, True, True, False]),
    }  # fmt: skip
    if key:
        tensors[key] = torch.tensor(KEYS[key], dtype=torch.float64)
    _same(call, tensors, form)


@pytest.mark.parametrize("masked", [None, "bool", "float"])
@pytest.mark.parametrize("mapping", ["sparsemax", "sparsegen_lin", "sparsehourglass", "sparsegen_exp", "softmax"])
def test_attention_reads_everything_as_it_is(mapping, masked, form):
    def call(query, key, value, up, attn_mask=None, **control):
        f = partial(sgt.sparse_attention, mapping=mapping, attn_mask=attn_mask)
        return _with_gradients(f, {"query": query, "key": key, "value": value, **control}, up)

    tensors = {name: scores("sparsemax", 2, 4, 3, seed=i) for i, name in enumerate(("query", "key", "value", "up"))}
    if masked:
        tensors["attn_mask"] = some_mask(4, 4) if masked == "bool" else scores("sparsemax", 4, 4, seed=9)
    _same(call, {**tensors, **control_tensors(mapping, (4,))}, form)


def test_the_controls_are_found_from_what_a_tensor_says(form):
    z, mask = scores("sparsemax", 4, 5), torch.tensor([True, True, True, True, False])
    for find in (
        lambda z, mask: sgt.lam_for_support(z, 2, mask=mask),
        lambda z, mask: sgt.lam_for_peak(z, 0.75, mask=mask),
        lambda z, mask: sgt.lam_for_mean_support(z, 2.0, mask=mask),
        lambda z, mask: sgt.explain(z, mask=mask).threshold,
        lambda z, mask: sgt.calibrate([z], mean_support=2.0),
    ):
        _same(lambda z, mask, find=find: torch.as_tensor(find(z, mask)), {"z": z, "mask": mask}, form)


def test_the_modules_read_what_a_tensor_says(form):
    torch.manual_seed(0)
    attention = sgt.MultiheadAttention(8, 2, mapping="sparsegen_lin", lam=[0.5, 0.0], batch_first=True)
    _same(lambda x: attention(x, x, x)[0].detach(), {"x": torch.randn(2, 4, 8)}, form)
    _same(lambda x: sgt.Sparsegen(0.5)(x), {"x": torch.randn(2, 4, 8)}, form)


def test_an_operator_reads_what_a_tensor_says(form):
    p = sgt.sparsemax(scores("sparsemax", 4, 5))
    tensors = {"z": scores("sparsemax", 4, 5), "radius": torch.tensor(0.5, dtype=torch.float64)}
    _same(lambda z, radius: torch.ops.sparsegen.project(z, radius, -1, None), tensors, form)
    _same(lambda v: torch.ops.sparsegen.project_vjp(p, v, tensors["radius"], -1)[0], {"v": tensors["z"]}, form)


def test_zeros_that_torch_never_wrote_are_zeros():
    zeros = torch._efficientzerotensor((2, 4))
    assert zeros.data_ptr() == 0
    assert torch.equal(sgt.sparsemax(zeros), torch.full((2, 4), 0.25))
    for n in (4, 80):
        z = scores("sparsemax", 2, n, dtype=torch.float32).requires_grad_()
        sgt.sparsemax(z).backward(torch._efficientzerotensor((2, n)))
        assert torch.equal(z.grad, torch.zeros(2, n))


def _two(t):
    return TwoTensor(t, t.clone())


@pytest.mark.parametrize("name", CONTROLLED)
def test_a_subclass_as_a_control_or_mask_is_never_read_as_memory(name):
    z, mask = scores(name, 4, 5), some_mask(4, 5)
    (key, value), *_ = controls(name).items()
    want = torch_map(name)(z, mask=mask, **{key: value})
    for given in (
        {"mask": mask, key: _two(torch.tensor(value, dtype=torch.float64))},
        {"mask": _two(mask), key: value},
        {"mask": _two(mask), key: _two(torch.full((4,), value, dtype=torch.float64))},
    ):
        got = torch_map(name)(z, **given)
        torch.testing.assert_close(got.a if isinstance(got, TwoTensor) else got, want)


@pytest.mark.parametrize("which", ["z", "y", "w", "c", "mask"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_subclass_in_a_loss_is_never_read_as_memory(name, which):
    key = LOSSES[name]
    tensors = {
        "z": scores("sparsemax", 4, 5), "y": torch.tensor([0, 1, 2, 0]), "w": torch.ones(4, dtype=torch.float64),
        "c": torch.tensor(0.25, dtype=torch.float64), "mask": torch.tensor([True, True, True, True, False]),
    }  # fmt: skip

    def call(z, y, w, c, mask):
        return getattr(sgt, name)(z, y, weight=w, mask=mask, **({key: c} if key else {}))

    want = call(**tensors)
    got = call(**{**tensors, which: _two(tensors[which])})
    torch.testing.assert_close(got.a if isinstance(got, TwoTensor) else got, want)


@pytest.mark.parametrize("which", ["query", "key", "value", "attn_mask", "lam"])
def test_a_subclass_in_attention_is_never_read_as_memory(which):
    tensors = {name: scores("sparsemax", 2, 4, 3, seed=i) for i, name in enumerate(("query", "key", "value"))}
    tensors |= {"attn_mask": some_mask(4, 4), "lam": torch.tensor(0.25, dtype=torch.float64)}
    want = sgt.sparse_attention(**tensors, mapping="sparsegen_lin")
    got = sgt.sparse_attention(**{**tensors, which: _two(tensors[which])}, mapping="sparsegen_lin")
    torch.testing.assert_close(got.a if isinstance(got, TwoTensor) else got, want)


@pytest.mark.parametrize("find", [lambda z: sgt.lam_for_support(z, 2), lambda z: sgt.explain(z)])
def test_a_control_cannot_be_found_from_numbers_that_are_not_there(find):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.randn(2, 4)
    for z in (fake, torch.randn(2, 4, device="meta"), _two(torch.randn(2, 4))):
        with pytest.raises((TypeError, ValueError), match=r"^sparsegen: scores must be .*, got "):
            find(z)


def test_a_sharded_control_is_refused_by_torch_and_not_read_as_memory(tmp_path):
    import torch.distributed as dist
    from torch.distributed.tensor import DeviceMesh, Replicate, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        lam = distribute_tensor(torch.tensor(0.3), DeviceMesh("cpu", [0]), [Replicate()])
        with pytest.raises((RuntimeError, NotImplementedError)):
            sgt.sparsegen_hinge_loss(torch.randn(4, 5), torch.tensor([0, 1, 2, 3]), lam=lam)
    finally:
        dist.destroy_process_group()
