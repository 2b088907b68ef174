"""Rows whose classes are split over two processes: values, gradients and edges are those of one process."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import oracle
import sharded_cases as cases
import sparsegen.torch as sgt
import sparsegen.torch.distributed as sgd
from ranks import Ranks
from sparsegen._table.losses import LOSSES
from sparsegen._table.maps import MAPS

CONTROLS = {"lam": 0.25, "q": 0.5, "temperature": 0.75}
NAMES = [name for name, m in MAPS.items() if not m.power]
LOSS_NAMES = [f"{name}_loss" for name, loss in LOSSES.items() if not loss.map.power]
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def rows_of(name, dtype):
    """One row of each kind; of the sign that the map asks for. Sums are far from 0, where a radius of them is exact."""
    n = 301
    rows = torch.randn(12, n, generator=generator(0), dtype=torch.float64) + 0.5
    rows[1] *= 30
    rows[2] = rows[2] * 1e-3 + 1  # all in the support
    rows[3] = 2.0  # ties
    rows[4] += 1e4
    rows[5, ::2] = -math.inf
    rows[6, :151] = -math.inf  # nothing on the first rank
    rows[7] = -math.inf
    rows[8, 17] = math.nan
    rows[9, 290] = math.inf
    rows[10] = -math.inf
    rows[10, 300] = 3.0
    rows[11] = 2.0 ** -torch.arange(n, dtype=torch.float64)
    signed = MAPS[name].outside is not None
    return (torch.where(rows == -math.inf, rows, rows.abs() + 0.1) if signed else rows).to(dtype)


def controls_of(names):
    return {name: torch.tensor(CONTROLS[name], dtype=torch.float64) for name in names}


def joined(found, at, dim=-1):
    return torch.cat([one[at] for one in found], dim)


def one_process(f, z, v=None, controls=None, **options):
    x, controls = z.clone().requires_grad_(), cases.with_grad(controls or {})
    p = f(x, **controls, **options)
    p.backward(torch.ones_like(p) if v is None else v)
    return p.detach(), x.grad, {k: c.grad for k, c in controls.items()}


def assert_close(found, expected, ulps, dtype=None):
    """Within so many ulps of 1, or of the row's largest number where that is above 1; NaN where it is expected."""
    eps = torch.finfo(dtype or found.dtype).eps
    found, expected = found.double(), expected.double()
    assert torch.equal(torch.isnan(found), torch.isnan(expected))
    size = torch.nan_to_num(expected.abs()).amax(-1, keepdim=True).clamp(min=1) if expected.dim() else expected.abs()
    far = torch.nan_to_num((found - expected).abs() / size.clamp(min=1))
    assert far.max() <= ulps * eps, f"{far.max() / eps:.2f} eps"


# Maps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_map_gives_what_one_process_gives(ranks, name, dtype):
    z, controls = rows_of(name, dtype), controls_of(MAPS[name].controls)
    v = torch.randn(z.shape, generator=generator(1), dtype=torch.float64).to(dtype)
    p, grad, along = one_process(getattr(sgt, name), z, v, controls)
    found = ranks.run(cases.map_case, name=name, z=z, v=v, controls=controls)
    # One process takes logarithms beside the row's largest score, here they are taken as they are: of 1e4, to 9 eps.
    assert_close(joined(found, 0), p, 16 if MAPS[name].transform == "log" else 2)
    # An entry at the threshold, to within rounding, may fall to either side: there the gradient jumps.
    either = joined(found, 0).maximum(p)
    clear = ~((either > 0) & (either <= 4 * min(torch.finfo(dtype).eps, 2.0**-23))).any(-1)
    assert clear.sum() >= (8 if MAPS[name].radius.of == "sum" else 11)
    assert torch.equal((joined(found, 0) > 0)[clear], (p > 0)[clear])
    assert_close(joined(found, 1)[clear], grad[clear], 4)
    for _, _, grads, _, _ in found:
        for key in controls:
            torch.testing.assert_close(
                grads[key], along[key], rtol=64 * torch.finfo(p.dtype).eps, atol=0, equal_nan=True
            )


@pytest.mark.parametrize("name", ["sparsemax", "hardmax"])
def test_the_bits_are_those_of_one_process_where_nothing_but_the_threshold_is_rounded(ranks, name):
    z = torch.randn(64, 200, generator=generator(2))
    found = ranks.run(cases.map_case, name=name, z=z)
    assert torch.equal(joined(found, 0), getattr(sgt, name)(z))


@pytest.mark.parametrize("name", NAMES)
def test_short_rows_are_exact(ranks, name):
    z = torch.tensor([[1.5, 0.25, 1.25, 0.5, 0.125], [2.0, 2.0, 0.5, 2.0, 1.0]], dtype=torch.float64)
    controls = {key: CONTROLS[key] for key in MAPS[name].controls}
    found = ranks.run(cases.map_case, name=name, z=z, controls=controls)
    np.testing.assert_allclose(joined(found, 0), oracle.apply(name, z.numpy(), **controls), rtol=0, atol=4e-16)


@pytest.mark.parametrize("radius", [1e-300, 1e-30, 1e-3, 1.0, 7.0, 1e30, 1e300, 0.0, math.inf])
def test_any_radius(ranks, radius):
    scale = radius if 0 < radius < math.inf else 1.0
    z = torch.randn(3, 400, generator=generator(3), dtype=torch.float64) * scale
    found = ranks.run(cases.map_case, name="project", z=z, controls={"radius": radius})
    np.testing.assert_allclose(joined(found, 0), oracle.project_bisect(z.numpy(), radius), rtol=0, atol=8e-16)


@pytest.mark.parametrize("edges", [(0, 60, 60), (0, 0, 60), (0, 1, 60), (0, 59, 60)])
@pytest.mark.parametrize("name", ["sparsemax", "sparsehourglass", "softmax", "sparsegen_exp", "hardmax"])
def test_parts_may_be_uneven_and_empty(ranks, name, edges):
    z = torch.randn(4, 60, generator=generator(4), dtype=torch.float64)
    v = torch.randn(4, 60, generator=generator(5), dtype=torch.float64)
    controls = controls_of(MAPS[name].controls)
    p, grad, along = one_process(getattr(sgt, name), z, v, controls)
    found = ranks.run(cases.map_case, name=name, z=z, v=v, edges=edges, controls=controls)
    assert_close(joined(found, 0), p, 2)
    assert_close(joined(found, 1), grad, 8)
    for key in controls:
        torch.testing.assert_close(found[1][2][key], along[key], rtol=1e-12, atol=1e-15)


def test_no_classes_and_no_rows(ranks):
    for shape in ((3, 0), (0, 4)):
        found = ranks.run(cases.map_case, name="sparsehourglass", z=torch.ones(shape), controls={"q": 1.0})
        assert joined(found, 0).shape == shape


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_any_axis_with_a_mask_and_controls_by_row(ranks, dim):
    z = torch.randn(4, 5, 6, generator=generator(6), dtype=torch.float64)
    mask = torch.rand(4, 5, 6, generator=generator(7)) > 0.3
    v = torch.randn(4, 5, 6, generator=generator(8), dtype=torch.float64)
    lead = [n for i, n in enumerate(z.shape) if i != dim % 3]
    controls = {"lam": torch.rand(lead, generator=generator(9), dtype=torch.float64)}
    p, grad, along = one_process(sgt.sparsegen_lin, z, v, controls, dim=dim, mask=mask)
    found = ranks.run(cases.map_case, name="sparsegen_lin", z=z, v=v, dim=dim, mask=mask, controls=controls)
    assert_close(joined(found, 0, dim), p, 2)
    assert_close(joined(found, 1, dim), grad, 4)
    for one in found:
        torch.testing.assert_close(one[2]["lam"], along["lam"], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", ["sparsemax", "sparsehourglass", "softmax", "sparsegen_sq"])
def test_support_size_and_threshold_are_those_of_the_whole_row(ranks, name):
    z, controls = rows_of(name, torch.float64), {key: CONTROLS[key] for key in MAPS[name].controls}
    _, info = getattr(sgt, name)(z, **controls, return_info=True)
    for one in ranks.run(cases.map_case, name=name, z=z, controls=controls, info=True):
        size, threshold = one[3]
        assert torch.equal(size, info.support_size)
        torch.testing.assert_close(threshold, info.threshold, rtol=1e-14, atol=1e-14, equal_nan=True)


def test_a_transform_of_the_callers_own(ranks):
    z = torch.randn(3, 50, generator=generator(10), dtype=torch.float64)
    halves = [z[:, :20], z[:, 20:]]
    options = [{"transform": torch.abs, "lam": 0.5}] * 2
    found = ranks.run(cases.call, name="sparsegen", args=[(half,) for half in halves], options=options)
    assert_close(torch.cat(found, -1), sgt.sparsegen(z, transform=torch.abs, lam=0.5), 2)


@pytest.mark.parametrize(("name", "controls"), [("sparsemax", ()), ("sparsehourglass", ("q",)), ("softmax", ())])
def test_derivatives_of_derivatives(ranks, name, controls):
    z = torch.randn(3, 40, generator=generator(11), dtype=torch.float64) / 2
    c = torch.randn(3, 40, generator=generator(12), dtype=torch.float64)
    given = controls_of(controls)
    x, alone = z.clone().requires_grad_(), cases.with_grad(given)
    (grad,) = torch.autograd.grad((getattr(sgt, name)(x, **alone).sin() * c).sum(), x, create_graph=True)
    expected = torch.autograd.grad((grad * c).sum(), [x, *alone.values()])
    found = ranks.run(cases.curvature_case, name=name, z=z, c=c, controls=given)
    assert_close(joined(found, 0), expected[0], 64)
    for one in found:
        for mine, whole in zip(one[1:], expected[1:]):
            torch.testing.assert_close(mine, whole, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "scale", "forward", "backward"),
    [
        ("sparsemax", 1.0, 3, 1),
        ("sparsegen_lin", 1.0, 3, 2),  # one more for the gradient of a control
        ("sparsehourglass", 1.0, 4, 3),  # and one for the sum in the radius
        ("hardmax", 1.0, 3, 1),
        ("softmax", 1.0, 5, 2),
        ("sparsemax", 1e-3, 6, 1),  # supports that no message has room for
        ("sparsehourglass", 1e-3, 7, 3),
    ],
)
def test_rounds_are_few_and_small(ranks, name, scale, forward, backward):
    sent = []
    for n in (1_000, 100_000):
        z = torch.randn(4, n, generator=generator(13)) * scale
        controls = controls_of(MAPS[name].controls)
        found = ranks.run(cases.map_case, name=name, z=z, v=torch.ones_like(z), controls=controls)
        assert len({one[4] for one in found}) == 1  # alike on all ranks
        sent.append(found[0][4])
        assert found[0][4][0] <= forward
        assert found[0][4][2] <= backward
    assert max(one[1] + one[3] for one in sent) < 4 * 2_000  # bytes, whatever the number of classes


# Losses


def labelled(dtype, n=120):
    z = torch.randn(7, n, generator=generator(20), dtype=torch.float64)
    y = torch.zeros(7, n)
    for i in range(7):
        y[i, torch.randperm(n, generator=generator(21 + i))[: i % 4 + 1]] = 1
    return (z + 1.5 * y).to(dtype), y


def loss_controls(name):
    row = LOSSES[name.removesuffix("_loss")]
    return {row.control: torch.tensor(0.25, dtype=torch.float64)} if row.control else {}


TARGETS = {
    "sparse": lambda y: (sp.csr_array(y.numpy()), False),
    "part": lambda y: (y, True),
    "index": lambda y: (y.argmax(-1), False),
}


@pytest.mark.parametrize("form", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LOSS_NAMES)
def test_a_loss_is_that_of_one_process(ranks, name, dtype, form):
    z, y = labelled(dtype)
    target, of_part = TARGETS[form](y)
    control = loss_controls(name)
    options = {"weight": torch.arange(7.0), "reduction": "mean"}
    value, grad, along = one_process(lambda x, **c: getattr(sgt, name)(x, target, **c, **options), z, None, control)
    found = ranks.run(cases.loss_case, name=name, z=z, target=target, target_part=of_part, control=control, **options)
    for one in found:
        assert_close(one[0], value, 4)
        for key in control:
            torch.testing.assert_close(one[2][key], along[key], rtol=32 * torch.finfo(value.dtype).eps, atol=0)
    assert_close(joined(found, 1), grad, 4)


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_losses_at_the_edges(ranks, name):
    z, y = labelled(torch.float64)
    mask = torch.rand(z.shape, generator=generator(30)) > 0.2
    mask |= y > 0
    z[0, 3], z[1, 100], y[2] = math.nan, math.inf, 0.0
    z[3][y[3] == 0] = -math.inf
    options = {"mask": mask, "ignore_empty": True, "reduction": "none"}
    value, grad, _ = one_process(lambda x: getattr(sgt, name)(x, y, **options), z)
    found = ranks.run(cases.loss_case, name=name, z=z, target=y, target_part=True, edges=(0, 7, 120), **options)
    for one in found:
        assert_close(one[0], value, 4)
    assert_close(joined(found, 1), grad, 4)


@pytest.mark.parametrize("name", ["sparsemax_huber_loss", "sparsegen_hinge_loss"])
def test_gradients_may_be_sparse(ranks, name):
    z, y = labelled(torch.float32, n=2000)
    z, target = torch.where(y > 0, z + 4, z / 4), sp.csr_array(y.numpy())
    dense, sparse = (
        ranks.run(cases.loss_case, name=name, z=z, target=target, sparse=sparse) for sparse in (False, True)
    )
    assert [one[3] for one in dense + sparse] == [False, False, True, True]
    assert torch.equal(joined(dense, 1), joined(sparse, 1))


@pytest.mark.parametrize(
    ("name", "forward"),
    [
        ("softmax_log_loss", 4),
        ("sparsemax_huber_loss", 5),
        ("sparsegen_hinge_loss", 4),
        ("sparsehourglass_hinge_loss", 4),
    ],
)
def test_rounds_of_losses(ranks, name, forward):
    z, y = labelled(torch.float32)
    found = ranks.run(cases.loss_case, name=name, z=z, target=sp.csr_array(y.numpy()), control=loss_controls(name))
    assert all(one[4][0] <= forward and one[4][2] == 0 for one in found)


def test_the_curvature_of_a_smooth_loss(ranks):
    z, y = labelled(torch.float64, n=40)
    c, target = torch.randn(7, 40, generator=generator(31), dtype=torch.float64), sp.csr_array(y.numpy())
    x, lam = z.clone().requires_grad_(), torch.tensor(0.25, dtype=torch.float64, requires_grad=True)
    loss = sgt.sparsemax_huber_loss(x, target, lam=lam, reduction="sum")
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    expected = torch.autograd.grad((grad * c).sum(), [x, lam])
    control = {"lam": lam.detach()}
    found = ranks.run(cases.curvature_case, name="sparsemax_huber_loss", z=z, c=c, target=target, controls=control)
    assert_close(joined(found, 0), expected[0], 64)
    for one in found:
        torch.testing.assert_close(one[1], expected[1], rtol=1e-12, atol=1e-13)


# What is wrong on one rank is said on all, and nobody waits

Z = torch.tensor([[0.5, 0.25]])
WRONG = {
    "a control": ([(Z,), (Z,)], [{"lam": 0.5}, {"lam": 1.5}], "lam must be a number below 1, got 1.5"),
    "another control": ([(Z,), (Z,)], [{"lam": 0.5}, {"lam": 0.25}], "the control must be the same on every rank"),
    "rows": ([(Z,), (Z.repeat(2, 1),)], None, r"without the class axis must be the same.*\(1,\) on rank 0 and \(2,\)"),
    "axes": ([(Z,), (Z[0],)], None, "the shape of scores without the class axis must be the same on every rank"),
    "dtype": ([(Z,), (Z.double(),)], None, "the dtype of scores must be.*torch.float32 on rank 0 and torch.float64"),
    "integers": (
        [(Z,), (Z.long(),)],
        None,
        "scores must be float16, bfloat16, float32 or float64, got dtype torch.int64",
    ),
    "no tensor": ([(Z,), ([0.5],)], None, "scores must be a torch.Tensor, got list"),
    "a mask": (
        [(Z,), (Z,)],
        [{}, {"mask": torch.ones(3, dtype=torch.bool)}],
        "the shape of mask must be broadcastable",
    ),
    "an axis": ([(Z,), (Z,)], [{}, {"dim": 4}], "dim must be between -2 and 1"),
    "gradients": ([(Z,), (Z.clone().requires_grad_(),)], None, "requires_grad must be the same on every rank"),
    "options": ([(Z,), (Z,)], [{}, {"return_info": True}], "the call must be the same on every rank"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_on_one_rank_is_named_on_all(ranks, what):
    args, options, text = WRONG[what]
    for error in ranks.errors(cases.call, name="sparsegen_lin", args=args, options=options):
        assert isinstance(error, (ValueError, TypeError))
        with pytest.raises(type(error), match=f"^sparsegen: .*{text}"):
            raise error
    assert ranks.run(cases.same_on_all) == [[0.125], [0.875]]


HOT = np.array([[1, 0, 0, 0]])
WRONG_TARGETS = {
    "another target": (
        [sp.csr_array(HOT), sp.csr_array(HOT[:, ::-1])],
        {},
        "the target must be the same on every rank",
    ),
    "a shape": ([torch.ones(1, 2), torch.ones(1, 3)], {}, "the shape of target must be"),
    "a number": ([torch.ones(1, 2), -torch.ones(1, 2)], {}, "target must be 0 or 1, or shares that are not negative"),
    "no label": ([torch.zeros(1, 2)] * 2, {}, "target row 0 must be a row with at least one label"),
    "an index": ([torch.tensor([7])] * 2, {}, "target must be class indices from 0 to 3"),
    "uneven": (
        [torch.tensor([[0.75, 0.0]]), torch.tensor([[0.0, 0.25]])],
        {},
        "the target of sparsegen_hinge_loss must",
    ),
    "a weight": ([torch.tensor([1])] * 2, {"weight": torch.ones(4)}, "the shape of weight must be broadcastable"),
    "a reduction": ([torch.tensor([1])] * 2, {"reduction": "median"}, "reduction must be one of"),
    "a hidden label": (
        [torch.tensor([3])] * 2,
        {"mask": torch.tensor([[True, False]])},
        r"target row 0 must be a set of labels that may be chosen.*got label 3",
    ),
}


@pytest.mark.parametrize("what", WRONG_TARGETS)
def test_what_is_wrong_with_a_target_is_named_on_all(ranks, what):
    targets, options, text = WRONG_TARGETS[what]
    args, given = [(Z, target) for target in targets], [{}, options] if "number" not in what else [{}, {}]
    for error in ranks.errors(cases.call, name="sparsegen_hinge_loss", args=args, options=given):
        with pytest.raises((ValueError, TypeError), match=f"^sparsegen: .*{text}"):
            raise error
    assert ranks.run(cases.same_on_all) == [[0.125], [0.875]]


@pytest.mark.parametrize("at", [0, 1])
def test_a_rank_that_fails_in_the_midst_fails_on_all(ranks, at):
    errors = ranks.errors(cases.sabotaged, name="sparsemax", z=Z, at=at, error=MemoryError("no room"))
    assert isinstance(errors[at], MemoryError)
    message = f"sparsegen: every rank must be able to finish its part, got MemoryError on rank {at}: no room"
    assert str(errors[1 - at]).startswith(message)
    assert ranks.run(cases.same_on_all) == [[0.125], [0.875]]


def test_a_group_is_needed_and_must_be_ones_own(ranks):
    with pytest.raises(ValueError, match="group must be a process group, or None after"):
        sgd.sparsemax(Z)
    with sgd.single_process(), pytest.raises(TypeError, match="group must be a torch"):
        sgd.sparsemax(Z, group="mine")
    (kind, found), (other, error) = ranks.outcomes(cases.other_group, z=Z)
    assert (kind, other) == ("found", "raised")
    assert_close(found, sgt.sparsemax(Z), 2)
    assert str(error) == "sparsegen: group must be one that this process belongs to, got one of other processes."


def test_every_row_is_a_function_but_those_of_entmax():
    for name in (*MAPS, *(f"{name}_loss" for name in LOSSES)):
        assert hasattr(sgd, name) == ("entmax" not in name), name


def test_arguments_that_are_not_there(ranks):
    for error in ranks.errors(cases.call, name="sparsemax", args=[(Z,)] * 2, options=[{"lam": 0.5}] * 2):
        assert isinstance(error, TypeError)
        assert "unexpected keyword argument 'lam'" in str(error)


def test_a_rank_that_dies_is_noticed(tmp_path):
    group = Ranks(2, tmp_path)
    group.processes[1].join(0)
    for pipe in group.pipes:
        pipe.send((cases.last_words, {"z": Z}))
    assert group.pipes[0].poll(60), "rank 0 waits for ever"
    kind, error = group.pipes[0].recv()
    assert kind == "raised"
    assert isinstance(error, RuntimeError)
    group.processes[0].kill()
