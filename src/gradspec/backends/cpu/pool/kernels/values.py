"""Reductions to one number: the maximum without its winner, and the average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gradspec.backends.cpu.pool.arguments import Role
from gradspec.backends.cpu.pool.kernels import planes
from gradspec.backends.cpu.pool.kernels.along import reduced_row
from gradspec.backends.cpu.pool.kernels.backwards import expanding
from gradspec.backends.cpu.pool.kernels.rows import (
    counted_before_last,
    last_axis,
    read_neighbours,
    real_taps,
    rows_have_cells,
    write_row,
)
from gradspec.backends.cpu.pool.kernels.states import Largest, Total
from gradspec.backends.cpu.pool.kernels.walk import put_together, walk
from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.intrinsics import multiply_add
from gradspec.codegen.language import choose, inlined, lanes_once, outlined, total


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
    row, put_together, outputs = reduced_row, put_together, walk
    plane_row, plane_rows = planes.plane_row, planes.plane_rows

    @property
    def has_planes(self) -> bool:
        return not self.form.converts

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

    def whole(self, args, lo, hi):
        x, y = self.form.stored_at(args.arrays[Role.X]), self.form.stored_at(args.arrays[Role.Y])
        n, lead = args.axes[0].size, args.leads[0]
        for i in range(lo, hi):
            found = total(self.state.join, self.state.nothing, x, i * lead.strides[Role.X], n)
            y[i * lead.strides[Role.Y]] = self.divided(args, found)


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


class Divisor(NamedTuple):
    """A divisor, and its rounded inverse."""

    inverse: Any
    divisor: Any


@dataclass(frozen=True)
class Average(OneNumberReduction):
    """Averages, forwards and backwards."""

    has_scale = reads_backwards = True
    expanding = expanding

    @property
    def state(self) -> Total:
        return Total(self.form)

    @inlined
    def scale_of(self, args, is_wanted):
        """The one divisor of all windows if it is wanted here, and 1 otherwise."""
        inverse, divisor, number = self.form.computed(1), self.form.computed(1), self.form.computed
        if is_wanted and args.inverse != 0.0:
            inverse, divisor = number(args.inverse), number(args.divisor)
        return Divisor(inverse, divisor)

    @inlined
    def scaled(self, value, scale):
        """``value / divisor``, from the rounded inverse ``r``.

        The remainder of the quotient ``q = value·r`` is exact in one operation, and ``q + remainder·r`` is the rounded
        quotient: the same as a division, in less time. Where ``q`` is infinite there is no remainder.
        """
        quotient = value * scale.inverse
        remainder = multiply_add(-quotient, scale.divisor, value)
        return choose(remainder == remainder, multiply_add(remainder, scale.inverse, quotient), quotient)

    @inlined
    def divided(self, args, value):
        return value / self.form.computed(args.divisor)

    @outlined
    def scale(self, args, target, n):
        """Divide by the one divisor of all windows."""
        number, v, at = self.form.computed, target.cells.value, target.at
        scale = Divisor(number(args.inverse), number(args.divisor))
        if args.is_inverse_exact:
            for i in lanes_once(number, n):
                v[at + i] = v[at + i] * scale.inverse
        elif scale.inverse != number(0):
            for i in lanes_once(number, n):
                v[at + i] = self.scaled(v[at + i], scale)
        else:
            for i in lanes_once(number, n):
                v[at + i] = v[at + i] / scale.divisor

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
    def finish(self, work):
        """Divide the outputs of a small plane, each by its own divisor."""
        args, form = work.args, self.form
        if args.shares != 0:
            y, shares = form.computed_at(args.arrays[Role.Y]), form.computed_at(args.shares)
            at = work.unit.bases[Role.Y]
            for i in lanes_once(form.computed, args.axes[0].outputs * args.axes[0].slab):
                y[at + i] = y[at + i] / shares[i]
