"""Resizing and its transpose: weighted sums, whose weights are products of one for each axis; a kernel for each format.

Which cells a result reads along an axis, and with which weights, is a table. A unit is a piece of a row of results. The
rows that it reads are added up with their weights, which vectors do, and then the cells of the sum; or, where most
cells of a row are not read at all, the other way around.
"""

from __future__ import annotations

from gradspec.backends.cpu.arguments import PLACE_BYTES
from gradspec.backends.cpu.layout.arguments import ResizeArguments
from gradspec.backends.cpu.layout.kernels.rows import clear, last_axis, piece_of, words_at, write_row
from gradspec.codegen.formats import FORMATS
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import inlined, lanes_once, outlined
from gradspec.codegen.translation import kernel_code


def build(name: str) -> str:
    """The code of the kernel called ``"weighted:f32"``."""
    return kernel_code(resize, ResizeArguments, FORMATS[name.removeprefix("weighted:")])


@inlined
def tables(form, axis):
    return axis.sums.starts, axis.sums.cells, form.computed_at(axis.sums.weights)


@outlined
def add_row(form, sums, weight, x, at, stride, n):
    if stride == 1:
        for i in lanes_once(form.computed, n):
            sums[i] = sums[i] + weight * form.widen(x[at + i])
    else:
        for i in range(n):
            sums[i] = sums[i] + weight * form.widen(x[at + i * stride])


@outlined
def add_cells(form, axis, sums, weight, x, at, first, n):
    """What the results from ``first`` on read from one row of cells."""
    starts, cells, weights = tables(form, axis)
    stride = axis.source_stride
    for i in range(n):
        total = form.computed(0)
        for e in range(starts[first + i], starts[first + i + 1]):
            total += weights[e] * form.widen(x[at + cells[e] * stride])
        sums[i] = sums[i] + weight * total


def add_rows(form, args, place, sums, a, weight, at, first, n):
    """The rows that a row of results reads, from axis number ``a`` on, with the product of their weights."""
    axis, x = args.axes[a], form.stored_at(args.x)
    if a < len(args.axes) - 1:
        starts, cells, weights = tables(form, axis)
        for e in range(starts[place[a]], starts[place[a] + 1]):
            there = at + cells[e] * axis.source_stride
            add_rows(form, args, place, sums, a + 1, weight * weights[e], there, first, n)
    elif args.rows_first:
        add_row(form, sums, weight, x, at + first * axis.source_stride, axis.source_stride, n)
    else:
        add_cells(form, axis, sums, weight, x, at, first, n)


@outlined
def sum_cells(form, axis, y, piece, sums, origin):
    """The results of a piece, from a row of sums that begins with the cell ``origin``: most read one or two."""
    starts, cells, weights = tables(form, axis)
    e, jump = starts[piece.first], axis.target_stride
    for i in range(piece.end - piece.first):
        end, total = starts[piece.first + i + 1], form.computed(0)
        if end - e == 1:
            total = weights[e] * sums[cells[e] - origin]
        elif end - e == 2:
            total = weights[e] * sums[cells[e] - origin] + weights[e + 1] * sums[cells[e + 1] - origin]
        else:
            for j in range(e, end):
                total += weights[j] * sums[cells[j] - origin]
        y[piece.target + i * jump] = form.narrow(total)
        e = end


def resize(form, args, lo, hi, workspace):
    base, last, y, one = address_of(workspace), last_axis(args), form.stored_at(args.y), form.computed(1)
    place, sums = words_at(base), form.computed_at(base + PLACE_BYTES)
    for unit in range(lo, hi):
        piece = piece_of(args, unit, place)
        first, end = piece.first, piece.end
        if args.rows_first:
            first, end = args.spans[2 * piece.number], args.spans[2 * piece.number + 1]
        clear(form, sums, end - first)
        add_rows(form, args, place, sums, 0, one, piece.source, first, end - first)
        if args.rows_first:
            sum_cells(form, last, y, piece, sums, first)
        else:
            write_row(form, y, piece.target, last.target_stride, sums, 0, end - first)
