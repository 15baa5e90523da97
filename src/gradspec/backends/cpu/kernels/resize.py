"""Resizing and its transpose: weighted sums, whose weights are products of one for each axis; a kernel for each format.

Which cells a target reads along an axis, and with which weights, is a table. A unit is a piece of a row of targets. The
rows that it reads are added up with their weights, which vectors do, and then the cells of the sum; or, where most
cells of a row are not read at all, the other way around.
"""

from __future__ import annotations

from typing import Any

from gradspec.backends.cpu.kernels import tap_fields as f
from gradspec.backends.cpu.kernels.compiler import inlined, lanes, lanes_once, outlined
from gradspec.backends.cpu.kernels.memory import FORMATS, Format, address_of, pointer_to
from gradspec.backends.cpu.kernels.taps import plane_at, words_at
from gradspec.backends.cpu.kernels.target import kernel_code


def build(name: str) -> str:
    """The code of the kernel called ``"weighted:f32"``."""
    return kernel_code(_kernel(FORMATS[name.removeprefix("weighted:")]))


def _kernel(form: Format) -> Any:
    number, stored_at, numbers_at = form.computed, pointer_to(form.stored), pointer_to(form.computed)
    widen, narrow = form.functions()
    zero, one = number(0), number(1)

    @outlined
    def add_row(t, weight, x, at, step, n):
        if step == 1:
            for i in lanes_once(number, n):
                t[i] = t[i] + weight * widen(x[at + i])
        else:
            for i in range(n):
                t[i] = t[i] + weight * widen(x[at + i * step])

    def tables(args, axis):
        """Where the cells of each target begin, the cells, and their weights."""
        return words_at(args[axis + f.STARTS]), words_at(args[axis + f.CELLS]), numbers_at(args[axis + f.WEIGHTS])

    @outlined
    def add_cells(args, axis, t, weight, x, at, first, n):
        """What the targets from ``first`` on read from one row of cells."""
        starts, cells, weights = tables(args, axis)
        for i in range(n):
            total = zero
            for e in range(starts[first + i], starts[first + i + 1]):
                total += weights[e] * widen(x[at + cells[e] * args[axis + f.STEP]])
            t[i] = t[i] + weight * total

    def add_rows(args, i, place, t, weight, x, at, first, n):
        """The rows that a row of targets reads, from axis ``i`` on, with the product of their weights."""
        axis = args[f.AXES] + i * f.WEIGHTED_AXIS
        step = args[axis + f.STEP]
        if i < args[f.RANK] - 1:
            starts, cells, weights = tables(args, axis)
            for e in range(starts[place[i]], starts[place[i] + 1]):
                add_rows(args, i + 1, place, t, weight * weights[e], x, at + cells[e] * step, first, n)
        elif args[args[f.NUMBERS] + f.ROWS_FIRST] != 0:
            add_row(t, weight, x, at + first * step, step, n)
        else:
            add_cells(args, axis, t, weight, x, at, first, n)

    @outlined
    def sum_cells(args, axis, y, at, t, first, n, origin):
        """Targets from ``first`` on, of a row of sums that begins with the cell ``origin``: most read one or two."""
        starts, cells, weights = tables(args, axis)
        jump, e = args[axis + f.JUMP], starts[first]
        for i in range(n):
            end = starts[first + i + 1]
            total = zero
            if end - e == 1:
                total = weights[e] * t[cells[e] - origin]
            elif end - e == 2:
                total = weights[e] * t[cells[e] - origin] + weights[e + 1] * t[cells[e + 1] - origin]
            else:
                for j in range(e, end):
                    total += weights[j] * t[cells[j] - origin]
            y[at + i * jump] = narrow(total)
            e = end

    @outlined
    def write_row(y, at, step, t, n):
        if step == 1:
            for i in lanes(number, n):
                y[at + i] = narrow(t[i])
        else:
            for i in range(n):
                y[at + i * step] = narrow(t[i])

    def row_at(args, row, place):
        """The place of a row of targets along every axis but the last; where it lies."""
        at, rest = 0, row
        for i in range(args[f.RANK] - 2, -1, -1):
            axis = args[f.AXES] + i * f.WEIGHTED_AXIS
            place[i] = rest % args[axis + f.TARGETS]
            rest //= args[axis + f.TARGETS]
            at += place[i] * args[axis + f.JUMP]
        return at

    @inlined
    def clear(t, n):
        for i in lanes(number, n):
            t[i] = zero

    def kernel(args, lo, hi, workspace):
        base = address_of(workspace)
        place, t = words_at(base), numbers_at(base + args[f.SUMS_AT])
        x, y, tiles, rows = stored_at(args[f.X]), stored_at(args[f.Y]), args[f.TILES], args[f.ROWS]
        last = args[f.AXES] + (args[f.RANK] - 1) * f.WEIGHTED_AXIS
        spans = words_at(args[args[f.NUMBERS] + f.SPANS])
        for unit in range(lo, hi):
            row, tile = unit // tiles, unit % tiles
            first = tile * args[f.TILE]
            n = min(args[f.TILE], args[last + f.TARGETS] - first)
            x_at, y_at = plane_at(args, row // rows)
            y_at += row_at(args, row % rows, place) + first * args[last + f.JUMP]
            if args[args[f.NUMBERS] + f.ROWS_FIRST] != 0:
                origin, end = spans[2 * tile], spans[2 * tile + 1]
                clear(t, end - origin)
                add_rows(args, 0, place, t, one, x, x_at, origin, end - origin)
                sum_cells(args, last, y, y_at, t, first, n, origin)
            else:
                clear(t, n)
                add_rows(args, 0, place, t, one, x, x_at, first, n)
                write_row(y, y_at, args[last + f.JUMP], t, n)

    return kernel
