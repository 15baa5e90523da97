"""Staging: what a block of outputs reads, copied so that every tap is one stretch of neighbouring columns.

The columns of a block are flat positions along the **running** axis and all axes behind it. Along the running axis,
taps are shifts: one staged row serves all the taps that meet it. For each tap of the other axes there is a copy of its
own, shifted already and with zeros for padding, so that rows join without gaps and the columns of any channel and taps
are contiguous. Where rows are long, taps of the last axis are shifts as well, and rows are taken one by one. A stride
splits the cells of an axis that is shifted along into planes, one for each phase.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gradspec.codegen.language import choose, inlined, lanes, outlined, strided


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


class StagedRow(NamedTuple):
    """How the last axis is staged: positions and the cells between them, the cell of the first one, cells that there
    are and elements between them; taps that are staged apart, and cells and bytes between these."""

    positions: Any
    stride: Any
    first: Any
    cells: Any
    apart: Any
    taps: Any
    tap_step: Any
    tap_pitch: Any


@inlined
def last_row(form, unit, case, source):
    last = len(case.axes) - 1
    axis = case.axes[last]
    return StagedRow(
        unit.count[last],
        axis.stride,
        unit.first[last] * axis.stride + axis.first,
        axis.size,
        source.strides[last],
        axis.staged_taps,
        axis.tap_step,
        axis.tap_pitch * form.computed.bytes,
    )


@inlined
def stage_tap(form, row, src, first, to):
    """The positions of one tap, from cell ``first`` on; zeros where there is no cell."""
    step, n = row.stride, row.positions
    begin = min(max(0, -first if step == 1 else (step - 1 - first) // step), n)
    end = row.cells - first if step == 1 else (row.cells - first + step - 1) // step
    end = min(max(end, begin), n)
    if begin > 0:
        clear(form, to, begin)
    if end > begin:
        place = src + (first + begin * step) * row.apart * form.stored.bytes
        copy_cells(form, to + begin * form.computed.bytes, place, step * row.apart, end - begin)
    if end < n:
        clear(form, to + end * form.computed.bytes, n - end)


@inlined
def stage_row(form, row, src, to, is_real):
    for t in range(row.taps):
        if is_real:
            stage_tap(form, row, src, row.first + t * row.tap_step, to + t * row.tap_pitch)
        else:
            clear(form, to + t * row.tap_pitch, row.positions)


@outlined
def stage_plane(form, unit, case, source, number, src, to, is_real):
    """The last axis alone, or for every cell and tap of the one before, if that is axis ``number``."""
    row = last_row(form, unit, case, source)
    if number == len(case.axes) - 1:
        stage_row(form, row, src, to, is_real)
        return
    axis, count, size = case.axes[number], unit.count[number], form.computed.bytes
    first, apart = unit.first[number] * axis.stride + axis.first, source.strides[number] * form.stored.bytes
    are_joined = is_real & (row.apart == 1) & (source.strides[number] == row.positions) & (axis.pitch == row.positions)
    are_joined = are_joined & (row.stride == 1) & (axis.stride == 1) & (row.cells == row.positions)
    for u in range(axis.staged_taps):
        cell, place = first + u * axis.tap_step, to + u * axis.tap_pitch * size
        if are_joined:
            begin = min(max(0, -cell), count)
            end = min(max(axis.size - cell, begin), count)
            stage_joined_rows(form, row, src + (cell + begin) * apart, place, begin, end, count)
        else:
            for i in range(count):
                inside = is_real and cell >= 0 and cell < axis.size
                stage_row(form, row, src + cell * apart, place + i * axis.pitch * size, inside)
                cell += axis.stride


@inlined
def stage_joined_rows(form, row, src, to, begin, end, count):
    """``count`` rows, of which those from ``begin`` to ``end`` are real and follow each other in the source as they do
    here: one stretch for each tap, where padding then takes the place of cells of neighbouring rows."""
    size, width, n = form.computed.bytes, row.positions, (end - begin) * row.positions
    for t in range(row.taps):
        place, shift = to + t * row.tap_pitch, row.first + t * row.tap_step
        left, right = min(max(0, -shift), width), min(max(0, shift), width)
        clear(form, place, begin * width)
        clear(form, place + end * width * size, (count - end) * width)
        if n > left + right:
            there = place + (begin * width + left) * size
            copy_cells(form, there, src + (shift + left) * form.stored.bytes, 1, n - left - right)
        y = form.computed_at(place)
        for i in range(begin, end):
            for j in range(left):
                y[i * width + j] = form.computed(0)
            for j in range(width - right, width):
                y[i * width + j] = form.computed(0)


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


@outlined
def stage_channels(form, args, unit, case, source, first, channels, to):
    """So many channels of the unit's group, from ``first`` on."""
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
