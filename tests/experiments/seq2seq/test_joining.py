"""Corpora run one after another end in one Result, and nothing that was there is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from sparsegen.cli import app
from sparsegen.experiments.seq2seq import corpora, figures, generation, translation
from sparsegen.experiments.seq2seq.joining import join, seeds_of, without
from sparsegen.experiments.store import Result
from sparsegen.report.page import _seeds
from sparsegen.report.terminal import show

THERE, BACK = "multi30k-fr-en", "multi30k-en-fr"
MAPS = ("softmax", "softmax (with temp.)")


def fake_tune(corpus, scale, mapping, control, seed):
    return {"valid_accuracy": control / 10, "support": 1.0, "samples": []}


def fake_final(corpus, scale, mapping, control, seed):
    known = {"support": 2.0, "source_words": 4.0, "bleu": 30.0 + seed, "exact_match": 0.5}
    sample = {"source": ["a"], "written": ["a"], "weights": [[1.0]]}
    tests = {test: {**known, "written": ["a b"] * 8, "samples": [sample]} for test in corpora.MULTI30K_TESTS}
    return {"tests": tests, "curve": [{"epoch": 0, "valid_accuracy": 0.5}], "valid_accuracy": 0.5}


@pytest.fixture(autouse=True)
def toy(tmp_path, monkeypatch):
    """Files under the names of a real corpus, and trainings that take no time."""
    for file in corpora.CORPORA[THERE].files:
        (tmp_path / file).write_text("".join(f"{line}\n" for line in ("a b", "b c d", "d", "a c") * 4))
    monkeypatch.setenv(corpora.DATA_VARIABLE, str(tmp_path))
    monkeypatch.delenv(generation.RUNS_VARIABLE, raising=False)
    monkeypatch.setattr(generation, "tune", fake_tune)
    monkeypatch.setattr(generation, "final", fake_final)


def run(*names, **options):
    return translation.run("smoke", corpora=names, **{"maps": MAPS, "seeds": 2, **options})


def numbers(result):
    """What does not hang on the clock."""
    return replace(result, wall_time=0.0, started="2030-01-01")


def test_two_runs_joined_are_one_run_of_both():
    there, back, both = run(THERE), run(BACK), run(THERE, BACK)
    for pair in ((there, back), (back, there)):
        joined = join(*pair)
        assert numbers(joined) == numbers(both)
        assert joined.wall_time == there.wall_time + back.wall_time
        assert joined.started == min(there.started, back.started)


def test_what_is_taken_away_and_joined_again_is_what_was_there():
    both = join(run(THERE), run(BACK))
    there = without(both, [BACK])
    assert numbers(join(there, without(both, [THERE]))) == numbers(both)
    assert (there.config["corpora"], {row["corpus"] for row in there.rows}) == ([THERE], {THERE})
    assert {row["corpus"] for part in ("leads", "table", "tried") for row in there.summary[part]} == {THERE}
    assert (list(there.summary["chosen"]), list(there.config["presets"])) == ([THERE], [THERE])
    assert without(both, [THERE, BACK]) is None


def test_seeds_that_differ_are_said_for_each_corpus():
    joined = join(run(THERE, seeds=3), run(BACK, seeds=1))
    assert joined.config["seeds"] == seeds_of(joined) == {THERE: 3, BACK: 1}
    assert _seeds(joined) == f"{BACK}: 0; {THERE}: 0 to 2"
    assert without(joined, [BACK]).config["seeds"] == 3
    assert seeds_of(run(THERE, seeds=3)) == {THERE: 3}
    show(joined, Console(quiet=True))
    assert [len(line["seeds"]) for line in joined.summary["table"]] == [3] * 4 + [1] * 4


def test_a_corpus_may_have_rows_that_another_has_not():
    joined = join(run(THERE, maps=("softmax", "entmax-1.5")), run(BACK))
    assert joined.config["maps"] == ["softmax", "softmax (with temp.)", "entmax-1.5"]
    rows = {(line["corpus"], line["row"]) for line in joined.summary["table"]}
    assert rows == {(THERE, "softmax"), (THERE, "entmax-1.5"), (BACK, "softmax"), (BACK, "softmax (with temp.)")}
    assert without(joined, [BACK]).config["maps"] == ["softmax", "entmax-1.5"]
    show(joined, Console(quiet=True))


def test_versions_that_differ_are_both_named():
    there, back = run(THERE), run(BACK)
    old = replace(there, versions={**there.versions, "numpy": "1.0"})
    assert join(old, back).versions == {**back.versions, "numpy": f"1.0 and {back.versions['numpy']}"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"scale": "small"}, "the scale of .* must be that of the run, 'smoke', to keep its .*-fr-en; .* got 'small'"),
        ({"corpora": [THERE, BACK]}, "the corpora of .* must be others than those added, got 'multi30k-en-fr'"),
        ({"seed": 4}, "the first seed of .* must be that of the run, 0, .* got 4"),
        ({"experiment": "summarization"}, "the experiment of .* must be that of the run, 'translation', .* got 'sum"),
    ],
)
def test_what_would_mislead_is_not_joined(change, text):
    there, back = run(THERE), run(BACK)
    whole = {name: change[name] for name in ("seed", "experiment") if name in change}
    other = replace(there, config={**there.config, **change}, **whole)
    with pytest.raises(ValueError, match=f"^sparsegen: {text}"):
        join(other, back)


def command(out, corpus, *more):
    names = ["--corpora", corpus, "--maps", ",".join(MAPS), "--scale", "smoke", "--jobs", "1", "--out", str(out)]
    return CliRunner().invoke(app, ["reproduce", "translation", *names, *more])


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "drawings", lambda result: ())
    return tmp_path / "out"


def test_a_run_keeps_the_other_corpora_of_its_file(out):
    first = command(out, THERE, "--seeds", "2")
    assert first.exit_code == 0, first.output
    assert "from before" not in first.output
    second = command(out, BACK, "--seeds", "2")
    assert second.exit_code == 0, second.output
    path = out / "translation.json"
    assert f"{path} has {THERE} from before, which stays in it" in second.output
    both = Result.load(path)
    assert both.config["corpora"] == [THERE, BACK]
    again = command(out, THERE, "--seeds", "2")
    assert again.exit_code == 0, again.output
    assert Result.load(path) == both  # times too: nothing was done
    assert "replaced" not in second.output + again.output
    more = command(out, BACK, "--seeds", "3")
    assert more.exit_code == 0, more.output
    assert seeds_of(Result.load(path)) == {THERE: 2, BACK: 3}
    assert f"{path} had other numbers of {BACK}, which are replaced" in more.output


def test_what_cannot_be_kept_is_refused_before_any_work(out, monkeypatch):
    assert command(out, THERE).exit_code == 0
    before = (out / "translation.json").read_bytes()
    monkeypatch.setattr(generation, "tune", lambda **_: pytest.fail("it worked"))
    done = command(out, BACK, "--seed", "1")
    assert done.exit_code == 1
    assert "the first seed of" in done.stderr
    assert "another folder for --out keeps both" in done.stderr
    assert (out / "translation.json").read_bytes() == before


def test_a_file_with_no_other_corpus_is_written_anew_at_another_scale_too(out):
    assert command(out, THERE).exit_code == 0
    result = Result.load(out / "translation.json")
    replace(result, config={**result.config, "scale": "small"}).save(out / "translation.json")
    done = command(out, THERE)
    assert done.exit_code == 0, done.output
    assert Result.load(out / "translation.json").config["scale"] == "smoke"
