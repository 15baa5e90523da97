"""The weight gradient of convolutions on the tiles."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from gradspec.backends.cpu.binding import KernelCall, task_of
from gradspec.backends.cpu.conv.arguments import (
    GRADIENT_UNIT_BYTES,
    UNIT_BYTES,
    ConvArguments,
    ConvProduct,
    GradientArguments,
    GradientAxis,
    JoinArguments,
)
from gradspec.backends.cpu.conv.blocking import (
    MOST_WORKSPACE,
    SLACK_BYTES,
    BlockedConvolution,
    all_sums,
    leading,
    reading,
)
from gradspec.backends.cpu.conv.plan import NANOSECONDS_PER_PRODUCT, BlockArguments, elements
from gradspec.backends.cpu.conv.plan import SOURCE as CONVOLUTIONS
from gradspec.backends.cpu.planning import COMPUTED, Strides, are_far, computed_float, regular_axes
from gradspec.codegen.cache import kernel
from gradspec.codegen.processor import processor
from gradspec.codegen.records import Operand, Words, record_from
from gradspec.graph.ir import Node, Var
from gradspec.graph.types import TensorType
from gradspec.ops.conv import Convolution
from gradspec.runtime.memory import aligned
from gradspec.runtime.task import Lowering, Task, Work
from gradspec.runtime.threads import get_num_threads

SOURCE = "gradspec.backends.cpu.conv.kernels.gradient"
TERMS = 512
"""About so many positions make a block."""
SUMS_BYTES = 1 << 18
MOST_STAGED_BYTES = 3 << 20
ENOUGH_UNITS = 8
MUCH_WORK = 1 << 21
"""Products: as many are worth more units."""
PIECES_BYTES = 2 << 20
STRETCH = 4096
"""Numbers of pieces that a unit adds up."""


class BlockedGradient:
    """A weight gradient of given shapes, for arrays of any layout: blocks and parts."""

    def __init__(self, attrs: Convolution, x: TensorType, g: TensorType) -> None:
        self.rank, self.groups = attrs.rank, attrs.groups
        self.itemsize = COMPUTED[x.dtype.name]
        lead = leading(x.shape, self.rank)
        self.channels = x.shape[-1 - self.rank] // self.groups
        self.rows = g.shape[-1 - self.rank] // self.groups
        self.kernel = attrs.kernel
        self.lines = [*lead, *(line for a in regular_axes(attrs.window) for line in reading(a))]
        self.positions = [line.positions for line in self.lines]
        self.run = self._running()
        self.inner = prod(self.positions[self.run + 1 :])
        self.outer = prod(self.positions[: self.run])
        blocks = -(-self.positions[self.run] // max(1, TERMS // self.inner))
        self.block = -(-self.positions[self.run] // blocks)
        self.blocks = -(-self.positions[self.run] // self.block)
        last = self.lines[-1]
        self.joined = last.taps if last.step == 1 and self.rank > 0 else 1
        self.pieces = self._pieces()
        self.part_rows, self.part_channels = self._parts()
        self.parts = -(-self.rows // self.part_rows)
        self.channel_parts = -(-self.channels // self.part_channels)
        self.units = self.pieces * self.groups * self.parts * self.channel_parts
        # Bytes between the staged cells of each axis, and of all of them.
        pitch, found = self.part_channels * self.itemsize, []
        for axis in reversed(range(len(self.lines))):
            found.append(pitch)
            pitch *= self._cells(axis)
        self.pitches, self.cell_bytes = found[::-1], pitch
        self.table, self.sets, self.taps = self._position_table(), self._set_table(), prod(self.kernel)
        lanes = processor().lanes(self.itemsize)
        self.set_pitch = aligned((self.joined * self.part_channels + lanes) * self.itemsize)
        self.even: Words = np.arange(len(self.table), dtype=np.int64) * processor().strip_bytes
        self._lay_out()

    def _running(self) -> int:
        """The last axis but one where it has rows to share, and earlier ones where blocks would be small."""
        sizes = [prod(self.positions[axis + 1 :]) for axis in range(len(self.positions))]
        return next(axis for axis, size in enumerate(sizes) if size <= TERMS // 2)

    def _pieces(self) -> int:
        """Pieces of the sums, whose number the shapes alone decide: every array is then read by one unit only.

        Each piece is a gradient of its own until they are added up, so a large gradient is rather cut into parts.
        """
        gradient = self.rows * self.groups * self.channels * prod(self.kernel)
        work = gradient * prod(self.positions)
        most = min(ENOUGH_UNITS, PIECES_BYTES // (gradient * self.itemsize), self.outer * self.blocks // 2)
        return max(1, most) if work > MUCH_WORK and self.groups < ENOUGH_UNITS else 1

    def _parts(self) -> tuple[int, int]:
        """Parts whose sums stay in the second cache, and enough of them for several threads."""
        rows, channels = self.rows, self.channels
        work = rows * channels * prod(self.kernel) * prod(self.positions)

        def units() -> int:
            return self.pieces * self.groups * -(-self.rows // rows) * -(-self.channels // channels)

        while rows * channels * prod(self.kernel) * self.itemsize > SUMS_BYTES and max(rows, channels) > 8:
            rows, channels = (-(-rows // 2), channels) if rows >= channels else (rows, -(-channels // 2))
        enough = max(ENOUGH_UNITS, 2 * get_num_threads())
        while units() < enough and work > MUCH_WORK and max(rows, channels) >= 32:
            rows, channels = (-(-rows // 2), channels) if rows >= channels else (rows, -(-channels // 2))
        most = processor().most_rows
        return min(self.rows, -(-rows // most) * most), channels

    def _cells(self, axis: int) -> int:
        line = self.lines[axis]
        if axis < self.run:
            return line.taps
        positions = self.block if axis == self.run else line.positions
        return (positions - 1) * line.stride + (line.taps - 1) * line.step + 1

    def _position_table(self) -> Words:
        counts = self.block, *self.positions[self.run + 1 :]
        along = zip(counts, self.lines[self.run :], self.pitches[self.run :], strict=True)
        return all_sums(np.arange(count) * (line.stride * pitch) for count, line, pitch in along)

    def _set_table(self) -> Words:
        steps = [1 if axis < self.run else line.step for axis, line in enumerate(self.lines)]
        along = list(zip(self.lines, self.pitches, steps, strict=True))[: -1 if self.joined > 1 else None]
        return all_sums(np.arange(line.taps) * (pitch * step) for line, pitch, step in along)

    def _lay_out(self) -> None:
        self.pitch = self.set_pitch * len(self.sets)
        self.sums_at = GRADIENT_UNIT_BYTES
        self.panels_at = self.sums_at + aligned(self.part_rows * self.pitch + SLACK_BYTES)
        terms = len(self.table)
        self.strip_at = self.panels_at + aligned(self.part_rows * terms * self.itemsize + SLACK_BYTES)
        self.staged_at = self.strip_at + aligned(terms * processor().strip_bytes)
        self.workspace = self.staged_at + aligned(self.cell_bytes + SLACK_BYTES)

    # --- arguments ----------------------------------------------------------------------------------------------------

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[GradientArguments]:
        (x_lead, x_channel, x_cells), (g_lead, g_channel, g_cells) = (elements(s, self.rank) for s in strides[:2])
        axes = zip((*x_lead, *x_cells), (*g_lead, *g_cells), strict=True)
        arguments = record_from(
            GradientArguments,
            self,
            x=Operand(0),
            g=Operand(1),
            w=Operand(2),
            set_count=len(self.sets),
            set_taps=self.joined,
            sums_pitch=self.pitch,
            staged_cells=(self.workspace - self.staged_at) // self.itemsize,
            x_group=x_channel * self.channels,
            x_channel=x_channel,
            g_group=g_channel * self.rows,
            g_channel=g_channel,
            w_group=self.rows * self.channels * self.taps,
            w_row=self.channels * self.taps,
            w_channel=self.taps,
            w_size=self.rows * self.groups * self.channels * self.taps,
            axes=tuple(self._axis(i, x_stride, g_stride) for i, (x_stride, g_stride) in enumerate(axes)),
        )
        return KernelCall(arguments, self.units, self.workspace)

    def _axis(self, number: int, x_stride: int, g_stride: int) -> GradientAxis:
        line = self.lines[number]
        return record_from(
            GradientAxis,
            line,
            tap_step=line.step,
            cells=self._cells(number),
            cell_pitch=self.pitches[number],
            x_stride=x_stride,
            g_stride=g_stride,
            behind=prod(self.positions[number + 1 :]),
        )


class DepthwiseGradient:
    """The same where every group has one row and one channel."""

    def __init__(self, node: Node) -> None:
        x, g = node.inputs
        self.form = form = BlockedConvolution(False, node.attrs, x.type, g.type, by_rows=True)
        self.blocks = BlockArguments(form, by_rows=True)
        self.sums_at = UNIT_BYTES
        self.row_at = self.sums_at + aligned(form.most_taps * processor().register_bytes)
        self.staged_at = self.row_at + form.pitch
        self.workspace = aligned(self.staged_at + form.staged_bytes)

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[ConvArguments]:
        result = ConvProduct(0, None, None, 0, Operand(2), -1, -1)
        arguments = ConvArguments(
            **self.blocks.fields,
            sources=(self.blocks.source(0, strides[0], 1), self.blocks.source(1, strides[1], 1)),
            products=(result,),
            staged_at=self.staged_at,
            sums_at=self.sums_at,
            rows_at=self.row_at,
        )
        return KernelCall(arguments, self.form.groups, self.workspace)


class GradientLowering(Lowering):
    """One weight gradient."""

    def task(self, work: Work) -> Task | None:
        ((node,), (x, g), (w,)) = work.nodes, work.nodes[0].inputs, work.nodes[0].outputs
        if x.type.size == 0 or g.type.size == 0 or are_far(node.attrs.window):
            return None
        if w.shape[:2] == (node.attrs.groups, 1) and node.attrs.rank > 0:
            return _depthwise_task(node)
        form = BlockedGradient(node.attrs, x.type, g.type)
        if form.cell_bytes > MOST_STAGED_BYTES or form.workspace > MOST_WORKSPACE:
            return None
        return (_joined if form.pieces > 1 else _summed)(form, x, g, w)


def _summed(form: BlockedGradient, x: Var, g: Var, w: Var) -> Task:
    """The gradient, or its pieces."""
    function = kernel(SOURCE, f"gradient:{x.dtype}")
    cost = w.type.size / form.pieces * prod(form.positions) * NANOSECONDS_PER_PRODUCT
    return task_of(f"weight gradient {x.dtype}", function, (x, g), (w,), form, cost, 1000, (form.units, form.workspace))


def _joined(form: BlockedGradient, x: Var, g: Var, w: Var) -> Task:
    """The sum of the pieces."""
    pieces = Var(f"{w.name}.pieces", TensorType(computed_float(w.dtype), (form.pieces, *w.shape)), None)
    size = w.type.size
    arguments = JoinArguments(Operand(0), Operand(1), form.pieces, size, STRETCH)
    call = KernelCall(arguments, -(-size // STRETCH), STRETCH * form.itemsize)
    function, before = kernel(SOURCE, f"join:{w.dtype}"), (_summed(form, x, g, pieces),)
    cost = 0.3 * size * form.pieces
    return task_of(f"sum of pieces {w.dtype}", function, [pieces], [w], lambda strides: call, cost, before=before)


def _depthwise_task(node: Node) -> Task | None:
    x, g = node.inputs
    gradient = DepthwiseGradient(node)
    if gradient.form.staged_bytes > MOST_STAGED_BYTES or gradient.workspace > MOST_WORKSPACE:
        return None
    function = kernel(CONVOLUTIONS, f"dots:{x.dtype}")
    cost = g.type.size * gradient.form.most_taps * NANOSECONDS_PER_PRODUCT * 5
    return task_of(f"depthwise weight gradient {x.dtype}", function, (x, g), node.outputs, gradient, cost, 1000)


LOWERINGS: dict[str, Lowering] = {"conv_weight_grad": GradientLowering()}
