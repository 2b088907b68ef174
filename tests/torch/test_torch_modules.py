"""The maps as modules: what they show, keep and learn."""

from __future__ import annotations

import copy
import io
import math
import pickle

import pytest
import torch

import sparsegen.torch as sgt
from test_torch_cases import close, scores, some_mask

# class, name of its control, a value, its range (1 - lam may be positive and too small for the digits of lam)
CONTROLLED = {
    "Sparsegen": (sgt.Sparsegen, "lam", 0.5, lambda lam: lam <= 1),
    "Sparsecone": (sgt.Sparsecone, "q", 2.0, lambda q: q >= 0),
    "Sparsehourglass": (sgt.Sparsehourglass, "q", 2.0, lambda q: q >= 0),
    "Softmax": (sgt.Softmax, "temperature", 0.5, lambda t: t > 0),
}
FUNCTIONS = {
    "Sparsegen": sgt.sparsegen_lin,
    "Sparsecone": sgt.sparsecone,
    "Sparsehourglass": sgt.sparsehourglass,
    "Softmax": sgt.softmax,
}
MODULES = {
    "Sparsemax()": sgt.Sparsemax,
    "Sparsegen(0.5)": lambda: sgt.Sparsegen(0.5),
    "Sparsegen(0.5, 'exp', learnable)": lambda: sgt.Sparsegen(0.5, "exp", learnable=True),
    "Sparsegen(tanh)": lambda: sgt.Sparsegen(0.25, torch.tanh),
    "Sparsecone(2.0)": lambda: sgt.Sparsecone(2.0),
    "Sparsehourglass(2.0, learnable)": lambda: sgt.Sparsehourglass(2.0, learnable=True),
    "Softmax(0.5, learnable, a head)": lambda: sgt.Softmax(0.5, learnable=True, shape=(3, 1)),
    "Softmax([1, 2, 3])": lambda: sgt.Softmax([[1.0], [2.0], [3.0]]),
}


@pytest.fixture(params=MODULES)
def module(request):
    return MODULES[request.param]()


@pytest.fixture(params=CONTROLLED)
def kind(request):
    return request.param


def _z(dtype=torch.float32):
    return scores("sparsecone", 2, 3, 4, 6, dtype=dtype)  # positive: in every domain


REPRS = {
    "Sparsemax(dim=-1)": sgt.Sparsemax,
    "Sparsemax(dim=0)": lambda: sgt.Sparsemax(dim=0),
    "Sparsegen(lam=0, transform='lin', learnable=False, dim=-1)": sgt.Sparsegen,
    "Sparsegen(lam=0.5, transform='exp', learnable=True, dim=1)": lambda: sgt.Sparsegen(0.5, "exp", True, dim=1),
    "Sparsegen(lam=-3, transform='tanh', learnable=False, dim=-1)": lambda: sgt.Sparsegen(-3, torch.tanh),
    "Sparsegen(lam=tensor(8, 1), transform='lin', learnable=True, dim=-1)": lambda: sgt.Sparsegen(
        0.5, learnable=True, shape=(8, 1)
    ),
    "Sparsecone(q=0.25, learnable=False, dim=-1)": lambda: sgt.Sparsecone(0.25),
    "Sparsehourglass(q=inf, learnable=False, dim=-1)": lambda: sgt.Sparsehourglass(math.inf),
    "Sparsehourglass(q=0.3333, learnable=True, dim=-2)": lambda: sgt.Sparsehourglass(1 / 3, True, dim=-2),
    "Softmax(temperature=2, learnable=False, dim=-1)": lambda: sgt.Softmax(2.0),
}


@pytest.mark.parametrize("text", REPRS)
def test_a_module_shows_its_arguments(text):
    assert repr(REPRS[text]()) == text


def test_a_module_maps_as_its_function(kind):
    build, control, value, _ = CONTROLLED[kind]
    for dim, mask in ((-1, None), (1, some_mask(3, 4, 6)), (-1, some_mask(2, 1, 1, 6))):
        got = build(value, dim=dim)(_z(), mask)
        close(got, FUNCTIONS[kind](_z(), dim=dim, mask=mask, **{control: value}), torch.float32)


def test_sparsemax_the_module_maps_as_its_function():
    mask = some_mask(3, 4, 6)
    assert torch.equal(sgt.Sparsemax(dim=1)(_z(), mask), sgt.sparsemax(_z(), dim=1, mask=mask))


@pytest.mark.parametrize("transform", ["lin", "exp", "sq", "log", torch.tanh])
def test_sparsegen_the_module_takes_every_transform(transform):
    for learnable in (False, True):
        got = sgt.Sparsegen(0.25, transform, learnable)(_z())
        close(got, sgt.sparsegen(_z(), lam=0.25, transform=transform), torch.float32)


def test_a_fixed_control_is_a_buffer_and_a_learnable_one_a_parameter(kind):
    build, control, value, _ = CONTROLLED[kind]
    fixed, learnable = build(value), build(value, learnable=True)
    assert (len(list(fixed.buffers())), len(list(fixed.parameters()))) == (1, 0)
    assert (len(list(learnable.buffers())), len(list(learnable.parameters()))) == (0, 1)
    for m in (fixed, learnable):
        torch.testing.assert_close(getattr(m, control).item(), value, rtol=1e-6, atol=0)


def test_a_control_of_a_shape_has_one_value_a_head(kind):
    build, control, value, _ = CONTROLLED[kind]
    m = build(value, learnable=True, shape=(8, 1))
    assert getattr(m, control).shape == (8, 1)
    assert next(m.parameters()).shape == (8, 1)
    z = scores("sparsecone", 2, 8, 4, 6, dtype=torch.float32)
    m(z).square().sum().backward()
    assert next(m.parameters()).grad.shape == (8, 1)
    assert (next(m.parameters()).grad != 0).all()


def test_heads_with_their_own_values_map_as_one_module_each(kind):
    build, _control, value, _ = CONTROLLED[kind]
    values = [value, value / 2, value / 4]
    together = build(torch.tensor(values)[:, None])(_z())
    for head, own in enumerate(values):
        close(together[:, head], build(own)(_z()[:, head]), torch.float32)


def test_the_gradient_of_a_learnable_control_is_the_functions(kind):
    build, control, value, _ = CONTROLLED[kind]
    m, v = build(value, learnable=True).double(), scores("sparsemax", 2, 3, 4, 6, seed=1)
    m(_z(torch.float64)).backward(v)
    theta = next(m.parameters()).detach().clone().requires_grad_()
    own = 1 - theta.exp() if control == "lam" else theta.exp()
    FUNCTIONS[kind](_z(torch.float64), **{control: own}).backward(v)
    torch.testing.assert_close(next(m.parameters()).grad, theta.grad)
    assert theta.grad != 0


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_an_absurd_step_leaves_the_control_in_range_and_all_finite(kind, direction):
    build, control, value, holds = CONTROLLED[kind]
    m = build(value, learnable=True)
    optimizer = torch.optim.SGD(m.parameters(), lr=1e6)
    for _ in range(3):
        optimizer.zero_grad()
        loss = direction * m(_z()).square().sum()
        assert loss.isfinite()
        loss.backward()
        assert all(p.grad.isfinite().all() for p in m.parameters())
        optimizer.step()
        assert holds(getattr(m, control))
        p = m(_z())
        close(p.sum(-1), torch.ones(p.shape[:-1]), torch.float32)


@pytest.mark.parametrize("theta", [1e6, -1e6, 200.0, -200.0, 80.0, -80.0])
def test_no_value_of_the_parameter_takes_the_control_out_of_range(kind, theta):
    build, control, value, holds = CONTROLLED[kind]
    m = build(value, learnable=True)
    with torch.no_grad():
        next(m.parameters()).fill_(theta)
    assert holds(getattr(m, control))
    p = m(_z())
    assert p.isfinite().all()
    p.square().sum().backward()
    assert next(m.parameters()).grad.isfinite()


def test_training_recovers_a_known_control(kind):
    build, control, value, _ = CONTROLLED[kind]
    z = scores("sparsecone", 200, 6, dtype=torch.float32)
    with torch.no_grad():
        target = build(value)(z)
    m = build(value / 4, learnable=True)
    optimizer = torch.optim.Adam(m.parameters(), lr=0.2)
    for _ in range(100):
        optimizer.zero_grad()
        (m(z) - target).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(getattr(m, control).item(), value, rtol=0.02, atol=0.02)


def test_lam_next_to_one_keeps_the_digits_of_the_radius():
    m, z = sgt.Sparsegen(1 - 1e-9), torch.tensor([0.5e-9, 0.0])
    close(m(z), sgt.project(z, 1e-9), torch.float32)
    assert m(z)[1] > 0.2


def test_a_state_dict_goes_round(module):
    other = copy.deepcopy(module)
    with torch.no_grad():
        for t in (*other.parameters(), *other.buffers()):
            t.add_(1.0)
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True), strict=True)
    assert torch.equal(other(_z()), module(_z()))


def _pair(kind, shape=()):
    """A fixed module and a learnable one, with controls that differ."""
    build, _, value, _ = CONTROLLED[kind]
    return build(value, shape=shape), build(value / 4, learnable=True, shape=shape)


@pytest.mark.parametrize("shape", [(), (3, 1)])
def test_a_fixed_and_a_learnable_control_load_each_others_state(kind, shape):
    for i, j in ((0, 1), (1, 0)):
        source, other = _pair(kind, shape)[i], _pair(kind, shape)[j]
        other.load_state_dict(source.state_dict(), strict=True)
        close(other(_z()), source(_z()), torch.float32)
        assert other.learnable != source.learnable


@pytest.mark.parametrize("theta", [0.1, -1.7, 3.3e-5, 200.0, -1e6])
def test_a_control_loads_bit_for_bit_into_its_own_form(kind, theta):
    for source, other in zip(_pair(kind), _pair(kind)):
        kept = next(iter((*source.parameters(), *source.buffers())))
        with torch.no_grad():
            kept.fill_(theta if source.learnable else abs(theta))
        other.load_state_dict(source.state_dict(), strict=True)
        assert torch.equal(next(iter((*other.parameters(), *other.buffers()))), kept)


def test_one_control_loads_into_a_shape(kind):
    for source in _pair(kind):
        for other in _pair(kind, (3, 1)):
            other.load_state_dict(source.state_dict(), strict=True)
            close(other(_z()), source(_z()), torch.float32)


def test_a_control_at_its_limit_does_not_load_into_a_learnable_one():
    with pytest.raises(RuntimeError, match=r"sparsegen: a learnable q must be inside its range.*, got inf\."):
        sgt.Sparsecone(1.0, learnable=True).load_state_dict(sgt.Sparsecone(math.inf).state_dict())


def test_states_of_float32_controls_still_load(kind):
    build, control, value, _ = CONTROLLED[kind]
    m = build(value)
    m.load_state_dict({"control": torch.tensor(0.375)}, strict=True)
    assert getattr(m, control).item() == (0.625 if control == "lam" else 0.375)


def test_copies_and_pickles_map_the_same_and_share_nothing(module):
    whole = io.BytesIO()
    torch.save(module, whole)
    whole.seek(0)
    copies = (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(whole, weights_only=False))
    for other in copies:
        assert repr(other) == repr(module)
        assert torch.equal(other(_z()), module(_z()))
        for mine, theirs in zip(module.parameters(), other.parameters()):
            assert mine.data_ptr() != theirs.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_module_moves_between_dtypes(module, dtype):
    moved = copy.deepcopy(module).to(dtype)
    assert all(t.dtype == dtype for t in moved.parameters())
    p = moved(_z(dtype))
    assert p.dtype == dtype
    close(p, module(_z(dtype).float()), dtype if dtype != torch.float64 else torch.float32, scale=64)
    assert moved(_z()).dtype == torch.float32


def test_a_module_goes_to_the_meta_device_and_back(module):
    meta = copy.deepcopy(module).to("meta")
    assert meta(torch.empty(2, 3, 4, 6, device="meta")).shape == (2, 3, 4, 6)
    empty = meta.to_empty(device="cpu")
    empty.load_state_dict(module.state_dict())
    assert torch.equal(empty(_z()), module(_z()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_cast_takes_no_digit_of_a_fixed_control_and_no_range_of_a_learnable_one(kind, dtype):
    build, control, value, _ = CONTROLLED[kind]
    fixed = build(value / 3)
    before = getattr(fixed, control).item()
    assert before == value / 3 if control != "lam" else before == pytest.approx(value / 3, rel=1e-15)
    assert getattr(fixed.to(dtype), control).item() == before
    assert getattr(fixed.double(), control).item() == before
    near = 0.999 if control == "lam" else 0.001
    cast = build(near, learnable=True).to(dtype)
    radius = 1 - getattr(cast, control).item() if control == "lam" else getattr(cast, control).item()
    theta = math.log(0.001)
    assert radius == pytest.approx(0.001, rel=2 * abs(theta) * torch.finfo(dtype).eps)


def test_a_module_is_built_on_the_meta_device(kind):
    build, _, value, _ = CONTROLLED[kind]
    for options in ({}, {"learnable": True}, {"shape": (3, 1)}, {"learnable": True, "shape": (3, 1)}):
        real = build(value, **options)
        with torch.device("meta"):
            meta = build(value, **options)
        assert all(t.is_meta for t in (*meta.parameters(), *meta.buffers()))
        assert repr(meta)
        assert meta(torch.empty(2, 3, 4, 6, device="meta")).shape == (2, 3, 4, 6)
        meta.to_empty(device="cpu")
        if meta.learnable:
            next(meta.parameters()).data.fill_(math.nan)
            meta.load_state_dict(real.state_dict(), strict=True)
        assert torch.equal(meta(_z()), real(_z()))
        if meta.learnable:
            next(meta.parameters()).data.fill_(math.nan)
            meta.reset_parameters()
            assert torch.equal(meta(_z()), real(_z()))


def test_numbers_on_the_meta_device_are_none():
    with pytest.raises(
        ValueError, match=r"^sparsegen: lam must be numbers, also on the meta device, got a meta tensor"
    ):
        sgt.Sparsegen(torch.tensor(0.5, device="meta"))


def test_shared_memory_stays_shared():
    m = sgt.Sparsegen(0.5).share_memory()
    assert m.control.is_shared()


def test_training_and_evaluation_mode_are_the_same(module):
    assert torch.equal(module.train()(_z()), module.eval()(_z()))


def test_a_module_stands_in_for_torchs_softmax_in_a_stack(module):
    stack = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Softplus(), module)
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    stack(x).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in stack.parameters())


NAMES = "one of 'lin', 'exp', 'sq', 'log', or a callable"
ERRORS = [
    (lambda: sgt.Sparsegen(1.5), ValueError, "lam must be a number below 1, got 1.5."),
    (lambda: sgt.Sparsegen(1.0), ValueError, "lam must be a number below 1, got 1.0."),
    (lambda: sgt.Sparsegen([0.5, 2.0]), ValueError, "lam must be a number below 1, got 2.0."),
    (lambda: sgt.Sparsegen(math.nan), ValueError, "lam must be a number below 1, got nan."),
    (lambda: sgt.Sparsegen("a"), TypeError, "lam must be a number below 1, got 'a'."),
    (lambda: sgt.Sparsegen(None), TypeError, "lam must be a number below 1, got None."),
    (lambda: sgt.Sparsegen(transform="cube"), ValueError, f"transform must be {NAMES}, got 'cube'."),
    (lambda: sgt.Sparsecone(-1.0), ValueError, "q must be a number at least 0, got -1.0."),
    (lambda: sgt.Sparsehourglass(torch.tensor([-1.0])), ValueError, "q must be a number at least 0, got -1.0."),
    (lambda: sgt.Softmax(0.0), ValueError, "temperature must be a positive number, got 0.0."),
    (
        lambda: sgt.Sparsegen([0.1, 0.2, 0.3], shape=(2,)),
        ValueError,
        "the shape of lam must be broadcastable to (2,), the shape asked for, got (3,).",
    ),
    (
        lambda: sgt.Sparsehourglass([0.1, 0.2, 0.3], shape=(2,)),
        ValueError,
        "the shape of q must be broadcastable to (2,), the shape asked for, got (3,).",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), ERRORS, ids=[text[:40] for _, _, text in ERRORS])
def test_a_module_refuses_with_the_full_text(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == f"sparsegen: {text}"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: sgt.Sparsegen(-math.inf, learnable=True), "a learnable lam must be .*, got -inf"),
        (lambda: sgt.Sparsehourglass(0.0, learnable=True), "a learnable q must be .*, got 0.0"),
        (lambda: sgt.Sparsecone(math.inf, learnable=True), "a learnable q must be .*, got inf"),
        (lambda: sgt.Softmax(math.inf, learnable=True), "a learnable temperature must be .*, got inf"),
    ],
)
def test_a_learnable_control_cannot_start_at_a_limit_and_the_error_names_the_argument(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_a_shape_that_is_a_number_is_named():
    with pytest.raises(TypeError, match=r"sparsegen: shape must be a sequence of integers, such as \(8, 1\), got 8"):
        sgt.Sparsegen(0.5, learnable=True, shape=8)


@pytest.mark.parametrize("learns", [False, True])
def test_a_control_is_what_the_module_says_it_is(learns):
    z = torch.randn(3, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=learns)
    module = sgt.Entmax(1.5, learnable=True)  # kept as log(1/2) in float32
    with torch.set_grad_enabled(learns):
        assert module.value().item() == 1.5
        torch.testing.assert_close(module(z), sgt.entmax15(z), rtol=0, atol=0)
