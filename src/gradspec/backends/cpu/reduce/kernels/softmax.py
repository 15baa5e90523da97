"""The softmax along an axis and its logarithm, around the largest cell of each row as in the specification:

    m = max x,   e = exp(x − m),   A = Σ e,   softmax = e/A,   log_softmax = (x − m) − log A.

A row is read piece by piece (``arguments``): for its maximum, for its sum, and for its results. If it is one piece, it
is read once. Where rows are nearer to each other in memory than their cells are, or short, a block of them is worked on
side by side; ``A`` is added up in the same tree.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gradspec.backends.cpu.layout.kernels.rows import write_row
from gradspec.backends.cpu.reduce.arguments import PIECE, SoftmaxArguments
from gradspec.backends.cpu.reduce.kernels import sums
from gradspec.codegen.formats import FORMATS
from gradspec.codegen.intrinsics import address_of, maximum
from gradspec.codegen.kernels.elementary import exp_of_negative, log_of_positive
from gradspec.codegen.language import choose, inlined, lanes, outlined, total
from gradspec.codegen.translation import kernel_code


def build(name: str) -> str:
    """The code of the kernel called ``"softmax:f32"``, and the same for other floats."""
    return kernel_code(kernel, SoftmaxArguments, FORMATS[name.removeprefix("softmax:")])


def kernel(form, args, lo, hi, workspace):
    """One unit is a block of rows."""
    room = SoftmaxRoom(
        form.computed_at(address_of(workspace) + args.cells_at),
        form.computed_at(address_of(workspace) + args.powers_at),
        form.computed_at(address_of(workspace) + args.largest_at),
        form.computed_at(address_of(workspace) + args.sums_at),
        form.computed_at(address_of(workspace) + args.lanes_at),
    )
    for unit in range(lo, hi):
        x_at, y_at, width = sums.block_of(args, unit // args.blocks, unit % args.blocks)
        if args.is_side_by_side:
            softmax(SideBySide(form, args, room, x_at, y_at, width))
        else:
            for c in range(width):
                x_start, y_start = x_at + c * args.columns.x_stride, y_at + c * args.columns.y_stride
                softmax(OneRow(form, args, room, x_start, y_start, 1))


def softmax(rows):
    """In three passes over the pieces, of which one alone stays where it is."""
    count, is_log = rows.args.pieces.count, rows.args.is_log
    for i in lanes(rows.form.computed, rows.width):
        rows.room.largest[i] = rows.form.computed(-math.inf)
    for j in range(count):
        rows.read(j)
        rows.find_largest(j)
    for j in range(count):
        if count > 1:
            rows.read(j)
        rows.raise_to_powers(j)
        rows.add_up(j)
    rows.join()
    if is_log:
        for i in lanes(rows.form.computed, rows.width):
            rows.room.lanes[i] = logarithm(rows.room.sums[i])
    for j in range(count):
        if count > 1:
            rows.read(j)
            if not is_log:
                rows.raise_to_powers(j)
        rows.write(j)


@inlined
def logarithm(a):
    return choose(a == a, log_of_positive(a), a)


class SoftmaxRoom(NamedTuple):
    """Cells and exponentials of a piece; for each row its largest cell, the sums of its pieces, and their lanes."""

    cells: Any
    powers: Any
    largest: Any
    sums: Any
    lanes: Any


class SoftmaxRows(NamedTuple):
    """Rows of which a piece at a time lies in the workspace, line by line.

    A line has the cells of a single row. Of rows side by side, it has one cell of each, and the next line the next.
    """

    form: Any
    args: Any
    room: Any
    x_at: Any
    y_at: Any
    width: Any

    @inlined
    def shape(self, j):
        """How many lines piece ``j`` has, and how many cells a line."""
        n = min(PIECE, self.args.pieces.terms - j * PIECE)
        return (n, self.width) if self.is_side_by_side else (1, n)

    @inlined
    def of_row(self, p, first, i):
        """The number of the row that cell ``i`` of a line belongs to; ``first`` is that of the first row."""
        return p[i] if self.is_side_by_side else first

    def read(self, j):
        form, args, (count, n) = self.form, self.args, self.shape(j)
        step = args.columns.x_stride if self.is_side_by_side else args.x_stride
        for k in range(count):
            at = self.x_at + (j * PIECE + k) * args.x_stride
            sums.copy(form, self.room.cells, k * n, form.stored_at(args.x), at, step, n)

    @outlined
    def raise_to_powers(self, j):
        cells, powers, m, (count, n) = self.room.cells, self.room.powers, self.room.largest, self.shape(j)
        first_m = m[0]
        for k in range(count):
            for i in lanes(self.form.computed, n):
                powers[k * n + i] = exp_of_negative(cells[k * n + i] - self.of_row(m, first_m, i))

    def write(self, j):
        (form, args), (cells, powers, m, a, shift), (count, n) = (self.form, self.args), self.room, self.shape(j)
        first_m, first_a, first_shift, y = m[0], a[0], shift[0], form.stored_at(args.y)
        step = args.columns.y_stride if self.is_side_by_side else args.y_stride
        for k in range(count):
            to, first = self.y_at + (j * PIECE + k) * args.y_stride, k * n
            if args.is_log:
                for i in lanes(form.computed, n):
                    centred = cells[first + i] - self.of_row(m, first_m, i)
                    powers[first + i] = centred - self.of_row(shift, first_shift, i)
                write_row(form, y, to, step, powers, first, n)
            else:
                for i in lanes(form.computed, n):
                    cells[first + i] = powers[first + i] / self.of_row(a, first_a, i)
                write_row(form, y, to, step, cells, first, n)


class OneRow(SoftmaxRows):
    is_side_by_side = False

    def find_largest(self, j):
        m, (_, n) = self.room.largest, self.shape(j)
        m[0] = maximum(m[0], total(maximum, self.form.computed(-math.inf), self.room.cells, 0, n))

    def add_up(self, j):
        _, n = self.shape(j)
        self.room.sums[j] = sums.sum_of_run(self.form.computed, self.room.powers, 0, n)

    def join(self):
        self.room.sums[0] = sums.sum_of_pieces(self.form.computed, self.room.sums, self.args.pieces.count)


class SideBySide(SoftmaxRows):
    is_side_by_side = True

    def find_largest(self, j):
        m, cells, (count, n) = self.room.largest, self.room.cells, self.shape(j)
        for k in range(count):
            for i in lanes(self.form.computed, n):
                m[i] = maximum(m[i], cells[k * n + i])

    def add_up(self, j):
        form, room, (count, n) = self.form.as_computed, self.room, self.shape(j)
        sums.sums_of_terms(sums.MatrixRows(form, room.powers, n), 1, n, 0, count, room.lanes)
        sums.copy(form, room.sums, j * n, room.lanes, 0, 1, n)

    def join(self):
        sums.sums_of_pieces(self.form, self.room.sums, self.args.pieces.count, self.width, self.room.lanes)
