"""Elementary functions as polynomials, for numbers and vectors of them.

Errors are relative, in units of the roundoff ``u`` (2⁻²⁴ or 2⁻⁵³), the largest that tests find: ``exp`` 1.6, ``log``
and ``log1p`` 1.4, ``softplus`` with β = 1 2.2, ``sigmoid`` 3, ``tanh`` and ``power`` 3.2, ``normal_density`` 3.5,
``normal_cdf`` 7. Where a result is subnormal, they are less than 2.2 of the smallest number instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradspec.codegen.intrinsics import absolute, maximum, minimum, multiply_add, same_bits, with_sign_of
from gradspec.codegen.language import Intrinsic, Type, at_build, choose, f32, f64, i32, i64, inlined, number_of

# --- constants --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Polynomial:
    """By its coefficients, the constant first."""

    coefficients: tuple[float, ...]

    @property
    def half(self) -> int:
        """The largest power of two below the number of coefficients."""
        return 1 << ((len(self.coefficients) - 1).bit_length() - 1)

    @property
    def low(self) -> Polynomial:
        return Polynomial(self.coefficients[: self.half])

    @property
    def high(self) -> Polynomial:
        return Polynomial(self.coefficients[self.half :])

    @property
    def squarings(self) -> range:
        return range(self.half.bit_length() - 1)

    @inlined
    def at(self, x):
        """Its halves are independent of each other (Estrin's scheme), so that they are computed side by side."""
        if len(self.coefficients) == 1:
            return number_of(x)(self.coefficients[0])
        power = x
        for _ in self.squarings:
            power = power * power
        return multiply_add(power, self.high.at(x), self.low.at(x))


@dataclass(frozen=True)
class Coefficients:
    """What the functions need for one format."""

    bits: Type
    fraction_bits: int
    least: float
    """An integer whose exponential rounds to zero."""
    most: float
    """An integer whose exponential exceeds every number."""
    reserve: int
    """Powers of two that keep intermediate exponentials out of the subnormal numbers."""
    ln2: tuple[float, float]
    """ln 2 in two parts: the first times any exponent is exact."""
    exp: Polynomial
    """``(exp r − 1 − r)/r²`` for ``|r| ≤ ln 2/2``, from the constant term on."""
    log: Polynomial
    """``(2·artanh s − 2s)/s³`` as a polynomial in ``s²``, for ``|s| ≤ (√2 − 1)/(√2 + 1)``."""
    log1p: Polynomial
    """The same for ``|s| ≤ 1/5``."""
    beyond: float
    """From here on the tail of the normal distribution rounds to zero."""
    tail: Polynomial
    """``(t + 4)·exp(t²/2)·Φ(−t)`` as a polynomial in ``1 − 8/(t + 4)``, for ``0 ≤ t ≤ beyond``."""

    @property
    def bias(self) -> int:
        return int((1 << (self.bits.bits - 2 - self.fraction_bits)) - 1)

    @property
    def bits_of(self) -> Intrinsic:
        """The bits of a number as an integer."""
        return same_bits(self.bits)

    @property
    def of_bits(self) -> Intrinsic:
        return same_bits(f32 if self.bits == i32 else f64)

    @property
    def rounder(self) -> float:
        """Added to a number, it leaves an integer in the last bits, where the exponent's bias is added, too."""
        return 1.5 * 2.0**self.fraction_bits + self.bias

    @property
    def root_half(self) -> int:
        """The bits of √½."""
        shift = self.fraction_bits
        return (self.bias << shift) - (1 << shift) + int((math.sqrt(2) - 1) * (1 << shift))


# Interpolated at Chebyshev's nodes in sixty digits.
_SINGLE = Coefficients(
    i32,
    23,
    -104.0,
    89.0,
    32,
    (0.693145751953125, 1.428606765330187e-06),
    Polynomial((0.5, 0.16666577756404877, 0.041666556149721146, 0.008363173343241215, 0.0013926175888627768)),
    Polynomial((0.6666666865348816, 0.4000012278556824, 0.2855082154273987, 0.2333046793937683)),
    Polynomial((0.6666666865348816, 0.4000031054019928, 0.2853274345397949, 0.23747344315052032)),
    14.5,
    Polynomial(
        (
            0.7552851438522339,
            -0.607896625995636,
            0.38713666796684265,
            -0.18652300536632538,
            0.06040646880865097,
            -0.007527213077992201,
            -0.0035235739778727293,
            0.001569313695654273,
            0.0001948018471011892,
            -0.00012298315414227545,
        )
    ),
)
_DOUBLE = Coefficients(
    i64,
    52,
    -746.0,
    710.0,
    64,
    (0.6931471803691238, 1.9082149292705877e-10),
    Polynomial(
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
        )
    ),
    Polynomial(
        (
            0.666666666666667,
            0.39999999999899505,
            0.28571428625975487,
            0.2222221113479508,
            0.18182889125261723,
            0.15331721600556042,
            0.14616449685043406,
        )
    ),
    Polynomial(
        (
            0.6666666666666666,
            0.400000000000078,
            0.2857142856733919,
            0.22222223037807243,
            0.18181738454723026,
            0.15388834677801916,
            0.1321036048513262,
            0.13604015707124079,
        )
    ),
    39.0,
    Polynomial(
        (
            0.7552851304157515,
            -0.6078966419718921,
            0.38713740074221453,
            -0.18652185795965726,
            0.06039657489093656,
            -0.007540188966726791,
            -0.003479692367393595,
            0.0016308184575887011,
            0.00013334431240964574,
            -0.000231094935169459,
            -1.9082584797734333e-06,
            3.5144686053003464e-05,
            7.166663245221031e-07,
            -5.9201733230161025e-06,
            -6.296965605815823e-07,
            1.0215540371961016e-06,
            2.7180452962592834e-07,
            -1.549649174224745e-07,
            -8.540841815685125e-08,
            1.3280797787310328e-08,
            1.961961086135556e-08,
            1.91827702037334e-09,
            -2.5220994578780736e-09,
            -7.262419810409579e-10,
        )
    ),
)


@at_build
def constants(number: Type) -> Coefficients:
    return _SINGLE if number == f32 else _DOUBLE


# --- rounding to integers ---------------------------------------------------------------------------------------------


@inlined
def round_to_even(x):
    """The nearest integer, of two the even one: a sum with ``2^fraction_bits``, beyond which all numbers are integers.

    A NaN is as it is, and a zero has the sign of ``x``.
    """
    beyond = number_of(x)(2.0 ** constants(number_of(x)).fraction_bits)
    size = absolute(x)
    return choose(size < beyond, with_sign_of(size + beyond - beyond, x), x)


@inlined
def floor(x):
    """The largest integer that is not above ``x``."""
    number, nearest = number_of(x), round_to_even(x)
    return choose(nearest > x, nearest - number(1), nearest)


# --- exponentials -----------------------------------------------------------------------------------------------------


PER_LN2, BELL_HEIGHT = 1 / math.log(2), 1 / math.sqrt(2 * math.pi)


@inlined
def reduced(z, rounder):
    """``exponent, part`` with ``exp z = 2ⁿ·(1 + part)``, ``n`` the integer nearest to ``z/ln 2``.

    Shifted to their place, the last bits of ``exponent`` are those of ``2^(n + reserve)``, where ``rounder`` is that of
    the format and ``reserve`` more.
    """
    number, c = number_of(z), constants(number_of(z))
    rounded = multiply_add(z, number(PER_LN2), number(rounder))
    n = rounded - number(rounder)
    r = multiply_add(n, number(-c.ln2[1]), multiply_add(n, number(-c.ln2[0]), z))
    return c.bits_of(rounded), multiply_add(r * r, c.exp.at(r), r)


@inlined
def exp_of_negative(z):
    """``exp(z)`` for ``z ≤ 0``; 1 of 0, 0 of −∞, and NaN of NaN.

    A product with ``2ⁿ`` may fall among the subnormal numbers; in two steps, of which the first stays clear of them, it
    is rounded once.
    """
    number, c = number_of(z), constants(number_of(z))
    exponent, part = reduced(maximum(z, number(c.least)), c.rounder + c.reserve)
    return (part + 1) * c.of_bits(exponent << c.fraction_bits) * 2.0**-c.reserve


@inlined
def exp(z):
    """``exp(z)`` for all ``z``: the two steps stay clear of infinity as well."""
    number, c, is_low = number_of(z), constants(number_of(z)), z < 0
    exponent, part = reduced(minimum(maximum(z, number(c.least)), number(c.most)), c.rounder)
    moved = exponent + choose(is_low, c.bits(c.reserve), c.bits(-c.reserve))
    back = choose(is_low, number(2.0**-c.reserve), number(2.0**c.reserve))
    return (part + 1) * c.of_bits(moved << c.fraction_bits) * back


@inlined
def tanh(x):
    """``tanh x = −m/(2 + m)`` for ``x ≥ 0``, with ``m = exp(−2x) − 1 = 2ⁿ·part + (2ⁿ − 1)``, where nothing cancels.

    From 20 on it is 1 in every format.
    """
    number, c = number_of(x), constants(number_of(x))
    exponent, part = reduced(maximum(absolute(x) * -2.0, number(-40.0)), c.rounder)
    scale = c.of_bits(exponent << c.fraction_bits)
    m = multiply_add(scale, part, scale - 1)
    return with_sign_of(m / (m + 2), x)


@inlined
def sigmoid(x):
    """``1/(1 + exp(−x)) = exp(x)/(1 + exp(x))``, whichever does not overflow."""
    power = exp_of_negative(-absolute(x))
    return choose(x < 0, power, number_of(x)(1)) / (power + 1)


# --- logarithms -------------------------------------------------------------------------------------------------------


@inlined
def split(x):
    """``n, f`` with ``x = 2ⁿ·(1 + f)`` and ``1 + f`` between √½ and √2, for finite ``x > 0``; ``f`` is exact."""
    number, c = number_of(x), constants(number_of(x))
    is_small = x < 2.0 ** (1 - c.bias)
    bits = c.bits_of(choose(is_small, x * 2.0 ** (c.fraction_bits + 1), x))
    exponent = (bits - c.root_half) >> c.fraction_bits
    f = c.of_bits(bits - (exponent << c.fraction_bits)) - 1
    return number(exponent) - choose(is_small, number(c.fraction_bits + 1), number(0)), f


@inlined
def joined(polynomial, n, f):
    """``n·ln 2 + log(1 + f)``. With ``s = f/(2 + f)`` and ``h = f²/2``

        log(1 + f) = 2·artanh s = f − (h − s·(h + s²·P(s²))),

    in which the large term ``f`` is exact.
    """
    number, c = number_of(f), constants(number_of(f))
    s, h = f / (f + 2), f * f * 0.5
    z = s * s
    rest = multiply_add(n, number(c.ln2[1]), s * (h + z * polynomial.at(z)))
    return multiply_add(n, number(c.ln2[0]), f - (h - rest))


@inlined
def log_of_positive(x):
    """``log(x)`` for finite ``x > 0``."""
    n, f = split(x)
    return joined(constants(number_of(x)).log, n, f)


@inlined
def log(x):
    """``log(x)`` for all ``x``: −∞ of 0, NaN below and of NaN, ∞ of ∞."""
    number = number_of(x)
    value = choose(x < number(math.inf), log_of_positive(x), x)
    return choose(x > 0, value, choose(x == 0, number(-math.inf), number(math.nan)))


@inlined
def log1p(e):
    """``log(1 + e)`` for ``0 ≤ e ≤ 1``: above ½, ``1 + e = 2·(1 + (e − 1)/2)``, and ``e − 1`` is exact there."""
    number, is_large = number_of(e), e > 0.5
    n, f = choose(is_large, number(1), number(0)), choose(is_large, (e - 1) * 0.5, e)
    return joined(constants(number).log1p, n, f)


@inlined
def softplus(x, beta):
    """``log(1 + exp z)/β = x + log(1 + exp(−z))/β`` with ``z = β·x``, whichever does not overflow."""
    z = beta * x
    bend = log1p(exp_of_negative(-absolute(z))) / beta
    return choose(z > 0, x + bend, bend)


# --- powers -----------------------------------------------------------------------------------------------------------


@inlined
def sum_in_two(a, b):
    """``a + b``, rounded, and what that lost."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


@inlined
def log_in_two(x):
    """``log(x)`` for finite ``x > 0`` as a sum of two numbers, with an error of some hundredths of ``u``.

    As in ``joined``, but ``2·artanh s = 2s + s³·P(s²)``, where the last term is a hundredth of the first and ``s`` has
    two parts: the remainder of a division is exact.
    """
    number, c = number_of(x), constants(number_of(x))
    n, f = split(x)
    d = f + 2
    s = f / d
    s_rest = (multiply_add(-s, d, f) - s * (f - (d - 2))) / d
    z = s * s
    head, lost = sum_in_two(n * c.ln2[0], s * 2)
    total, rest = sum_in_two(head, multiply_add(n, number(c.ln2[1]), s * z * c.log.at(z)))
    return total, lost + rest + s_rest * 2


@inlined
def power(x, q, q_rest):
    """``x^(q + q_rest)`` for ``x > 0``, q ≠ 0 (0 and ∞ at infinity, NaN of NaN), as ``exp(q·log x)``."""
    number = number_of(x)
    total, rest = log_in_two(x)
    exponent = q * total
    below = multiply_add(q, total, -exponent) + (q * rest + q_rest * total)
    value = exp(exponent)
    scaled = value * (choose(absolute(exponent) < number(math.inf), below, number(0)) + 1)
    at_infinity = choose(q > 0, number(math.inf), number(0))
    return choose(x < number(math.inf), scaled, choose(x == x, at_infinity, x))


# --- the normal distribution ------------------------------------------------------------------------------------------


@inlined
def bell(t):
    """``exp(−t²/2)`` for ``0 ≤ t ≤ beyond``. What is lost when ``t²`` is rounded is known, and small."""
    square = t * t
    lost = multiply_add(t, t, -square)
    power = exp_of_negative(square * -0.5)
    return multiply_add(power, lost * -0.5, power)


@inlined
def normal_density(x):
    """``exp(−x²/2)/√(2π)``."""
    number = number_of(x)
    return bell(minimum(absolute(x), number(constants(number).beyond))) * BELL_HEIGHT


@inlined
def normal_cdf(x):
    """``Φ(x)``, from the tail ``Φ(−|x|)``.

    The tail is sensitive to ``r = 1/(t + 4)``, so it is taken at ``r·(1 + e)``, where ``e`` is what two roundings cost.
    """
    number, c = number_of(x), constants(number_of(x))
    t = minimum(absolute(x), number(c.beyond))
    d = t + 4
    r = number(1) / d
    e = multiply_add(-r, d, number(1)) - r * (t - (d - 4))
    y = multiply_add(r * e, number(-8), multiply_add(r, number(-8), number(1)))
    tail = c.tail.at(y) * multiply_add(r, e, r) * bell(t)
    return choose(x > 0, 1 - tail, tail)
