"""Staging: what a block of outputs reads, copied so that every tap is one stretch of neighbouring columns.

The columns of a block are flat positions along the **running** axis and all axes behind it. Along the running axis,
taps are shifts: one staged row serves all the taps that meet it. For each tap of the other axes there is a copy of its
own, shifted already and with zeros for padding, so that rows join without gaps and the columns of any channel and taps
are contiguous. Where rows are long, taps of the last axis are shifts as well, and rows are taken one by one. A stride
splits the cells of an axis that is shifted along into planes, one for each phase.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gradspec.backends.cpu.matmul.kernels.tiles import CACHE_LINE, bytes_at
from gradspec.codegen.intrinsics import prefetch
from gradspec.codegen.language import choose, inlined, lanes, outlined, strided

A_FEW = 8
BEYOND = 16
"""Cells behind a plane that tiles read at most: one less than the widest vector has."""


@inlined
def clear(form, to, n):
    y = form.computed_at(to)
    for i in lanes(form.computed, n):
        y[i] = form.computed(0)


@outlined
def copy_cells(form, to, src, step, n):
    """``n`` cells that are ``step`` elements apart."""
    y, x, number = form.computed_at(to), form.stored_at(src), form.computed
    if step == 1:
        for i in lanes(number, n):
            y[i] = form.widen(x[i])
    elif step == 2:
        for i in lanes(number, n - 1):  # the last pair may end beyond the array
            even, _ = strided(x, 2 * i, 2)
            y[i] = form.widen(even)
        y[n - 1] = form.widen(x[2 * (n - 1)])
    elif step == 0:
        one = form.widen(x[0])
        for i in lanes(number, n):
            y[i] = one
    else:
        for i in range(n):
            y[i] = form.widen(x[i * step])


class RowSpan(NamedTuple):
    """What a tap of the last axis meets in every row: positions, those from ``begin`` to ``end`` at cells that there
    are, the bytes from the first cell of a row to the first one that is met, and the elements between these."""

    positions: Any
    begin: Any
    end: Any
    offset: Any
    step: Any


@inlined
def span_of(form, unit, case, source, tap):
    last = len(case.axes) - 1
    axis, n = case.axes[last], unit.count[last]
    stride, first = axis.stride, unit.first[last] * axis.stride + axis.first + tap * axis.tap_step
    begin = min(max(0, (stride - 1 - first) // stride), n)
    end = min(max((axis.size - first + stride - 1) // stride, begin), n)
    apart = source.strides[last]
    return RowSpan(n, begin, end, (first + begin * stride) * apart * form.stored.bytes, stride * apart)


@inlined
def stage_row(form, span, src, to, is_real):
    """One row; zeros where there is no cell, and first of all in a few places more, since vectors take no longer."""
    size, n, begin, end = form.computed.bytes, span.positions, span.begin, span.end
    if not is_real or end == begin:
        clear(form, to, n)
    else:
        if begin > 0:
            clear(form, to, min(n, (begin + A_FEW - 1) // A_FEW * A_FEW))
        if end < n:
            more = min(n, (n - end + A_FEW - 1) // A_FEW * A_FEW)
            clear(form, to + (n - more) * size, more)
        copy_cells(form, to + begin * size, src + span.offset, span.step, end - begin)


@outlined
def stage_plane(form, unit, case, source, number, src, to, is_real):
    """The last axis alone, or for every cell and tap of the one before, if that is axis ``number``."""
    last, size = case.axes[len(case.axes) - 1], form.computed.bytes
    for t in range(last.staged_taps):
        span, place = span_of(form, unit, case, source, t), to + t * last.tap_pitch * size
        if number == len(case.axes) - 1:
            stage_row(form, span, src, place, is_real)
        else:
            stage_rows(form, unit, case, source, number, span, src, place, is_real, t == 0)


@inlined
def fetch(address, size):
    for line in range(0, size, CACHE_LINE):
        prefetch(bytes_at(address), line)


@inlined
def stage_rows(form, unit, case, source, number, span, src, to, is_real, is_first):
    """Those of the next channel are asked for while these are copied for the first tap."""
    axis, width, size = case.axes[number], form.stored.bytes, form.computed.bytes
    count, n, stride, apart = unit.count[number], span.positions, axis.stride, source.strides[number] * width
    first, ahead = unit.first[number] * stride + axis.first, source.channel_stride * width
    are_joined = is_real & (span.step == 1) & (stride == 1) & (axis.pitch == n) & (source.strides[number] == n)
    are_joined = are_joined & (case.axes[len(case.axes) - 1].size == n) & (span.end > span.begin)
    for u in range(axis.staged_taps):
        cell, place = first + u * axis.tap_step, to + u * axis.tap_pitch * size
        if are_joined:
            begin = min(max(0, -cell), count)
            end = min(max(axis.size - cell, begin), count)
            row = src + (cell + begin) * apart
            if is_first:
                fetch(row + ahead, (end - begin) * apart)
            stage_joined_rows(form, span, row, place, begin, end, count)
        else:
            for i in range(count):
                row, is_inside = src + cell * apart, is_real and cell >= 0 and cell < axis.size
                if is_first:
                    fetch(row + ahead, n * width)
                stage_row(form, span, row, place + i * axis.pitch * size, is_inside)
                cell += stride


@inlined
def stage_joined_rows(form, span, src, to, begin, end, count):
    """``count`` rows, of which those from ``begin`` to ``end`` are real and follow each other in the source as they do
    here: one stretch, where padding then takes the place of cells of neighbouring rows."""
    size, n, left, right = form.computed.bytes, span.positions, span.begin, span.end
    clear(form, to, begin * n)
    clear(form, to + end * n * size, (count - end) * n)
    cells = (end - begin - 1) * n + right - left
    if cells > 0:
        copy_cells(form, to + (begin * n + left) * size, src + span.offset, 1, cells)
    y = form.computed_at(to)
    for j in range(left + n - right):
        column = j if j < left else right + j - left
        for i in range(begin, end):
            y[i * n + column] = form.computed(0)


def stage_axes(form, unit, case, source, number, src, to, is_real):
    """The cells of axis ``number`` and of all behind it."""
    if number >= len(case.axes) - 2:
        stage_plane(form, unit, case, source, number, src, to, is_real)
        return
    axis, size, apart = case.axes[number], form.computed.bytes, source.strides[number] * form.stored.bytes
    first = unit.first[number] * axis.stride + axis.first
    for u in range(axis.staged_taps):
        for i in range(unit.count[number]):
            cell = first + u * axis.tap_step + i * axis.stride
            inside = is_real & (cell >= 0) & (cell < axis.size)
            place = to + (u * axis.tap_pitch + i * axis.pitch) * size
            stage_axes(form, unit, case, source, number + 1, src + choose(inside, cell, 0) * apart, place, inside)


@inlined
def blank_ends(form, args, unit, case, channels, to):
    """Zeros behind the cells of every plane. Tiles read them, and what they find there is not used.

    It must not be just anything: some processors take a hundred times as long for a product with a subnormal number.
    """
    axis, size = case.axes[args.run], form.computed.bytes
    end = to + unit.count[args.run] * axis.pitch * size
    for c in range(channels):
        for plane in range(case.channel_pitch // axis.tap_pitch):
            clear(form, end + (c * case.channel_pitch + plane * axis.tap_pitch) * size, BEYOND)


@outlined
def stage_channels(form, args, unit, case, source, first, channels, to):
    """So many channels of the unit's group, from ``first`` on."""
    blank_ends(form, args, unit, case, channels, to)
    src = source.address + unit.group * source.group_stride * form.stored.bytes
    step, pitch = source.channel_stride * form.stored.bytes, case.channel_pitch * form.computed.bytes
    for c in range(channels):
        stage_axes(form, unit, case, source, 0, src + (first + c) * step, to + c * pitch, True)


@outlined
def locate(args, unit, case, number):
    """Unit ``number`` of a case."""
    run, inner = args.run, case.inner
    block, rest = number % case.blocks, number // case.blocks
    part, rest = rest % args.parts, rest // args.parts
    group, outer = rest % args.groups, rest // args.groups
    column = block * case.block
    columns = min(case.block, case.total - column)
    first = column // inner
    unit.group, unit.row = group, part * args.part_rows
    unit.rows = min(args.part_rows, args.rows - unit.row)
    unit.column, unit.columns, unit.skipped = column, columns, column - first * inner
    out = case.out + group * args.out_group + unit.row * args.out_channel
    for i in range(len(case.axes) - 1, run, -1):
        unit.first[i], unit.count[i] = 0, case.axes[i].staged_positions
    unit.first[run] = first
    unit.count[run] = (column + columns - 1) // inner + 1 - first + case.halo
    for i in range(run - 1, -1, -1):
        axis = case.axes[i]
        position, outer = outer % axis.positions, outer // axis.positions
        unit.first[i], unit.count[i] = position, 1
        out += position * axis.out_pitch
    unit.out = out
