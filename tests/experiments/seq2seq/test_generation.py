"""The attention experiments from cell to command line, at toy size: rows, store, ledger, figures and tables."""

from __future__ import annotations

import io
import os
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from sparsegen.cli import app
from sparsegen.experiments.ledger import HOLDS, NOT, OPEN, PARTLY, UNKNOWN, ledger
from sparsegen.experiments.seq2seq import comparison, corpora, figures, generation, joining, summarization, translation
from sparsegen.experiments.seq2seq.generation import PRESETS, ROWS, choose, preset
from sparsegen.experiments.seq2seq.splits import Split
from sparsegen.experiments.seq2seq.training import BEST, Trainer
from sparsegen.experiments.store import Result
from sparsegen.report.terminal import show

CORPUS = "numbers-fr-en"
PAPER_BLEU, PAPER_ROUGE = translation.PAPER, summarization.PAPER
CONTROLS = [None, 0.5, None, 0.75, 1.0, None, 0.5]  # of the generated corpus, where none is tuned


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(generation, "LOOKED_AT", 4)
    monkeypatch.delenv(generation.RUNS_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A whole smoke run: the folder of the command line's `--out`, and the Result."""
    out = tmp_path_factory.mktemp("smoke")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "LOOKED_AT", 4)
        result = translation.run("smoke", corpora=(CORPUS,), store=out / "translation")
    return out, result


def numbers(value):
    """What does not hang on the clock."""
    if isinstance(value, dict):
        return {name: numbers(part) for name, part in value.items() if "seconds" not in name}
    return [numbers(part) for part in value] if isinstance(value, (list, tuple)) else value


@pytest.fixture
def no_training(monkeypatch):
    monkeypatch.setattr(Trainer, "_step", lambda *_: pytest.fail("it trained again"))


# Running


def test_a_run_has_every_row_of_the_papers_table(smoke):
    _, result = smoke
    assert [row["row"] for row in result.rows] == list(ROWS)
    assert list(ROWS)[:5] == list(PAPER_BLEU) == list(PAPER_ROUGE)
    assert [row["mapping"] for row in result.rows] == [row.mapping for row in ROWS.values()]
    assert [row["control"] for row in result.rows] == CONTROLS
    for row in result.rows:
        assert row["control"] in (ROWS[row["row"]].grid or (None,))
        assert len(row["curve"]) == 1
        assert row["valid_accuracy"] == row["curve"][row["best_epoch"]]["valid_accuracy"]
        assert row["train_pairs"] == 64
        found = row["tests"]["numbers"]
        assert found["lines"] == 8
        assert 0 <= found["bleu"] <= 100
        assert 0 <= found["exact_match"] <= 1
        assert 0 <= found["copied_right"] <= found["copied"] <= found["words"]
        assert found["words"] > 0
        assert 0 < found["support"] <= found["source_words"] * 2
        assert len(found["samples"]) == generation.SAMPLES
        for sample in found["samples"]:
            assert len(sample["weights"]) == len(sample["written"])
            assert all(sum(weights) == pytest.approx(1, abs=2e-3) for weights in sample["weights"])
    assert len({row["parameters"] for row in result.rows}) == 1  # rows differ in the map alone
    line = result.summary["table"][0]
    assert (line["row"], line["corpus"], line["test"], line["paper"]) == ("softmax", CORPUS, "numbers", None)
    assert line["bleu"] == result.rows[0]["tests"]["numbers"]["bleu"]
    assert len(result.summary["table"]) == len(ROWS)
    assert result.summary["tried"] == []
    given = {name: found["control"] for name, found in result.summary["chosen"][CORPUS].items()}
    assert given == {name: control for name, control in zip(ROWS, CONTROLS) if control is not None}
    assert (result.config["seeds"], line["seeds"]) == (1, [0])
    assert line["each"] == [line["bleu"]]
    leads = result.summary["leads"]
    assert [(lead["row"], lead["base"]) for lead in leads] == [
        (row, base) for base in ("softmax", "sparsemax") for row in ROWS if row != base
    ]
    assert all(lead["low"] <= lead["high"] and len(lead["p_each"]) == 1 for lead in leads)
    assert "written" not in result.rows[0]["tests"]["numbers"]
    assert (result.experiment, result.config["scale"], result.seed) == ("translation", "smoke", 0)


def test_a_run_keeps_its_models_and_curves(smoke):
    out, _ = smoke
    runs = list((out / "translation" / "runs").iterdir())
    assert len(runs) == len(ROWS)
    assert all((run / BEST).is_file() and (run / "curve.json").is_file() for run in runs)
    assert generation.RUNS_VARIABLE not in os.environ


def test_runs_of_another_version_of_the_cells_are_not_resumed(smoke, monkeypatch):
    out, _ = smoke
    assert all(run.name.endswith(f"-v{generation.VERSION}") for run in (out / "translation" / "runs").iterdir())
    monkeypatch.setenv(generation.RUNS_VARIABLE, str(out / "translation" / "runs"))
    began = []
    monkeypatch.setattr(Trainer, "run", lambda self, progress: began.append((self.epoch, self.folder.name)))
    for version in (generation.VERSION, "next"):
        monkeypatch.setattr(generation, "VERSION", version)
        with generation._trained(CORPUS, "smoke", "sparsemax", None, 0):
            pass
    assert [epoch for epoch, _ in began] == [1, 0]
    assert began[1][1].endswith("-vnext")


def test_a_second_run_takes_everything_from_the_store(smoke, no_training):
    out, result = smoke
    again = translation.run("smoke", corpora=(CORPUS,), store=out / "translation")
    assert again.rows == result.rows  # seconds too: nothing was done
    assert again.summary == result.summary


def test_finished_trainings_are_not_done_again_where_the_cells_are_lost(smoke, no_training, tmp_path):
    out, result = smoke
    (tmp_path / "runs").symlink_to(out / "translation" / "runs")
    again = translation.run("smoke", corpora=(CORPUS,), maps=("sparsegen-lin",), store=tmp_path)
    assert numbers(again.rows[0]) == numbers(result.rows[3])


def test_the_same_seed_gives_the_same_numbers_and_another_others(smoke):
    _, result = smoke
    torch.manual_seed(77)
    again = translation.run("smoke", corpora=(CORPUS,), maps=("sparsemax",))
    assert numbers(again.rows[0]) == numbers(result.rows[2])
    assert again.summary["chosen"] == {CORPUS: {}}
    other = translation.run("smoke", corpora=(CORPUS,), maps=("sparsemax",), seed=1)
    assert other.rows[0]["curve"][0]["loss"] != result.rows[2]["curve"][0]["loss"]
    assert generation.RUNS_VARIABLE not in os.environ


def fake_tune(corpus, scale, mapping, control, seed):
    best = 2.0 if corpus == "multi30k-fr-en" else 0.5
    return {"valid_accuracy": 0.7 if control == best else 0.6, "support": 1.0}


def fake_final(corpus, scale, mapping, control, seed):
    known = {"support": 2.0, "source_words": 4.0, "bleu": 30.0 + seed, "exact_match": 0.5}
    return {"tests": {test: {**known, "written": ["a b"] * 8} for test in corpora.MULTI30K_TESTS}, "curve": []}


@pytest.fixture
def toy_data(tmp_path, monkeypatch):
    """Files under the names of a real corpus."""
    for file in corpora.CORPORA["multi30k-fr-en"].files:
        (tmp_path / file).write_text("".join(f"{line}\n" for line in ("a b", "b c d", "d", "a c") * 4))
    monkeypatch.setenv(corpora.DATA_VARIABLE, str(tmp_path))


def test_a_control_is_chosen_by_whole_trainings_none_of_which_is_done_twice(toy_data, monkeypatch):
    began, run = [], Trainer.run
    monkeypatch.setattr(Trainer, "run", lambda self, *how: began.append(self.finished) or run(self, *how))
    result = translation.run("smoke", corpora=("multi30k-fr-en",), maps=("sparsegen-lin",))
    tried = result.summary["tried"]
    assert [row["control"] for row in tried] == list(ROWS["sparsegen-lin"].grid)
    assert all(1 <= row["support"] <= 3 and len(row["samples"]) == generation.SAMPLES for row in tried)
    best = max(tried, key=lambda row: row["valid_accuracy"])
    kept = {"control": best["control"], "valid_accuracy": best["valid_accuracy"]}
    assert result.summary["chosen"] == {"multi30k-fr-en": {"sparsegen-lin": kept}}
    assert [row["control"] for row in result.rows] == [best["control"]]
    assert began == [False, False, False, True]
    assert list(result.rows[0]["tests"]) == ["test_2016_flickr", "test_2017_flickr"]
    assert [line["paper"] for line in result.summary["table"]] == [37.27, 37.27]


def test_each_direction_has_its_own_control_and_every_seed_is_trained(toy_data, monkeypatch):
    monkeypatch.setattr(generation, "tune", fake_tune)
    monkeypatch.setattr(generation, "final", fake_final)
    maps, both = ("softmax", "softmax (with temp.)"), ("multi30k-fr-en", "multi30k-en-fr")
    result = translation.run("smoke", corpora=both, maps=maps, seed=1, seeds=2)
    assert [(row["corpus"], row["seed"]) for row in result.summary["tried"]] == [(c, 1) for c in both for _ in range(2)]
    found = [(row["corpus"], row["seed"], row["row"], row["control"]) for row in result.rows]
    controls = {both[0]: (None, 2.0), both[1]: (None, 0.5)}
    assert found == [(c, seed, *row) for c in both for seed in (1, 2) for row in zip(maps, controls[c])]
    line = result.summary["table"][0]
    assert (line["bleu"], line["each"], line["seeds"]) == (31.5, [31.0, 32.0], [1, 2])
    assert len(result.summary["table"]) == 2 * 2 * 2
    assert [len(lead["p_each"]) for lead in result.summary["leads"]] == [2] * 4
    assert [lead["lead"] for lead in result.summary["leads"]] == [0.0] * 4  # all wrote the same


def test_one_corpus_may_choose_the_controls_of_others(toy_data, monkeypatch):
    monkeypatch.setattr(generation, "tune", fake_tune)
    monkeypatch.setattr(generation, "final", fake_final)
    there, back, row = "multi30k-fr-en", "multi30k-en-fr", "softmax (with temp.)"
    lent = {row: {"control": 2.0, "from": there}}
    alone = translation.run("smoke", corpora=(back,), maps=(row,), controls_from=there)
    assert ([r["control"] for r in alone.rows], alone.summary["chosen"]) == ([2.0], {back: lent})
    assert {r["corpus"] for r in alone.summary["tried"]} == {there}
    assert alone.config["controls_from"] == {back: there}
    both = translation.run("smoke", corpora=(there, back), maps=(row,), controls_from=there)
    assert both.summary["chosen"] == {there: {row: {"control": 2.0, "valid_accuracy": 0.7}}, back: lent}
    assert both.config["controls_from"] == {back: there}
    joined = joining.join(translation.run("smoke", corpora=(there,), maps=(row,)), alone)
    assert (joined.summary, joined.config) == (both.summary, both.config)
    assert joining.without(joined, [there]).summary == alone.summary
    own = translation.run("smoke", corpora=(back,), maps=(row,))
    assert ([r["control"] for r in own.rows], own.config["controls_from"]) == ([0.5], {})


def test_the_control_with_the_best_validation_accuracy_is_chosen():
    todo = [{"corpus": "a", "mapping": row.mapping, "control": v} for row in ROWS.values() for v in row.grid]
    found = [{"valid_accuracy": value} for value in (0.2, 0.1, 0.3, 0.5, 0.4, 0.1, 0.2, 0.2, 0.3, 0.1)]
    assert choose(todo, found)["a"] == {
        "softmax (with temp.)": {"control": 0.5, "valid_accuracy": 0.2},
        "sparsegen-lin": {"control": 0.5, "valid_accuracy": 0.5},
        "sparsehg": {"control": 1.0, "valid_accuracy": 0.2},  # the first of equals
        "sparsegen-softmax": {"control": 0.25, "valid_accuracy": 0.3},
    }


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"scale": "huge"}, "scale must be one of 'smoke', 'small', 'paper', got 'huge'"),
        ({"maps": ("hardmax",)}, "maps must be among 'softmax', .* got 'hardmax'"),
        ({"controls_from": "gigawords"}, "name must be one of .* got 'gigawords'"),
        ({"corpora": ("nonsense",)}, "name must be one of 'multi30k-fr-en', .* got 'nonsense'"),
        (
            {"run": summarization.run},
            "corpora must be for summarization, got 'numbers-fr-en', which is for translation",
        ),
    ],
)
def test_a_run_of_what_is_not_there_is_refused(options, text):
    given = {"run": translation.run, "scale": "smoke", "corpora": (CORPUS,), **options}
    with pytest.raises(ValueError, match=f"^sparsegen: {text}"):
        given.pop("run")(**given)


def test_another_data_folder_is_another_corpus(tmp_path, monkeypatch):
    for name, word in (("a", "chat"), ("b", "chien")):
        (tmp_path / name).mkdir()
        for file in corpora.CORPORA["multi30k-fr-en"].files:
            (tmp_path / name / file).write_text(f"{word}\n" * 12)
    seen = []
    for name in "ab":
        monkeypatch.setenv(corpora.DATA_VARIABLE, str(tmp_path / name))
        seen.append(generation.prepare("multi30k-fr-en", "smoke").source.state()["words"])
    assert seen == [["chat"], ["chien"]]


def test_the_paper_scale_is_the_papers():
    sizes = preset("paper", "multi30k-fr-en")
    assert (sizes.embedding, sizes.hidden, sizes.layers, sizes.dropout) == (500, 500, 2, 0.3)
    assert (sizes.train.optimizer, sizes.train.lr, sizes.train.batch_size) == ("sgd", 1.0, 64)
    assert preset("small", CORPUS) is generation.NUMBERS
    assert preset("smoke", CORPUS) is PRESETS["smoke"]


def test_each_task_is_scored_by_its_measure():
    split = Split(("a b", "c d"), (("a cat",), ("a dog",)))
    written = ["a cat", "no"]
    found = translation.score("test", written, split)
    assert found.keys() == {"bleu", "signature"}
    f1 = summarization.score("gigaword", written, split)["rouge"]
    assert f1["rouge1"] == pytest.approx(50.0)
    recall = summarization.score("duc2004", ["a cat " + "x" * 100, "a"], split)["rouge_recall_75"]
    assert recall["rouge1"] == pytest.approx(75.0)


def test_the_summary_has_the_papers_numbers_beside():
    scores = {"rouge1": 30.0, "rouge2": 10.0, "rougeL": 28.0}
    shared = {"support": 2.0, "source_words": 9.0}
    tests = {"gigaword": {"rouge": scores, **shared}, "duc2004": {"rouge_recall_75": scores, **shared}}
    row = {"corpus": "gigaword", "row": "sparsegen-lin", "control": 0.5, "seed": 0, "tests": tests}
    first, second = summarization.EXPERIMENT.table([row])
    assert (first["measure"], first["rougeL"], first["paper"]) == ("rouge", 28.0, (35.90, 17.57, 33.37))
    assert (second["measure"], second["paper"]) == ("rouge_recall_75", (31.85, 12.28, 29.13))
    away = {**row, "corpus": "reuters", "tests": {"duc2004": tests["duc2004"]}}
    (elsewhere,) = summarization.EXPERIMENT.table([away])
    assert elsewhere["paper"] is None  # the paper trains on Gigaword
    tests = {"test": {"bleu": 30.0, "exact_match": 0.1, **shared}}
    rows = [
        {"corpus": f"multi30k-{d}", "row": "sparsegen-lin", "control": 0.5, "seed": 0, "tests": tests}
        for d in ("fr-en", "en-fr")
    ]
    assert [line["paper"] for line in translation.EXPERIMENT.table(rows)] == [37.27, 35.78]


def test_copied_words_are_counted_over_seeds_and_runs_of_before_say_nothing():
    shared = {"support": 2.0, "source_words": 9.0, "bleu": 30.0, "exact_match": 0.1}
    counts = ({"words": 90, "copied": 8, "copied_right": 2}, {"words": 110, "copied": 2, "copied_right": 1})

    def line(*found):
        rows = [
            {"corpus": CORPUS, "row": "sparsemax", "control": None, "seed": seed, "tests": {"numbers": shared | each}}
            for seed, each in enumerate(found)
        ]
        (made,) = translation.EXPERIMENT.table(rows)
        return made

    assert (line(*counts)["copied"], line(*counts)["copied_right"]) == (0.05, 0.3)
    assert line({"words": 9, "copied": 0, "copied_right": 0})["copied_right"] is None
    assert "copied" not in line(counts[0], {})
    (table,) = comparison.copied_table("a", [line(*counts), line({})])
    assert table.rows == (("sparsemax", "5.0 %", "30.0 %"),)
    assert list(comparison.copied_table("a", [line({})])) == []


def test_summaries_are_of_three_corpora_and_all_runs_the_papers():
    assert summarization.EXPERIMENT.corpora == ("gigaword", "reuters", "acl")
    (part,) = summarization.EXPERIMENT.parts
    assert part.options == {"corpora": ("gigaword",)}


# Ledger


def made(table, tried=(), experiment="translation", rows=(), corpus="multi30k-fr-en", spread=0.5):
    """A Result with these numbers: {test: {row: measure}}, intervals so wide, and (lam, support) of the trainings."""
    key = "bleu" if experiment == "translation" else "rougeL"
    lines, leads = [], []
    for test, scores in table.items():
        for name, value in scores.items():
            line = {"corpus": corpus, "test": test, "row": name, "control": -1.0 if ROWS[name].grid else None}
            line |= {"support": 10.25, "source_words": 13.0, "exact_match": 1.0, "seeds": [0, 1, 2], key: value}
            if experiment == "translation":
                line["paper"] = PAPER_BLEU.get(name, {}).get("fr-en")
            else:
                line |= {"rouge1": 35.25, "rouge2": 18.25, "measure": "rouge"}
                line["paper"] = PAPER_ROUGE.get(name, {}).get("gigaword")
            lines.append(line)
            for base in (b for b in ("softmax", "sparsemax") if b in scores and b != name):
                lead = value - scores[base]
                ends = {"lead": lead, "low": lead - spread, "high": lead + spread, "p": 0.5}
                leads.append({"corpus": corpus, "test": test, "row": name, "base": base, **ends})
    dial = [{"mapping": "sparsegen_lin", "control": lam, "support": support} for lam, support in tried]
    tuning = [{"corpus": corpus, **row} for row in [*dial, {"mapping": "softmax", "control": 0.5, "support": 13.0}]]
    summary = {"table": lines, "tried": tuning, "leads": leads}
    config = {"scale": "small", "corpora": [corpus], "maps": list(ROWS), "seeds": 3}
    return Result(experiment, config, 0, rows, summary, {}, 1.0, "2030-01-01T00:00:00")


def scores(softmax, sparsemax, sparsegen, hourglass):
    return dict(zip(("softmax", "sparsemax", "sparsegen-lin", "sparsehg"), (softmax, sparsemax, sparsegen, hourglass)))


AHEAD, BEHIND, LEVEL = scores(30, 31, 32, 31.5), scores(32, 31, 30, 20), scores(30, 30, 30.25, 29.75)
FALLING, UNEVEN, RISING = (
    ((-1, 5.0), (0.5, 3.0), (0.75, 2.0)),
    ((-1, 5.0), (0.5, 6.0), (0.75, 2.0)),
    ((0, 1.0), (0.5, 2.0)),
)


def verdicts(*arguments, **options):
    found = ledger(made(*arguments, **options))
    assert all(entry.claim and entry.source and entry.rule and entry.measured for entry in found)
    return [entry.verdict for entry in found]


@pytest.mark.parametrize(
    ("table", "tried", "expected"),
    [
        ({"a": AHEAD, "b": AHEAD}, FALLING, [HOLDS, HOLDS, HOLDS, HOLDS]),
        ({"a": BEHIND}, RISING, [NOT, NOT, NOT, NOT]),
        ({"a": AHEAD, "b": BEHIND}, UNEVEN, [PARTLY, PARTLY, PARTLY, PARTLY]),  # surely so here, surely not there
        ({"a": AHEAD, "b": BEHIND, "c": BEHIND}, UNEVEN, [NOT, NOT, NOT, PARTLY]),
        ({"a": AHEAD, "b": LEVEL}, FALLING, [PARTLY, HOLDS, HOLDS, HOLDS]),  # surely so here, who knows there
        ({"a": LEVEL, "b": BEHIND}, RISING, [NOT, PARTLY, PARTLY, NOT]),
        ({"a": LEVEL}, FALLING[::-1], [OPEN, HOLDS, HOLDS, HOLDS]),  # intervals reach over 0, none below -1
        ({"a": LEVEL}, FALLING[:1], [OPEN, HOLDS, HOLDS]),  # what cannot be judged is left out
        ({"a": {"sparsehg": 30}}, FALLING, [HOLDS]),
    ],
)
def test_verdicts_on_translation_follow_from_intervals(table, tried, expected):
    assert verdicts(table, tried) == expected


def test_means_that_lean_the_right_way_decide_nothing_where_intervals_allow_both():
    found = ledger(made({"a": LEVEL}, spread=2.0))
    assert [entry.verdict for entry in found] == [OPEN, OPEN, OPEN]
    assert all(entry.measured.endswith("no interval decides: runs of this size do not tell") for entry in found)


def test_each_corpus_has_a_verdict_of_its_own():
    result, back = made({"a": AHEAD}, FALLING), made({"a": BEHIND}, corpus="multi30k-en-fr").summary
    for part in ("table", "leads"):
        result.summary[part].extend(back[part])
    found = {entry.claim: entry.verdict for entry in ledger(result)}
    claim = "Sparsehg formulations yield comparable performance"
    assert (found[f"{claim}: multi30k-fr-en"], found[f"{claim}: multi30k-en-fr"]) == (HOLDS, NOT)
    assert found["Sparsegen-lin surpasses the BLEU of softmax and sparsemax from French to English"] == HOLDS


def test_what_is_said_of_one_direction_is_judged_there():
    there = ledger(made({"a": AHEAD}, FALLING))
    back = ledger(made({"a": BEHIND}, FALLING, corpus="multi30k-en-fr"))
    assert ["French to English" in entry.claim for entry in there] == [True, False, False, False]
    still = next(entry for entry in back if "English to French" in entry.claim)
    assert (still.verdict, sum("French to English" in entry.claim for entry in back)) == (HOLDS, 0)
    ahead = ledger(made({"a": AHEAD}, FALLING, corpus="multi30k-en-fr"))
    assert next(entry for entry in ahead if "English to French" in entry.claim).verdict == NOT


def test_what_is_said_counts_the_seeds_of_the_corpora_compared():
    result = made({"a": AHEAD}, FALLING)
    for line in result.summary["table"]:
        line["seeds"] = [0]
    other = made({"b": AHEAD}, corpus="multi30k-de-en").summary["table"]
    result.summary["table"].extend(other)  # of three seeds, and of no comparison
    assert ledger(result)[0].measured.startswith("multi30k-fr-en, one seed: ")


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [(AHEAD, AHEAD, [HOLDS, HOLDS, HOLDS]), (LEVEL, scores(3, 3, 2, 1), [NOT, PARTLY, NOT])],
)
def test_verdicts_on_summarization_follow_from_rouge(own, other, expected):
    table = {"gigaword": own, "duc2004": other}
    assert verdicts(table, experiment="summarization", corpus="gigaword") == expected


@pytest.mark.parametrize("experiment", ["translation", "summarization"])
def test_what_the_paper_claims_is_judged_by_its_rows_alone(experiment):
    more = {"entmax-1.5": 1.0, "sparsegen-softmax": 99.0}
    options = {"experiment": experiment, "corpus": "multi30k-en-fr" if experiment == "translation" else "gigaword"}
    table = {"gigaword": AHEAD, "duc2004": AHEAD}
    other = {"gigaword": AHEAD | more, "duc2004": AHEAD | more | {"entmax-1.5": 0.1}}
    assert ledger(made(other, FALLING, **options)) == ledger(made(table, FALLING, **options))


def test_heatmaps_are_crisper_where_fewer_columns_are_dark():
    result = made({"a": AHEAD}, FALLING)
    for row, columns in zip(result.summary["tried"], (3, 2, 1)):
        row["samples"] = [{"weights": [[0.5] * columns + [0.0] * (4 - columns)]}]
    crisper = ledger(result)[-1]
    assert ("heatmaps" in crisper.claim, crisper.verdict) == (True, HOLDS)
    assert crisper.measured.endswith(
        "lam -1: 3.00 source words, lam 0.5: 2.00 source words, lam 0.75: 1.00 source words"
    )


def test_a_smoke_run_is_no_evidence():
    result = made({"a": AHEAD}, FALLING)
    found = ledger(replace(result, config={**result.config, "scale": "smoke"}))
    assert [entry.verdict for entry in found] == [UNKNOWN] * 4


def test_the_ledger_shows_what_was_measured():
    best, comparable, _, support = ledger(made({"a": AHEAD}, FALLING))
    assert best.measured == (
        "multi30k-fr-en, 3 seeds: sparsegen-lin +2.00 (+1.50 to +2.50) against softmax on a; "
        "sparsegen-lin +1.00 (+0.50 to +1.50) against sparsemax on a; of 2 intervals 2 are for it, 0 against it"
    )
    assert comparable.measured.startswith("multi30k-fr-en, 3 seeds: sparsehg +1.50 (+1.00 to +2.00) against softmax")
    assert support.measured.endswith(
        "lam -1: 5.00 source words, lam 0.5: 3.00 source words, lam 0.75: 2.00 source words"
    )


# Tables and figures


def shown(result):
    file = io.StringIO()
    show(result, Console(file=file, width=80))
    return file.getvalue()


@pytest.mark.parametrize("experiment", ["translation", "summarization"])
def test_tables_fit_in_80_columns_and_nothing_is_cut(experiment):
    values = dict(zip(ROWS, (41.23, 36.5, 37.25, 9.99, 40.0, 38.5, 39.75)))
    text = shown(made({"test_2016_flickr": values, "test_2017_flickr": values}, FALLING, experiment))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for value in values.values():
        assert text.count(f"{value:.2f}") >= 2
    for name in ROWS:
        assert sum(line.strip().startswith(name) for line in text.splitlines()) >= 2
    assert " -1 " in text
    assert "10.25" in text
    if experiment == "translation":
        assert text.count("100.0 %") == 2 * len(ROWS)
        assert text.count("37.27") == 2
    else:
        assert text.count("35.90 17.57 33.37") == 2


def test_reproduce_shows_and_draws_what_the_store_has(smoke, no_training, monkeypatch):
    monkeypatch.setattr(figures, "HEATMAP_ROWS", ("sparsegen-lin",))  # one is drawn sooner than three
    out, result = smoke
    arguments = ["reproduce", "translation", "--scale", "smoke", "--corpora", CORPUS, "--jobs", "1", "--out", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert Result.load(out / "translation.json").rows == result.rows
    lines = [line for line in done.output.splitlines() if "wrote" not in line]
    assert max(map(len, lines)) <= 80
    assert "…" not in done.output
    assert all(name in done.output for name in ROWS)
    assert all(entry.verdict.split()[0] in done.output for entry in ledger(result))
    for name in ("translation-curves", f"{CORPUS}-attention"):
        for suffix, magic in (("png", b"\x89PNG"), ("svg", b"<?xml")):
            path = out / "translation" / f"{name}.{suffix}"
            assert path.read_bytes().startswith(magic)
            assert f"wrote {path}" in done.output


def test_heatmaps_show_one_sentence_under_several_maps(smoke):
    _, result = smoke
    drawn = figures.sample_heatmaps(result, CORPUS, "numbers", 1, ("softmax", "sparsegen-lin"))
    *panels, _ = drawn.axes
    assert [axes.get_xlabel() for axes in panels] == ["softmax", f"sparsegen-lin ({result.rows[3]['control']:g})"]
    kept = result.rows[0]["tests"]["numbers"]["samples"][1]
    assert [label.get_text() for label in panels[0].get_xticklabels()] == kept["source"]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == kept["written"]


def test_a_sample_without_words_is_drawn_too():
    axes = figures.heatmaps([figures.Heatmap("sparsemax", ["a", "b"], [], [])]).axes
    assert axes[0].get_title() == "sparsemax: no words"


def test_curves_have_a_line_for_each_map(smoke):
    _, result = smoke
    (axes,) = figures.learning_curves(result).axes
    assert [line.get_label() for line in axes.lines] == list(ROWS)
    assert axes.lines[2].get_ydata() == [result.rows[2]["curve"][0]["valid_accuracy"]]


def test_the_legend_has_rows_that_only_one_corpus_has(smoke):
    _, result = smoke
    few = [{**row, "corpus": "a"} for row in result.rows if row["row"] in ("sparsemax", "softmax")]
    more = [{**row, "corpus": "b"} for row in result.rows if row["row"] in ("entmax-1.5", "softmax")]
    figure = figures.learning_curves(replace(result, rows=(*few, *more), config={"corpora": ["a", "b"]}))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["softmax", "sparsemax", "entmax-1.5"]


def test_reproduce_says_where_to_get_missing_data(tmp_path):
    arguments = [
        "reproduce",
        "summarization",
        "--scale",
        "smoke",
        "--data",
        str(tmp_path),
        "--out",
        str(tmp_path / "o"),
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert "corpus 'gigaword' must be in" in done.stderr
    assert "Traceback" not in done.output
    assert not (tmp_path / "o").exists()
