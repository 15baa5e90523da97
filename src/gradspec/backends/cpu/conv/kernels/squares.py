"""Windows of three by three cells, one channel at a time: depthwise convolutions, where there is nothing to pack.

A register tile would read each cell once for every tap. Here several rows of outputs are summed up at once: a cell is
read once for each of the three columns of taps, and serves all the rows of outputs that it lies under.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gradspec.backends.cpu.conv.kernels.staging import stage_channels
from gradspec.backends.cpu.matmul.kernels.tiles import CACHE_LINE, Also, bytes_at, words_at
from gradspec.codegen.intrinsics import load, multiply_add, prefetch, spread, store
from gradspec.codegen.language import Type, at_build, choose, inlined, outlined, unrolled
from gradspec.codegen.processor import Processor

SIDE = 3
SUMS, MOST_VECTORS = 8, 4
"""Vectors of sums that run at once, which hides the time that an addition takes, and how many of a row."""


class Cells(NamedTuple):
    """The table of the addresses of rows, how many bytes behind these the first cells are, the bytes between the cells
    of a row that neighbouring taps meet, and the nine factors, row by row."""

    rows: Any
    at: Any
    step: Any
    factors: Any


class Outputs(NamedTuple):
    """Where outputs go, the bytes between their rows, and the number that is added to all."""

    y: Any
    pitch: Any
    bias: Any


@at_build
def rows_over(i: int, rows: int) -> range:
    """The rows of outputs that row ``i`` of cells lies under."""
    return range(max(0, i - SIDE + 1), min(rows, i + 1))


@dataclass(frozen=True)
class Square:
    """So many rows and vectors of outputs."""

    number: Type
    rows: int
    vectors: int
    processor: Processor

    @property
    def vector(self) -> Type:
        return self.number.of(self.processor.lanes(self.number.bytes))

    @property
    def columns(self) -> int:
        return self.vectors * self.processor.lanes(self.number.bytes)

    @outlined
    def run(self, cells, outputs, n):
        """Rows of ``n`` outputs, at least so many as there are columns. The last ones begin earlier where they would
        reach beyond the end: outputs may be written twice."""
        size = self.number.bytes
        factors = tuple(spread(self.vector)(load(self.number)(cells.factors + i * size)) for i in range(SIDE * SIDE))
        bias = spread(self.vector)(load(self.number)(outputs.bias))
        rows = tuple(words_at(cells.rows)[i] + cells.at for i in range(self.rows + SIDE - 1))
        for done in range(0, n, self.columns):
            at = min(done, n - self.columns) * size
            self.put(self.sums(rows, at, cells.step, factors), bias, outputs.y + at, outputs.pitch)

    @inlined
    def sums(self, rows, at, step, factors):
        register = self.processor.register_bytes
        sums = tuple(tuple(self.vector(0) for _ in range(self.vectors)) for _ in range(self.rows))
        for i in unrolled(self.rows + SIDE - 1):
            for t in unrolled(SIDE):
                row = rows[i] + at + step * t
                read = tuple(load(self.vector)(row + j * register) for j in range(self.vectors))
                sums = tuple(
                    tuple(
                        multiply_add(read[j], factors[(i - r) * SIDE + t], sums[r][j])
                        if r in rows_over(i, self.rows)
                        else sums[r][j]
                        for j in range(self.vectors)
                    )
                    for r in range(self.rows)
                )
        return sums

    @inlined
    def put(self, sums, bias, y, pitch):
        """Write outputs, and have the place of those below them fetched."""
        for r in unrolled(self.rows):
            prefetch(bytes_at(y + pitch * (r + self.rows)), 0)
            for j in unrolled(self.vectors):
                store(sums[r][j] + bias, y + pitch * r + j * self.processor.register_bytes)


@dataclass(frozen=True)
class Squares:
    """Rows of outputs of numbers of a type."""

    number: Type
    processor: Processor

    @property
    def lanes(self) -> int:
        return self.processor.lanes(self.number.bytes)

    @property
    def vector(self) -> Type:
        return self.number.of(self.lanes)

    def square(self, rows: int, vectors: int) -> Square:
        return Square(self.number, rows, vectors, self.processor)

    @property
    def bands(self) -> tuple[tuple[Square, Square], ...]:
        """Several rows at once, or one; wide squares, and narrow ones for what is left of a row."""
        heights = (self.processor.most_rows // 2, 1)
        return tuple((self.square(rows, min(SUMS // rows, MOST_VECTORS)), self.square(rows, 1)) for rows in heights)


# --- where windows are read: in place, but for those that reach beyond rows -------------------------------------------
#
# A table has the address of every row. Rows of padding are one row of zeros. For the outputs at either end of a row
# whose windows reach beyond it, a vector of them, the ends of rows are copied beside zeros, and have their own tables.
# Where cells are not neighbours, or not stored as they are computed with, everything is staged.

AHEAD = 8
"""Rows that are asked for before they are needed."""


@outlined
def lay_rows(conv, args, unit, case, source, workspace):
    """Find out which outputs of a row are read in place; if none are, stage everything."""
    last, lanes, table = len(case.axes) - 1, conv.squares.lanes, words_at(workspace + args.tables_at)
    axis, n = case.axes[last], case.row_columns
    halo = axis.staged_positions - n
    begin = min(max(0, -axis.first), n)
    end = min(max(axis.size - axis.first - halo, begin), n)
    are_near = max(begin, n - end) <= halo and halo <= lanes and end - begin >= lanes
    unit.laid = 0
    if conv.form.converts or source.strides[last] != 1 or not are_near:
        staged, pitch = workspace + args.staged_at, case.staged_row * conv.form.computed.bytes
        stage_channels(conv.form, args, unit, case, source, 0, 1, staged)
        for i in range(unit.count[args.run]):
            table[i] = staged + i * pitch
        begin, end, unit.laid = 0, n, unit.count[args.run]
    unit.begin, unit.end = begin, end


@inlined
def plane_of(conv, args, unit, case, source):
    """The address of the unit's plane, and whether it is not padding."""
    place, is_real = unit.group * source.group_stride, True
    for i in range(args.run):
        cell = unit.first[i] * case.axes[i].stride + case.axes[i].first
        place += cell * source.strides[i]
        is_real = is_real & (cell >= 0) & (cell < case.axes[i].size)
    return source.address + place * conv.form.computed.bytes, is_real


@outlined
def lay_until(conv, args, unit, case, source, until, workspace):
    """Fill the tables. A vector of outputs at the end of a row meets at most two of cells."""
    size, lanes, width = conv.form.computed.bytes, conv.squares.lanes, conv.processor.register_bytes
    rows, last, n = case.axes[args.run], case.axes[len(case.axes) - 1], case.row_columns
    table, step = workspace + args.tables_at, args.table_bytes
    middle, left, right = words_at(table), words_at(table + step), words_at(table + 2 * step)
    plane, is_real = plane_of(conv, args, unit, case, source)
    zeros, first = workspace + args.zeros_at, n - lanes + last.first  # the first cell that outputs at the right meet
    begin, end, pitch = unit.begin, unit.end, source.strides[args.run] * size
    for i in range(unit.laid, until):
        cell, at = unit.first[args.run] + rows.first + i, workspace + args.ends_at + 4 * width * i
        is_inside = is_real & (cell >= 0) & (cell < rows.size)
        row = plane + cell * pitch
        for line in range(0, n * size, CACHE_LINE):
            prefetch(bytes_at(row + AHEAD * pitch), line)
        middle[i] = choose(is_inside, row + last.first * size, zeros)
        left[i], right[i] = choose(is_inside, at, zeros), choose(is_inside, at + 2 * width, zeros)
        if is_inside and begin > 0:
            store(conv.squares.vector(0), at)
            copy_end(conv, row, at + begin * size, last.staged_positions - n + lanes - begin)
        if is_inside and end < n:
            store(conv.squares.vector(0), at + 3 * width)
            copy_end(conv, row + first * size, at + 2 * width, last.size - first)
    unit.laid = until


@inlined
def copy_end(conv, source, to, cells):
    """One to two vectors of cells."""
    rest = (cells - conv.squares.lanes) * conv.form.computed.bytes
    store(load(conv.squares.vector)(source), to)
    store(load(conv.squares.vector)(source + rest), to + rest)


@outlined
def multiply_squares(conv, args, unit, case, source, panel, sums, workspace):
    """Factors are the taps in the order of cells, and lie behind the bias."""
    form, size, n, done = conv.form, conv.form.computed.bytes, case.row_columns, 0
    cells_at, pitch, rows = form.computed_at, n * size, unit.columns // n
    factors = cells_at(sums.bias + size)
    if not sums.also & Also.ROW_BIAS:
        cells_at(sums.bias)[0] = form.computed(0)
    for i in range(SIDE * SIDE):
        factors[i] = cells_at(panel)[case.order[i]]
    for wide, narrow in conv.squares.bands:
        while done + wide.rows <= rows:
            until = done + wide.rows + SIDE - 1
            if unit.laid < until:
                lay_until(conv, args, unit, case, source, until, workspace)
            to = Outputs(sums.c + done * pitch, pitch, sums.bias)
            run_band(wide, narrow, args, unit, case, to, workspace + args.tables_at + 8 * done)
            done += wide.rows


@inlined
def run_band(wide, narrow, args, unit, case, outputs, table):
    """The outputs of some rows; those at the ends of rows may be written twice."""
    y, pitch, bias = outputs
    n, lanes, size, first = case.row_columns, narrow.columns, narrow.number.bytes, unit.begin
    step, factors, inside = case.cell_bytes, bias + size, unit.end - unit.begin
    if first > 0:
        narrow.run(Cells(table + args.table_bytes, 0, step, factors), outputs, lanes)
    here, there = Cells(table, first * size, step, factors), Outputs(y + first * size, pitch, bias)
    if inside >= wide.columns:
        wide.run(here, there, inside)
    else:
        narrow.run(here, there, inside)
    if unit.end < n:
        end = Outputs(y + (n - lanes) * size, pitch, bias)
        narrow.run(Cells(table + 2 * args.table_bytes, 0, step, factors), end, lanes)
