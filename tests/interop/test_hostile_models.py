"""Models from an enemy: each becomes a graph or is refused, in bounded time and memory, and reads nothing but its own.

The files are read by a process of its own (``hostile.py``), so that one that exhausts memory, does not end or crashes
the interpreter is a failure of the test and not the end of the others.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper

import gradspec as gs
from interop import hostile

TESTS = Path(__file__).parents[1]
BATCHES, FILES = 10, 1000

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is limited as on Linux")


@pytest.fixture
def folder(tmp_path):
    """A folder for models, with a secret next to it and ways that lead there."""
    (tmp_path / "secret").write_text("not for models")
    inner = tmp_path / "models"
    inner.mkdir()
    (inner / "link").symlink_to("../secret")
    os.mkfifo(inner / "pipe")
    return inner


def process(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(TESTS / "interop" / "hostile.py"), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.rows(1)
@pytest.mark.parametrize("seed", range(BATCHES))
def test_damaged_models_load_or_are_refused(seed, folder):
    done = process(folder, seed, FILES)
    assert done.returncode == 0, f"{sorted(folder.iterdir())} hold the last files: {done.stderr[-2000:]}"
    report = json.loads(done.stdout)
    outcomes = report["outcomes"]
    assert report["outside"] == []
    assert [o for o in outcomes if "failure" in o] == []
    assert sum(outcomes.values()) == FILES
    for suffix in (".onnx", ".gradspec"):
        assert outcomes[f"{suffix} loaded"] > 4, "the damage is not always fatal"
        assert outcomes[f"{suffix} FormatError"] > 20, "and not always harmless"


def test_the_models_they_are_made_from_are_good(folder):
    for number, message in enumerate(hostile.good_models(folder)):
        path = folder / f"{number}.onnx"
        path.write_bytes(message.SerializeToString())
        assert hostile.outcome(path) == "loaded"
    for content in hostile.saved_graphs(folder):
        (folder / "good.gradspec").write_bytes(content)
        assert hostile.outcome(folder / "good.gradspec") == "loaded"


@pytest.mark.parametrize("error", [MemoryError, RecursionError, ZeroDivisionError, KeyError])
@pytest.mark.parametrize("wrapped", [False, True])
def test_exhaustion_is_not_taken_for_a_refusal(error, wrapped, folder, monkeypatch):
    def fails(path):
        try:
            raise error("on purpose")
        except error as cause:
            if wrapped:
                raise gs.FormatError("the model is damaged") from cause
            raise

    monkeypatch.setattr(gs, "from_onnx", fails)
    accepted = wrapped and error in (ZeroDivisionError, KeyError)
    assert hostile.outcome(folder / "any.onnx").startswith("FormatError" if accepted else "failure")


def test_limits_and_the_watch_are_real(folder):
    """What a reader must not do, done on purpose in such a process."""
    script = """
import os, sys
from pathlib import Path
from interop import hostile
folder, noted = Path(sys.argv[1]), []
hostile.limit()
hostile.watch(folder, noted)
open(folder / "fine", "w").close()
assert noted == []
open(folder.parent / "secret").close()
os.system("true")
assert [os.path.basename(place) for place in noted] == ["secret", "os.system"]
try:
    [0] * 2**31
except MemoryError:
    sys.exit(7)
"""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run([sys.executable, "-c", script, folder], env=environment, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr


@pytest.mark.rows(1)
@pytest.mark.parametrize("count", [10_000, 100_000])
def test_many_nodes(count):
    x = helper.make_tensor_value_info("v0", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info(f"v{count}", TensorProto.FLOAT, [2])
    model = helper.make_model(helper.make_graph([], "chain", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])
    for i in range(count):
        model.graph.node.add(op_type="Relu", input=[f"v{i}"], output=[f"v{i + 1}"])
    assert len(gs.from_onnx(model).nodes) == count
