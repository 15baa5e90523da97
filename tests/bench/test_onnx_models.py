"""The script that tries a folder of ONNX models: its counts, its reasons, and what it takes for agreement."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from interop.onnx_models import model, value

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "onnx_models.py"


@pytest.fixture(scope="module")
def script():
    spec = spec_from_file_location("tried_onnx_models", SCRIPT)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def saved(folder, name, op_type, **attributes):
    node = helper.make_node(op_type, ["x"], ["y"], **attributes)
    (folder / name).parent.mkdir(exist_ok=True)
    proto = model([node], [value("x", ["batch", 3])], [helper.make_empty_tensor_value_info("y")])
    (folder / name).write_bytes(proto.SerializeToString())


def run(folder, *options):
    command = [sys.executable, str(SCRIPT), str(folder), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_every_model_is_counted_with_its_reason(tmp_path):
    saved(tmp_path, "good.onnx", "Relu")
    saved(tmp_path, "deeper/refused.onnx", "Bernoulli")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    printed = run(tmp_path, "--verbose")
    assert [line.split()[0] for line in printed.splitlines()[:5]] == ["3", "2", "2", "1", "1"]
    assert "does not come in: 1\n    1  the operator Bernoulli\n         deeper/refused.onnx" in printed
    assert "not loaded by ONNX Runtime: 1" in printed


def test_a_model_that_takes_too_long_is_given_up(tmp_path):
    saved(tmp_path, "good.onnx", "Relu")
    assert "no answer: 1" in run(tmp_path, "--seconds", "0")


@pytest.mark.parametrize(
    ("ours", "theirs", "agree"),
    [
        (np.float32([1, 1000]), np.float32([1.01, 1000]), True),
        (np.float32([1, 1000]), np.float32([3, 1000]), False),
        (np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf]), True),
        (np.float32([np.nan, 1]), np.float32([0, 1]), False),
        (np.float32([np.inf, 1]), np.float32([-np.inf, 1]), False),
        (np.float32([np.inf, 1]), np.float32([1, 1]), False),
        (np.int64([1, 2]), np.int64([1, 3]), False),
        (np.int64([1, 2]), np.int64([1, 2]), True),
        (np.float32([1]), np.float64([1]), False),
        (np.float32([1]), np.float32([[1]]), False),
        (np.zeros(0, np.float32), np.zeros(0, np.float32), True),
    ],
)
def test_agreement(script, ours, theirs, agree):
    assert (script.difference(ours, theirs, script.TOLERANCE["FLOAT"]) == "") is agree
