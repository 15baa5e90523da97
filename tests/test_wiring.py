"""Packages do without later ones what they can, and say what to load for the rest."""

import subprocess
import sys

BUILT = """
from gradspec.graph.builder import Builder
from gradspec.graph.types import f32
from gradspec.ops.pointwise import relu
builder = Builder()
x = builder.input(f32[2], "x")
"""


def printed(script: str) -> list[str]:
    """The lines that a process prints which has loaded nothing else."""
    command = [sys.executable, "-c", BUILT + script]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_graph_is_built_and_shown_without_later_packages():
    text = printed("print(builder.build(relu(x)))")
    assert text == ["graph(x: f32[2]):", "  relu : f32[2] = relu(x)", "  return relu"]


def test_the_rest_says_what_to_load_and_works_then():
    script = """
try:
    x + x
except RuntimeError as error:
    print(error)
import gradspec.wiring, numpy
print(builder.build(x + x)(numpy.float32([1, 2])).tolist())
"""
    error, result = printed(script)
    assert "import gradspec.wiring" in error
    assert result == "[2.0, 4.0]"
