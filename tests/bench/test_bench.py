"""The benchmarks: no time for a wrong answer, nobody favoured, numbers whole and right. No test asserts a speed."""

from __future__ import annotations

import gc
import importlib
import io
import math
import os
import random
import runpy
import signal
import sys
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import sparsegen.torch as sgt
from oracle import project_bisect, project_exact
from sparsegen.bench import attention, draw, estimator, family, losses, maps, measure, overhead, peers, scaling, show
from sparsegen.bench import run as benches
from sparsegen.bench.inputs import adversarial_rows, scores
from sparsegen.bench.measure import Settings, geometric_mean, in_places, interleaved
from sparsegen.bench.peers import PEERS, Peer, Verdict, gate
from sparsegen.bench.targets import targets
from sparsegen.cli import app
from sparsegen.experiments.store import from_json

OURS, SOFTMAX, COPY = PEERS[:3]


def off(amount):
    """Sparsemax that is wrong by so much in one entry."""

    def load():
        def wrong(x):
            p = sgt.sparsemax(x)
            return p + amount * torch.nn.functional.one_hot(torch.tensor(0), p.shape[-1])

        return wrong

    return Peer("off", "torch", load)


def crash():
    def call(x):
        raise TypeError("no such dtype\nsecond line")

    return call


def broken_when_loaded():
    raise AttributeError("module has no attribute")


def texts(shown):
    console = Console(file=io.StringIO(), width=show.WIDTH)
    for each in shown:
        console.print(each, markup=False)
    return console.file.getvalue()


def numbers(value):
    if isinstance(value, dict):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, (int, float)):
        yield value


def keys(value):
    if isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from keys(item)


# Timing


def test_every_call_is_made_equally_often_and_once_more_to_warm_up():
    count = {"a": 0, "b": 0, "c": 0}

    def call(name):
        count[name] += 1

    found = interleaved({name: lambda name=name: call(name) for name in count}, 0.0, least=5)
    assert count == {"a": 6, "b": 6, "c": 6}
    assert [times["repeats"] for times in found.values()] == [5, 5, 5]
    assert all(times["low_us"] <= times["median_us"] <= times["high_us"] for times in found.values())


def test_calls_change_their_order_from_turn_to_turn():
    seen = []
    interleaved({name: lambda name=name: seen.append(name) for name in "abc"}, 0.0, least=12)
    turns = ["".join(seen[i : i + 3]) for i in range(3, len(seen), 3)]
    assert len(set(turns)) > 3
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)


def test_timing_goes_on_for_the_time_it_is_given():
    assert interleaved({"a": lambda: None}, 0.02, least=2)["a"]["repeats"] > 10


def test_garbage_is_not_collected_while_time_is_taken():
    seen = []
    interleaved({"a": lambda: seen.append(gc.isenabled())}, 0.0, least=2)
    assert seen[1:] == [False, False]
    assert gc.isenabled()


def test_what_comes_before_a_call_is_not_timed():
    found = interleaved({"a": lambda: None}, 0.0, least=2, before=lambda name: time.sleep(0.02))
    assert found["a"]["high_us"] < 20_000


def test_arrays_are_made_anew_and_the_middle_place_counts():
    made = []

    def make():
        made.append(0.02 if len(made) == 1 else 0.0)  # one place out of three is a slow one
        return {"a": lambda wait=made[-1]: time.sleep(wait)}

    found = in_places(make, 0.0, places=3)["a"]
    assert len(made) == 3
    assert found["repeats"] == 15
    assert found["high_us"] < 20_000


def test_quartiles_need_two_turns():
    with pytest.raises(ValueError, match="least must be at least 2"):
        interleaved({"a": lambda: None}, 0.0, least=1)


def test_quartiles_of_known_times():
    found = measure.summary([3e-6, 1e-6, 2e-6, 5e-6, 4e-6])
    assert found == {"low_us": 2.0, "median_us": 3.0, "high_us": 4.0, "repeats": 5}


def test_a_geometric_mean_of_known_numbers():
    assert geometric_mean([1.0, 10.0, 100.0]) == pytest.approx(10.0)
    assert geometric_mean([0.25, 4.0]) == pytest.approx(1.0)


@pytest.mark.parametrize("power", [-0.5, 0.0, 1.0, 1.5])
def test_a_fit_finds_the_exponent_it_was_made_with(power):
    sizes = [8, 64, 512, 4096]
    assert measure.exponent(sizes, [3.0 * size**power for size in sizes]) == pytest.approx(power, abs=1e-12)


def test_threads_are_given_back_even_after_an_error():
    was = torch.get_num_threads()
    seen = []

    def fails():
        with measure.torch_threads(was + 1):
            seen.append(torch.get_num_threads())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert seen == [was + 1]
    assert torch.get_num_threads() == was


@pytest.mark.parametrize("text", ["", "0", "1,,2", "one", "1.5", "-1"])
def test_numbers_of_threads_are_checked_by_name(text):
    with pytest.raises(ValueError, match="threads must be positive integers"):
        measure.thread_counts(text)


# Gate


@pytest.mark.parametrize("radius", [0.5, 1.0, 4.0])
def test_the_gates_oracle_agrees_with_exact_fractions(radius):
    draw_ = random.Random(0)
    for _ in range(20):
        row = [draw_.gauss(0, 1) for _ in range(6)]
        exact, _ = project_exact([Fraction(v) for v in row], Fraction(radius))
        found = peers.bisected(torch.tensor([row], dtype=torch.float64), radius)[0]
        np.testing.assert_allclose(found, [float(p) for p in exact], atol=1e-14)


def test_the_gates_oracle_agrees_with_another_on_hard_rows():
    for name, x in adversarial_rows(2, 40).items():
        np.testing.assert_allclose(peers.bisected(x, 0.7), project_bisect(x, 0.7), atol=1e-12, err_msg=name)


def test_the_gates_oracle_has_the_gradient_of_the_projection():
    x = torch.tensor([[0.5, 0.25, -2.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: peers.bisected(z, 0.5), (x,))


@pytest.mark.parametrize("lam", [0.5, -3.0])
@pytest.mark.parametrize("peer", [p for p in PEERS if not p.heavy and p.takes != "scores"], ids=lambda p: p.name)
def test_right_implementations_pass_the_gate(peer, lam):
    pytest.importorskip(peer.package)
    assert gate(peer, scores(8, 40), lam).state == "right"


@pytest.mark.parametrize("amount", [1e-3, -1e-4, float("nan"), float("inf")])
def test_a_wrong_implementation_gets_no_time(amount):
    found = maps.case((8, 16), "sparse", 1, 0.0, [OURS, SOFTMAX, COPY, off(amount)])["implementations"]
    assert found["off"]["state"] == "wrong"
    assert not {"forward", "backward", "forward_to_softmax", "rows"} & set(found["off"])
    if math.isfinite(amount):
        assert found["off"]["error"] == pytest.approx(abs(amount), rel=0.01)
        assert peers.verdict_text(found["off"]) == f"wrong (error {abs(amount):.0e})"
    else:
        assert peers.verdict_text(found["off"]) == "wrong (not finite)"
    assert found["sparsegen"]["forward"]["median_us"] > 0


def test_a_wrong_gradient_gets_no_time():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return sgt.sparsemax(x)

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    peer = Peer("twice", "torch", lambda: Twice.apply, gradient=True)
    assert gate(peer, scores(8, 16), 0.0).state == "wrong"


def test_the_gate_tries_the_very_layout():
    seen = []

    def load(lam):
        def call(x):
            seen.append(x.stride())
            return sgt.sparsegen_lin(x, lam=lam)

        return call

    assert gate(Peer("seen", "torch", load, "lam"), scores(8, 32)[:, ::2], 0.5).state == "right"
    assert seen[0] == (32, 2)


def test_a_right_answer_on_plain_rows_does_not_hide_a_wrong_one_in_a_corner():
    unshifted = Peer("unshifted", "torch", lambda: lambda x: sgt.sparsemax((x * 16).round() / 16))
    shown = maps.gate_table([OURS, unshifted], {})
    assert {verdict["state"] for verdict in shown["sparsegen"].values()} == {"right"}
    assert shown["unshifted"]["plain"]["state"] == "wrong"
    assert shown["unshifted"]["ties"]["state"] == "right"


def test_a_crash_is_told_by_its_type():
    peer = Peer("crashing", "torch", crash)
    found = maps.case((8, 16), "sparse", 1, 0.0, [OURS, SOFTMAX, COPY, peer])["implementations"]["crashing"]
    assert found == {"state": "crashed", "why": "TypeError: no such dtype"}
    assert peers.verdict_text(found) == "TypeError"


def test_a_library_that_breaks_when_loaded_is_told():
    found = peers.present([Peer("broken", "torch", broken_when_loaded)])["broken"]
    assert (found.state, peers.verdict_text(found.record())) == ("crashed", "AttributeError")


def test_a_missing_library_is_told_and_the_rest_is_measured(monkeypatch):
    monkeypatch.setitem(sys.modules, "entmax", None)
    found = maps.run(Settings(quick=True), lambda text: None)
    states = {name: cell["state"] for name, cell in found["cases"][0]["implementations"].items()}
    assert {states[name] for name in states if "entmax" in name} == {"not installed"}
    assert states["sparsegen"] == "right"
    assert "not installed" in texts(show.maps(found)).replace("\n", " ")
    assert "dense entmax.sparsemax" not in attention.forms()


def test_without_torch_it_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("sparsegen.bench")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"pip install 'sparsegen\[torch\]'"):
        importlib.import_module("sparsegen.bench")


def test_when_the_library_itself_is_wrong_none_of_its_times_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(sgt, "sparsegen_lin", lambda x, lam, dim=-1: torch.softmax(x, dim))
    found = maps.run(Settings(quick=True), lambda text: None)
    assert found["summary"] == {}
    assert {cell["implementations"]["sparsegen"]["state"] for cell in found["cases"]} == {"wrong"}
    assert found["small_calls"] == {}
    assert all("times" not in row for row in found["bfloat16"] + found["threads"])
    assert all("random" not in row["times"] and not row["to_random"] for row in found["adversarial"])
    assert "wrong (error" in texts(show.maps(found))
    found = scaling.run(Settings(quick=True), lambda text: None)
    assert all("times" not in point for point in found["sections"][0]["points"])
    assert "wrong (error" in texts(show.scaling(found))
    assert draw.draw("scaling", found, tmp_path) == []


def test_a_slow_library_is_given_fewer_rows_beside_ours_on_the_same():
    import time

    def load():
        def slow(x):
            time.sleep(0.002 * len(x))
            return sgt.sparsemax(x)

        return slow

    peer = Peer("slow", "torch", load)
    x = scores(64, 8192)
    rows = maps.affordable_rows(peer, x, 0.0, patience=0.02)
    assert 1 <= rows <= 10
    assert maps.affordable_rows(peer, x, 0.0, patience=60.0) == 64
    found = maps.measure_peers([OURS, SOFTMAX, COPY, peer], x, 0.0, 0.0, {})
    assert found["slow"]["rows"] < 64
    assert found["sparsegen"]["rows"] == 64
    assert found["slow"]["forward_to_sparsegen"] > 1


# Promises


def grid(forward, backward, rows=1024, n=2048):
    ours = {"forward_to_softmax": forward, "backward_to_softmax": backward, "forward_to_copy": 1.5}
    cell = {"rows": rows, "K": n, "density": "sparse", "threads": 1, "implementations": {"sparsegen": ours}}
    return {"cases": [cell], "bfloat16": [], "threads": [], "adversarial": [], "compile": {}, "small_calls": {}}


def met(result):
    return {found["promise"]: found["met"] for found in targets(result)}


def test_promises_are_kept_or_broken_by_the_numbers():
    assert [*met(grid(0.3, 0.7)).values()][:5] == [True] * 5
    assert [*met(grid(0.9, 1.4)).values()][:5] == [False] * 5
    assert [*met(grid(0.3, 1.05, rows=10, n=10)).values()][:5] == [True, True, False, None, True]
    assert [*met({**grid(0.3, 0.7), "quick": True}).values()] == [None] * 13


def test_promises_of_more_than_the_grid():
    result = grid(0.3, 0.7, 256, 32000)
    result["cases"][0]["implementations"]["entmax sort"] = {"forward_to_sparsegen": 19.0}
    result["bfloat16"] = [{"ratio": 0.9}, {"state": "wrong"}]
    result["threads"] = [{"rows": 256, "K": 32000, "times_as_fast": {"1": 1.0, "2": 1.5}}]
    result["adversarial"] = [{"to_random": {"all equal": 3.5}}]
    result["compile"] = {"one_graph": True}
    result["small_calls"] = {
        "ratio": {"torch.softmax": 9.0, "sparsegen_lin": 2.4}, "ratio_step": {"sparsegen_lin": 5.1}
    }  # fmt: skip
    assert [*met(result).values()][5:] == [True, True, True, True, False, False, False, True]


def test_a_function_with_the_map_is_one_graph():
    assert overhead.compiles() == {"one_graph": True}


# Commands


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "jax" else name for name in benches.chosen("all")]
)
def test_every_benchmark_runs_at_toy_size_and_writes_nothing_unasked(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["bench", name, "--quick"])
    assert done.exit_code == 0, done.output
    assert "sparse" in done.output.lower()
    assert max(map(len, done.output.splitlines())) <= 100
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", benches.chosen("all"))
def test_what_is_written_is_whole_finite_and_readable(name, tmp_path):
    console = Console(file=io.StringIO(), width=100)
    benches.run(name, Settings(quick=True), tmp_path / "new", console)
    found = from_json((tmp_path / "new" / f"{name}.json").read_text())
    assert {"cpu", "cores", "engine", "python", "numpy", "torch", "sparsegen"} <= set(found["machine"])
    assert all(math.isfinite(value) for value in numbers(found))
    drawn = {f"{name}.png", f"{name}.svg"} if name in draw.DRAWN else set()
    assert {path.name for path in (tmp_path / "new").iterdir()} == {f"{name}.json", *drawn}
    assert all((tmp_path / "new" / file).stat().st_size > 5000 for file in drawn)


def test_the_maps_file_has_every_part():
    found = maps.run(Settings(quick=True, threads=(1, 2)), lambda text: None)
    parts = {"machine", "gate", "cases", "summary", "bfloat16", "threads", "adversarial", "small_calls", "memory"}
    assert parts | {"targets", "compile", "import", "patience_seconds"} <= set(found)
    assert len(found["cases"]) == 2 * 2 * 2
    assert set(found["summary"]) == {"1", "2"}
    assert set(found["threads"][0]["times_as_fast"]) == {"1", "2"}
    for case in found["cases"]:
        assert list(case["implementations"]) == [peer.name for peer in PEERS]
        ours = case["implementations"]["sparsegen"]
        assert {"median_us", "low_us", "high_us", "repeats"} == set(ours["forward"]) == set(ours["backward"])
        assert ours["forward_to_softmax"] == case["forward_ratio"]
        ours_us = ours["forward"]["median_us"]
        assert ours["forward_to_copy"] == ours_us / case["implementations"]["copy"]["forward"]["median_us"]
    assert found["cases"][0]["implementations"]["optax"]["state"] in ("left out", "not installed")


def test_a_summary_names_the_worst_cell():
    def cell(n, ratio):
        ours = {"forward_to_softmax": ratio}
        return {"rows": 4, "K": n, "density": "dense", "threads": 1, "implementations": {"sparsegen": ours}}

    found = maps.summarize([cell(8, 0.25), cell(9, 1.0)])["1"]["forward"]
    assert found == {"geometric_mean": pytest.approx(0.5), "worst": 1.0, "worst_cell": "4 x 9 dense"}


def test_scaling_has_every_section_and_fits_where_sizes_vary():
    found = scaling.run(Settings(quick=True), lambda text: None)["sections"]
    fitted = [section["title"] for section in found if section["exponents"]]
    assert fitted == ["same number of entries", "same rows", "same K", "same shape"]
    assert [point["value"] for point in found[-2]["points"]] == ["float32", "float64", "bfloat16", "float16"]
    layouts = {point["value"]: (point["rows"], point["K"]) for point in found[-1]["points"]}
    assert layouts == dict.fromkeys(("contiguous", "every second column", "first axis"), (8, 32))
    assert all(point["state"] == "right" for section in found for point in section["points"])


def test_a_figure_has_a_line_for_each_right_implementation_and_softmax_at_one():
    found = maps.run(Settings(quick=True), lambda text: None, [OURS, SOFTMAX, COPY, off(1e-3)])
    for axes in draw.maps(found).axes:
        lines = {line.get_label(): line for line in axes.get_lines()}
        assert list(lines) == ["torch.softmax", "sparsegen", "copy"]
        assert list(lines["torch.softmax"].get_ydata()) == [1, 1]
        assert axes.get_xscale() == axes.get_yscale() == "log"
    y = lines["sparsegen"].get_ydata()
    assert list(y) == [c["forward_ratio"] for c in found["cases"] if c["density"] == "dense"]


def test_every_implementation_looks_different_in_a_figure():
    assert {peer.name for peer in PEERS} - set(draw.LOOKS) == {"torch.softmax"}
    assert len(set(draw.LOOKS.values())) == len({colour for colour, _, _ in draw.LOOKS.values()}) == len(draw.LOOKS)


@pytest.mark.parametrize("name", ["the loss sparsegen", "the gradient of sparsegen"])
def test_losses_are_not_timed_if_they_are_wrong(name, monkeypatch):
    wrong = {
        "the loss sparsegen": lambda z, y: losses.by_labels(z, y) + 0.01,
        "the gradient of sparsegen": lambda z, y: losses.by_labels(z, y) + 0.01 * (z - z.detach()).sum(),
    }
    monkeypatch.setitem(losses.FORMS, "sparsegen", wrong[name])
    with pytest.raises(ValueError, match=f"the answer of {name} must be right before it is timed, got an error of"):
        losses.measure(8, 12, 3, 1, 0.0)


def test_a_loss_that_cannot_run_is_named(monkeypatch):
    def too_large(z, y):
        raise RuntimeError("not enough memory: you tried to allocate\nmore")

    monkeypatch.setitem(losses.FORMS, "all pairs", too_large)
    found = losses.measure(8, 12, 3, 1, 0.0)
    assert found["cannot_run"] == {"all pairs": "not enough memory: you tried to allocate"}
    assert "cannot run" in texts(show.losses({"cases": [found]}))


def test_attention_is_not_timed_if_it_is_wrong(monkeypatch):
    monkeypatch.setattr(attention, "_ours", attention.FORMS["sdpa"])
    with pytest.raises(ValueError, match="the answer of sparse_attention must be right before it is timed"):
        attention.check(40)


def test_dense_attention_is_left_out_where_it_would_take_too_long():
    last = {"length": 10, "step": {"sdpa": {"median_us": 1e9}, "dense softmax": {"median_us": 3e5}}, "left_out": []}
    assert attention._late(last, 20, patience=1.0) == ["dense softmax"]
    assert attention._late(last, 11, patience=1.0) == []


@pytest.mark.slow
def test_the_estimator_names_the_data_it_does_not_find(monkeypatch, tmp_path):
    monkeypatch.setattr(estimator, "CASES", [("scene", 0.1, 1e-3)])
    found = estimator.run(Settings(data=tmp_path), lambda text: None)
    assert found["fits"] == []
    assert "scene was left out" in texts(show.estimator(found))


def _killed(*args):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="processes are killed otherwise there")
def test_the_estimator_does_not_wait_for_a_fit_that_was_killed(monkeypatch):
    monkeypatch.setattr(estimator, "measure", _killed)
    monkeypatch.setattr(estimator, "CASES", [("documents", 0.1, 1e-3)])
    found = estimator.run(Settings(), lambda text: None)
    assert found["fits"] == []
    assert "sparsemax was killed" in texts(show.estimator(found))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="the system does not tell")
def test_memory_of_a_copy_is_its_output_and_that_of_a_sort_is_more():
    assert 0.9 < overhead.memory("copy", 256, 8192, 1)["outputs"] < 1.6
    assert overhead.memory("entmax sort", 256, 8192, 1)["outputs"] > 2


@pytest.mark.slow
def test_memory_that_cannot_be_known_is_told_as_such():
    found = overhead.memory("no such name", 8, 8, 1)
    assert "grown_bytes" not in found
    assert "not known" in texts([show._memory({"memory": [found]})])


def test_the_script_behind_the_results_does_not_overwrite_them_with_toy_numbers(monkeypatch):
    script = Path(__file__).parents[2] / "benchmarks" / "run.py"
    asked = []
    monkeypatch.setattr("sparsegen.bench.run.run", lambda name, settings, out, console: asked.append((name, out)))
    for options in (["losses"], ["losses", "--quick"], ["losses", "--out", "elsewhere"]):
        monkeypatch.setattr(sys, "argv", ["run.py", *options])
        with pytest.raises(SystemExit):
            runpy.run_path(str(script), run_name="__main__")
    assert asked == [("losses", script.parents[1] / "results"), ("losses", None), ("losses", Path("elsewhere"))]


def test_an_unknown_name_and_bad_threads_are_refused_by_name():
    with pytest.raises(ValueError, match="name must be one of maps"):
        benches.chosen("speed")
    done = CliRunner().invoke(app, ["bench", "maps", "--quick", "--threads", "two"])
    assert done.exit_code == 1
    assert "threads must be positive integers" in done.output


def test_verdicts_are_kept_without_what_they_do_not_know():
    assert Verdict("right", 0.0).record() == {"state": "right", "error": 0.0}
    assert "median_us" not in set(keys(Verdict("wrong", 1.0).record()))


@pytest.mark.parametrize("name", ["sparsegen_sq", "spherical_softmax", "entmax15", "hardmax", "softmax"])
def test_the_lam_that_stands_beside_a_map_leaves_as_many_entries(name):
    x = scores(64, 500)
    z = family.input_of(name, x)
    sizes = [
        (p > 0).sum(-1).double().mean()
        for p in (
            getattr(sgt, name)(z, **family.controls_of(name)),
            sgt.sparsegen_lin(z, lam=family.lam_alike(name, x)),
        )
    ]
    assert abs(sizes[0] - sizes[1]) <= 0.01 * sizes[0] + 0.5
