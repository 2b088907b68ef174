"""Every error the losses and their targets give, by its full text, in both front ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp

import sparsegen as sg
from loss_oracle import HINGES, LOSSES

torch = pytest.importorskip("torch")
sgt = pytest.importorskip("sparsegen.torch")

Z = np.array([[1.0, 2.0, 3.0], [0.5, 0.25, 0.0]])
Y = np.array([[1, 0, 1], [0, 1, 0]])
T = torch.from_numpy(Z)
LEAD = "the scores' shape without the class axis"
REDUCTIONS = "one of 'none', 'mean', 'sum'"
SHAPES = "(2, 3) (multi-hot) or (2,) (class indices, integers)"
LABEL = "a row with at least one label (ignore_empty=True leaves rows without labels out)"
OPEN = "a set of labels that may be chosen (mask True, score above -inf)"
ENTRIES = "0 or 1, or shares that are not negative"
SUMS = "0 or 1 in every entry, or rows that sum to 1"
EVEN = "0 or 1, or the same share for all labels of a row"
REASON = f"{EVEN} (a loss of 0 would not mean that the map returns the target)"
LAM, Q = "a finite number below 1", "a positive number"
NUMPY_DTYPES = "float16, float32, float64, integers or booleans"
TORCH_DTYPES = "float16, bfloat16, float32 or float64"
HIDDEN = np.array([[1.0, -math.inf, 3.0], [0.5, 0.25, 0.0]])

# What both front ends refuse: scores, target and options, the error, its text
BOTH = [
    (Z, Y, {"reduction": "avg"}, ValueError, f"reduction must be {REDUCTIONS}, got 'avg'."),
    (Z, Y, {"reduction": None}, ValueError, f"reduction must be {REDUCTIONS}, got None."),
    (Z, Y, {"reduction": ["mean"]}, ValueError, f"reduction must be {REDUCTIONS}, got ['mean']."),
    (Z, Y, {"weight": -1.0}, ValueError, "weight must be finite and not negative, got -1.0."),
    (Z, Y, {"weight": [1.0, math.nan]}, ValueError, "weight must be finite and not negative, got nan."),
    (Z, Y, {"weight": [math.inf, 1.0]}, ValueError, "weight must be finite and not negative, got inf."),
    (
        Z,
        Y,
        {"weight": [[1.0, -2.0]]},
        ValueError,
        f"the shape of weight must be broadcastable to (2,), {LEAD}, got (1, 2).",
    ),
    (Z, Y, {"weight": [1.0] * 3}, ValueError, f"the shape of weight must be broadcastable to (2,), {LEAD}, got (3,)."),
    (
        Z,
        np.array([0, 3]),
        {},
        ValueError,
        "target must be class indices from 0 to 2, or ignore_index = -100, got 3 in row 1.",
    ),
    (
        Z,
        np.array([-1, 0]),
        {},
        ValueError,
        "target must be class indices from 0 to 2, or ignore_index = -100, got -1 in row 0.",
    ),
    (
        Z,
        np.array([7, -100]),
        {"ignore_index": 7},
        ValueError,
        "target must be class indices from 0 to 2, or ignore_index = 7, got -100 in row 1.",
    ),
    (Z, -Y, {}, ValueError, f"target must be {ENTRIES}, got -1 in row 0."),
    (Z, Y * [[1.0], [-0.5]], {}, ValueError, f"target must be {ENTRIES}, got -0.5 in row 1."),
    (Z, np.array([[1.0, 0, 1], [0, math.nan, 0]]), {}, ValueError, f"target must be {ENTRIES}, got nan in row 1."),
    (Z, sp.csr_array(-Y), {}, ValueError, f"target must be {ENTRIES}, got -1 in row 0."),
    (Z, 2 * Y, {}, ValueError, f"target must be {SUMS}, got row 0 with the sum 4."),
    (Z, Y / [[2], [2]], {}, ValueError, f"target must be {SUMS}, got row 1 with the sum 0.5."),
    (
        Z,
        np.array([[0.5, 0, 0.5], [0, math.inf, 0]]),
        {},
        ValueError,
        f"target must be {SUMS}, got row 1 with the sum inf.",
    ),
    (Z, Y * [[1], [0]], {}, ValueError, f"target row 1 must be {LABEL}, got none."),
    (Z, sp.csr_array(0 * Y), {}, ValueError, f"target row 0 must be {LABEL}, got none."),
    (Z, sp.csr_array(Y[:1]), {}, ValueError, "the shape of target must be (2, 3) for a sparse matrix, got (1, 3)."),
    (HIDDEN, np.array([2, 1]), {"mask": [[True], [False]]}, ValueError, f"target row 1 must be {OPEN}, got label 1."),
    (HIDDEN, np.array([1, 0]), {}, ValueError, f"target row 0 must be {OPEN}, got label 1."),
    (HIDDEN, np.array([[1, 1, 1], [0, 1, 0]]), {}, ValueError, f"target row 0 must be {OPEN}, got label 1."),
    (
        Z,
        Y,
        {"mask": [True, False]},
        ValueError,
        "the shape of mask must be broadcastable to (2, 3), the scores' shape, got (2,).",
    ),
]


def tensors(scores, target, how):
    """The same for torch: arrays become tensors, sparse matrices stay."""
    how = {key: torch.tensor(value) if key == "mask" else value for key, value in how.items()}
    return torch.from_numpy(scores), target if sp.issparse(target) else torch.from_numpy(np.array(target)), how


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("z", "y", "how", "error", "text"), BOTH, ids=[text[:60] for *_, text in BOTH])
def test_both_front_ends_refuse_with_the_same_text(name, z, y, how, error, text):
    for call in (
        lambda: getattr(sg, f"{name}_loss")(z, y, **how),
        lambda: (lambda z, y, how: getattr(sgt, f"{name}_loss")(z, y, **how))(*tensors(z, y, how)),
    ):
        with pytest.raises(error) as caught:
            call()
        assert type(caught.value) is error
        assert str(caught.value) == f"sparsegen: {text}"


@pytest.mark.parametrize("name", HINGES)
@pytest.mark.parametrize(
    ("y", "got"),
    [
        ([[0.7, 0.3, 0], [1, 0, 0]], "0.7 in row 0"),
        ([[0.5, 0.5, 0], [0.5, 0.25, 0.25]], "0.5 in row 1"),
    ],
)
def test_hinge_losses_refuse_uneven_shares_with_the_reason(name, y, got):
    for f, z, target in ((sg, Z, y), (sg, Z, sp.csr_array(y)), (sgt, T, torch.tensor(y, dtype=torch.float64))):
        with pytest.raises(ValueError) as caught:
            getattr(f, f"{name}_loss")(z, target)
        assert str(caught.value) == f"sparsegen: the target of {name}_loss must be {REASON}, got {got}."


CONTROLS = [
    (1, ValueError, "1.0"),
    (1.5, ValueError, "1.5"),
    (-math.inf, ValueError, "-inf"),
    (math.nan, ValueError, "nan"),
    ("0", TypeError, "'0'"),
    (None, TypeError, "None"),
    (1j, TypeError, "1j"),
]


@pytest.mark.parametrize(("value", "error", "got"), CONTROLS)
@pytest.mark.parametrize("name", ["sparsemax_huber", "sparsegen_hinge"])
def test_lam_must_be_finite_and_below_1(name, value, error, got):
    for f, z, y in ((sg, Z, Y), (sgt, T, torch.from_numpy(Y))):
        with pytest.raises(error) as caught:
            getattr(f, f"{name}_loss")(z, y, lam=value)
        assert str(caught.value) == f"sparsegen: lam must be {LAM}, got {got}."


@pytest.mark.parametrize(("value", "got"), [(0.0, "0.0"), (-1, "-1.0"), (math.nan, "nan")])
def test_q_must_be_positive(value, got):
    for f, z, y in ((sg, Z, Y), (sgt, T, torch.from_numpy(Y))):
        with pytest.raises(ValueError) as caught:
            f.sparsehourglass_hinge_loss(z, y, q=value)
        assert str(caught.value) == f"sparsegen: q must be {Q}, got {got}."


SINGLE = "scores must be an array with at least one axis, got a single number."
NUMBERS = "target must be numbers or booleans, got dtype"
SHAPE = f"the shape of target must be {SHAPES}, got"
BOOLEAN = "mask must be boolean (True = may be chosen), got dtype int64."
NUMPY = [
    (lambda: sg.softmax_log_loss(1.0, 0), ValueError, SINGLE),
    (lambda: sg.softmax_log_loss(Z * 1j, Y), TypeError, f"scores must be {NUMPY_DTYPES}, got dtype complex128."),
    (lambda: sg.softmax_log_loss(Z, Y, mask=[1, 0, 1]), TypeError, BOOLEAN),
    (lambda: sg.softmax_log_loss(Z, None), TypeError, f"{NUMBERS} object."),
    (lambda: sg.softmax_log_loss(Z, ["a", "b"]), TypeError, f"{NUMBERS} <U1."),
    (lambda: sg.softmax_log_loss(Z, Y * 1j), TypeError, f"{NUMBERS} complex128."),
    (lambda: sg.softmax_log_loss(Z, Y[:1]), ValueError, f"{SHAPE} (1, 3) of dtype int64."),
    (lambda: sg.softmax_log_loss(Z, [0.0, 1.0]), ValueError, f"{SHAPE} (2,) of dtype float64."),
    (lambda: sg.softmax_log_loss(Z, [True, False]), ValueError, f"{SHAPE} (2,) of dtype bool."),
    (lambda: sg.sparsegen_hinge_loss(Z, Y, lam=[0.5, 1.0]), ValueError, f"lam[1] must be {LAM}, got 1.0."),
    (lambda: sg.sparsehourglass_hinge_loss(Z, Y, q=[0.5, 0.0]), ValueError, f"q[1] must be {Q}, got 0.0."),
    (
        lambda: sg.sparsegen_hinge_loss(Z, Y, lam=[0.5, 0.5, 0.5]),
        ValueError,
        f"the shape of lam must be broadcastable to (2,), {LEAD}, got (3,).",
    ),
    (
        lambda: sg.sparsehourglass_hinge_loss(Z[0], Y[0], q=[1.0]),
        ValueError,
        f"the shape of q must be broadcastable to (), {LEAD}, got (1,).",
    ),
]

TORCH = [
    (lambda: sgt.softmax_log_loss(Z, Y), TypeError, "scores must be a torch.Tensor, got ndarray."),
    (lambda: sgt.softmax_log_loss(T.long(), Y), TypeError, f"scores must be {TORCH_DTYPES}, got dtype torch.int64."),
    (lambda: sgt.softmax_log_loss(T[0, 0], 0), ValueError, SINGLE),
    (
        lambda: sgt.softmax_log_loss(T, Y, mask=torch.ones(3)),
        TypeError,
        "mask must be a boolean tensor (True = may be chosen), got dtype torch.float32.",
    ),
    (
        lambda: sgt.softmax_log_loss(T, torch.zeros(1, 3)),
        ValueError,
        f"the shape of target must be {SHAPES}, got (1, 3) of dtype float32.",
    ),
    (
        lambda: torch.func.grad(lambda z: sgt.softmax_log_loss(z, torch.zeros(1, 3)))(T),
        ValueError,
        f"the shape of target must be {SHAPES}, got (1, 3) of dtype torch.float32.",
    ),
    (
        lambda: sgt.sparsegen_hinge_loss(T, Y, lam=torch.zeros(3)),
        ValueError,
        f"the shape of lam must be broadcastable to (2,), {LEAD}, got (3,).",
    ),
    (
        lambda: sgt.sparsegen_hinge_loss(T, Y, lam=torch.tensor([0, 0])),
        TypeError,
        f"lam must be {LAM}, got dtype torch.int64.",
    ),
    (lambda: sgt.SparsegenHingeLoss(lam=1.0), ValueError, f"lam must be {LAM}, got 1.0."),
    (lambda: sgt.SparsemaxHuberLoss(lam=-math.inf), ValueError, f"lam must be {LAM}, got -inf."),
    (lambda: sgt.SparsehourglassHingeLoss(q=0.0), ValueError, f"q must be {Q}, got 0.0."),
    (lambda: sgt.SparsehourglassHingeLoss(q="1"), TypeError, f"q must be {Q}, got '1'."),
    (lambda: sgt.SoftmaxLogLoss(reduction="avg"), ValueError, f"reduction must be {REDUCTIONS}, got 'avg'."),
]


@pytest.mark.parametrize(("call", "error", "text"), NUMPY + TORCH, ids=[text[:60] for *_, text in NUMPY + TORCH])
def test_message_names_argument_condition_and_value(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert str(caught.value) == f"sparsegen: {text}"


@pytest.mark.parametrize("bad", [["a", "b"], np.array([1j, 0.5]), [None, object()]], ids=["text", "complex", "objects"])
def test_controls_and_weights_that_are_not_numbers_are_named(bad):
    for f, z, y in ((sg, Z, Y), (sgt, T, torch.from_numpy(Y))):
        with pytest.raises(TypeError, match=f"^sparsegen: lam must be {LAM}(, or a torch.Tensor of them)?, got "):
            f.sparsegen_hinge_loss(z, y, lam=bad)
        with pytest.raises(TypeError, match=r"^sparsegen: weight must be .*, got "):
            f.sparsegen_hinge_loss(z, y, weight=bad)


@pytest.mark.parametrize("shape", [(3,), (1, 1, 3)])
def test_a_sparse_target_of_scores_that_are_no_matrix_is_refused_for_what_it_is(shape):
    for f, z in ((sg, np.zeros(shape)), (sgt, torch.zeros(shape))):
        with pytest.raises(ValueError, match=r"^sparsegen: .* must be .*, got ") as caught:
            f.softmax_log_loss(z, sp.csr_array(Y[:1]))
        assert str(caught.value).count("(1, 3)") < 2  # what it must be is not what it is


@pytest.mark.parametrize("name", LOSSES)
def test_options_are_keyword_only(name):
    for f in (sg, sgt):
        with pytest.raises(TypeError, match="positional argument"):
            getattr(f, f"{name}_loss")(Z, Y, 0.5)


def test_a_label_hidden_in_an_ignored_row_is_no_error():
    for name in LOSSES:
        assert getattr(sg, f"{name}_loss")(HIDDEN, [-100, 1], mask=[[False], [True]]) >= 0


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("front", "scores"), [(sg, Z), (sgt, T)])
def test_an_ignore_index_that_is_no_integer(name, front, scores):
    with pytest.raises(TypeError) as info:
        getattr(front, f"{name}_loss")(scores, Y, ignore_index="7")
    assert str(info.value) == "sparsegen: ignore_index must be an integer, got '7'."
