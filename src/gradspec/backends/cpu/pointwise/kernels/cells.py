"""What instructions make of single cells, or of vectors of them."""

from __future__ import annotations

from operator import add, mul, neg, sub, truediv
from typing import Any

from gradspec.backends.cpu.pointwise.arguments import Opcode
from gradspec.codegen.intrinsics import absolute, maximum, minimum, square_root
from gradspec.codegen.kernels.elementary import (
    exp,
    floor,
    log,
    normal_cdf,
    normal_density,
    power,
    round_to_even,
    sigmoid,
    softplus,
    tanh,
)
from gradspec.codegen.language import Type, at_build, choose, f64, inlined, number_of, u32, u64

GELU_CUBIC, GELU_SCALE = 0.044715, 1.5957691216057308
"""As in ``gradspec.spec.pointwise``: kernels do not depend on the specification."""

# --- of one cell ------------------------------------------------------------------------------------------------------


@inlined
def same(a):
    return a


@inlined
def relu(a):
    return choose(a <= 0, number_of(a)(0), a)


@inlined
def not_zero(a):
    return truth(a, a != 0)


@inlined
def truth(a, test):
    """A truth value among numbers like ``a``."""
    return choose(test, number_of(a)(1), number_of(a)(0))


@inlined
def silu(a):
    return a * sigmoid(a)


@inlined
def gelu(a):
    return a * normal_cdf(a)


@inlined
def gelu_by_tanh(a):
    return a * sigmoid((a * a * a * GELU_CUBIC + a) * GELU_SCALE)


# --- of one cell and up to three numbers ------------------------------------------------------------------------------


@inlined
def leaky_relu(a, numbers):
    return choose(a <= 0, numbers[0] * a, a)


@inlined
def bent(a, numbers):
    return softplus(a, numbers[0])


@inlined
def clamped(a, numbers):
    low, high, _ = numbers
    above = choose(a < low, low, a)
    return choose(above > high, high, above)


@inlined
def step(a, numbers):
    below, at, above = numbers
    return choose(a < 0, below, choose(a == 0, at, above))


@inlined
def within(a, numbers):
    low, high, _ = numbers
    return choose((a < low) | (a > high), number_of(a)(0), number_of(a)(1))


@inlined
def raised(a, numbers):
    """The exponent, what rounding to float32 took from it, and whether the result has the sign of ``a``."""
    exponent, rest, is_signed = numbers
    value = power(absolute(a), exponent, number_of(a)(0) if number_of(a) == f64 else rest)
    return choose(a == 0, 0.0, choose((a < 0) & (is_signed != 0), -value, value))


# --- of two cells -----------------------------------------------------------------------------------------------------


@inlined
def subtract_from(a, b):
    return b - a


@inlined
def divide_into(a, b):
    return b / a


@inlined
def larger(a, b):
    return maximum(a, b) if number_of(a).is_float else choose(a < b, b, a)


@inlined
def smaller(a, b):
    return minimum(a, b) if number_of(a).is_float else choose(b < a, b, a)


@inlined
def max_share(a, b):
    number = number_of(a)
    above = (b == b) & (not a <= b)  # a NaN exceeds every number
    below = (a == a) & (not b <= a)
    return choose(above, number(1), choose(below, number(0), number(0.5)))


@inlined
def gate(a, b):
    return choose(a == 0, 0.0, a * b)


@inlined
def greater(a, b):
    return truth(a, a > b)


@inlined
def equal(a, b):
    return truth(a, a == b)


# --- of three cells ---------------------------------------------------------------------------------------------------


@inlined
def chosen(test, a, b):
    return choose(test != 0, a, b)


# --- of integers, which wrap around -----------------------------------------------------------------------------------


@at_build
def unsigned(number: Type) -> Type:
    """Arithmetic of these wraps around; that of signed integers must not."""
    return u64 if number.bits == 64 else u32


@inlined
def whole_sum(a, b):
    bits = unsigned(number_of(a))
    return number_of(a)(bits(a) + bits(b))


@inlined
def whole_difference(a, b):
    bits = unsigned(number_of(a))
    return number_of(a)(bits(a) - bits(b))


@inlined
def whole_difference_from(a, b):
    return whole_difference(b, a)


@inlined
def whole_product(a, b):
    bits = unsigned(number_of(a))
    return number_of(a)(bits(a) * bits(b))


@inlined
def whole_negative(a):
    return whole_difference(number_of(a)(0), a)


@inlined
def whole_size(a):
    return choose(a < 0, whole_negative(a), a)


@inlined
def trunc_divide(a, b):
    """Of their sizes, which unsigned integers always hold; 0 where ``b`` is 0."""
    bits, divisor = unsigned(number_of(a)), choose(b == 0, number_of(b)(1), b)
    quotient = number_of(a)(bits(whole_size(a)) // bits(whole_size(divisor)))
    signed = choose((a < 0) == (b < 0), quotient, whole_negative(quotient))
    return choose(b == 0, number_of(a)(0), signed)


# --- by opcode --------------------------------------------------------------------------------------------------------

Meanings = dict[Opcode, Any]

OF_ONE: Meanings = {
    Opcode.COPY: same,
    Opcode.NEG: neg,
    Opcode.ABS: absolute,
    Opcode.SQRT: square_root,
    Opcode.FLOOR: floor,
    Opcode.ROUND: round_to_even,
    Opcode.RELU: relu,
    Opcode.EXP: exp,
    Opcode.LOG: log,
    Opcode.TANH: tanh,
    Opcode.SIGMOID: sigmoid,
    Opcode.SILU: silu,
    Opcode.GELU: gelu,
    Opcode.GELU_BY_TANH: gelu_by_tanh,
    Opcode.NORMAL_CDF: normal_cdf,
    Opcode.NORMAL_DENSITY: normal_density,
    Opcode.NOT_ZERO: not_zero,
}
OF_ONE_AND_NUMBERS: Meanings = {
    Opcode.LEAKY_RELU: leaky_relu,
    Opcode.SOFTPLUS: bent,
    Opcode.CLAMP: clamped,
    Opcode.STEP: step,
    Opcode.WITHIN: within,
    Opcode.POWER: raised,
}
OF_TWO: Meanings = {
    Opcode.ADD: add,
    Opcode.SUB: sub,
    Opcode.MUL: mul,
    Opcode.DIV: truediv,
    Opcode.MAXIMUM: larger,
    Opcode.MINIMUM: smaller,
    Opcode.MAX_SHARE: max_share,
    Opcode.GATE: gate,
    Opcode.GREATER: greater,
    Opcode.EQUAL: equal,
}
OF_THREE: Meanings = {Opcode.WHERE: chosen}
BY_NUMBER: Meanings = {
    **{opcode: OF_TWO[opcode] for opcode in (Opcode.ADD, Opcode.SUB, Opcode.MUL, Opcode.DIV)},
    **{opcode: OF_TWO[opcode] for opcode in (Opcode.MAXIMUM, Opcode.MINIMUM)},
    Opcode.SUB_FROM: subtract_from,
    Opcode.DIV_INTO: divide_into,
}
"""Of a cell and a number that is the same for many of them."""

OF_ONE_INTEGER: Meanings = {
    **{opcode: OF_ONE[opcode] for opcode in (Opcode.COPY, Opcode.RELU, Opcode.NOT_ZERO)},
    Opcode.NEG: whole_negative,
    Opcode.ABS: whole_size,
}
OF_TWO_INTEGERS: Meanings = {
    **{opcode: OF_TWO[opcode] for opcode in (Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.GREATER, Opcode.EQUAL)},
    Opcode.ADD: whole_sum,
    Opcode.SUB: whole_difference,
    Opcode.MUL: whole_product,
    Opcode.TRUNC_DIVIDE: trunc_divide,
}
INTEGER_BY_NUMBER: Meanings = {
    **{opcode: meaning for opcode, meaning in OF_TWO_INTEGERS.items() if opcode in BY_NUMBER},
    Opcode.SUB_FROM: whole_difference_from,
}
