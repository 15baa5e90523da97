"""Unfolding, windows as columns, for every size of a number; and folding, which adds columns back, for every format.

A unit of unfolding is one tap of one plane: a plane of outputs, copied in rows, with zeros where the tap lies outside.

A unit of folding is a piece of a row of cells. All windows that reach the row are added up in the order of their taps,
so that a cell's sum is the one that the specification writes. Along the row, cells that are ``stride`` apart are
neighbours while they are added up: then so are the columns that belong to them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gradspec.backends.cpu.arguments import PLACE_BYTES
from gradspec.backends.cpu.layout.arguments import FoldArguments, UnfoldArguments
from gradspec.backends.cpu.layout.kernels.rows import (
    BITS,
    clear,
    copy_row,
    fill_row,
    last_axis,
    offsets,
    piece_of,
    tap_range,
    words_at,
    write_row,
)
from gradspec.codegen.formats import FORMATS
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import inlined, lanes_once, outlined
from gradspec.codegen.translation import kernel_code


def build(name: str) -> str:
    """The code of the kernel called ``"unfold:4"`` for numbers of four bytes, or ``"fold:f32"``."""
    operation, _, format = name.partition(":")
    if operation == "unfold":
        return kernel_code(unfold, UnfoldArguments, BITS[int(format)])
    return kernel_code(fold, FoldArguments, FORMATS[format])


# --- unfold -----------------------------------------------------------------------------------------------------------


class TapRow(NamedTuple):
    """A row of outputs of a tap: how many, their strides, and which of them read real cells."""

    n: Any
    step: Any
    jump: Any
    first: Any
    end: Any


@inlined
def tap_row(args, taps):
    last = len(args.axes) - 1
    axis = args.axes[last]
    _, first, end = tap_range(axis, taps[last])
    return TapRow(axis.size, axis.source_stride, axis.target_stride, first, end)


@inlined
def unfold_row(form, row, is_real, x, y):
    """All is padding without ``is_real``; ``x`` is the cell of the first output, real or not."""
    n, step, jump, first, end = row
    if not is_real:
        first, end = n, n
    if first > 0:
        fill_row(form, y, jump, form.stored(0), first)
    if end > first:
        copy_row(form, y + first * jump, jump, x + first * step, step, end - first)
    if n > end:
        fill_row(form, y + end * jump, jump, form.stored(0), n - end)


def unfold_rows(form, args, taps, a, is_real, x, y):
    """The rows along the axes from number ``a`` on."""
    axis, is_inner, row = args.axes[a], a == len(args.axes) - 2, tap_row(args, taps)
    (_, first, end), step, jump = tap_range(axis, taps[a]), axis.source_stride, axis.target_stride
    for o in range(axis.size):
        is_inside = is_real & (o >= first) & (o < end)
        if is_inner:
            unfold_row(form, row, is_inside, x, y)
        else:
            unfold_rows(form, args, taps, a + 1, is_inside, x, y)
        x += step
        y += jump


def unfold(form, args, lo, hi, workspace):
    taps, last = words_at(address_of(workspace)), len(args.axes) - 1
    for unit in range(lo, hi):
        (x, y), rest = offsets(args.planes, unit // args.taps), unit % args.taps
        x, y = x + args.x, y + args.y
        for a in range(last, -1, -1):
            axis = args.axes[a]
            taps[a], rest = rest % axis.kernel, rest // axis.kernel
            start, _, _ = tap_range(axis, taps[a])
            x += start * axis.cell_stride
            y += taps[a] * axis.tap_stride
        if last == 0:
            unfold_row(form, tap_row(args, taps), True, x, y)
        else:
            unfold_rows(form, args, taps, 0, True, x, y)


# --- fold -------------------------------------------------------------------------------------------------------------


@inlined
def ceil_div(a, b):
    return -((-a) // b)


@outlined
def range_between(axis, tap, first, end):
    """The outputs whose cell is one of ``first … end−1``."""
    start, least, most = tap_range(axis, tap)
    a = min(max(ceil_div(first - start, axis.stride), least), most)
    return start, a, max(min(ceil_div(end - start, axis.stride), most), a)


@outlined
def add_row(form, sums, at, x, x_at, step, n):
    if step == 1:
        for i in lanes_once(form.computed, n):
            sums[at + i] = sums[at + i] + form.widen(x[x_at + i])
    else:
        for i in range(n):
            sums[at + i] = sums[at + i] + form.widen(x[x_at + i * step])


def add_columns(form, args, axis, sums, x_at, piece):
    """What the taps of the last axis add to a piece: each a run of columns."""
    stride, step, x = axis.stride, axis.source_stride, form.stored_at(args.x)
    for k in range(axis.kernel):
        start, first, end = tap_range(axis, k)
        if args.pieces.tiles > 1:
            start, first, end = range_between(axis, k, piece.first, piece.end)
        at = start - piece.first
        if stride > 1:
            at = at % stride * ceil_div(args.pieces.tile, stride) + at // stride
        if first < end:
            add_row(form, sums, at + first, x, x_at + k * axis.tap_stride + first * step, step, end - first)


def add_windows(form, args, place, sums, a, x_at, piece):
    """The same for every combination of windows along the axes from number ``a`` on."""
    axis = args.axes[a]
    if a == len(args.axes) - 1:
        add_columns(form, args, axis, sums, x_at, piece)
        return
    readers = axis.readers
    for i in range(axis.starts[place[a]], axis.starts[place[a] + 1]):
        reader = readers[2 * i] * axis.tap_stride + readers[2 * i + 1] * axis.source_stride
        add_windows(form, args, place, sums, a + 1, x_at + reader, piece)


def fold(form, args, lo, hi, workspace):
    base, last, y = address_of(workspace), last_axis(args), form.stored_at(args.y)
    place, sums, stride, cell = words_at(base), form.computed_at(base + PLACE_BYTES), last.stride, last.target_stride
    room = ceil_div(args.pieces.tile, stride)
    for unit in range(lo, hi):
        piece = piece_of(args, unit, place)
        clear(form, sums, room * stride)
        add_windows(form, args, place, sums, 0, piece.source, piece)
        n = piece.end - piece.first
        for i in range(min(stride, n)):
            write_row(form, y, piece.target + i * cell, stride * cell, sums, i * room, ceil_div(n - i, stride))
