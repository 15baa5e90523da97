"""Real numbers from the standard library's decimals, to judge exp and log by something that is not python-flint."""

from decimal import Context, Decimal
from fractions import Fraction

DIGITS = 60
_CONTEXT = Context(prec=DIGITS, Emax=10**9, Emin=-(10**9))


def real_exp(x: float) -> tuple[Fraction, Fraction]:
    """Bounds of ``exp(x)``; ``Decimal.exp`` is correctly rounded to the context's digits."""
    return _around(Decimal(x).exp(_CONTEXT))


def real_log(x: float) -> tuple[Fraction, Fraction]:
    return _around(Decimal(x).ln(_CONTEXT))


def _around(y: Decimal) -> tuple[Fraction, Fraction]:
    exact = Fraction(y)
    slack = abs(exact) / 10 ** (DIGITS - 1)
    return exact - slack, exact + slack
