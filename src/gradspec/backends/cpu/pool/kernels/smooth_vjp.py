"""The VJP of smooth max pooling, by transposed windows.

The cotangent of a cell ``x`` is ``Σ q·exp(b(x − m))`` over the windows that cover it, with pivots ``m ≥ x`` and shares
``q = g/s``. Around the least pivot ``M`` that is ``exp(b(x − M))·Σ q·exp(b(M − m))``: no exponent is positive, and
pairs of ``M`` and such sums are joined as in ``smooth``. Runs take at most 2⌊log₂ k⌋ joins, so the error bound there
holds. If the sum of shares overflows, where the cotangent may not, the cell is added up window by window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradspec.backends.cpu.pool.arguments import AxisKind, Role
from gradspec.backends.cpu.pool.kernels.smooth import BoundState, add_nonfinite, add_shrunk, order_pivots, power
from gradspec.backends.cpu.pool.kernels.ties_vjp import Cotangent, Extreme, Holders
from gradspec.backends.cpu.pool.kernels.walk import next_slab
from gradspec.codegen.intrinsics import minimum, multiply_add
from gradspec.codegen.language import choose, inlined, lanes, lanes_once, outlined, total


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
