"""Reductions to one number: the maximum without its winner, and the average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gradspec.backends.cpu.pool.arguments import Finish, Role
from gradspec.backends.cpu.pool.kernels import planes
from gradspec.backends.cpu.pool.kernels.avg_transpose import reduce_expanding, transpose_rows
from gradspec.backends.cpu.pool.kernels.reduce_row import reduce_row
from gradspec.backends.cpu.pool.kernels.rows import (
    counted_before_last,
    last_axis,
    output_row,
    quotient,
    real_taps,
    rows_have_cells,
    write_row,
)
from gradspec.backends.cpu.pool.kernels.runs import reduce_run_row, reduce_run_window
from gradspec.backends.cpu.pool.kernels.states import Largest, Total, as_half, has_nan
from gradspec.backends.cpu.pool.kernels.walk import PoolWork, Reduction, walk_planes
from gradspec.backends.cpu.pool.layout import NEGLIGIBLE
from gradspec.codegen.formats import FORMATS, NumberFormat
from gradspec.codegen.intrinsics import address_of
from gradspec.codegen.language import inlined, lanes, lanes_once, outlined, total


@outlined
def fill_holes(form, args, unit, first, end, v, at):
    """0 for the outputs of a row that have no real cell."""
    last, n, rows = last_axis(args), unit.neighbours, rows_have_cells(args, unit)
    for o in range(first, end):
        taps = real_taps(last, o)
        if taps.first >= taps.end or not rows:
            for i in range(n):
                v[at + (o - first) * n + i] = form.computed(0)


@dataclass(frozen=True)
class OneNumberReduction(Reduction):
    """Kernels of one number: the maximum and the average."""

    row, reduce_run_window = reduce_row, reduce_run_window
    reduce_plane_row, reduce_plane_rows = planes.reduce_plane_row, planes.reduce_plane_rows
    join_slabs, reduce_pairs_of_planes = planes.join_slabs, planes.reduce_pairs_of_planes
    stage_plane, reduce_run_row = planes.stage_plane, reduce_run_row
    has_planes = has_run_rows = has_whole_planes = has_runs = True

    @inlined
    def outputs(self, work, first, end):
        walk_planes(self, work, first, end)

    def reduce_whole_planes(self, args, lo, hi):
        x, y = self.form.stored_at(args.arrays[Role.X]), self.form.stored_at(args.arrays[Role.Y])
        axis, lead = args.axes[0], args.leads[0]
        for i in range(lo, hi):
            here, there = i * lead.strides[Role.X], i * lead.strides[Role.Y]
            if args.scales_input:
                share = self.form.narrow(self.divide(args, self.form.widen(x[here])) + self.state.identity)
                for j in lanes(self.form.stored, axis.outputs):
                    y[there + j] = share
            else:
                y[there] = self.form.narrow(self.divide(args, self.join_run(x, here, axis.size)))

    @inlined
    def join_run(self, x, at, n):
        return total(self.state.join_cell, self.state.identity, x, at, n)


@dataclass(frozen=True)
class MaxValue(OneNumberReduction):
    """The maximum alone."""

    @property
    def state(self) -> Largest:
        return Largest(self.form)

    @inlined
    def scale_of(self, args, is_wanted):
        return None

    @inlined
    def scale(self, value, scale):
        return value

    @inlined
    def divide(self, args, value):
        return value

    def emit_row(self, work, first, end, target):
        args, unit, v = work.args, work.unit, target.cells.value
        if self.has_complete:
            self.complete(work, target, (end - first) * unit.neighbours)
        if args.has_holes:
            fill_holes(self.form, args, unit, first, end, v, target.at)
        if not args.is_direct:
            write_row(self.form, args, unit, Role.Y, first, end, v, target.at)


@dataclass(frozen=True)
class MaxOfHalves(MaxValue):
    """The maximum of bfloat16 compared as float16, which orders bits alike except for its NaNs (see ``FirstLarger``): a
    unit with such a result is pooled again."""

    form: NumberFormat = FORMATS["f16"].as_stored
    has_complete = True

    @property
    def exact(self) -> MaxValue:
        return MaxValue(FORMATS["bf16"].as_stored)

    @inlined
    def outputs(self, work, first, end):
        work.unit.has_nan = False
        walk_planes(self, work, first, end)
        if work.unit.has_nan:
            cells = self.exact.state.cells(address_of(work.cells.value), 0)
            walk_planes(self.exact, PoolWork(work.args, work.unit, cells), first, end)

    @inlined
    def complete(self, work, target, n):
        if has_nan(self.form, target.cells.value, target.at, n):
            work.unit.has_nan = True

    @inlined
    def join_run(self, x, at, n):
        joined = total(self.state.join, self.state.identity, x, at, n)
        if joined != joined:
            exact = self.exact
            joined = as_half(exact.join_run(exact.form.stored_at(address_of(x)), at, n))
        return joined


class Inverse(NamedTuple):
    """``1/d`` as the sum of two numbers, the larger first (see ``inverse``)."""

    head: Any
    rest: Any


@dataclass(frozen=True)
class Average(OneNumberReduction):
    """Averages and their transpose."""

    has_complete = has_transpose = True
    reduce_expanding, transpose_rows = reduce_expanding, transpose_rows

    @property
    def state(self) -> Total:
        return Total(self.form)

    @inlined
    def scale_of(self, args, is_wanted):
        """The inverse of the common divisor if ``is_wanted``, and of 1 otherwise."""
        number = self.form.computed
        head, rest = number(1), number(NEGLIGIBLE)
        if is_wanted and args.inverse != 0.0:
            head, rest = number(args.inverse), number(args.inverse_rest)
        return Inverse(head, rest)

    @inlined
    def scale(self, value, scale):
        return quotient(value, scale.head, scale.rest)

    @inlined
    def divide(self, args, value):
        if args.inverse != 0.0:
            return self.scale(value, self.scale_of(args, True))
        return value / self.form.computed(args.divisor)

    @outlined
    def complete(self, work, target, n):
        """Divide by the common divisor of all windows."""
        args = work.args
        number, v, at = self.form.computed, target.cells.value, target.at
        if args.inverse != 0.0:
            scale = self.scale_of(args, True)
            for i in lanes_once(number, n):
                v[at + i] = self.scale(v[at + i], scale)
        else:
            for i in lanes_once(number, n):
                v[at + i] = v[at + i] / number(args.divisor)

    def emit_row(self, work, first, end, target):
        args, unit, v, at = work.args, work.unit, target.cells.value, target.at
        if not args.scales_input:
            if args.divisor != 0.0:
                self.complete(work, target, (end - first) * unit.neighbours)
            else:
                self.divide_each(work, first, end, v, at)
        if args.has_holes:
            fill_holes(self.form, args, unit, first, end, v, at)
        if not args.is_direct:
            write_row(self.form, args, unit, Role.Y, first, end, v, at)

    @outlined
    def scale_run(self, args, v, at, n, first, count, windows):
        """Divide ``n`` neighbours of each of ``count`` windows of a small plane, from number ``first`` on."""
        heads = self.form.computed_at(args.shares)
        for k in range(first, first + count):
            scale, here = Inverse(heads[k], heads[windows + k]), at + (k - first) * n
            for i in lanes_once(self.form.computed, n):
                v[here + i] = self.scale(v[here + i], scale)

    @inlined
    def scale_transposed(self, work, target, cells, n):
        """Divide the input."""
        args = work.args
        if args.divisor != 0.0:
            self.complete(work, target, cells * n)
        else:
            self.scale_run(args, target.cells.value, target.at, n, 0, cells, cells)

    def divide_each(self, work, first, end, v, at):
        """Divide outputs first … end−1 of the current row, each by its own divisor, or multiply by its inverse."""
        args, unit, last, n = work.args, work.unit, last_axis(work.args), work.unit.neighbours
        if args.shares != 0:
            outputs, number = args.axes[0].outputs * args.axes[0].slab, output_row(args, unit) * last.outputs + first
            self.scale_run(args, v, at, n, number, end - first, outputs)
            return
        count = counted_before_last(args, unit)
        for o in range(first, end):
            share, here = self.form.computed(count * last.counted[o]), at + (o - first) * n
            for i in lanes_once(self.form.computed, n):
                v[here + i] = v[here + i] / share

    @inlined
    def finish(self, work):
        """Divide the windows of a small plane, each by its own divisor."""
        args = work.args
        if args.finish == Finish.BY_PLANE:
            y, outputs = self.form.computed_at(args.arrays[Role.Y]), args.axes[0].outputs * args.axes[0].slab
            heads, at = self.form.computed_at(args.shares), work.unit.bases[Role.Y]
            for i in lanes_once(self.form.computed, outputs):
                y[at + i] = self.scale(y[at + i], Inverse(heads[i], heads[outputs + i]))
