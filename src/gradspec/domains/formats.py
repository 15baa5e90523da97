"""Binary floating-point formats: their constants, and rounding to nearest, ties to even, once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property


@dataclass(frozen=True)
class Format:
    """A binary format with ``precision`` significand bits and largest exponent ``emax``, with subnormals.

    >>> float(F16.largest), float(F16.tiniest), F16.nearest(2049.0)
    (65504.0, 5.960464477539063e-08, 2048.0)
    """

    name: str
    precision: int
    emax: int

    @property
    def emin(self) -> int:
        return 1 - self.emax

    @property
    def lowest_bit(self) -> int:
        """The exponent of the smallest subnormal."""
        return self.emin - self.precision + 1

    @cached_property
    def unit(self) -> Fraction:
        """The unit roundoff ``u``."""
        return Fraction(1, 2**self.precision)

    @cached_property
    def tiniest(self) -> Fraction:
        """The smallest subnormal ``η``."""
        return Fraction(2) ** self.lowest_bit

    @cached_property
    def normal(self) -> Fraction:
        """The smallest normal number ``ν``."""
        return Fraction(2) ** self.emin

    @cached_property
    def largest(self) -> Fraction:
        """The largest finite number ``Ω``."""
        return Fraction(2) ** self.emax * (2 - 2 * self.unit)

    @cached_property
    def overflow(self) -> Fraction:
        """``Ω⁺ = 2^emax·(2 − 2^−p)``: from here on, rounding to nearest gives infinity."""
        return Fraction(2) ** self.emax * (2 - self.unit)

    def nearest(self, x: float) -> float:
        """The nearest number of this format to a Python float."""
        if self.precision == 53 or x == 0 or not math.isfinite(x):
            return x
        exponent = max(math.frexp(x)[1] - self.precision, self.lowest_bit)
        quotient = round(math.ldexp(x, -exponent))
        overflows = abs(quotient).bit_length() + exponent > self.emax + 1
        return math.copysign(math.inf if overflows else math.ldexp(quotient, exponent), x)

    def nearest_ratio(self, numerator: int, denominator: int = 1) -> float:
        """The nearest number of this format to a fraction, rounded once.

        >>> F32.nearest_ratio(1, 3)
        0.3333333432674408
        """
        if numerator == 0:
            return 0.0
        sign, n, d = -1.0 if numerator < 0 else 1.0, abs(numerator), denominator
        # 2^(exponent + precision) is within a factor of two of n/d; a quotient that comes out one bit too long is
        # still rounded once, because the exponent is settled before the division that rounds.
        exponent = n.bit_length() - d.bit_length() - self.precision
        if n << max(-exponent - self.precision, 0) >= d << max(exponent + self.precision, 0):
            exponent += 1
        exponent = max(exponent, self.lowest_bit)
        quotient, remainder = divmod(n << max(-exponent, 0), d << max(exponent, 0))
        twice = 2 * remainder - (d << max(exponent, 0))
        quotient += twice > 0 or (twice == 0 and quotient & 1)
        if quotient.bit_length() + exponent > self.emax + 1:
            return sign * math.inf
        return sign * math.ldexp(quotient, exponent)


F16 = Format("f16", 11, 15)
BF16 = Format("bf16", 8, 127)
F32 = Format("f32", 24, 127)
F64 = Format("f64", 53, 1023)
FORMATS = {f.name: f for f in (F16, BF16, F32, F64)}


def format_named(name: str | Format) -> Format:
    """One of ``f16``, ``bf16``, ``f32``, ``f64``, or a Format as it is."""
    if isinstance(name, Format):
        return name
    if name not in FORMATS:
        raise ValueError(f"format {name!r} is not known; use one of {', '.join(FORMATS)}, or a Format")
    return FORMATS[name]


def float_below(numerator: int, denominator: int) -> float:
    """The largest float at most ``numerator / denominator`` (−inf below them all)."""
    x = F64.nearest_ratio(numerator, denominator)
    return x if x == -math.inf or not _above(x, numerator, denominator) else math.nextafter(x, -math.inf)


def float_above(numerator: int, denominator: int) -> float:
    """The smallest float at least ``numerator / denominator`` (inf above them all).

    >>> float_below(1, 3) < float_above(1, 3), float_below(1, 4) == float_above(1, 4)
    (True, True)
    """
    return -float_below(-numerator, denominator)


def _above(x: float, numerator: int, denominator: int) -> bool:
    if math.isinf(x):
        return x > 0
    n, d = x.as_integer_ratio()
    return n * denominator > numerator * d
