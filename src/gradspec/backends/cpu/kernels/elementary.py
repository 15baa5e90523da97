"""Elementary functions as polynomials, for numbers and vectors of them.

Errors are relative, in units of the roundoff ``u`` (2⁻²⁴ or 2⁻⁵³), the largest that tests find: ``exp`` 1.6, ``log``
and ``log1p`` 1.4, ``softplus`` with β = 1 2.2, ``sigmoid`` 3, ``tanh`` and ``power`` 3.2, ``normal_density`` 3.5,
``normal_cdf`` 7. Where a result is subnormal, they are less than 2.2 of the smallest number instead.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradspec.backends.cpu.kernels.compiler import Type, choose, f32, i32, i64, inlined
from gradspec.backends.cpu.kernels.memory import float_function, maximum, multiply_add, same_bits

absolute, with_sign_of, minimum = (float_function(name) for name in ("fabs", "copysign", "minimum"))
"""``|a|``, ``±|a|`` with the sign of ``b``, and the smaller of two floats; a NaN if either is one."""


@dataclass(frozen=True)
class Constants:
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
    exp: Sequence[float]
    """``(exp r − 1 − r)/r²`` for ``|r| ≤ ln 2/2``, from the constant term on."""
    log: Sequence[float]
    """``(2·artanh s − 2s)/s³`` as a polynomial in ``s²``, for ``|s| ≤ (√2 − 1)/(√2 + 1)``."""
    log1p: Sequence[float]
    """The same for ``|s| ≤ 1/5``."""
    beyond: float
    """From here on the tail of the normal distribution rounds to zero."""
    tail: Sequence[float]
    """``(t + 4)·exp(t²/2)·Φ(−t)`` as a polynomial in ``1 − 8/(t + 4)``, for ``0 ≤ t ≤ beyond``."""

    @property
    def bias(self) -> int:
        return int((1 << (self.bits.bits - 2 - self.fraction_bits)) - 1)


# Interpolated at Chebyshev's nodes in sixty digits.
_SINGLE = Constants(
    i32,
    23,
    -104.0,
    89.0,
    32,
    (0.693145751953125, 1.428606765330187e-06),
    (0.5, 0.16666577756404877, 0.041666556149721146, 0.008363173343241215, 0.0013926175888627768),
    (0.6666666865348816, 0.4000012278556824, 0.2855082154273987, 0.2333046793937683),
    (0.6666666865348816, 0.4000031054019928, 0.2853274345397949, 0.23747344315052032),
    14.5,
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
    ),
)
_DOUBLE = Constants(
    i64,
    52,
    -746.0,
    710.0,
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
    (
        0.6666666666666666,
        0.400000000000078,
        0.2857142856733919,
        0.22222223037807243,
        0.18181738454723026,
        0.15388834677801916,
        0.1321036048513262,
        0.13604015707124079,
    ),
    39.0,
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


# --- exponentials -----------------------------------------------------------------------------------------------------


def _reduced(number: Type, reserve: int = 0) -> Any:
    """``reduce(z) → exponent, part`` with ``exp z = 2ⁿ·(1 + part)``, ``n`` the integer nearest to ``z/ln 2``.

    Shifted to their place, the last bits of ``exponent`` are those of the number ``2^(n + reserve)``.
    """
    c = constants(number)
    ln2, ln2_rest = c.ln2
    bits_of, per_ln2, tail = same_bits(c.bits), 1 / math.log(2), polynomial(number, c.exp)
    rounder = 1.5 * 2.0**c.fraction_bits + c.bias + reserve  # added to a number, it leaves an integer in the last bits

    @inlined
    def reduce(z):
        rounded = multiply_add(z, number(per_ln2), number(rounder))
        n = rounded - rounder
        r = multiply_add(n, number(-ln2_rest), multiply_add(n, number(-ln2), z))
        return bits_of(rounded), multiply_add(r * r, tail(r), r)

    return reduce


def exp_of(number: Type) -> Any:
    """``exp(z)`` for ``z ≤ 0``; 1 of 0, 0 of −∞, and NaN of NaN.

    A product with ``2ⁿ`` may fall among the subnormal numbers; in two steps, of which the first stays clear of them, it
    is rounded once.
    """
    c = constants(number)
    shift, of_bits, reduce = c.fraction_bits, same_bits(number), _reduced(number, c.reserve)
    least, back = c.least, 2.0**-c.reserve

    @inlined
    def exp(z):
        exponent, part = reduce(maximum(z, number(least)))
        return (part + 1) * of_bits(exponent << shift) * back

    return exp


def any_exp_of(number: Type) -> Any:
    """``exp(z)`` for all ``z``: the two steps stay clear of infinity as well."""
    c = constants(number)
    shift, of_bits, reduce = c.fraction_bits, same_bits(number), _reduced(number)
    least, most, reserve, integer = c.least, c.most, c.reserve, c.bits

    @inlined
    def exp(z):
        is_low = z < 0
        exponent, part = reduce(minimum(maximum(z, number(least)), number(most)))
        moved = exponent + choose(is_low, integer(reserve), integer(-reserve))
        back = choose(is_low, number(2.0**-reserve), number(2.0**reserve))
        return (part + 1) * of_bits(moved << shift) * back

    return exp


def tanh_of(number: Type) -> Any:
    """``tanh x = −m/(2 + m)`` for ``x ≥ 0``, with ``m = exp(−2x) − 1 = 2ⁿ·part + (2ⁿ − 1)``, where nothing cancels.

    From 20 on it is 1 in every format.
    """
    c = constants(number)
    shift, of_bits, reduce = c.fraction_bits, same_bits(number), _reduced(number)

    @inlined
    def tanh(x):
        exponent, part = reduce(maximum(absolute(x) * -2.0, number(-40.0)))
        scale = of_bits(exponent << shift)
        m = multiply_add(scale, part, scale - 1)
        return with_sign_of(m / (m + 2), x)

    return tanh


def sigmoid_of(number: Type) -> Any:
    """``1/(1 + exp(−x)) = exp(x)/(1 + exp(x))``, whichever does not overflow."""
    exp = exp_of(number)

    @inlined
    def sigmoid(x):
        power = exp(-absolute(x))
        return choose(x < 0, power, number(1)) / (power + 1)

    return sigmoid


# --- logarithms -------------------------------------------------------------------------------------------------------


def _split(number: Type) -> Any:
    """``split(x) → n, f`` with ``x = 2ⁿ·(1 + f)`` and ``1 + f`` between √½ and √2, for
    finite ``x > 0``; ``f`` is exact.
    """
    c = constants(number)
    shift, bits_of, of_bits = c.fraction_bits, same_bits(c.bits), same_bits(number)
    one = c.bias << shift
    lowest = one - (1 << shift) + int((math.sqrt(2) - 1) * (1 << shift))  # the bits of √½
    smallest, lift = 2.0 ** (1 - c.bias), shift + 1
    lifting = 2.0**lift

    @inlined
    def split(x):
        is_small = x < smallest
        bits = bits_of(choose(is_small, x * lifting, x))
        exponent = (bits - lowest) >> shift
        f = of_bits(bits - (exponent << shift)) - 1
        return number(exponent) - choose(is_small, number(lift), number(0)), f

    return split


def _joined(number: Type, coefficients: Sequence[float]) -> Any:
    """``join(n, f) = n·ln 2 + log(1 + f)``. With ``s = f/(2 + f)`` and ``h = f²/2``

        log(1 + f) = 2·artanh s = f − (h − s·(h + s²·P(s²))),

    in which the large term ``f`` is exact.
    """
    ln2, ln2_rest = constants(number).ln2
    tail = polynomial(number, coefficients)

    @inlined
    def join(n, f):
        s, h = f / (f + 2), f * f * 0.5
        z = s * s
        rest = multiply_add(n, number(ln2_rest), s * (h + z * tail(z)))
        return multiply_add(n, number(ln2), f - (h - rest))

    return join


def log_of(number: Type) -> Any:
    """``log(x)`` for finite ``x > 0``."""
    split, join = _split(number), _joined(number, constants(number).log)

    @inlined
    def log(x):
        n, f = split(x)
        return join(n, f)

    return log


def any_log_of(number: Type) -> Any:
    """``log(x)`` for all ``x``: −∞ of 0, NaN below and of NaN, ∞ of ∞."""
    finite = log_of(number)

    @inlined
    def log(x):
        value = choose(x < number(math.inf), finite(x), x)
        return choose(x > 0, value, choose(x == 0, number(-math.inf), number(math.nan)))

    return log


def log1p_of(number: Type) -> Any:
    """``log(1 + e)`` for ``0 ≤ e ≤ 1``: above ½, ``1 + e = 2·(1 + (e − 1)/2)``, and ``e − 1`` is exact there."""
    join = _joined(number, constants(number).log1p)

    @inlined
    def log1p(e):
        is_large = e > 0.5
        return join(choose(is_large, number(1), number(0)), choose(is_large, (e - 1) * 0.5, e))

    return log1p


def softplus_of(number: Type) -> Any:
    """``log(1 + exp z)/β = x + log(1 + exp(−z))/β`` with ``z = β·x``, whichever does not overflow."""
    exp, log1p = exp_of(number), log1p_of(number)

    @inlined
    def softplus(x, beta):
        z = beta * x
        bend = log1p(exp(-absolute(z))) / beta
        return choose(z > 0, x + bend, bend)

    return softplus


# --- powers -----------------------------------------------------------------------------------------------------------


def _log_in_two(number: Type) -> Any:
    """``log(x)`` for finite ``x > 0`` as a sum of two numbers, with an error of some hundredths of ``u``.

    As in ``log_of``, but ``2·artanh s = 2s + s³·P(s²)``, where the last term is a hundredth of the first and ``s`` has
    two parts: the remainder of a division is exact.
    """
    c = constants(number)
    ln2, ln2_rest = c.ln2
    split, tail = _split(number), polynomial(number, c.log)

    @inlined
    def log(x):
        n, f = split(x)
        d = f + 2
        s = f / d
        s_rest = (multiply_add(-s, d, f) - s * (f - (d - 2))) / d
        z = s * s
        head, lost = _sum_in_two(n * ln2, s * 2)
        total, rest = _sum_in_two(head, multiply_add(n, number(ln2_rest), s * z * tail(z)))
        return total, lost + rest + s_rest * 2

    return log


@inlined
def _sum_in_two(a, b):
    """``a + b``, rounded, and what that lost."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def power_of(number: Type) -> Any:
    """``x^(q + q_rest)`` for ``x > 0``, q ≠ 0 (0 and ∞ at infinity, NaN of NaN), as ``exp(q·log x)``."""
    log, exp, infinity = _log_in_two(number), any_exp_of(number), math.inf

    @inlined
    def power(x, q, q_rest):
        total, rest = log(x)
        exponent = q * total
        below = multiply_add(q, total, -exponent) + (q * rest + q_rest * total)
        value = exp(exponent)
        scaled = value * (choose(absolute(exponent) < number(infinity), below, number(0)) + 1)
        at_infinity = choose(q > 0, number(infinity), number(0))
        return choose(x < number(infinity), scaled, choose(x == x, at_infinity, x))

    return power


# --- the normal distribution ------------------------------------------------------------------------------------------


def _bell(number: Type) -> Any:
    """``exp(−t²/2)`` for ``0 ≤ t ≤ beyond``. What is lost when ``t²`` is rounded is known, and small."""
    exp = exp_of(number)

    @inlined
    def bell(t):
        square = t * t
        lost = multiply_add(t, t, -square)
        power = exp(square * -0.5)
        return multiply_add(power, lost * -0.5, power)

    return bell


def normal_density_of(number: Type) -> Any:
    """``exp(−x²/2)/√(2π)``."""
    bell, beyond, factor = _bell(number), constants(number).beyond, 1 / math.sqrt(2 * math.pi)

    @inlined
    def normal_density(x):
        return bell(minimum(absolute(x), number(beyond))) * factor

    return normal_density


def normal_cdf_of(number: Type) -> Any:
    """``Φ(x)``, from the tail ``Φ(−|x|)``.

    The tail is sensitive to ``r = 1/(t + 4)``, so it is taken at ``r·(1 + e)``, where ``e`` is what two roundings cost.
    """
    c = constants(number)
    bell, beyond, scaled_tail = _bell(number), c.beyond, polynomial(number, c.tail)

    @inlined
    def normal_cdf(x):
        t = minimum(absolute(x), number(beyond))
        d = t + 4
        r = number(1) / d
        e = multiply_add(-r, d, number(1)) - r * (t - (d - 4))
        y = multiply_add(r * e, number(-8), multiply_add(r, number(-8), number(1)))
        tail = scaled_tail(y) * multiply_add(r, e, r) * bell(t)
        return choose(x > 0, 1 - tail, tail)

    return normal_cdf
