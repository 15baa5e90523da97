"""Unfolding, windows as columns, for every size of a number; and folding, which adds columns back, for every format.

A unit of unfolding is one tap of one plane: a plane of outputs, copied in rows, with zeros where the tap lies outside.

A unit of folding is a piece of a row of cells. All windows that reach the row are added up in the order of their taps,
so that a cell's sum is the one that the specification writes. Along the row, cells that are ``stride`` apart are
neighbours while they are added up: then so are the columns that belong to them.
"""

from __future__ import annotations

from typing import Any

from gradspec.backends.cpu.kernels import tap_fields as f
from gradspec.backends.cpu.kernels.compiler import Type, inlined, lanes, lanes_once, outlined
from gradspec.backends.cpu.kernels.layout import NUMBERS, row_functions
from gradspec.backends.cpu.kernels.memory import FORMATS, Format, address_of, pointer_to
from gradspec.backends.cpu.kernels.taps import ceil_div, plane_at, range_between, range_of, words_at
from gradspec.backends.cpu.kernels.target import kernel_code


def build(name: str) -> str:
    """The code of the kernel called ``"unfold:4"`` for numbers of four bytes, or ``"fold:f32"``."""
    operation, _, format = name.partition(":")
    return kernel_code(_unfold(NUMBERS[int(format)]) if operation == "unfold" else _fold(FORMATS[format]))


# --- unfold: strides are in bytes -------------------------------------------------------------------------------------


def _unfold(number: Type) -> Any:
    copy_row, fill_row = row_functions(number)
    zero = number(0)

    @inlined
    def place_tap(args, tap, x, y, frame):
        """The outputs of every axis that read real cells, into the frame; where output 0 lies."""
        rest = tap
        for i in range(args[f.RANK] - 1, -1, -1):
            axis = args[f.AXES] + i * f.AXIS
            k = rest % args[axis + f.KERNEL]
            rest //= args[axis + f.KERNEL]
            start, frame[3 * i], frame[3 * i + 1] = range_of(args, axis, k)
            frame[3 * i + 2] = 0
            x += start * args[axis + f.CELL]
            y += k * args[axis + f.TAP]
        return x, y

    @inlined
    def is_outside(frame, axes):
        outside = False
        for i in range(axes):
            outside |= (frame[3 * i + 2] < frame[3 * i]) | (frame[3 * i + 2] >= frame[3 * i + 1])
        return outside

    @inlined
    def row(args, frame, x, y):
        """One row of outputs of a tap; ``x`` is the cell of the first, real or not."""
        last = args[f.RANK] - 1
        axis = args[f.AXES] + last * f.AXIS
        jump, step, n = args[axis + f.OUTPUT], args[axis + f.STRIDE] * args[axis + f.CELL], args[axis + f.OUTPUTS]
        first, end = frame[3 * last], frame[3 * last + 1]
        if is_outside(frame, last):
            first, end = n, n
        if first > 0:
            fill_row(y, jump, zero, first)
        if end > first:
            copy_row(y + first * jump, jump, x + first * step, step, end - first)
        if n > end:
            fill_row(y + end * jump, jump, zero, n - end)

    def kernel(args, lo, hi, workspace):
        frame, taps = words_at(address_of(workspace)), args[f.TAPS]
        for unit in range(lo, hi):
            x, y = plane_at(args, unit // taps)
            x, y = place_tap(args, unit % taps, x + args[f.X], y + args[f.Y], frame)
            i = 0
            while i >= 0:
                row(args, frame, x, y)
                i = args[f.RANK] - 2
                while i >= 0:
                    axis = args[f.AXES] + i * f.AXIS
                    x += args[axis + f.STRIDE] * args[axis + f.CELL]
                    y += args[axis + f.OUTPUT]
                    frame[3 * i + 2] += 1
                    if frame[3 * i + 2] < args[axis + f.OUTPUTS]:
                        break
                    x -= args[axis + f.OUTPUTS] * args[axis + f.STRIDE] * args[axis + f.CELL]
                    y -= args[axis + f.OUTPUTS] * args[axis + f.OUTPUT]
                    frame[3 * i + 2] = 0
                    i -= 1

    return kernel


# --- fold: strides are in numbers -------------------------------------------------------------------------------------


def _fold(form: Format) -> Any:
    stored_at, sums_at, number = pointer_to(form.stored), pointer_to(form.computed), form.computed
    widen, narrow = form.functions()
    zero = number(0)

    @outlined
    def add_row(t, at, x, x_at, step, n):
        if step == 1:
            for i in lanes_once(number, n):
                t[at + i] = t[at + i] + widen(x[x_at + i])
        else:
            for i in range(n):
                t[at + i] = t[at + i] + widen(x[x_at + i * step])

    @outlined
    def write_row(y, y_at, step, t, at, n):
        if step == 1:
            for i in lanes(number, n):
                y[y_at + i] = narrow(t[at + i])
        else:
            for i in range(n):
                y[y_at + i * step] = narrow(t[at + i])

    def row_at(args, row, cells):
        """The row's place along every axis but the last, into ``cells``; where it lies."""
        at, rest = 0, row
        for i in range(args[f.RANK] - 2, -1, -1):
            axis = args[f.AXES] + i * f.AXIS
            cells[i] = rest % args[axis + f.SIZE]
            rest //= args[axis + f.SIZE]
            at += cells[i] * args[axis + f.CELL]
        return at

    def add_columns(args, axis, x, x_at, first, end, t, room):
        """What the taps of the last axis add to the cells ``first … end−1``: each a run of columns."""
        stride, step = args[axis + f.STRIDE], args[axis + f.OUTPUT]
        for k in range(args[axis + f.KERNEL]):
            start, a, b = range_of(args, axis, k)
            if args[f.TILES] > 1:
                start, a, b = range_between(args, axis, k, first, end)
            at = start - first
            if stride > 1:
                at = at % stride * room + at // stride
            if a < b:
                add_row(t, at + a, x, x_at + k * args[axis + f.TAP] + a * step, step, b - a)

    def add_windows(args, i, cells, x, x_at, first, end, t, room):
        """The same for every combination of windows of the axes from ``i`` on."""
        axis = args[f.AXES] + i * f.AXIS
        if i == args[f.RANK] - 1:
            add_columns(args, axis, x, x_at, first, end, t, room)
            return
        readers = words_at(args[axis + f.READERS])
        pairs = args[axis + f.SIZE] + 1
        for pair in range(pairs + readers[cells[i]], pairs + readers[cells[i] + 1], 2):
            from_ = x_at + readers[pair] * args[axis + f.TAP] + readers[pair + 1] * args[axis + f.OUTPUT]
            add_windows(args, i + 1, cells, x, from_, first, end, t, room)

    def kernel(args, lo, hi, workspace):
        base = address_of(workspace)
        cells, t = words_at(base), sums_at(base + args[f.SUMS_AT])
        x, y, tiles, rows = stored_at(args[f.X]), stored_at(args[f.Y]), args[f.TILES], args[f.ROWS]
        last = args[f.AXES] + (args[f.RANK] - 1) * f.AXIS
        size, stride, cell = args[last + f.SIZE], args[last + f.STRIDE], args[last + f.CELL]
        room = ceil_div(args[f.TILE], stride)
        for unit in range(lo, hi):
            row, first = unit // tiles, unit % tiles * args[f.TILE]
            end = min(first + args[f.TILE], size)
            x_at, y_at = plane_at(args, row // rows)
            y_at += row_at(args, row % rows, cells) + first * cell
            for i in lanes(number, room * stride):
                t[i] = zero
            add_windows(args, 0, cells, x, x_at, first, end, t, room)
            for i in range(min(stride, end - first)):
                write_row(y, y_at + i * cell, stride * cell, t, i * room, ceil_div(end - first - i, stride))

    return kernel
