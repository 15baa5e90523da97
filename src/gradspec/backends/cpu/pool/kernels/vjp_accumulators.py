"""The cells that cotangents are added to: they start at zero; 16-bit ones are summed in float32 and rounded once."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradspec.backends.cpu.pool.arguments import Role
from gradspec.backends.cpu.pool.kernels.rows import dense_origin, dense_stride, is_dense, last_axis, origin_at
from gradspec.codegen.intrinsics import address_of, clear_bytes
from gradspec.codegen.language import inlined, lanes

IN_DENSE_PLANE = -1
"""Stands for an array's role where places in a dense plane are meant."""


class CellSums(NamedTuple):
    """Where cells are summed: in V itself, or in a dense float32 plane of the workspace.

    ``along``: from one cell to the next along the last axis; ``inner``: from one neighbour to the next; ``scale``: from
    one cell to the next in a dense plane.
    """

    p: Any
    along: Any
    inner: Any
    scale: Any


@inlined
def cell_sums(form, args, unit):
    if form.converts:
        n = unit.neighbours
        return CellSums(form.computed_at(unit.workspace + args.plane_at), n, 1, n)
    p = form.computed_at(args.arrays[Role.V])
    return CellSums(p, last_axis(args).strides[Role.V], args.inner_strides[Role.V], 1)


@inlined
def sums_origin(form, args, unit):
    """Where the windows of the current output row begin among the sums, but for the last axis."""
    if form.converts:
        return (dense_origin(args, unit) - unit.first_cell * dense_stride(args, 0)) * unit.neighbours
    return origin_at(args, unit, Role.V)


def cell_count(args, unit):
    return (unit.end_cell - unit.first_cell) * dense_stride(args, 0)


def row_at(args, unit, r):
    """Where row ``r`` of the unit's cells begins in V."""
    at, rest = unit.bases[Role.V], r
    for i in range(len(args.axes) - 2, 0, -1):
        axis = args.axes[i]
        at += rest % axis.size * axis.strides[Role.V]
        rest = rest // axis.size
    return at + (unit.first_cell + rest) * args.axes[0].strides[Role.V]


def rows_and_length(args, unit):
    """How many rows the unit's cells have, and their length; on one axis, or if V is dense, all cells are one row."""
    is_run = len(args.axes) == 1 or (is_dense(args, Role.V) and not args.writes_all_cells)
    length = cell_count(args, unit) if is_run else last_axis(args).size
    return cell_count(args, unit) // length, length


@inlined
def clear_run(form, v, at, n):
    clear_bytes(address_of(v) + at * form.stored.bytes, n * form.stored.bytes)


def clear(form, args, unit):
    v, n = form.stored_at(args.arrays[Role.V]), unit.neighbours
    along, inner = last_axis(args).strides[Role.V], args.inner_strides[Role.V]
    rows, length = rows_and_length(args, unit)
    written = 2 * args.axes[0].outputs if args.writes_all_cells else 0
    for r in range(written, rows):
        at = row_at(args, unit, r)
        if inner == 1 and along == n:
            clear_run(form, v, at, length * n)
        elif inner == 1:
            for i in range(length):
                clear_run(form, v, at + i * along, n)
        elif along == 1:
            for j in range(n):
                clear_run(form, v, at + j * inner, length)
        else:
            for i in range(length):
                for j in range(n):
                    v[at + i * along + j * inner] = 0


def prepare_cells(reduction, work):
    """Set the cells of a work unit to zero."""
    form, args, unit = reduction.form, work.args, work.unit
    if not args.is_vjp:
        return
    if form.converts:
        sums = form.computed_at(unit.workspace + args.plane_at)
        for i in lanes(form.computed, cell_count(args, unit) * unit.neighbours):
            sums[i] = form.computed(0)
    else:
        clear(form, args, unit)


def finish_cells(reduction, work):
    """Round and write the 16-bit cells of a work unit."""
    form, args, unit = reduction.form, work.args, work.unit
    if form.converts and args.is_vjp:
        v, sums = form.stored_at(args.arrays[Role.V]), form.computed_at(unit.workspace + args.plane_at)
        n, along, inner = unit.neighbours, last_axis(args).strides[Role.V], args.inner_strides[Role.V]
        rows, length = rows_and_length(args, unit)
        for r in range(rows):
            at = row_at(args, unit, r)
            if n == 1 and along == 1:
                for i in lanes(form.computed, length):
                    v[at + i] = form.narrow(sums[r * length + i])
            else:
                for i in range(length):
                    for j in range(n):
                        v[at + i * along + j * inner] = form.narrow(sums[(r * length + i) * n + j])
