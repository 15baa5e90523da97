"""Windows over many neighbours side by side, read in place: a tap of all neighbours is a run in memory.

In small windows ``b > a`` decides which cell wins, unless a row of cells has a NaN. A cell gathers its cotangent when
the last window that covers it is reduced: it adds up the windows at each place along the last axis, and then the
places, in the same order as ``max_vjp_gather``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gradspec.backends.cpu.pool.arguments import Role
from gradspec.backends.cpu.pool.kernels.max_vjp_gather import count_covering_windows, first_covering_window
from gradspec.backends.cpu.pool.kernels.planes import output_scale
from gradspec.backends.cpu.pool.kernels.reduce_row import join_taps
from gradspec.backends.cpu.pool.kernels.rows import (
    Row,
    cells_and_tangents,
    last_axis,
    real_taps,
    write_row,
    write_values,
)
from gradspec.backends.cpu.pool.kernels.states import FirstWinner, WinnerCells, has_nan
from gradspec.backends.cpu.pool.kernels.vjp_accumulators import clear_run
from gradspec.backends.cpu.pool.kernels.walk import Destination, emit, put_identity
from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import choose, inlined, lanes, lanes_once, outlined, unrolled


@outlined
def reduce_run_window(reduction, work, axis, residue, rows, source, target):
    """Reduce a window along the last axis, whose neighbours are read in X."""
    x, step = reduction.form.stored_at(work.args.arrays[Role.X]), axis.strides[Role.X]
    row = Row(x, source.x + (residue.first_row + rows.first * residue.row_step) * step)
    n, count, shift = work.unit.neighbours, rows.end - rows.first, rows.first - rows.begin
    join_taps(reduction.state, target, row, n, count, 1, residue.row_step * step, shift)


# --- small windows ----------------------------------------------------------------------------------------------------


class WindowRuns(NamedTuple):
    """The runs of ``n`` neighbours of a window: where the first begins, and the steps to the next row and cell."""

    rows: Any
    at: Any
    width: Any
    step: Any
    n: Any


@dataclass(frozen=True)
class SquareWindow:
    """A window of ``side`` rows and columns."""

    side: int

    @inlined
    def join_window(self, state, runs, first_tap, i):
        found = self.join_row(state, runs, 0, first_tap, i)
        for r in unrolled(self.side - 1):
            found = state.join(found, self.join_row(state, runs, r + 1, first_tap, i))
        return found

    @inlined
    def join_row(self, state, runs, r, first_tap, i):
        found = state.join(self.tap(state, runs, r, 0, first_tap, i), self.tap(state, runs, r, 1, first_tap, i))
        for c in unrolled(self.side - 2):
            found = state.join(found, self.tap(state, runs, r, c + 2, first_tap, i))
        return found

    @inlined
    def tap(self, state, runs, r, c, first_tap, i):
        return state.cell_tap(runs.rows, runs.at + r * runs.width + c * runs.step + i, r * self.side + c, first_tap)


@dataclass(frozen=True)
class RunValues:
    """Values, scaled as they are combined."""

    reduction: Any

    @property
    def form(self) -> Any:
        return self.reduction.form

    @property
    def state(self) -> Any:
        return self.reduction.state

    whole_state = state

    @inlined
    def scale(self, value, scale):
        return self.reduction.scale(value, scale)


@dataclass(frozen=True)
class RunWinners:
    """Maxima with winners, or their tangents; ``whole_state``, for windows without padding, may assume that no cell is
    NaN."""

    state: FirstWinner
    whole_state: FirstWinner

    @property
    def form(self) -> NumberFormat:
        return self.state.form

    @inlined
    def scale(self, best, scale):
        return best


@outlined
def reduce_squares(found, square, target, runs, windows, move, first_tap, scale):
    """Reduce windows without padding, ``move`` apart."""
    state = found.whole_state
    for window in range(windows):
        here, to = (
            WindowRuns(runs.rows, runs.at + window * move, runs.width, runs.step, runs.n),
            target.at + window * runs.n,
        )
        for i in lanes(state.number, runs.n):
            state.put(target.cells, to + i, found.scale(square.join_window(state, here, first_tap, i), scale))


@outlined
def reduce_cut_window(found, target, runs, rows, cells, first, kernel, scale):
    """Reduce the real rows and cells of a window with padding; its first real tap has the index ``first``."""
    state, no_tap = found.state, found.form.lane(0)
    for i in lanes(state.number, runs.n):
        state.put(target.cells, target.at + i, state.cell_tap(runs.rows, runs.at + i, first, no_tap))
    for k in range(1, rows * cells):
        here, tap = runs.at + k // cells * runs.width + k % cells * runs.step, first + k // cells * kernel + k % cells
        for i in lanes_once(state.number, runs.n):
            joined = state.get(target.cells, target.at + i)
            joined = state.join(joined, state.cell_tap(runs.rows, here + i, tap, no_tap))
            state.put(target.cells, target.at + i, joined)
    for i in lanes_once(state.number, runs.n):
        state.put(target.cells, target.at + i, found.scale(state.get(target.cells, target.at + i), scale))


@outlined
def reduce_row_of_windows(found, work, axis, x_at, o, target, scale):
    """Reduce an output row of small windows."""
    last, real_rows, n = last_axis(work.args), real_taps(axis, o), work.unit.neighbours
    width, step, kernel, place = axis.strides[Role.X], last.strides[Role.X], last.kernel, 0
    rows, count = cells_and_tangents(found.form, work), real_rows.end - real_rows.first
    while place < last.outputs:
        real, out, windows = real_taps(last, place), Destination(target.cells, target.at + place * n), 1
        row, cells = x_at + (real_rows.start + real_rows.first) * width, real.end - real.first
        runs = WindowRuns(rows, row + (real.start + real.first) * step, width, step, n)
        if cells <= 0:
            put_identity(found, out, n)
        elif count < kernel or cells < kernel:
            reduce_cut_window(found, out, runs, count, cells, real_rows.first * kernel + real.first, kernel, scale)
        else:
            windows, first_tap = last.beyond - place, found.form.lane(work.args.first_tap)
            for k in unrolled(2):
                if kernel == k + 2:
                    reduce_squares(found, SquareWindow(k + 2), out, runs, windows, last.stride * step, first_tap, scale)
        place += windows


@inlined
def reduce_run_row(reduction, work, number, axis, x_at, o, target):
    """Reduce an output row to values."""
    reduce_row_of_windows(RunValues(reduction), work, axis, x_at, o, target, output_scale(reduction, work, number))


# --- winners ----------------------------------------------------------------------------------------------------------


@inlined
def winners_at(work, o):
    """Where the winners of an output row are kept."""
    args = work.args
    return (args.gathering.accumulators_at + o % args.gathering.slots * last_axis(args).outputs) * args.inner


@outlined
def row_has_nan(form, work, at):
    """Whether the row of cells that begins at ``at`` has a NaN."""
    last, n, x = last_axis(work.args), work.unit.neighbours, form.stored_at(work.args.arrays[Role.X])
    step = last.strides[Role.X]
    if step == n:
        return has_nan(form, x, at, last.size * n)
    for i in range(last.size):
        if has_nan(form, x, at + i * step, n):
            return True
    return False


@outlined
def reduce_run_winners(reduction, work, number, axis, x_at, o, out):
    """Reduce an output row to winners, or to their tangents; of a plane, finish it, too."""
    args, unit, form = work.args, work.unit, reduction.form
    (state, quick_state), outputs, rows = reduction.run_states, last_axis(args).outputs, real_taps(axis, o)
    begin, end, gathers = rows.start + rows.first, rows.start + rows.end, args.gathering.in_runs
    if o == 0:
        unit.seen_row, unit.nan_row = 0, -1
    for row in range(max(unit.seen_row, begin), end):
        if row_has_nan(form, work, x_at + row * axis.strides[Role.X]):
            unit.nan_row = row
    unit.seen_row = end
    kept = winners_at(work, o) if gathers else out.at
    winners = form.lane_at(address_of(work.cells.winner) + (kept - out.at) * form.lane.bytes)
    target = Destination(state.cells_of(WinnerCells(out.cells.value, winners)), out.at)
    if unit.nan_row >= begin:
        reduce_row_of_windows(RunWinners(state, state), work, axis, x_at, o, target, None)
    else:
        reduce_row_of_windows(RunWinners(state, quick_state), work, axis, x_at, o, target, None)
    if number > 0:
        return
    unit.place[0] = o
    if state.carries:
        write_values(form, work, 0, outputs, target)
        write_row(form, args, unit, Role.V, 0, outputs, target.cells.winner, target.at)
    elif gathers:
        write_values(form, work, 0, outputs, target)
        gather_runs(form, work, (o + 1) * axis.stride - axis.low)
    else:
        emit(reduction, work, o, o + 1, target)


# --- what cells receive -----------------------------------------------------------------------------------------------


class CoveringTerms(NamedTuple):
    """The winners and cotangents of the first windows that cover a cell, in up to three rows, and the steps to the next
    place; the cell's tap index in the first window, and by how much it decreases per row and per place."""

    winners: Any
    cotangents: Any
    w_step: Any
    u_step: Any
    number: Any
    by_row: Any
    by_place: Any


@dataclass(frozen=True)
class CoveringWindows:
    """A cell that is covered by windows in ``rows`` rows and ``places`` places."""

    rows: int
    places: int

    @inlined
    def term(self, form, sent, w_at, u_at, won):
        return choose(sent.winners.p[w_at] == form.lane(won), form.widen(sent.cotangents.p[u_at]), form.computed(0))

    @inlined
    def add_place(self, form, sent, w_at, u_at, p):
        """Add up the cotangents of the windows at a place."""
        w, u, won = w_at + p * sent.w_step, u_at + p * sent.u_step, sent.number - p * sent.by_place
        found = self.term(form, sent, sent.winners.at[0] + w, sent.cotangents.at[0] + u, won)
        for k in unrolled(self.rows - 1):
            later = self.term(
                form, sent, sent.winners.at[k + 1] + w, sent.cotangents.at[k + 1] + u, won - (k + 1) * sent.by_row
            )
            found = found + later
        return found

    @outlined
    def gather(self, form, sent, v, to, n, columns, move):
        """Write ``columns`` cells, ``move`` apart in V; the windows of each lie one place after those of the last."""
        for column in range(columns):
            w_at, u_at, there = column * sent.w_step, column * sent.u_step, to + column * move
            for i in lanes(form.computed, n):
                found = form.computed(0) + self.add_place(form, sent, w_at + i, u_at + i, 0)  # no sum is −0
                for p in unrolled(self.places - 1):
                    found = found + self.add_place(form, sent, w_at + i, u_at + i, p + 1)
                v[there + i] = form.narrow(found)


@inlined
def count_like_columns(axis, column):
    """How many cells, a stride apart, are covered by equally many windows, which advance by a place per cell."""
    last, is_first = (column + axis.low) // axis.stride, column + axis.low < axis.kernel - 1
    return 1 if is_first else max(1, min(axis.outputs - last, (axis.size - 1 - column) // axis.stride + 1))


@outlined
def gather_run_row(form, work, cell):
    """Gather the cotangents of a row of cells."""
    args, unit, axis, last = work.args, work.unit, work.args.axes[0], last_axis(work.args)
    n, v, to = unit.neighbours, form.stored_at(args.arrays[Role.V]), unit.bases[Role.V] + cell * axis.strides[Role.V]
    o, rows, u_step = first_covering_window(axis, cell), count_covering_windows(axis, cell), last.strides[Role.U]
    kept, sent_at, below = winners_at(work, o), unit.bases[Role.U] + o * axis.strides[Role.U], axis.strides[Role.U]
    second, third = winners_at(work, o + 1), winners_at(work, o + 2)
    for phase in range(last.stride):
        column = phase
        while column < last.size:
            place, places, columns = first_covering_window(last, column), count_covering_windows(last, column), 1
            here, there = place * n, sent_at + place * u_step
            number = (cell + axis.low - o * axis.stride) * last.kernel + column + last.low - place * last.stride
            sent = CoveringTerms(
                Row(work.cells.winner, (kept + here, second + here, third + here)),
                Row(form.stored_at(args.arrays[Role.U]), (there, there + below, there + 2 * below)),
                n,
                u_step,
                number,
                axis.stride * last.kernel,
                last.stride,
            )
            target, move = to + column * last.strides[Role.V], last.stride * last.strides[Role.V]
            if rows <= 0 or places <= 0:
                clear_run(form, v, target, n)
            else:
                columns = count_like_columns(last, column)
            for r in unrolled(3):
                for p in unrolled(3):
                    if rows == r + 1 and places == p + 1:
                        CoveringWindows(r + 1, p + 1).gather(form, sent, v, target, n, columns, move)
            column += columns * last.stride


@outlined
def gather_runs(form, work, until):
    """Gather the rows of cells before ``until`` that have not been gathered: no later window covers them."""
    unit = work.unit
    for cell in range(unit.next_cell, min(until, unit.end_cell)):
        gather_run_row(form, work, cell)
        unit.next_cell = cell + 1
