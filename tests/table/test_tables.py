"""A new row of a table is found everywhere without another edit."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import sparsegen as sg
from sparsegen import explore, properties
from sparsegen._table import plain, recipe
from sparsegen._table.losses import LOSSES
from sparsegen._table.maps import MAPS
from sparsegen._table.radius import blend, of_mean, slopes_of_mean

torch = pytest.importorskip("torch")
sgt = pytest.importorskip("sparsegen.torch")

Z = np.random.default_rng(0).standard_normal((4, 6))


@pytest.fixture
def toy(monkeypatch):
    """sparsegen_lin under a name of its own."""
    row = replace(MAPS["sparsegen_lin"], name="toymax", summary="A row that a test adds.")
    monkeypatch.setitem(MAPS, "toymax", row)
    return row


@pytest.fixture
def toy_loss(monkeypatch):
    row = replace(LOSSES["sparsegen_hinge"], name="toymax_hinge")
    monkeypatch.setitem(LOSSES, "toymax_hinge", row)
    return row


def test_a_new_map_is_a_numpy_function_with_its_documentation(toy):
    np.testing.assert_array_equal(sg.toymax(Z, lam=0.5), sg.sparsegen_lin(Z, lam=0.5))
    for part in (toy.summary, "Parameters", "Returns", "Examples", "lam : number"):
        assert part in sg.toymax.__doc__
    with pytest.raises(ValueError, match=r"lam must be a number below 1, got 2\.0"):
        sg.toymax(Z, lam=2.0)


def test_a_new_map_is_a_torch_function_with_gradients(toy):
    z = torch.tensor(Z, requires_grad=True)
    p = sgt.toymax(z, lam=0.5)
    torch.testing.assert_close(p, sgt.sparsegen_lin(z, lam=0.5), rtol=0, atol=0)
    assert torch.autograd.gradcheck(lambda z: sgt.toymax(z, lam=0.5), (z,))


def test_a_new_map_is_a_module_with_a_control_that_learns(toy):
    module = sgt.make_map("toymax", lam=0.25, learnable=True)
    assert module(torch.tensor(Z)).shape == Z.shape
    assert [name for name, _ in module.named_parameters()] == ["theta"]
    assert module.row is toy


def test_a_new_map_is_fused_into_attention(toy):
    q, k, v = torch.randn(3, 2, 5, 8).unbind()
    for given in ({"mapping": "toymax", "lam": 0.5}, {"mapping": sgt.make_map("toymax", lam=0.5)}):
        got, weights = sgt.sparse_attention(q, k, v, return_weights="csr", **given)
        torch.testing.assert_close(got, sgt.sparse_attention(q, k, v, mapping="sparsegen_lin", lam=0.5))
        assert weights.values.numel() < 2 * 5 * 5
    attention = sgt.MultiheadAttention(8, 2, mapping="toymax", lam=0.5)
    assert attention.lam == 0.5


def test_a_new_map_is_on_the_page_and_in_the_property_lab(toy):
    table = explore.page().split("toymax", 1)
    assert len(table) == 2
    assert json.dumps(toy.equation) in explore.page()
    report = properties.check(lambda z: sg.toymax(z, lam=0.0), n_classes=(3,))
    assert report.findings["translation"].holds
    assert sg.lipschitz("toymax", 5, lam=0.5) == 2
    assert sg.explain(Z, "toymax", lam=0.5).mapping == "toymax"


def test_a_control_of_another_map_is_refused_in_the_same_words_everywhere(toy):
    text = r"q must be left out for mapping 'toymax', which has the control 'lam', got 1\.0"
    q, k, v = torch.randn(3, 1, 2, 4).unbind()
    for call in (
        lambda: sg.explain(Z, "toymax", q=1.0),
        lambda: sg.lipschitz("toymax", 3, q=1.0),
        lambda: sgt.make_map("toymax", q=1.0),
        lambda: sgt.MultiheadAttention(4, 1, mapping="toymax", q=1.0),
        lambda: sgt.sparse_attention(q, k, v, mapping="toymax", q=1.0),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def test_a_new_loss_is_a_function_in_both_front_ends(toy_loss):
    target = np.array([0, 1, 2, 3])
    loss, grad = sg.toymax_hinge_loss(Z, target, lam=0.25, return_grad=True)
    assert loss == sg.sparsegen_hinge_loss(Z, target, lam=0.25)
    z = torch.tensor(Z, requires_grad=True)
    value = sgt.toymax_hinge_loss(z, torch.tensor(target), lam=0.25)
    value.backward()
    assert value.item() == pytest.approx(loss)
    np.testing.assert_allclose(z.grad, grad.scores)
    assert toy_loss.summary in sgt.toymax_hinge_loss.__doc__


def test_names_that_are_in_no_table_are_missing():
    for module in (sg, sgt):
        with pytest.raises(AttributeError, match="toymin"):
            _ = module.toymin
        with pytest.raises(AttributeError, match="toymin_loss"):
            _ = module.toymin_loss


@pytest.mark.parametrize("name", [name for name, m in MAPS.items() if m.radius.of == "mean"])
@pytest.mark.parametrize("q", [0.0, 0.3, 2.0, math.inf])
def test_the_slopes_of_a_radius_are_its_derivatives(name, q):
    rule, n, h = MAPS[name].radius, np.array([5.0]), 1e-6
    for mean in (-0.7, 0.4, 1.3):
        if rule.domain and blend(np, mean, n, q) <= 0:
            continue
        each, bend = slopes_of_mean(np, rule, np.array([mean]), n, np.float64(q))
        up, down = (of_mean(np, rule, np.array([mean + s * h / 5]), n, np.float64(q)) for s in (1, -1))
        np.testing.assert_allclose(each, (up - down) / (2 * h), atol=1e-8)
        if 0 < q < math.inf:
            up, down = (of_mean(np, rule, np.array([mean]), n, np.float64(q + s * h)) for s in (1, -1))
            np.testing.assert_allclose(bend, (up - down) / (2 * h), atol=1e-8)


@pytest.mark.parametrize("xp", [np, torch], ids=["numpy", "torch"])
def test_the_plain_recipe_is_the_kernels_twin(xp):
    rng = np.random.default_rng(1)
    x, r = rng.standard_normal((40, 9)), rng.random(40) * 2
    x[0], x[1, 2], x[2, :3], r[3], r[4] = -math.inf, math.nan, -math.inf, 0.0, math.inf
    convert = np.asarray if xp is np else torch.from_numpy
    with np.errstate(all="ignore"):
        got = np.asarray(plain.project(xp, convert(x), convert(r)))
        grad, along = (np.asarray(t) for t in plain.vjp(xp, convert(got), convert(x[::-1].copy()), convert(r)))
    np.testing.assert_allclose(got, sg.project(x, r), rtol=1e-13, atol=1e-15)
    z, radius = torch.tensor(x, requires_grad=True), torch.tensor(r, requires_grad=True)
    want = torch.autograd.grad(sgt.project(z, radius), (z, radius), torch.tensor(x[::-1].copy()))
    fine = ~np.isnan(x[::-1]).any(1) & np.isfinite(x[::-1]).all(1)
    np.testing.assert_allclose(grad[fine], want[0][fine], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(along[fine], want[1][fine], rtol=1e-12, atol=1e-13)


def test_masks_hide_in_the_recipe_as_minus_infinity_does():
    mask = Z > 0
    np.testing.assert_array_equal(recipe.hide(np, Z, mask), np.where(mask, Z, -np.inf))
    assert recipe.hide(np, Z, None) is Z
