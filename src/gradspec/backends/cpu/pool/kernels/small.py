"""Small windows with their winners, where many neighbours lie side by side.

Rows of cells are staged, with padding as the lowest number, and split into as many phases as the stride, so that a tap
of adjacent windows is a run. They are reduced along the last axis, then slabs of them along the axes before; those of
the first axis lie in a ring buffer. ``b > a`` decides which cell wins: one comparison, if no cell is NaN. A unit with a
NaN, or with a window that has no cell above the lowest number, is left to the generic walk.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradspec.backends.cpu.pool.arguments import Role, Schedule
from gradspec.backends.cpu.pool.kernels.rows import (
    cell_row,
    cell_rows,
    fetch_row,
    is_dense,
    last_axis,
    real_taps,
    span_of,
    write_row,
)
from gradspec.backends.cpu.pool.kernels.states import FirstLarger, FirstWinner, LargerTangent
from gradspec.backends.cpu.pool.kernels.walk import (
    ENDLESS,
    Destination,
    PoolWork,
    Ring,
    combine_rows,
    emit,
    output_destination,
)
from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.language import (
    choose,
    inlined,
    lanes,
    lanes_once,
    outlined,
    total,
    unrolled,
)


@inlined
def smaller(a, b):
    return choose(b < a, b, a)


@dataclass(frozen=True)
class SmallWinners:
    """The reduction of small windows."""

    form: NumberFormat

    @property
    def state(self) -> FirstWinner:
        return FirstLarger(self.form)


@dataclass(frozen=True)
class SmallTangents(SmallWinners):
    """The reduction to tangents of winners, if nothing else is wanted."""

    @property
    def state(self) -> FirstWinner:
        return LargerTangent(self.form)

    def emit_row(self, work, first, end, target):
        args, unit, cells = work.args, work.unit, target.cells
        if args.arrays[Role.Y] != 0 and not args.is_direct:
            write_row(self.form, args, unit, Role.Y, first, end, cells.value, target.at)
        write_row(self.form, args, unit, Role.V, first, end, cells.winner, target.at)


# --- rows of cells ----------------------------------------------------------------------------------------------------


@outlined
def lay_out(form, args, axis, role, source, n, t, tile):
    """Stage the row of an array that begins at ``source``, with ``n`` neighbours per cell."""
    x, length, step = form.stored_at(args.arrays[role]), args.staged.phase, axis.strides[role]
    phase, place, inner = axis.low % axis.stride, axis.low // axis.stride, args.inner_strides[role]
    for cell in range(axis.size):
        at, to = source + cell * step, tile + (phase * length + place) * n
        if inner == 1:
            for i in lanes(form.computed, n):
                t[to + i] = form.widen(x[at + i])
        else:
            for i in range(n):
                t[to + i] = form.widen(x[at + i * inner])
        phase += 1
        if phase == axis.stride:
            phase, place = 0, place + 1


# --- winners ----------------------------------------------------------------------------------------------------------


def join_first_taps(state, target, cells, places, n, first_tap):
    """Join one tap from each of two or more ``places``."""
    for i in lanes(state.number, n):
        first, second = (
            state.staged_tap(cells, places[0] + i, 0, first_tap),
            state.staged_tap(cells, places[1] + i, 1, first_tap),
        )
        found = state.join(first, second)
        for k in unrolled(len(places) - 2):
            found = state.join(found, state.staged_tap(cells, places[k + 2] + i, k + 2, first_tap))
        state.put(target.cells, target.at + i, found)


def put_tap(state, target, cells, place, n, first_tap):
    for i in lanes(state.number, n):
        state.put(target.cells, target.at + i, state.staged_tap(cells, place + i, 0, first_tap))


def join_tap(state, target, cells, place, n, k, first_tap):
    for i in lanes_once(state.number, n):
        here = state.get(target.cells, target.at + i)
        state.put(target.cells, target.at + i, state.join(here, state.staged_tap(cells, place + i, k, first_tap)))


@inlined
def tap_at(args, axis, tile, k, n):
    """Where tap ``k`` of the first window lies in a staged row."""
    return tile + (k % axis.stride * args.staged.phase + k // axis.stride) * n


@outlined
def reduce_staged_row(state, args, axis, cells, tile, n, target):
    """Reduce a staged row along the last axis."""
    kernel, count, first_tap = axis.kernel, axis.outputs * n, state.form.lane(args.first_tap)
    a, b, c = tile, tap_at(args, axis, tile, 1, n), tap_at(args, axis, tile, 2, n)
    if kernel == 1:
        put_tap(state, target, cells, a, count, first_tap)
    elif kernel == 2:
        join_first_taps(state, target, cells, (a, b), count, first_tap)
    elif kernel == 3:
        join_first_taps(state, target, cells, (a, b, c), count, first_tap)
    else:
        join_first_taps(state, target, cells, (a, b, c, tap_at(args, axis, tile, 3, n)), count, first_tap)
    for k in range(4, kernel):
        join_tap(state, target, cells, tap_at(args, axis, tile, k, n), count, k, first_tap)


@outlined
def has_nan(form, t, at, n):
    if form.is_float:
        state = FirstLarger(form)
        found = total(state.larger, state.compared(state.identity.value), t, at, n)
        return found != found
    return False


def plane_has_nan(form, work, first, end):
    """Whether a cell of outputs first … end−1 is NaN, if the schedule is ``WINNER_ROWS``."""
    args, unit, front = work.args, work.unit, work.args.axes[0]
    if form.converts or len(args.axes) == 1 or front.schedule != Schedule.WINNER_ROWS:
        return False
    span, x, step = span_of(front, first, end), form.stored_at(args.arrays[Role.X]), front.strides[Role.X]
    at, rows, length = unit.bases[Role.X] + span.inside * step, span.outside - span.inside, last_axis(args).size
    if is_dense(args, Role.X):
        rows, length = 1, rows * length
    for r in range(rows):
        if has_nan(form, x, at + r * step, length):
            return True
    return False


def reduce_slab(found, work, cell, slot):
    """Reduce the slab at ``cell`` of the first axis; False if it has a NaN."""
    args, unit, form, rank = work.args, work.unit, found.form, len(work.args.axes)
    last, n, rows, t = last_axis(args), unit.neighbours, cell_rows(args), work.cells.value
    tile, run = args.staged.at * args.inner, last.outputs * n
    here = slot if rank == 2 else args.staged.levels_at * args.inner
    for r in range(rows):
        source = cell_row(args, unit, Role.X, cell, r)
        fetch_row(form, args, Role.X, source + 2 * args.axes[rank - 2].strides[Role.X], last.size * n)
        lay_out(form, args, last, Role.X, source, n, t, tile)
        if found.state.carries:
            tangents = cell_row(args, unit, Role.U, cell, r)
            fetch_row(form, args, Role.U, tangents + 2 * args.axes[rank - 2].strides[Role.U], last.size * n)
            lay_out(form, args, last, Role.U, tangents, n, work.cells.winner, tile)
        if has_nan(form, t, tile, last.stride * args.staged.phase * n):
            return False
        reduce_staged_row(found.state, args, last, work.cells, tile, n, Destination(work.cells, here + r * run))
    for i in range(rank - 2, 0, -1):
        axis, there = args.axes[i], here + rows * run
        rows = rows // axis.size
        if i == 1:
            there = slot
        for o in range(rows * axis.outputs):
            real = real_taps(axis, o % axis.outputs)
            first = here + (o // axis.outputs * axis.size + real.start + real.first) * run
            shift, target = real.first * axis.volume, Destination(work.cells, there + o * run)
            combine_rows(found, work, Ring(0, run, ENDLESS), first, shift, real.end - real.first, axis.volume, target)
        here, run = there, run * axis.outputs
    return True


@outlined
def reduce_small_windows(reduction, winners, first, end):
    """Reduce outputs first … end−1 of the first axis; False if they must be left to the generic walk."""
    form, args, unit, found = reduction.form, winners.args, winners.unit, reduction.small
    work = PoolWork(args, unit, found.state.cells_of(winners.cells))
    front, last, n, t = args.axes[0], last_axis(args), unit.neighbours, work.cells.value
    slab, produced = front.slab * n, 0
    ring = Ring(front.ring * args.inner, slab, front.ring * args.inner + front.kernel * slab)
    for i in lanes(form.computed, last.stride * args.staged.phase * n):
        t[args.staged.at * args.inner + i] = found.state.identity.value
    for o in range(first, end):
        real = real_taps(front, o)
        begin, stop = real.start + real.first, real.start + real.end
        for cell in range(max(produced, begin), stop):
            if not reduce_slab(found, work, cell, ring.first + cell % front.kernel * slab):
                return False
        produced = stop
        out, at = (
            output_destination(reduction, work, Destination(work.cells, 0), o),
            ring.first + begin % front.kernel * slab,
        )
        combine_rows(found, work, ring, at, real.first * front.volume, stop - begin, front.volume, out)
        if total(smaller, out.cells.value[out.at], out.cells.value, out.at, slab) <= found.state.identity.value:
            return False
        unit.place[0] = o
        if found.state.carries:
            emit(found, work, o, o + 1, out)
        else:
            emit(reduction, work, o, o + 1, out)
    return True
