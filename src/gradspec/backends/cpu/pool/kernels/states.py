"""The state of a partly reduced window: a number, or a number with its winner.

Every state has the same methods, so that the loops over taps, rows and rings are written once. Its components lie in
arrays side by side, ``cells``; ``join(a, b)`` is the state of the cells of ``a`` and then those of ``b``; ``tap(x, k)``
that of one cell, the k-th tap; ``shift_taps(a, shift)`` that of cells which begin ``shift`` taps later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gradspec.codegen.formats import NumberFormat
from gradspec.codegen.intrinsics import address_of, maximum, same_bits
from gradspec.codegen.language import (
    Type,
    Value,
    at_build,
    bf16,
    choose,
    f16,
    f32,
    first,
    inlined,
    number_of,
    outlined,
    total,
)

as_half = same_bits(f16)
SEARCHED = 256
"""Cells of a part of a long bin: the winner is searched in the first part whose maximum is that of the bin."""


class ValueCells(NamedTuple):
    """Where states of one number lie."""

    value: Any


class StoredCells(NamedTuple):
    """Where states of one number lie in their stored format: what is put there is rounded."""

    value: Any


class WinnerCells(NamedTuple):
    """Where numbers and their winners lie."""

    value: Any
    winner: Any


@at_build
def lowest(form: NumberFormat) -> Value:
    """The lowest number: −∞, or the smallest integer."""
    if form.is_float:
        return form.computed(-math.inf)
    return form.computed(-(2 ** (form.computed.bits - 1)) if form.computed.is_signed else 0)


@at_build
def no_winner(form: NumberFormat) -> Value:
    """The winner of a window without real cells: negative, and still negative after any shift."""
    return form.lane(-(1 << (form.lane.bits - 2)))


@at_build
def are_stored(cells: Any) -> bool:
    return isinstance(cells, StoredCells)


@at_build
def is_to_widen(form: NumberFormat, number: Type) -> bool:
    return form.converts and number == form.stored


@dataclass(frozen=True)
class State:
    """Defaults of all states."""

    form: NumberFormat

    @property
    def number(self) -> Type:
        return self.form.computed

    @inlined
    def bound(self, args):
        """The state with its parameters from the arguments of a call."""
        return self

    @inlined
    def join3(self, a, b, c):
        return self.join(self.join(a, b), c)

    @inlined
    def shift_taps(self, state, shift):
        return state


@dataclass(frozen=True)
class OneNumber(State):
    """States of one number: the maximum and the sum."""

    has_totals = True
    """Whether neighbours can be joined in lanes."""

    @inlined
    def cells(self, base, component):
        """Where components lie in a workspace, ``component`` elements apart."""
        return ValueCells(self.form.computed_at(base))

    @inlined
    def get(self, cells, i):
        return cells.value[i]

    @inlined
    def put(self, cells, i, state):
        cells.value[i] = self.form.narrow(state) if are_stored(cells) else state

    @inlined
    def cell(self, value):
        """A cell in the computed format, whether it was read in its stored format or staged."""
        return self.form.widen(value) if is_to_widen(self.form, number_of(value)) else value

    @inlined
    def join_cell(self, a, value):
        return self.join(a, self.cell(value))

    @inlined
    def tap(self, value, k, first_tap):
        return self.cell(value)

    @inlined
    def cell_tap(self, rows, at, k, first_tap):
        """The state of one cell of some rows."""
        return self.cell(rows.x[at])

    @inlined
    def join_bin(self, found, cells, begin, stop):
        """A state with the cells ``begin … stop−1`` of a bin."""
        n = stop - begin
        if n >= 16:
            return self.join(found, total(self.join, self.identity, cells.p, cells.at + begin, n))
        few = self.identity
        for i in range(begin, stop):
            few = self.join(few, cells.p[cells.at + i])
        return self.join(found, few)


@dataclass(frozen=True)
class Largest(OneNumber):
    """The maximum alone: the sign of a zero and a NaN's payload are free."""

    is_idempotent = True

    @property
    def identity(self) -> Value:
        return lowest(self.form)

    @inlined
    def join(self, a, b):
        if self.form.is_float and self.form.computed != bf16:
            return maximum(a, b)
        return choose(FirstWinner(self.form).exceeds(b, a), b, a)

    @inlined
    def first(self, value, k):
        """The first cell of a window with padding."""
        return self.join(self.identity, self.cell(value))


@dataclass(frozen=True)
class Total(OneNumber):
    is_idempotent = False

    @property
    def identity(self) -> Value:
        return self.form.computed(0)

    @inlined
    def join(self, a, b):
        return a + b

    @inlined
    def first(self, value, k):
        return self.identity + self.cell(value)


class Best(NamedTuple):
    """The largest cell so far, and the number of its tap within the window."""

    value: Any
    winner: Any


@inlined
def is_it(cell, top):
    return cell == top


@inlined
def is_nan(cell, top):
    return cell != cell


@dataclass(frozen=True)
class FirstWinner(State):
    """The maximum with its winner.

    A winner is the number of its cell within the window, in row-major order; padding cells have numbers too. ``b``
    takes the place of an earlier ``a`` if it exceeds it, or is the first NaN: ``not b ≤ a`` and ``a`` is a number.

    Padding is read as the lowest number with a negative winner. Only a window whose real cells are all that low can end
    with a negative winner, and then its first real cell has won; or it has no real cell.
    """

    is_idempotent = True
    has_totals = False
    carries = False
    """Whether a tangent takes the winner's place."""

    @property
    def largest(self) -> Largest:
        """The state without winners, in float32 for bfloat16, of which processors have no maximum."""
        return Largest(replace(self.form, computed=f32) if self.form.computed == bf16 else self.form)

    @property
    def identity(self) -> Best:
        return Best(lowest(self.form), no_winner(self.form))

    @inlined
    def cells(self, base, component):
        winners = base + component * self.form.computed.bytes
        return WinnerCells(self.form.computed_at(base), self.form.lane_at(winners))

    @inlined
    def get(self, cells, i):
        return Best(cells.value[i], cells.winner[i])

    @inlined
    def put(self, cells, i, state):
        cells.value[i] = state.value
        cells.winner[i] = state.winner

    @inlined
    def exceeds(self, b, a):
        """Whether a later cell ``b`` takes the place of ``a``."""
        return (not (b <= a)) & (a == a) if self.form.is_float else b > a

    @inlined
    def join(self, a, b):
        return choose(self.exceeds(b.value, a.value), b, a)

    @inlined
    def tap(self, value, k, first_tap):
        """Tap indices are computed from ``first_tap``, which is 0 but unknown to the compiler: choosing between
        constants would be compiled to slower arithmetic on one-bit masks."""
        return Best(value, first_tap + self.form.lane(k))

    @inlined
    def first(self, value, k):
        return Best(value, self.form.lane(k))

    @inlined
    def cells_of(self, cells):
        """The components of a ``FirstWinner`` as this state types them."""
        return cells

    @inlined
    def tap_states(self, cells, tangents, first):
        """The states of adjacent cells, from tap index ``first`` on."""
        return tuple(self.tap(cell, k, first) for k, cell in enumerate(cells))

    @inlined
    def cell_tap(self, rows, at, k, first_tap):
        """The state of one cell of some rows."""
        return self.tap(self.form.widen(rows.x[at]), k, first_tap)

    @inlined
    def shift_taps(self, state, shift):
        return Best(state.value, state.winner + self.form.lane(shift))

    @outlined
    def top(self, p, at, n):
        return self.form.computed(total(self.largest.join_cell, self.largest.identity, p, at, n))

    @outlined
    def join_long_bin(self, found, cells, begin, stop):
        """Find the maximum with vectors; then, in the first part that has it, the first such cell, or the first NaN."""
        p, at = cells
        top, k = found.value, stop
        for part in range(begin, stop, SEARCHED):
            here = self.top(p, at + part, min(SEARCHED, stop - part))
            if self.exceeds(here, top):
                top, k = here, part
        if k == stop:
            return found
        if top == top:
            k += first(is_it, top, p, at + k, stop - k)
        else:
            k += first(is_nan, top, p, at + k, stop - k)
        return Best(p[at + k], self.form.lane(k))

    @inlined
    def join_bin(self, found, cells, begin, stop):
        p, at = cells
        best, who = found
        if begin == 0:
            best, who = p[at], self.form.lane(0)
        if stop - begin >= 32:
            return self.join_long_bin(Best(best, who), cells, begin, stop)
        for k in range(max(begin, 1), stop):
            best, who = self.join(Best(best, who), self.first(p[at + k], k))
        return Best(best, who)


@dataclass(frozen=True)
class FirstLarger(FirstWinner):
    """The maximum with its winner, if no cell is NaN as it is compared.

    bfloat16 is compared as a half of the same bits: both formats order bits alike, but halves take them for an infinity
    from 2¹²¹ on, and for NaN beyond it.
    """

    @property
    def identity(self) -> Best:
        least = self.form.computed(-(2.0**121)) if self.form.computed == bf16 else lowest(self.form)
        return Best(least, no_winner(self.form))

    @inlined
    def compared(self, cell):
        return as_half(cell) if self.form.computed == bf16 else cell

    @inlined
    def larger(self, a, b):
        return maximum(self.compared(a), self.compared(b))

    @inlined
    def exceeds(self, b, a):
        return self.compared(b) > self.compared(a)


@dataclass(frozen=True)
class WinnerTangent(FirstWinner):
    """The maximum with the tangent of its winner in the winner's place."""

    carries = True

    @property
    def identity(self) -> Best:
        return Best(super().identity.value, self.form.computed(0))

    @inlined
    def cells_of(self, cells):
        return WinnerCells(cells.value, self.form.computed_at(address_of(cells.winner)))

    @inlined
    def tap_states(self, cells, tangents, first):
        return tuple(Best(cells[k], tangents[k]) for k in range(len(cells)))

    @inlined
    def cell_tap(self, rows, at, k, first_tap):
        return Best(self.form.widen(rows.x[at]), self.form.widen(rows.u[at + rows.shift]))

    @inlined
    def shift_taps(self, state, shift):
        return state


@dataclass(frozen=True)
class LargerTangent(WinnerTangent, FirstLarger):
    """The same if no cell is NaN as it is compared."""


@outlined
def has_nan(form, p, at, n):
    """Whether a run has a NaN, be it one only as it is compared."""
    if not form.is_float:
        return False
    if form.converts:
        state = Largest(form)
        found = total(state.join_cell, state.identity, p, at, n)
    else:
        state = FirstLarger(form)
        found = total(state.larger, state.compared(state.identity.value), p, at, n)
    return found != found
