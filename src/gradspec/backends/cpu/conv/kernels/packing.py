"""Weights in panels: of each case, group and chunk, in that order, which are the units of work.

They begin with a flag for each unit, which says whether some of its numbers are not finite. To pack is to turn matrices
over: rows become columns, a few at a time in registers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gradspec.backends.cpu.layout.kernels.layout import transposed
from gradspec.backends.cpu.matmul.kernels.panels import widened
from gradspec.backends.cpu.matmul.kernels.tiles import words_at
from gradspec.codegen.intrinsics import store
from gradspec.codegen.language import i64, inlined, lanes, outlined, total, unrolled

SIDES = 8, 4
"""Of squares, the first that fits, and of numbers of 64 bits the last: larger ones take fewer instructions for each
number, and more registers."""


class Strided(NamedTuple):
    """A matrix in an array: where it begins, and the elements between rows and between columns."""

    source: Any
    row_step: Any
    column_step: Any


@outlined
def turn(form, matrix, rows, columns, to, pitch):
    """Cell ``i, j`` to ``to[j·pitch + i]``, counted in elements."""
    if matrix.row_step == 1:
        for j in range(columns):
            x, y = column_of(form, matrix, j), form.computed_at(to + j * pitch * form.computed.bytes)
            for i in lanes(form.computed, rows):
                y[i] = form.widen(x[i])
    elif matrix.column_step != 1 or min(rows, columns) < SIDES[-1]:
        turn_cells(form, matrix, rows, columns, to, pitch)
    elif min(rows, columns) < SIDES[0] or form.computed.bytes > 4:
        turn_squares(form, form.stored.of(SIDES[1]), matrix, rows, columns, to, pitch)
    else:
        turn_squares(form, form.stored.of(SIDES[0]), matrix, rows, columns, to, pitch)


@inlined
def column_of(form, matrix, j):
    return form.stored_at(matrix.source + j * matrix.column_step * form.stored.bytes)


@outlined
def turn_cells(form, matrix, rows, columns, to, pitch):
    for j in range(columns):
        x, y = column_of(form, matrix, j), form.computed_at(to + j * pitch * form.computed.bytes)
        for i in range(rows):
            y[i] = form.widen(x[i * matrix.row_step])


@outlined
def turn_squares(form, vector, matrix, rows, columns, to, pitch):
    """Neighbouring columns lie side by side; the last square of a row reaches back over the one before."""
    width, size, side = form.stored.bytes, form.computed.bytes, vector.lanes
    step, jump, rest = matrix.row_step * width, pitch * size, columns % side
    for i in range(0, rows, side):
        top = min(i, rows - side)
        source, target = matrix.source + top * step, to + top * size
        for _ in range(columns // side):
            turn_square(form, vector, source, step, target, jump)
            source, target = source + side * width, target + side * jump
        if rest > 0:
            turn_square(form, vector, source - (side - rest) * width, step, target - (side - rest) * jump, jump)


@inlined
def turn_square(form, vector, source, step, target, jump):
    read = tuple(widened(form, vector, source + step * i) for i in range(vector.lanes))
    columns = transposed(read)
    for i in unrolled(vector.lanes):
        store(columns[i], target + jump * i)


# --- panels -----------------------------------------------------------------------------------------------------------


@inlined
def doubt(a, b):
    """0 if both are finite, and otherwise NaN."""
    return (a - a) + (b - b)


@outlined
def pack_panel(conv, args, case, source, to, rows, channels):
    """One panel of ``rows`` rows; whether some of its numbers are not finite."""
    form, width, size = conv.form, conv.form.stored.bytes, conv.form.computed.bytes
    stretch = case.taps if case.are_neighbours else 1
    if case.are_neighbours and args.channel_step == stretch:
        stretch *= channels
    for k in range(0, channels * case.taps, stretch):
        place = k // case.taps * args.channel_step + case.table[k % case.taps]
        turn(form, Strided(source + place * width, args.row_step, 1), rows, stretch, to + k * rows * size, rows)
    return total(doubt, form.computed(0), form.computed_at(to), 0, rows * channels * case.taps) != form.computed(0)


@outlined
def pack_chunk(conv, args, case, group, first, channels, to):
    """All panels of a chunk of channels, the highest first."""
    width, size, rows, k = conv.form.stored.bytes, conv.form.computed.bytes, args.rows, channels * case.taps
    source = args.weights + (group * args.group_step + first * args.channel_step) * width
    done, height, found = 0, conv.processor.most_rows, False
    while done < rows:
        while height > rows - done:
            height //= 2
        place = source + done * args.row_step * width
        found = found | pack_panel(conv, args, case, place, to + done * k * size, height, channels)
        done += height
    return found


def pack_weights(conv, args, lo, hi, workspace):
    chunks, flags = (args.channels + args.chunk - 1) // args.chunk, words_at(args.target)
    for unit in range(lo, hi):
        piece, group = unit % chunks, unit // chunks % args.groups
        case, first = args.cases[unit // (chunks * args.groups)], piece * args.chunk
        place = case.first + (group * args.channels + first) * case.taps * args.rows
        here = args.target + args.panels_at + place * conv.form.computed.bytes
        flags[unit] = i64(pack_chunk(conv, args, case, group, first, min(args.chunk, args.channels - first), here))
