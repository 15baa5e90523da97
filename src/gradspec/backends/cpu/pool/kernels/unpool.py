"""Gathering at places, for every size of a number, and scattering to places, for every format.

A unit of gathering is a run of places of one plane. A unit of scattering is a band of cells of one plane: it goes over
all places of the plane, in order, and adds up what is for its band.

Places have been checked. But another thread may write to them, so what lies outside the plane is passed over here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gradspec.backends.cpu.layout.kernels.rows import BITS, clear, last_axis, offsets, write_row
from gradspec.backends.cpu.pool.arguments import IndexKind, UnpoolArguments
from gradspec.codegen.formats import FORMATS
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import i8, i32, i64, inlined, outlined, pointer, u8
from gradspec.codegen.translation import kernel_code

longs_at, ints_at, shorts_at, bytes_at = map(pointer, (i64, i32, i8, u8))


def build(name: str) -> str:
    """The code of the kernel called ``"gather:4"`` for numbers of four bytes, or ``"scatter:f32"``."""
    operation, _, format = name.partition(":")
    if operation == "gather":
        return kernel_code(gather, UnpoolArguments, BITS[int(format)])
    return kernel_code(scatter, UnpoolArguments, FORMATS[format])


class PlaneUnit(NamedTuple):
    """A unit of work: where its plane begins in each array, and the cells that it makes."""

    x: Any
    places: Any
    y: Any
    first: Any
    end: Any


def unit_of(args, number, cells):
    """Of planes that have so many cells in the result."""
    plane, first = number // args.bands, number % args.bands * args.band
    x, y = offsets(args.planes, plane)
    places, _ = offsets(args.place_planes, plane)
    return PlaneUnit(x, places, y, first, min(first + args.band, cells))


@inlined
def place(kind, places, at):
    if kind == IndexKind.I64:
        return longs_at(places)[at]
    if kind == IndexKind.I32:
        return ints_at(places)[at]
    if kind == IndexKind.I8:
        return shorts_at(places)[at]
    return bytes_at(places)[at]


class Stretch(NamedTuple):
    """``n`` cells along the last axis of a grid, from number ``cell`` on, and how they lie in its arrays."""

    cell: Any
    n: Any
    source: Any
    source_stride: Any
    target: Any
    target_stride: Any


@outlined
def over_rows(row, form, args, unit, sums, grid, first, end):
    """``row(form, args, unit, sums, stretch)`` for the cells ``first … end−1`` of a grid, stretch by stretch."""
    axis = last_axis(grid)
    while first < end:
        n = min(axis.size - first % axis.size, end - first)
        source, target = offsets(grid, first)
        row(form, args, unit, sums, Stretch(first, n, source, axis.source_stride, target, axis.target_stride))
        first += n


@inlined
def gather_row(form, args, unit, sums, moved):
    x, y, kind, places = form.stored_at(args.x), form.stored_at(args.y), args.kind, args.places
    plane, cells = args.plane, args.cells
    rank, stride = len(plane.axes), plane.axes[0].source_stride
    for i in range(moved.n):
        chosen = place(kind, places, unit.places + moved.target + i * moved.target_stride)
        value = form.stored(0)
        if 0 <= chosen < cells:
            at = chosen * stride
            if rank > 1:
                at, _ = offsets(plane, chosen)
            value = x[unit.x + at]
        y[unit.y + moved.source + i * moved.source_stride] = value


@inlined
def add_row(form, args, unit, sums, moved):
    x, kind, places = form.stored_at(args.x), args.kind, args.places
    for i in range(moved.n):
        chosen = place(kind, places, unit.places + moved.target + i * moved.target_stride)
        if unit.first <= chosen < unit.end:
            at, value = chosen - unit.first, form.widen(x[unit.x + moved.source + i * moved.source_stride])
            sums[at] = sums[at] + value


@inlined
def write_cells(form, args, unit, sums, cells):
    y, at = form.stored_at(args.y), cells.cell - unit.first
    write_row(form, y, unit.y + cells.source, cells.source_stride, sums, at, cells.n)


def gather(form, args, lo, hi, workspace):
    for number in range(lo, hi):
        unit = unit_of(args, number, args.count)
        over_rows(gather_row, form, args, unit, None, args.moved, unit.first, unit.end)


def scatter(form, args, lo, hi, workspace):
    sums = form.computed_at(address_of(workspace))
    for number in range(lo, hi):
        unit = unit_of(args, number, args.cells)
        clear(form, sums, unit.end - unit.first)
        over_rows(add_row, form, args, unit, sums, args.moved, 0, args.count)
        over_rows(write_cells, form, args, unit, sums, args.plane, unit.first, unit.end)
