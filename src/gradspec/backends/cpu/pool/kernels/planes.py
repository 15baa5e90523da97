"""Reduce the last two axes at once, straight from memory, for states of one number.

Which of equal cells comes first does not matter to a value, so rows can be joined before the cells along them.
"""

from __future__ import annotations

from gradspec.backends.cpu.pool.arguments import AxisKind, Finish, Role
from gradspec.backends.cpu.pool.kernels.reduce_row import reduce_sliding, reduce_transposed_bins
from gradspec.backends.cpu.pool.kernels.rows import (
    AHEAD,
    Row,
    copied_row,
    dense_stride,
    fetch_row,
    last_axis,
    real_taps,
    span_of,
)
from gradspec.backends.cpu.pool.kernels.states import StoredCells, ValueCells
from gradspec.backends.cpu.pool.kernels.walk import Destination, Part, fold, fold2, join, join3
from gradspec.codegen.intrinsics import address_of, prefetch
from gradspec.codegen.language import at_build, beyond, f16, f32, inlined, lanes, moved_on, outlined, parts, stretch

# --- where cells are --------------------------------------------------------------------------------------------------


@inlined
def input_pointer(reduction, work):
    """What places of cells count from: X, or the workspace where numbers must be converted."""
    if reduction.form.converts:
        return work.cells.value
    return reduction.form.stored_at(work.args.arrays[Role.X])


@inlined
def place_in_workspace(reduction, work, at):
    """A place in the workspace, counted from ``input_pointer``."""
    if reduction.form.converts:
        return at
    distance = address_of(work.cells.value) - work.args.arrays[Role.X]
    return distance // reduction.form.computed.bytes + at


@inlined
def row_stride(reduction, args, axis, neighbours):
    """From one row to the next, staged or in X."""
    is_staged = reduction.form.converts or args.is_staged
    return last_axis(args).size * neighbours if is_staged else axis.strides[Role.X]


@outlined
def stage_plane(reduction, work, axis, source, first, end):
    """Convert the cells that outputs first … end−1 read: where cell 0 is, or would be."""
    args, last = work.args, last_axis(work.args)
    if args.is_transposed:
        return place_in_workspace(reduction, work, args.staged_at + source.x)
    begin, stop = cell_range(axis, first, end)
    for row in range(begin, stop):
        count, to = source.count, args.staged_at + (row - begin) * last.size
        if args.scales_input and address_of(axis.counted) != 0:
            count *= axis.counted[row]
        at = source.x + row * axis.strides[Role.X]
        copied_row(reduction.form, args, last, Role.X, at, count, 0, last.size, work.cells.value, to)
    return place_in_workspace(reduction, work, args.staged_at - begin * last.size)


# --- one output row ---------------------------------------------------------------------------------------------------


def cell_range(axis, first, end):
    """The first real cell that outputs first … end−1 read, and the end."""
    if axis.kind == AxisKind.BINS:
        last = real_taps(axis, end - 1)
        return real_taps(axis, first).start, last.start + last.end
    span = span_of(axis, first, end)
    return span.inside, span.outside


def reduce_joined_row(state, args, axis, row, cells, target, first, end):
    """Reduce outputs first … end−1 along a row of cells."""
    if axis.kind == AxisKind.BINS:
        for o in range(first, end):
            start, n = row.at + axis.spans[2 * o], axis.spans[2 * o + 1]
            joined = state.join(state.identity, row.p[start])
            for i in range(1, n):
                joined = state.join(joined, row.p[start + i])
            state.put(target.cells, target.at + o - first, joined)
    else:
        reduce_sliding(state, args, axis, row, cells, target, first, end)


def reduce_plane_row(reduction, work, axis, x_at, row_first, row_end, target):
    """Reduce one output row: join rows of cells where they lie, then reduce along them."""
    args, state, last, x = work.args, reduction.state, last_axis(work.args), ValueCells(input_pointer(reduction, work))
    neighbours, joined = work.unit.neighbours, Destination(work.cells, args.tile_at + 2 * args.tile_room)
    step = row_stride(reduction, args, axis, neighbours)
    if not (reduction.form.converts or args.is_staged):
        for i in range(axis.stride):
            fetch_row(reduction.form, args, Role.X, x_at + (row_end + i) * step, last.size)
    for first in range(0, last.outputs, args.tile):
        end, out = min(first + args.tile, last.outputs), Destination(target.cells, target.at + first * neighbours)
        inside, outside = cell_range(last, first, end)
        inside, n, rows = inside * neighbours, (outside - inside) * neighbours, row_end - row_first
        at = x_at + row_first * step + inside
        row = Row(x.value, at - inside)
        if rows > 1 and n > 0:
            join_rows(reduction, args, joined, x, at, step, rows, n)
            row = Row(work.cells.value, joined.at - inside)
        if args.is_transposed:
            reduce_transposed_bins(state, work, last, row, out, first, end)
        else:
            reduce_joined_row(state, args, last, row, work.cells, out, first, end)


@inlined
def join_rows(reduction, args, target, x, at, step, rows, n):
    """Join two rows or more, ``step`` apart."""
    if rows == 2:
        join(reduction, args, target, x, Part(at, 0), Part(at + step, 0), n)
    else:
        join3(reduction, args, target, x, Part(at, 0), Part(at + step, 0), Part(at + 2 * step, 0), n)
    i = 3
    while i + 1 < rows:
        fold2(reduction, target, x, Part(at + i * step, 0), Part(at + (i + 1) * step, 0), n)
        i += 2
    if i < rows:
        fold(reduction, target, x, Part(at + i * step, 0), n)


def join_slabs(reduction, work, number, axis, x_at, rows):
    """Join the slabs of cells of a window: where the result lies, as if it were a part of X."""
    args, step = work.args, axis.strides[Role.X]
    at, count = x_at + rows.first * step, rows.end - rows.first
    if count == 1:
        return at
    x, joined = ValueCells(input_pointer(reduction, work)), Destination(work.cells, axis.ring * args.inner)
    join_rows(reduction, args, joined, x, at, step, count, dense_stride(args, number))
    return place_in_workspace(reduction, work, joined.at)


@outlined
def join_pairs(reduction, axis, target, x, at, below, n):
    """Join two slabs of the axis before, ``below`` apart, and in each the two of every window, of ``n`` cells."""
    state, step = reduction.state, axis.strides[Role.X]
    for o in range(axis.outputs):
        upper, to = at + 2 * o * step, target.at + o * n
        lower = upper + below
        for i in lanes(state.number, n):
            first = state.join(state.get(x, upper + i), state.get(x, upper + step + i))
            second = state.join(state.get(x, lower + i), state.get(x, lower + step + i))
            state.put(target.cells, to + i, state.join(first, second))


@outlined
def reduce_pairs_of_planes(reduction, work, number, axis, x_at, rows, target):
    """Reduce a window of two slabs, and all windows in them. The joined planes of the next axis follow each other, and
    are reduced as one plane, since pairs of rows end with each."""
    args, step = work.args, axis.strides[Role.X]
    following, above = args.axes[number + 1], args.axes[number + 2]
    x, joined = ValueCells(input_pointer(reduction, work)), Destination(work.cells, axis.ring * args.inner)
    join_pairs(reduction, following, joined, x, x_at + rows.first * step, step, dense_stride(args, number + 1))
    outputs, here = following.outputs * above.outputs, place_in_workspace(reduction, work, joined.at)
    reduce_plane_rows(reduction, work, number + 2, above, here, 0, 0, outputs, target)


# --- many output rows -------------------------------------------------------------------------------------------------


@inlined
def join_column(state, p, at, width):
    """Join three cells below each other, for every lane."""
    return state.join3(state.cell(p[at]), state.cell(p[at + width]), state.cell(p[at + 2 * width]))


@inlined
def load_pair(state, p, at):
    """Load two neighbours for every lane, as one vector."""
    return state.cell(stretch(p, at, 2))


@at_build
def half_width_number(state):
    """A number of half the width, so that vectors have twice as many lanes."""
    return f32 if state.number.bytes == 8 else f16


def reduce_3x3_stride_1(reduction, target, row, width, n, scale):
    state = reduction.state
    p, at = row
    for i in lanes(half_width_number(state), n):
        here, later = join_column(state, p, at + i, width), beyond(at + i, 1)
        prefetch(p, later + 2 * width + AHEAD)
        second = moved_on(here, join_column(state, p, later, width))
        joined = state.join3(here, second, moved_on(second, join_column(state, p, later + 1, width)))
        state.put(target.cells, target.at + i, reduction.scale(joined, scale))


def reduce_3x3_stride_2(reduction, target, row, width, n, scale):
    state = reduction.state
    p, at = row
    for i in lanes(state.number, n):
        upper = state.join(load_pair(state, p, at + 2 * i), load_pair(state, p, at + width + 2 * i))
        left, middle = parts(state.join(upper, load_pair(state, p, at + 2 * width + 2 * i)), 2)
        right = moved_on(left, join_column(state, p, beyond(at + 2 * i, 2), width))
        state.put(target.cells, target.at + i, reduction.scale(state.join3(left, middle, right), scale))


def reduce_2x2_stride_2(reduction, target, row, width, n, scale):
    state = reduction.state
    p, at = row
    for i in lanes(state.number, n):
        both = state.join(load_pair(state, p, at + 2 * i), load_pair(state, p, at + width + 2 * i))
        left, right = parts(both, 2)
        state.put(target.cells, target.at + i, reduction.scale(state.join(left, right), scale))


@inlined
def join_pair(state, p, at):
    return state.join(state.cell(p[at]), state.cell(p[at + 1]))


@inlined
def reduce_edge(state, p, at, width, rows, first, end):
    """Join cells first … end−1 of two or three rows."""
    if rows == 3 and end - first == 2:
        at += first
        return state.join3(
            join_pair(state, p, at), join_pair(state, p, at + width), join_pair(state, p, at + 2 * width)
        )
    joined = state.identity
    for cell in range(first, end):
        here = at + cell
        joined = state.join(joined, state.join(state.cell(p[here]), state.cell(p[here + width])))
        if rows == 3:
            joined = state.join(joined, state.cell(p[here + 2 * width]))
    return joined


@inlined
def output_scale(reduction, work, number):
    """The factor of outputs that are finished as they are combined."""
    args = work.args
    return reduction.scale_of(args, number == 0 and args.finish == Finish.AT_ONCE and not args.scales_input)


def reduce_plane_rows(reduction, work, number, axis, x_at, first_row, o, rows, target):
    """Reduce output rows of small windows, from ``o`` on. Numbers that must be converted and are not staged are
    converted as they are read, rounded and written."""
    args, form = work.args, reduction.form
    if form.converts and not args.is_staged:
        x, y = form.stored_at(args.arrays[Role.X]), StoredCells(form.stored_at(args.arrays[Role.Y]))
        out = Destination(y, work.unit.bases[Role.Y] + o * axis.strides[Role.Y])
        width, scale = axis.strides[Role.X], reduction.scale_of(args, True)
        reduce_rows(reduction, work, scale, axis, Row(x, x_at + first_row * width), width, rows, out)
    else:
        scale = output_scale(reduction, work, number)
        width = row_stride(reduction, args, axis, 1)
        cells = Row(input_pointer(reduction, work), x_at + first_row * width)
        reduce_rows(reduction, work, scale, axis, cells, width, rows, target)


@inlined
def reduce_edges(reduction, last, row, width, kernel, stride, rows, target, scale):
    """Reduce the windows of some output rows that reach beyond their ends, a column of them at a time."""
    state, inside = reduction.state, last.beyond - last.inside
    for i in range(last.outputs - inside):
        column = i if i < last.inside else i + inside
        begin = column * stride - last.low
        first, end = max(begin, 0), min(begin + kernel, last.size)
        for r in range(rows):
            joined = reduce_edge(state, row.p, row.at + r * stride * width, width, kernel, first, end)
            state.put(target.cells, target.at + r * last.outputs + column, reduction.scale(joined, scale))


@outlined
def reduce_rows(reduction, work, scale, axis, cells, width, rows, target):
    """Reduce output rows of 3 × 3 or 2 × 2 windows at stride 2, or of 3 × 3 at stride 1 that are as wide as the input.

    In the last case output and input advance together, from row to row too, so one run computes all rows. Windows that
    reach beyond the ends of a row are wrong then, and computed again from real cells.
    """
    last, kernel, stride = last_axis(work.args), axis.kernel, axis.stride
    if stride == 1:
        reduce_3x3_stride_1(
            reduction, Destination(target.cells, target.at + last.low), cells, width, rows * width - 2, scale
        )
        reduce_edges(reduction, last, cells, width, 3, 1, rows, target, scale)
        return
    column, n = last.inside * stride - last.low, last.beyond - last.inside
    for r in range(rows):
        row = Row(cells.p, cells.at + r * stride * width)
        out = Destination(target.cells, target.at + r * last.outputs)
        inside = Destination(out.cells, out.at + last.inside)
        if kernel == 3:
            reduce_3x3_stride_2(reduction, inside, Row(row.p, row.at + column), width, n, scale)
        else:
            reduce_2x2_stride_2(reduction, inside, Row(row.p, row.at + column), width, n, scale)
        reduce_edges(reduction, last, row, width, kernel, stride, 1, out, scale)
