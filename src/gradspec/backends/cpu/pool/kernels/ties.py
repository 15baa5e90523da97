"""Derivatives of the maximum where every cell that ties takes part: sums or means of tangents, shared cotangents.

Cells tie with the window's maximum if they equal it, or are NaN where it is. The maximum is found first, and then every
tap is compared with it. Padding reads as −∞, which ties only where the maximum is −∞; there all real cells tie, and
their number is taken from a table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradspec.backends.cpu.pool.arguments import AxisKind, Role
from gradspec.backends.cpu.pool.kernels.reduce_row import reduce_row
from gradspec.backends.cpu.pool.kernels.rows import (
    last_axis,
    read_outputs,
    real_before_last,
    real_taps,
    write_row,
)
from gradspec.backends.cpu.pool.kernels.staging import Staging, scatter_to_cells, stage, tap_offsets, tap_row, tap_rows
from gradspec.backends.cpu.pool.kernels.states import Largest, lowest
from gradspec.backends.cpu.pool.kernels.vjp_accumulators import finish_cells, prepare_cells
from gradspec.backends.cpu.pool.kernels.walk import Reduction
from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.language import choose, inlined, lanes, lanes_once, outlined


@inlined
def is_tied(x, top):
    return (x == top) | (x != x)


# --- counting ---------------------------------------------------------------------------------------------------------


@outlined
def count_taps(form, offsets, kernel, row, v, counts, to, n):
    one, zero = form.computed(1), form.computed(0)
    for i in lanes_once(form.computed, n):
        count, top = counts[to + i], v[to + i]
        for k in range(kernel):
            count = count + choose(is_tied(row.p[row.at + offsets[k] + i], top), one, zero)
        counts[to + i] = count


@outlined
def add_taps(form, offsets, kernel, row, tangents, v, sums, to, n):
    for i in lanes_once(form.computed, n):
        tangent, top = sums[to + i], v[to + i]
        for k in range(kernel):
            here = offsets[k]
            is_equal = is_tied(row.p[row.at + here + i], top)
            tangent = tangent + choose(is_equal, tangents.p[tangents.at + here + i], form.computed(0))
        sums[to + i] = tangent


@outlined
def count_by_rows(form, args, unit, first, end, cells, at):
    axis, numbers, tangents = last_axis(args), Staging(form, -math.inf), Staging(form, 0.0)
    for part in range(first, end, args.tile):
        stop, to = min(part + args.tile, end), at + part - first
        offsets = tap_offsets(args, unit, axis, part, stop)
        for r in range(tap_rows(args, unit)):
            x_row, _ = tap_row(args, unit, r, Role.X)
            row = stage(numbers, args, axis, Role.X, x_row, part, stop, axis.stride, False, cells.value)
            count_taps(form, offsets, axis.kernel, row, cells.value, cells.count, to, stop - part)
            if not args.is_vjp:
                u_row, _ = tap_row(args, unit, r, Role.U)
                staged = stage(tangents, args, axis, Role.U, u_row, part, stop, axis.stride, False, cells.tangent)
                add_taps(form, offsets, axis.kernel, row, staged, cells.value, cells.tangent, to, stop - part)


@outlined
def count_by_cells(form, args, unit, first, end, cells, at):
    axis, n = last_axis(args), unit.neighbours
    x, u = form.stored_at(args.arrays[Role.X]), form.stored_at(args.arrays[Role.U])
    for r in range(tap_rows(args, unit)):
        (x_row, _), (u_row, _) = tap_row(args, unit, r, Role.X), tap_row(args, unit, r, Role.U)
        for o in range(first, end):
            real = real_taps(axis, o)
            for i in range(n):
                here = at + (o - first) * n + i
                x_at, u_at = x_row + i * args.inner_strides[Role.X], u_row + i * args.inner_strides[Role.U]
                top, count, tangent = cells.value[here], cells.count[here], cells.tangent[here]
                for k in range(real.first, real.end):
                    cell = real.start + k * axis.dilation
                    if is_tied(form.widen(x[x_at + cell * axis.strides[Role.X]]), top):
                        count = count + form.computed(1)
                        if not args.is_vjp:
                            tangent = tangent + form.widen(u[u_at + cell * axis.strides[Role.U]])
                cells.count[here] = count
                cells.tangent[here] = tangent


@outlined
def count_lowest(form, args, unit, first, end, cells, at):
    """All real cells tie where the maximum is −∞."""
    axis, n, count = last_axis(args), unit.neighbours, real_before_last(args, unit)
    for o in range(first, end):
        for i in range(at + (o - first) * n, at + (o - first + 1) * n):
            if cells.value[i] == lowest(form):
                cells.count[i] = form.computed(max(count * axis.real[o], 1))  # of no cells: something to divide by


def count_ties(form, args, unit, first, end, cells, at):
    """Count the tied cells of each window and, for a tangent, add up theirs."""
    for i in lanes(form.computed, (end - first) * unit.neighbours):
        cells.tangent[at + i] = form.computed(0)
        cells.count[at + i] = form.computed(0)
    if args.inner_total == 1 and last_axis(args).kind == AxisKind.SLIDING:
        count_by_rows(form, args, unit, first, end, cells, at)
    else:
        count_by_cells(form, args, unit, first, end, cells, at)
    count_lowest(form, args, unit, first, end, cells, at)


# --- the kernel -------------------------------------------------------------------------------------------------------


class TiedCells(NamedTuple):
    """Where the maxima, tangents (or cotangents) and counts of windows lie."""

    value: Any
    tangent: Any
    count: Any


@dataclass(frozen=True)
class LargestAndTies(Largest):
    """The maximum, with components for tangents and counts."""

    @inlined
    def cells(self, base, component):
        p, size = self.form.computed_at, self.form.computed.bytes
        return TiedCells(p(base), p(base + component * size), p(base + component * 2 * size))


@dataclass(frozen=True)
class Shares:
    """Contributions of a window's cotangent to its tied cells."""

    form: NumberFormat

    @property
    def staged(self) -> Staging:
        return Staging(self.form, -math.inf)

    @inlined
    def setting(self, args):
        return None

    @inlined
    def contribution(self, setting, x, top, share):
        return choose(is_tied(x, top), share, self.form.computed(0))


@outlined
def zero_without_cells(form, args, unit, first, end, v, at):
    axis, n, cells = last_axis(args), unit.neighbours, real_before_last(args, unit)
    for o in range(first, end):
        if cells * axis.real[o] == 0:
            for i in range(n):
                v[at + (o - first) * n + i] = form.computed(0)


@dataclass(frozen=True)
class WithTies(Reduction):
    """The maximum with a tangent or cotangent of all cells that tie."""

    row, prepare, finish = reduce_row, prepare_cells, finish_cells

    @property
    def state(self) -> LargestAndTies:
        return LargestAndTies(self.form)

    @property
    def shares(self) -> Shares:
        return Shares(self.form)

    @outlined
    def divide(self, w, z, at, n):
        for i in lanes_once(self.form.computed, n):
            w[at + i] = w[at + i] / z[at + i]

    def emit_row(self, work, first, end, target):
        form, args, unit, cells, at = self.form, work.args, work.unit, target.cells, target.at
        if args.splits or not args.is_vjp:
            count_ties(form, args, unit, first, end, cells, at)
        if args.is_vjp:
            read_outputs(form, args, unit, Role.U, first, end, cells.tangent, at)
        if args.splits:
            self.divide(cells.tangent, cells.count, at, (end - first) * unit.neighbours)
        if args.is_vjp:
            scatter_to_cells(self.shares, args, unit, first, end, cells.value, cells.tangent, cells.tangent, at)
        else:
            write_row(form, args, unit, Role.V, first, end, cells.tangent, at)
        if args.arrays[Role.Y] != 0:
            if args.has_holes:
                zero_without_cells(form, args, unit, first, end, cells.value, at)
            write_row(form, args, unit, Role.Y, first, end, cells.value, at)
