"""From conjunctions of inequalities to cases: what bounds one input is a side of a box, and the rest is unsafe set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from gradspec.spec.errors import UnsupportedError
from gradspec.verify.formulas import Formula, checked_bits
from gradspec.verify.property import Conjunction, Inequality, InputBox, PropertyCase

MOST_CELLS = 1 << 25
"""Numbers in all boxes of a property, or in the matrix of a conjunction, or inequalities that all of them have."""

Ends = dict[int, Fraction]


@dataclass
class Restriction:
    """A conjunction, taken apart: ends of inputs, and the inequalities that say more than that."""

    lower: Ends = field(default_factory=dict)
    upper: Ends = field(default_factory=dict)
    rows: list[Inequality] = field(default_factory=list)

    def add(self, inequalities: Iterable[Inequality]) -> None:
        for row in inequalities:
            bounds_an_input = not row.outputs and len(row.inputs) == 1
            if bounds_an_input:
                ((place, factor),) = row.inputs
                end = row.bound / factor
                checked_bits(end)
                self.tighten(place, factor > 0, end)
            if not bounds_an_input or row.strict:  # boxes are closed; the row says that this side is not in it
                self.rows.append(row)

    def tighten(self, place: int, is_upper: bool, end: Fraction) -> None:
        ends = self.upper if is_upper else self.lower
        if place not in ends or (end < ends[place]) == is_upper:
            ends[place] = end

    def beyond(self, common: Restriction) -> Restriction:
        """What this demands and ``common`` does not."""
        lower = {i: end for i, end in self.lower.items() if i not in common.lower or end > common.lower[i]}
        upper = {i: end for i, end in self.upper.items() if i not in common.upper or end < common.upper[i]}
        return Restriction(lower, upper, self.rows)

    def is_empty_within(self, common: Restriction) -> bool:
        """Whether a lower end that one of both states is above an upper end of the other."""
        over = any(end > self.upper.get(i, common.upper.get(i, end)) for i, end in self.lower.items())
        return over or any(end < common.lower.get(i, end) for i, end in self.upper.items())


def cases_of(
    common: Restriction, formula: Formula, inputs: int, outputs: int, name: Callable[[int], str]
) -> tuple[PropertyCase, ...]:
    """The cases of ``common`` and the formula; ``name`` says what an input is called, should one lack an end.

    Conjunctions that have the same box are the unsafe set of one case. Nothing is in an empty box, so it is left out.
    """
    groups: dict[tuple[frozenset[tuple[int, Fraction]], ...], tuple[Restriction, list[list[Inequality]]]] = {}
    for conjunction in formula if not common.is_empty_within(common) else ():
        whole = Restriction()
        whole.add(conjunction)
        own = whole.beyond(common)
        if not own.is_empty_within(common):
            key = frozenset(own.lower.items()), frozenset(own.upper.items())
            groups.setdefault(key, (own, []))[1].append(own.rows)
    _check_size("boxes", len(groups), inputs)
    _check_size("inequalities for all cases", len(formula), len(common.rows))

    def conjunction_of(rows: list[Inequality]) -> Conjunction:
        found = Conjunction((*common.rows, *rows), inputs, outputs)
        width = max(outputs, inputs) if found.names_inputs else outputs
        _check_size("a matrix", len(found.inequalities), width)
        return found

    def box(own: Restriction) -> InputBox:
        lower = _complete({**common.lower, **own.lower}, inputs, "lower", name)
        return InputBox(lower, _complete({**common.upper, **own.upper}, inputs, "upper", name))

    return tuple(PropertyCase(box(own), tuple(map(conjunction_of, rows))) for own, rows in groups.values())


def _complete(ends: Ends, size: int, side: str, name: Callable[[int], str]) -> tuple[Fraction, ...]:
    if len(ends) < size:
        missing = next(place for place in range(size) if place not in ends)
        raise UnsupportedError(f"{name(missing)} has no {side} bound; state one for every input, in every case")
    return tuple(ends[place] for place in range(size))


def _check_size(what: str, count: int, length: int) -> None:
    if count * length > MOST_CELLS:
        raise UnsupportedError(f"it comes to {what} of {count} × {length} numbers, and at most {MOST_CELLS} are kept")
