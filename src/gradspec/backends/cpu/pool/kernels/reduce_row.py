"""Reduce a row along the last axis, to any state.

Windows without padding are read tap by tap, with vector loops for common strides and kernels. Windows at the borders
are read one by one. Long windows are joined from runs of 1, 2, 4, … cells.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradspec.backends.cpu.pool.arguments import AxisKind, Finish, Role
from gradspec.backends.cpu.pool.kernels.rows import Row, fetch_row, read_row, real_taps, span_of
from gradspec.backends.cpu.pool.kernels.walk import Destination, emit, output_destination
from gradspec.codegen.language import (
    following,
    inlined,
    lanes,
    lanes_once,
    outlined,
    parts,
    stretch,
    strided,
    total,
    unrolled,
)

# --- windows without padding ------------------------------------------------------------------------------------------


@outlined
def join_taps_one_by_one(state, target, row, n, kernel, stride, dilation):
    for i in range(n):
        joined = state.tap(row.p[row.at + i * stride], 0, state.form.lane(0))
        for k in range(1, kernel):
            joined = state.join(joined, state.tap(row.p[row.at + i * stride + k * dilation], k, state.form.lane(0)))
        state.put(target.cells, target.at + i, joined)


@dataclass(frozen=True)
class FirstTaps:
    """The first ``count`` taps of windows at stride 1."""

    count: int

    def join(self, state, target, row, n, dilation, first_tap):
        for i in lanes(state.number, n):
            state.put(target.cells, target.at + i, self.join_from(state, row.p, row.at + i, dilation, first_tap))

    @inlined
    def join_from(self, state, p, at, dilation, first_tap):
        first = state.tap(p[at], 0, first_tap)
        if self.count == 1:
            return first
        joined = state.join(first, state.tap(p[at + dilation], 1, first_tap))
        for k in unrolled(self.count - 2):
            joined = state.join(joined, state.tap(p[at + (k + 2) * dilation], k + 2, first_tap))
        return joined


def add_tap(state, target, row, n, k, first_tap):
    for i in lanes_once(state.number, n):
        here = state.get(target.cells, target.at + i)
        state.put(target.cells, target.at + i, state.join(here, state.tap(row.p[row.at + i], k, first_tap)))


def add_4_taps(state, target, row, n, dilation, k, first_tap):
    for i in lanes_once(state.number, n):
        joined = state.get(target.cells, target.at + i)
        for j in unrolled(4):
            joined = state.join(joined, state.tap(row.p[row.at + j * dilation + i], k + j, first_tap))
        state.put(target.cells, target.at + i, joined)


def join_2_taps_stride_2(state, target, row, n, first_tap):
    """``strided`` splits the cells of two windows into even and odd ones."""
    for i in lanes(state.number, n):
        a, b = strided(row.p, row.at + 2 * i, 2)
        state.put(target.cells, target.at + i, state.join(state.tap(a, 0, first_tap), state.tap(b, 1, first_tap)))


def join_3_taps_stride_2(state, target, row, n, first_tap):
    for i in lanes(state.number, n):
        a, b = strided(row.p, row.at + 2 * i, 2)
        third = state.tap(following(row.p, row.at + 2 * i, 2, a), 2, first_tap)
        joined = state.join3(state.tap(a, 0, first_tap), state.tap(b, 1, first_tap), third)
        state.put(target.cells, target.at + i, joined)


def add_tap_stride_2(state, target, row, n, k, first_tap):
    """The last cell is read alone, because its pair may end beyond the row."""
    for i in lanes_once(state.number, n - 1):
        a, _ = strided(row.p, row.at + 2 * i, 2)
        here = state.get(target.cells, target.at + i)
        state.put(target.cells, target.at + i, state.join(here, state.tap(a, k, first_tap)))
    here = state.get(target.cells, target.at + n - 1)
    last = state.tap(row.p[row.at + 2 * (n - 1)], k, first_tap)
    state.put(target.cells, target.at + n - 1, state.join(here, last))


def join_4_taps_stride_4(state, target, row, n, first_tap):
    for i in lanes(state.number, n):
        a, b, c, d = strided(row.p, row.at + 4 * i, 4)
        first = state.join(state.tap(a, 0, first_tap), state.tap(b, 1, first_tap))
        second = state.join(state.tap(c, 2, first_tap), state.tap(d, 3, first_tap))
        state.put(target.cells, target.at + i, state.join(first, second))


@outlined
def finish_fours(reduction, target, row, n, scale):
    """Join and finish windows of four neighbours: pairs first, as they lie in memory."""
    state = reduction.state
    for i in lanes(state.number, n):
        even, odd = parts(state.cell(stretch(row.p, row.at + 4 * i, 4)), 2)
        first, second = parts(state.join(even, odd), 2)
        state.put(target.cells, target.at + i, reduction.scale(state.join(first, second), scale))


def join_taps(state, target, row, n, kernel, stride, dilation, first):
    """Reduce ``n`` windows from ``row`` on, whose first tap has the index ``first``."""
    first_tap = state.form.lane(first)
    if n <= 0:
        return
    if stride == 1:
        for others in unrolled(5):
            if min(kernel, 5) == others + 1:
                FirstTaps(others + 1).join(state, target, row, n, dilation, first_tap)
        done = 5
        while done + 4 <= kernel:
            add_4_taps(state, target, Row(row.p, row.at + done * dilation), n, dilation, done, first_tap)
            done += 4
        for k in range(done, kernel):
            add_tap(state, target, Row(row.p, row.at + k * dilation), n, k, first_tap)
    elif stride == 2 and dilation == 1 and kernel > 1:
        if kernel == 2:
            join_2_taps_stride_2(state, target, row, n, first_tap)
        else:
            join_3_taps_stride_2(state, target, row, n, first_tap)
        for k in range(3, kernel):
            add_tap_stride_2(state, target, Row(row.p, row.at + k), n, k, first_tap)
    elif stride == 4 and dilation == 1 and kernel == 4:
        join_4_taps_stride_4(state, target, row, n, first_tap)
    else:
        join_taps_one_by_one(state, target, row, n, kernel, stride, dilation)


# --- long windows -----------------------------------------------------------------------------------------------------


def copy_states(state, target, cells, at, n, stride):
    """Copy every ``stride``-th state from ``at`` on."""
    if stride == 1:
        for i in lanes(state.number, n):
            state.put(target.cells, target.at + i, state.get(cells, at + i))
    else:
        for i in range(n):
            state.put(target.cells, target.at + i, state.get(cells, at + i * stride))


def double_runs(state, cells, to, at, n, distance, width):
    for i in lanes(state.number, n):
        later = state.shift_taps(state.get(cells, at + distance + i), width)
        state.put(cells, to + i, state.join(state.get(cells, at + i), later))


def join_overlapping_runs(state, target, cells, at, n, stride, distance, width):
    """Join windows from two runs each; the second begins ``width`` taps later."""
    if stride == 1:
        for i in lanes(state.number, n):
            later = state.shift_taps(state.get(cells, at + distance + i), width)
            state.put(target.cells, target.at + i, state.join(state.get(cells, at + i), later))
    else:
        for i in range(n):
            later = state.shift_taps(state.get(cells, at + i * stride + distance), width)
            state.put(target.cells, target.at + i, state.join(state.get(cells, at + i * stride), later))


def add_runs(state, target, cells, at, n, stride, is_first):
    """Join one more run to every window."""
    if is_first:
        copy_states(state, target, cells, at, n, stride)
    elif stride == 1:
        for i in lanes_once(state.number, n):
            here = state.get(target.cells, target.at + i)
            state.put(target.cells, target.at + i, state.join(here, state.get(cells, at + i)))
    else:
        for i in range(n):
            here = state.get(target.cells, target.at + i)
            state.put(target.cells, target.at + i, state.join(here, state.get(cells, at + i * stride)))


@outlined
def reduce_by_doubling(state, axis, cells, tile, room, length, target, n):
    """Reduce windows from runs of 1, 2, 4, … cells; ``length`` runs of one cell lie at ``tile``.

    The runs of twice the width are ``run[i] ⊕ run[i + width]``. If ``x ⊕ x = x``, two overlapping runs of the largest
    power of two make the window; otherwise the runs of its binary digits do.
    """
    kernel, stride, dilation = axis.kernel, axis.stride, axis.dilation
    width, here, there, offset = 1, tile, tile + room, 0
    while True:
        if not state.is_idempotent and kernel & width:
            add_runs(state, target, cells, here + offset * dilation, n, stride, offset == 0)
            offset += width
        if 2 * width > kernel:
            break
        length -= width * dilation
        double_runs(state, cells, there, here, length, width * dilation, width)
        here, there, width = there, here, 2 * width
    if state.is_idempotent:
        join_overlapping_runs(state, target, cells, here, n, stride, (kernel - width) * dilation, kernel - width)


@outlined
def reduce_padded_by_doubling(state, args, axis, row, cells, target, first, end):
    """Fill in the padding of outputs first … end−1, then reduce them by doubling."""
    span, tile, first_tap = span_of(axis, first, end), args.tile_at, state.form.lane(0)
    for i in lanes(state.number, span.outside - span.inside):
        cell = state.tap(row.p[row.at + span.inside + i], 0, first_tap)
        state.put(cells, tile + span.inside - span.begin + i, cell)
    for i in range(span.inside - span.begin):
        state.put(cells, tile + i, state.identity)
    for i in range(span.outside - span.begin, span.stop - span.begin):
        state.put(cells, tile + i, state.identity)
    reduce_by_doubling(state, axis, cells, tile, args.tile_room, span.stop - span.begin, target, end - first)


# --- all windows of a row ---------------------------------------------------------------------------------------------


@inlined
def join_real_taps(state, p, at, first, end, dilation):
    """Join taps first … end−1 of a window that begins at ``at``."""
    joined = state.identity
    if first < end:
        joined = state.first(p[at + first * dilation], first)
    for k in range(first + 1, end):
        joined = state.join(joined, state.tap(p[at + k * dilation], k, state.form.lane(0)))
    return joined


@outlined
def reduce_border_windows(state, axis, row, target, first, end):
    """Reduce windows first … end−1, which have padding; ``target`` is where window 0 would go."""
    for o in range(first, end):
        start = o * axis.stride - axis.low
        if axis.dilation == 1:
            k, k_end = max(0, -start), min(axis.kernel, axis.size - start)
            joined = join_real_taps(state, row.p, row.at + start, k, k_end, 1)
        else:
            real = real_taps(axis, o)
            joined = join_real_taps(state, row.p, row.at + start, real.first, real.end, axis.dilation)
        state.put(target.cells, target.at + o, joined)


def reduce_sliding(state, args, axis, row, cells, target, first, end):
    """Reduce outputs first … end−1 of regular windows."""
    if axis.scans:
        reduce_padded_by_doubling(state, args, axis, row, cells, target, first, end)
        return
    left = min(max(axis.inside, first), end)
    right = min(max(axis.beyond, left), end)
    origin = Destination(target.cells, target.at - first)
    if first < left:
        reduce_border_windows(state, axis, row, origin, first, left)
    if right < end:
        reduce_border_windows(state, axis, row, origin, right, end)
    begin, n = row.at + left * axis.stride - axis.low, right - left
    inside = Destination(target.cells, target.at + left - first)
    is_long = axis.dilation == 1 and axis.stride >= 8 and axis.kernel >= 8
    if state.has_totals and is_long:
        for o in range(n):
            joined = total(state.join_cell, state.identity, row.p, begin + o * axis.stride, axis.kernel)
            state.put(inside.cells, inside.at + o, joined)
    else:
        join_taps(state, inside, Row(row.p, begin), n, axis.kernel, axis.stride, axis.dilation, args.first_tap)


@outlined
def reduce_bins(reduction, work, axis, source, target, first, end):
    """Reduce outputs first … end−1 of adaptive bins, whose cells are read in pieces."""
    args, state, room = work.args, reduction.state, work.args.tile_room
    for o in range(first, end):
        cells, joined = real_taps(axis, o), state.identity
        for begin in range(0, cells.end, room):
            stop, start = min(begin + room, cells.end), cells.start
            row = read_row(
                reduction.form, args, axis, Role.X, source.x, source.count, start + begin, start + stop,
                work.cells.value, args.tile_at,
            )  # fmt: skip
            joined = state.join_bin(joined, Row(row.p, row.at + start), begin, stop)
        state.put(target.cells, target.at + o - first, joined)


@outlined
def reduce_transposed_bins(state, work, axis, row, target, first, end):
    """Reduce outputs first … end−1 of adaptive bins in a row of transposed planes."""
    n = work.unit.neighbours
    for o in range(first, end):
        cells, out = real_taps(axis, o), Destination(target.cells, target.at + (o - first) * n)
        join_taps(state, out, Row(row.p, row.at + cells.start * n), n, cells.end, 1, n, work.args.first_tap)


@inlined
def are_read_once(args, axis):
    """Whether adjacent cells belong to one window each, so that they are converted as they are read."""
    is_run = axis.kind == AxisKind.SLIDING and axis.strides[Role.X] == 1 and not args.scales_input
    return is_run and axis.kernel <= axis.stride


@inlined
def can_finish_fours(reduction, args, axis):
    """Whether all windows are four neighbours each, and are complete once joined and multiplied by an inverse."""
    is_at_once = args.finish == Finish.AT_ONCE and (not reduction.has_complete or args.inverse != 0.0)
    are_fours = axis.kernel == 4 and axis.stride == 4 and axis.dilation == 1 and are_read_once(args, axis)
    return is_at_once and are_fours and axis.low == 0 and axis.beyond == axis.outputs


@outlined
def reduce_row(reduction, work, axis, source, target, first_output, end_output):
    """Reduce outputs of the last axis, a tile at a time; those of the only axis are emitted at once."""
    if work.args.is_transposed:
        row = Row(work.cells.value, work.args.staged_at + source.x)
        reduce_transposed_bins(reduction.state, work, axis, row, target, first_output, end_output)
        return
    args, form, is_only = work.args, reduction.form, len(work.args.axes) == 1
    if not is_only:
        before = args.axes[len(args.axes) - 2]
        fetch_row(form, args, Role.X, source.x + 2 * before.strides[Role.X], axis.size)
    if reduction.has_whole_planes and not form.converts and is_only and can_finish_fours(reduction, args, axis):
        row = Row(form.stored_at(args.arrays[Role.X]), source.x + 4 * first_output)
        out, scale = output_destination(reduction, work, target, first_output), reduction.scale_of(args, True)
        finish_fours(reduction, out, row, end_output - first_output, scale)
        return
    at = target.at
    for first in range(first_output, end_output, args.tile):
        end, out = min(first + args.tile, end_output), Destination(target.cells, at)
        if is_only:
            out = output_destination(reduction, work, target, first)
        if form.converts and reduction.state.has_totals and are_read_once(args, axis):
            stored = Row(form.stored_at(args.arrays[Role.X]), source.x)
            reduce_sliding(reduction.state, args, axis, stored, work.cells, out, first, end)
        elif axis.kind == AxisKind.SLIDING:
            span, copy_at = span_of(axis, first, end), args.tile_at + 2 * args.tile_room
            row = read_row(
                form, args, axis, Role.X, source.x, source.count, span.inside, span.outside, work.cells.value, copy_at
            )
            reduce_sliding(reduction.state, args, axis, row, work.cells, out, first, end)
        elif reduction.has_transpose and axis.kind == AxisKind.EXPANDING:
            reduction.reduce_expanding(work, axis, source, out, first, end)
        else:
            reduce_bins(reduction, work, axis, source, out, first, end)
        if is_only and args.finish != Finish.BY_PLANE:
            emit(reduction, work, first, end, out)
        at += end - first
