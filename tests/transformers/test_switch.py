"""Switching models, what their configs remember, training of the controls, and calibration."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

import sparsegen.torch as sgt  # noqa: E402
from families import inputs, logits, made  # noqa: E402
from sparsegen.transformers import SparseControls, calibrate, sparsify, unsparsify  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:torch"
)


def carriers(model):
    return [m for m in model.modules() if isinstance(m, SparseControls)]


@pytest.mark.parametrize("name", ["llama", "t5", "clip"])
@pytest.mark.parametrize("learnable", [False, True])
def test_a_saved_model_comes_back_with_its_maps(name, learnable, tmp_path):
    model = made(name)
    sparsify(model, "sparsegen_lin", lam=[0.5, 0.0, -1.0, 0.25], learnable=learnable)
    with torch.no_grad():
        for i, carrier in enumerate(carriers(model)):
            carrier.set_value("lam", [0.1 * i, 0.0, -1.0, 0.25])  # as training would: the config must not be stale
    given, _ = inputs(name)
    want = logits(model, given)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(again, given), want, rtol=1e-5, atol=1e-5)
    for a, b in zip(carriers(again), carriers(model), strict=True):
        assert (a.name, a.learnable) == (b.name, b.learnable)
        assert a.value("lam").tolist() == pytest.approx(b.value("lam").tolist())


def test_a_model_without_its_head_comes_back_with_its_maps(tmp_path):
    model = made("llama")
    sparsify(model, "sparsegen_lin", lam=0.5)
    model.save_pretrained(tmp_path)
    base = transformers.LlamaModel.from_pretrained(tmp_path).eval()
    given, _ = inputs("llama")
    torch.testing.assert_close(logits(base, given), logits(model.model, given), rtol=1e-5, atol=1e-5)
    assert len(carriers(base)) == 2


def test_a_learnable_control_learns_and_is_left_out_of_weight_decay(tmp_path):
    model = made("gpt2")
    sparsify(model, "sparsegen_lin", lam=0.25, learnable=True)
    given, _ = inputs("gpt2")
    model(**given, labels=given["input_ids"]).loss.backward()
    thetas = {name: p for name, p in model.named_parameters() if name.endswith("theta")}
    assert len(thetas) == 2
    assert all(p.grad.shape == (4, 1) and p.grad.any() for p in thetas.values())
    trainer = pytest.importorskip("transformers.trainer")
    decayed = trainer.Trainer.get_decay_parameter_names(None, model)
    assert decayed
    assert not set(decayed) & set(thetas)


def test_controls_go_to_the_modules_their_patterns_name():
    model = made("llama")
    sparsify(model, "sparsegen_lin", lam={"*.layers.0.*": 0.5, "*": [0.0, 0.1, 0.2, 0.3]})
    first, second = carriers(model)
    assert first.value("lam").tolist() == [0.5] * 4
    assert second.value("lam").tolist() == [0.0, 0.1, 0.2, 0.3]
    sparsify(model, "hardmax", only="model.layers.1.*")
    assert [c.name for c in carriers(model)] == ["sparsegen_lin", "hardmax"]
    assert model.config.sparsegen["modules"]["model.layers.1.self_attn"]["mapping"] == "hardmax"


def test_patterns_that_name_nothing_or_leave_a_module_out_are_refused():
    model = made("llama")
    with pytest.raises(
        ValueError,
        match=r"^sparsegen: lam must be a dict of patterns of some of model.layers.0.self_attn, .*, got 'modle\.\*'",
    ):
        sparsify(model, "sparsegen_lin", lam={"modle.*": 0.5, "*": 0.0})
    with pytest.raises(ValueError, match=r"a pattern for every module .*, got none for model\.layers\.1\.self_attn"):
        sparsify(model, "sparsegen_lin", lam={"*.layers.0.*": 0.5})
    assert not carriers(model)


def test_unsparsify_forgets_everything(tmp_path):
    model = made("t5")
    given, _ = inputs("t5")
    before = logits(model, given)
    sparsify(model, "sparsemax")
    assert not torch.equal(logits(model, given), before)
    assert len(unsparsify(model)) == 3
    assert torch.equal(logits(model, given), before)
    assert not carriers(model)
    assert not hasattr(model.config, "sparsegen")


def test_weights_that_are_asked_for_are_sparse_and_sum_to_one():
    for name in ("llama", "bert"):
        model = made(name)
        sparsify(model, "sparsegen_lin", lam=0.5)
        given, _ = inputs(name)
        with torch.no_grad():
            attentions = model(**given, output_attentions=True).attentions
        assert len(attentions) == 2
        for weights in attentions:
            assert weights.shape == (2, 4, 10, 10)
            torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 10))
            assert (weights == 0).float().mean() > 0.5


def test_probes_and_the_density_scheduler_find_the_heads():
    model = made("llama")
    sparsify(model, "sparsegen_softmax", lam=0.0)
    given, _ = inputs("llama")
    with sgt.AttentionProbe(model) as probe, torch.no_grad():
        model(**given)
    rows = probe.table()
    assert len(rows) == 8
    assert all(row["support"] == pytest.approx(5.5) for row in rows)  # of the triangle, at lam = 0
    scheduler = sgt.DensityScheduler(model, support=2)
    model.train()
    for _ in range(40):
        model(**given)
        scheduler.step()
    assert abs(scheduler.seen - 2) < 0.2


@pytest.mark.parametrize("aim", [{"mean_support": 3.0}, {"distance": 0.1}, {"max_loss_increase": 0.01}])
def test_calibration_does_what_it_says(aim):
    model = made("llama")
    sparsify(model)
    given, _ = inputs("llama")
    batch = {**given, "labels": given["input_ids"]}
    with torch.no_grad():
        soft = model(**batch).loss.item()  # lam = 0 is softmax
        dense = model(**given, output_attentions=True).attentions[0]
    found = calibrate(model, [batch], **aim, passes=12)
    assert len(found) == 8
    with torch.no_grad():
        loss = model(**batch).loss.item()
        weights = model(**given, output_attentions=True).attentions[0]
    if "mean_support" in aim:
        assert all(abs(row["support"] - 3) < 0.25 for row in found)
        torch.testing.assert_close(
            (weights > 0).double().sum(-1).mean((0, 2)).tolist(), [r["support"] for r in found[:4]]
        )
    if "distance" in aim:
        apart = (weights - dense).abs().sum(-1).mean((0, 2)) / 2
        assert (apart <= 0.1 + 1e-6).all()
        assert (apart > 0.08).all()
    if "max_loss_increase" in aim:
        assert loss <= soft * 1.01 + 1e-6
        assert all(row["lam"] == found[0]["lam"] > 0.01 for row in found)


ERRORS = [
    (lambda m: sparsify(torch.nn.Linear(1, 1)), "model must be a PreTrainedModel of transformers, got Linear"),
    (lambda m: sparsify(m, "sharpmax"), "mapping must be one of"),
    (lambda m: sparsify(m, "sparsegen_lin", lam=1.5), "lam must be a number below 1, got 1.5"),
    (
        lambda m: sparsify(m, "sparsegen_lin", lam=[0.1, 0.2]),
        "lam must be one number, or one for each of the 4 heads, got 2",
    ),
    (
        lambda m: sparsify(m, "sparsemax", only="nothing"),
        "only must be a pattern of some of model.layers.0.self_attn, model.layers.1.self_attn, got 'nothing'",
    ),
    (
        lambda m: calibrate(m, [{}], mean_support=2),
        "model must be sparse by maps that have a lam, got no sparse module",
    ),
    (
        lambda m: calibrate(m, [{}]),
        "the aim must be one of mean_support, distance and max_loss_increase, got 0 of them",
    ),
]


@pytest.mark.parametrize(("call", "text"), ERRORS, ids=[text[:24] for _, text in ERRORS])
def test_what_cannot_be_is_refused(call, text):
    with pytest.raises((TypeError, ValueError)) as error:
        call(made("llama"))
    assert str(error.value).startswith("sparsegen: " + text)


def test_a_config_that_names_the_attention_without_maps_is_refused():
    model = made("llama")
    sparsify(model, "sparsemax")
    unsparsify(model)
    model.set_attn_implementation("sparsegen")
    with pytest.raises(ValueError, match="sparsegen: LlamaAttention must be a module that sparsify"):
        logits(model, inputs("llama")[0])


def test_a_compiled_model_is_one_graph_with_eagers_logits():
    model = made("llama")
    sparsify(model, "sparsegen_lin", lam=0.25)
    ids = inputs("llama")[0]["input_ids"]
    want = logits(model, {"input_ids": ids})
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: model(input_ids=x, use_cache=False).logits, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids), want)
    torch._dynamo.reset()
