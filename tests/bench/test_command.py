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
from gradspec.bench.measure import (
    COPY_PROBLEM,
    PRODUCT_PROBLEMS,
    BenchRun,
    Measured,
    Settings,
    Timing,
    rate_of_peer,
    ratio_to_peer,
    share_of_copy,
    share_of_product,
)
from gradspec.bench.plot import draw
from gradspec.bench.report import as_json, compare, read_run, remarks, show, show_comparison
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
        run.results.append(Measured(one, timings, timing(COPY_PROBLEM.bytes / 50e9)))
    if suite != "pool":
        small, large = PRODUCT_PROBLEMS
        run.products.append(Measured(small, {"torch-eager": timing(small.flops / 70e9)}))
        run.products.append(Measured(large, {"machine": timing(large.flops / 60e9)}))
    return run


@pytest.mark.exhaustive
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
    tiny = Measured(problem("P11", "max", "forward"), {"gradspec": timing(1e-5)}, timing(1e-3))
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


def written(run, file, **changes):
    file.write_text(json.dumps(as_json(run) | changes))
    return read_run(str(file), run.suite, run.settings.threads)


def slowed(run, peers=1.0, **ours):
    """The run on another day: times of peers and, by cell, of ours are multiplied."""
    for result in run.results:
        for name, timed in result.timings.items():
            factor = ours.get(result.problem.cell.name, 1.0) if name == "gradspec" else 1.0
            timed.samples = [sample * factor * peers for sample in timed.samples]
    return run


def compared(run, earlier):
    console = Console(width=120, record=True, file=io.StringIO())
    show_comparison(compare(run, earlier), console)
    return " ".join(console.export_text().split())


def test_only_what_moved_against_the_peers_is_said_to_have_moved(tmp_path):
    earlier = written(made_up(), tmp_path / "then.json")
    comparison = compare(slowed(made_up(), peers=1.3, P1=1.2, P4=0.5, P7=1.01), earlier)
    assert (comparison.drift, comparison.noise) == pytest.approx((1.3, 0.02))
    moved = {c.problem.cell.name: c.speedup for c in comparison.changes if c.is_real}
    assert moved == pytest.approx({"P1": 1 / 1.2, "P4": 2.0})
    printed = compared(slowed(made_up(), peers=1.3, P1=1.2, P4=0.5), earlier)
    assert "P1 max forward" in printed
    assert "0.83x" in printed
    assert "P2 max forward" not in printed
    assert "1.300 times as long as then" in printed


def test_what_peers_seem_to_move_by_is_the_noise(tmp_path):
    then, now = made_up("conv"), made_up("conv", seconds=0.95e-3)
    for i, result in enumerate(now.results):
        for name in ("torch-eager", "jax"):
            result.timings[name] = timing(then.results[i].timings[name].median * (1.1 if i % 2 else 1 / 1.1))
    comparison = compare(now, written(then, tmp_path / "then.json"))
    assert 0.09 < comparison.noise < 0.2
    assert not any(change.is_real for change in comparison.changes)


def test_a_wide_spread_of_a_cell_is_its_own_noise(tmp_path):
    then, now = made_up("conv"), made_up("conv")
    now.results[0].timings["gradspec"] = timing(0.6e-3, 0.8e-3, 1.0e-3)
    changed = compare(now, written(then, tmp_path / "then.json")).changes[0]
    assert changed.speedup == pytest.approx(1.25)
    assert changed.noise == pytest.approx(0.125)
    assert changed.is_real
    now.results[0].timings["gradspec"] = timing(0.4e-3, 0.8e-3, 1.2e-3)
    assert not compare(now, written(then, tmp_path / "then.json")).changes[0].is_real


def test_without_peers_or_cells_in_common_it_says_so(tmp_path):
    earlier = written(made_up("conv", ["C1"]), tmp_path / "then.json")
    assert "nothing can be compared" in compared(made_up("conv", ["C2"]), earlier)
    newer = made_up("conv", ["C1"])
    newer.versions = {"torch": "2.99", "jax": "9.9"}
    assert "No unchanged peer was timed" in compared(newer, earlier)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 1}, "measure both runs alike"),
        ({"suite": "net"}, "measure both runs alike"),
        ({"settings": {"threads": 16}}, "measure both runs alike"),
        ({"machine": {"processor": "another"}}, "measure both runs alike"),
        ({"machine": None}, "was not written by gradspec bench"),
        ({"results": [{"cell": "C1"}]}, "was not written by gradspec bench"),
    ],
)
def test_a_run_that_cannot_be_compared_is_refused_before_any_work(changes, words, tmp_path):
    file = tmp_path / "then.json"
    file.write_text(json.dumps(as_json(made_up("conv")) | changes))
    result = bench("conv", "--threads", "2", "--compare", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in " ".join(result.stderr.split())


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[1]"])
def test_another_file_is_no_earlier_run(content, tmp_path):
    file = tmp_path / "then.json"
    file.write_bytes(content)
    result = bench("conv", "--compare", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "then.json" in result.stderr


def test_a_comparison_needs_its_file(tmp_path):
    result = bench("--compare", str(tmp_path / "none.json"))
    assert result.exit_code == 1
    assert "none.json" in result.stderr
