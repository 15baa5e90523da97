"""Packing: parts of matrices put down in the order in which tiles read them.

The lanes of a panel lie side by side, step by step: lane ``i`` of step ``k`` comes from
``source + i·lane_step + k·k_step``. Lanes beyond those that are there repeat the last one: tiles compute with them,
nobody reads the result, and arithmetic on numbers that were in the data already is never slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gradspec.backends.cpu.layout.kernels.layout import transposed
from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.intrinsics import load, store
from gradspec.codegen.language import inlined, outlined, unrolled
from gradspec.codegen.processor import Processor

STEPS_AT_ONCE = 4
"""Steps whose lanes are neighbours that are copied at once: few rows are read along, and whole lines are written."""
MOST_ROWS = 12
"""Rows that are turned at once, each with an address of its own."""


class Matrix(NamedTuple):
    """Where a part of a matrix lies, and the bytes from one lane and from one step to the next."""

    source: Any
    lane_step: Any
    k_step: Any


@dataclass(frozen=True)
class Panels:
    """Panels of numbers of a format. Those as wide as one of ``widths``, of which the first is the usual, are fast."""

    form: NumberFormat
    processor: Processor
    widths: tuple[int, ...]

    @property
    def side(self) -> int:
        """Of the squares that are turned in registers."""
        return min(self.processor.lanes(self.form.computed.bytes), self.processor.most_rows)

    @property
    def one(self) -> Turned:
        return Turned(self.form, self.side, 1)

    @property
    def many(self) -> Turned:
        """As many squares as divide the usual width."""
        rows = range(self.side, max(self.side, MOST_ROWS) + 1, self.side)
        return Turned(self.form, self.side, max(n for n in rows if self.widths[0] % n == 0) // self.side)

    @property
    def copied_widths(self) -> tuple[int, ...]:
        return tuple(n for n in self.widths if n % self.side == 0)

    @outlined
    def pack(self, matrix, lanes, whole, k, target, panel):
        """Panels of ``panel`` lanes, one by one; the last one has a multiple of ``whole`` lanes."""
        form, side, jump, first, to = self.form, self.side, panel * self.form.computed.bytes, 0, target
        if matrix.lane_step == form.stored.bytes:
            first = self.copy_panels(matrix, lanes, k, target, panel)
            to += first * k * form.computed.bytes
        while first < lanes:
            valid = min(panel, lanes - first)
            count = (valid + whole - 1) // whole * whole
            here = Matrix(matrix.source + first * matrix.lane_step, matrix.lane_step, matrix.k_step)
            if matrix.k_step == form.stored.bytes and k >= side and count >= side:
                self.turn(here, valid, count, k, to, jump)
            else:
                one_by_one(form, here, valid, count, k, to, jump)
            first += panel
            to += k * jump

    @inlined
    def turn(self, matrix, valid, count, k, target, jump):
        """Lanes whose steps are neighbours, square by square."""
        lane, size, step = 0, self.form.computed.bytes, matrix.lane_step
        while lane + self.many.rows <= valid:
            self.many.run(matrix.source + lane * step, step, self.many.rows - 1, k, target + lane * size, jump)
            lane += self.many.rows
        while lane < count:
            first, last = min(lane, valid - 1), max(0, min(self.side, valid - lane) - 1)
            self.one.run(matrix.source + first * step, step, last, k, target + lane * size, jump)
            lane += self.side

    @inlined
    def copy_panels(self, matrix, lanes, k, target, panel):
        """Whole panels of lanes that are neighbours; how many lanes they have."""
        for width in self.copied_widths:
            if panel == width:
                several = Copied(self.form, self.side, width, STEPS_AT_ONCE)
                single = Copied(self.form, self.side, width, 1)
                count, at, jump, step = lanes // width, 0, width * self.form.computed.bytes, matrix.k_step
                while at + STEPS_AT_ONCE <= k:
                    several.run(matrix.source + at * step, step, count, target + at * jump, k * jump)
                    at += STEPS_AT_ONCE
                while at < k:
                    single.run(matrix.source + at * step, step, count, target + at * jump, k * jump)
                    at += 1
                return count * width
        return 0


@outlined
def one_by_one(form, matrix, valid, count, k, target, jump):
    for at in range(k):
        x, y = matrix.source + at * matrix.k_step, form.computed_at(target + at * jump)
        for lane in range(count):
            y[lane] = form.widen(form.stored_at(x + min(lane, valid - 1) * matrix.lane_step)[0])


# --- squares in registers ---------------------------------------------------------------------------------------------


@inlined
def widened(form, vector, address):
    """A vector of stored numbers, as they are computed with."""
    return form.widen(load(vector)(address))


@dataclass(frozen=True)
class Turned:
    """Rows of numbers that become columns, several squares of them at a time."""

    form: NumberFormat
    side: int
    squares: int

    @property
    def rows(self) -> int:
        return self.side * self.squares

    @outlined
    def run(self, source, step, last, k, target, jump):
        """Lanes ``step`` bytes apart, of which number ``last`` stands for those behind it.

        The last steps are written twice where squares do not fit exactly; there are at least as many as a square has.
        """
        form, side, size = self.form, self.side, self.form.computed.bytes
        rows = tuple(source + min(i, last) * step for i in range(self.rows))
        for first in range(0, k, side):
            at = min(first, k - side)
            vector = form.stored.of(self.side)
            read = tuple(widened(form, vector, row + at * form.stored.bytes) for row in rows)
            squares = tuple(
                transposed(tuple(read[s * self.side + i] for i in range(self.side))) for s in range(self.squares)
            )
            for i in unrolled(self.side):
                for s in unrolled(self.squares):
                    store(squares[s][i], target + (at + i) * jump + s * self.side * size)


@dataclass(frozen=True)
class Copied:
    """Panels of ``width`` lanes that are neighbours, so many steps of them at a time."""

    form: NumberFormat
    side: int
    width: int
    steps: int

    @property
    def first_lanes(self) -> range:
        """Of each vector."""
        return range(0, self.width, self.side)

    @outlined
    def run(self, source, step, n, target, apart):
        """``n`` panels, which lie ``apart`` bytes from each other."""
        form, read, written = self.form, self.form.stored.bytes, self.form.computed.bytes
        for panel in range(n):
            reads, writes = source + panel * (self.width * read), target + panel * apart
            for i in unrolled(self.steps):
                for lane in self.first_lanes:
                    numbers = widened(form, form.stored.of(self.side), reads + i * step + lane * read)
                    store(numbers, writes + (i * self.width + lane) * written)
