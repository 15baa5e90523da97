"""The maximum with its winner, and what is derived from winners: indices, tangents, cotangents, a tape."""

from __future__ import annotations

from dataclasses import dataclass

from gradspec.backends.cpu.pool.arguments import AxisKind, Role
from gradspec.backends.cpu.pool.kernels.max_vjp_3x3 import scatter_chunks
from gradspec.backends.cpu.pool.kernels.max_vjp_gather import (
    accumulate_row,
    gather,
    gather_completed,
    reset_accumulators,
)
from gradspec.backends.cpu.pool.kernels.reduce_row import reduce_row
from gradspec.backends.cpu.pool.kernels.rows import (
    dense_origin,
    dense_stride,
    is_dense,
    last_axis,
    origin_at,
    output_at,
    read_neighbours,
    real_taps,
    write_values,
)
from gradspec.backends.cpu.pool.kernels.runs import gather_runs, reduce_run_window, reduce_run_winners
from gradspec.backends.cpu.pool.kernels.states import FirstLarger, FirstWinner, LargerTangent, WinnerTangent
from gradspec.backends.cpu.pool.kernels.vjp_accumulators import (
    IN_DENSE_PLANE,
    cell_sums,
    finish_cells,
    prepare_cells,
    sums_origin,
)
from gradspec.backends.cpu.pool.kernels.walk import Destination, Reduction, emit, transpose_planes, walk
from gradspec.backends.cpu.pool.kernels.winners_fixed import plane_has_nan, reduce_winner_rows
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import choose, i64, inlined, lanes, outlined, pointer, total, u8, u16, u32

words_at = pointer(i64)
bytes_at, pairs_at, quads_at = pointer(u8), pointer(u16), pointer(u32)

# --- where cells lie --------------------------------------------------------------------------------------------------


@outlined
def cell_offset(args, role, winner):
    """The offset of cell ``winner`` of a window from the window's first cell, in an array or in a dense plane."""
    place, rest = 0, winner
    for i in range(len(args.axes)):
        axis = args.axes[i]
        tap, rest = rest // axis.volume, rest % axis.volume
        stride = dense_stride(args, i) if role < 0 else axis.strides[role]
        place += tap * axis.dilation * stride
    return place


@outlined
def first_real(args, unit, o):
    """The number of the first real cell of a window, or −1."""
    winner = 0
    for i in range(len(args.axes)):
        axis, output = args.axes[i], unit.place[i]
        if i == len(args.axes) - 1:
            output = o
        real = real_taps(axis, output)
        if real.first >= real.end:
            return -1
        winner += real.first * axis.volume
    return winner


@inlined
def table_of(args, unit):
    """The table of cell offsets of a window: in U or V, followed by those in a dense plane."""
    return words_at(unit.workspace + args.table_at)


@outlined
def make_table(form, args, unit):
    table, room = table_of(args, unit), args.table_room
    pulled = IN_DENSE_PLANE if form.converts else Role.V
    for winner in range(room):
        table[winner] = cell_offset(args, pulled if args.is_vjp else Role.U, winner)
        table[room + winner] = cell_offset(args, IN_DENSE_PLANE, winner)
    unit.is_tabled = True


# --- uses of winners --------------------------------------------------------------------------------------------------


@outlined
def resolve_missing_winners(form, args, unit, first, end, target):
    """Replace negative winners by the first real cell, and give windows without cells the value 0."""
    n, cells = unit.neighbours, target.cells
    for o in range(first, end):
        for i in range(n):
            here = target.at + (o - first) * n + i
            if cells.winner[here] < 0:
                cells.winner[here] = first_real(args, unit, o)
                if cells.winner[here] < 0:
                    cells.value[here] = form.computed(0)


@outlined
def write_indices(args, unit, first, end, w, at, table):
    last, n, indices = last_axis(args), unit.neighbours, words_at(args.arrays[Role.INDICES])
    to, step = output_at(args, unit, Role.INDICES), last.strides[Role.INDICES]
    origin = dense_origin(args, unit)
    for o in range(first, end):
        start = origin + real_taps(last, o).start
        for i in range(n):
            winner, place = i64(w[at + (o - first) * n + i]), -1
            if winner >= 0:
                place = start + (table[winner] if args.table_room > 0 else cell_offset(args, IN_DENSE_PLANE, winner))
            indices[to + o * step + i * args.inner_strides[Role.INDICES]] = place


@outlined
def gather_tangents(form, args, unit, first, end, w, at, table):
    """Gather the tangents of winners."""
    last, n = last_axis(args), unit.neighbours
    u, v = form.stored_at(args.arrays[Role.U]), form.stored_at(args.arrays[Role.V])
    to, step = output_at(args, unit, Role.V), last.strides[Role.V]
    origin, along = origin_at(args, unit, Role.U), last.strides[Role.U]
    if n == 1 and args.table_room > 0 and last.kind == AxisKind.SLIDING:
        move, start = last.stride * along, origin - last.low * along
        for o in range(first, end):
            winner = i64(w[at + o - first])
            if winner >= 0:
                v[to + o * step] = u[start + o * move + table[winner]]
            else:
                v[to + o * step] = 0
        return
    u_step, v_step, is_tabled = args.inner_strides[Role.U], args.inner_strides[Role.V], args.table_room > 0
    for o in range(first, end):
        here, there, found = origin + real_taps(last, o).start * along, to + o * step, at + (o - first) * n
        for i in range(n):
            winner, tangent = i64(w[found + i]), form.stored(0)
            if winner >= 0:
                tangent = u[here + (table[winner] if is_tabled else cell_offset(args, Role.U, winner))]
            v[there] = tangent
            here, there = here + u_step, there + v_step


@outlined
def scatter_cotangents(form, args, unit, first, end, w, at, table):
    """Add cotangents to the winners' cells."""
    is_dense_enough = form.converts or args.bands == 1 or is_dense(args, Role.V)
    if unit.neighbours == 1 and args.table_room > 0 and is_dense_enough and last_axis(args).kind == AxisKind.SLIDING:
        scatter_row(form, args, unit, first, end, w, at, table)
    else:
        scatter_windows(form, args, unit, first, end, w, at, table)


@inlined
def scatter_row(form, args, unit, first, end, w, at, table):
    """Scatter a row. In a dense plane the cells of this unit are a run, so a range check tells them from others."""
    last, sums, u = last_axis(args), cell_sums(form, args, unit), form.stored_at(args.arrays[Role.U])
    to, step = output_at(args, unit, Role.U), last.strides[Role.U]
    front_step = dense_stride(args, 0) if form.converts else args.axes[0].strides[Role.V]
    mine = 0 if form.converts else unit.bases[Role.V] + unit.first_cell * front_step
    beyond = mine + (unit.end_cell - unit.first_cell) * front_step
    move = last.stride * sums.along
    start, all_mine = sums_origin(form, args, unit) - last.low * sums.along, args.bands == 1
    if args.are_disjoint and all_mine:
        for o in range(first, end):
            winner = i64(w[at + o - first])
            if winner >= 0:
                sums.p[start + o * move + table[winner]] = form.computed(0) + form.widen(u[to + o * step])
        return
    for o in range(first, end):
        winner = i64(w[at + o - first])
        if winner >= 0:
            there = start + o * move + table[winner]
            if all_mine or (there >= mine and there < beyond):
                sums.p[there] = sums.p[there] + form.widen(u[to + o * step])


@inlined
def scatter_windows(form, args, unit, first, end, w, at, table):
    """Scatter window by window, to the cells that this unit owns on the first axis."""
    last, front, n, sums = last_axis(args), args.axes[0], unit.neighbours, cell_sums(form, args, unit)
    u, to, step = form.stored_at(args.arrays[Role.U]), output_at(args, unit, Role.U), last.strides[Role.U]
    origin, all_mine, inner_step = sums_origin(form, args, unit), args.bands == 1, args.inner_strides[Role.U]
    for o in range(first, end):
        start, here, sent = origin + real_taps(last, o).start * sums.along, at + (o - first) * n, to + o * step
        if all_mine and args.table_room > 0:
            for i in range(n):
                winner = i64(w[here + i])
                if winner >= 0:
                    there = start + table[winner] * sums.scale + i * sums.inner
                    sums.p[there] = sums.p[there] + form.widen(u[sent + i * inner_step])
            continue
        first_output = unit.place[0]
        if len(args.axes) == 1:
            first_output = o
        front_start = real_taps(front, first_output).start
        for i in range(n):
            winner = i64(w[here + i])
            if winner >= 0:
                cell = front_start + winner // front.volume * front.dilation
                if all_mine or (cell >= unit.first_cell and cell < unit.end_cell):
                    role = IN_DENSE_PLANE if form.converts else Role.V
                    place = table[winner] if args.table_room > 0 else cell_offset(args, role, winner)
                    there = start + place * sums.scale + i * sums.inner
                    sums.p[there] = sums.p[there] + form.widen(u[sent + i * inner_step])


@outlined
def write_tape(form, args, unit, first, end, w, at):
    last, n, tape, size = last_axis(args), unit.neighbours, args.arrays[Role.TAPE], args.tape_bytes
    to, step, inner = output_at(args, unit, Role.TAPE), last.strides[Role.TAPE], args.inner_strides[Role.TAPE]
    if size == 1 and n == 1:
        bytes = bytes_at(tape)
        for i in lanes(form.computed, end - first):
            bytes[to + first + i] = u8(w[at + i])
        return
    for o in range(first, end):
        for i in range(n):
            winner, there = w[at + (o - first) * n + i], to + o * step + i * inner
            if size == 1:
                bytes_at(tape)[there] = u8(winner)
            elif size == 2:
                pairs_at(tape)[there] = u16(winner)
            else:
                quads_at(tape)[there] = u32(winner)


def use_winners(form, work, first, end, w, at):
    """Write everything but the value."""
    args, unit, table = work.args, work.unit, table_of(work.args, work.unit)
    if args.arrays[Role.INDICES] != 0:
        dense_places = words_at(address_of(table) + 8 * args.table_room)
        write_indices(args, unit, first, end, w, at, dense_places)
    if args.arrays[Role.U] != 0:
        if args.gathering.is_used:
            accumulate_row(form, work, w, at)
            gather_completed(form, work)
        elif args.is_vjp:
            scatter_cotangents(form, args, unit, first, end, w, at, table)
        else:
            gather_tangents(form, args, unit, first, end, w, at, table)


def prepare_vjp(reduction, work):
    if work.args.gathering.is_used:
        reset_accumulators(reduction.form, work)
    else:
        prepare_cells(reduction, work)


def finish_vjp(reduction, work):
    if work.args.gathering.in_runs:
        gather_runs(reduction.form, work, work.unit.end_cell)
    elif work.args.gathering.is_used:
        gather(reduction.form, work, work.unit.end_cell)
    else:
        finish_cells(reduction, work)


# --- the kernels ------------------------------------------------------------------------------------------------------


@inlined
def smaller(a, b):
    return choose(b < a, b, a)


@dataclass(frozen=True)
class WithWinners(Reduction):
    """The maximum with everything that is derived from its winners."""

    has_run_rows = True
    row, reduce_run_window = reduce_row, reduce_run_window
    reduce_winner_rows, reduce_run_row = reduce_winner_rows, reduce_run_winners

    @property
    def has_winner_rows(self) -> bool:
        return not self.form.converts

    has_runs = has_winner_rows

    @property
    def scatters_chunks(self) -> bool:
        return self.form.is_float

    @property
    def state(self) -> FirstWinner:
        return FirstWinner(self.form)

    @property
    def row_state(self) -> FirstWinner:
        return self.state

    @property
    def run_states(self) -> tuple[FirstWinner, FirstWinner]:
        """For windows over neighbours, the second if no cell is NaN."""
        return self.state, FirstLarger(self.form)

    prepare, finish = prepare_vjp, finish_vjp

    def outputs(self, work, first, end):
        if work.args.is_transposed:
            transpose_planes(self, work)
        left = first
        if self.row_state.carries:
            work.unit.has_nan = plane_has_nan(self.form, work, first, end)
        elif self.scatters_chunks:
            left = scatter_chunks(self, work, first, end)
        if left < end:
            walk(self, work, left, end)

    @outlined
    def load(self, work, axis, source, at, n):
        read_neighbours(self.form, work.args, Role.X, source.x, source.count, work.cells.value, at, n)
        for i in lanes(self.form.computed, n):
            work.cells.winner[at + i] = 0

    def emit_row(self, work, first, end, target):
        args, unit, w, form = work.args, work.unit, target.cells.winner, self.form
        if not unit.is_tabled:
            make_table(form, args, unit)
        if total(smaller, form.lane(0), w, target.at, (end - first) * unit.neighbours) < 0:
            resolve_missing_winners(form, args, unit, first, end, target)
        write_values(form, work, first, end, target)
        use_winners(form, work, first, end, w, target.at)
        if args.arrays[Role.TAPE] != 0:
            write_tape(form, args, unit, first, end, w, target.at)


@dataclass(frozen=True)
class WithTangents(WithWinners):
    """The maximum and the tangents of its winners."""

    @property
    def row_state(self) -> FirstWinner:
        return LargerTangent(self.form)

    @property
    def run_states(self) -> tuple[FirstWinner, FirstWinner]:
        return WinnerTangent(self.form), LargerTangent(self.form)


@dataclass(frozen=True)
class FromTape(Reduction):
    """What is derived from winners, with winners from the tape."""

    prepare, finish = prepare_vjp, finish_vjp

    @property
    def state(self) -> FirstWinner:
        return FirstWinner(self.form)

    def outputs(self, work, first, end):
        args, unit, target = work.args, work.unit, Destination(work.cells, 0)
        if not unit.is_tabled:
            make_table(self.form, args, unit)
        if len(args.axes) == 1:
            for o in range(first, end, args.tile):
                emit(self, work, o, min(o + args.tile, end), target)
            return
        for o in range(first, end):
            unit.place[0] = o
            emit(self, work, o, o + 1, target)

    def emit_row(self, work, first, end, target):
        read_tape(self.form, work.args, work.unit, first, end, work.cells.winner)
        use_winners(self.form, work, first, end, work.cells.winner, 0)


def read_tape(form, args, unit, first, end, w):
    """Read the winners of outputs first … end−1 of a row; the largest number of the tape's width means no winner."""
    tape, size, start = args.arrays[Role.TAPE], args.tape_bytes, output_at(args, unit, Role.TAPE)
    for o in range(first, end):
        there = start + o * last_axis(args).strides[Role.TAPE]
        if size == 1:
            number = i64(bytes_at(tape)[there])
        elif size == 2:
            number = i64(pairs_at(tape)[there])
        else:
            number = i64(quads_at(tape)[there])
        no_winner = (1 << (8 * size)) - 1
        w[o - first] = form.lane(number if number != no_winner else -1)
