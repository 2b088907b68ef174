"""The controls against exact arithmetic: what they promise is counted on the maps themselves."""

import math
import multiprocessing
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparsegen as sg
from oracle import project_exact
from sparsegen._table.maps import MAPS

torch = pytest.importorskip("torch")
sgt = pytest.importorskip("sparsegen.torch")

SMALL = st.lists(st.integers(-6, 6), min_size=1, max_size=6)


def sizes_of(p):
    return np.sum(np.asarray(p) > 0, axis=-1)


def attainable(row):
    """Sizes at which sorted scores fall: by definition, not by the library."""
    z = sorted(row, reverse=True)
    return [k for k in range(1, len(z) + 1) if k == len(z) or z[k - 1] > z[k]]


def rows_with_ties(seed, n, classes, digits, dtype):
    return np.round(np.random.default_rng(seed).normal(size=(n, classes)), digits).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("classes", "digits"), [(2, 0), (5, 1), (12, 1), (30, 2), (64, 6)])
def test_exactly_k_in_every_attainable_case(classes, digits, dtype):
    z = rows_with_ties(classes, 1000, classes, digits, dtype)
    k = np.random.default_rng(1).integers(1, classes + 1, size=1000)
    can = np.array([size in attainable(row) for row, size in zip(z.tolist(), k)])
    assert can.sum() > 100
    lam = sg.lam_for_support(z[can], k[can])
    np.testing.assert_array_equal(sizes_of(sg.sparsegen_lin(z[can], lam=lam)), k[can])
    tensor = torch.from_numpy(z[can])
    lam = sgt.lam_for_support(tensor, torch.from_numpy(k[can]))
    np.testing.assert_array_equal(sizes_of(sgt.sparsegen_lin(tensor, lam=lam)), k[can])


def test_calibration_stays_within_what_can_be():
    z = np.random.default_rng(0).normal(size=(50, 8))
    lam = sg.calibrate([z], mean_support=1)
    assert lam < 1
    np.testing.assert_array_equal(sizes_of(sg.sparsegen_lin(z, lam=lam)), 1)
    with pytest.raises(ValueError, match=r"mean_support must be .*from 1 to 8.*got 0.5"):
        sg.calibrate([z], mean_support=0.5)
    assert sg.calibrate([z], density=1 / 8) == lam


@pytest.mark.parametrize("ties", ["below", "above"])
def test_ties_go_to_the_wished_side(ties):
    z = rows_with_ties(3, 60, 6, 0, np.float64)
    for row in z.tolist():
        for k in range(1, 7):
            sizes = attainable(row)
            fit = [s for s in sizes if s <= k][-1:] if ties == "below" else [s for s in sizes if s >= k][:1]
            if not fit:
                with pytest.raises(ValueError, match="as entries tie"):
                    sg.lam_for_support(row, k, ties=ties)
            else:
                assert sizes_of(sg.sparsegen_lin(row, lam=sg.lam_for_support(row, k, ties=ties))) == fit[0]


@given(SMALL)
def test_the_interval_of_lam_is_exact(row):
    """Every lam of the interval keeps the size in exact arithmetic, and its ends do not or are its ends."""
    found = sg.explain(np.array(row, float), "sparsegen_lin", lam=0.0)
    low, high = (Fraction(float(v)) if math.isfinite(v) else None for v in found.lam_interval)

    def size(lam):
        return sum(p > 0 for p in project_exact([Fraction(v) for v in row], 1 - lam)[0])

    k = int(found.support_size)
    assert size(Fraction(0)) == k
    assert size(high - Fraction(1, 1000)) == k
    if high < 1:
        assert size(high) < k
    if low is not None:
        assert size(low) == k
        assert size(low - Fraction(1, 1000)) > k


@given(SMALL)
def test_the_distance_is_the_smallest_change_of_one_entry(row):
    found = sg.explain(np.array(row, float))
    exact, _ = project_exact([Fraction(v) for v in row], 1)
    on = [p > 0 for p in exact]

    def changes(step):
        for i in range(len(row)):
            for sign in (1, -1):
                moved = [Fraction(v) for v in row]
                moved[i] += sign * step
                if [p > 0 for p in project_exact(moved, 1)[0]] != on:
                    return True
        return False

    distance = float(found.distance)
    if math.isinf(distance):
        assert not changes(Fraction(50))
        return
    assert changes(Fraction(distance) + Fraction(1, 10**9))
    assert distance < 1e-9 or not changes(Fraction(distance) - Fraction(1, 10**9))


@given(SMALL, st.integers(1, 99))
def test_the_peak_is_reached(row, percent):
    z, t = np.array(row, float), percent / 100
    ties = row.count(max(row))
    if not 1 / len(row) < t <= 1 / ties:
        if not (ties == len(row) and t == 1 / ties):
            with pytest.raises(ValueError, match="p_max for the scores must be above"):
                sg.lam_for_peak(z, t)
        return
    assert sg.sparsegen_lin(z, lam=sg.lam_for_peak(z, t)).max() == pytest.approx(t, abs=1e-9)


def test_a_peak_of_one_is_one_hot():
    z = np.random.default_rng(0).normal(size=(50, 9))
    p = sg.sparsegen_lin(z, lam=sg.lam_for_peak(z, 1.0))
    np.testing.assert_array_equal(sizes_of(p), 1)


def size_for_q(row, k):
    """The size that q_for_support gives, or None where it says that there is no q."""
    try:
        q = sg.q_for_support(row, k)
    except ValueError:
        return None
    return int(sizes_of(sg.sparsehourglass(row, q=q)))


@given(st.lists(st.integers(-20, 20).map(lambda v: v / 8), min_size=2, max_size=6))
def test_q_gives_every_size_that_some_q_gives(row):
    q = np.array([0.0 if sum(row) else 1e-9, *np.geomspace(1e-3, 1e3, 300), math.inf])
    seen = set(sizes_of(sg.sparsehourglass(np.tile(row, (len(q), 1)), q=q)).tolist())
    got = {k: size_for_q(row, k) for k in range(1, len(row) + 1)}
    assert seen <= {k for k, size in got.items() if size is not None}
    assert all(size in (None, k) for k, size in got.items())


@pytest.mark.parametrize("m", [1, 2.5, 7, 19.99])
def test_the_mean_support_is_reached(m):
    z = np.random.default_rng(2).normal(size=(200, 40))
    lam = sg.lam_for_mean_support(z, m)
    assert sizes_of(sg.sparsegen_lin(z, lam=lam)).mean() == pytest.approx(m, abs=0.5 / 200 + 1e-12)
    assert sgt.lam_for_mean_support(torch.from_numpy(z), m) == lam


def test_the_mean_support_with_ties_is_the_nearest_there_is():
    z = np.tile([[1.0, 0.0, 0.0, -5.0]], (10, 1))  # sizes 1, 3 and 4
    assert sizes_of(sg.sparsegen_lin(z, lam=sg.lam_for_mean_support(z, 2.4))).mean() == 3
    assert sizes_of(sg.sparsegen_lin(z, lam=sg.lam_for_mean_support(z, 1.2))).mean() == 1


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.floats(1.5, 20))
def test_calibration_over_batches_equals_one_over_all(seed, m):
    z = np.random.default_rng(seed).normal(size=(6, 50, 30)) * 3
    lam = sg.calibrate(iter(z), mean_support=m)
    near = sizes_of(sg.sparsegen_lin(z, lam=lam)).mean()
    # A bin is 0.14 % wide; the support moves by about its share of entries with a threshold in it.
    assert near == pytest.approx(m, abs=0.06)
    assert sgt.calibrate((torch.from_numpy(b) for b in z), mean_support=m) == lam
    share = sg.calibrate(iter(z), density=m / 30)
    assert share == pytest.approx(lam, abs=1e-9)


@pytest.mark.parametrize("n", [2, 3, 10, 1000])
@pytest.mark.parametrize("bound", [1.001, 1.5, 2.0, 100.0])
def test_q_for_a_lipschitz_constant_inverts_it(n, bound):
    q = sg.q_for_lipschitz(n, bound)
    assert sg.lipschitz("sparsehourglass", n, q=q) == pytest.approx(bound, rel=1e-9)


STEEP = [
    ("sparsemax", {}),
    ("sparsegen_lin", {"lam": 0.5}),
    ("sparsehourglass", {"q": 0.3}),
    ("softmax", {"temperature": 2}),
]


@pytest.mark.parametrize(("name", "controls"), STEEP)
def test_no_two_points_are_steeper_than_the_lipschitz_constant(name, controls):
    rng = np.random.default_rng(0)
    a = rng.normal(size=(4000, 4))
    b = a + rng.normal(size=a.shape) * 10.0 ** rng.uniform(-4, 0, size=(4000, 1))
    f = getattr(sg, name)
    steep = np.linalg.norm(f(a, **controls) - f(b, **controls), axis=1) / np.linalg.norm(a - b, axis=1)
    constant = sg.lipschitz(name, 4, **controls)
    assert steep.max() <= constant * (1 + 1e-9)
    assert steep.max() > 0.6 * constant  # and it is not far off


def test_maps_without_a_lipschitz_constant_say_inf():
    bounded = {"sparsemax", "sparsegen_lin", "sparsehourglass", "softmax", "sparsegen_softmax", "entmax", "entmax15"}
    for name in MAPS.keys() - bounded:
        assert sg.lipschitz(name, 5, **({"q": 1.0} if "q" in MAPS[name].controls else {})) == math.inf
    assert sg.lipschitz("entmax", 5, alpha=2.5) == math.inf
    assert sg.lipschitz("entmax", 5, alpha=2.0) == sg.lipschitz("sparsemax", 5)
    assert sg.lipschitz("entmax", 5, alpha=1.0) == sg.lipschitz("softmax", 5)
    assert sg.lipschitz("sparsegen_softmax", 5, lam=0.5, temperature=2.0) == 0.5


def test_masks_and_axes():
    z = np.array([[3.0, 1.0], [2.0, 5.0], [1.0, 0.0]])
    mask = np.array([[True, True], [False, True], [True, True]])
    lam = sg.lam_for_support(z, 2, axis=0, mask=mask)
    p = sg.sparsegen_lin(z, lam=lam, axis=0, mask=mask)
    assert (p > 0).sum(axis=0).tolist() == [2, 2]
    assert p[1, 0] == 0


@pytest.mark.parametrize(("call", "error", "text"), [
    (lambda: sg.lam_for_support([1.0, 2.0], 3), ValueError, "k must be from 1 to 2, the entries of the scores, got 3"),
    (lambda: sg.lam_for_support([1.0, 2.0], 1.5), TypeError, "k must be an integer, or an array of them, got 1.5"),
    (lambda: sg.lam_for_support([[1.0, 1.0, 0.0]], 1), ValueError, r"k for scores row \(0,\) must be one of 2, 3"),
    (lambda: sg.lam_for_support([1.0, 2.0], 1, ties="up"), ValueError, "ties must be one of 'raise', 'below', 'above'"),
    (lambda: sg.lam_for_support([1e-30, 0.0], 1), ValueError, "of a scale that lam can express"),
    (lambda: sg.lam_for_support([np.nan, 0.0], 1), ValueError, "the scores must be finite.*got NaN or inf"),
    (lambda: sg.lam_for_support([-np.inf, -np.inf], 1), ValueError, "got nothing to choose"),
    (lambda: sg.lam_for_support([2.0, 1.0, 1.0], 2), ValueError, "ties='below' or 'above' takes the next"),
    (lambda: sg.lam_for_mean_support([[1.0, 0.0]], 3), ValueError, "m must be from 1 to 2, got 3.0"),
    (lambda: sg.lam_for_mean_support([[1.0, 0.0]], "two"), TypeError, "m must be a number, got 'two'"),
    (lambda: sg.calibrate([]), ValueError, "mean_support or density must be given, one of them"),
    (lambda: sg.calibrate([], density=0.5), ValueError, "scores_iterable must be at least one row, got none"),
    (lambda: sg.q_for_support([3.0, -0.5], 2), ValueError, "k for the scores must be one of 1: the radius stays"),
    (lambda: sg.q_for_lipschitz(10, 1.0), ValueError, "bound must be a number above 1, got 1.0"),
    (lambda: sg.q_for_lipschitz(1, 2.0), ValueError, "n_classes must be an integer of at least 2, got 1"),
    (lambda: sg.lipschitz("sparsehourglass", 3), ValueError, "q must be given for mapping 'sparsehourglass'"),
    (lambda: sg.lipschitz("softmax", 3, lam=0.5), ValueError, "lam must be left out for mapping 'softmax'"),
    (lambda: sg.explain([1.0], "softmin"), ValueError, "mapping must be one of 'sparsemax'"),
    (lambda: sgt.lam_for_support([1.0], 1), TypeError, "scores must be a torch.Tensor, got list"),
    (lambda: sgt.DensityScheduler(sgt.Sparsemax(), 3), ValueError, "model must be one with Sparsegen modules"),
    (lambda: sgt.DensityScheduler(sgt.Sparsegen(learnable=True), 3), ValueError, "got a learnable one"),
    (lambda: sgt.DensityScheduler(sgt.Sparsegen(), 0.5), ValueError, "support must be a number at least 1, got 0.5"),
    (lambda: sgt.DensityScheduler(sgt.Sparsegen(), 3, rate=2), ValueError, "rate must be above 0 and at most 1, got 2"),
])  # fmt: skip
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_entries_closer_than_the_arithmetic_can_tell_are_refused():
    z = np.array([1.0, 1.0 + 2**-23, 1e6, 1e6], dtype=np.float32)
    with pytest.raises(ValueError, match="further apart at entry 3 than the rounding of float32"):
        sg.lam_for_support(z, 3)


def test_explain_counts_rows_without_gradient():
    found = sgt.explain(torch.tensor([[5.0, 0.0], [0.1, 0.0], [4.0, 0.0], [0.2, 0.1]]))
    assert found.no_gradient == 0.5
    assert found.lipschitz == 1.0
    np.testing.assert_allclose(found.entropy[[0, 2]], 0)
    np.testing.assert_allclose(found.entropy[1], -(0.55 * math.log(0.55) + 0.45 * math.log(0.45)), rtol=1e-6)


def test_the_scheduler_reaches_the_support_in_training_only():
    torch.manual_seed(0)
    attend = sgt.Sparsegen(lam=0.9)
    model = torch.nn.Sequential(torch.nn.Identity(), attend)
    scheduler = sgt.DensityScheduler(model, 12, warmup=10)
    wished = []
    for _ in range(60):
        model(torch.randn(50, 80))
        scheduler.step()
        wished.append(scheduler.wished())
    assert scheduler.seen == pytest.approx(12, rel=0.1)
    assert wished[0] < wished[5] < wished[30] == 12
    lam = attend.lam.clone()
    model.eval()
    model(torch.randn(50, 80))
    with pytest.warns(UserWarning, match="saw no forward pass in training mode"):
        scheduler.step()
    assert torch.equal(lam, attend.lam)
    state = scheduler.state_dict()
    again = sgt.DensityScheduler(model, 12, warmup=10)
    again.load_state_dict(state)
    assert again.wished() == 12
    scheduler.remove()
    model.train()
    model(torch.randn(50, 80))
    with pytest.warns(UserWarning, match="saw no forward pass"):
        scheduler.step()
    assert torch.equal(lam, attend.lam)


@pytest.mark.parametrize("mapping", ["sparsegen_lin", sgt.Sparsegen(lam=0.5)])
def test_the_scheduler_turns_the_dial_of_attention(mapping):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    sgt.replace_attention(layer, mapping)
    scheduler = sgt.DensityScheduler(layer, 6)
    for _ in range(40):
        layer(torch.randn(4, 20, 16))
        scheduler.step()
    assert scheduler.seen == pytest.approx(6, rel=0.15)
    layer.eval()
    with sgt.AttentionProbe(layer) as probe:
        layer(torch.randn(8, 20, 16))
    assert sum(row["support"] for row in probe.table()) / 2 == pytest.approx(6, rel=0.2)
    scheduler.remove()
    layer.train()
    layer(torch.randn(4, 20, 16))
    with pytest.warns(UserWarning, match="saw no forward pass"):
        scheduler.step()


def _ranks_see_other_rows(rank, path, results):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    attend = sgt.Sparsegen(lam=0.5)
    scheduler = sgt.DensityScheduler(attend, 4)
    for step in range(3):
        if rank == 0 or step != 1:  # a rank without rows says nothing, and does not keep the others waiting
            attend(torch.randn(50, 20, generator=torch.Generator().manual_seed(10 * rank + step)) * (1 + rank))
        scheduler.step()
    results.put((rank, scheduler.seen, attend.lam.item()))
    torch.distributed.destroy_process_group()


def test_every_process_of_a_group_turns_to_the_same_lam(tmp_path):
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    ranks = [
        context.Process(target=_ranks_see_other_rows, args=(rank, tmp_path / "store", results)) for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
        assert rank.exitcode == 0
    (_, seen, lam), (_, other_seen, other_lam) = sorted(results.get() for _ in ranks)
    assert lam == other_lam
    assert seen == other_seen


def test_a_row_on_the_edge_of_a_change_is_at_distance_0():
    found = sg.explain([0.2, 1.5, -0.3, 0.1], "sum_normalization_plus")  # tau is 0.1, but for rounding
    assert found.distance == 0
