"""Compilers and exporters: one graph, the numbers of eager mode, any batch size; and autocast."""

from __future__ import annotations

import io
import warnings

import pytest
import torch

import sparsegen.torch as sgt
from test_torch_cases import CONTROLLED, NAMES, close, controls, scores, some_mask, torch_map

# Warnings about torch's own internals, raised while it compiles; not ours to act on.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _mapped(name):
    """The map as a function of scores and its control (or nothing)."""
    keys = tuple(controls(name))
    return lambda z, *given: torch_map(name)(z, **dict(zip(keys, given)))


def _inputs(name, dtype=torch.float64, rows=4, seed=0):
    z = scores(name, rows, 6, dtype=dtype, seed=seed).requires_grad_()
    given = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in controls(name).values()]
    return [z, *given]


def _value_and_gradients(f, inputs):
    p = f(*inputs)
    v = scores("sparsemax", *p.shape, dtype=p.dtype, seed=1)
    return [p.detach(), *torch.autograd.grad(p, inputs, v)]


def _same_as_eager(compiled, f, inputs, scale=64):
    for got, want in zip(_value_and_gradients(compiled, inputs), _value_and_gradients(f, inputs)):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        close(got, want, inputs[0].dtype, scale=scale)


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_map_is_one_graph_with_eagers_values_and_gradients(name):
    f = _mapped(name)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")  # a graph break is an error
    with torch._dynamo.config.patch(error_on_recompile=True):
        _same_as_eager(compiled, f, _inputs(name))
        _same_as_eager(compiled, f, _inputs(name, seed=1))


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_map_without_gradients_with_mask_and_dim_is_eagers(name):
    z, mask = scores(name, 3, 6, 2), some_mask(6, 2)

    def f(z, mask):
        return torch_map(name)(z, dim=1, mask=mask, **controls(name))

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    close(compiled(z, mask), f(z, mask))


@pytest.mark.parametrize("name", NAMES)
def test_new_batch_sizes_do_not_compile_again(name):
    f = _mapped(name)
    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (3, 4, 50):
            _same_as_eager(compiled, f, _inputs(name, rows=rows))


def test_a_new_number_of_axes_does_compile_again():
    compiled = torch.compile(_mapped("sparsemax"), dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled(torch.zeros(3, 4))
        with pytest.raises(torch._dynamo.exc.RecompileError):  # so the tests above can fail
            compiled(torch.zeros(2, 3, 4))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["sparsegen_exp", "sparsehourglass"])
def test_inductors_code_gives_eagers_values_and_gradients(name, dtype):
    f = _mapped(name)
    _same_as_eager(torch.compile(f, fullgraph=True), f, _inputs(name, dtype=dtype))


def test_a_compiled_map_returns_its_info():
    z = scores("sparsemax", 4, 6)

    def f(z):
        return sgt.sparsegen_exp(z, lam=0.5, return_info=True)

    p, info = torch.compile(f, fullgraph=True, backend="aot_eager")(z)
    want, expected = f(z)
    close(p, want)
    assert torch.equal(info.support_size, expected.support_size)
    close(info.threshold, expected.threshold)


def test_a_compiled_gradient_is_eagers():
    z, v = scores("sparsemax", 4, 6), scores("sparsemax", 4, 6, seed=1)

    def f(z):
        return torch.func.grad(lambda z: (sgt.sparsegen_lin(z, lam=0.5) * v).sum())(z)

    close(torch.compile(f, fullgraph=True, backend="aot_eager")(z), f(z))


def test_a_compiled_vmap_is_eagers():
    z = scores("sparsemax", 4, 6)
    lam = torch.linspace(-1, 0.5, 4, dtype=torch.float64)
    f = torch.vmap(lambda z, lam: sgt.sparsegen_lin(z, lam=lam))
    close(torch.compile(f, fullgraph=True, backend="aot_eager")(z, lam), sgt.sparsegen_lin(z, lam=lam))


def test_a_number_out_of_range_is_refused_in_compiled_code_too():
    compiled = torch.compile(lambda z: sgt.sparsegen_lin(z, lam=1.5), backend="aot_eager")
    with pytest.raises(Exception, match=r"lam must be a number below 1, got 1\.5"):
        compiled(torch.zeros(3))


class Model(torch.nn.Module):
    """Scores from a linear layer, mapped by a learnable map for each head."""

    def __init__(self, mapping):
        super().__init__()
        self.layer = torch.nn.Linear(5, 12)
        self.mapping = mapping

    def forward(self, x):
        return self.mapping(self.layer(x).unflatten(-1, (2, 6)))


MAPPINGS = {
    "Sparsemax": sgt.Sparsemax,
    "Sparsegen": lambda: sgt.Sparsegen(0.3, learnable=True, shape=(2,)),
    "Sparsegen-exp": lambda: sgt.Sparsegen(0.3, "exp", learnable=True, shape=(2,)),
    "Sparsehourglass": lambda: sgt.Sparsehourglass(0.5, learnable=True, shape=(2,)),
    "Sparsecone": lambda: sgt.Sparsecone(30.0, learnable=True),
    "Softmax": lambda: sgt.Softmax(0.5, learnable=True, shape=(2,)),
    "fixed Sparsegen": lambda: sgt.Sparsegen(0.3),
    "fixed Sparsehourglass": lambda: sgt.Sparsehourglass([0.5, 1.0]),
}


def _model(kind):
    torch.manual_seed(0)
    return Model(MAPPINGS[kind]())


@pytest.mark.parametrize("kind", MAPPINGS)
def test_a_compiled_module_trains_as_the_eager_one(kind):
    x, y = torch.randn(7, 5, generator=torch.Generator().manual_seed(1)), torch.zeros(7, 2, dtype=torch.long)
    grads = []
    for wrap in (lambda m: m, lambda m: torch.compile(m, fullgraph=True, backend="aot_eager")):
        model = _model(kind)
        loss = wrap(model)(x).gather(-1, y[..., None]).sum()
        grads.append(torch.autograd.grad(loss, list(model.parameters())))
    for got, want in zip(*grads):
        close(got, want, torch.float32, scale=64)


def _export(model, x, strict):
    batch = torch.export.Dim("batch", min=2, max=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        return torch.export.export(model, (x,), dynamic_shapes={"x": {0: batch}}, strict=strict)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("kind", MAPPINGS)
def test_an_exported_module_runs_on_any_batch(kind, strict):
    model = _model(kind).eval()
    program = _export(model, torch.randn(4, 5), strict)
    for rows in (2, 9):
        x = torch.randn(rows, 5)
        close(program.module()(x), model(x), torch.float32)


@pytest.mark.parametrize("kind", ["Sparsegen-exp", "Sparsehourglass"])
def test_an_exported_module_survives_saving_and_loading(kind):
    model, buffer, x = _model(kind).eval(), io.BytesIO(), torch.randn(9, 5)
    torch.export.save(_export(model, torch.randn(4, 5), strict=False), buffer)
    buffer.seek(0)
    close(torch.export.load(buffer).module()(x), model(x), torch.float32)


def test_an_exported_program_shows_the_registered_operator():
    program = _export(_model("Sparsegen").eval(), torch.randn(4, 5), strict=False)
    assert any("sparsegen.project" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("within", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_autocast_on_the_cpu_leaves_maps_as_it_leaves_softmax(name, dtype, within):
    z = scores(name, 4, 6, dtype=dtype)
    outside = torch_map(name)(z, **controls(name))
    with torch.autocast("cpu", dtype=within):
        p, softmax = torch_map(name)(z, **controls(name)), torch.softmax(z, -1)
    assert p.dtype == softmax.dtype
    close(p, outside.to(p.dtype), p.dtype)


@pytest.mark.parametrize("name", CONTROLLED)
def test_a_low_precision_layer_under_autocast_trains_the_control(name):
    (key, value), *_ = controls(name).items()
    control = torch.tensor(value, requires_grad=True)
    layer = torch.nn.Linear(5, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores_ = layer(torch.ones(4, 5)).abs() + 0.125
        p = torch_map(name)(scores_, **{key: control})
        loss = p.float().square().sum()
    loss.backward()
    assert control.grad.dtype == torch.float32
    assert control.grad.isfinite()
    assert layer.weight.grad.isfinite().all()


class _Attend(torch.nn.Module):
    """Attention over as many keys as there are True: a size that no tracer knows."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, x, keep):
        chosen = x[keep.nonzero().squeeze(1)]
        return sgt.sparse_attention(x, chosen, chosen, **self.options)


@pytest.mark.parametrize("options", [
    {}, {"mapping": "sparsegen_lin", "lam": 0.5}, {"mapping": "softmax"}, {"mapping": "sparsehourglass", "q": 0.5},
    {"mapping": "sparsegen_exp"}, {"return_weights": True}, {"is_causal": True}, {"mapping": "hardmax"},
], ids=str)  # fmt: skip
def test_attention_over_a_number_of_keys_that_no_one_knows_is_exported(options):
    x, keep = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 0, 1, 1, 0, 1]) > 0
    module = _Attend(**options)
    exported = torch.export.export(module, (x, keep)).module()
    for on in (keep, ~keep):
        torch.testing.assert_close(exported(x, on), module(x, on))
