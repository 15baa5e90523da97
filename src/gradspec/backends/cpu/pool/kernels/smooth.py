"""Smooth maxima: log-sum-exp over windows as a semigroup, with the tangents and cotangents of its weights.

A part of a window is reduced to its largest number ``m``, the pivot, and ``s = Σ exp(b(x − m))``, with a tangent also
``t = Σ exp(b(x − m))·u``. Two parts are joined around the larger ``m``; the sums of the other shrink by
``d = exp(−b|m₁ − m₂|)``, 1 where both are equal, be it infinite. The smooth maximum is ``m + log(s)/b``, the mean of
``u`` is ``t/s``, and a cell receives ``g/s·exp(b(x − m))``. No exponent is positive and ``s ≥ 1``: nothing overflows.

Numbers are multiplied by a unit when they are read: −1 for β < 0, which makes the smooth minimum a maximum, and a half
of that where β is so small that a difference of two numbers may overflow and still matter.

Padding is read as −∞ and counts nothing beside a number. A window whose largest number is −∞ has only such cells, or
none, and is given the count of its real cells. Padding that takes part joins at the end, as that many zeros.

**Error.** Where a window is combined directly, an ``exp(b(x − m))`` is a product of at most one exponential per
axis, and otherwise of one per join. Gaps to larger and larger ``m`` add up to the gap to the last, so that errors of
exponents are those of a single exponential. A factor errs by 1.6u, and to be multiplied and added costs u more. With
the n − 1 additions that the certified tolerance allows anyway, an exponential of error 8u, which it assumes unless
told otherwise, is never exceeded: runs for k ≥ 8 taps take at most 3⌈log₂ k⌉/2 joins, and prefixes, which may be
joined k times, are used only where the other axes make n ≥ 4k.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from gradspec.backends.cpu.pool.arguments import AxisKind, Role
from gradspec.backends.cpu.pool.kernels.reduce_row import copy_states
from gradspec.backends.cpu.pool.kernels.rows import (
    counted_before_last,
    last_axis,
    read_neighbours,
    read_outputs,
    read_row,
    real_before_last,
    real_taps,
    span_of,
    write_row,
)
from gradspec.backends.cpu.pool.kernels.staging import Staging, scatter_to_cells, stage, tap_offsets, tap_row, tap_rows
from gradspec.backends.cpu.pool.kernels.states import State, lowest
from gradspec.backends.cpu.pool.kernels.ties import Cotangent, Extreme, Holders
from gradspec.backends.cpu.pool.kernels.vjp_accumulators import finish_cells, prepare_cells
from gradspec.backends.cpu.pool.kernels.walk import Destination, Part, Reduction, copy, emit, join, join3, next_slab
from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.intrinsics import maximum, minimum, multiply_add
from gradspec.codegen.kernels.elementary import exp_of_negative, log_of_positive
from gradspec.codegen.language import choose, inlined, lanes, lanes_once, number_of, outlined, strided, total

# --- the state --------------------------------------------------------------------------------------------------------


class Soft(NamedTuple):
    """The pivot ``m`` and the sum ``s``: of a part of a window, or where those of many parts lie."""

    value: Any
    weight: Any


class SoftTangent(NamedTuple):
    """The pivot, the sum ``s`` and the sum ``t`` of tangents."""

    value: Any
    weight: Any
    tangent: Any


@inlined
def power(b, x, m):
    """``exp(b(x − m))`` for ``x ≤ m``."""
    return exp_of_negative(choose(x == m, number_of(x)(0), b * (x - m)))


class Ordered(NamedTuple):
    """The larger and the smaller of two pivots, and whether the second is the larger."""

    larger: Any
    smaller: Any
    is_second: Any


@inlined
def order_pivots(m1, m2):
    return Ordered(maximum(m1, m2), minimum(m1, m2), m2 > m1)


@inlined
def add_shrunk(is_second, d, s1, s2):
    """Add two sums; that of the part with the smaller pivot shrinks by ``d``."""
    return multiply_add(choose(is_second, s1, s2), d, choose(is_second, s2, s1))


@inlined
def add_shrunk3(is_second, is_third, d_low, d_middle, s1, s2, s3):
    """Add three sums: those of the parts with the two smaller pivots shrink."""
    both = add_shrunk(is_third, d_middle, choose(is_second, s2, s1), s3)
    return multiply_add(choose(is_second, s1, s2), d_low, both)


@dataclass(frozen=True)
class SoftKind(State):
    """The state, as far as it is known when a kernel is built."""

    has_tangent: bool

    @property
    def identity(self) -> Soft | SoftTangent:
        zero = self.form.computed(0)
        return SoftTangent(lowest(self.form), zero, zero) if self.has_tangent else Soft(lowest(self.form), zero)

    @inlined
    def bound(self, args):
        return SoftState(self, self.form.computed(args.softness))

    @inlined
    def get(self, cells, i):
        if self.has_tangent:
            return SoftTangent(cells.value[i], cells.weight[i], cells.tangent[i])
        return Soft(cells.value[i], cells.weight[i])

    @inlined
    def put(self, cells, i, state):
        cells.value[i] = state.value
        cells.weight[i] = state.weight
        if self.has_tangent:
            cells.tangent[i] = state.tangent

    @inlined
    def cells(self, base, component):
        p, size = self.form.computed_at, self.form.computed.bytes
        return SoftTangent(p(base), p(base + component * size), p(base + component * 2 * size))


class BoundState(NamedTuple):
    """A state with the softness ``b`` of a call."""

    kind: Any
    softness: Any

    @property
    def form(self) -> Any:
        return self.kind.form

    @property
    def number(self) -> Any:
        return self.kind.number

    @inlined
    def get(self, cells, i):
        return self.kind.get(cells, i)

    @inlined
    def put(self, cells, i, state):
        self.kind.put(cells, i, state)

    @inlined
    def shift_taps(self, state, shift):
        return state


class SoftState(BoundState):
    @inlined
    def join(self, first, second):
        m = order_pivots(first.value, second.value)
        d = power(self.softness, m.smaller, m.larger)
        weight = add_shrunk(m.is_second, d, first.weight, second.weight)
        if self.kind.has_tangent:
            return SoftTangent(m.larger, weight, add_shrunk(m.is_second, d, first.tangent, second.tangent))
        return Soft(m.larger, weight)

    @inlined
    def join3(self, first, second, third):
        """The exponentials of the two smaller pivots do not depend on each other."""
        two = order_pivots(first.value, second.value)
        m = order_pivots(two.larger, third.value)
        low, middle = power(self.softness, two.smaller, m.larger), power(self.softness, m.smaller, m.larger)
        a, b = two.is_second, m.is_second
        weight = add_shrunk3(a, b, low, middle, first.weight, second.weight, third.weight)
        if self.kind.has_tangent:
            tangent = add_shrunk3(a, b, low, middle, first.tangent, second.tangent, third.tangent)
            return SoftTangent(m.larger, weight, tangent)
        return Soft(m.larger, weight)


@outlined
def combine_rows_smoothly(reduction, work, ring, at, shift, rows, volume, target):
    """Reduce a window from rows of the ring: find the largest pivot, then the sums around it."""
    args, cells, kind = work.args, work.cells, reduction.state
    if rows == 1:
        copy(reduction, target, cells, Part(at, 0), ring.slab)
        return
    second = next_slab(ring, at)
    if rows == 2:
        join(reduction, args, target, cells, Part(at, 0), Part(second, 0), ring.slab)
        return
    if rows == 3:
        join3(reduction, args, target, cells, Part(at, 0), Part(second, 0), Part(next_slab(ring, second), 0), ring.slab)
        return
    softness = kind.form.computed(args.softness)
    for i in lanes(kind.number, ring.slab):
        m, here = cells.value[at + i], at
        for _ in range(1, rows):
            here = next_slab(ring, here)
            m = maximum(m, cells.value[here + i])
        e = power(softness, cells.value[at + i], m)
        s = e * cells.weight[at + i]
        if kind.has_tangent:
            t = e * cells.tangent[at + i]
        here = at
        for _ in range(1, rows):
            here = next_slab(ring, here)
            e = power(softness, cells.value[here + i], m)
            s = multiply_add(e, cells.weight[here + i], s)
            if kind.has_tangent:
                t = multiply_add(e, cells.tangent[here + i], t)
        target.cells.value[target.at + i] = m
        target.cells.weight[target.at + i] = s
        if kind.has_tangent:
            target.cells.tangent[target.at + i] = t


# --- along a row ------------------------------------------------------------------------------------------------------


@outlined
def join_taps(kind, b, offsets, kernel, row, tangents, target, n):
    """Join taps at their offsets: find the largest, then the sums."""
    p, at = row
    for i in lanes(kind.number, n):
        m = p[at + i]
        for k in range(1, kernel):
            m = maximum(m, p[at + offsets[k] + i])
        e = power(b, p[at + i], m)
        s = e
        if kind.has_tangent:
            t = e * tangents.p[tangents.at + i]
        for k in range(1, kernel):
            e = power(b, p[at + offsets[k] + i], m)
            s = s + e
            if kind.has_tangent:
                t = multiply_add(e, tangents.p[tangents.at + offsets[k] + i], t)
        target.cells.value[target.at + i] = m
        target.cells.weight[target.at + i] = s
        if kind.has_tangent:
            target.cells.tangent[target.at + i] = t


@outlined
def join_2_taps(kind, b, offset, row, tangents, target, n):
    p, at, cells, to = row.p, row.at, target.cells, target.at
    for i in lanes(kind.number, n):
        m = order_pivots(p[at + i], p[at + offset + i])
        e = power(b, m.smaller, m.larger)
        cells.value[to + i] = m.larger
        cells.weight[to + i] = e + 1
        if kind.has_tangent:
            u1, u2 = tangents.p[tangents.at + i], tangents.p[tangents.at + offset + i]
            cells.tangent[to + i] = add_shrunk(m.is_second, e, u1, u2)


@outlined
def join_2_cells_stride_2(kind, b, row, target, n):
    """Join two taps at stride 2, without staging."""
    for i in lanes(kind.number, n):
        left, right = strided(row.p, row.at + 2 * i, 2)
        m = order_pivots(left, right)
        target.cells.value[target.at + i] = m.larger
        target.cells.weight[target.at + i] = power(b, m.smaller, m.larger) + 1


@outlined
def join_3_taps(kind, b, second, third, row, tangents, target, n):
    p, at, cells, to = row.p, row.at, target.cells, target.at
    for i in lanes(kind.number, n):
        two = order_pivots(p[at + i], p[at + second + i])
        m = order_pivots(two.larger, p[at + third + i])
        low, middle = power(b, two.smaller, m.larger), power(b, m.smaller, m.larger)
        cells.value[to + i] = m.larger
        cells.weight[to + i] = low + middle + 1
        if kind.has_tangent:
            q, q_at = tangents
            u1, u2, u3 = q[q_at + i], q[q_at + second + i], q[q_at + third + i]
            cells.tangent[to + i] = add_shrunk3(two.is_second, m.is_second, low, middle, u1, u2, u3)


@outlined
def double_runs_smoothly(reduction, args, axis, cells, to, length, n):
    """Reduce windows from runs of adjacent cells that are doubled and lengthened by 1 or 3.

    The binary digits of the window's length are read from the front, two ones at a time.
    """
    kind, kernel, dilation, one_cell = reduction.state, axis.kernel, axis.dilation, args.tile_at
    three_cells, run = one_cell + args.tile_room, one_cell + 2 * args.tile_room
    for i in lanes(kind.number, length):
        cells.weight[one_cell + i] = kind.number(1)
    join_runs(reduction, args, cells, run, one_cell, one_cell + dilation, length - dilation)
    if kernel & (kernel >> 1) != 0:
        join_runs(reduction, args, cells, three_cells, run, one_cell + 2 * dilation, length - 2 * dilation)
    bit, width = 1, 2
    while 4 * bit <= kernel:
        bit *= 2
    if kernel & bit != 0:
        width = 3
        copy_states(kind, Destination(cells, run), cells, three_cells, length - 2 * dilation, 1)
    bit = bit // 2
    while bit != 0:
        is_one = kernel & bit != 0
        are_two = is_one and kernel & (bit // 2) != 0
        for _ in range(2 if are_two else 1):
            join_runs(reduction, args, cells, run, run, run + width * dilation, length - (2 * width - 1) * dilation)
            width, bit = 2 * width, bit // 2
        if are_two:
            later = three_cells + width * dilation
            join_runs(reduction, args, cells, run, run, later, length - (width + 2) * dilation)
            width += 3
        elif is_one:
            join_runs(reduction, args, cells, run, run, one_cell + width * dilation, length - width * dilation)
            width += 1
    copy_states(kind, Destination(cells, to), cells, run, n, axis.stride)


@inlined
def join_runs(reduction, args, cells, to, first, second, n):
    join(reduction, args, Destination(cells, to), cells, Part(first, 0), Part(second, 0), n)


@outlined
def reduce_run(reduction, work, axis, source, begin, end):
    """Reduce cells begin … end−1 of a bin: find the largest, then the sums."""
    args, form, kind, cells = work.args, reduction.form, reduction.state, work.cells
    number, n = form.computed, end - begin
    b, unit, zero, at = number(args.softness), number(args.unit), number(0), args.tile_at
    room = at + 2 * args.tile_room
    row = read_row(form, args, axis, Role.X, source.x, 1, begin, end, cells.value, room)
    for i in lanes(number, n):
        cells.value[at + i] = row.p[row.at + begin + i] * unit
    m = total(maximum, lowest(form), cells.value, at, n)
    for i in lanes(number, n):
        cells.weight[at + i] = power(b, cells.value[at + i], m)
    s = total(operator.add, zero, cells.weight, at, n)
    if kind.has_tangent:
        tangents = read_row(form, args, axis, Role.U, source.u, 1, begin, end, cells.tangent, room)
        for i in lanes(number, n):
            cells.tangent[at + i] = cells.weight[at + i] * tangents.p[tangents.at + begin + i]
        return SoftTangent(m, s, total(operator.add, zero, cells.tangent, at, n))
    return Soft(m, s)


@inlined
def reduce_bins(reduction, work, axis, source, target, first, end):
    """Reduce bins one by one; their cells are read in pieces."""
    state, room = reduction.state.bound(work.args), work.args.tile_room
    for o in range(first, end):
        real, joined = real_taps(axis, o), reduction.state.identity
        for begin in range(real.start, real.start + real.end, room):
            piece = reduce_run(reduction, work, axis, source, begin, min(begin + room, real.start + real.end))
            joined = state.join(joined, piece)
        state.put(target.cells, target.at + o - first, joined)


@outlined
def reduce_row_smoothly(reduction, work, axis, source, target, first_output, end_output):
    """Reduce outputs of the last axis. Results always go to the workspace."""
    if axis.kind == AxisKind.BINS:
        reduce_bins(reduction, work, axis, source, target, first_output, end_output)
        if len(work.args.axes) == 1:
            emit(reduction, work, first_output, end_output, target)
        return
    args, kind, cells, kernel, stride = work.args, reduction.state, work.cells, axis.kernel, axis.stride
    are_pairs = (not kind.has_tangent) and kernel == 2 and stride == 2 and axis.dilation == 1
    phases = 1 if axis.scans or are_pairs else stride
    at = target.at
    for first in range(first_output, end_output, args.tile):
        end = min(first + args.tile, end_output)
        row = stage(reduction.numbers, args, axis, Role.X, source.x, first, end, phases, axis.scans, cells.value)
        tangents = row
        if kind.has_tangent:
            u = source.u
            tangents = stage(reduction.tangents, args, axis, Role.U, u, first, end, phases, axis.scans, cells.tangent)
        if axis.scans:
            span = span_of(axis, first, end)
            double_runs_smoothly(reduction, args, axis, cells, at, span.stop - span.begin, end - first)
        else:
            join_staged_taps(reduction, work, axis, row, tangents, Destination(cells, at), first, end, are_pairs)
        if len(args.axes) == 1:
            emit(reduction, work, first, end, Destination(cells, target.at))
        else:
            at += end - first


@inlined
def join_staged_taps(reduction, work, axis, row, tangents, target, first, end, are_pairs):
    kind, b, n, kernel = reduction.state, reduction.form.computed(work.args.softness), end - first, axis.kernel
    if are_pairs:
        join_2_cells_stride_2(kind, b, row, target, n)
    else:
        offsets = tap_offsets(work.args, work.unit, axis, first, end)
        if kernel == 2:
            join_2_taps(kind, b, offsets[1], row, tangents, target, n)
        elif kernel == 3:
            join_3_taps(kind, b, offsets[1], offsets[2], row, tangents, target, n)
        else:
            join_taps(kind, b, offsets, kernel, row, tangents, target, n)


# --- finished rows ----------------------------------------------------------------------------------------------------


@inlined
def add_nonfinite(a, b):
    """A sum that is 0 as long as all numbers are finite, and NaN otherwise."""
    return a + (b - b)


@outlined
def count_lowest(form, args, unit, first, end, cells, at):
    axis, n, count = last_axis(args), unit.neighbours, real_before_last(args, unit)
    for o in range(first, end):
        for i in range(at + (o - first) * n, at + (o - first + 1) * n):
            if cells.value[i] == lowest(form):
                cells.weight[i] = form.computed(count * axis.real[o])
                if cells.weight[i] == form.computed(0) and not args.pads_with_zeros:
                    cells.value[i] = form.computed(0)
                    cells.weight[i] = form.computed(1)


@outlined
def join_padding(kind, args, unit, first, end, cells, at):
    number, axis, n = kind.number, last_axis(args), unit.neighbours
    count, real = counted_before_last(args, unit), real_before_last(args, unit)
    for o in range(first, end):
        zeros = count * axis.counted[o] - real * axis.real[o]
        if zeros > 0:
            for i in range(at + (o - first) * n, at + (o - first + 1) * n):
                m = order_pivots(cells.value[i], number(0))
                d = power(number(args.softness), m.smaller, m.larger)
                cells.value[i] = m.larger
                cells.weight[i] = add_shrunk(m.is_second, d, cells.weight[i], number(zeros))
                if kind.has_tangent:
                    cells.tangent[i] = add_shrunk(m.is_second, d, cells.tangent[i], number(0))


@outlined
def mean_by_weights(form, args, unit, o, i, m, s):
    """``Σ exp(b(x − m))/s·u``, for tangents whose sum overflows: no term does."""
    axis, number, mean = last_axis(args), form.computed, form.computed(0)
    b, in_unit = number(args.softness), number(args.unit)
    x, u = form.stored_at(args.arrays[Role.X]), form.stored_at(args.arrays[Role.U])
    real = real_taps(axis, o)
    for r in range(tap_rows(args, unit)):
        (x_row, _), (u_row, _) = tap_row(args, unit, r, Role.X), tap_row(args, unit, r, Role.U)
        for k in range(real.first, real.end):
            cell = real.start + k * axis.dilation
            here = x_row + cell * axis.strides[Role.X] + i * args.inner_strides[Role.X]
            there = u_row + cell * axis.strides[Role.U] + i * args.inner_strides[Role.U]
            mean = mean + power(b, form.widen(x[here]) * in_unit, m) / s * form.widen(u[there])
    return mean


@outlined
def write_means(form, args, unit, first, end, cells, at):
    n, zero, z = unit.neighbours, form.computed(0), cells.tangent
    for i in lanes_once(form.computed, (end - first) * n):
        z[at + i] = z[at + i] / cells.weight[at + i]
    if total(add_nonfinite, zero, z, at, (end - first) * n) != zero:
        for o in range(first, end):
            for i in range(n):
                here = at + (o - first) * n + i
                if z[here] - z[here] != zero and cells.value[here] == cells.value[here]:
                    z[here] = mean_by_weights(form, args, unit, o, i, cells.value[here], cells.weight[here])
    write_row(form, args, unit, Role.V, first, end, z, at)


@outlined
def read_shares(form, args, unit, first, end, cells, at):
    z = cells.tangent
    read_outputs(form, args, unit, Role.U, first, end, z, at)
    for i in lanes_once(form.computed, (end - first) * unit.neighbours):
        z[at + i] = z[at + i] / cells.weight[at + i]


@outlined
def write_shares(form, args, unit, first, end, cells, at):
    read_shares(form, args, unit, first, end, cells, at)
    write_row(form.as_computed, args, unit, Role.Y, first, end, cells.value, at)
    write_row(form.as_computed, args, unit, Role.V, first, end, cells.tangent, at)


@outlined
def scatter_cotangents(reduction, args, unit, first, end, cells, at):
    """Add cotangents to the cells, by their weights."""
    form, z = reduction.form, cells.tangent
    read_shares(form, args, unit, first, end, cells, at)
    scatter_to_cells(reduction.weights, args, unit, first, end, cells.value, z, cells.weight, at)


@outlined
def write_values(form, args, unit, first, end, cells, at):
    number, in_unit = form.computed, form.computed(args.unit)
    beta, back = number(args.softness) * in_unit, number(1) / in_unit
    for i in lanes_once(number, (end - first) * unit.neighbours):
        cells.value[at + i] = cells.value[at + i] * back + log_of_positive(cells.weight[at + i]) / beta
    write_row(form, args, unit, Role.Y, first, end, cells.value, at)


# --- the kernels ------------------------------------------------------------------------------------------------------


class Derivative(Enum):
    """What is computed beside the value: nothing, the JVP (a mean of tangents), or the VJP; or, in place of the value,
    pivots and the cotangent's shares."""

    NONE, MEAN, SPREAD, SHARES = range(4)


@dataclass(frozen=True)
class SoftWeights:
    """Contributions of a window's cotangent to its cells, by weight."""

    form: NumberFormat

    @property
    def staged(self) -> Staging:
        return Staging(self.form, -math.inf, in_units=True)

    @inlined
    def setting(self, args):
        return self.form.computed(args.softness)

    @inlined
    def contribution(self, softness, x, m, share):
        return share * power(softness, x, m)


@dataclass(frozen=True)
class SmoothMaximum(Reduction):
    derivative: Derivative
    row, combine_rows = reduce_row_smoothly, combine_rows_smoothly
    prepare, finish = prepare_cells, finish_cells

    @property
    def state(self) -> SoftKind:
        return SoftKind(self.form, self.derivative is Derivative.MEAN)

    @property
    def numbers(self) -> Staging:
        return Staging(self.form, -math.inf, in_units=True)

    @property
    def tangents(self) -> Staging:
        return Staging(self.form, 0.0)

    @property
    def weights(self) -> SoftWeights:
        return SoftWeights(self.form)

    @outlined
    def load(self, work, axis, source, at, n):
        form, args, cells, number = self.form, work.args, work.cells, self.form.computed
        read_neighbours(form, args, Role.X, source.x, 1, cells.value, at, n)
        unit = number(args.unit)
        for i in lanes_once(number, n):
            m = cells.value[at + i] * unit
            cells.value[at + i] = m
            cells.weight[at + i] = choose(m == m, number(1), m)  # the weight of a NaN that stays alone is NaN
        if self.state.has_tangent:
            read_neighbours(form, args, Role.U, source.u, 1, cells.tangent, at, n)

    def emit_row(self, work, first, end, target):
        form, args, unit, cells, at = self.form, work.args, work.unit, target.cells, target.at
        zero = form.computed(0)
        if total(add_nonfinite, zero, cells.value, at, (end - first) * unit.neighbours) != zero:
            count_lowest(form, args, unit, first, end, cells, at)
        if args.pads_with_zeros:
            join_padding(self.state, args, unit, first, end, cells, at)
        if self.derivative is Derivative.MEAN:
            write_means(form, args, unit, first, end, cells, at)
        if self.derivative is Derivative.SPREAD:
            scatter_cotangents(self, args, unit, first, end, cells, at)
        if self.derivative is Derivative.SHARES:
            write_shares(form, args, unit, first, end, cells, at)
        elif args.arrays[Role.Y] != 0:
            write_values(form, args, unit, first, end, cells, at)


# --- cotangents by transposed windows ---------------------------------------------------------------------------------
#
# The cotangent of a cell ``x`` is ``Σ q·exp(b(x − m))`` over the windows that cover it, with pivots ``m ≥ x`` and
# shares ``q = g/s``. Around the least pivot ``M`` that is ``exp(b(x − M))·Σ q·exp(b(M − m))``: no exponent is positive,
# and pairs of ``M`` and such sums are joined as above. Runs take at most 2⌊log₂ k⌋ joins, so the error bound there
# holds. If the sum of shares overflows, where the cotangent may not, the cell is added up window by window.


@dataclass(frozen=True)
class LeastPivotKind(Holders):
    """The state, as far as it is known when a kernel is built."""

    @property
    def identity(self) -> Extreme:
        return Extreme(self.form.computed(math.inf), self.form.computed(0))

    @inlined
    def bound(self, args):
        return LeastPivot(self, self.form.computed(args.softness))


class LeastPivot(BoundState):
    is_idempotent = False

    @inlined
    def join(self, a, b):
        m = order_pivots(a.value, b.value)
        d = power(self.softness, m.smaller, m.larger)
        return Extreme(m.smaller, add_shrunk(b.value < a.value, d, a.amount, b.amount))


@outlined
def combine_around_least(reduction, work, ring, at, shift, rows, volume, target):
    """Reduce cells from rows of the ring: find the least pivot, then the sums around it."""
    cells, number = work.cells, reduction.form.computed
    softness = number(work.args.softness)
    for i in lanes(number, ring.slab):
        m, here = cells.value[at + i], at
        for _ in range(1, rows):
            here = next_slab(ring, here)
            m = minimum(m, cells.value[here + i])
        amount, here = power(softness, m, cells.value[at + i]) * cells.amount[at + i], at
        for _ in range(1, rows):
            here = next_slab(ring, here)
            amount = multiply_add(power(softness, m, cells.value[here + i]), cells.amount[here + i], amount)
        target.cells.value[target.at + i] = m
        target.cells.amount[target.at + i] = amount


# --- window by window -------------------------------------------------------------------------------------------------


@inlined
def covering_window(axis, cell, k):
    """The ``k``-th window that may cover a cell; −1 for none."""
    window = cell * axis.stride - axis.low + k * axis.dilation
    if axis.kind == AxisKind.BINS:
        window = axis.spans[2 * cell] + k if k < axis.spans[2 * cell + 1] else -1
    elif axis.kind == AxisKind.EXPANDING:
        at = cell + axis.low - k * axis.dilation
        window = at // axis.stride if at % axis.stride == 0 else -1
    return window if window < axis.size else -1


@outlined
def add_window_by_window(form, work, x, cell, neighbour):
    """The cotangent of cell ``x`` of the current row; each share is multiplied before it is added."""
    args, unit, rank, volume = work.args, work.unit, len(work.args.axes), 1
    pivots, shares = form.computed_at(args.arrays[Role.X]), form.computed_at(args.arrays[Role.U])
    for i in range(rank):
        volume *= args.axes[i].kernel
    received = form.computed(0)
    for tap in range(volume):
        rest, is_real = tap, True
        here = unit.bases[Role.X] + neighbour * args.inner_strides[Role.X]
        there = unit.bases[Role.U] + neighbour * args.inner_strides[Role.U]
        for i in range(rank):
            axis = args.axes[i]
            place = cell
            if i < rank - 1:
                place = unit.place[i]
            window = covering_window(axis, place, rest % axis.kernel)
            rest = rest // axis.kernel
            is_real = is_real and window >= 0
            here += window * axis.strides[Role.X]
            there += window * axis.strides[Role.U]
        if is_real:
            received = received + shares[there] * power(form.computed(args.softness), x, pivots[here])
    return received


@dataclass(frozen=True)
class SmoothCotangent(Cotangent):
    combine_rows = combine_around_least

    @property
    def state(self) -> LeastPivotKind:
        return LeastPivotKind(self.form)

    @outlined
    def receive(self, work, first, end, cells, at):
        args, number, n = work.args, self.form.computed, work.unit.neighbours
        b, unit, zero, amounts = number(args.softness), number(args.unit), number(0), cells.amount
        for i in lanes_once(number, (end - first) * n):
            x, m = cells.other[at + i] * unit, cells.value[at + i]
            cells.other[at + i] = x
            is_covered = (m != number(math.inf)) | (amounts[at + i] != zero)  # a NaN that is not stays alone
            amounts[at + i] = choose(is_covered, amounts[at + i] * power(b, x, m), zero)
        if total(add_nonfinite, zero, amounts, at, (end - first) * n) != zero:
            for cell in range(first, end):
                for i in range(n):
                    here = at + (cell - first) * n + i
                    if amounts[here] - amounts[here] != zero and cells.value[here] == cells.value[here]:
                        amounts[here] = add_window_by_window(self.form, work, cells.other[here], cell, i)
