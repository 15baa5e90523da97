"""Terms that are linear and formulas of comparisons of them, none larger than a limit allows.

A term is the coefficient of each variable, and a formula its disjunctive normal form: the conjunctions of which one
must hold. Both are made from the inside out. Each step is charged for what it makes, so that time and memory are
bounded however a formula is nested.

>>> algebra, x, y, one = Algebra(), {0: Fraction(1)}, {~0: Fraction(1)}, {None: Fraction(1)}
>>> [[row]] = algebra.compare("<=", [algebra.multiply([{None: Fraction(2)}, y]), algebra.add([x, one])], True)
>>> row
Inequality(outputs=((0, Fraction(2, 1)),), inputs=((0, Fraction(-1, 1)),), bound=Fraction(1, 1), strict=False)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, pairwise, product
from math import prod

from gradspec.spec.errors import FormatError, UnsupportedError
from gradspec.verify.property import Conjunction, Inequality, InputBox, PropertyCase

Term = dict[int | None, Fraction]
"""Coefficients that are not 0: of input i at i, of output j at ~j, which is negative; the constant is at None."""

Formula = list[list[Inequality]]
"""Conjunctions of which one must hold: ``[[]]`` is true, ``[]`` false."""

ZERO, ONE = Fraction(0), Fraction(1)

MOST_WORK = 10_000_000
"""Numbers added and multiplied, and inequalities copied and kept, for one property."""

MOST_CONJUNCTIONS = 1 << 18
MOST_BITS = 8192
"""In a numerator or denominator."""

FLOAT_BITS = 1022
"""Less than 2 to this power is a float64."""

NEGATED = {"<=": ">", ">": "<=", "<": ">=", ">=": "<", "=": "!=", "!=": "="}


class Algebra:
    """Operations on terms and formulas, and the work that is left for them."""

    def __init__(self, work: int = MOST_WORK) -> None:
        self._left = work

    def spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise UnsupportedError("its formulas come to millions of inequalities and numbers; split it into several")

    def _charge(self, number: Fraction) -> Fraction:
        self.spend(checked_bits(number) // 256)
        return number

    # --- terms --------------------------------------------------------------------------------------------------------

    def add(self, terms: Sequence[Term]) -> Term:
        """Their sum, which takes the place of the largest: a chain of sums is not copied again at every link."""
        *others, found = sorted(terms, key=len)
        for term in others:
            self.spend(len(term))
            self._add(found, term)
        return found

    def _add(self, found: Term, term: Term) -> None:
        for variable, number in term.items():
            if variable not in found:
                found[variable] = number
            elif combined := self._charge(found.pop(variable) + number):
                found[variable] = combined

    def scale(self, term: Term, factor: Fraction) -> Term:
        if factor == 1:
            return term
        self.spend(len(term))
        return {variable: self._charge(number * factor) for variable, number in term.items() if factor}

    def subtract(self, terms: Sequence[Term]) -> Term:
        """The first less the others; of a single term, its negative."""
        first, *others = terms
        negative = self.scale(self.add(others or [first]), -ONE)
        return self.add([first, negative]) if others else negative

    def multiply(self, terms: Sequence[Term]) -> Term:
        """The product of terms of which one at most has variables."""
        found: Term = {None: ONE}
        for term in terms:
            number, other = (found, term) if is_number(found) else (term, found)
            if not is_number(number):
                raise UnsupportedError("a product of variables; only linear properties are read")
            found = self.scale(other, value_of(number))
        return found

    def divide(self, terms: Sequence[Term]) -> Term:
        """The first divided by the others, which are numbers."""
        found, *others = terms
        for term in others:
            if not is_number(term):
                raise UnsupportedError("a division by variables; only linear properties are read")
            if not value_of(term):
                raise FormatError("a division by 0")
            found = self.scale(found, 1 / value_of(term))
        return found

    # --- formulas -----------------------------------------------------------------------------------------------------

    def compare(self, relation: str, terms: Sequence[Term], holds: bool) -> Formula:
        """``a ≤ b ≤ c``, or whatever the relation is, or the negation of that."""
        pairs = [self._pair(relation if holds else NEGATED[relation], *pair) for pair in pairwise(terms)]
        return self.all_of(pairs) if holds else self.any_of(pairs)

    def _pair(self, relation: str, left: Term, right: Term) -> Formula:
        strict = relation in ("<", ">", "!=")
        if relation in ("<=", "<"):
            return self._less(left, right, strict)
        if relation in (">=", ">"):
            return self._less(right, left, strict)
        both = [self._less(left, right, strict), self._less(right, left, strict)]
        return self.all_of(both) if relation == "=" else self.any_of(both)

    def _less(self, left: Term, right: Term, strict: bool) -> Formula:
        """``left ≤ right``, or ``<``: an inequality, or if variables have no part in it, whether it is true."""
        found = {variable: -number for variable, number in right.items()}
        self._add(found, left)
        bound = -found.pop(None, ZERO)
        if not found:
            return [[]] if bound > 0 or (bound == 0 and not strict) else []
        numbers = [(variable, number) for variable, number in found.items() if variable is not None]
        outputs = tuple(sorted((~variable, number) for variable, number in numbers if variable < 0))
        inputs = tuple(sorted((variable, number) for variable, number in numbers if variable >= 0))
        return [[Inequality(outputs, inputs, bound, strict)]]

    def any_of(self, formulas: Sequence[Formula]) -> Formula:
        if len(formulas) == 1:
            return formulas[0]
        self._check(sum(map(len, formulas)))
        return list(chain.from_iterable(formulas))

    def all_of(self, formulas: Sequence[Formula]) -> Formula:
        """Every choice of a conjunction from each formula, joined."""
        if len(formulas) == 1:
            return formulas[0]
        count = prod(map(len, formulas))
        self._check(count, sum(count // len(formula) * sum(map(len, formula)) for formula in formulas if formula))
        return [list(chain.from_iterable(choice)) for choice in product(*formulas)]

    def _check(self, conjunctions: int, inequalities: int = 0) -> None:
        """Whether a normal form of so many conjunctions, for which so many inequalities are copied, may be made."""
        if conjunctions > MOST_CONJUNCTIONS:
            raise UnsupportedError(
                f"its normal form has {conjunctions} conjunctions, more than {MOST_CONJUNCTIONS}; split it into several"
            )
        self.spend(conjunctions + inequalities)


def is_number(term: Term) -> bool:
    return not term or term.keys() == {None}


def value_of(number: Term) -> Fraction:
    return number.get(None, ZERO)


def checked_bits(number: Fraction) -> int:
    """The bits of its numerator or denominator; a number that has too many, or is beyond every float, is refused."""
    above, below = number.numerator.bit_length(), number.denominator.bit_length()
    if max(above, below) > MOST_BITS or above - below >= FLOAT_BITS:  # |number| < 2^(above − below + 1)
        raise UnsupportedError(
            f"a number comes to {above} bits divided by {below} bits; "
            f"{MOST_BITS} for each, and numbers below 2^{FLOAT_BITS}, are supported"
        )
    return max(above, below)


# --- cases: boxes and unsafe sets -------------------------------------------------------------------------------------


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
