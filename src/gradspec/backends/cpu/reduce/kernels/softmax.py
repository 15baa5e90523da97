"""The softmax along an axis and its logarithm, around the largest cell of each row as in the specification:

    m = max x,   e = exp(x − m),   A = Σ e,   softmax = e/A,   log_softmax = (x − m) − log A.

A row is read piece by piece (``arguments``): for its maximum, for its sum, and for its results. If it is one piece, it
is read once. Where rows are nearer to each other in memory than their cells are, or short, a block of them is worked on
side by side; ``A`` is added up in the same tree.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from gradspec.backends.cpu.reduce.arguments import PIECE, SoftmaxArguments
from gradspec.backends.cpu.reduce.kernels.sums import (
    MatrixRows,
    block_of,
    copy,
    sum_of_pieces,
    sum_of_run,
    sums_of_pieces,
    sums_of_terms,
)
from gradspec.codegen.elementary import exp_of_negative, log_of_positive
from gradspec.codegen.formats import FORMATS
from gradspec.codegen.intrinsics import address_of, maximum
from gradspec.codegen.language import choose, inlined, lanes, outlined, total
from gradspec.codegen.translation import kernel_code

LOWEST = -math.inf


def build(name: str) -> str:
    """The code of the kernel called ``"softmax:f32"``, and the same for other floats."""
    return kernel_code(kernel, SoftmaxArguments, FORMATS[name.removeprefix("softmax:")])


def kernel(form, args, lo, hi, workspace):
    """One unit is a block of rows."""
    base, blocks, columns = address_of(workspace), args.outputs.blocks, args.outputs.columns
    room = Room(
        form.computed_at(base + args.cells_at),
        form.computed_at(base + args.powers_at),
        form.computed_at(base + args.largest_at),
        form.computed_at(base + args.sums_at),
        form.computed_at(base + args.lanes_at),
    )
    for unit in range(lo, hi):
        x_at, y_at, width = block_of(args.outputs, unit // blocks, unit % blocks)
        if args.is_side_by_side:
            softmax(SideBySide(form, args, room, x_at, y_at, width))
        else:
            for c in range(width):
                softmax(OneRow(form, args, room, x_at + c * columns.x_stride, y_at + c * columns.y_stride, 1))


def softmax(rows):
    """In three passes over the pieces, of which one alone stays where it is."""
    count, is_log = rows.args.pieces.count, rows.args.is_log
    rows.begin()
    for j in range(count):
        rows.read(j)
        rows.find_largest(j)
    for j in range(count):
        if count > 1:
            rows.read(j)
        rows.raise_to_powers(j)
        rows.add_up(j)
    rows.join()
    for j in range(count):
        if count > 1:
            rows.read(j)
            if not is_log:
                rows.raise_to_powers(j)
        rows.write(j)


class Room(NamedTuple):
    """A piece of rows, its exponentials, the largest cells of rows, the sums of their pieces, and their lanes."""

    cells: Any
    powers: Any
    largest: Any
    sums: Any
    lanes: Any


class RowFields(NamedTuple):
    form: Any
    args: Any
    room: Any
    x_at: Any
    y_at: Any
    width: Any


@inlined
def length(args, j):
    """The cells of a row that its piece ``j`` has."""
    return min(PIECE, args.pieces.terms - j * PIECE)


@inlined
def log_of_sum(a):
    return choose(a == a, log_of_positive(a), a)


@outlined
def put(form, args, at, step, results, first, n):
    y = form.stored_at(args.y)
    if step == 1:
        for i in lanes(form.computed, n):
            y[at + i] = form.narrow(results[first + i])
    else:
        for i in range(n):
            y[at + i * step] = form.narrow(results[first + i])


# --- one row ----------------------------------------------------------------------------------------------------------


class OneRow(RowFields):
    def begin(self):
        self.room.largest[0] = self.form.computed(LOWEST)

    def read(self, j):
        form, args = self.form, self.args
        at = self.x_at + j * PIECE * args.x_stride
        copy(form, self.room.cells, 0, form.stored_at(args.x), at, args.x_stride, length(args, j))

    def find_largest(self, j):
        lowest, largest = self.form.computed(LOWEST), self.room.largest
        largest[0] = maximum(largest[0], total(maximum, lowest, self.room.cells, 0, length(self.args, j)))

    @outlined
    def raise_to_powers(self, j):
        cells, powers, m = self.room.cells, self.room.powers, self.room.largest[0]
        for i in lanes(self.form.computed, length(self.args, j)):
            powers[i] = exp_of_negative(cells[i] - m)

    def add_up(self, j):
        self.room.sums[j] = sum_of_run(self.form.computed, self.room.powers, 0, length(self.args, j))

    def join(self):
        self.room.sums[0] = sum_of_pieces(self.form.computed, self.room.sums, self.args.pieces.count)

    def write(self, j):
        form, args, cells, powers = self.form, self.args, self.room.cells, self.room.powers
        m, a, n, to = self.room.largest[0], self.room.sums[0], length(args, j), self.y_at + j * PIECE * args.y_stride
        if args.is_log:
            shift = log_of_sum(a)
            for i in lanes(form.computed, n):
                powers[i] = cells[i] - m - shift
            put(form, args, to, args.y_stride, powers, 0, n)
        else:
            for i in lanes(form.computed, n):
                cells[i] = powers[i] / a
            put(form, args, to, args.y_stride, cells, 0, n)


# --- rows side by side: cell k of all of them, then the next ----------------------------------------------------------


class SideBySide(RowFields):
    def begin(self):
        for i in lanes(self.form.computed, self.width):
            self.room.largest[i] = self.form.computed(LOWEST)

    def read(self, j):
        form, args, width = self.form, self.args, self.width
        for k in range(length(args, j)):
            at = self.x_at + (j * PIECE + k) * args.x_stride
            copy(form, self.room.cells, k * width, form.stored_at(args.x), at, args.outputs.columns.x_stride, width)

    def find_largest(self, j):
        largest, cells = self.room.largest, self.room.cells
        for k in range(length(self.args, j)):
            for i in lanes(self.form.computed, self.width):
                largest[i] = maximum(largest[i], cells[k * self.width + i])

    @outlined
    def raise_to_powers(self, j):
        cells, powers, largest = self.room.cells, self.room.powers, self.room.largest
        for k in range(length(self.args, j)):
            for i in lanes(self.form.computed, self.width):
                powers[k * self.width + i] = exp_of_negative(cells[k * self.width + i] - largest[i])

    def add_up(self, j):
        form, width, room = self.form.as_computed, self.width, self.room
        sums_of_terms(MatrixRows(form, room.powers, width), 1, width, 0, length(self.args, j), room.lanes)
        copy(form, room.sums, j * width, room.lanes, 0, 1, width)

    def join(self):
        sums_of_pieces(self.form, self.room.sums, self.args.pieces.count, self.width, self.room.lanes)
        if self.args.is_log:
            for i in lanes(self.form.computed, self.width):
                self.room.lanes[i] = log_of_sum(self.room.sums[i])

    def write(self, j):
        form, args, width = self.form, self.args, self.width
        cells, powers, m, a, shift = self.room
        for k in range(length(args, j)):
            to, first = self.y_at + (j * PIECE + k) * args.y_stride, k * width
            if args.is_log:
                for i in lanes(form.computed, width):
                    powers[first + i] = cells[first + i] - m[i] - shift[i]
                put(form, args, to, args.outputs.columns.y_stride, powers, first, width)
            else:
                for i in lanes(form.computed, width):
                    cells[first + i] = powers[first + i] / a[i]
                put(form, args, to, args.outputs.columns.y_stride, cells, first, width)
