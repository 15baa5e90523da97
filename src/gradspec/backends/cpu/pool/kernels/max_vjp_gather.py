"""The VJP of max pooling with small windows: cells gather cotangents from the windows that cover them.

Cotangents are accumulated per input row, in output-row order: at each place along the last axis, those of windows won
in this row are added up. All of these windows have the same winning cell, since they see the same cells of the row, and
its tap is kept beside the sum. When no later window covers the row, each of its cells is written once: the sum, from 0
and in the order of places, of the accumulators that it won, and 0 for the others. So no address depends on a winner,
and the order of additions depends on the windows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gradspec.backends.cpu.pool.arguments import Role
from gradspec.backends.cpu.pool.kernels.rows import (
    Row,
    ceil_div,
    cell_row,
    cell_rows,
    fetch_to_write,
    last_axis,
    output_at,
    read_outputs,
)
from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.language import choose, inlined, lanes, lanes_once, outlined, put_strided, unrolled


class RowContribution(NamedTuple):
    """For a tap on all axes but the last: whether its row of cells is real, where that row's accumulators lie, and
    whether no earlier window covers it."""

    is_real: Any
    at: Any
    is_first: Any


# --- rows of windows --------------------------------------------------------------------------------------------------


@outlined
def reset_accumulators(form, work):
    """Reset the accumulators of a work unit."""
    args, unit, cells = work.args, work.unit, work.cells
    g, unit.next_cell = args.gathering, unit.first_cell
    for i in lanes(form.computed, g.slots * cell_rows(args) * g.pitch * unit.neighbours):
        cells.value[g.accumulators_at * args.inner + i] = form.computed(0)
        cells.winner[g.accumulators_at * args.inner + i] = form.lane(-1)


@inlined
def accumulator_at(args, cell, r, n):
    """Where the accumulators of row ``r`` of the cells at ``cell`` of the first axis begin."""
    g = args.gathering
    return g.accumulators_at * args.inner + ((cell % g.slots * cell_rows(args) + r) * g.pitch + g.margin) * n


@inlined
def first_covering_window(axis, cell):
    """The first window that covers a cell, if any does."""
    return max(0, ceil_div(cell + axis.low - axis.kernel + 1, axis.stride))


@inlined
def count_covering_windows(axis, cell):
    """How many windows cover a cell; at most 0 if none does."""
    return min((cell + axis.low) // axis.stride, axis.outputs - 1) - first_covering_window(axis, cell) + 1


@inlined
def is_first_to_cover(axis, o, cell):
    """Whether no earlier window than ``o`` covers a cell that it covers."""
    return o == 0 or cell - (o - 1) * axis.stride + axis.low >= axis.kernel


def contribution_of(args, unit, tap):
    """What the current output row contributes to through ``tap``."""
    r, size, rest, is_real, is_first = 0, 1, tap, True, True
    for i in range(len(args.axes) - 2, 0, -1):
        axis, o = args.axes[i], unit.place[i]
        cell, rest = o * axis.stride - axis.low + rest % axis.kernel, rest // axis.kernel
        is_real = is_real and cell >= 0 and cell < axis.size
        is_first = is_first and is_first_to_cover(axis, o, cell)
        r, size = r + cell * size, size * axis.size
    axis, o = args.axes[0], unit.place[0]
    cell = o * axis.stride - axis.low + rest
    is_real = is_real and cell >= 0 and cell < axis.size
    return RowContribution(
        is_real, accumulator_at(args, max(cell, 0), r, unit.neighbours), is_first and is_first_to_cover(axis, o, cell)
    )


@outlined
def store_contribution(form, cells, u, w, to, n, first, taps):
    """Store the first cotangents of a row of cells: those of windows whose winners ``w`` are among the row's ``taps``
    taps from ``first`` on."""
    for i in lanes(form.computed, n):
        tap = w.p[w.at + i] - form.lane(first)
        is_mine = (tap >= form.lane(0)) & (tap < form.lane(taps))
        cells.value[to + i] = choose(is_mine, form.computed(0) + u.p[u.at + i], form.computed(0))
        cells.winner[to + i] = tap


@outlined
def add_contribution(form, cells, u, w, to, n, first, taps):
    """Add the cotangents of a later row of windows."""
    for i in lanes_once(form.computed, n):
        tap = w.p[w.at + i] - form.lane(first)
        is_mine = (tap >= form.lane(0)) & (tap < form.lane(taps))
        sent = choose(is_mine, form.computed(0) + u.p[u.at + i], form.computed(0))
        cells.value[to + i] = cells.value[to + i] + sent
        cells.winner[to + i] = choose(is_mine, tap, cells.winner[to + i])


@inlined
def read_cotangents(form, work, count):
    """The cotangents of the current output row, in place or copied."""
    args, unit, axis = work.args, work.unit, last_axis(work.args)
    if not form.converts and unit.neighbours == 1 and axis.strides[Role.U] == 1:
        return Row(form.computed_at(args.arrays[Role.U]), output_at(args, unit, Role.U))
    at = args.gathering.sums_at * args.inner
    read_outputs(form, args, unit, Role.U, 0, count, work.cells.value, at)
    return Row(work.cells.value, at)


@outlined
def accumulate_row(form, work, w, at):
    """Accumulate the cotangents of the current output row, whose winners are ``w``."""
    args, unit, last = work.args, work.unit, last_axis(work.args)
    u, winners, n = read_cotangents(form, work, last.outputs), Row(w, at), last.outputs * unit.neighbours
    taps = args.axes[0].kernel * args.axes[0].volume // last.kernel
    for tap in range(taps):
        contribution = contribution_of(args, unit, tap)
        if contribution.is_real and contribution.is_first:
            store_contribution(form, work.cells, u, winners, contribution.at, n, tap * last.kernel, last.kernel)
        elif contribution.is_real:
            add_contribution(form, work.cells, u, winners, contribution.at, n, tap * last.kernel, last.kernel)


# --- sums along a row -------------------------------------------------------------------------------------------------


class PlaceTerms(NamedTuple):
    """The terms of a cell, in the order of windows: the first lies at ``at`` and counts where ``tap`` won; each next
    lies ``step`` further and counts where the winner is ``stride`` taps earlier."""

    at: Any
    tap: Any
    step: Any
    stride: Any


@dataclass(frozen=True)
class TermSum:
    """Sums of ``count`` terms, none of them −0."""

    form: NumberFormat
    count: int

    @inlined
    def add_up(self, cells, terms, i):
        found = self.term(cells, terms, 0, i)
        for k in unrolled(self.count - 1):
            found = found + self.term(cells, terms, k + 1, i)
        return found

    @inlined
    def term(self, cells, terms, k, i):
        at, tap = terms.at + k * terms.step + i, self.form.lane(terms.tap - k * terms.stride)
        return choose(cells.winner[at] == tap, cells.value[at], self.form.computed(0))

    def write(self, cells, v, to, n, terms):
        for i in lanes(self.form.computed, n):
            v[to + i] = self.form.narrow(self.add_up(cells, terms, i))


@outlined
def write_sums(form, cells, v, to, n, terms, count):
    """Write ``n`` cells that have one to three terms each."""
    for k in unrolled(3):
        if count == k + 1:
            TermSum(form, k + 1).write(cells, v, to, n, terms)


@inlined
def add_up_terms(form, cells, terms, count, i):
    """The sum of any number of terms."""
    one = TermSum(form, 1)
    found = one.term(cells, terms, 0, i)
    for k in range(1, count):
        found = found + one.term(cells, terms, k, i)
    return found


@dataclass(frozen=True)
class PairSums:
    """Sums of adjacent cells at stride 2, which have ``first`` and ``second`` terms."""

    form: NumberFormat
    first: int
    second: int

    def write(self, cells, v, to, size, a, b):
        first, second = TermSum(self.form, self.first), TermSum(self.form, self.second)
        for i in lanes(self.form.computed, size // 2):
            pair = self.form.narrow(first.add_up(cells, a, i)), self.form.narrow(second.add_up(cells, b, i))
            put_strided(v, to + 2 * i, pair)
        if size % 2 == 1:
            v[to + size - 1] = self.form.narrow(first.add_up(cells, a, size // 2))


@outlined
def write_pairs(form, cells, v, to, size, a, b, first, second):
    """Write adjacent cells that have one or two terms each."""
    for j in unrolled(2):
        for k in unrolled(2):
            if first == j + 1 and second == k + 1:
                PairSums(form, j + 1, k + 1).write(cells, v, to, size, a, b)


# --- rows of cells ----------------------------------------------------------------------------------------------------


@inlined
def terms_of_phase(axis, at, phase, place, n):
    """The terms of the cells of a phase from ``place`` on, and how many there are."""
    count = (axis.kernel - phase + axis.stride - 1) // axis.stride
    return PlaceTerms(at + (place - count + 1) * n, phase + (count - 1) * axis.stride, n, axis.stride), count


def is_row_covered(args, cell, r):
    """Whether a window covers row ``r`` of the cells at ``cell``."""
    found, rest = count_covering_windows(args.axes[0], cell) > 0, r
    for i in range(len(args.axes) - 2, 0, -1):
        axis = args.axes[i]
        here, rest = rest % axis.size, rest // axis.size
        found = found and count_covering_windows(axis, here) > 0
    return found


@outlined
def gather_row(form, work, cell, r):
    """Write the cotangents of row ``r`` of the cells at ``cell`` of the first axis."""
    args, axis, n, g = work.args, last_axis(work.args), work.unit.neighbours, work.args.gathering
    to, at, is_covered = (
        cell_row(args, work.unit, Role.V, cell, r),
        accumulator_at(args, cell, r, n),
        is_row_covered(args, cell, r),
    )
    if g.is_in_place and is_covered:
        gather_in_place(form, args, axis, work.cells, to, at, axis.size, n)
        return
    for column in range(axis.size):
        place, phase = (column + axis.low) // axis.stride, (column + axis.low) % axis.stride
        terms, count = terms_of_phase(axis, at, phase, place, n)
        gather_cell(form, args, work.cells, to + column * axis.strides[Role.V], n, terms, count if is_covered else 0)


@outlined
def gather_cell(form, args, cells, to, n, terms, count):
    """Write the sums of any number of terms to a cell and its neighbours."""
    v, step = form.stored_at(args.arrays[Role.V]), args.inner_strides[Role.V]
    if count <= 0:
        for i in range(n):
            v[to + i * step] = form.stored(0)
    elif step == 1:
        for i in lanes(form.computed, n):
            v[to + i] = form.narrow(add_up_terms(form, cells, terms, count, i))
    else:
        for i in range(n):
            v[to + i * step] = form.narrow(add_up_terms(form, cells, terms, count, i))


@inlined
def gather_in_place(form, args, axis, cells, to, at, size, n):
    """Write ``size`` cells to V, rounded, without a copy."""
    v = form.stored_at(args.arrays[Role.V])
    if axis.stride == 1:
        terms, count = terms_of_phase(axis, at, 0, axis.low, n)
        write_sums(form, cells, v, to, size * n, terms, count)
    else:
        a, first = terms_of_phase(axis, at, axis.low % 2, axis.low // 2, n)
        b, second = terms_of_phase(axis, at, (axis.low + 1) % 2, (axis.low + 1) // 2, n)
        write_pairs(form, cells, v, to, size, a, b, first, second)


@outlined
def gather(form, work, until):
    """Gather the cells of the first axis before ``until`` that have not been gathered."""
    args, unit = work.args, work.unit
    ahead, size = args.axes[0].stride, last_axis(args).size * unit.neighbours
    for cell in range(unit.next_cell, min(until, unit.end_cell)):
        for r in range(cell_rows(args)):
            later = min(cell + ahead, unit.end_cell - 1)
            fetch_to_write(form, args, Role.V, cell_row(args, unit, Role.V, later, r), size)
            gather_row(form, work, cell, r)
        unit.next_cell = cell + 1


@inlined
def gather_completed(form, work):
    """Gather the cells that no window after the current output row covers."""
    args, unit = work.args, work.unit
    for i in range(1, len(args.axes) - 1):
        if unit.place[i] < args.axes[i].outputs - 1:
            return
    front = args.axes[0]
    gather(form, work, (unit.place[0] + 1) * front.stride - front.low)
