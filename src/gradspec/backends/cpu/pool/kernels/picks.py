"""Small planes of short bins, for states of one number.

A bin of adaptive windows has one of two lengths, and neighbouring bins begin at uneven distances. So the rows that an
output row reads are joined, for all output rows of a plane; of all that the runs of both lengths are made that begin at
any cell, a vector at a time; and the outputs are picked from these. Runs across the end of a row are nobody's.
"""

from __future__ import annotations

from gradspec.backends.cpu.pool.arguments import Role
from gradspec.backends.cpu.pool.kernels.rows import AHEAD, Row, last_axis
from gradspec.codegen.intrinsics import prefetch
from gradspec.codegen.language import inlined, lanes, lanes_once, outlined


@outlined
def stage_plane(reduction, work, t):
    """The cells of a plane one after another, as they are computed with, divided if the input is to be."""
    form, args, unit, last = reduction.form, work.args, work.unit, last_axis(work.args)
    x, step = form.stored_at(args.arrays[Role.X]), last.strides[Role.X]
    for r in range(args.picks.staged // last.size):
        at, rest, to = unit.bases[Role.X], r, r * last.size
        for i in range(len(args.axes) - 2, -1, -1):
            axis = args.axes[i]
            at, rest = at + rest % axis.size * axis.strides[Role.X], rest // axis.size
        if step == 1:
            for i in lanes(form.computed, last.size):
                t[to + i] = form.widen(x[at + i])
        else:
            for i in range(last.size):
                t[to + i] = form.widen(x[at + i * step])
    if reduction.has_scale and args.scales_input:
        reduction.scale_each(args, t, 0, args.picks.staged)


@inlined
def join_rows(state, cells, to, row, table, entry, n):
    """The rows that an output row reads."""
    p, at, count = row.p, row.at, table[entry]
    first, second, third = at + table[entry + 1], at + table[entry + 2], at + table[entry + 3]
    prefetch(p, first + AHEAD)
    if count == 1:
        for i in lanes(state.number, n):
            state.put(cells, to + i, p[first + i])
    elif count == 2:
        for i in lanes(state.number, n):
            state.put(cells, to + i, state.join(p[first + i], p[second + i]))
    else:
        for i in lanes(state.number, n):
            state.put(cells, to + i, state.join3(p[first + i], p[second + i], p[third + i]))
    for k in range(4, count + 1):
        here = at + table[entry + k]
        for i in lanes_once(state.number, n):
            state.put(cells, to + i, state.join(state.get(cells, to + i), p[here + i]))


@inlined
def make_runs(state, cells, to, longer, at, shortest, n):
    """Runs of both lengths from every cell; behind the last cell there is one more."""
    for i in lanes(state.number, n):
        found = state.get(cells, at + i)
        for k in range(1, shortest):
            found = state.join(found, state.get(cells, at + k + i))
        state.put(cells, to + i, found)
        state.put(cells, longer + i, state.join(found, state.get(cells, at + shortest + i)))


@outlined
def picked_plane(reduction, work):
    args, form, state, picks, t = work.args, reduction.form, reduction.state, work.args.picks, work.cells.value
    outputs, shortest = args.axes[0].outputs * args.axes[0].slab, picks.shortest
    rows = outputs // last_axis(args).outputs
    row = Row(t, 0)
    if form.converts or picks.staged > 0:
        stage_plane(reduction, work, t)
    else:
        row = Row(form.computed_at(args.arrays[Role.X]), work.unit.bases[Role.X])
    n, at, width, table, entries = rows * picks.width, picks.staged, picks.width, picks.rows, picks.entries
    for r in range(rows):
        join_rows(state, work.cells, at + r * width, row, table, r * entries, width)
    runs = at + n + 1
    make_runs(state, work.cells, runs, runs + n, at, shortest, n + 1 - shortest)
    found, places = runs + 2 * n, picks.places
    for i in range(outputs):
        t[found + i] = t[runs + places[i]]
    reduction.write_plane(work, t, found, outputs)
