"""Tasks of graphs of one node, on arrays of any layout and in guarded memory."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from gradspec.backends.cpu import LOWERINGS
from gradspec.codegen.records import address, block_address
from gradspec.graph.graph import Graph
from gradspec.runtime.task import Task, Work

GUARD, PATTERN = 4096, 0xA5


@cache
def lowered(graph: Graph) -> Task:
    """The task, which is then bound to arrays of different layouts."""
    (node,) = graph.nodes
    task = LOWERINGS[node.op.name].task(Work(graph.nodes, graph.outputs))
    assert task is not None
    assert task.workspace % 64 == 0
    return task


def carry_out(graph: Graph, arrays: Sequence[np.ndarray], result: np.ndarray, backwards: bool = False) -> None:
    """Fill ``result``, in one piece or unit by unit, the last one first; nothing around the workspace is written."""
    task, values = lowered(graph), dict(zip(graph.inputs, arrays, strict=True))
    if task.units == 0:
        assert result.size == 0
        return
    block, units, workspace = task.bind(*(values[v] for v in task.inputs), result)
    memory = np.full(GUARD + workspace + GUARD, PATTERN, np.uint8)
    at = GUARD // 2 + -(address(memory) + GUARD // 2) % 64
    chunks = [(i, i + 1) for i in reversed(range(units))] if backwards else [(0, units)]
    for lo, hi in chunks:
        task.function(block_address(block), lo, hi, address(memory) + at)
    assert (memory[:at] == PATTERN).all(), "something before the workspace is written"
    assert (memory[at + workspace :] == PATTERN).all(), "something behind the workspace is written"


def result_of(graph: Graph, arrays: Sequence[np.ndarray], backwards: bool = False) -> np.ndarray:
    """The result in a fresh array that was full of rubbish."""
    (v,) = graph.outputs
    result = np.full(v.type.size * v.dtype.numpy.itemsize, PATTERN, np.uint8).view(v.dtype.numpy).reshape(v.shape)
    carry_out(graph, arrays, result, backwards)
    return result
