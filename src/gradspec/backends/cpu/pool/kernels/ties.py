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
from gradspec.backends.cpu.pool.kernels.reduce_row import reduce_by_doubling, reduce_row
from gradspec.backends.cpu.pool.kernels.rows import (
    ceil_div,
    copied_row,
    last_axis,
    read_neighbours,
    read_outputs,
    real_before_last,
    real_taps,
    write_row,
)
from gradspec.backends.cpu.pool.kernels.staging import Staging, scatter_to_cells, stage, tap_offsets, tap_row, tap_rows
from gradspec.backends.cpu.pool.kernels.states import Largest, State, lowest
from gradspec.backends.cpu.pool.kernels.vjp_accumulators import finish_cells, prepare_cells
from gradspec.backends.cpu.pool.kernels.walk import Destination, Reduction, emit, put_identity
from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.intrinsics import maximum
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


# --- cotangents by transposed windows: a cell reduces the windows that cover it ---------------------------------------
#
# No window that covers a cell ``x`` has a maximum below ``x``, if a NaN exceeds every number. So ``x`` ties in those of
# the least maximum, if that is ``x``. The least of some maxima with the sum of its holders' shares is a semigroup, and
# so is the largest of some cells with the number of its holders, by which a window's cotangent is split. At stride 1
# the cost of a cell does not depend on how many windows cover it.


class Extreme(NamedTuple):
    """The extreme of some numbers, and the sum of its holders' amounts."""

    value: Any
    amount: Any


class ExtremeCells(NamedTuple):
    """Where states lie, with a third component for the cells of finished rows."""

    value: Any
    amount: Any
    other: Any


@dataclass(frozen=True)
class Holders(State):
    """States of an extreme and its holders."""

    is_idempotent = has_totals = False

    @inlined
    def cells(self, base, component):
        p, size = self.form.computed_at, self.form.computed.bytes
        return ExtremeCells(p(base), p(base + component * size), p(base + component * 2 * size))

    @inlined
    def get(self, cells, i):
        return Extreme(cells.value[i], cells.amount[i])

    @inlined
    def put(self, cells, i, state):
        cells.value[i] = state.value
        cells.amount[i] = state.amount


@dataclass(frozen=True)
class LargestHolders(Holders):
    """The largest cell and how many cells equal it; NaN if one is NaN."""

    @property
    def identity(self) -> Extreme:
        return Extreme(lowest(self.form), self.form.computed(0))

    @inlined
    def join(self, a, b):
        m, zero = maximum(a.value, b.value), self.form.computed(0)
        first = choose((a.value == m) | (a.value != a.value), a.amount, zero)
        second = choose((b.value == m) | (b.value != b.value), b.amount, zero)
        return Extreme(m, first + second)

    @inlined
    def tap(self, value, k, first_tap):
        return Extreme(value, self.form.computed(1))

    @inlined
    def first(self, value, k):
        return Extreme(value, self.form.computed(1))

    @inlined
    def join_bin(self, found, cells, begin, stop):
        value, amount = found
        for k in range(begin, stop):
            value, amount = self.join(Extreme(value, amount), self.first(cells.p[cells.at + k], k))
        return Extreme(value, amount)


@dataclass(frozen=True)
class LeastHolders(Holders):
    """The least maximum and the sum of its windows' shares; NaN if all are NaN."""

    @property
    def identity(self) -> Extreme:
        return Extreme(self.form.computed(math.nan), self.form.computed(0))

    @inlined
    def join(self, a, b):
        m, zero = choose((b.value < a.value) | (a.value != a.value), b.value, a.value), self.form.computed(0)
        first = choose((a.value == m) | (m != m), a.amount, zero)
        second = choose((b.value == m) | (m != m), b.amount, zero)
        return Extreme(m, first + second)


# --- windows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TiedShares(Reduction):
    """The maximum of each window to Y, and to V what each of its tied cells receives of the cotangent U."""

    row = reduce_row

    @property
    def state(self) -> LargestHolders:
        return LargestHolders(self.form)

    @outlined
    def load(self, work, axis, source, at, n):
        cells, number = work.cells, self.form.computed
        read_neighbours(self.form, work.args, Role.X, source.x, source.count, cells.value, at, n)
        for i in lanes(number, n):
            cells.amount[at + i] = number(1)

    def emit_row(self, work, first, end, target):
        form, args, unit, cells, at = self.form, work.args, work.unit, target.cells, target.at
        read_outputs(form, args, unit, Role.U, first, end, cells.other, at)
        if args.splits:
            for i in lanes_once(form.computed, (end - first) * unit.neighbours):
                cells.other[at + i] = cells.other[at + i] / cells.amount[at + i]
        write_row(form.as_computed, args, unit, Role.Y, first, end, cells.value, at)
        write_row(form.as_computed, args, unit, Role.V, first, end, cells.other, at)


# --- cells ------------------------------------------------------------------------------------------------------------


class Runs(NamedTuple):
    """An axis as doubled runs see it."""

    kernel: Any
    stride: Any
    dilation: Any


@outlined
def stage_windows(reduction, work, axis, source, begin, stop):
    """Windows begin … stop−1 of a row, to the stretch; nothing where there is none."""
    args, state, cells, wide = work.args, reduction.state, work.cells, reduction.form.as_computed
    inside, tile = min(max(begin, 0), stop), work.args.tile_at - begin
    outside = max(min(axis.size, stop), inside)
    copied_row(wide, args, axis, Role.X, source.x, 1, inside, outside, cells.value, tile + inside)
    copied_row(wide, args, axis, Role.U, source.u, 1, inside, outside, cells.amount, tile + inside)
    for i in range(begin, inside):
        state.put(cells, tile + i, state.identity)
    for i in range(outside, stop):
        state.put(cells, tile + i, state.identity)


@outlined
def reduce_by_runs(reduction, work, axis, source, runs, begin, target, n):
    """Reduce the windows that cover ``n`` cells by doubling, from window ``begin`` on."""
    args, state, tile = work.args, reduction.state.bound(work.args), work.args.tile_at
    length = (n - 1) * runs.stride + (runs.kernel - 1) * runs.dilation + 1
    stage_windows(reduction, work, axis, source, begin, begin + length)
    reduce_by_doubling(state, runs, work.cells, tile, args.tile_room, length, target, n)


@outlined
def reduce_by_remainders(reduction, work, axis, source, target, first, end):
    """Reduce windows at a stride: cells of one remainder are covered as at stride 1."""
    state, cells, stride = reduction.state, work.cells, axis.stride
    made = Destination(cells, work.args.tile_at + 2 * work.args.tile_room)
    for r in range(min(stride, end - first)):
        cell, n = first + r + axis.low, (end - first - r + stride - 1) // stride
        begin, stop = ceil_div(cell - axis.kernel + 1, stride), cell // stride + 1
        if begin < stop:
            reduce_by_runs(reduction, work, axis, source, Runs(stop - begin, 1, 1), begin, made, n)
        else:
            put_identity(reduction, made, n)
        for i in range(n):
            state.put(target.cells, target.at + r + i * stride, state.get(cells, made.at + i))


@inlined
def join_covering_window(reduction, work, axis, source, found, j):
    """Join window ``j`` to the state of a cell."""
    args, number_at = work.args, reduction.form.computed_at
    value = number_at(args.arrays[Role.X])[source.x + j * axis.strides[Role.X]]
    amount = number_at(args.arrays[Role.U])[source.u + j * axis.strides[Role.U]]
    return reduction.state.bound(args).join(found, Extreme(value, amount))


@outlined
def reduce_by_bins(reduction, work, axis, source, target, first, end):
    """Reduce the bins that cover cells first … end−1."""
    for cell in range(first, end):
        (value, amount), taps = reduction.state.identity, real_taps(axis, cell)
        for j in range(taps.start, taps.start + taps.end):
            value, amount = join_covering_window(reduction, work, axis, source, Extreme(value, amount), j)
        reduction.state.put(target.cells, target.at + cell - first, Extreme(value, amount))


@outlined
def reduce_covering_row(reduction, work, axis, source, target, first_cell, end_cell):
    """Reduce the windows that cover cells of the last axis, a tile at a time; those of the only axis are emitted."""
    args, at = work.args, target.at
    for first in range(first_cell, end_cell, args.tile):
        end, out = min(first + args.tile, end_cell), Destination(target.cells, at)
        if axis.kind == AxisKind.SLIDING:
            runs = Runs(axis.kernel, axis.stride, axis.dilation)
            reduce_by_runs(reduction, work, axis, source, runs, first * axis.stride - axis.low, out, end - first)
        elif axis.kind == AxisKind.EXPANDING:
            reduce_by_remainders(reduction, work, axis, source, out, first, end)
        else:
            reduce_by_bins(reduction, work, axis, source, out, first, end)
        if len(args.axes) == 1:
            emit(reduction, work, first, end, out)
        else:
            at += end - first


@dataclass(frozen=True)
class Cotangent(Reduction):
    """The cotangent V of cells Y, from the maxima X and shares U of windows."""

    row = reduce_covering_row

    @outlined
    def load(self, work, axis, source, at, n):
        wide, args, cells = self.form.as_computed, work.args, work.cells
        read_neighbours(wide, args, Role.X, source.x, source.count, cells.value, at, n)
        read_neighbours(wide, args, Role.U, source.u, source.count, cells.amount, at, n)

    def emit_row(self, work, first, end, target):
        form, args, unit, cells, at = self.form, work.args, work.unit, target.cells, target.at
        read_outputs(form, args, unit, Role.Y, first, end, cells.other, at)
        self.receive(work, first, end, cells, at)
        write_row(form, args, unit, Role.V, first, end, cells.amount, at)


@dataclass(frozen=True)
class TiedCotangent(Cotangent):
    @property
    def state(self) -> LeastHolders:
        return LeastHolders(self.form)

    @outlined
    def receive(self, work, first, end, cells, at):
        number = self.form.computed
        for i in lanes_once(number, (end - first) * work.unit.neighbours):
            x = cells.other[at + i]
            is_tied = (x == cells.value[at + i]) | (x != x)
            cells.amount[at + i] = choose(is_tied, cells.amount[at + i], number(0))
