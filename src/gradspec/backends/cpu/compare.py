"""The weight gradient of convolutions on the tiles."""

from __future__ import annotations

import struct
from math import prod
from typing import Any

import numpy as np

from gradspec.backends.cpu.conv import MOST_WORKSPACE, Form, Words
from gradspec.backends.cpu.conv import SOURCE as CONVOLUTIONS
from gradspec.backends.cpu.kernels import compare_fields as f
from gradspec.backends.cpu.kernels import conv_fields
from gradspec.backends.cpu.kernels.registers import machine
from gradspec.backends.cpu.patches import elements, leading, reading, regular_axes
from gradspec.backends.cpu.dtypes import COMPUTED
from gradspec.codegen.addresses import address
from gradspec.codegen.cache import kernel
from gradspec.graph.ir import Array, Node, Var
from gradspec.graph.types import TensorType, f32, f64
from gradspec.ops.conv import Convolution
from gradspec.runtime.memory import aligned
from gradspec.runtime.task import Lowering, LoweringBase, Task, Work
from gradspec.runtime.threads import get_num_threads

SOURCE = "gradspec.backends.cpu.kernels.compare"
TERMS, STRIP_BYTES = 512, 36 << 10
"""About so many positions make a block, and fewer where vectors are long."""
SUMS_BYTES = 1 << 18
MOST_STAGED_BYTES = 3 << 20
ENOUGH_UNITS = 8
MUCH_WORK = 1 << 21
"""Products: as many are worth more units."""
PIECES_BYTES = 2 << 20
STRETCH = 4096
FRAME_BYTES, SLACK_BYTES = 512, 1024
NANOSECONDS_PER_PRODUCT = 0.06


class Comparison:
    """A weight gradient of given shapes: blocks, parts, and the words for arrays of any layout."""

    def __init__(self, attrs: Convolution, x: TensorType, g: TensorType) -> None:
        self.rank, self.groups = attrs.rank, attrs.groups
        self.itemsize = COMPUTED[x.dtype.name]
        lead = leading(x.shape, self.rank)
        self.channels = x.shape[-1 - self.rank] // self.groups
        self.rows = g.shape[-1 - self.rank] // self.groups
        self.kernel = attrs.kernel
        self.lines = [
            *lead,
            *(line for a in regular_axes(attrs.window) for line in reading(a)),
        ]
        self.positions = [line.positions for line in self.lines]
        self.terms = min(TERMS, STRIP_BYTES // (machine().strip_vectors * machine().bytes))
        self.run = self._running()
        self.inner = prod(self.positions[self.run + 1 :])
        self.outer = prod(self.positions[: self.run])
        blocks = -(-self.positions[self.run] // max(1, self.terms // self.inner))
        self.block = -(-self.positions[self.run] // blocks)
        self.blocks = -(-self.positions[self.run] // self.block)
        last = self.lines[-1]
        self.joined = last.taps if last.step == 1 and self.rank > 0 else 1
        self.pieces = self._pieces()
        self.part_rows, self.part_channels = self._parts()
        self.parts = -(-self.rows // self.part_rows)
        self.channel_parts = -(-self.channels // self.part_channels)
        self.units = self.pieces * self.groups * self.parts * self.channel_parts
        self.pitches, self.cell_bytes = self._cell_pitches()
        self.table, self.sets, self.taps = self._position_table(), self._set_table(), prod(self.kernel)
        lanes = machine().lanes(self.itemsize)
        self.set_pitch = aligned((self.joined * self.part_channels + lanes) * self.itemsize)
        self.even = np.arange(len(self.table), dtype=np.int64) * (machine().strip_vectors * machine().bytes)
        self.known: dict[Any, tuple[Array, Array]] = {}
        self._lay_out()

    def _running(self) -> int:
        """The last axis but one where it has rows to share, and earlier ones where blocks would be small."""
        sizes = [prod(self.positions[axis + 1 :]) for axis in range(len(self.positions))]
        return next(axis for axis, size in enumerate(sizes) if size <= self.terms // 2)

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
        most = machine().most_rows
        return min(self.rows, -(-rows // most) * most), channels

    def _cell_pitches(self) -> tuple[list[int], int]:
        """Bytes between the staged cells of each axis, and of all of them."""
        pitch, found = self.part_channels * self.itemsize, []
        for axis in reversed(range(len(self.lines))):
            found.append(pitch)
            pitch *= self._cells(axis)
        return found[::-1], pitch

    def _cells(self, axis: int) -> int:
        line = self.lines[axis]
        if axis < self.run:
            return line.taps
        positions = self.block if axis == self.run else line.positions
        return (positions - 1) * line.stride + (line.taps - 1) * line.step + 1

    def _position_table(self) -> Array:
        offsets = np.zeros(1, np.int64)
        for axis in range(self.run, len(self.lines)):
            count = self.block if axis == self.run else self.positions[axis]
            here = np.arange(count) * (self.lines[axis].stride * self.pitches[axis])
            offsets = (offsets[:, None] + here).reshape(len(offsets) * count)
        return np.ascontiguousarray(offsets)

    def _set_table(self) -> Array:
        offsets = np.zeros(1, np.int64)
        for axis, line in enumerate(self.lines):
            if axis == len(self.lines) - 1 and self.joined > 1:
                continue
            step = self.pitches[axis] * (1 if axis < self.run else line.step)
            offsets = (offsets[:, None] + np.arange(line.taps) * step).reshape(len(offsets) * line.taps)
        return np.ascontiguousarray(offsets)

    def _lay_out(self) -> None:
        self.pitch = self.set_pitch * len(self.sets)
        self.sums = FRAME_BYTES
        self.panels = self.sums + aligned(self.part_rows * self.pitch + SLACK_BYTES)
        terms = len(self.table)
        self.strip = self.panels + aligned(self.part_rows * terms * self.itemsize + SLACK_BYTES)
        self.staged = self.strip + aligned(terms * machine().strip_vectors * machine().bytes)
        self.workspace = self.staged + aligned(self.cell_bytes + SLACK_BYTES)

    # --- words --------------------------------------------------------------------------------------------------------

    def __call__(self, x: Array, g: Array, w: Array) -> bytes:
        key = (x.strides, g.strides)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._words(x, g)
        words = found[0].copy()
        words[f.X], words[f.G], words[f.W] = address(x), address(g), address(w)
        return words.tobytes()

    def _words(self, x: Array, g: Array) -> tuple[Array, Array]:
        words = [0] * f.AXIS
        words[f.AXES], words[f.RUN], words[f.GROUPS] = len(self.lines), self.run, self.groups
        words[f.ROWS], words[f.CHANNELS] = self.rows, self.channels
        words[f.PARTS], words[f.PART_ROWS] = self.parts, self.part_rows
        words[f.CHANNEL_PARTS], words[f.PART_CHANNELS] = self.channel_parts, self.part_channels
        words[f.OUTER], words[f.BLOCKS], words[f.BLOCK], words[f.INNER] = (
            self.outer,
            self.blocks,
            self.block,
            self.inner,
        )
        words[f.TABLE], words[f.SET_TABLE], words[f.EVEN] = address(self.table), address(self.sets), address(self.even)
        words[f.SETS], words[f.SET_TAPS], words[f.SET_PITCH] = len(self.sets), self.joined, self.set_pitch
        words[f.PANELS], words[f.SUMS], words[f.PITCH] = self.panels, self.sums, self.pitch
        words[f.STAGED], words[f.STRIP] = self.staged, self.strip
        (x_lead, x_channel, x_cells), (g_lead, g_channel, g_cells) = (elements(a, self.rank) for a in (x, g))
        words[f.X_CHANNEL], words[f.X_GROUP] = x_channel, x_channel * self.channels
        words[f.G_CHANNEL], words[f.G_GROUP] = g_channel, g_channel * self.rows
        words[f.W_CHANNEL], words[f.W_ROW] = self.taps, self.channels * self.taps
        words[f.W_GROUP] = self.rows * self.channels * self.taps
        words[f.STAGED_CELLS] = (self.workspace - self.staged) // self.itemsize
        words[f.PIECES], words[f.W_SIZE] = self.pieces, self.rows * self.groups * self.channels * self.taps
        taps = np.arange(self.taps, dtype=np.int64)
        words[f.TAP_TABLE] = address(taps)
        for axis, line in enumerate(self.lines):
            here = [0] * f.AXIS_WORDS
            here[f.TAPS], here[f.TAP_STEP], here[f.STRIDE], here[f.FIRST] = (
                line.taps,
                line.step,
                line.stride,
                line.first,
            )
            here[f.SIZE], here[f.POSITIONS], here[f.CELLS] = line.size, line.positions, self._cells(axis)
            here[f.CELL_PITCH], here[f.BEHIND] = self.pitches[axis], prod(self.positions[axis + 1 :])
            here[f.X_STRIDE], here[f.G_STRIDE] = (*x_lead, *x_cells)[axis], (*g_lead, *g_cells)[axis]
            words += here
        return np.array(words, np.int64), taps


class DepthwiseGradient:
    """The same where every group has one row and one channel."""

    def __init__(self, node: Node) -> None:
        x, g = node.inputs
        self.form = form = Form(False, node.attrs, x.type, g.type, by_rows=True)
        self.words = Words(form, by_rows=True)
        self.sums = FRAME_BYTES
        self.row = self.sums + aligned(form.most_taps * machine().bytes)
        self.staged = self.row + form.pitch
        self.workspace = self.staged + form.staged_bytes
        self.known: dict[Any, Array] = {}

    def __call__(self, x: Array, g: Array, w: Array) -> bytes:
        form = self.form
        known = self.known.get((x.strides, g.strides))
        if known is None:
            known = self.known[x.strides, g.strides] = self._words(x, g)
        words = known.copy()
        sources, length = conv_fields.HEADER + len(self.words.cases()), conv_fields.STRIDES + form.axes
        for at, a in ((sources, x), (sources + length, g)):
            words[at + conv_fields.ADDRESS] = address(a)
        words[sources + 2 * length + conv_fields.RESULT] = address(w)
        return words.tobytes()

    def _words(self, x: Array, g: Array) -> Array:
        words = self.words.head(2)
        words[conv_fields.STAGED], words[conv_fields.STRIP] = self.staged, self.sums
        words[conv_fields.ROW_SPACE] = self.row
        words += self.words.cases() + self.words.source(x, 1) + self.words.source(g, 1)
        return np.array(words + [0] * conv_fields.PRODUCT_WORDS, np.int64)


class CompareLowering(LoweringBase):
    """One weight gradient."""

    def task(self, work: Work) -> Task | None:
        (node,) = work.nodes
        return _task(node)


def _task(node: Node) -> Task | None:
    x, g = node.inputs
    (w,) = node.outputs
    if x.type.size == 0 or g.type.size == 0:
        return None
    if w.shape[:2] == (node.attrs.groups, 1) and node.attrs.rank > 0:
        return _depthwise_task(node)
    form = Comparison(node.attrs, x.type, g.type)
    if form.cell_bytes > MOST_STAGED_BYTES or form.workspace > MOST_WORKSPACE:
        return None
    if form.pieces > 1:
        return _joined(form, x, g, w)
    return _summed(form, x, g, w)


def _summed(form: Comparison, x: Var, g: Var, w: Var) -> Task:
    """The gradient, or its pieces."""
    return Task(
        kernel=f"weight gradient {x.dtype}",
        inputs=(x, g),
        outputs=(w,),
        function=kernel(SOURCE, f"compare:{x.dtype}"),
        units=form.units,
        cost=w.type.size / form.pieces * prod(form.positions) * NANOSECONDS_PER_PRODUCT + 1000 * form.units,
        workspace=form.workspace,
        bind=form,
    )


def _joined(form: Comparison, x: Var, g: Var, w: Var) -> Task:
    """The sum of the pieces."""
    computed = {4: f32, 8: f64}[form.itemsize]
    pieces = Var(f"{w.name}.pieces", TensorType(computed, (form.pieces, *w.shape)), None)
    size = w.type.size

    def bind(partial: Array, result: Array) -> bytes:
        words = [0] * 5
        words[f.PARTIAL], words[f.RESULT] = address(partial), address(result)
        words[f.COUNT], words[f.LENGTH], words[f.STRETCH] = form.pieces, size, STRETCH
        return struct.pack("=5q", *words)

    return Task(
        kernel=f"sum of pieces {w.dtype}",
        inputs=(pieces,),
        outputs=(w,),
        function=kernel(SOURCE, f"join:{w.dtype}"),
        units=-(-size // STRETCH),
        cost=0.3 * size * form.pieces,
        workspace=STRETCH * form.itemsize,
        bind=bind,
        before=(_summed(form, x, g, pieces),),
    )


def _depthwise_task(node: Node) -> Task | None:
    x, g = node.inputs
    gradient = DepthwiseGradient(node)
    if gradient.form.staged_bytes > MOST_STAGED_BYTES or gradient.workspace > MOST_WORKSPACE:
        return None
    return Task(
        kernel=f"depthwise weight gradient {x.dtype}",
        inputs=(x, g),
        outputs=node.outputs,
        function=kernel(CONVOLUTIONS, f"dots:{x.dtype}"),
        units=node.attrs.groups,
        cost=g.type.size * gradient.form.most_taps * NANOSECONDS_PER_PRODUCT * 5 + 1000 * node.attrs.groups,
        workspace=aligned(gradient.workspace),
        bind=gradient,
    )


LOWERINGS: dict[str, Lowering] = {"conv_compare": CompareLowering()}
