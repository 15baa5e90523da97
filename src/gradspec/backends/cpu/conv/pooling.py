"""Poolings that read the rows of a convolution while they are in the workspace."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from gradspec.backends.cpu.conv.arguments import FusedPooling
from gradspec.backends.cpu.planning import dense
from gradspec.backends.cpu.pool.arguments import NO_ARRAYS
from gradspec.backends.cpu.pool.layout import UNITS_WANTED
from gradspec.backends.cpu.pool.plan import value_kernel, value_pooling
from gradspec.codegen.addresses import function_address
from gradspec.codegen.records import Block
from gradspec.graph.ir import Node
from gradspec.graph.types import TensorType
from gradspec.runtime.memory import aligned
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


class PooledBlocks:
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
        self.plane = prod(self.result.shape[-self.rank :])
        self.block = each * (self.plane // outputs)
        """Elements of the result between blocks."""
        last = outputs - each * (blocks - 1)
        usual, final = self._fused(rows, each), self._fused(size - rows * (blocks - 1), last)
        self.arguments = usual[0], final[0]
        self.arguments_bytes = aligned(max(fused.size for fused in self.arguments))
        self.workspace = self.arguments_bytes + max(usual[1], final[1])

    def _fused(self, rows: int, outputs: int) -> tuple[FusedPooling, int]:
        """The pooling of a block of so many rows, none for rows without windows, and its workspace."""
        if not outputs:
            return FusedPooling(0, 0, ()), 0
        inner = len(self.operand.shape) - self.rank + 1
        x = TensorType(self.operand.dtype, (self.channels, rows, *self.operand.shape[inner:]))
        y = self.node.attrs.pooled(x)
        assert y.shape[1] == outputs, "blocks have the windows of the whole"
        strides = (self.pitch // x.dtype.numpy.itemsize, *dense(x.shape[1:])), (self.plane, *dense(y.shape[1:]))
        arguments, units, workspace = value_pooling(self.node, x)(strides)
        unbound = (replace(arguments, arrays=NO_ARRAYS),)
        return FusedPooling(units // self.channels, Block(arguments).size, unbound), workspace

    @property
    def function(self) -> int:
        """The address of the pooling's kernel."""
        return function_address(value_kernel(self.node, self.operand.type))
