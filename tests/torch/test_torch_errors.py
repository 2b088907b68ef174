"""Every error a torch user can reach, by its full text."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import sparsegen.torch as sgt
from test_torch_cases import NAMES, controls, scores, torch_map

Z = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.25, 0.125]])
DTYPES = "float16, bfloat16, float32 or float64"
MASK = "a boolean tensor (True = may be chosen)"
LEAD = "the scores' shape without the class axis"
TRANSFORMS = "one of 'lin', 'exp', 'sq', 'log', or a callable"
META = torch.device("meta")

CASES = [
    (lambda: sgt.sparsemax([1.0, 2.0]), TypeError, "scores must be a torch.Tensor, got list."),
    (lambda: sgt.sparsemax(np.ones(3)), TypeError, "scores must be a torch.Tensor, got ndarray."),
    (lambda: sgt.project(1.0), TypeError, "points must be a torch.Tensor, got float."),
    (lambda: sgt.sparsemax(Z.long()), TypeError, f"scores must be {DTYPES}, got dtype torch.int64."),
    (lambda: sgt.softmax(Z.bool()), TypeError, f"scores must be {DTYPES}, got dtype torch.bool."),
    (lambda: sgt.hardmax(Z.to(torch.complex64)), TypeError, f"scores must be {DTYPES}, got dtype torch.complex64."),
    (lambda: sgt.project(Z.int()), TypeError, f"points must be {DTYPES}, got dtype torch.int32."),
    (
        lambda: sgt.sparsemax(torch.tensor(1.0)),
        ValueError,
        "scores must be an array with at least one axis, got a single number.",
    ),
    (
        lambda: sgt.project(torch.tensor(1.0)),
        ValueError,
        "points must be an array with at least one axis, got a single number.",
    ),
    (lambda: sgt.sparsemax(Z, dim=1.0), TypeError, "dim must be an integer, got 1.0."),
    (lambda: sgt.sparsemax(Z, dim=None), TypeError, "dim must be an integer, got None."),
    (lambda: sgt.sparsemax(Z, dim=2), ValueError, "dim must be between -2 and 1 for scores of shape (2, 3), got 2."),
    (lambda: sgt.softmax(Z, dim=-3), ValueError, "dim must be between -2 and 1 for scores of shape (2, 3), got -3."),
    (lambda: sgt.project(Z, dim=2), ValueError, "dim must be between -2 and 1 for points of shape (2, 3), got 2."),
    (lambda: sgt.sparsemax(Z, mask=[True, True, False]), TypeError, f"mask must be {MASK}, got list."),
    (lambda: sgt.sparsemax(Z, mask=torch.ones(3)), TypeError, f"mask must be {MASK}, got dtype torch.float32."),
    (
        lambda: sgt.sparsemax(Z, mask=torch.ones(3, dtype=torch.bool, device=META)),
        ValueError,
        "mask must be on the scores' device cpu, got meta.",
    ),
    (
        lambda: sgt.sparsemax(Z, mask=torch.ones(2, dtype=torch.bool)),
        ValueError,
        "the shape of mask must be broadcastable to (2, 3), the scores' shape, got (2,).",
    ),
    (
        lambda: sgt.softmax(Z, mask=torch.ones(1, 2, 3, dtype=torch.bool)),
        ValueError,
        "the shape of mask must be broadcastable to (2, 3), the scores' shape, got (1, 2, 3).",
    ),
    (
        lambda: sgt.sparsegen_lin(Z, lam=torch.zeros(3)),
        ValueError,
        f"the shape of lam must be broadcastable to (2,), {LEAD}, got (3,).",
    ),
    (
        lambda: sgt.sparsehourglass(Z, q=torch.ones(1, 2), dim=0),
        ValueError,
        f"the shape of q must be broadcastable to (3,), {LEAD}, got (1, 2).",
    ),
    (
        lambda: sgt.softmax(Z[0], temperature=torch.ones(1)),
        ValueError,
        f"the shape of temperature must be broadcastable to (), {LEAD}, got (1,).",
    ),
    (
        lambda: sgt.project(Z, torch.ones(3)),
        ValueError,
        "the shape of radius must be broadcastable to (2,), the points' shape without the class axis, got (3,).",
    ),
    (
        lambda: sgt.sparsegen_lin(Z, lam=torch.zeros(2, device=META)),
        ValueError,
        "lam must be on the scores' device cpu, got meta.",
    ),
    (lambda: sgt.sparsegen_lin(Z, lam=1), ValueError, "lam must be a number below 1, got 1.0."),
    (lambda: sgt.sparsegen_exp(Z, lam=1.5), ValueError, "lam must be a number below 1, got 1.5."),
    (lambda: sgt.sparsegen(Z, lam=math.nan), ValueError, "lam must be a number below 1, got nan."),
    (lambda: sgt.sparsegen(Z, lam=1.0, transform=torch.abs), ValueError, "lam must be a number below 1, got 1.0."),
    (lambda: sgt.sparsegen_sq(Z, lam=math.inf), ValueError, "lam must be a number below 1, got inf."),
    (lambda: sgt.sparsegen_log(Z, lam="0"), TypeError, "lam must be a number below 1, got '0'."),
    (lambda: sgt.sparsegen_lin(Z, lam=None), TypeError, "lam must be a number below 1, got None."),
    (lambda: sgt.sparsegen_lin(Z, lam=1j), TypeError, "lam must be a number below 1, got 1j."),
    (
        lambda: sgt.sparsegen_lin(Z, lam=torch.tensor([0, 0])),
        TypeError,
        "lam must be a number below 1, got dtype torch.int64.",
    ),
    (
        lambda: sgt.Sparsegen(lam=0.0, shape=(3, 1))(torch.randn(4, 6)),
        ValueError,
        "the shape of lam must be broadcastable to (4,), the scores' shape without the class axis, got (3, 1).",
    ),
    (
        lambda: sgt.sparsegen_lin(Z, lam=[0.5, 0.25]),
        TypeError,
        "lam must be a number below 1, or a torch.Tensor of them, got [0.5, 0.25].",
    ),
    (lambda: sgt.sparsecone(Z, q=-1), ValueError, "q must be a number at least 0, got -1.0."),
    (lambda: sgt.sparsehourglass(Z, q=math.nan), ValueError, "q must be a number at least 0, got nan."),
    (lambda: sgt.sparsehourglass(Z, q=None), TypeError, "q must be a number at least 0, got None."),
    (lambda: sgt.softmax(Z, temperature=0), ValueError, "temperature must be a positive number, got 0.0."),
    (lambda: sgt.softmax(Z, temperature=-1.0), ValueError, "temperature must be a positive number, got -1.0."),
    (lambda: sgt.project(Z, -1.0), ValueError, "radius must be a number at least 0, got -1.0."),
    (lambda: sgt.project(Z, "1"), TypeError, "radius must be a number at least 0, got '1'."),
    (lambda: sgt.sparsegen(Z, transform="cube"), ValueError, f"transform must be {TRANSFORMS}, got 'cube'."),
    (lambda: sgt.sparsegen(Z, transform=3), ValueError, f"transform must be {TRANSFORMS}, got 3."),
    (lambda: sgt.sparsegen(Z, transform=None), ValueError, f"transform must be {TRANSFORMS}, got None."),
    (
        lambda: sgt.sparsegen(Z, transform=torch.sum),
        ValueError,
        "the result of transform must be of the scores' shape (2, 3), got shape ().",
    ),
    (
        lambda: sgt.sparsegen(Z, transform=lambda x: x.numpy()),
        TypeError,
        "the result of transform must be a torch.Tensor, got ndarray.",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[text[:50] for _, _, text in CASES])
def test_message_names_argument_condition_and_value(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert str(caught.value) == f"sparsegen: {text}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool, torch.uint8, torch.complex64])
def test_every_map_refuses_scores_that_are_not_floats(name, dtype):
    with pytest.raises(TypeError, match=f"scores must be {DTYPES}, got dtype {dtype}"):
        torch_map(name)(torch.ones(2, 3).to(dtype), **controls(name))


@pytest.mark.parametrize("name", NAMES)
def test_every_map_refuses_a_single_number(name):
    with pytest.raises(ValueError, match="scores must be an array with at least one axis, got a single number"):
        torch_map(name)(torch.tensor(1.0), **controls(name))


def test_errors_are_the_same_where_gradients_are_wanted():
    with pytest.raises(ValueError, match=r"lam must be a number below 1, got 2\.0"):
        sgt.sparsegen_lin(Z.clone().requires_grad_(), lam=2.0)
    with pytest.raises(ValueError, match=r"lam must be a number below 1, got 2\.0"):
        torch.func.vmap(lambda z: sgt.sparsegen_lin(z, lam=2.0))(Z)


def test_the_control_of_cone_and_hourglass_must_be_given():
    for f in (sgt.sparsecone, sgt.sparsehourglass):
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'q'"):
            f(Z)


def test_controls_and_options_are_keyword_only():
    for call in (lambda: sgt.sparsegen_lin(Z, 0.5), lambda: sgt.sparsehourglass(Z, 1.0), lambda: sgt.sparsemax(Z, 0)):
        with pytest.raises(TypeError, match="positional argument"):
            call()


def test_a_numpy_number_is_a_number():
    for number in (np.float64(0.5), np.float32(0.5), np.int64(0)):
        want = sgt.sparsegen_lin(Z, lam=float(number))
        assert torch.equal(sgt.sparsegen_lin(Z, lam=number), want)


WITHOUT_TORCH = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Block())
import sparsegen  # needs no torch
try:
    import sparsegen.torch
except ImportError as error:
    print(error)
"""


def test_a_missing_torch_is_named_with_the_extra_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == (
        "sparsegen: sparsegen.torch needs torch, which is not installed: pip install 'sparsegen[torch]'."
    )


def test_importing_the_numpy_front_end_does_not_import_torch():
    code = "import sys, sparsegen; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_the_samples_are_not_refused():
    for name in NAMES:
        assert torch_map(name)(scores(name, 2, 3), **controls(name)).isfinite().all()


def test_a_control_that_is_no_tensor_and_no_number_is_named():
    text = r"lam must be a number below 1, or a torch\.Tensor of them, got array\(\[0\. , 0\.5\]\)\."
    with pytest.raises(TypeError, match=f"^sparsegen: {text}$"):
        sgt.sparsegen_lin(torch.zeros(2, 3), lam=np.array([0.0, 0.5]))


def test_a_module_without_its_control_names_itself():
    with pytest.raises(TypeError, match=r"^Sparsecone\.__init__\(\) missing 1 required positional argument: 'q'$"):
        sgt.Sparsecone()


NOT_DENSE = {
    "coo": (lambda t: t.to_sparse(), r"layout torch\.sparse_coo"),
    "csr": (lambda t: t.to_sparse_csr(), r"layout torch\.sparse_csr"),
    "nested": (lambda t: torch.nested.as_nested_tensor(list(t)), "a nested tensor"),
    "ragged": (lambda t: torch.nested.nested_tensor([t[0], t[1, :2]]), "a nested tensor"),
    "jagged": (lambda t: torch.nested.as_nested_tensor(list(t), layout=torch.jagged), "a nested tensor"),
}


@pytest.mark.filterwarnings("ignore:.*[Nn]ested.*:UserWarning", "ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("kind", NOT_DENSE)
def test_a_tensor_that_is_not_dense_is_refused_by_name_everywhere(kind):
    make, found = NOT_DENSE[kind]
    z, on = torch.eye(3), torch.ones(3, 3, dtype=torch.bool)
    other, labels = make(z), torch.arange(3)
    calls = {
        "scores": [
            *(lambda name=name: torch_map(name)(other, **controls(name)) for name in NAMES),
            lambda: sgt.sparsemax(other, dim=0),
            lambda: sgt.sparsegen_hinge_loss(other, labels),
            lambda: sgt.softmax_log_loss(other, labels),
            lambda: sgt.lam_for_support(other, 2),
            lambda: sgt.explain(other),
        ],
        "points": [lambda: sgt.project(other)],
        "query": [lambda: sgt.sparse_attention(other, z, z)],
        "value": [lambda: sgt.sparse_attention(z, z, other)],
        "lam": [lambda: sgt.sparsegen_lin(z, lam=other)],
        "weight": [lambda: sgt.softmax_log_loss(z, labels, weight=other)],
    }
    if "nested" in found:
        calls["target"] = [lambda: sgt.softmax_log_loss(z, other)]
    if kind != "ragged":
        hidden = make(on)
        calls["mask"] = [lambda: sgt.sparsemax(z, mask=hidden), lambda: sgt.lam_for_support(z, 2, mask=hidden)]
        calls["attn_mask"] = [lambda: sgt.sparse_attention(z, z, z, attn_mask=hidden)]
    for name, each in calls.items():
        for call in each:
            with pytest.raises(TypeError, match=rf"^sparsegen: {name} must be a dense tensor .*, got {found}\.$"):
                call()
