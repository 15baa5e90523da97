"""Cells gather cotangents from the small windows that cover them.

The winners and cotangents of rows of windows are kept until all rows of cells that they cover have been made. Each of
these is made once: a cell adds up, from 0 and in the order of its windows, the cotangents of those that it won and 0
for the others. So nothing is read after it was written, and the sums are those of sending every cotangent to its
winner, window by window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gradspec.backends.cpu.pool.arguments import Role
from gradspec.backends.cpu.pool.kernels.rows import (
    ceil_div,
    cell_row,
    cell_rows,
    fetch_to_write,
    last_axis,
    read_outputs,
)
from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.language import choose, inlined, lanes, lanes_once, outlined, unrolled


class Kept(NamedTuple):
    """Where a row of windows is kept, and the tap that a row of cells is to it."""

    at: Any
    tap: Any


# --- rows of windows --------------------------------------------------------------------------------------------------


@outlined
def begin_gathering(form, work):
    """Before a unit: nobody has won anything."""
    args, unit, cells = work.args, work.unit, work.cells
    g, unit.heard = args.gathering, unit.first_cell
    for i in lanes(form.computed, g.slots * args.rows * g.pitch * unit.neighbours):
        cells.value[g.kept_at * args.inner + i] = form.computed(0)
        cells.winner[g.kept_at * args.inner + i] = form.lane(-1)


@outlined
def keep_winners(form, work, w, at):
    """The winners ``w`` and the cotangents of the output row at hand."""
    args, unit, cells = work.args, work.unit, work.cells
    g, n, row = args.gathering, unit.neighbours, unit.place[0] % args.gathering.slots
    for i in range(1, len(args.axes) - 1):
        row = row * args.axes[i].outputs + unit.place[i]
    to, count = g.kept_at * args.inner + (row * g.pitch + g.margin) * n, last_axis(args).outputs
    read_outputs(form, args, unit, Role.U, 0, count, cells.value, to)
    for i in lanes(form.computed, count * n):
        cells.winner[to + i] = w[at + i]


@inlined
def covering(axis, cell):
    """The windows that cover a cell: the first, and how many."""
    first = max(0, ceil_div(cell + axis.low - axis.kernel + 1, axis.stride))
    return first, max(0, min(axis.outputs, (cell + axis.low) // axis.stride + 1) - first)


def covers(args, cell, r):
    """How many rows of windows cover row ``r`` of those at ``cell``."""
    _, count = covering(args.axes[0], cell)
    rest = r
    for i in range(len(args.axes) - 2, 0, -1):
        axis = args.axes[i]
        _, more = covering(axis, rest % axis.size)
        count, rest = count * more, rest // axis.size
    return count


def kept_row(args, cell, r, number, n):
    """The ``number``-th of them, in row-major order."""
    row, tap, size, rest, left, g = 0, 0, 1, r, number, args.gathering
    for i in range(len(args.axes) - 2, 0, -1):
        axis = args.axes[i]
        here, rest = rest % axis.size, rest // axis.size
        first, count = covering(axis, here)
        o, left = first + left % count, left // count
        row, size, tap = row + o * size, size * axis.outputs, tap + (here + axis.low - o * axis.stride) * axis.volume
    first, _ = covering(args.axes[0], cell)
    o, front = first + left, args.axes[0]
    row, tap = row + o % g.slots * size, tap + (cell + front.low - o * front.stride) * front.volume
    return Kept(g.kept_at * args.inner + (row * g.pitch + g.margin) * n, tap)


# --- sums -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GatheredTerms:
    """Sums of so many terms, from 0 or from what is there."""

    form: NumberFormat
    count: int
    begins: bool

    def add(self, cells, p, to, n, at, step, tap, stride):
        """To ``p`` from ``to`` on, the first from ``at`` on where ``tap`` won, each next ``step`` further and
        ``stride`` taps earlier."""
        number = self.form.computed
        for i in lanes_once(number, n):
            found = (number(0) if self.begins else p[to + i]) + self.term(cells, at + i, tap)
            for k in unrolled(self.count - 1):
                found = found + self.term(cells, at + (k + 1) * step + i, tap - (k + 1) * stride)
            p[to + i] = found

    @inlined
    def term(self, cells, at, tap):
        return choose(cells.winner[at] == self.form.lane(tap), cells.value[at], self.form.computed(0))


@outlined
def add_terms(form, cells, p, to, n, at, step, tap, stride, count, begins):
    """GatheredTerms of windows that follow each other, so that a cell hears from them in their order."""
    done = 0
    if begins:
        GatheredTerms(form, 1, True).add(cells, p, to, n, at, step, tap, stride)
        done = 1
    while done + 1 < count:
        GatheredTerms(form, 2, False).add(cells, p, to, n, at + done * step, step, tap - done * stride, stride)
        done += 2
    if done < count:
        GatheredTerms(form, 1, False).add(cells, p, to, n, at + done * step, step, tap - done * stride, stride)


# --- rows of cells ----------------------------------------------------------------------------------------------------


@outlined
def gather_row(form, work, cell, r):
    """What row ``r`` of the cells at ``cell`` of the first axis receives: phase by phase, in V itself if it can."""
    args, axis, n, g = work.args, last_axis(work.args), work.unit.neighbours, work.args.gathering
    to, rows, stride = cell_row(args, work.unit, Role.V, cell, r), covers(args, cell, r), axis.stride
    p, sums, length, low = work.cells.value, g.sums_at * args.inner, g.phase, 0
    if g.is_in_place:
        p, sums, length, low = form.computed_at(args.arrays[Role.V]), to, axis.size, axis.low
    for phase in range(stride):
        taps, here = (axis.kernel - phase + stride - 1) // stride, sums + phase * length * n
        if rows == 0 or taps <= 0:
            for i in lanes(form.computed, length * n):
                p[here + i] = form.computed(0)
        for number in range(rows if taps > 0 else 0):
            kept = kept_row(args, cell, r, number, n)
            first, tap = kept.at + (low - taps + 1) * n, kept.tap + phase + (taps - 1) * stride
            add_terms(form, work.cells, p, here, length * n, first, n, tap, stride, taps, number == 0)
    if not g.is_in_place:
        write_cells(form, args, axis, p, sums, to, n)


@outlined
def write_cells(form, args, axis, t, sums, at, n):
    """A row of cells from its phases, rounded."""
    v, along, inner = form.stored_at(args.arrays[Role.V]), axis.strides[Role.V], args.inner_strides[Role.V]
    length, phase, place = args.gathering.phase, axis.low % axis.stride, axis.low // axis.stride
    for cell in range(axis.size):
        to, here = at + cell * along, sums + (phase * length + place) * n
        if inner == 1:
            for i in lanes(form.computed, n):
                v[to + i] = form.narrow(t[here + i])
        else:
            for i in range(n):
                v[to + i * inner] = form.narrow(t[here + i])
        phase += 1
        if phase == axis.stride:
            phase, place = 0, place + 1


@outlined
def gather(form, work, until):
    """The cells of the first axis before ``until`` that have not gathered yet."""
    args, unit = work.args, work.unit
    ahead, size = args.axes[0].stride, last_axis(args).size * unit.neighbours
    for cell in range(unit.heard, min(until, unit.end_cell)):
        for r in range(cell_rows(args)):
            later = min(cell + ahead, unit.end_cell - 1)
            fetch_to_write(form, args, Role.V, cell_row(args, unit, Role.V, later, r), size)
            gather_row(form, work, cell, r)
        unit.heard = cell + 1


@inlined
def gather_finished(form, work):
    """The cells that no later window covers than those of the output row at hand."""
    args, unit = work.args, work.unit
    for i in range(1, len(args.axes) - 1):
        if unit.place[i] < args.axes[i].outputs - 1:
            return
    front = args.axes[0]
    gather(form, work, (unit.place[0] + 1) * front.stride - front.low)
