"""The fused attention as operators: one node for compilers and exporters, no matrix of queries and keys."""

import warnings

import pytest
import torch
from test_attention_kernel import MAPS, close, inputs, options
from torch.utils.checkpoint import checkpoint

import sparsegen.torch as sgt
from sparsegen.torch.attention import plain, registered

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def only_the_kernel(monkeypatch):
    """Nothing is composed from dense scores, and nothing compiled before is used again."""

    def refuse(*_):
        raise AssertionError("the plain way was taken")

    monkeypatch.setattr(plain, "attend", refuse)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def sides(f, tensors):
    out = f(*tensors)
    weight = torch.arange(out.numel(), dtype=out.dtype).reshape(out.shape).sin()
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), tensors)]


def by_backward(f, tensors):
    """The same where torch allows nothing but backward()."""
    own = [t.detach().clone().requires_grad_() for t in tensors]
    out = f(*own)
    weight = torch.arange(out.numel(), dtype=out.dtype).reshape(out.shape).sin()
    (out * weight).sum().backward()
    return [out.detach(), *(t.grad for t in own)]


@pytest.mark.parametrize("kind", ["none", "causal", "bool", "additive"])
@pytest.mark.parametrize("mapping", MAPS)
def test_compiled_attention_is_one_graph_with_eagers_bits(mapping, kind):
    tensors = [t.requires_grad_() for t in inputs((2, 3), 9, 21)]
    mask = options(kind, 9, 21)

    def f(q, k, v):
        return sgt.sparse_attention(q, k, v, mapping=mapping, **mask, **MAPS[mapping])

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    got, want = sides(compiled, tensors), sides(f, tensors)
    assert torch.equal(got[0], want[0])
    for a, b in zip(got, want):
        close(a, b, 1e-6)


def test_new_lengths_do_not_compile_again():
    def f(q, k, v):
        return sgt.sparse_attention(q, k, v, is_causal=True)

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in (7, 12, 40):
            tensors = [t.requires_grad_() for t in inputs((2, 3), n, n)]
            for a, b in zip(sides(compiled, tensors), sides(f, tensors)):
                close(a, b, 1e-6)


def test_a_compiled_control_for_each_head_is_trained():
    q, k, v = inputs((2, 3), 9, 21)
    lam = torch.tensor([[0.5], [0.0], [-2.0]], requires_grad=True)

    def f(lam):
        return sgt.sparse_attention(q, k, v, mapping="sparsegen_lin", lam=lam)

    for a, b in zip(sides(torch.compile(f, fullgraph=True, backend="aot_eager"), [lam]), sides(f, [lam])):
        close(a, b)


def test_compiled_dropout_has_the_gradient_of_what_was_kept():
    q, k, v = (t.requires_grad_() for t in inputs((2,), 6, 20, dtype=torch.float64))

    def f(q, k, v):
        return sgt.sparse_attention(q, k, v, mapping="sparsegen_lin", lam=-2.0, dropout_p=0.5)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        results.append(sides(compiled, [q, k, v]))
    assert all(torch.equal(a, b) for a, b in zip(results[0], results[1]))
    assert not torch.equal(results[0][0], results[2][0])
    torch.manual_seed(0)
    close(results[0][0], f(q, k, v), 1e-12)  # the same draw in eager mode
    torch.manual_seed(0)
    for a, b in zip(results[0], sides(f, [q, k, v])):
        close(a, b, 1e-12)


class Attend(torch.nn.Module):
    def forward(self, q, k, v):
        return sgt.sparse_attention(q, k, v, is_causal=True)


def test_an_exported_program_has_no_matrix_of_queries_and_keys():
    q, k, v = inputs((1, 2), 31, 31)
    n = torch.export.Dim("n", min=2, max=4096)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        program = torch.export.export(Attend(), (q, k, v), dynamic_shapes=({2: n},) * 3)
    assert [node for node in program.graph.nodes if "sparsegen.attention" in str(node.target)]
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dim() >= 2 and "expand" not in str(node.target):  # no memory
            assert str(value.shape[-1]) != str(value.shape[-2]), node
    for length in (3, 50):
        given = inputs((1, 2), length, length)
        assert torch.equal(program.module()(*given), Attend()(*given))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_gives_the_same_gradients(reentrant):
    tensors = [t.requires_grad_() for t in inputs((2, 3), 9, 21)]

    def f(q, k, v):
        torch.manual_seed(0)
        return sgt.sparse_attention(q, k, v, dropout_p=0.2)

    def again(*given):
        return checkpoint(f, *given, use_reentrant=reentrant)

    for a, b in zip(by_backward(again, tensors), by_backward(f, tensors)):
        assert torch.equal(a, b)


def arguments(control, masked, dropout):
    q, k, v = (t[..., :3, :2].contiguous().requires_grad_() for t in inputs((1, 2), 3, 4, 2, 2, torch.float64))
    mask = torch.tensor([[True, True, False], [True, True, True], [False, True, True]]) if masked else None
    seed = torch.tensor(5) if dropout else None
    given = torch.tensor(control, dtype=torch.float64, requires_grad=True)
    return (q, k, v, given, mask, seed), ("sparsegen_lin", False, 0.7, 1.0, dropout, 1)


CASES = [(0.7, False, 0.0), ([[0.7], [2.0]], True, 0.3)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_operators_pass_torchs_own_checks(case):
    tensors, how = arguments(*case)
    torch.library.opcheck(registered.attention_op, (*tensors, *how))
    grad = torch.ones(1, 2, 3, 2, dtype=torch.float64)
    torch.library.opcheck(registered.attention_vjp_op, (*tensors, grad, *how))
    plain_tensors = [t.detach() if t is not None else None for t in (*tensors[:2], *tensors[3:])]
    torch.library.opcheck(registered.attention_weights_op, (*plain_tensors, *how))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_operators_have_derivatives_of_derivatives(case):
    (q, k, v, control, *rest), how = arguments(*case)

    def f(q, k, v, control):
        return registered.attention_op(q, k, v, control, *rest, *how)

    assert torch.autograd.gradcheck(f, (q, k, v, control))
    assert torch.autograd.gradgradcheck(f, (q, k, v, control))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_no_queries_or_no_keys_give_zeros_in_a_graph(shape):
    tensors = [t.requires_grad_() for t in inputs((2, 3), *shape)]
    compiled = torch.compile(lambda q, k, v: sgt.sparse_attention(q, k, v), fullgraph=True, backend="aot_eager")
    out, *grads = sides(compiled, tensors)
    assert out.shape == (2, 3, shape[0], 4)
    assert not any(t.any() for t in (out, *grads))
