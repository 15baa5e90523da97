"""The exponential and the logarithm as polynomials, for numbers and vectors of them.

Errors are relative, in units of the roundoff ``u`` (2⁻²⁴ or 2⁻⁵³), the largest that tests find: ``exp`` 1.6 (where the
result is subnormal, 0.8 of the smallest number instead), ``log`` 1.4.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradspec.backends.cpu.kernels.compiler import Type, choose, f32, i32, i64, inlined
from gradspec.backends.cpu.kernels.memory import maximum, multiply_add, same_bits


@dataclass(frozen=True)
class Constants:
    """What the functions need for one format."""

    bits: Type
    fraction_bits: int
    least: float
    """An integer whose exponential rounds to zero."""
    reserve: int
    """Powers of two that keep intermediate exponentials out of the subnormal numbers."""
    ln2: tuple[float, float]
    """ln 2 in two parts: the first times any exponent is exact."""
    exp: Sequence[float]
    """``(exp r − 1 − r)/r²`` for ``|r| ≤ ln 2/2``, from the constant term on."""
    log: Sequence[float]
    """``(2·artanh s − 2s)/s³`` as a polynomial in ``s²``, for ``|s| ≤ (√2 − 1)/(√2 + 1)``."""

    @property
    def bias(self) -> int:
        return int((1 << (self.bits.bits - 2 - self.fraction_bits)) - 1)

    @property
    def rounder(self) -> float:
        """Added to a number, it leaves the nearest integer, biased as an exponent is, in the last bits."""
        return 1.5 * 2.0**self.fraction_bits + self.bias + self.reserve


# Interpolated at Chebyshev's nodes in sixty digits.
_SINGLE = Constants(
    i32,
    23,
    -104.0,
    32,
    (0.693145751953125, 1.428606765330187e-06),
    (0.5, 0.16666577756404877, 0.041666556149721146, 0.008363173343241215, 0.0013926175888627768),
    (0.6666666865348816, 0.4000012278556824, 0.2855082154273987, 0.2333046793937683),
)
_DOUBLE = Constants(
    i64,
    52,
    -746.0,
    64,
    (0.6931471803691238, 1.9082149292705877e-10),
    (
        0.5000000000000001,
        0.16666666666666669,
        0.041666666666624164,
        0.008333333333330065,
        0.0013888888917196719,
        0.00019841269863040545,
        2.4801521322368692e-05,
        2.7557268480310024e-06,
        2.7620075879983367e-07,
        2.5100375832561234e-08,
    ),
    (
        0.666666666666667,
        0.39999999999899505,
        0.28571428625975487,
        0.2222221113479508,
        0.18182889125261723,
        0.15331721600556042,
        0.14616449685043406,
    ),
)


def constants(number: Type) -> Constants:
    return _SINGLE if number == f32 else _DOUBLE


def polynomial(number: Type, coefficients: Sequence[float]) -> Any:
    """The function of ``x`` with these coefficients, the constant first.

    Its halves are independent of each other (Estrin's scheme), so that they are computed side by side.
    """
    first = number(coefficients[0])
    if len(coefficients) == 1:

        @inlined
        def constant(x):
            return first

        return constant
    half = 1 << ((len(coefficients) - 1).bit_length() - 1)
    low, high = polynomial(number, coefficients[:half]), polynomial(number, coefficients[half:])
    squarings = half.bit_length() - 1

    @inlined
    def value(x):
        power = x
        for _ in range(squarings):
            power = power * power
        return multiply_add(power, high(x), low(x))

    return value


def exp_of(number: Type) -> Any:
    """``exp(z)`` for ``z ≤ 0``; 1 of 0, 0 of −∞, and NaN of NaN.

    ``exp z = 2ⁿ·exp r`` with ``n`` the integer nearest to ``z/ln 2``. A product with ``2ⁿ`` may fall among the
    subnormal numbers; in two steps, of which the first stays clear of them, it is rounded once.
    """
    c = constants(number)
    ln2, ln2_rest = c.ln2
    shift, bits_of, of_bits = c.fraction_bits, same_bits(c.bits), same_bits(number)
    least, rounder, per_ln2, back = c.least, c.rounder, 1 / math.log(2), 2.0**-c.reserve
    tail = polynomial(number, c.exp)

    @inlined
    def exp(z):
        near = maximum(z, number(least))
        biased = multiply_add(near, number(per_ln2), number(rounder))
        n = biased - rounder
        r = multiply_add(n, number(-ln2_rest), multiply_add(n, number(-ln2), near))
        part = multiply_add(r * r, tail(r), r) + 1
        return part * of_bits(bits_of(biased) << shift) * back

    return exp


def log_of(number: Type) -> Any:
    """``log(x)`` for finite ``x > 0``.

    ``x = 2ⁿ·(1 + f)`` with ``1 + f`` between √½ and √2, and with ``s = f/(2 + f)`` and ``h = f²/2``

        log(1 + f) = 2·artanh s = f − (h − s·(h + s²·P(s²))),

    in which the large term ``f`` is exact.
    """
    c = constants(number)
    ln2, ln2_rest = c.ln2
    shift, bits_of, of_bits = c.fraction_bits, same_bits(c.bits), same_bits(number)
    one = c.bias << shift
    lowest = one - (1 << shift) + int((math.sqrt(2) - 1) * (1 << shift))  # the bits of √½
    smallest, lift = 2.0 ** (1 - c.bias), shift + 1
    lifting, tail = 2.0**lift, polynomial(number, c.log)

    @inlined
    def log(x):
        is_small = x < smallest
        bits = bits_of(choose(is_small, x * lifting, x))
        exponent = (bits - lowest) >> shift
        f = of_bits(bits - (exponent << shift)) - 1
        n = number(exponent) - choose(is_small, number(lift), number(0))
        s, h = f / (f + 2), f * f * 0.5
        z = s * s
        rest = multiply_add(n, number(ln2_rest), s * (h + z * tail(z)))
        return multiply_add(n, number(ln2), f - (h - rest))

    return log
