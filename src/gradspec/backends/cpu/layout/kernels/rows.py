"""Rows of arrays: where they lie, and how they are copied, filled and written."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.language import i64, inlined, lanes, outlined, pointer, strided, u8, u16, u32, u64

BITS = {number.bytes: NumberFormat(number.name, number, number, number) for number in (u8, u16, u32, u64)}
"""The formats of numbers of so many bytes that only move, whatever their bits mean."""

words_at = pointer(i64)


class Piece(NamedTuple):
    """A piece of a row of results: where its plane begins in the source and itself in the target, its number in the
    row, and its results ``first … end−1``."""

    source: Any
    target: Any
    number: Any
    first: Any
    end: Any


@inlined
def last_axis(args):
    return args.axes[len(args.axes) - 1]


def offsets(grid, place):
    """Where a place of a grid, counted along all its axes, lies in source and target."""
    source, target, rest = 0, 0, place
    for a in range(len(grid.axes) - 1, -1, -1):
        axis = grid.axes[a]
        i, rest = rest % axis.size, rest // axis.size
        source += i * axis.source_stride
        target += i * axis.target_stride
    return source, target


def piece_of(args, unit, place):
    """The piece that a unit makes; the place of its row along every axis but the last goes to ``place``."""
    pieces, last = args.pieces, last_axis(args)
    row, number = unit // pieces.tiles, unit % pieces.tiles
    source, target = offsets(pieces.planes, row // pieces.rows)
    rest = row % pieces.rows
    for a in range(len(args.axes) - 2, -1, -1):
        axis = args.axes[a]
        place[a], rest = rest % axis.size, rest // axis.size
        target += place[a] * axis.target_stride
    first = number * pieces.tile
    end = min(first + pieces.tile, last.size)
    return Piece(source, target + first * last.target_stride, number, first, end)


@inlined
def tap_range(axis, tap):
    """The cell that a tap of output 0 is, real or not, the first output whose cell is real, and the end of these."""
    return axis.ranges[3 * tap], axis.ranges[3 * tap + 1], axis.ranges[3 * tap + 2]


@outlined
def copy_row(form, target, jump, source, step, n):
    """Numbers ``step`` bytes apart to places ``jump`` bytes apart."""
    y, x, width = form.stored_at(target), form.stored_at(source), form.stored.bytes
    if jump == width and step == width:
        for i in lanes(form.stored, n):
            y[i] = x[i]
    elif jump == width and step == 2 * width and n > 0:
        for i in lanes(form.stored, n - 1):  # the last pair may end beyond the array
            even, _ = strided(x, 2 * i, 2)
            y[i] = even
        y[n - 1] = x[2 * (n - 1)]
    else:
        for i in range(n):
            form.stored_at(target + i * jump)[0] = form.stored_at(source + i * step)[0]


@outlined
def fill_row(form, target, jump, bits, n):
    y = form.stored_at(target)
    if jump == form.stored.bytes:
        for i in lanes(form.stored, n):
            y[i] = bits
    else:
        for i in range(n):
            form.stored_at(target + i * jump)[0] = bits


@inlined
def clear(form, sums, n):
    for i in lanes(form.computed, n):
        sums[i] = form.computed(0)


@outlined
def write_row(form, y, y_at, stride, sums, at, n):
    """Numbers as they are computed with to a row of the target."""
    if stride == 1:
        for i in lanes(form.computed, n):
            y[y_at + i] = form.narrow(sums[at + i])
    else:
        for i in range(n):
            y[y_at + i * stride] = form.narrow(sums[at + i])
