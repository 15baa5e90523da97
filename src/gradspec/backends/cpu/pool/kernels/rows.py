"""Rows of cells read from memory, and finished rows of outputs written to it."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradspec.backends.cpu.conv.kernels.packing import Strided, turn
from gradspec.backends.cpu.pool.arguments import AxisKind, Role
from gradspec.codegen.intrinsics import address_of, multiply_add, prefetch, prefetch_to_write
from gradspec.codegen.language import inlined, lanes, lanes_once, outlined

CACHE_LINE = 64
AHEAD = 1024
"""How many elements ahead a sequential read prefetches."""


class Row(NamedTuple):
    """Adjacent cells; cell 0 is, or would be, ``p[at]``."""

    p: Any
    at: Any


class CellRows(NamedTuple):
    """Rows of cells, and of tangents, which lie ``shift`` further in their array."""

    x: Any
    u: Any
    shift: Any


class Taps(NamedTuple):
    """Where a window begins on its axis, and its first and end tap among real cells."""

    start: Any
    first: Any
    end: Any


class Span(NamedTuple):
    """The cells ``begin … stop−1`` that some outputs read; ``inside … outside−1`` are real."""

    begin: Any
    stop: Any
    inside: Any
    outside: Any


@inlined
def ceil_div(a, b):
    return -((-a) // b)


@inlined
def last_axis(args):
    return args.axes[len(args.axes) - 1]


@outlined
def real_taps(axis, o):
    """The real cells of window ``o``."""
    if axis.kind == AxisKind.BINS:
        return Taps(axis.spans[2 * o], 0, axis.spans[2 * o + 1])
    start, dilation = o * axis.stride - axis.low, axis.dilation
    if dilation == 1:
        first = max(0, -start)
        return Taps(start, first, max(min(axis.kernel, axis.size - start), first))
    first = 0 if start >= 0 else ceil_div(-start, dilation)
    return Taps(start, first, max(min(axis.kernel, ceil_div(axis.size - start, dilation)), first))


def span_of(axis, first, end):
    """The cells that outputs first … end−1 of sliding windows read."""
    begin = first * axis.stride - axis.low
    stop = (end - 1) * axis.stride - axis.low + axis.dilation * (axis.kernel - 1) + 1
    inside = min(max(0, begin), stop)
    return Span(begin, stop, inside, max(min(axis.size, stop), inside))


@inlined
def quotient(value, head, rest):
    """``value/d`` rounded, from ``1/d = head + rest`` (see ``inverse``)."""
    return multiply_add(value, head, value * rest)


def cell_rows(args):
    """Rows of cells at one index of the first axis."""
    rows = 1
    for i in range(1, len(args.axes) - 1):
        rows *= args.axes[i].size
    return rows


def cell_row(args, unit, role, cell, r):
    """Where row ``r`` of those at ``cell`` begins in an array."""
    at, rest = unit.bases[role] + cell * args.axes[0].strides[role], r
    for i in range(len(args.axes) - 2, 0, -1):
        axis = args.axes[i]
        at += rest % axis.size * axis.strides[role]
        rest = rest // axis.size
    return at


# --- cells ------------------------------------------------------------------------------------------------------------


@inlined
def cells_and_tangents(form, work):
    """The rows of the plane of a unit, where tangents lie as cells do."""
    x, u = form.stored_at(work.args.arrays[Role.X]), form.stored_at(work.args.arrays[Role.U])
    return CellRows(x, u, work.unit.bases[Role.U] - work.unit.bases[Role.X])


@inlined
def read_row(form, args, axis, role, source, count, begin, end, t, at):
    """Cells begin … end−1 of the row of an array that begins at ``source``, where they are or copied to ``t[at …]``."""
    if not form.converts and axis.strides[role] == 1 and not args.scales_input:
        return Row(form.stored_at(args.arrays[role]), source)
    return copied_row(form, args, axis, role, source, count, begin, end, t, at)


def copied_row(form, args, axis, role, source, count, begin, end, t, at):
    """Copy a row as ``read_row`` does. If the input is to be divided, it is divided here: by ``count`` times the taps
    of each cell if windows have different divisors."""
    x, step, number = form.stored_at(args.arrays[role]), axis.strides[role], form.computed
    if form.is_float and args.scales_input and args.inverse != 0.0 and step == 1:
        head, rest = number(args.inverse), number(args.inverse_rest)
        for i in lanes(number, end - begin):
            t[at + i] = quotient(form.widen(x[source + begin + i]), head, rest)
        return Row(t, at - begin)
    if step == 1:
        for i in lanes(number, end - begin):
            t[at + i] = form.widen(x[source + begin + i])
    else:
        for i in range(end - begin):
            t[at + i] = form.widen(x[source + (begin + i) * step])
    if form.is_float and args.scales_input:
        divisor = number(args.divisor)
        if divisor != number(0):
            for i in lanes_once(number, end - begin):
                t[at + i] = t[at + i] / divisor
        else:
            for i in range(end - begin):
                t[at + i] = t[at + i] / number(count * axis.counted[begin + i])
    return Row(t, at - begin)


def read_neighbours(form, args, role, source, count, t, at, n):
    """Copy neighbours of the inner run to ``t[at …]``."""
    x, step, number = form.stored_at(args.arrays[role]), args.inner_strides[role], form.computed
    if step == 1:
        for i in lanes(number, n):
            t[at + i] = form.widen(x[source + i])
    else:
        for i in range(n):
            t[at + i] = form.widen(x[source + i * step])
    if form.is_float and args.scales_input:
        divisor = number(args.divisor)
        scale = divisor if divisor != number(0) else number(count)
        for i in lanes_once(number, n):
            t[at + i] = t[at + i] / scale


@inlined
def fetch_row(form, args, role, at, n):
    """Prefetch ``n`` cells of an array that will be read soon."""
    p = form.stored_at(args.arrays[role])
    for i in range(0, n, CACHE_LINE // form.stored.bytes):
        prefetch(p, at + i)


@inlined
def fetch_to_write(form, args, role, at, n):
    """Prefetch ``n`` cells of an array that will be written soon."""
    p = form.stored_at(args.arrays[role])
    for i in range(0, n, CACHE_LINE // form.stored.bytes):
        prefetch_to_write(p, at + i)


# --- outputs ----------------------------------------------------------------------------------------------------------


def write_row(form, args, unit, role, first, end, v, at):
    """Write outputs first … end−1 of the current row, and their neighbours."""
    y, n, axis, number = form.stored_at(args.arrays[role]), unit.neighbours, last_axis(args), form.computed
    step, inner_step = axis.strides[role], args.inner_strides[role]
    to = output_at(args, unit, role) + first * step
    if n == 1 and step == 1:
        for i in lanes(number, end - first):
            y[to + i] = form.narrow(v[at + i])
    elif n == 1:
        for i in range(end - first):
            y[to + i * step] = form.narrow(v[at + i])
    elif not form.converts and step == 1:
        width = form.stored.bytes
        turn(form, Strided(address_of(v) + at * width, n, 1), end - first, n, address_of(y) + to * width, inner_step)
    elif inner_step == 1:
        for o in range(end - first):
            for i in lanes(number, n):
                y[to + o * step + i] = form.narrow(v[at + o * n + i])
    else:
        for o in range(end - first):
            for i in range(n):
                y[to + o * step + i * inner_step] = form.narrow(v[at + o * n + i])


@inlined
def write_values(form, work, first, end, target):
    """Write the values of outputs first … end−1 of the current row, if they are wanted and not in Y already."""
    args = work.args
    if args.arrays[Role.Y] != 0 and not args.is_direct:
        write_row(form, args, work.unit, Role.Y, first, end, target.cells.value, target.at)


@outlined
def read_outputs(form, args, unit, role, first, end, t, at):
    """Read outputs first … end−1 of the current row, and their neighbours, to ``t``."""
    x, n, axis = form.stored_at(args.arrays[role]), unit.neighbours, last_axis(args)
    step, inner_step = axis.strides[role], args.inner_strides[role]
    here = output_at(args, unit, role) + first * step
    if n == 1 and step == 1:
        for i in lanes(form.computed, end - first):
            t[at + i] = form.widen(x[here + i])
    else:
        cells = Strided(address_of(x) + here * form.stored.bytes, inner_step, step)
        turn(form, cells, n, end - first, address_of(t) + at * form.computed.bytes, n)


def output_at(args, unit, role):
    """Where the current output row begins in an array of outputs."""
    at = unit.bases[role]
    for i in range(len(args.axes) - 1):
        at += unit.place[i] * args.axes[i].strides[role]
    return at


def output_row(args, unit):
    """The number of the current output row."""
    row = 0
    for i in range(len(args.axes) - 1):
        row = row * args.axes[i].outputs + unit.place[i]
    return row


def origin_at(args, unit, role):
    """Where the windows of the current output row begin in an array of cells, but for the last axis."""
    at = unit.bases[role]
    for i in range(len(args.axes) - 1):
        axis = args.axes[i]
        at += real_taps(axis, unit.place[i]).start * axis.strides[role]
    return at


def rows_have_cells(args, unit):
    """Whether the windows of the current output row have real cells on every axis but the last."""
    for i in range(len(args.axes) - 1):
        taps = real_taps(args.axes[i], unit.place[i])
        if taps.first >= taps.end:
            return False
    return True


def counted_before_last(args, unit):
    """The taps that the windows of the current output row count on every axis but the last."""
    count = 1
    for i in range(len(args.axes) - 1):
        count *= args.axes[i].counted[unit.place[i]]
    return count


def real_before_last(args, unit):
    """The real cells of the windows of the current output row on every axis but the last."""
    count = 1
    for i in range(len(args.axes) - 1):
        count *= args.axes[i].real[unit.place[i]]
    return count


# --- dense planes -----------------------------------------------------------------------------------------------------


def dense_stride(args, number):
    """From one cell to the next along an axis, in a dense plane."""
    stride = 1
    for later in range(number + 1, len(args.axes)):
        stride *= args.axes[later].size
    return stride


def is_dense(args, role):
    """Whether a plane of an array is dense, and so its first cells are a run."""
    for i in range(len(args.axes)):
        if args.axes[i].strides[role] != dense_stride(args, i):
            return False
    return True


def dense_origin(args, unit):
    """``origin_at`` in a dense plane that begins at 0."""
    at = 0
    for i in range(len(args.axes) - 1):
        at += real_taps(args.axes[i], unit.place[i]).start * dense_stride(args, i)
    return at
