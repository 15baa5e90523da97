"""Rational numbers: every operation exact, nothing rounded (python-flint's ``fmpq``)."""

from typing import NoReturn

from flint import fmpq, fmpz

from gradspec.domains.domain import Domain
from gradspec.spec.errors import UnsupportedError
from gradspec.spec.scalar import Scalar, embed, exp, log


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

    >>> rational("1/3") + rational(0.5)
    5/6
    """
    if isinstance(value, fmpq | fmpz | int | str):
        return fmpq(value)
    try:
        ratio = value if hasattr(value, "as_integer_ratio") else float(value)
        numerator, denominator = ratio.as_integer_ratio()
    except (OverflowError, ValueError):
        raise UnsupportedError(
            f"{value} is not a rational number: gs.exact has no NaN or infinity; "
            "use gs.ieee('f64') to compute with them"
        ) from None
    return fmpq(int(numerator), int(denominator))


@embed.register
def _(like: fmpq, value: Scalar) -> fmpq:
    return rational(value)


def _irrational(function: str, x: fmpq) -> NoReturn:
    raise UnsupportedError(
        f"{function}({x}) is not a rational number: gs.exact cannot hold it; use gs.ball(128) for a rigorous "
        "enclosure, or gs.ieee('f64') for the correctly rounded value"
    )


@exp.register
def _(x: fmpq) -> Scalar:
    if x == 0:
        return fmpq(1)
    _irrational("exp", x)


@log.register
def _(x: fmpq) -> Scalar:
    if x == 1:
        return fmpq(0)
    _irrational("log", x)


exact = Exact()
