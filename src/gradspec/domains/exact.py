"""Rational numbers: every operation exact, nothing rounded (python-flint's ``fmpq``)."""

import re
from collections.abc import Callable
from fractions import Fraction
from numbers import Integral
from typing import Any, NoReturn

from flint import arb, fmpq, fmpz

from gradspec.domains.domain import Domain
from gradspec.spec import scalar
from gradspec.spec.errors import DTypeError, UnsupportedError
from gradspec.spec.scalar import Scalar

_SPECIAL = re.compile(r"\s*[-+]?(nan|inf|infinity)\s*", re.IGNORECASE)


class Exact(Domain):
    """Rationals. Floats convert to the number they are; NaN and infinities are not rational.

    >>> from gradspec import exact
    >>> exact.scalar(0.1)
    3602879701896397/36028797018963968
    """

    name = "exact"

    def scalar(self, value: Scalar) -> fmpq:
        return rational(value)


def rational(value: Scalar) -> fmpq:
    """``value`` as a rational, exactly.

    >>> rational("1/3") + rational(0.5), rational("0.1")
    (5/6, 1/10)
    """
    number = rational_or_special(value)
    if isinstance(number, float):
        raise UnsupportedError(
            f"{value} is not a rational number: gs.exact has no NaN or infinity; "
            "use gs.ieee('f64') to compute with them"
        )
    return number


def rational_or_special(value: Scalar) -> fmpq | float:
    """``value`` as the rational it is, exactly, or as the NaN or infinity it is."""
    if isinstance(value, fmpq | fmpz):
        return fmpq(value)
    if isinstance(value, Integral):
        return fmpq(int(value))
    number = value if hasattr(value, "as_integer_ratio") else _read(value)
    try:
        numerator, denominator = number.as_integer_ratio()
    except (OverflowError, ValueError):
        return float(number)
    return fmpq(int(numerator), int(denominator))


def _read(value: Scalar) -> Fraction | float:
    """A numeral, or a small float type that every double holds."""
    if isinstance(value, arb):
        raise UnsupportedError(f"{value} is a ball, not one number; put it in gs.ball(bits) and compute with that")
    try:
        return Fraction(value) if isinstance(value, str) and not _SPECIAL.fullmatch(value) else float(value)
    except (TypeError, ValueError):
        raise DTypeError(
            f"{value!r}, a {type(value).__name__}, is not a number of one value; give an int, a float, a Fraction or a "
            'numeral such as "1/3" or "0.1", and bring everything that meets into one number system'
        ) from None


@scalar.embed.register
def _(like: fmpq, value: Scalar) -> fmpq:
    return rational(value)


def _irrational(function: str, x: fmpq) -> NoReturn:
    raise UnsupportedError(
        f"{function}({x}) is not a rational number: gs.exact cannot hold it; use gs.ball(128) for a rigorous "
        "enclosure, or gs.ieee('f64') for the correctly rounded value"
    )


_RATIONAL_AT: dict[Any, tuple[fmpq, fmpq] | None] = {
    scalar.exp: (fmpq(0), fmpq(1)),
    scalar.log: (fmpq(1), fmpq(0)),
    scalar.log1p: (fmpq(0), fmpq(0)),
    scalar.tanh: (fmpq(0), fmpq(0)),
    scalar.sin: (fmpq(0), fmpq(0)),
    scalar.cos: (fmpq(0), fmpq(1)),
    scalar.atan: (fmpq(0), fmpq(0)),
    scalar.erf: (fmpq(0), fmpq(0)),
    scalar.normal_cdf: (fmpq(0), fmpq(1, 2)),
    scalar.normal_density: None,
}
"""Where each function has its only rational value at a rational number, and that value."""


def _at_one_point(name: str, point: tuple[fmpq, fmpq] | None) -> Callable[[fmpq], fmpq]:
    def function(x: fmpq) -> fmpq:
        if point is None or x != point[0]:
            _irrational(name, x)
        return point[1]

    return function


for _function, _point in _RATIONAL_AT.items():
    _function.register(fmpq, _at_one_point(_function.__name__, _point))


@scalar.floor.register
def _(x: fmpq) -> Scalar:
    return fmpq(x.floor())


@scalar.nearest_integer.register
def _(x: fmpq) -> Scalar:
    return fmpq(round(Fraction(int(x.p), int(x.q))))


@scalar.sqrt.register
def _(x: fmpq) -> Scalar:
    return _power("sqrt", x, Fraction(1, 2))


@scalar.power.register
def _(x: fmpq, p: int | float | Fraction) -> Scalar:
    return _power(f"the power {p} of ", x, Fraction(p))


def _power(function: str, x: fmpq, p: Fraction) -> fmpq:
    ratio = scalar.rational_power(int(x.p), int(x.q), p)
    if ratio is None:
        _irrational(function, x)
    return fmpq(*ratio)


exact = Exact()
