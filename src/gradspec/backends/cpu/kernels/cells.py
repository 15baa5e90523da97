"""What the instructions of pointwise programs make of single cells, or of vectors of them."""

from typing import Any

from gradspec.backends.cpu.kernels import elementary
from gradspec.backends.cpu.kernels import opcodes as code
from gradspec.backends.cpu.kernels.compiler import Type, choose, f64, inlined
from gradspec.backends.cpu.kernels.memory import float_function, maximum

GELU_CUBIC, GELU_SCALE = 0.044715, 1.5957691216057308
"""As in ``gradspec.spec.pointwise``: kernels depend on the files beside them only."""

absolute, square_root, minimum = (float_function(name) for name in ("fabs", "sqrt", "minimum"))


def instructions(number: Type) -> dict[int, Any]:
    """By opcode, a function of two cells and three numbers. Operators of one operand leave the second cell alone."""
    if not number.is_float:
        return _of_integers()
    return _piecewise_linear(number) | _arithmetic(number) | _smooth(number)


class _Table(dict[int, Any]):
    def __call__(self, opcode: int) -> Any:
        """Add the function that is decorated."""
        return lambda function: self.setdefault(opcode, inlined(function))


def _of_integers() -> dict[int, Any]:
    table = _Table()

    @table(code.COPY)
    def copy(a, b, p, q, r):
        return a

    @table(code.MAXIMUM)
    def larger(a, b, p, q, r):
        return choose(a < b, b, a)

    @table(code.MINIMUM)
    def smaller(a, b, p, q, r):
        return choose(b < a, b, a)

    return table


def _piecewise_linear(number: Type) -> dict[int, Any]:
    zero, half, one = number(0), number(0.5), number(1)
    table = _Table()

    @table(code.COPY)
    def copy(a, b, p, q, r):
        return a

    @table(code.ABS)
    def abs(a, b, p, q, r):
        return absolute(a)

    @table(code.RELU)
    def relu(a, b, p, q, r):
        return choose(a <= zero, zero, a)

    @table(code.LEAKY_RELU)
    def leaky_relu(a, b, p, q, r):
        return choose(a <= zero, p * a, a)

    @table(code.CLAMP)
    def clamp(a, b, p, q, r):
        above = choose(a < p, p, a)
        return choose(above > q, q, above)

    @table(code.STEP)
    def step(a, b, p, q, r):
        return choose(a < zero, p, choose(a == zero, q, r))

    @table(code.WITHIN)
    def within(a, b, p, q, r):
        return choose((a < p) | (a > q), zero, one)

    @table(code.MAX_SHARE)
    def max_share(a, b, p, q, r):
        above = (b == b) & (not a <= b)  # a NaN exceeds every number
        below = (a == a) & (not b <= a)
        return choose(above, one, choose(below, zero, half))

    @table(code.GATE)
    def gate(a, b, p, q, r):
        return choose(a == zero, zero, a * b)

    return table


def _arithmetic(number: Type) -> dict[int, Any]:
    table = _Table()

    @table(code.NEG)
    def neg(a, b, p, q, r):
        return -a

    @table(code.SQRT)
    def sqrt(a, b, p, q, r):
        return square_root(a)

    @table(code.SCALE)
    def scale(a, b, p, q, r):
        return a * p

    @table(code.SHIFT)
    def shift(a, b, p, q, r):
        return a + p

    @table(code.ADD)
    def add(a, b, p, q, r):
        return a + b

    @table(code.SUB)
    def sub(a, b, p, q, r):
        return a - b

    @table(code.MUL)
    def mul(a, b, p, q, r):
        return a * b

    @table(code.DIV)
    def div(a, b, p, q, r):
        return a / b

    @table(code.MAXIMUM)
    def larger(a, b, p, q, r):
        return maximum(a, b)

    @table(code.MINIMUM)
    def smaller(a, b, p, q, r):
        return minimum(a, b)

    return table


def _smooth(number: Type) -> dict[int, Any]:
    exponential, logarithm = elementary.any_exp_of(number), elementary.any_log_of(number)
    hyperbolic_tangent, logistic = elementary.tanh_of(number), elementary.sigmoid_of(number)
    bent, distribution = elementary.softplus_of(number), elementary.normal_cdf_of(number)
    density, raised, zero = elementary.normal_density_of(number), elementary.power_of(number), number(0)
    table = _Table()

    @table(code.EXP)
    def exp(a, b, p, q, r):
        return exponential(a)

    @table(code.LOG)
    def log(a, b, p, q, r):
        return logarithm(a)

    @table(code.TANH)
    def tanh(a, b, p, q, r):
        return hyperbolic_tangent(a)

    @table(code.SIGMOID)
    def sigmoid(a, b, p, q, r):
        return logistic(a)

    @table(code.SOFTPLUS)
    def softplus(a, b, p, q, r):
        return bent(a, p)

    @table(code.SILU)
    def silu(a, b, p, q, r):
        return a * logistic(a)

    @table(code.GELU)
    def gelu(a, b, p, q, r):
        return a * distribution(a)

    @table(code.GELU_BY_TANH)
    def gelu_by_tanh(a, b, p, q, r):
        return a * logistic((a * a * a * GELU_CUBIC + a) * GELU_SCALE)

    @table(code.NORMAL_CDF)
    def normal_cdf(a, b, p, q, r):
        return distribution(a)

    @table(code.NORMAL_DENSITY)
    def normal_density(a, b, p, q, r):
        return density(a)

    @table(code.POWER)
    def power(a, b, p, q, r):
        """``q`` is what rounding to float32 takes from the exponent, and ``r`` whether the result has the sign of a."""
        value = raised(absolute(a), p, zero if number == f64 else q)
        return choose(a == zero, zero, choose((a < zero) & (r != zero), -value, value))

    return table
