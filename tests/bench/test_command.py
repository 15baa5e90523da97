"""``gradspec bench`` from the command line: tables, JSON, a picture, and clear refusals."""

import io
import json
import os
import signal
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
from click.testing import CliRunner
from rich.console import Console

from gradspec.bench import command, contenders
from gradspec.bench.command import BenchRequest, perform
from gradspec.bench.grid import problem, problems
from gradspec.bench.measure import COPY_PROBLEM, PRODUCT_PROBLEMS, BenchRun, Result, Settings, Timing
from gradspec.bench.plot import draw
from gradspec.bench.ratios import rate_of_peer, ratio_to_peer, share_of_copy, share_of_product
from gradspec.bench.report import as_json, remarks, show
from gradspec.cli import main

needs_matplotlib = pytest.mark.skipif(find_spec("matplotlib") is None, reason="pip install matplotlib")


def bench(*arguments, charset="utf-8"):
    return CliRunner(charset=charset).invoke(main, ["bench", *arguments], env={"COLUMNS": "100", "NO_COLOR": "1"})


def timing(*samples, **more):
    return Timing([*samples], **more)


def made_up(suite="pool", cells=(), seconds=1e-3):
    """A run of every problem: ours takes ``seconds``, torch three times and JAX twice as long."""
    run = BenchRun(suite, Settings(threads=2), ["gradspec", "torch-eager", "jax", "onnxruntime"])
    for one in problems(suite, cells, (), ()):
        timings = {"gradspec": timing(seconds), "torch-eager": timing(3 * seconds), "jax": timing(2 * seconds)}
        timings["onnxruntime"] = timing(offered=False, reason="values only")
        run.results.append(Result(one, timings, timing(COPY_PROBLEM.bytes / 50e9)))
    if suite != "pool":
        small, large = PRODUCT_PROBLEMS
        run.products.append(Result(small, {"torch-eager": timing(small.flops / 70e9)}))
        run.products.append(Result(large, {"machine": timing(large.flops / 60e9)}))
    return run


def test_a_tiny_run_from_the_command_line(tmp_path):
    file = tmp_path / "result.json"
    wanted = ["--cells", "P11", "--ops", "max,avg", "--modes", "forward,vjp", "--quick", "--peers", "torch-eager"]
    result = bench(*wanted, "--threads", "1", "--json", str(file), charset="ascii")
    assert result.exit_code == 0, result.output
    assert "P11 max" in result.stdout
    assert "vs fastest" in result.stdout
    written = json.loads(file.read_text())
    names = [(row["cell"], row["op"], row["mode"]) for row in written["results"]]
    assert names == [("P11", op, mode) for mode in ("forward", "vjp") for op in ("max", "avg")]
    assert written["settings"]["threads"] == 1
    assert {"torch", "numpy", "gradspec"} <= set(written["versions"])
    assert written["machine"]["processor"]
    for row in written["results"]:
        for contender in ("gradspec", "torch-eager"):
            measured = row["contenders"][contender]
            low, high = measured["quartiles"]
            assert 0 < low <= measured["median"] <= high
            assert measured["samples"] >= 2
            assert "disagrees" not in measured


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--peers", "tensorflow"], "no peer 'tensorflow'; choose from torch, jax, onnxruntime"),
        (["--cells", "P12"], "no cell 'P12'; choose from P1, P2"),
        (["conv", "--cells", "P1"], "no cell 'P1'; choose from C1"),
        (["--ops", "min"], "no operator 'min'; choose from max, avg, smooth"),
        (["--modes", "backward"], "no mode 'backward'; choose from forward, jvp, vjp"),
        (["--cells", "P9", "--ops", "smooth"], "no problem of the grid"),
        (["--json", "/no/such/folder/f.json"], "create it first"),
        pytest.param(["--plot", "picture.bmp"], ".png, .pdf, .svg", marks=needs_matplotlib),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_before_any_work(arguments, words):
    result = bench(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in " ".join(result.stderr.split())


def test_a_missing_peer_comes_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(contenders, "find_spec", lambda package: None)
    assert contenders.peers(None, "pool") == []
    result = bench("--peers", "jax,onnxruntime", "--cells", "P11", "--ops", "max", "--modes", "forward", "--quick")
    assert result.exit_code == 1
    assert "jax is not installed; pip install jax" in result.stderr


@pytest.mark.skipif(find_spec("torch") is None, reason="pip install torch")
@pytest.mark.parametrize(
    ("suite", "compiled"),
    [("pool", ["torch-compile"]), ("conv", []), ("net", ["torch-compile", "torch-compile-channels-last"])],
)
def test_a_group_names_its_members_that_are_meant_for_the_suite(suite, compiled):
    names = ["torch-eager", "torch-channels-last", *compiled]
    assert [peer.name for peer in contenders.peers(["torch"], suite)] == names
    assert [peer.name for peer in contenders.peers(None, suite)][: len(names)] == names
    assert [peer.name for peer in contenders.peers(["torch-compile"], suite)] == ["torch-compile"]


def test_ratios_are_those_of_the_medians():
    (first, *_) = made_up("conv", ["C1"]).results
    run = made_up("conv", ["C1"])
    assert ratio_to_peer(first) == pytest.approx(2)
    assert share_of_copy(first) == pytest.approx(first.problem.bytes / 50e9 / 1e-3)
    assert share_of_product(first, run) == pytest.approx(first.problem.flops / 1e-3 / 70e9)
    assert rate_of_peer(first) == pytest.approx(first.problem.flops / 2e-3)
    tiny = Result(problem("P11", "max", "forward"), {"gradspec": timing(1e-5)}, timing(1e-3))
    assert (ratio_to_peer(tiny), share_of_copy(tiny)) == (None, None)


def test_remarks_tell_what_a_reader_must_know():
    run = made_up("conv", ["C1"])
    run.results[0].timings["jax"] = timing(1.0, disagrees="differs from gradspec by 1 in result 1 of 1")
    run.results[1].timings["jax"] = timing(reason="RuntimeError: out of memory\nat line 3")
    run.results[2].timings["gradspec"].tried = {contenders.GIVEN: 1.5, contenders.FIXED: 1.0}
    run.unavailable, run.interrupted = {"torch-compile": "ImportError: no compiler"}, True
    text = "\n".join(remarks(run))
    for words in (
        "50.0 GB/s",
        "70.0 GFLOP/s, by torch-eager, 1024 square",
        "With weights given in each call instead of before, gradspec takes 1.50 times as long.",
        "C1 conv forward: jax differs from gradspec by 1",
        "C1 conv jvp: jax failed: RuntimeError: out of memory\n",
        "torch-compile could not be started: ImportError: no compiler",
        "Interrupted",
    ):
        assert words in text
    assert "values only" not in text


@pytest.mark.parametrize("suite", ["pool", "conv", "net"])
def test_a_run_can_be_written_and_drawn(suite, tmp_path):
    run = made_up(suite)
    written = json.loads(json.dumps(as_json(run)))
    assert [row["times_fastest_peer"] for row in written["results"]] == pytest.approx([2.0] * len(run.results))
    if find_spec("matplotlib"):
        draw(run, tmp_path / "picture.png")
        assert (tmp_path / "picture.png").stat().st_size > 20_000


@pytest.mark.parametrize(("suite", "width"), [("pool", 40), ("conv", 60), ("net", 200)])
def test_no_figure_is_cut_off_whatever_the_width(suite, width):
    console = Console(width=width, record=True, file=io.StringIO())
    run = made_up(suite, seconds=0.0123456)
    show(run, console)
    printed = console.export_text()
    assert "\u2026" not in printed
    for result in run.results:
        assert f"{result.problem.cell.name} {result.problem.op} " in printed
    assert printed.count("24.7") >= len(run.results)


def test_half_a_race_has_no_winner():
    run = made_up("conv", ["C1"])
    run.results[-1].is_complete = False
    run.results[-1].timings["jax"] = Timing()
    assert ratio_to_peer(run.results[-1]) is None
    console = Console(width=150, record=True, file=io.StringIO())
    show(run, console)
    *_, last = [line for line in console.export_text().splitlines() if line.startswith("C1 conv")]
    assert last.split()[2:7] == ["1", "3", "-", "-", "-"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "terminated"])
def test_a_run_that_is_ended_shows_what_there_is(number, tmp_path, monkeypatch):
    @contextmanager
    def signalling(total):
        yield lambda doing, share: doing == "P11 avg forward: gradspec" and os.kill(os.getpid(), number)

    monkeypatch.setattr(command, "_progress", signalling)
    file, console = tmp_path / "result.json", Console(record=True, file=io.StringIO())
    chosen = {"cells": ["P11"], "ops": ["max", "avg"], "modes": ["forward"], "peers": []}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start without it
    try:
        perform(BenchRequest(**chosen, quick=True, threads=1, json_file=str(file)), console)
    finally:
        signal.signal(signal.SIGINT, before)
    assert "Interrupted: this is what had been measured." in console.export_text()
    assert [row["is_complete"] for row in json.loads(file.read_text())["results"]] == [True, False]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
