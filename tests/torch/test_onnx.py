"""Exported to ONNX: the maps and attention by standard operators, with eager mode's numbers in onnxruntime."""

import warnings

import numpy as np
import pytest
import torch

import sparsegen.torch as sgt

pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")


class Attend(torch.nn.Module):
    def __init__(self, **how):
        super().__init__()
        self.how = how

    def forward(self, q, k, v):
        return sgt.sparse_attention(q, k, v, **self.how)


class Apply(torch.nn.Module):
    def __init__(self, name, **controls):
        super().__init__()
        self.name, self.controls = name, controls

    def forward(self, z):
        return getattr(sgt, self.name)(z, **self.controls)


def exported(module, inputs, lengths=None):
    """The answers of onnxruntime to `inputs`, and the operators of the graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        program = torch.onnx.export(module.eval(), inputs, dynamo=True, verbose=False, dynamic_shapes=lengths)
    session = runtime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    return lambda *given: session.run(None, dict(zip(names, (t.numpy() for t in given))))[0], program


def sample(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("name", "controls"),
    [
        ("sparsemax", {}),
        ("sparsegen_lin", {"lam": 0.3}),
        ("sparsegen_softmax", {"lam": 0.1}),
        pytest.param("sparsehourglass", {"q": 0.5}, marks=pytest.mark.slow),
        pytest.param("sparsegen_exp", {"lam": 0.2}, marks=pytest.mark.slow),
    ],
)
def test_maps(name, controls):
    module, z = Apply(name, **controls), sample(4, 10)
    run, program = exported(module, (z,))
    assert not [node.op_type for node in program.model.graph if "sparsegen" in node.domain]
    np.testing.assert_allclose(run(z), module(z).numpy(), atol=1e-6)


SOFT = pytest.param({"mapping": "sparsegen_softmax", "lam": 0.1}, marks=pytest.mark.slow)


@pytest.mark.parametrize("how", [{"is_causal": True}, SOFT], ids=str)
def test_attention_of_any_length(how):
    module, n = Attend(**how), torch.export.Dim("n", min=2, max=64)
    run, _ = exported(module, tuple(sample(1, 2, 7, 4, seed=i) for i in range(3)), ({2: n}, {2: n}, {2: n}))
    for length in (7, 12):
        given = tuple(sample(1, 2, length, 4, seed=i + 3) for i in range(3))
        np.testing.assert_allclose(run(*given), module(*given).numpy(), atol=1e-6)
