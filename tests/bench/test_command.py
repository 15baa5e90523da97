"""``gradspec bench`` from the command line: tables, JSON, a picture, and clear refusals."""

import json
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

from gradspec.bench import contenders
from gradspec.bench.grid import problem, problems
from gradspec.bench.measure import COPY_PROBLEM, MATMUL_PROBLEM, Result, Run, Settings, Timing
from gradspec.bench.plot import draw
from gradspec.bench.report import as_json, ratio_to_peer, remarks, share_of_copy, share_of_product
from gradspec.cli import main

needs_matplotlib = pytest.mark.skipif(find_spec("matplotlib") is None, reason="pip install matplotlib")


def bench(*arguments, charset="utf-8"):
    return CliRunner(charset=charset).invoke(main, ["bench", *arguments], env={"COLUMNS": "100", "NO_COLOR": "1"})


def timing(*samples, **more):
    return Timing([*samples], **more)


def made_up(suite="pool", cells=(), seconds=1e-3):
    """A run of every problem: ours takes ``seconds``, torch three times and JAX twice as long."""
    run = Run(suite, Settings(threads=2), ["gradspec", "torch-eager", "jax", "onnxruntime"])
    for one in problems(suite, cells, (), ()):
        timings = {"gradspec": timing(seconds), "torch-eager": timing(3 * seconds), "jax": timing(2 * seconds)}
        timings["onnxruntime"] = timing(offered=False, reason="values only")
        run.results.append(Result(one, timings, timing(COPY_PROBLEM.bytes / 50e9)))
    if suite != "pool":
        run.matmul = Result(MATMUL_PROBLEM, {"torch-eager": timing(MATMUL_PROBLEM.flops / 70e9)})
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
    assert contenders.peers(None) == []
    result = bench("--peers", "jax,onnxruntime", "--cells", "P11", "--ops", "max", "--modes", "forward", "--quick")
    assert result.exit_code == 1
    assert "jax is not installed; pip install jax" in result.stderr


def test_a_group_names_all_its_members():
    names = [peer.name for peer in contenders.PEERS if peer.group == "torch"]
    assert names == ["torch-eager", "torch-channels-last", "torch-compile"]
    if find_spec("torch"):
        assert [peer.name for peer in contenders.peers(["torch"])] == names


def test_ratios_are_those_of_the_medians():
    (first, *_) = made_up("conv", ["C1"]).results
    run = made_up("conv", ["C1"])
    assert ratio_to_peer(first) == pytest.approx(2)
    assert share_of_copy(first) == pytest.approx(first.problem.bytes / 50e9 / 1e-3)
    assert share_of_product(first, run) == pytest.approx(first.problem.flops / 1e-3 / 70e9)
    tiny = Result(problem("P11", "max", "forward"), {"gradspec": timing(1e-5)}, timing(1e-3))
    assert (ratio_to_peer(tiny), share_of_copy(tiny)) == (None, None)


def test_remarks_tell_what_a_reader_must_know():
    run = made_up("conv", ["C1"])
    run.results[0].timings["jax"] = timing(1.0, disagrees="differs from gradspec by 1 in result 1 of 1")
    run.results[1].timings["jax"] = timing(reason="RuntimeError: out of memory\nat line 3")
    run.unavailable, run.interrupted = {"torch-compile": "ImportError: no compiler"}, True
    text = "\n".join(remarks(run))
    for words in (
        "50.0 GB/s",
        "70.0 GFLOP/s, by torch-eager",
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
