"""The VJP of max pooling with 3 × 3 windows at stride 1 or 2, straight from memory.

A chunk of rows of cells is reduced along the rows, then rows of windows are combined from the maxima of three rows
each. The comparisons that find a window's winner also tell which row its cotangent belongs to: it is added to that
row's accumulators, from which cells gather (see ``max_vjp_gather``).

Where every row of cells has a window for each stride, the rows of a chunk are one run: windows at the end of a row,
which would see beyond it, are reduced again, and no winner lies beyond its row. Chunks with a NaN are left to the
generic walk, so that one comparison decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradspec.backends.cpu.pool.arguments import Role
from gradspec.backends.cpu.pool.kernels.max_vjp_gather import accumulator_at, gather_in_place, read_cotangents
from gradspec.backends.cpu.pool.kernels.rows import Row, copied_row, last_axis, write_values
from gradspec.backends.cpu.pool.kernels.states import Best, FirstLarger, has_nan, lowest
from gradspec.backends.cpu.pool.kernels.walk import Destination, output_destination
from gradspec.backends.cpu.pool.kernels.winners_fixed import load_3, load_3_before, load_3_stride_2
from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.intrinsics import prefetch
from gradspec.codegen.language import at_build, beyond, choose, inlined, lanes, lanes_once, outlined
from gradspec.codegen.processor import processor

ALIGNED = 16
"""Windows of a vector; after these, windows at stride 2 are read as pairs of cells from even places on."""


class ChunkRow(NamedTuple):
    """Where the maxima of a row begin, and where its accumulators (winning taps and sums) do."""

    largest: Any
    sums: Any


@inlined
def chunk_row(args, row):
    chunk = args.gathering.chunk
    return ChunkRow(chunk.largest_at + row * chunk.pitch, chunk.accumulators_at + row * chunk.pitch)


# --- rows of cells ----------------------------------------------------------------------------------------------------


@inlined
def store_row(cells, to, i, best):
    cells.value[to.largest + i] = best.value
    cells.winner[to.sums + i] = best.winner


@inlined
def join_3_cells(state, taps, first_tap):
    """The state of three cells, whose taps are indexed as by ``FirstWinner.tap``."""
    a, b, c = taps
    is_second = state.exceeds(b, a)
    best = choose(is_second, b, a)
    is_third, tap = state.exceeds(c, best), choose(is_second, first_tap + state.form.lane(1), state.form.lane(0))
    return Best(choose(is_third, c, best), choose(is_third, first_tap + state.form.lane(2), tap))


def reduce_row_stride_1(state, cells, x, at, n, to, first_tap):
    """The next chunk, which is as long, is prefetched."""
    for i in lanes(state.number, n):
        prefetch(x, beyond(at + i, 1) + n)
        store_row(cells, to, i, join_3_cells(state, load_3(x, at + i), first_tap))


def reduce_row_stride_2(state, cells, x, at, n, to, first_tap):
    for i in lanes(state.number, n):
        store_row(cells, to, i, join_3_cells(state, load_3_stride_2(x, at + 2 * i), first_tap))


def reduce_row_of_pairs(state, cells, x, at, n, to, first_tap):
    """Pairs of cells begin with the second tap of a window."""
    for i in lanes(state.number, n):
        prefetch(x, beyond(at + 2 * i, 2) + 2 * n)
        store_row(cells, to, i, join_3_cells(state, load_3_before(x, at + 2 * i), first_tap))


@inlined
def reduce_row_edges(state, last, cells, x, at, width, first, end, to, pitch, count):
    """Reduce windows first … end−1 of ``count`` rows, which reach beyond the rows."""
    for i in range(first, end):
        before = last.low - last.stride * i
        tap, stop, here = max(0, before), min(3, last.size + before), at - before
        for row in range(count):
            best = state.first(x[here + row * width + tap], tap)
            for k in range(tap + 1, stop):
                best = state.join(best, state.first(x[here + row * width + k], k))
            store_row(cells, ChunkRow(to.largest + row * pitch, to.sums + row * pitch), i, best)


@outlined
def reduce_rows(state, args, cells, x, at, width, first, end):
    """Reduce rows first … end−1 of a chunk, whose row 0 begins, or would begin, at ``at``."""
    last, first_tap, chunk = last_axis(args), state.form.lane(args.first_tap), args.gathering.chunk
    for row in range(first, end, chunk.together):
        to, count = chunk_row(args, row), min(chunk.together, end - row)
        n, begin = (count - 1) * last.outputs + last.beyond - last.inside, at + row * width
        inside, start = ChunkRow(to.largest + last.inside, to.sums + last.inside), last.inside * last.stride - last.low
        if last.stride == 1:
            reduce_row_stride_1(state, cells, x, begin + start, n, inside, first_tap)
        elif last.low == 1 and n > ALIGNED:  # from the cell 2·ALIGNED on
            reduce_row_stride_2(state, cells, x, begin + start, ALIGNED, inside, first_tap)
            here, rest = ChunkRow(to.largest + ALIGNED, to.sums + ALIGNED), n + last.inside - ALIGNED
            reduce_row_of_pairs(state, cells, x, begin + 2 * ALIGNED, rest, here, first_tap)
        else:
            reduce_row_stride_2(state, cells, x, begin + start, n, inside, first_tap)
    to, begin, count = chunk_row(args, first), at + first * width, end - first
    reduce_row_edges(state, last, cells, x, begin, width, 0, last.inside, to, chunk.pitch, count)
    reduce_row_edges(state, last, cells, x, begin, width, last.beyond, last.outputs, to, chunk.pitch, count)


@outlined
def pad_rows(form, args, cells, first, end, value):
    """Fill rows of padding. Before the first real row ``value`` is NaN, since ``NaN >= cell`` is false even for −∞;
    after the last it is the lowest number, since ``cell >= lowest`` is always true."""
    for row in range(first, end):
        to = chunk_row(args, row)
        for i in lanes(form.computed, last_axis(args).outputs):
            cells.value[to.largest + i] = value
            cells.winner[to.sums + i] = form.lane(-1)


# --- rows of windows --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ThreeRows:
    """Windows of three rows ``a``, ``b`` and ``c``. At stride 2 only ``a`` has been added to before."""

    form: NumberFormat
    stride: int

    @outlined
    def scatter(self, cells, y, u, a, b, c, n):
        sums, zero = cells.value, self.form.computed(0)
        for i in lanes_once(self.form.computed, n):
            upper, middle, lower = sums[a.largest + i], sums[b.largest + i], sums[c.largest + i]
            is_upper, sent = upper >= middle, zero + u.p[u.at + i]
            best = choose(is_upper, upper, middle)
            is_above = best >= lower
            y.p[y.at + i] = choose(is_above, best, lower)
            rest = choose(is_above, sent, zero)
            sums[a.sums + i] = sums[a.sums + i] + choose(is_upper, rest, zero)
            to_middle = choose(is_upper, zero, rest)
            sums[b.sums + i] = to_middle if self.stride == 2 else sums[b.sums + i] + to_middle
            sums[c.sums + i] = choose(is_above, zero, sent)


@at_build
def aligned_lanes(form: NumberFormat) -> int:
    """What the pitch of rows must be a multiple of: most processors stall on reading a vector that lies across two that
    were written just before."""
    return 1 if processor().reads_across else processor().loop_lanes(form.computed.bytes)


@inlined
def scatter_rows(reduction, work, axis, o, rows):
    """Reduce output rows from ``o`` on, which begin with row 0 of the chunk, and scatter their cotangents."""
    args, unit, form, outputs = work.args, work.unit, reduction.form, last_axis(work.args).outputs
    is_run = args.gathering.chunk.is_run and axis.stride == 1 and outputs % aligned_lanes(form) == 0
    step = rows if is_run else 1
    for r in range(0, rows, step):
        unit.place[0] = o + r
        out, n = output_destination(reduction, work, Destination(work.cells, 0), o + r), step * outputs
        y, sent = Row(out.cells.value, out.at), read_cotangents(form, work, outputs)
        a, b = chunk_row(args, r * axis.stride), chunk_row(args, r * axis.stride + 1)
        c = chunk_row(args, r * axis.stride + 2)
        if axis.stride == 1:
            ThreeRows(form, 1).scatter(work.cells, y, sent, a, b, c, n)
        else:
            ThreeRows(form, 2).scatter(work.cells, y, sent, a, b, c, n)
        write_values(form, work, 0, outputs, out)


# --- chunks -----------------------------------------------------------------------------------------------------------


@inlined
def gather_rows(form, work, axis, cell, rows):
    """Gather the first rows of the chunk that begins at ``cell``, as far as they belong to this unit."""
    args, unit, last = work.args, work.unit, last_axis(work.args)
    together, first, end = args.gathering.chunk.together, max(0, unit.next_cell - cell), min(rows, unit.end_cell - cell)
    for row in range(first, end, together):
        to = unit.bases[Role.V] + (cell + row) * axis.strides[Role.V]
        n = min(together, end - row) * last.size
        gather_in_place(form, args, last, work.cells, to, chunk_row(args, row).sums, n, 1)
    unit.next_cell = max(unit.next_cell, cell + end)


@outlined
def copy_accumulators(form, cells, source, to, n):
    """Copy the accumulators of a row."""
    for i in lanes(form.computed, n):
        cells.value[to + i] = cells.value[source + i]
        cells.winner[to + i] = cells.winner[source + i]


@inlined
def clear_margins(form, args, cells, n):
    """Set the accumulators between rows to zero."""
    g = args.gathering
    for i in range(g.margin):
        cells.value[g.chunk.accumulators_at - 1 - i] = form.computed(0)
    for row in range(3 + (g.chunk.rows - 1) * last_axis(args).stride if g.chunk.pitch > n else 0):
        for i in range(n, g.chunk.pitch):
            cells.value[chunk_row(args, row).sums + i] = form.computed(0)


@outlined
def rows_have_nan(form, args, x, at, width, first, end):
    """Whether rows first … end−1 of a chunk, whose row 0 begins, or would begin, at ``at``, have a NaN."""
    together, size = args.gathering.chunk.together, last_axis(args).size
    for row in range(first, end, together):
        if has_nan(form, x, at + row * width, min(together, end - row) * size):
            return True
    return False


@outlined
def load_rows(state, work, axis, cell, first, end):
    """Reduce rows first … end−1 of the chunk that begins at ``cell``; False if one of them has a NaN."""
    args, form, cells, width = work.args, state.form, work.cells, axis.strides[Role.X]
    x, at = form.stored_at(args.arrays[Role.X]), work.unit.bases[Role.X] + cell * width
    begin, stop = min(max(first, -cell), end), max(min(end, axis.size - cell), first)
    if form.converts:
        for row in range(begin, stop):
            last, to = last_axis(args), args.gathering.sums_at
            copied_row(form, args, last, Role.X, at + row * width, 1, 0, last.size, cells.value, to)
            if has_nan(form, cells.value, to, last.size):
                return False
            reduce_rows(state, args, cells, cells.value, to - row * width, width, row, row + 1)
    else:
        if rows_have_nan(form, args, x, at, width, begin, stop):
            return False
        reduce_rows(state, args, cells, x, at, width, begin, stop)
    pad_rows(form, args, cells, first, begin, form.computed(math.nan))
    pad_rows(form, args, cells, stop, end, lowest(form))
    return True


@outlined
def scatter_chunks(reduction, work, first, end):
    """Reduce outputs first … end−1 of the first axis up to the first chunk with a NaN: where that chunk begins."""
    args, form, axis, state = work.args, reduction.form, work.args.axes[0], FirstLarger(reduction.form)
    stride, shared, cells, n = axis.stride, 3 - axis.stride, work.cells, last_axis(work.args).outputs
    if args.gathering.chunk.rows == 0:
        return first
    clear_margins(form, args, cells, n)
    for i in lanes(form.computed, shared * args.gathering.chunk.pitch):
        cells.value[chunk_row(args, 0).sums + i] = form.computed(0)
    o, loaded = first, 0
    while o < end:
        cell, count = o * stride - axis.low, min(args.gathering.chunk.rows, end - o)
        if not load_rows(state, work, axis, cell, loaded, shared + stride * count):
            break
        scatter_rows(reduction, work, axis, o, count)
        o += count
        if o == end:  # no row follows the last ones
            for i in range(args.gathering.margin):
                cells.value[chunk_row(args, shared + stride * count).sums + i] = form.computed(0)
        gather_rows(form, work, axis, cell, stride * count + (shared if o == end else 0))
        for row in range(shared):
            source, to = chunk_row(args, stride * count + row), chunk_row(args, row)
            copy_accumulators(form, cells, source.sums, to.sums, n)
            for i in lanes(form.computed, n):
                cells.value[to.largest + i] = cells.value[source.largest + i]
        loaded = shared
    for row in range(shared if o > first else 0):
        cell = o * stride - axis.low + row
        copy_accumulators(form, cells, chunk_row(args, row).sums, accumulator_at(args, max(cell, 0), 0, 1), n)
    return o
