"""Poolings that read the rows of a convolution while they are in the workspace: the words of their own kernels."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gradspec.backends.cpu import pool
from gradspec.backends.cpu.geometry import UNITS_WANTED, c_strides
from gradspec.backends.cpu.kernels import conv_fields as f
from gradspec.codegen.addresses import address, function_address
from gradspec.graph.ir import Array, Node, Var
from gradspec.graph.types import TensorType
from gradspec.runtime.task import Task, Work
from gradspec.spec.window import Regular

POOLINGS = ("max_pool", "avg_pool")


def is_pooling(node: Node) -> bool:
    return node.op.name in POOLINGS


def rank_of(node: Node) -> int:
    """How many axes a pooling has."""
    rank: int = node.attrs.window(node.inputs[0]).rank
    return rank


def rows_together(node: Node) -> int:
    """Of how many rows along its first axis a pooling reads blocks one by one, or multiples; 0: only all at once.

    Windows do not reach from one block into the next if they are no longer than their stride and nothing pads them.
    """
    (x,) = node.inputs
    axis = node.attrs.window(x).axes[0]
    if not isinstance(axis, Regular) or axis.lo or axis.dilation != 1 or axis.kernel > axis.stride:
        return 0
    return axis.stride if (axis.outputs - 1) * axis.stride + axis.kernel <= axis.size else 0


class Pooling:
    """A pooling of planes that are made a block of ``rows`` rows at a time.

    A block has the planes of ``channels`` channels, ``pitch`` bytes apart. What the pooling's kernel reads differs from
    block to block by two addresses, but for the last block, which may be shorter.
    """

    def __init__(self, node: Node, channels: int, rows: int, pitch: int) -> None:
        (self.operand,), (self.result,) = node.inputs, node.outputs
        self.node, self.rank, self.pitch = node, rank_of(node), pitch
        self.channels = max(channels, UNITS_WANTED)  # with so many planes, none of them is cut into bands
        size, outputs = self.operand.shape[-self.rank], self.result.shape[-self.rank]
        blocks = -(-size // rows)
        each = outputs if blocks == 1 else rows // rows_together(node)
        last = outputs - each * (blocks - 1)
        self.tasks: list[Task] = []
        self.records = [self._record(rows, each), self._record(size - rows * (blocks - 1), last)]
        plane = prod(self.result.shape[-self.rank :])
        self.words = {
            f.POOL: function_address(self.tasks[0].function),
            f.POOL_WORDS: address(self.records[0]),
            f.POOL_LAST: address(self.records[1]),
            f.POOLED_CHANNEL: plane,
            f.POOLED_BLOCK: each * (plane // outputs),
        }
        self.words_bytes = -(-8 * max(map(len, self.records)) // 64) * 64
        self.workspace = self.words_bytes + max(task.workspace for task in self.tasks)

    def _record(self, rows: int, outputs: int) -> Array:
        """How many words there are, how many units of work a plane is, and the words; none for rows without windows."""
        if not outputs:
            return np.zeros(f.POOL_RECORD, np.int64)
        inner = len(self.operand.shape) - self.rank + 1
        x = Var("block", TensorType(self.operand.dtype, (self.channels, rows, *self.operand.shape[inner:])), None)
        y = Var("pooled", self.node.attrs.pooled(x.type), None)
        assert y.shape[1] == outputs, "blocks have the windows of the whole"
        task = pool.LOWERINGS[self.node.op.name].task(Work((Node(self.node.op, self.node.attrs, (x,), (y,)),), (y,)))
        assert task is not None, "one value of every window"
        self.tasks.append(task)
        plane = prod(self.result.shape[-self.rank :])
        block, units, _ = task.bind(_laid_out(x, self.pitch), _laid_out(y, plane * y.dtype.numpy.itemsize))
        words = np.frombuffer(bytes(block), np.int64)
        return np.array([len(words), units // self.channels, *words], np.int64)


def _laid_out(v: Var, pitch: int) -> Array:
    """An array of these strides; nobody reads its cells."""
    size = v.dtype.numpy.itemsize
    strides = (pitch, *(size * step for step in c_strides(v.shape[1:])))
    return as_strided(np.empty(1, v.dtype.numpy), v.shape, strides, writeable=False)
