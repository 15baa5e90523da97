"""Inverses of divisors to twice the precision, from which kernels make rounded quotients without a division."""

from __future__ import annotations

from fractions import Fraction
from math import frexp

import numpy as np

NEGLIGIBLE = 2.0**-60


def inverse_of(divisor: float, computed: int) -> tuple[float, float]:
    """``1/divisor`` as the sum of two numbers of so many bytes: rounded towards 0, and what is missing; or zeros.

    With ``1/d ≈ r + s`` a quotient ``x/d`` is ``x·r + x·s``, the sum rounded once with the first product. For numbers
    of p bits ``s < 2^(1−p)·r``, so before that rounding the error is below ``2^(2−2p)`` of the quotient: s is rounded,
    and so is ``x·s``. The quotient is rounded correctly unless a midpoint between two numbers lies so close. Midpoints
    are ``m·2^e`` with an odd m of p + 1 bits. If d is D times a power of two, D odd, ``x/d`` differs from a midpoint by
    ``1/D`` of such a power at least, which is more than ``2^−p/(2D)`` of it: enough for ``D ≤ 2^(p−4)``.

    Both numbers have one sign, so that an infinite x has an infinite quotient. For a power of two nothing is missing;
    a negligible number instead of 0 changes no quotient, and keeps ∞·0 away.

    >>> inverse_of(3.0, 4)
    (0.3333333134651184, 1.9868215517249155e-08)
    >>> inverse_of(0.1, 4)
    (0.0, 0.0)
    """
    number, digits = (np.float64, 53) if computed == 8 else (np.float32, 24)
    odd = Fraction(abs(frexp(divisor)[0])).numerator
    if not 1 / NEGLIGIBLE > abs(divisor) > NEGLIGIBLE or odd > 2 ** (digits - 4):
        return 0.0, 0.0
    exact = 1 / Fraction(divisor)
    inverse = number(1) / number(divisor)
    if abs(Fraction(float(inverse))) > abs(exact):
        inverse = np.nextafter(inverse, number(0))
    missing = float(exact - Fraction(float(inverse))) or float(inverse) * NEGLIGIBLE
    return float(inverse), float(number(missing))
