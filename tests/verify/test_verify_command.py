"""``gradspec verify`` as a program: answers, witnesses that hold exactly, limits that are kept, and many at once."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil
import pytest
from click.testing import CliRunner

import gradspec as gs
from gradspec.cli import main
from gradspec.verify.campaign import instances_in_folder
from gradspec.verify.report import page
from gradspec.verify.solving import Answer, Question, format_decimal
from gradspec.verify.vnnlib import read_vnnlib
from gradspec.verify.worker import VerifyWorker
from patience import PATIENCE

HAT = """
(declare-const X_0 Real) (declare-const Y_0 Real)
(assert (<= X_0 2)) (assert (>= X_0 0.1)) (assert (>= Y_0 {}))
"""
"""The network below is a hat whose top is 1, at 1."""

SCRIPTS = Path(__file__).parents[2] / "tools" / "vnncomp"

ANSWERS = {"high": ("1.1", "unsat"), "low": ("0.7", "sat")}


def gradspec(*arguments):
    """On a busy machine too, a minute is not meant to be reached."""
    limit = [] if "--timeout" in arguments else ["--timeout", str(PATIENCE)]
    return CliRunner().invoke(main, ["verify", *map(str, arguments), *limit])


def hat():
    return gs.trace(lambda x: gs.relu(x) - 2.0 * gs.relu(x - 1.0), gs.f32[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved graph, properties of it, and a list of them."""
    found = tmp_path_factory.mktemp("hat")
    hat().save(found / "hat.gs")
    for name, (bound, _) in ANSWERS.items():
        (found / f"{name}.vnnlib").write_text(HAT.format(bound))
    lines = [f"hat.gs,{name}.vnnlib,60,{answer}" for name, (_, answer) in ANSWERS.items()]
    (found / "instances.csv").write_text("\n".join(["network,property,seconds,expected", *lines]))
    return found


def onnx_model(path, batch):
    """A network of two inputs, whose batches have an open size."""
    helper = pytest.importorskip("onnx.helper")
    onnx = pytest.importorskip("onnx")
    weights = onnx.numpy_helper.from_array(np.float32([[1, -1], [1, 1]]), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [batch, 2]) for name in "xy"]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content = model.SerializeToString()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


# --- one property -----------------------------------------------------------------------------------------------------


def test_what_is_proved_is_unsat(folder, tmp_path):
    result = gradspec(folder / "hat.gs", folder / "high.vnnlib", "--report", tmp_path / "page.html")
    assert (result.exit_code, result.stdout) == (0, "unsat\n"), result.output
    assert "proved of any kernel" in result.stderr
    text = (tmp_path / "page.html").read_text()
    assert "whatever conforming kernels" in text
    assert "-Y_0 &lt;= -1.1" in text
    assert text.count('class="widths"') == text.count('class="heat"') == 1
    assert not re.search(r"https?://", text)


@pytest.mark.parametrize(("name", "batch"), [("net.onnx", "N"), ("net.onnx.gz", None)])
def test_a_witness_is_one_exactly(tmp_path, name, batch):
    onnx_model(tmp_path / name, batch)
    stated = tmp_path / "p.vnnlib"
    stated.write_text(
        "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)(declare-const Y_1 Real)"
        "(assert (>= X_0 0.1))(assert (<= X_0 0.3))(assert (= X_1 0.7))(assert (>= Y_0 0.9))(assert (<= Y_1 0.45))"
    )
    result = gradspec(tmp_path / name, stated)
    word, *lines = result.stdout.splitlines()
    assert (word, result.exit_code) == ("sat", 0)
    assert result.stdout.count("(") == result.stdout.count(")") == 5
    pairs = dict(re.fullmatch(r"[( ]\((\w+) (\S+?)\)+", line).groups() for line in lines)
    x, y = ([Fraction(pairs[f"{letter}_{i}"]) for i in range(2)] for letter in "XY")
    exact = [max(x[0] + x[1], 0), max(x[1] - x[0], 0)]
    assert read_vnnlib(stated).is_counterexample(x, exact)
    assert [float(v) for v in y] == pytest.approx([float(v) for v in exact], rel=1e-6)


def test_json_says_all(folder):
    found = json.loads(gradspec(folder / "hat.gs", folder / "low.vnnlib", "--json", "--kernels", "real").stdout)
    assert (found["answer"], found["kernels"]) == ("sat", "real")
    assert [name for name, _ in found["witness"]] == ["X_0", "Y_0"]


def test_no_time_is_no_answer(folder, tmp_path):
    result = gradspec(folder / "hat.gs", folder / "high.vnnlib", "--timeout", 0, "--report", tmp_path / "page.html")
    assert (result.exit_code, result.stdout) == (0, "unknown\n")
    assert "Neither proved nor refuted" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("name", "first"), [("high", "unsat"), ("low", "sat"), ("missing", "error")])
def test_the_scripts_of_the_competition(folder, tmp_path, name, first):
    """They run ``gradspec`` of the path, which is this one."""
    run = tmp_path / "gradspec"
    run.write_text(f'#!/bin/sh\nexec {sys.executable} -m gradspec "$@"\n')
    run.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    results, files = tmp_path / "results.txt", (folder / "hat.gs", folder / f"{name}.vnnlib")

    def script(program, *arguments):
        command = ["sh", SCRIPTS / program, *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE).returncode

    assert (script("prepare_instance.sh", "v1", "hats", *files) == 0) == (name != "missing")
    script("run_instance.sh", "v1", "hats", *files, results, 60)
    word, *witness = results.read_text().splitlines()
    assert (word, len(witness)) == (first, 2 * (first == "sat"))
    assert script("run_instance.sh", "v2", "hats", *files, results, 60) == 1


def test_time_that_is_over_stops_what_runs(folder):
    """The process cannot even start in so little."""
    result = gradspec(folder / "hat.gs", folder / "high.vnnlib", "--timeout", 0.01)
    assert (result.exit_code, result.stdout) == (0, "unknown\n")


FILES = {
    "no model": (b"\x89PNG", None, "neither an ONNX model nor a saved graph"),
    "a cut model": (b"\x08\x08\x12", None, "damaged"),
    "no property": (None, b"(assert (<= X_0 1))", "line 1, column"),
    "another network's": (
        None,
        HAT.format(1).replace("Y_0 Real)", "Y_0 Real)(declare-const Y_1 Real)").encode(),
        "2 outputs",
    ),
    "an empty one": (None, b"", "X_0 is not declared"),
}


def question(folder, tmp_path, what):
    """A bad file, and a good one beside it."""
    model, stated, _ = FILES[what]
    (tmp_path / "m").write_bytes((folder / "hat.gs").read_bytes() if model is None else model)
    (tmp_path / "p").write_bytes((folder / "high.vnnlib").read_bytes() if stated is None else stated)
    return tmp_path / "m", tmp_path / "p"


@pytest.mark.parametrize("what", FILES)
def test_a_bad_file_is_one_plain_message(folder, tmp_path, what):
    said = []
    VerifyWorker(said.append).answer(asdict(Question(*map(str, question(folder, tmp_path, what)))))
    ((kind, message),) = said[0].items()
    assert (len(said), kind) == (1, "wrong")
    assert FILES[what][-1] in message


def test_a_bad_file_has_an_exit_code(folder, tmp_path):
    result = gradspec(*question(folder, tmp_path, "no property"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.fullmatch(r"Error: .*line 1, column.*\n", result.stderr)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("hat.gs",), 2, "give a property"),
        (("hat.gs", "high.vnnlib", "--jobs", 2), 2, "--jobs"),
        ((".", "--report", "page.html"), 2, "--report"),
        (("hat.gs", "high.vnnlib", "--report", "none/page.html"), 2, "no folder"),
        (("none.gs", "high.vnnlib"), 1, "none.gs"),
        (("hat.gs", "high.vnnlib", "--kernels", "some"), 2, "--kernels"),
        (("/dev/zero", "high.vnnlib"), 1, "not a regular file"),
    ],
)
def test_what_cannot_be_done_is_said(folder, monkeypatch, arguments, code, words):
    monkeypatch.chdir(folder)
    result = gradspec(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert words in result.stderr


def test_a_number_is_written_in_full():
    for number in (
        Fraction(0),
        Fraction(-3),
        Fraction(2) ** -149,
        Fraction(10) ** 30,
        Fraction(float(np.float32(0.1))),
    ):
        assert Fraction(format_decimal(number)) == number
    assert abs(Fraction(format_decimal(Fraction(2, 3))) - Fraction(2, 3)) < Fraction(1, 10**30)


def test_a_page_is_not_broken_by_what_it_is_told():
    text = page(Question("<b>.onnx", "</title>.vnnlib"), Answer("unknown", error="<script>"), None, "<i>")
    assert "<script>" not in text
    assert "</title>.vnnlib" not in text


@pytest.mark.parametrize("where", ["proof.npz", "none/proof.npz"])
def test_a_certificate_is_saved_with_the_answer(folder, tmp_path, where):
    """Where it cannot be, the answer stands, and says so."""
    files = str(folder / "hat.gs"), str(folder / "high.vnnlib")
    said = []
    VerifyWorker(said.append).answer(asdict(Question(*files, certificate=str(tmp_path / where))))
    (answer,) = [message["answer"] for message in said if "answer" in message]
    assert answer["answer"] == "unsat"
    assert ("certificate" in answer["error"]) == ("none" in where)
    if "none" not in where:
        checked = gradspec("--check", tmp_path / where, *files)
        assert (checked.exit_code, checked.stdout.split(":")[0]) == (0, "accepted"), checked.output
        refused = gradspec("--check", tmp_path / where, files[0], folder / "low.vnnlib")
        assert (refused.exit_code, refused.stdout.split(":")[0]) == (1, "refused")


# --- what explains ----------------------------------------------------------------------------------------------------


def test_costs_of_inputs_are_slopes_times_radii():
    """Of an affine network, the bound is its value at the centre less what the inputs cost."""
    weights = np.float32([[1, -2, 0], [4, 1, 3]])
    g = gs.trace(lambda x: gs.linear(x, weights), gs.f32[3])
    found = gs.verify.explain(g, np.float32([0, 0, 0]), np.float32([2, 4, 6]), np.float32([1, -1]), kernels="real")
    assert found.layers == ()
    np.testing.assert_allclose(found.inputs[0], [3, 6, 9])
    np.testing.assert_allclose(found.bound, (weights[0] - weights[1]) @ [1, 2, 3] - 18, rtol=1e-5)


def test_lines_are_no_wider_than_boxes():
    weights = np.float32([[1, -1], [1, 1]])
    net = gs.trace(lambda x: gs.linear(gs.relu(gs.linear(gs.relu(gs.linear(x, weights)), weights)), weights), gs.f32[2])
    found = gs.verify.explain(net, np.float32([-1, -1]), np.float32([1, 1]), np.float32([1, 0]))
    assert [layer.operators for layer in found.layers] == [("relu",), ("relu",)]
    assert all(layer.by_lines <= layer.by_boxes for layer in found.layers)
    assert found.layers[1].by_lines < found.layers[1].by_boxes
    assert found.layers[0].undecided == 1.0


# --- many -------------------------------------------------------------------------------------------------------------


def test_a_list_is_answered_and_kept(folder, tmp_path):
    file = tmp_path / "answers.jsonl"
    first = gradspec(folder / "instances.csv", "--jobs", 1, "--output", file)
    assert first.exit_code == 0, first.output
    assert "2 of 2" in first.stdout
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {Path(line["property"]).stem: line["answer"] for line in lines} == {k: v for k, (_, v) in ANSWERS.items()}
    whole = file.read_text()
    file.write_text(whole + '{"network": "ha')  # whoever wrote it was stopped
    again = gradspec(folder, "--jobs", 1, "--output", file, "--json")
    assert [found["answer"] for found in json.loads(again.stdout)] == ["unsat", "sat"]
    assert file.read_text() == whole  # nothing was asked again


def test_a_contrary_answer_is_loud(folder, tmp_path):
    for name in ("hat.gs", "high.vnnlib"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "instances.csv").write_text("hat.gs,high.vnnlib,60,sat\n")
    result = gradspec(tmp_path)
    assert result.exit_code == 1
    assert "DISAGREEMENT" in result.stdout


@pytest.mark.parametrize("content", [b"{}\n", b"[]\n", b"\xff\n", b'{"answer": 1, "key": 2}\n'])
def test_a_file_of_others_is_not_added_to(folder, tmp_path, content):
    (tmp_path / "mine").write_bytes(content)
    result = gradspec(folder, "--output", tmp_path / "mine")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "line 1" in result.stderr
    assert (tmp_path / "mine").read_bytes() == content


def test_without_a_list_a_folder_has_one_network(folder, tmp_path):
    (tmp_path / "high.vnnlib").write_bytes((folder / "high.vnnlib").read_bytes())
    assert "0 networks and 1 properties" in gradspec(tmp_path).stderr
    (tmp_path / "hat.gs").write_bytes((folder / "hat.gs").read_bytes())
    assert [i.property.name for i in instances_in_folder(tmp_path)] == ["high.vnnlib"]


def children():
    """The processes that this one started."""
    return {child.pid for child in psutil.Process().children()}


def test_a_process_that_dies_costs_its_instance(folder, tmp_path):
    """The prover is killed while it works on the first; the second is answered by another process."""
    before, killed = children(), []

    def kill(standing):
        for child in children() - before if standing.running and not killed else ():
            killed.append(child)
            os.kill(child, signal.SIGKILL)

    found = gs.verify.campaign(folder, jobs=1, progress=kill, timeout=PATIENCE)
    assert killed
    assert [(o.answer.answer, bool(o.answer.error)) for o in found] == [("unknown", True), ("sat", False)]
    assert "SIGKILL" in found[0].answer.error


def test_an_executor_may_lose_workers(folder):
    """A worker of the pool is killed, which breaks the pool: what it lost is run here."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(os.getpid).result()
        killed = []

        def kill(standing):
            if not killed:
                killed.extend(pool._processes)
                os.kill(killed[0], signal.SIGKILL)

        found = gs.verify.campaign(folder / "instances.csv", executor=pool, progress=kill, jobs=1, timeout=PATIENCE)
    assert killed
    assert [o.answer.answer for o in found] == ["unsat", "sat"]


@pytest.mark.exhaustive  # a pool that loses a worker: above
@pytest.mark.filterwarnings("default")  # of the cluster's own making
def test_a_cluster_may_lose_a_worker_midway(folder):
    """A real cluster of two processes, of which one is killed after the first answer: all are answered, in order."""
    distributed = pytest.importorskip("distributed")
    killed, pairs = [], [(folder / "hat.gs", folder / f"{name}.vnnlib") for name in (*ANSWERS, *ANSWERS, *ANSWERS)]

    def kill(standing):
        if standing.outcomes and not killed:
            killed.append(next(iter(cluster.workers.values())).pid)
            os.kill(killed[0], signal.SIGKILL)

    options = {"dashboard_address": None, "silence_logs": 50, "memory_limit": 0}
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = gs.verify.campaign(pairs, executor=client.get_executor(), progress=kill, jobs=3, timeout=PATIENCE)
    assert killed
    assert [o.answer.answer for o in found] == [answer for _, answer in ANSWERS.values()] * 3
    assert not any(o.answer.error for o in found)
