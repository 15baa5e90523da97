"""The maximum with its winner, and what follows from winners: indices, tangents, cotangents, a tape."""

from __future__ import annotations

from dataclasses import dataclass

from gradspec.backends.cpu.pool.arguments import AxisKind, Role
from gradspec.backends.cpu.pool.kernels.along import reduced_row, some_taps, taps
from gradspec.backends.cpu.pool.kernels.pulling import IN_DENSE_PLANE, finish_cells, prepare_cells, sums_of, sums_origin
from gradspec.backends.cpu.pool.kernels.rows import (
    Row,
    dense_origin,
    dense_stride,
    fetch_row,
    is_dense,
    last_axis,
    origin_at,
    output_at,
    read_neighbours,
    real_taps,
    write_row,
)
from gradspec.backends.cpu.pool.kernels.states import FirstWinner
from gradspec.backends.cpu.pool.kernels.walk import Destination, emit, output_of, put_together, walk
from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import (
    choose,
    following,
    i64,
    inlined,
    lanes,
    outlined,
    pointer,
    strided,
    total,
    u8,
    u16,
    u32,
)

words_at = pointer(i64)
bytes_at, pairs_at, quads_at = pointer(u8), pointer(u16), pointer(u32)

# --- where cells lie --------------------------------------------------------------------------------------------------


@outlined
def place_in(args, role, winner):
    """How far the cell ``winner`` of a window lies from the window's first in an array, or in a dense plane."""
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
    """The places of a window's cells: for tangents or cotangents, and behind them those in a dense plane."""
    return words_at(unit.workspace + args.table_at)


@outlined
def make_table(form, args, unit):
    table, room = table_of(args, unit), args.table_room
    pulled = IN_DENSE_PLANE if form.converts else Role.V
    for winner in range(room):
        table[winner] = place_in(args, pulled if args.pulls else Role.U, winner)
        table[room + winner] = place_in(args, IN_DENSE_PLANE, winner)
    unit.is_tabled = True


# --- what winners are used for ----------------------------------------------------------------------------------------


@outlined
def settle(form, args, unit, first, end, target):
    """The winners that are still negative."""
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
                place = start + (table[winner] if args.table_room > 0 else place_in(args, IN_DENSE_PLANE, winner))
            indices[to + o * step + i * args.inner_strides[Role.INDICES]] = place


@outlined
def push(form, args, unit, first, end, w, at, table):
    """The tangents of the winners."""
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
    for o in range(first, end):
        start = origin + real_taps(last, o).start * along
        for i in range(n):
            winner = i64(w[at + (o - first) * n + i])
            there = to + o * step + i * args.inner_strides[Role.V]
            if winner >= 0:
                place = table[winner] if args.table_room > 0 else place_in(args, Role.U, winner)
                v[there] = u[start + place + i * args.inner_strides[Role.U]]
            else:
                v[there] = 0


@outlined
def pull(form, args, unit, first, end, w, at, table):
    """Cotangents to the winners."""
    is_dense_enough = form.converts or args.bands == 1 or is_dense(args, Role.V)
    if unit.neighbours == 1 and args.table_room > 0 and is_dense_enough and last_axis(args).kind == AxisKind.SLIDING:
        pull_row(form, args, unit, first, end, w, at, table)
    else:
        pull_windows(form, args, unit, first, end, w, at, table)


@inlined
def pull_row(form, args, unit, first, end, w, at, table):
    """In a dense plane the cells of this unit are a run, which tells its cells from others."""
    last, sums, u = last_axis(args), sums_of(form, args, unit), form.stored_at(args.arrays[Role.U])
    to, step = output_at(args, unit, Role.U), last.strides[Role.U]
    front_step = dense_stride(args, 0) if form.converts else args.axes[0].strides[Role.V]
    mine = 0 if form.converts else unit.bases[Role.V] + unit.first_cell * front_step
    beyond = mine + (unit.end_cell - unit.first_cell) * front_step
    move = last.stride * sums.along
    start, all_mine = sums_origin(form, args, unit) - last.low * sums.along, args.bands == 1
    if args.are_apart and all_mine:
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
def pull_windows(form, args, unit, first, end, w, at, table):
    """Windows one by one, of which this unit takes what belongs to its cells on the first axis."""
    last, front, n, sums = last_axis(args), args.axes[0], unit.neighbours, sums_of(form, args, unit)
    u, to, step = form.stored_at(args.arrays[Role.U]), output_at(args, unit, Role.U), last.strides[Role.U]
    origin, all_mine = sums_origin(form, args, unit), args.bands == 1
    for o in range(first, end):
        start = origin + real_taps(last, o).start * sums.along
        first_output = unit.place[0]
        if len(args.axes) == 1:
            first_output = o
        front_start = real_taps(front, first_output).start
        for i in range(n):
            winner = i64(w[at + (o - first) * n + i])
            if winner >= 0:
                cell = front_start + winner // front.volume * front.dilation
                if all_mine or (cell >= unit.first_cell and cell < unit.end_cell):
                    role = IN_DENSE_PLANE if form.converts else Role.V
                    place = table[winner] if args.table_room > 0 else place_in(args, role, winner)
                    there = start + place * sums.scale + i * sums.inner
                    sums.p[there] = sums.p[there] + form.widen(u[to + o * step + i * args.inner_strides[Role.U]])


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


def use_winners(form, args, unit, first, end, w, at):
    """Everything but the value."""
    table = table_of(args, unit)
    if args.arrays[Role.INDICES] != 0:
        dense_places = words_at(address_of(table) + 8 * args.table_room)
        write_indices(args, unit, first, end, w, at, dense_places)
    if args.arrays[Role.U] != 0:
        if args.pulls:
            pull(form, args, unit, first, end, w, at, table)
        else:
            push(form, args, unit, first, end, w, at, table)


# --- rows that are kept -----------------------------------------------------------------------------------------------


@inlined
def best_of_row(state, a, b, c, first):
    """Of three neighbours, of which the first has the number ``first``."""
    return state.join3(state.tap(a, 0, first), state.tap(b, 1, first), state.tap(c, 2, first))


def below_one(state, target, cells, row, n, above, here, below, nought):
    """Windows of 3 rows at stride 1: ``above`` and ``here`` are known, ``below`` is found in ``row`` and kept."""
    p, at = row
    for i in lanes(state.number, n):
        new = best_of_row(state, p[at + i], p[at + 1 + i], p[at + 2 + i], nought)
        state.put(cells, below + i, new)
        second = state.moved(state.get(cells, here + i), nought + 3)
        best = state.join3(state.get(cells, above + i), second, state.moved(new, nought + 6))
        state.put(target.cells, target.at + i, best)


def below_two(state, target, cells, row, width, n, above, below, nought):
    """The same at stride 2: ``above`` is known, two rows are found from ``row`` on, and the last is kept."""
    p, at = row
    for i in lanes(state.number, n):
        (a, b), (c, d) = strided(p, at + 2 * i, 2), strided(p, at + width + 2 * i, 2)
        here = best_of_row(state, a, b, following(p, at + 2 * i, 2, a), nought + 3)
        new = best_of_row(state, c, d, following(p, at + width + 2 * i, 2, c), nought)
        state.put(cells, below + i, new)
        best = state.join3(state.get(cells, above + i), here, state.moved(new, nought + 6))
        state.put(target.cells, target.at + i, best)


def two_by_two(state, target, row, width, n, nought):
    p, at = row
    for i in lanes(state.number, n):
        (a, b), (c, d) = strided(p, at + 2 * i, 2), strided(p, at + width + 2 * i, 2)
        above = state.join(state.tap(a, 0, nought), state.tap(b, 1, nought))
        below = state.join(state.tap(c, 2, nought), state.tap(d, 3, nought))
        state.put(target.cells, target.at + i, state.join(above, below))


@inlined
def edge(state, p, at, width, kernel, first, end):
    """The taps first … end−1 of each row of a window that begins at ``at``."""
    found = some_taps(state, p, at, first, end, 1)
    for r in range(1, kernel):
        for k in range(first, end):
            found = state.join(found, state.first(p[at + r * width + k], r * kernel + k))
    return found


@outlined
def kept_rows(reduction, work, number, axis, x_at, o, rows, target):
    """Output rows of 3 × 3 windows at stride 1 or 2, or 2 × 2 at stride 2, whose rows are all real.

    Rows of cells that the next windows share are kept, in slots that take turns.
    """
    args, form, state, last = work.args, reduction.form, reduction.state, last_axis(work.args)
    x, width, kernel, stride = form.stored_at(args.arrays[Role.X]), axis.strides[Role.X], axis.kernel, axis.stride
    nought, n, column = form.lane(args.nought), last.beyond - last.inside, last.inside * stride - last.low
    above = args.tile_at
    here, below = above + args.tile_room, above + 2 * args.tile_room
    if kernel == 3:
        taps(state, Destination(work.cells, above), Row(x, x_at + column), n, 3, stride, 1, args.nought)
        if stride == 1:
            taps(state, Destination(work.cells, here), Row(x, x_at + width + column), n, 3, 1, 1, args.nought)
    at = x_at
    for r in range(rows):
        out = Destination(target.cells, target.at + r * last.outputs)
        if number == 0:
            out = output_of(reduction, work, target, o + r)
        for i in range(stride):
            fetch_row(form, args, Role.X, at + (kernel + 2 * stride + i) * width, last.size)
        inside = Destination(out.cells, out.at + last.inside)
        if kernel == 2:
            two_by_two(state, inside, Row(x, at + column), width, n, nought)
        elif stride == 2:
            row = Row(x, at + width + column)
            below_two(state, inside, work.cells, row, width, n, above, below, nought)
            above, below = below, above
        else:
            row = Row(x, at + 2 * width + column)
            below_one(state, inside, work.cells, row, n, above, here, below, nought)
            above, here, below = here, below, above
        kept_edges(state, last, x, at, width, kernel, stride, out)
        if number == 0:
            work.unit.place[0] = o + r
            emit(reduction, work, o + r, o + r + 1, out)
        at += stride * width


@inlined
def kept_edges(state, last, x, at, width, kernel, stride, out):
    """The windows of an output row that reach beyond the row of cells."""
    for i in range(last.inside):
        first = last.low - stride * i
        found = edge(state, x, at - first, width, kernel, first, min(kernel, last.size + first))
        state.put(out.cells, out.at + i, found)
    for i in range(last.beyond, last.outputs):
        first = last.low - stride * i
        found = edge(state, x, at - first, width, kernel, max(0, first), min(kernel, last.size + first))
        state.put(out.cells, out.at + i, found)


# --- the kernels ------------------------------------------------------------------------------------------------------


@inlined
def smaller(a, b):
    return choose(b < a, b, a)


@dataclass(frozen=True)
class WithWinners:
    """The maximum with everything that its winners are wanted for."""

    form: NumberFormat
    has_planes = has_whole = has_scale = reads_backwards = False
    row, kept_rows, put_together = reduced_row, kept_rows, put_together
    prepare, outputs, finish = prepare_cells, walk, finish_cells

    @property
    def keeps_rows(self) -> bool:
        return not self.form.converts

    @property
    def state(self) -> FirstWinner:
        return FirstWinner(self.form)

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
            settle(form, args, unit, first, end, target)
        if args.arrays[Role.Y] != 0 and not args.is_direct:
            write_row(form, args, unit, Role.Y, first, end, target.cells.value, target.at)
        use_winners(form, args, unit, first, end, w, target.at)
        if args.arrays[Role.TAPE] != 0:
            write_tape(form, args, unit, first, end, w, target.at)


@dataclass(frozen=True)
class FromTape:
    """What winners are wanted for, with winners from the tape."""

    form: NumberFormat
    has_whole = False
    prepare, finish = prepare_cells, finish_cells

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
        use_winners(self.form, work.args, work.unit, first, end, work.cells.winner, 0)


def read_tape(form, args, unit, first, end, w):
    """The winners of outputs first … end−1 of a row; the largest number that the tape holds is nobody's."""
    tape, size, start = args.arrays[Role.TAPE], args.tape_bytes, output_at(args, unit, Role.TAPE)
    for o in range(first, end):
        there = start + o * last_axis(args).strides[Role.TAPE]
        if size == 1:
            number = i64(bytes_at(tape)[there])
        elif size == 2:
            number = i64(pairs_at(tape)[there])
        else:
            number = i64(quads_at(tape)[there])
        nobody = (1 << (8 * size)) - 1
        w[o - first] = form.lane(number if number != nobody else -1)
