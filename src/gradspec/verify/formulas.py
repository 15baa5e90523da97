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

from collections.abc import Sequence
from fractions import Fraction
from itertools import chain, pairwise, product
from math import prod

from gradspec.spec.errors import FormatError, UnsupportedError
from gradspec.verify.property import Inequality

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

    def _charged(self, number: Fraction) -> Fraction:
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
            elif combined := self._charged(found.pop(variable) + number):
                found[variable] = combined

    def scale(self, term: Term, factor: Fraction) -> Term:
        if factor == 1:
            return term
        self.spend(len(term))
        return {variable: self._charged(number * factor) for variable, number in term.items() if factor}

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
