"""Reductions to one number: the maximum without its winner, and the average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gradspec.backends.cpu.pool.arguments import Finish, Role
from gradspec.backends.cpu.pool.inverse import NEGLIGIBLE
from gradspec.backends.cpu.pool.kernels import planes
from gradspec.backends.cpu.pool.kernels.along import reduced_row
from gradspec.backends.cpu.pool.kernels.backwards import expanding, spread_rows
from gradspec.backends.cpu.pool.kernels.picks import picked_plane
from gradspec.backends.cpu.pool.kernels.rows import (
    counted_before_last,
    last_axis,
    quotient,
    read_neighbours,
    real_taps,
    rows_have_cells,
    write_row,
)
from gradspec.backends.cpu.pool.kernels.states import Largest, Total
from gradspec.backends.cpu.pool.kernels.walk import put_together, walk
from gradspec.codegen.formats import NumberFormat
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
class OneNumberReduction:
    """What the kernels of the maximum and of the average have in common."""

    form: NumberFormat
    keeps_rows = False
    row, put_together = reduced_row, put_together
    plane_row, plane_rows, joined_slabs = planes.plane_row, planes.plane_rows, planes.joined_slabs
    staged_plane = planes.staged_plane
    has_planes = True

    @property
    def has_whole(self) -> bool:
        """Whether planes that are one run of cells and have one output are reduced without a walk."""
        return not self.form.converts

    @outlined
    def load(self, work, axis, source, at, n):
        read_neighbours(self.form, work.args, Role.X, source.x, source.count, work.cells.value, at, n)

    @inlined
    def prepare(self, work):
        return

    @inlined
    def outputs(self, work, first, end):
        if address_of(work.args.picks.rows) != 0:
            picked_plane(self, work)
        else:
            walk(self, work, first, end)

    @inlined
    def write_plane(self, work, t, at, n):
        """The outputs of a plane, to Y, where they are a run."""
        form, to = self.form, work.unit.bases[Role.Y]
        y = form.stored_at(work.args.arrays[Role.Y])
        if self.has_scale and not work.args.scales_input:
            self.scale_each(work.args, t, at, n)
        for i in lanes(form.computed, n):
            y[to + i] = form.narrow(t[at + i])

    def whole(self, args, lo, hi):
        x, y = self.form.stored_at(args.arrays[Role.X]), self.form.stored_at(args.arrays[Role.Y])
        axis, lead = args.axes[0], args.leads[0]
        for i in range(lo, hi):
            here, there = i * lead.strides[Role.X], i * lead.strides[Role.Y]
            if args.scales_input:
                share = self.divided(args, x[here]) + self.state.nothing
                for j in lanes(self.form.computed, axis.outputs):
                    y[there + j] = share
            else:
                y[there] = self.divided(args, total(self.state.join, self.state.nothing, x, here, axis.size))


@dataclass(frozen=True)
class MaxValue(OneNumberReduction):
    """The maximum alone."""

    has_scale = reads_backwards = False

    @property
    def state(self) -> Largest:
        return Largest(self.form)

    @inlined
    def scale_of(self, args, is_wanted):
        return None

    @inlined
    def scaled(self, value, scale):
        return value

    @inlined
    def divided(self, args, value):
        return value

    @inlined
    def finish(self, work):
        return

    def emit_row(self, work, first, end, target):
        args, unit, v = work.args, work.unit, target.cells.value
        if args.has_holes:
            fill_holes(self.form, args, unit, first, end, v, target.at)
        if not args.is_direct:
            write_row(self.form, args, unit, Role.Y, first, end, v, target.at)


class Inverse(NamedTuple):
    """``1/d`` as the sum of two numbers, the larger first (see ``inverse``)."""

    head: Any
    rest: Any


@dataclass(frozen=True)
class Average(OneNumberReduction):
    """Averages, forwards and backwards."""

    has_scale = reads_backwards = True
    expanding, spread_rows = expanding, spread_rows

    @property
    def state(self) -> Total:
        return Total(self.form)

    @inlined
    def scale_of(self, args, is_wanted):
        """The inverse of the one divisor of all windows if it is wanted here, and of 1 otherwise."""
        number = self.form.computed
        head, rest = number(1), number(NEGLIGIBLE)
        if is_wanted and args.inverse != 0.0:
            head, rest = number(args.inverse), number(args.inverse_rest)
        return Inverse(head, rest)

    @inlined
    def scaled(self, value, scale):
        return quotient(value, scale.head, scale.rest)

    @inlined
    def divided(self, args, value):
        if args.inverse != 0.0:
            return self.scaled(value, self.scale_of(args, True))
        return value / self.form.computed(args.divisor)

    @outlined
    def scale(self, args, target, n):
        """Divide by the one divisor of all windows."""
        number, v, at = self.form.computed, target.cells.value, target.at
        if args.inverse != 0.0:
            scale = self.scale_of(args, True)
            for i in lanes_once(number, n):
                v[at + i] = self.scaled(v[at + i], scale)
        else:
            for i in lanes_once(number, n):
                v[at + i] = v[at + i] / number(args.divisor)

    def emit_row(self, work, first, end, target):
        args, unit, v, at = work.args, work.unit, target.cells.value, target.at
        last, n = last_axis(args), unit.neighbours
        if not args.scales_input:
            if args.divisor != 0.0:
                self.scale(args, target, (end - first) * n)
            else:
                count = counted_before_last(args, unit)
                for o in range(first, end):
                    share = self.form.computed(count * last.counted[o])
                    for i in range(n):
                        v[at + (o - first) * n + i] = v[at + (o - first) * n + i] / share
        if args.has_holes:
            fill_holes(self.form, args, unit, first, end, v, at)
        if not args.is_direct:
            write_row(self.form, args, unit, Role.Y, first, end, v, at)

    @inlined
    def scale_each(self, args, t, at, n):
        """Divide the windows of a small plane, each by its own divisor."""
        heads = self.form.computed_at(args.shares)
        for i in lanes_once(self.form.computed, n):
            t[at + i] = self.scaled(t[at + i], Inverse(heads[i], heads[n + i]))

    @inlined
    def finish(self, work):
        args = work.args
        if args.finish == Finish.BY_PLANE:
            y, outputs = self.form.computed_at(args.arrays[Role.Y]), args.axes[0].outputs * args.axes[0].slab
            self.scale_each(args, y, work.unit.bases[Role.Y], outputs)
