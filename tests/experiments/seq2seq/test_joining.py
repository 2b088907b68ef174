"""Corpora, and rows of one, run one after another end in one Result, and nothing that was there is lost unsaid."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from sparsegen.cli import app
from sparsegen.experiments.seq2seq import corpora, figures, generation, significance, translation
from sparsegen.experiments.seq2seq.joining import apart, join, keeping, rows_of, seeds_of, without
from sparsegen.experiments.store import Result
from sparsegen.report.page import _seeds
from sparsegen.report.terminal import show

THERE, BACK = "multi30k-fr-en", "multi30k-en-fr"
MAPS = ("softmax", "softmax (with temp.)")
LINES = ("a b c d", "b c d e", "d e a b", "a c b d")


def fake_tune(corpus, scale, mapping, control, seed):
    return {"valid_accuracy": control / 10, "support": 1.0, "samples": []}


def fake_final(corpus, scale, mapping, control, seed):
    known = {"support": 2.0, "source_words": 4.0, "bleu": 30.0 + seed, "exact_match": 0.5}
    sample = {"source": ["a"], "written": ["a"], "weights": [[1.0]]}
    right = (len(mapping) + seed) % 8  # of eight lines; rows differ, and so do their leads
    written = [*LINES, *LINES][:right] + ["a"] * (8 - right)
    tests = {test: {**known, "written": written, "samples": [sample]} for test in corpora.MULTI30K_TESTS}
    return {"tests": tests, "curve": [{"epoch": 0, "valid_accuracy": 0.5}], "valid_accuracy": 0.5}


def other_final(**cell):
    found = fake_final(**cell)
    for test in found["tests"].values():
        test["bleu"] += 0.125
    return found


@pytest.fixture(autouse=True)
def toy(tmp_path, monkeypatch):
    """Files under the names of a real corpus, and trainings that take no time."""
    for file in corpora.CORPORA[THERE].files:
        (tmp_path / file).write_text("".join(f"{line}\n" for line in LINES * 4))
    monkeypatch.setenv(corpora.DATA_VARIABLE, str(tmp_path))
    monkeypatch.delenv(generation.RUNS_VARIABLE, raising=False)
    monkeypatch.setattr(generation, "tune", fake_tune)
    monkeypatch.setattr(generation, "final", fake_final)
    monkeypatch.setattr(significance, "DRAWS", 20)  # of the paired test, which would take most of the time


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
    both = join(old, back)
    assert both.versions == {**back.versions, "numpy": f"1.0 and {back.versions['numpy']}"}
    assert join(without(both, [BACK]), back).versions == both.versions  # each once, however often it is joined


OLD = ("softmax", "softmax (with temp.)", "sparsemax", "sparsegen-lin")
NEW = ("softmax", "sparsemax", "entmax-1.5", "sparsegen-softmax")


def test_rows_joined_are_one_run_of_all_of_them():
    whole = run(THERE, BACK, maps=tuple(dict.fromkeys(OLD + NEW)))
    old, new = run(THERE, BACK, maps=OLD), run(THERE, BACK, maps=NEW)
    for pair in ((old, new), (new, old)):
        assert numbers(join(*pair)) == numbers(whole)
    there, back = run(THERE, maps=OLD), run(BACK, maps=OLD)
    grown = join(join(there, back), run(BACK, maps=NEW))
    assert (rows_of(grown, THERE), rows_of(grown, BACK)) == (list(OLD), list(dict.fromkeys(OLD + NEW)))
    assert grown.config["maps"] == whole.config["maps"]
    assert numbers(without(grown, [BACK])) == numbers(there)


def test_leads_of_added_rows_are_against_the_bases_that_were_run_with_them():
    joined = join(run(BACK, maps=OLD), run(BACK, maps=("softmax", "entmax-1.5")))
    assert len({lead["lead"] for lead in joined.summary["leads"]}) > 4
    pairs = [(lead["row"], lead["base"]) for lead in joined.summary["leads"] if lead["test"] == "test_2016_flickr"]
    ahead = [(name, "softmax") for name in (*OLD[1:], "entmax-1.5")]
    assert pairs == [*ahead, *((name, "sparsemax") for name in OLD if name != "sparsemax")]
    show(joined, Console(quiet=True))


def test_what_both_have_is_that_of_the_later():
    old, new = run(BACK, maps=OLD), run(BACK, maps=NEW)
    timed = replace(new, rows=tuple({**row, "train_seconds": 7.0} for row in new.rows))
    joined = join(old, timed)
    assert {row["row"] for row in joined.rows if "train_seconds" in row} == set(NEW)
    assert len(joined.rows) == 2 * len({*OLD, *NEW})


def with_score(result, name, seed, score):
    """A Result with another score of a row with a seed, on all test sets."""
    rows = [
        {**row, "tests": {test: {**found, "bleu": score} for test, found in row["tests"].items()}}
        if (row["row"], row["seed"]) == (name, seed)
        else row
        for row in result.rows
    ]
    return replace(result, rows=tuple(rows), summary={**result.summary, "table": translation.EXPERIMENT.table(rows)})


def with_preset(result, **changes):
    preset = result.config["presets"][BACK]
    changed = {**preset, "train": {**preset["train"], **changes}}
    return replace(result, config={**result.config, "presets": {BACK: changed}})


def with_control(result, name, control):
    table = [{**line, "control": control} if line["row"] == name else line for line in result.summary["table"]]
    return replace(result, summary={**result.summary, "table": table})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda r: replace(r, config={**r.config, "scale": "small"}),
            "the scale is small in the file and smoke in the",
        ),
        (lambda r: replace(r, seed=4), "the first seed is 4 in the file and 0 in the run"),
        (lambda r: run(BACK, maps=OLD, seeds=3), "the number of seeds is 3 in the file and 2 in the run"),
        (lambda r: run(BACK, maps=OLD, controls_from=THERE), f"the corpus that chose the controls is {THERE} in the"),
        (lambda r: with_preset(r, epochs=9), "the size train.epochs is 9 in the file and 1 in the run"),
        (
            lambda r: with_score(r, "softmax", 1, 31.5),
            "softmax on test_2016_flickr with seed 1 is 31.5 in the file and 31",
        ),
        (
            lambda r: with_score(r, "sparsemax", 0, 30.25),
            "sparsemax on test_2016_flickr with seed 0 is 30.25 in the file",
        ),
        (
            lambda r: with_control(r, "sparsemax", 0.5),
            "the control of sparsemax is 0.5 in the file and none in the run",
        ),
        (lambda r: run(BACK, maps=OLD[1:]), "softmax, with which the others are compared, is not in both"),
    ],
)
def test_rows_of_another_set_up_are_not_kept(change, text):
    old, new = change(run(BACK, maps=OLD)), run(BACK, maps=NEW)
    assert apart(old, new, BACK).startswith(text)
    assert keeping(old, new) is None
    with pytest.raises(ValueError, match=r"^sparsegen: "):
        join(old, new)


def test_a_row_that_only_one_run_has_does_not_keep_them_apart():
    old, new = with_score(run(BACK, maps=OLD), "sparsegen-lin", 0, 12.0), run(BACK, maps=NEW)
    assert apart(old, new, BACK) == ""
    assert keeping(old, new) == old


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"scale": "small"}, "the scale of .* must be that of the run, 'smoke', to keep its .*-fr-en; .* got 'small'"),
        (
            {"corpora": [THERE, BACK]},
            "multi30k-en-fr of .* must be as in the run, .* got another: the size beam is none",
        ),
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


def command(out, corpus, *more, maps=MAPS):
    names = ["--corpora", corpus, "--maps", ",".join(maps), "--scale", "smoke", "--jobs", "1", "--out", str(out)]
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
    why = "the number of seeds is 2 in the file and 3 in the run"
    assert f"{path} had other numbers of {BACK}, which are replaced: {why}\n" in more.output
    assert f"numbers of {THERE}" not in more.output


@pytest.fixture
def grown(out):
    """The file of two corpora with some rows, and of one of them with more."""
    for corpus in (THERE, BACK):
        assert command(out, corpus, maps=OLD).exit_code == 0
    added = command(out, BACK, maps=("softmax", *NEW[2:]))
    assert added.exit_code == 0, added.output
    return out / "translation.json", added.output


def test_a_run_adds_rows_to_a_corpus_of_its_file(out, grown):
    path, said = grown
    stay = "stay in it if the rows that both have come out as they did"
    assert f"{path} has {THERE} from before, which stays in it\n" in said
    assert f"{path} has {', '.join(OLD[1:])} of {BACK} from before, which {stay}\n" in said
    assert "replaced" not in said
    saved = Result.load(path)
    assert (rows_of(saved, THERE), rows_of(saved, BACK)) == (list(OLD), list(dict.fromkeys(OLD + NEW)))
    again = command(out, BACK, maps=("softmax", *NEW[2:]))
    assert Result.load(path) == saved  # times too: nothing was done
    assert "replaced" not in again.output


def test_rows_that_cannot_stay_are_named_with_what_differs(out, grown, monkeypatch):
    path, _ = grown
    monkeypatch.setattr(generation, "final", other_final)
    monkeypatch.setattr(generation, "VERSION", "another")  # nothing of the store fits it
    done = command(out, BACK, maps=MAPS)
    assert done.exit_code == 0, done.output
    rest = ", ".join(("sparsemax", "sparsegen-lin", *NEW[2:]))
    differ = "softmax on test_2016_flickr with seed 0 is 30 in the file and 30.125 in the run"
    assert f"{path} had other numbers of {BACK}, which are replaced, {rest} among them: {differ}\n" in done.output
    saved = Result.load(path)
    assert (rows_of(saved, THERE), rows_of(saved, BACK)) == (list(OLD), list(MAPS))


@pytest.mark.parametrize(
    ("more", "maps", "text"),
    [
        (["--seeds", "2"], MAPS, "the number of seeds is 1 in the file and 2 in the run"),
        ([], MAPS[1:], "softmax, with which the others are compared, is not in both"),
    ],
)
def test_what_can_be_foreseen_is_said_before_the_work(out, more, maps, text):
    assert command(out, BACK, maps=OLD).exit_code == 0
    done = command(out, BACK, *more, maps=maps)
    assert done.exit_code == 0, done.output
    rest = ", ".join(name for name in OLD if name not in maps)
    before, after = (f"translation.json has {rest} of {BACK} from before, which are replaced: {text}\n",
                     f"which are replaced, {rest} among them: {text}\n")  # fmt: skip
    assert 0 <= done.output.index(before) < done.output.index(after)
    assert rows_of(Result.load(out / "translation.json"), BACK) == list(maps)


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
