"""Winners of 3 × 3 windows at stride 1 or 2 and of 2 × 2 windows at stride 2, straight from memory.

Rows of cells that the next windows share are reduced once and kept in rotating slots. If only tangents are wanted, they
take the place of winners. Cotangents of 2 × 2 windows are written to their cells at once.
"""

from __future__ import annotations

from gradspec.backends.cpu.pool.arguments import Role, Schedule
from gradspec.backends.cpu.pool.kernels.rows import (
    cells_and_tangents,
    fetch_row,
    fetch_to_write,
    is_dense,
    last_axis,
    span_of,
    write_values,
)
from gradspec.backends.cpu.pool.kernels.states import WinnerCells, has_nan
from gradspec.backends.cpu.pool.kernels.walk import Destination, emit, output_destination
from gradspec.codegen.language import choose, following, inlined, lanes, outlined, preceding, put_strided, strided

# --- cells of neighbouring windows ------------------------------------------------------------------------------------


@inlined
def load_3(p, at):
    return p[at], p[at + 1], p[at + 2]


@inlined
def load_3_stride_2(p, at):
    a, b = strided(p, at, 2)
    return a, b, following(p, at, 2, a)


@inlined
def load_3_before(p, at):
    """Load three taps per window; the first lies before ``at``."""
    b, c = strided(p, at, 2)
    return preceding(p, at + 1, 2, c), b, c


@inlined
def load_2_stride_2(p, at):
    return strided(p, at, 2)


@inlined
def load_taps(state, cells_at, rows, at, first):
    """The states of adjacent taps from index ``first`` on."""
    tangents = cells_at(rows.u, at + rows.shift) if state.carries else None
    return state.tap_states(cells_at(rows.x, at), tangents, first)


@inlined
def reduce_3_taps(state, cells_at, rows, at, first):
    a, b, c = load_taps(state, cells_at, rows, at, first)
    return state.join3(a, b, c)


# --- a row of windows -------------------------------------------------------------------------------------------------


def reduce_3x3_stride_1(state, target, cells, rows, at, n, above, here, below, first_tap):
    """Reduce a row of windows. ``above`` and ``here`` are reduced rows; ``below`` is reduced from ``at`` and kept."""
    for i in lanes(state.number, n):
        new = reduce_3_taps(state, load_3, rows, at + i, first_tap)
        state.put(cells, below + i, new)
        second = state.shift_taps(state.get(cells, here + i), first_tap + 3)
        best = state.join3(state.get(cells, above + i), second, state.shift_taps(new, first_tap + 6))
        state.put(target.cells, target.at + i, best)


def reduce_3x3_stride_2(state, target, cells, rows, at, width, n, above, below, first_tap):
    """Reduce a row of windows. ``above`` is a reduced row; two more are reduced from ``at`` on, the last is kept."""
    for i in lanes(state.number, n):
        here = reduce_3_taps(state, load_3_stride_2, rows, at + 2 * i, first_tap + 3)
        new = reduce_3_taps(state, load_3_stride_2, rows, at + width + 2 * i, first_tap)
        state.put(cells, below + i, new)
        best = state.join3(state.get(cells, above + i), here, state.shift_taps(new, first_tap + 6))
        state.put(target.cells, target.at + i, best)


def reduce_first_row_stride_1(state, cells, to, rows, at, n, first_tap):
    """Reduce a row of cells that the first row of windows shares with none before."""
    for i in lanes(state.number, n):
        state.put(cells, to + i, reduce_3_taps(state, load_3, rows, at + i, first_tap))


def reduce_first_row_stride_2(state, cells, to, rows, at, n, first_tap):
    for i in lanes(state.number, n):
        state.put(cells, to + i, reduce_3_taps(state, load_3_stride_2, rows, at + 2 * i, first_tap))


def reduce_2x2(state, target, rows, at, width, n, first_tap):
    for i in lanes(state.number, n):
        a, b = load_taps(state, load_2_stride_2, rows, at + 2 * i, first_tap)
        c, d = load_taps(state, load_2_stride_2, rows, at + width + 2 * i, first_tap + 2)
        state.put(target.cells, target.at + i, state.join(state.join(a, b), state.join(c, d)))


def reduce_2x2_vjp(state, target, x, at, width, n, u, u_at, v, to, v_width):
    """Reduce 2 × 2 windows that lie side by side, and write their cotangents ``u`` to their cells in ``v``."""
    zero = state.number(0)
    for i in lanes(state.number, n):
        (a, b), (c, d) = strided(x, at + 2 * i, 2), strided(x, at + width + 2 * i, 2)
        is_right, is_right_below = state.exceeds(b, a), state.exceeds(d, c)
        above, below = choose(is_right, b, a), choose(is_right_below, d, c)
        is_below, sent = state.exceeds(below, above), zero + u[u_at + i]
        target.cells.value[target.at + i] = choose(is_below, below, above)
        upper, lower = choose(is_below, zero, sent), choose(is_below, sent, zero)
        put_strided(v, to + 2 * i, (choose(is_right, zero, upper), choose(is_right, upper, zero)))
        pair = choose(is_right_below, zero, lower), choose(is_right_below, lower, zero)
        put_strided(v, to + v_width + 2 * i, pair)


# --- windows that reach beyond the row --------------------------------------------------------------------------------


@inlined
def reduce_edge(state, rows, at, width, kernel, first, end):
    """Join taps first … end−1 of each row of a window that begins at ``at``."""
    joined = state.identity
    if first < end:
        joined = state.cell_tap(rows, at + first, first, state.form.lane(0))
    for k in range(first + 1, end):
        joined = state.join(joined, state.cell_tap(rows, at + k, k, state.form.lane(0)))
    for r in range(1, kernel):
        for k in range(first, end):
            here, tap = at + r * width + k, r * kernel + k
            joined = state.join(joined, state.cell_tap(rows, here, tap, state.form.lane(0)))
    return joined


@inlined
def reduce_edges(state, last, rows, at, width, kernel, stride, out):
    for i in range(last.inside):
        first = last.low - stride * i
        joined = reduce_edge(state, rows, at - first, width, kernel, first, min(kernel, last.size + first))
        state.put(out.cells, out.at + i, joined)
    for i in range(last.beyond, last.outputs):
        first = last.low - stride * i
        joined = reduce_edge(state, rows, at - first, width, kernel, max(0, first), min(kernel, last.size + first))
        state.put(out.cells, out.at + i, joined)


# --- rows of windows --------------------------------------------------------------------------------------------------


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


@inlined
def row_destination(reduction, work, number, target, o, r):
    """Where a row of windows goes: to the output arrays if possible; tangents always do."""
    form, args, last = reduction.form, work.args, last_axis(work.args)
    if number != 0:
        return Destination(reduction.row_state.cells_of(target.cells), target.at + r * last.outputs)
    out = output_destination(reduction, work, target, o + r)
    if not reduction.row_state.carries:
        return out
    place = work.unit.bases[Role.V] + (o + r) * args.axes[0].strides[Role.V]
    tangents = form.computed_at(args.arrays[Role.V] + (place - out.at) * form.computed.bytes)
    return Destination(WinnerCells(out.cells.value, tangents), out.at)


@outlined
def reduce_winner_rows(reduction, work, number, axis, x_at, o, rows, target):
    """Reduce output rows of windows without rows of padding."""
    args, form, state, last = work.args, reduction.form, reduction.row_state, last_axis(work.args)
    width, kernel, stride, shared = axis.strides[Role.X], axis.kernel, axis.stride, state.cells_of(work.cells)
    cells = cells_and_tangents(form, work)
    first_tap, n, column = form.lane(args.first_tap), last.beyond - last.inside, last.inside * stride - last.low
    above = args.tile_at
    here, below = above + args.tile_room, above + 2 * args.tile_room
    if kernel == 3 and stride == 1:
        reduce_first_row_stride_1(state, shared, above, cells, x_at + column, n, first_tap)
        reduce_first_row_stride_1(state, shared, here, cells, x_at + width + column, n, first_tap)
    elif kernel == 3:
        reduce_first_row_stride_2(state, shared, above, cells, x_at + column, n, first_tap)
    at = x_at
    for r in range(rows):
        out = row_destination(reduction, work, number, target, o, r)
        for i in range(stride):
            fetch_row(form, args, Role.X, at + (kernel + 2 * stride + i) * width, last.size)
            if state.carries:
                fetch_row(form, args, Role.U, at + cells.shift + (kernel + 2 * stride + i) * width, last.size)
        inside = Destination(out.cells, out.at + last.inside)
        if kernel == 2 and args.writes_all_cells:
            reduce_2x2_row_vjp(reduction, work, axis, cells, at, o + r, inside)
        elif kernel == 2:
            reduce_2x2(state, inside, cells, at + column, width, n, first_tap)
        elif stride == 2:
            reduce_3x3_stride_2(state, inside, shared, cells, at + width + column, width, n, above, below, first_tap)
            above, below = below, above
        else:
            reduce_3x3_stride_1(state, inside, shared, cells, at + 2 * width + column, n, above, here, below, first_tap)
            above, here, below = here, below, above
        reduce_edges(state, last, cells, at, width, kernel, stride, out)
        if number == 0:
            work.unit.place[0] = o + r
            finish_row(reduction, work, o + r, out)
        at += stride * width


@inlined
def reduce_2x2_row_vjp(reduction, work, axis, cells, at, o, target):
    args, unit, form, last = work.args, work.unit, reduction.form, last_axis(work.args)
    if not reduction.row_state.carries:
        to, step = unit.bases[Role.V] + 2 * o * axis.strides[Role.V], axis.strides[Role.V]
        for i in range(2):
            fetch_to_write(form, args, Role.V, to + (4 + i) * step, last.size)
        v, u_at = form.stored_at(args.arrays[Role.V]), unit.bases[Role.U] + o * axis.strides[Role.U]
        width, n = axis.strides[Role.X], last.outputs
        reduce_2x2_vjp(reduction.state, target, cells.x, at, width, n, cells.u, u_at, v, to, step)


@inlined
def finish_row(reduction, work, o, out):
    """Emit a row of windows, unless its tangents or cotangents are written already."""
    args = work.args
    if reduction.row_state.carries or args.writes_all_cells:
        write_values(reduction.form, work, 0, last_axis(args).outputs, out)
    else:
        emit(reduction, work, o, o + 1, out)
