"""Windows tap by tap: rows staged so that every tap is a run, and the scatter of contributions back to the cells.

A row is staged for a tile of outputs, with its padding filled in and, at a stride ``s``, split into ``s`` phases of the
cells ``r, r + s, r + 2s, …``. Tap ``k`` of adjacent outputs then lies at adjacent places, ``offsets[k]`` after those of
the first tap, for any stride and dilation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gradspec.backends.cpu.pool.arguments import AxisKind, Role
from gradspec.backends.cpu.pool.kernels.rows import Row, dense_stride, last_axis, read_row, real_taps, span_of
from gradspec.backends.cpu.pool.kernels.vjp_accumulators import IN_DENSE_PLANE, cell_sums
from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.language import Value, i64, inlined, lanes, lanes_once, outlined, pointer, put_strided, strided

words_at = pointer(i64)


@dataclass(frozen=True)
class Staging:
    """How rows are staged: what padding reads as, and whether numbers are multiplied by the unit of smooth pooling."""

    form: NumberFormat
    pads_with: float
    in_units: bool = False

    @property
    def fill(self) -> Value:
        return self.form.computed(self.pads_with)


def phase_length(length, phases):
    return (length + phases - 1) // phases


@outlined
def tap_offsets(args, unit, axis, first, end):
    """Fill the table of where the taps of outputs first … end−1 lie in a staged row."""
    span, offsets, stride = span_of(axis, first, end), words_at(unit.workspace + args.table_at), axis.stride
    length = phase_length(span.stop - span.begin, stride)
    for k in range(axis.kernel):
        cell = k * axis.dilation
        offsets[k] = cell % stride * length + cell // stride
    return offsets


# --- staged rows ------------------------------------------------------------------------------------------------------


def stage_in_two(number, t, tile, length, p, at, j, n, unit):
    """Stage cells from an even one, the ``j``-th, on in two phases."""
    to = tile + j // 2
    for i in lanes(number, n // 2):
        a, b = strided(p, at + 2 * i, 2)
        t[to + i] = a * unit
        t[to + length + i] = b * unit
    if n % 2 != 0:
        t[to + n // 2] = p[at + n - 1] * unit


def stage_in_many(t, tile, length, p, at, j, n, phases, unit):
    for i in range(min(phases, n)):
        to = tile + (j + i) % phases * length + (j + i) // phases
        for m in range((n - i + phases - 1) // phases):
            t[to + m] = p[at + i + m * phases] * unit


def stage_padding(t, tile, length, first, end, phases, fill):
    for cell in range(first, end):
        t[tile + cell % phases * length + cell // phases] = fill


@outlined
def stage(staged, args, axis, role, source, first, end, phases, copies, t):
    """Stage the cells of outputs first … end−1 of a row that begins at ``source``, in ``phases`` phases.

    Padding reads as ``staged.fill``, and numbers are multiplied by the unit of smooth pooling if ``staged.in_units``.
    The row stays where it is if it can, unless ``copies``; else it is laid out in ``t``.
    """
    number, span, tile = staged.form.computed, span_of(axis, first, end), args.tile_at
    room = tile + 2 * args.tile_room
    row = read_row(staged.form, args, axis, role, source, 1, span.inside, span.outside, t, room)
    unit = number(1)
    if staged.in_units:
        unit = number(args.unit)
    is_whole = span.inside == span.begin and span.outside == span.stop
    if phases == 1 and not copies and is_whole and unit == number(1):
        return Row(row.p, row.at + span.begin)
    length, j, n = phase_length(span.stop - span.begin, phases), span.inside - span.begin, span.outside - span.inside
    p, at = row.p, row.at + span.inside
    if phases == 1:
        for i in lanes(number, n):
            t[tile + j + i] = p[at + i] * unit
    elif phases == 2 and n > 0:
        odd = j % 2
        if odd != 0:
            t[tile + length + j // 2] = p[at] * unit
        stage_in_two(number, t, tile, length, p, at + odd, j + odd, n - odd, unit)
    else:
        stage_in_many(t, tile, length, p, at, j, n, phases, unit)
    stage_padding(t, tile, length, 0, j, phases, staged.fill)
    stage_padding(t, tile, length, j + n, span.stop - span.begin, phases, staged.fill)
    return Row(t, tile)


# --- the rows of taps of an output row --------------------------------------------------------------------------------


@outlined
def tap_rows(args, unit):
    """How many rows of real cells the windows of the current output row have."""
    rows = 1
    for i in range(len(args.axes) - 1):
        real = real_taps(args.axes[i], unit.place[i])
        rows *= real.end - real.first
    return rows


@outlined
def tap_row(args, unit, r, role):
    """Where the ``r``-th of these rows begins in an array (−1: in a dense plane), and its cell on the first axis."""
    at, cell = 0, 0
    if role >= 0:
        at = unit.bases[role]
    for i in range(len(args.axes) - 2, -1, -1):
        axis = args.axes[i]
        real = real_taps(axis, unit.place[i])
        count = real.end - real.first
        cell = real.start + (real.first + r % count) * axis.dilation
        r = r // count
        at += cell * (dense_stride(args, i) if role < 0 else axis.strides[role])
    return at, cell


# --- rows of sums, copied to the staged row and back ------------------------------------------------------------------


class Way(Enum):
    """The direction of a copy: from the sums to the staged row, or back."""

    THERE, BACK = range(2)


def carry_run(number, way, sums, to, t, at, n):
    for i in lanes(number, n):
        if way is Way.BACK:
            sums[to + i] = t[at + i]
        else:
            t[at + i] = sums[to + i]


def carry_pairs(number, way, sums, to, t, at, length, n):
    for i in lanes(number, n):
        if way is Way.BACK:
            put_strided(sums, to + 2 * i, (t[at + i], t[at + length + i]))
        else:
            a, b = strided(sums, to + 2 * i, 2)
            t[at + i] = a
            t[at + length + i] = b


def carry_every(way, sums, to, step, t, at, n):
    for i in range(n):
        if way is Way.BACK:
            sums[to + i * step] = t[at + i]
        else:
            t[at + i] = sums[to + i * step]


@outlined
def carry(number, way, args, unit, axis, sums, row, first, end, t):
    """Copy a row of sums that begins at ``row`` to its staged form in ``t``, or back.

    Of a row that bands share, only the unit's own cells are copied.
    """
    span, tile, stride, along = span_of(axis, first, end), args.tile_at, axis.stride, sums.along
    inside, outside = span.inside, span.outside
    if len(args.axes) == 1:
        inside = max(inside, unit.first_cell)
        outside = max(min(outside, unit.end_cell), inside)
    length = phase_length(span.stop - span.begin, stride)
    to, j, n = row + inside * along, inside - span.begin, outside - inside
    if stride == 1 and along == 1:
        carry_run(number, way, sums.p, to, t, tile + j, n)
    elif stride == 2 and along == 1 and n > 0:
        odd = j % 2
        carry_every(way, sums.p, to, 1, t, tile + length + j // 2, odd)
        to, j, n = to + odd, j + odd, n - odd
        carry_pairs(number, way, sums.p, to, t, tile + j // 2, length, n // 2)
        carry_every(way, sums.p, to + n - 1, 1, t, tile + (j + n) // 2, n % 2)
    else:
        for i in range(min(stride, n)):
            here = tile + (j + i) % stride * length + (j + i) // stride
            carry_every(way, sums.p, to + i * along, stride * along, t, here, (n - i + stride - 1) // stride)


# --- scatter to the cells of windows ----------------------------------------------------------------------------------


@inlined
def target_row(form, args, unit, r):
    """Where the first cell of row ``r`` of taps is summed, and whether this unit owns the row."""
    if form.converts:
        at, cell = tap_row(args, unit, r, IN_DENSE_PLANE)
        at = (at - unit.first_cell * dense_stride(args, 0)) * unit.neighbours
    else:
        at, cell = tap_row(args, unit, r, Role.V)
    return at, len(args.axes) == 1 or (cell >= unit.first_cell and cell < unit.end_cell)


@outlined
def scatter_taps(sent, args, axis, offsets, row, v, q, at, t, to, n):
    """Add the last tap first, so that every cell adds its windows in order, however outputs are tiled."""
    setting = sent.setting(args)
    for k in range(axis.kernel - 1, -1, -1):
        here, there = row.at + offsets[k], to + offsets[k]
        for i in lanes_once(sent.form.computed, n):
            t[there + i] = t[there + i] + sent.contribution(setting, row.p[here + i], v[at + i], q[at + i])


@outlined
def scatter_rows(sent, args, unit, first, end, v, q, t, at):
    form, number, axis, tile = sent.form, sent.form.computed, last_axis(args), args.tile_at
    sums, stride = cell_sums(form, args, unit), axis.stride
    for part in range(first, end, args.tile):
        stop = min(part + args.tile, end)
        offsets, span = tap_offsets(args, unit, axis, part, stop), span_of(axis, part, stop)
        room = phase_length(span.stop - span.begin, stride) * min(stride, span.stop - span.begin)
        for r in range(tap_rows(args, unit)):
            row, is_mine = target_row(form, args, unit, r)
            if is_mine:
                x_row, _ = tap_row(args, unit, r, Role.X)
                staged = stage(sent.staged, args, axis, Role.X, x_row, part, stop, stride, False, v)
                for i in lanes(number, room):
                    t[tile + i] = number(0)
                carry(number, Way.THERE, args, unit, axis, sums, row, part, stop, t)
                scatter_taps(sent, args, axis, offsets, staged, v, q, at + part - first, t, tile, stop - part)
                carry(number, Way.BACK, args, unit, axis, sums, row, part, stop, t)


@outlined
def scatter_cell(sent, args, x_at, v, q, here, sums, to, n):
    """Add the contribution of a window to one cell and its neighbours."""
    form, number, setting = sent.form, sent.form.computed, sent.setting(args)
    x, x_step, unit = form.stored_at(args.arrays[Role.X]), args.inner_strides[Role.X], number(1)
    if sent.staged.in_units:
        unit = number(args.unit)
    if x_step == 1 and sums.inner == 1:
        for i in lanes_once(number, n):
            cell = form.widen(x[x_at + i]) * unit
            sums.p[to + i] = sums.p[to + i] + sent.contribution(setting, cell, v[here + i], q[here + i])
    else:
        for i in range(n):
            cell, there = form.widen(x[x_at + i * x_step]) * unit, to + i * sums.inner
            sums.p[there] = sums.p[there] + sent.contribution(setting, cell, v[here + i], q[here + i])


@outlined
def scatter_cells(sent, args, unit, first, end, v, q, at):
    """Scatter window by window, with neighbours side by side."""
    axis, n, sums = last_axis(args), unit.neighbours, cell_sums(sent.form, args, unit)
    for r in range(tap_rows(args, unit)):
        row, is_mine = target_row(sent.form, args, unit, r)
        x_row, _ = tap_row(args, unit, r, Role.X)
        for o in range(first, end):
            real = real_taps(axis, o)
            for k in range(real.first, real.end):
                cell, mine = real.start + k * axis.dilation, is_mine
                if len(args.axes) == 1:
                    mine = cell >= unit.first_cell and cell < unit.end_cell
                if mine:
                    x_at, here = x_row + cell * axis.strides[Role.X], at + (o - first) * n
                    scatter_cell(sent, args, x_at, v, q, here, sums, row + cell * sums.along, n)


@inlined
def scatter_run(sent, args, x_at, top, share, sums, to, n):
    """Add the contribution of a bin to its cells along the last axis."""
    form, number, setting = sent.form, sent.form.computed, sent.setting(args)
    x, x_step, unit = form.stored_at(args.arrays[Role.X]), last_axis(args).strides[Role.X], number(1)
    if sent.staged.in_units:
        unit = number(args.unit)
    if x_step == 1 and sums.along == 1:
        for i in lanes_once(number, n):
            cell = form.widen(x[x_at + i]) * unit
            sums.p[to + i] = sums.p[to + i] + sent.contribution(setting, cell, top, share)
    else:
        for i in range(n):
            cell, there = form.widen(x[x_at + i * x_step]) * unit, to + i * sums.along
            sums.p[there] = sums.p[there] + sent.contribution(setting, cell, top, share)


@outlined
def scatter_bins(sent, args, unit, first, end, v, q, at):
    """Scatter bin by bin, to the cells of this unit."""
    axis, sums = last_axis(args), cell_sums(sent.form, args, unit)
    for r in range(tap_rows(args, unit)):
        row, is_mine = target_row(sent.form, args, unit, r)
        x_row, _ = tap_row(args, unit, r, Role.X)
        if is_mine:
            for o in range(first, end):
                real, here = real_taps(axis, o), at + o - first
                begin, stop = real.start, real.start + real.end
                if len(args.axes) == 1:
                    begin, stop = max(begin, unit.first_cell), min(stop, unit.end_cell)
                x_at, to = x_row + begin * axis.strides[Role.X], row + begin * sums.along
                scatter_run(sent, args, x_at, v[here], q[here], sums, to, stop - begin)


def scatter_to_cells(sent, args, unit, first, end, v, q, t, at):
    """Scatter the windows of an output row to their cells in V: a cell ``x`` of a window with pivot ``v`` and share
    ``q`` receives ``sent.contribution(setting, x, v, q)``.

    ``t`` has room for a row of cells, in which taps are added up before they go to V. 16-bit cells are added up in the
    float32 plane.
    """
    if args.inner_total == 1 and last_axis(args).kind == AxisKind.SLIDING:
        scatter_rows(sent, args, unit, first, end, v, q, t, at)
    elif args.inner_total == 1:
        scatter_bins(sent, args, unit, first, end, v, q, at)
    else:
        scatter_cells(sent, args, unit, first, end, v, q, at)
