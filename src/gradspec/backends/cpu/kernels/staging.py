"""Windows tap by tap: rows laid out so that every tap is a run of neighbours, and what taps send back to the cells.

A row is staged for a stretch of outputs with its padding filled in and, at a stride ``s``, sorted into ``s`` phases,
the cells ``r, r + s, r + 2s, …`` one after another. Tap ``k`` of neighbouring outputs then lies at neighbouring places,
``offsets[k]`` after those of the first output, whatever the stride and dilation, and vectors need no other case.
"""

from typing import Any

from gradspec.backends.cpu.kernels import fields as f
from gradspec.backends.cpu.kernels.compiler import lanes, lanes_once, outlined, put_strided, strided
from gradspec.backends.cpu.kernels.memory import Format, float_of_bits, pointer_to
from gradspec.backends.cpu.kernels.rows import output_at, reader
from gradspec.backends.cpu.kernels.windows import (
    BASES,
    END_CELL,
    FIRST_CELL,
    NEIGHBOURS,
    PLACE,
    WORKSPACE,
    pointer_i64,
    real_taps,
)
from gradspec.backends.cpu.kernels.winners import dense_stride


def span(args, a, first, end):
    """The cells that outputs first … end−1 read: from where to where, and the real ones among them."""
    begin = first * args[a + f.STRIDE] - args[a + f.LOW]
    stop = (end - 1) * args[a + f.STRIDE] - args[a + f.LOW] + args[a + f.DILATION] * (args[a + f.KERNEL] - 1) + 1
    inside = min(max(0, begin), stop)
    return begin, stop, inside, max(min(args[a + f.SIZE], stop), inside)


def phase_length(length, phases):
    return (length + phases - 1) // phases


@outlined
def tap_offsets(args, frame, a, first, end):
    """Where the taps of outputs first … end−1 lie in a staged row: a table."""
    begin, stop, _, _ = span(args, a, first, end)
    offsets, stride = pointer_i64(frame[WORKSPACE] + args[f.TABLE_AT]), args[a + f.STRIDE]
    length = phase_length(stop - begin, stride)
    for k in range(args[a + f.KERNEL]):
        cell = k * args[a + f.DILATION]
        offsets[k] = cell % stride * length + cell // stride
    return offsets


def stager(form: Format, fill: Any, in_units: bool) -> Any:
    """``stage(args, a, array, x_at, first, end, phases, copies, t) → p, at``: the cells of outputs first … end−1.

    Padding reads as ``fill``. The row stays where it is if it can, unless ``copies``; else it is laid out in ``t``.
    ``in_units``: numbers are multiplied by ``UNIT``.
    """
    read, number = reader(form), form.computed

    def in_one(t, to, p, at, n, unit):
        for i in lanes(number, n):
            t[to + i] = p[at + i] * unit

    def in_two(t, tile, length, p, at, j, n, unit):
        """Cells from the ``j``-th on, an even one."""
        to = tile + j // 2
        for i in lanes(number, n // 2):
            a, b = strided(p, at + 2 * i, 2)
            t[to + i] = a * unit
            t[to + length + i] = b * unit
        if n % 2 != 0:
            t[to + n // 2] = p[at + n - 1] * unit

    def in_many(t, tile, length, p, at, j, n, phases, unit):
        for i in range(min(phases, n)):
            to = tile + (j + i) % phases * length + (j + i) // phases
            for m in range((n - i + phases - 1) // phases):
                t[to + m] = p[at + i + m * phases] * unit

    def padded(t, tile, length, j, end, phases):
        for cell in range(j, end):
            t[tile + cell % phases * length + cell // phases] = fill

    @outlined
    def stage(args, a, array, x_at, first, end, phases, copies, t):
        begin, stop, inside, outside = span(args, a, first, end)
        tile, n = args[f.TILE_AT], outside - inside
        p, at = read(args, a, array, x_at, 1, inside, outside, t, tile + 2 * args[f.TILE_ROOM])
        unit = number(1)
        if in_units:
            unit = number(float_of_bits(args[f.UNIT]))
        if phases == 1 and copies == 0 and inside == begin and outside == stop and unit == number(1):
            return p, at + begin
        length, j = phase_length(stop - begin, phases), inside - begin
        at += inside
        if phases == 1:
            in_one(t, tile + j, p, at, n, unit)
        elif phases == 2 and n > 0:
            odd = j % 2
            if odd != 0:
                t[tile + length + j // 2] = p[at] * unit
            in_two(t, tile, length, p, at + odd, j + odd, n - odd, unit)
        else:
            in_many(t, tile, length, p, at, j, n, phases, unit)
        padded(t, tile, length, 0, j, phases)
        padded(t, tile, length, j + n, stop - begin, phases)
        return t, tile

    return stage


# --- the rows of taps of an output row --------------------------------------------------------------------------------


@outlined
def tap_rows(args, frame):
    """How many rows of real cells the windows of the output row at hand have."""
    rows = 1
    for axis in range(args[f.RANK] - 1):
        _, first, end = real_taps(args, args[f.AXES] + axis * f.AXIS, frame[PLACE + axis])
        rows *= end - first
    return rows


@outlined
def tap_row(args, frame, r, array):
    """Where the ``r``-th of them begins in an array (−1: in a dense plane), and its cell on the first axis."""
    at, cell = 0, 0
    if array >= 0:
        at = frame[BASES + array]
    for axis in range(args[f.RANK] - 2, -1, -1):
        a = args[f.AXES] + axis * f.AXIS
        start, first, end = real_taps(args, a, frame[PLACE + axis])
        cell = start + (first + r % (end - first)) * args[a + f.DILATION]
        r = r // (end - first)
        at += cell * (dense_stride(args, axis) if array < 0 else args[a + f.STRIDES + array])
    return at, cell


def carrier(form: Format, is_back: bool) -> Any:
    """``carry(args, frame, last, sums, row, along, first, end, t)``: a row of sums to ``t``, staged, or back.

    Of a row that is shared by bands only the unit's own cells are carried.
    """
    number = form.computed

    def run(sums, to, t, at, n):
        for i in lanes(number, n):
            if is_back:
                sums[to + i] = t[at + i]
            else:
                t[at + i] = sums[to + i]

    def pairs(sums, to, t, at, length, n):
        for i in lanes(number, n):
            if is_back:
                put_strided(sums, to + 2 * i, (t[at + i], t[at + length + i]))
            else:
                a, b = strided(sums, to + 2 * i, 2)
                t[at + i] = a
                t[at + length + i] = b

    def every(sums, to, step, t, at, n):
        for i in range(n):
            if is_back:
                sums[to + i * step] = t[at + i]
            else:
                t[at + i] = sums[to + i * step]

    @outlined
    def carry(args, frame, last, sums, row, along, first, end, t):
        begin, stop, inside, outside = span(args, last, first, end)
        if args[f.RANK] == 1:
            inside = max(inside, frame[FIRST_CELL])
            outside = max(min(outside, frame[END_CELL]), inside)
        tile, stride = args[f.TILE_AT], args[last + f.STRIDE]
        length, to, j, n = phase_length(stop - begin, stride), row + inside * along, inside - begin, outside - inside
        if stride == 1 and along == 1:
            run(sums, to, t, tile + j, n)
        elif stride == 2 and along == 1 and n > 0:
            odd = j % 2
            every(sums, to, 1, t, tile + length + j // 2, odd)
            to, j, n = to + odd, j + odd, n - odd
            pairs(sums, to, t, tile + j // 2, length, n // 2)
            every(sums, to + n - 1, 1, t, tile + (j + n) // 2, n % 2)
        else:
            for i in range(min(stride, n)):
                here = tile + (j + i) % stride * length + (j + i) // stride
                every(sums, to + i * along, stride * along, t, here, (n - i + stride - 1) // stride)

    return carry


def sender(form: Format, in_units: bool, lowest: Any, contribution: Any) -> Any:
    """``send(args, frame, first, end, v, q, t, at)``: what the windows of an output row send to their cells in ``V``.

    A cell ``x`` of a window whose pivot is ``v`` and share ``q`` receives ``contribution(args, x, v, q)``. ``t`` has
    room for a row of cells, in which taps are added up before they go to ``V``. 16-bit cells are added up in the plane.
    """
    stored_pointer, number, converts = pointer_to(form.stored), form.computed, form.converts
    sum_pointer, stage, zero = pointer_to(number), stager(form, lowest, in_units), number(0)
    fetch_row, bring_row = carrier(form, False), carrier(form, True)
    widen, _ = form.functions()

    def target(args, frame, r):
        """Row ``r`` of taps: where its cells are added up, its first cell there, and whether this unit owns it."""
        n, cell = frame[NEIGHBOURS], 0
        if converts:
            at, cell = tap_row(args, frame, r, -1)
            at = (at - frame[FIRST_CELL] * dense_stride(args, 0)) * n
        else:
            at, cell = tap_row(args, frame, r, f.V)
        is_mine = args[f.RANK] == 1 or (cell >= frame[FIRST_CELL] and cell < frame[END_CELL])
        return at, is_mine

    def sums_of(args, frame):
        if converts:
            return sum_pointer(frame[WORKSPACE] + args[f.PLANE_AT])
        return sum_pointer(args[f.V])

    def steps_of(args, frame, last):
        """From one cell to the next along the last axis, and from one neighbour to the next."""
        if converts:
            return frame[NEIGHBOURS], 1
        return args[last + f.STRIDES + f.V], args[f.INNER_STRIDE + f.V]

    @outlined
    def add_taps(args, offsets, p, p_at, v, q, at, t, to, n):
        """The last tap first, so that every cell hears from its windows in their order, however they are cut up."""
        for k in range(args[args[f.AXES] + (args[f.RANK] - 1) * f.AXIS + f.KERNEL] - 1, -1, -1):
            here, there = p_at + offsets[k], to + offsets[k]
            for i in lanes_once(number, n):
                t[there + i] = t[there + i] + contribution(args, p[here + i], v[at + i], q[at + i])

    @outlined
    def send_rows(args, frame, first, end, v, q, t, at):
        last, sums = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS, sums_of(args, frame)
        along, _ = steps_of(args, frame, last)
        stride, tile = args[last + f.STRIDE], args[f.TILE_AT]
        for part in range(first, end, args[f.TILE]):
            stop_part = min(part + args[f.TILE], end)
            offsets = tap_offsets(args, frame, last, part, stop_part)
            begin, stop, _, _ = span(args, last, part, stop_part)
            room = phase_length(stop - begin, stride) * min(stride, stop - begin)
            for r in range(tap_rows(args, frame)):
                row, is_mine = target(args, frame, r)
                if is_mine:
                    x_row, _ = tap_row(args, frame, r, f.X)
                    p, p_at = stage(args, last, f.X, x_row, part, stop_part, stride, 0, v)
                    for i in lanes(number, room):
                        t[tile + i] = zero
                    fetch_row(args, frame, last, sums, row, along, part, stop_part, t)
                    add_taps(args, offsets, p, p_at, v, q, at + part - first, t, tile, stop_part - part)
                    bring_row(args, frame, last, sums, row, along, part, stop_part, t)

    @outlined
    def send_cell(args, x_at, x_step, v, q, here, sums, to, step, n):
        x, unit = stored_pointer(args[f.X]), number(1)
        if in_units:
            unit = number(float_of_bits(args[f.UNIT]))
        if x_step == 1 and step == 1:
            for i in lanes_once(number, n):
                cell = widen(x[x_at + i]) * unit
                sums[to + i] = sums[to + i] + contribution(args, cell, v[here + i], q[here + i])
        else:
            for i in range(n):
                cell = widen(x[x_at + i * x_step]) * unit
                sums[to + i * step] = sums[to + i * step] + contribution(args, cell, v[here + i], q[here + i])

    @outlined
    def send_cells(args, frame, first, end, v, q, at):
        """Windows one by one: with neighbours side by side, or of different lengths."""
        last, sums, n = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS, sums_of(args, frame), frame[NEIGHBOURS]
        along, step = steps_of(args, frame, last)
        along_x, step_x = args[last + f.STRIDES + f.X], args[f.INNER_STRIDE + f.X]
        for r in range(tap_rows(args, frame)):
            row, is_mine = target(args, frame, r)
            x_row, _ = tap_row(args, frame, r, f.X)
            for o in range(first, end):
                start, k_first, k_end = real_taps(args, last, o)
                for k in range(k_first, k_end):
                    cell, mine = start + k * args[last + f.DILATION], is_mine
                    if args[f.RANK] == 1:
                        mine = cell >= frame[FIRST_CELL] and cell < frame[END_CELL]
                    if mine:
                        here = at + (o - first) * n
                        send_cell(args, x_row + cell * along_x, step_x, v, q, here, sums, row + cell * along, step, n)

    def send(args, frame, first, end, v, q, t, at):
        last = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS
        if args[f.INNER_TOTAL] == 1 and args[last + f.KIND] == f.SLIDING:
            send_rows(args, frame, first, end, v, q, t, at)
        else:
            send_cells(args, frame, first, end, v, q, at)

    return send


def outputs_reader(form: Format) -> Any:
    """``read(args, frame, array, first, end, t, at)``: outputs first … end−1 of a row, with neighbours, to ``t``."""
    stored_pointer, number = pointer_to(form.stored), form.computed
    widen, _ = form.functions()

    @outlined
    def read(args, frame, array, first, end, t, at):
        x, n = stored_pointer(args[array]), frame[NEIGHBOURS]
        last = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS
        step, inner = args[last + f.STRIDES + array], args[f.INNER_STRIDE + array]
        here = output_at(args, frame, array) + first * step
        if n == 1 and step == 1:
            for i in lanes(number, end - first):
                t[at + i] = widen(x[here + i])
        else:
            for o in range(end - first):
                for i in range(n):
                    t[at + o * n + i] = widen(x[here + o * step + i * inner])

    return read
